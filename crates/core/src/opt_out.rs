//! Opt-out of drains: the pod label or annotation `nodeward.dev/drain`, and what other drainers read in its place.

use jiff::{SignedDuration, Timestamp};
use nodeward_api::{annotation, label};

use crate::deadline::{is_due, saturating_add};
use crate::duration::ConfigDuration;

/// What a pod's owner asked drains to do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OptOut {
    /// `skip`: never touched, and no drain waits for it.
    Skip,
    /// `wait-completed`: never touched, and a drain waits until it finishes.
    WaitCompleted,
    /// Any other value: treated as `wait-completed`, the safer reading, and reported.
    Unknown,
}

/// Where an opt-out was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OptOutSource {
    /// The label `nodeward.dev/drain`.
    Label,
    /// The annotation `nodeward.dev/drain`.
    Annotation,
    /// The label `cluster.x-k8s.io/drain`, which Cluster API honours, too.
    ClusterApi,
    /// The annotation `karpenter.sh/do-not-disrupt`: `"true"`, or a duration since the pod's start.
    Karpenter,
}

/// All that a pod asked for, by where it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct OptOuts {
    read: [Option<OptOut>; OptOutSource::BY_PRECEDENCE.len()],
    /// When Karpenter's ends.
    ends: Option<Box<Timestamp>>,
}

impl OptOut {
    /// Reads the value of the label or annotation `nodeward.dev/drain`.
    pub fn parse(value: &str) -> Self {
        match value {
            "skip" => Self::Skip,
            "wait-completed" => Self::WaitCompleted,
            _ => Self::Unknown,
        }
    }

    /// Reads the value of Cluster API's label, as lenient as Cluster API is: letter case does not matter, nor does the hyphen of
    /// `wait-completed`. Any other value means nothing to it.
    fn parse_cluster_api(value: &str) -> Option<Self> {
        if value.eq_ignore_ascii_case("skip") {
            Some(Self::Skip)
        } else if value.replacen('-', "", 1).eq_ignore_ascii_case("waitcompleted") {
            Some(Self::WaitCompleted)
        } else {
            None
        }
    }

    /// Reads the value of Karpenter's annotation, and for how long it counts if it says so. Karpenter drops a value that it does
    /// not know, and says that in an Event on the pod.
    fn parse_karpenter(value: &str) -> Option<(Self, Option<SignedDuration>)> {
        match value {
            annotation::KARPENTER_DO_NOT_DISRUPT_TRUE => Some((Self::WaitCompleted, None)),
            "false" => None,
            value => Some(match ConfigDuration::parse(value) {
                Ok(duration) => (Self::WaitCompleted, Some(duration.get())),
                Err(_) => (Self::Unknown, None),
            }),
        }
    }
}

impl OptOuts {
    /// What a pod with these labels and annotations asked for. Karpenter's durations count from its start: before that, they do
    /// not end.
    pub fn read<'a>(
        label: impl Fn(&str) -> Option<&'a str>,
        annotation: impl Fn(&str) -> Option<&'a str>,
        start: Option<Timestamp>,
    ) -> Self {
        let karpenter = annotation(OptOutSource::Karpenter.key()).and_then(OptOut::parse_karpenter);
        let duration = karpenter.and_then(|(_, duration)| duration);
        Self {
            read: OptOutSource::BY_PRECEDENCE.map(|source| match source {
                OptOutSource::Label => label(source.key()).map(OptOut::parse),
                OptOutSource::Annotation => annotation(source.key()).map(OptOut::parse),
                OptOutSource::ClusterApi => label(source.key()).and_then(OptOut::parse_cluster_api),
                OptOutSource::Karpenter => karpenter.map(|(opt_out, _)| opt_out),
            }),
            ends: start
                .zip(duration)
                .map(|(start, duration)| Box::new(saturating_add(start, duration))),
        }
    }

    /// Those that have not ended, each with its source, by precedence.
    pub fn iter(&self, now: Timestamp) -> impl Iterator<Item = (OptOut, OptOutSource)> {
        let read = self.read.into_iter().zip(OptOutSource::BY_PRECEDENCE);
        let lasting = move |source| self.until(source).is_none_or(|end| !is_due(end, now));
        read.filter_map(move |(opt_out, source)| Some((opt_out?, source)).filter(|_| lasting(source)))
    }

    /// The one that counts, where all are honoured; `None` where the pod asked for nothing, or what it asked for has ended.
    pub fn first(&self, now: Timestamp) -> Option<(OptOut, OptOutSource)> {
        self.iter(now).next()
    }

    /// When the one of this source ends by itself.
    pub fn until(&self, source: OptOutSource) -> Option<Timestamp> {
        self.changes_at().filter(|_| source == OptOutSource::Karpenter)
    }

    /// When the pod asks for something else by the passing of time alone.
    pub fn changes_at(&self) -> Option<Timestamp> {
        self.ends.as_deref().copied()
    }
}

impl OptOutSource {
    /// Nodeward's own label comes first, then its annotation, then Cluster API's label, then Karpenter's annotation: what
    /// was written for Nodeward says more precisely what is meant.
    const BY_PRECEDENCE: [Self; 4] = [Self::Label, Self::Annotation, Self::ClusterApi, Self::Karpenter];

    /// The key that the opt-out was read from.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Label => label::DRAIN,
            Self::Annotation => annotation::DRAIN,
            Self::ClusterApi => label::CLUSTER_API_DRAIN,
            Self::Karpenter => annotation::KARPENTER_DO_NOT_DISRUPT,
        }
    }

    /// The values that are known.
    pub const fn values(self) -> &'static str {
        match self {
            Self::Label | Self::Annotation | Self::ClusterApi => "skip or wait-completed",
            Self::Karpenter => "true, or a duration such as 4h",
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("skip", OptOut::Skip)]
    #[case("wait-completed", OptOut::WaitCompleted)]
    #[case("Skip", OptOut::Unknown)]
    #[case("", OptOut::Unknown)]
    #[case("true", OptOut::Unknown)]
    fn any_other_value_is_unknown(#[case] value: &str, #[case] opt_out: OptOut) {
        assert_eq!(OptOut::parse(value), opt_out);
    }

    #[rstest]
    #[case::nothing(&[], &[], None)]
    #[case::label(&[("nodeward.dev/drain", "skip")], &[], Some((OptOut::Skip, OptOutSource::Label)))]
    #[case::annotation(&[], &[("nodeward.dev/drain", "skip")], Some((OptOut::Skip, OptOutSource::Annotation)))]
    #[case::cluster_api(&[("cluster.x-k8s.io/drain", "skip")], &[], Some((OptOut::Skip, OptOutSource::ClusterApi)))]
    #[case::cluster_api_in_capitals(&[("cluster.x-k8s.io/drain", "Skip")], &[], Some((OptOut::Skip, OptOutSource::ClusterApi)))]
    #[case::cluster_api_waits(
        &[("cluster.x-k8s.io/drain", "wait-completed")], &[], Some((OptOut::WaitCompleted, OptOutSource::ClusterApi))
    )]
    #[case::cluster_api_waits_in_one_word(
        &[("cluster.x-k8s.io/drain", "WaitCompleted")], &[], Some((OptOut::WaitCompleted, OptOutSource::ClusterApi))
    )]
    #[case::cluster_api_other(&[("cluster.x-k8s.io/drain", "drain")], &[], None)]
    #[case::cluster_api_other_lets_karpenter_through(
        &[("cluster.x-k8s.io/drain", "drain")],
        &[("karpenter.sh/do-not-disrupt", "true")],
        Some((OptOut::WaitCompleted, OptOutSource::Karpenter))
    )]
    #[case::cluster_api_is_a_label(&[], &[("cluster.x-k8s.io/drain", "skip")], None)]
    #[case::karpenter(&[], &[("karpenter.sh/do-not-disrupt", "true")], Some((OptOut::WaitCompleted, OptOutSource::Karpenter)))]
    #[case::karpenter_off(&[], &[("karpenter.sh/do-not-disrupt", "false")], None)]
    #[case::karpenter_unknown(
        &[], &[("karpenter.sh/do-not-disrupt", "until-friday")], Some((OptOut::Unknown, OptOutSource::Karpenter))
    )]
    #[case::karpenter_is_an_annotation(&[("karpenter.sh/do-not-disrupt", "true")], &[], None)]
    #[case::own_label_before_all(
        &[("nodeward.dev/drain", "wait-completed"), ("cluster.x-k8s.io/drain", "skip")],
        &[("nodeward.dev/drain", "skip")],
        Some((OptOut::WaitCompleted, OptOutSource::Label))
    )]
    #[case::own_annotation_before_others(
        &[("cluster.x-k8s.io/drain", "skip")],
        &[("nodeward.dev/drain", "wait-completed")],
        Some((OptOut::WaitCompleted, OptOutSource::Annotation))
    )]
    #[case::skip_before_wait(
        &[("cluster.x-k8s.io/drain", "skip")],
        &[("karpenter.sh/do-not-disrupt", "true")],
        Some((OptOut::Skip, OptOutSource::ClusterApi))
    )]
    // A label of our own that is not understood does not let others through.
    #[case::unknown_stays_unknown(
        &[("nodeward.dev/drain", "never"), ("cluster.x-k8s.io/drain", "skip")],
        &[],
        Some((OptOut::Unknown, OptOutSource::Label))
    )]
    fn own_annotations_precede_foreign_ones(
        #[case] labels: &[(&str, &'static str)],
        #[case] annotations: &[(&str, &'static str)],
        #[case] expected: Option<(OptOut, OptOutSource)>,
    ) {
        let among = |entries: &[(&str, &'static str)], key: &str| {
            entries.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
        };
        let read = OptOuts::read(|key| among(labels, key), |key| among(annotations, key), None);
        assert_eq!(read.first(at(0)), expected);
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// As Karpenter v1.14 reads it, but for what is no duration above 0: Karpenter drops that, and it is waited for here.
    #[rstest]
    #[case::hours("4h", Some(100), 100 + 4 * 3600, true)]
    #[case::last_moment("4h", Some(100), 100 + 4 * 3600 - 1, false)]
    #[case::several_units("1h30m", Some(100), 100 + 5400, true)]
    #[case::fraction("1.5m", Some(100), 190, true)]
    #[case::without_a_start("4h", None, 1_000_000_000, false)]
    #[case::longest("100000h", Some(100), 1_000_000_000, true)]
    #[case::without_end("true", Some(100), 1_000_000_000, false)]
    #[case::nothing("0s", Some(100), 1_000_000_000, false)]
    #[case::negative("-4h", Some(100), 1_000_000_000, false)]
    #[case::no_unit("240", Some(100), 1_000_000_000, false)]
    #[case::days("4d", Some(100), 1_000_000_000, false)]
    #[case::word("yes", Some(100), 1_000_000_000, false)]
    #[case::capitals("True", Some(100), 1_000_000_000, false)]
    #[case::empty("", Some(100), 1_000_000_000, false)]
    fn karpenters_duration_counts_from_pods_start(
        #[case] value: &'static str,
        #[case] start: Option<i64>,
        #[case] now: i64,
        #[case] has_ended: bool,
    ) {
        let read = OptOuts::read(
            |_| None,
            |key| (key == "karpenter.sh/do-not-disrupt").then_some(value),
            start.map(at),
        );
        assert!(read.first(at(100)).is_some(), "it counts at the start");
        assert_eq!(read.first(at(now)).is_none(), has_ended);
        let is_known = read
            .first(at(100))
            .is_some_and(|(opt_out, _)| opt_out != OptOut::Unknown);
        assert_eq!(is_known, value == "true" || ConfigDuration::parse(value).is_ok());
        assert!(!has_ended || read.changes_at().is_some_and(|end| end <= at(now)));
    }

    /// One of Nodeward's own stands beside it, and lasts.
    #[test]
    fn end_of_karpenters_ends_no_other() {
        let read = OptOuts::read(
            |_| None,
            |key| {
                Some(if key == annotation::DRAIN {
                    "wait-completed"
                } else {
                    "1m"
                })
            },
            Some(at(0)),
        );
        assert_eq!(read.iter(at(59)).count(), 2);
        assert_eq!(
            read.first(at(60)),
            Some((OptOut::WaitCompleted, OptOutSource::Annotation))
        );
        assert_eq!(read.iter(at(60)).count(), 1);
    }
}
