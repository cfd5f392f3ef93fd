//! Annotations that Nodeward reads or writes.

/// On a Node: when the drain that drain-keeper times began, see [`crate::drain_clock::DrainClock`].
pub const DRAIN_CLOCK: &str = "nodeward.dev/drain-clock";

/// On a PodDisruptionBudget: the last time drain-keeper overrode it, see [`crate::last_override::LastOverride`].
pub const LAST_OVERRIDE: &str = "nodeward.dev/last-override";

/// On a Pod (or as a label, which comes first): how a drain treats it, see [`crate::opt_out`].
pub const DRAIN: &str = "nodeward.dev/drain";
