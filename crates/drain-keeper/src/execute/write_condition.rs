//! Writes the condition `nodeward.dev/DrainBlocked` into the Node's status.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_api::reason::BlockerReason;
use nodeward_core::deadline::to_the_second;
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_runtime::{ActionResult, Permits};
use serde_json::{Value, json};

use super::ExecutorContext;

/// A change of the condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionWrite {
    pub node: NodeName,
    pub uid: NodeUid,
    /// The condition; `None` removes it.
    pub condition: Option<DrainBlocked>,
}

/// The condition, which is `True` when it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainBlocked {
    /// The reason of the blocker that matters most.
    pub reason: BlockerReason,
    /// Who blocks, and what happens next.
    pub message: String,
    /// When the drain was first blocked.
    pub since: Timestamp,
}

pub(super) async fn write(
    context: &ExecutorContext,
    permits: &Permits,
    write: &ConditionWrite,
) -> Result<(), ActionResult> {
    let _permit = permits.next_write().await?;
    let nodes = Api::<Node>::all(context.clients.requests.clone());
    let patch = Patch::Strategic(patch(write));
    nodes
        .patch_status(write.node.as_str(), &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// A strategic merge, so that the other conditions of the node stay.
fn patch(write: &ConditionWrite) -> Value {
    let condition = match &write.condition {
        Some(DrainBlocked { reason, message, since }) => json!({
            "type": DRAIN_BLOCKED,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": to_the_second(*since),
        }),
        None => json!({ "type": DRAIN_BLOCKED, "$patch": "delete" }),
    };
    json!({ "metadata": { "uid": write.uid }, "status": { "conditions": [condition] } })
}
