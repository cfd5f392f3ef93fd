//! Condition types that Nodeward sets on foreign objects.

/// On a Node: `True` while pods keep its drain from ending; the message names them and what happens next.
pub const DRAIN_BLOCKED: &str = "nodeward.dev/DrainBlocked";
