//! What draining a node would take.

use nodeward_api::node_drain::{BlockedBy, DrainPlan, Phase};
use serde::Serialize;

/// A node's plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The node.
    pub node: String,
    /// Whether it was made for this question alone; otherwise it is the plan of a drain that was asked for.
    pub dry_run: bool,
    /// Where that drain stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What it would wait for, or waits for, now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<BlockedBy>,
    /// What becomes of each pod.
    pub plan: DrainPlan,
}
