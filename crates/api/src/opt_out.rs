//! Opt-out of drains: the pod label or annotation `nodeward.dev/drain`.

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

impl OptOut {
    /// Reads the value of the label or annotation.
    pub fn parse(value: &str) -> Self {
        match value {
            "skip" => Self::Skip,
            "wait-completed" => Self::WaitCompleted,
            _ => Self::Unknown,
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
}
