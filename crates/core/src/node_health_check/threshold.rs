//! Whether enough nodes are healthy for a remediation to start.

use std::fmt;

/// How many nodes may be unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threshold {
    /// So many must be healthy.
    MinHealthy(Quantity),
    /// So many may be other than healthy.
    MaxUnhealthy(Quantity),
}

/// A number of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// So many.
    Nodes(usize),
    /// So many of a hundred, rounded up.
    Percent(usize),
}

impl Quantity {
    /// The number of nodes, of `all`.
    pub fn of(self, all: usize) -> usize {
        match self {
            Self::Nodes(nodes) => nodes,
            Self::Percent(percent) => (percent * all).div_ceil(100),
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(nodes) => nodes.fmt(f),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// How a threshold stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThresholdState {
    /// Enough nodes are healthy.
    Holds,
    TooFewHealthy(String),
    /// It asks for more nodes than there are.
    Unusable(String),
}

impl Threshold {
    /// Exactly at the limit a remediation still starts.
    pub fn judge(self, observed: usize, healthy: usize) -> ThresholdState {
        let others = observed - healthy;
        match self {
            Self::MaxUnhealthy(Quantity::Nodes(limit)) if limit > observed && observed > 0 => ThresholdState::Unusable(
                format!("maxUnhealthy is {limit}, which is more than the {observed} selected nodes: lower it"),
            ),
            Self::MaxUnhealthy(limit) if others > limit.of(observed) => ThresholdState::TooFewHealthy(format!(
                "{others} of {observed} nodes are not healthy, and maxUnhealthy {limit} allows {}",
                limit.of(observed)
            )),
            Self::MinHealthy(limit) if healthy < limit.of(observed) => ThresholdState::TooFewHealthy(format!(
                "{healthy} of {observed} nodes are healthy, and minHealthy {limit} demands {}",
                limit.of(observed)
            )),
            Self::MaxUnhealthy(_) | Self::MinHealthy(_) => ThresholdState::Holds,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// The most nodes of `observed` that may be unhealthy.
    fn most_unhealthy(threshold: Threshold, observed: usize) -> usize {
        (0..=observed)
            .rev()
            .find(|unhealthy| threshold.judge(observed, observed - unhealthy) == ThresholdState::Holds)
            .unwrap()
    }

    #[rstest]
    #[case(Threshold::MinHealthy(Quantity::Percent(51)), 2)]
    #[case(Threshold::MinHealthy(Quantity::Nodes(2)), 4)]
    #[case(Threshold::MaxUnhealthy(Quantity::Percent(20)), 2)]
    #[case(Threshold::MaxUnhealthy(Quantity::Percent(49)), 3)]
    #[case(Threshold::MaxUnhealthy(Quantity::Nodes(6)), 6)]
    fn percentages_round_up(#[case] threshold: Threshold, #[case] most: usize) {
        assert_eq!(most_unhealthy(threshold, 6), most);
    }

    #[test]
    fn limit_above_the_selected_nodes_is_unusable() {
        let state = Threshold::MaxUnhealthy(Quantity::Nodes(10)).judge(6, 6);
        assert!(matches!(state, ThresholdState::Unusable(_)), "{state:?}");
    }
}
