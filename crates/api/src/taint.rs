//! Taints that Nodeward puts on nodes.

/// The node is to be drained, and not cordoned yet: with the effect [`QUEUED_EFFECT`] replacements of evicted pods avoid it, and go
/// there all the same where nothing else has room.
pub const QUEUED: &str = "nodeward.dev/queued";

/// The effect of [`QUEUED`].
pub const QUEUED_EFFECT: &str = "PreferNoSchedule";
