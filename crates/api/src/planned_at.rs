//! That the leader of an operator finishes its passes, kept on its Lease, which every replica reads anyway.

use std::fmt;
use std::time::Duration;

/// Nothing new for so long: nobody plans, whoever leads.
pub const STALE_AFTER: Duration = Duration::from_mins(2);

/// The field manager of the annotation and of nothing else: in `metadata.managedFields` the API server keeps when it wrote
/// last.
pub const FIELD_MANAGER: &str = "nodeward-planned-at";

/// Value of the Lease annotation [`crate::annotation::PLANNED_AT`], `TERM@COUNTER`. It says no time: whoever reads it goes by
/// the clock by which it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedAt {
    /// `spec.leaseTransitions` of the term that the passes are of: the word of a leader that was deposed counts for nothing.
    pub term: i32,
    /// How many passes its process had finished.
    pub passes: u64,
}

impl PlannedAt {
    /// Reads the annotation's value.
    pub fn parse(value: &str) -> Option<Self> {
        let (term, passes) = value.split_once('@')?;
        Some(Self {
            term: term.parse().ok()?,
            passes: passes.parse().ok()?,
        })
    }
}

impl fmt::Display for PlannedAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.term, self.passes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_is_written() {
        let planned = PlannedAt { term: 3, passes: 17 };
        assert_eq!(planned.to_string(), "3@17");
        assert_eq!(PlannedAt::parse("3@17"), Some(planned));
        for garbage in ["", "3", "3@", "@17", "3@17@1", "three@17", "3@-1"] {
            assert_eq!(PlannedAt::parse(garbage), None, "{garbage}");
        }
    }
}
