//! For which drain a node was cordoned, and by which taint that cordon is known again, kept on the Node.

use std::fmt;

use jiff::Timestamp;

/// Between the two parts: no UID contains it.
const SEPARATOR: char = '@';

/// Value of the Node annotation [`crate::annotation::CORDONED_BY`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CordonRecord {
    /// UID of the NodeDrain that the node was cordoned for.
    pub drain_uid: String,
    /// `timeAdded` of the taint `node.kubernetes.io/unschedulable` that came with the cordon: after an uncordon and another
    /// cordon Kubernetes adds that taint with another time. `None` in records of earlier versions.
    pub taint_added: Option<Timestamp>,
}

impl CordonRecord {
    /// Reads the annotation's value. A time that cannot be read is no time at which a taint was added, so that the cordon is
    /// taken for somebody else's.
    pub fn parse(value: &str) -> Self {
        let (drain_uid, taint_added) = match value.split_once(SEPARATOR) {
            None => (value, None),
            Some((uid, time)) => (uid, Some(time.parse().unwrap_or(Timestamp::MIN))),
        };
        Self {
            drain_uid: drain_uid.to_owned(),
            taint_added,
        }
    }
}

impl fmt::Display for CordonRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.drain_uid)?;
        match self.taint_added {
            Some(time) => write!(f, "{SEPARATOR}{}", time.strftime("%Y-%m-%dT%H:%M:%SZ")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::whole("uid-1@2026-01-01T12:00:00Z", Some("2026-01-01T12:00:00Z"))]
    #[case::of_an_earlier_version("uid-1", None)]
    fn cordon_record_reads_as_it_is_written(#[case] value: &str, #[case] taint_added: Option<&str>) {
        let record = CordonRecord {
            drain_uid: "uid-1".to_owned(),
            taint_added: taint_added.map(|time| time.parse().unwrap()),
        };
        assert_eq!(record.to_string(), value);
        assert_eq!(CordonRecord::parse(value), record);
    }

    #[test]
    fn unreadable_time_matches_no_taint() {
        assert_eq!(CordonRecord::parse("uid-1@noon").taint_added, Some(Timestamp::MIN));
    }
}
