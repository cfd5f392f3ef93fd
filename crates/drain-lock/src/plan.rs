//! The decision: from one moment of the cluster, a policy and the time to what is done and said. Pure.

pub mod need;
pub mod placement;
