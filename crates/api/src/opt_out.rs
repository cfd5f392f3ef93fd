//! Opt-out of drains: the pod label or annotation `nodeward.dev/drain`, and what other drainers read in its place.

use crate::{annotation, label};

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
    /// The annotation `karpenter.sh/do-not-disrupt: "true"`.
    Karpenter,
}

/// All that a pod asked for, by where it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct OptOuts([Option<OptOut>; OptOutSource::BY_PRECEDENCE.len()]);

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
}

impl OptOuts {
    /// What a pod with these labels and annotations asked for.
    pub fn read<'a>(label: impl Fn(&str) -> Option<&'a str>, annotation: impl Fn(&str) -> Option<&'a str>) -> Self {
        Self(OptOutSource::BY_PRECEDENCE.map(|source| {
            match source {
                OptOutSource::Label => label(source.key()).map(OptOut::parse),
                OptOutSource::Annotation => annotation(source.key()).map(OptOut::parse),
                OptOutSource::ClusterApi => label(source.key()).and_then(OptOut::parse_cluster_api),
                OptOutSource::Karpenter => annotation(source.key())
                    .filter(|value| *value == annotation::KARPENTER_DO_NOT_DISRUPT_TRUE)
                    .map(|_| OptOut::WaitCompleted),
            }
        }))
    }

    /// Each with its source, by precedence.
    pub fn iter(self) -> impl Iterator<Item = (OptOut, OptOutSource)> {
        let read = self.0.into_iter().zip(OptOutSource::BY_PRECEDENCE);
        read.filter_map(|(opt_out, source)| Some((opt_out?, source)))
    }

    /// The one that counts, where all are honoured; `None` where the pod asked for nothing.
    pub fn first(self) -> Option<(OptOut, OptOutSource)> {
        self.iter().next()
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
        let read = OptOuts::read(|key| among(labels, key), |key| among(annotations, key));
        assert_eq!(read.first(), expected);
    }
}
