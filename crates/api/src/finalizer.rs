//! Finalizers that Nodeward sets on its own kinds.

/// On a NodeDrain: keeps it until drain-lock has seen every disruption of its claim returned.
pub const DRAIN_LOCK: &str = "nodeward.dev/drain-lock";
