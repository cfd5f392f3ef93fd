//! Whether enough nodes are healthy for a remediation to start.

use crate::check_spec::{Quantity, Threshold};

/// How a threshold stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThresholdState {
    /// Enough nodes are healthy.
    Holds,
    /// Too few are.
    TooFewHealthy(String),
    /// It asks for more nodes than there are.
    Unusable(String),
}

/// Compares. Exactly at the limit a remediation still starts.
pub fn compare(threshold: Threshold, observed: usize, healthy: usize) -> ThresholdState {
    let others = observed - healthy;
    match threshold {
        Threshold::MaxUnhealthy(Quantity::Nodes(limit)) if limit > observed && observed > 0 => {
            ThresholdState::Unusable(format!(
                "maxUnhealthy is {limit}, which is more than the {observed} selected nodes: lower it"
            ))
        }
        Threshold::MaxUnhealthy(limit) if others > limit.of(observed) => ThresholdState::TooFewHealthy(format!(
            "{others} of {observed} nodes are not healthy, and maxUnhealthy allows {}",
            limit.of(observed)
        )),
        Threshold::MinHealthy(limit) if healthy < limit.of(observed) => ThresholdState::TooFewHealthy(format!(
            "{healthy} of {observed} nodes are healthy, and minHealthy demands {}",
            limit.of(observed)
        )),
        Threshold::MaxUnhealthy(_) | Threshold::MinHealthy(_) => ThresholdState::Holds,
    }
}
