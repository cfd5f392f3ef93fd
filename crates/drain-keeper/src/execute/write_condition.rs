//! Writes the condition `nodeward.dev/DrainBlocked` into the Node's status.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_api::reason::{BlockerReason, GateReason};
use nodeward_core::deadline::to_the_second;
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_runtime::{ActionResult, Permits};
use serde_json::{Value, json};

use super::PassContext;

/// A change of the condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionWrite {
    pub node: NodeName,
    pub uid: NodeUid,
    /// The condition; `None` removes it.
    pub condition: Option<DrainBlocked>,
}

/// The condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainBlocked {
    pub reason: ConditionReason,
    /// Who blocks, or what closes the gate, and what happens next.
    pub message: String,
    /// When the drain was first blocked, or the gate found closed.
    pub since: Timestamp,
}

/// What the condition says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionReason {
    /// `True`: pods keep the drain from ending. The reason of the one that matters most.
    Blocked(BlockerReason),
    /// `False`: drain-keeper does not act on the node.
    Gate(GateReason),
}

impl ConditionReason {
    pub fn status(self) -> &'static str {
        match self {
            Self::Blocked(_) => "True",
            Self::Gate(_) => "False",
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blocked(reason) => reason.as_str(),
            Self::Gate(reason) => reason.as_str(),
        }
    }
}

pub(super) async fn write(
    context: &PassContext,
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
            "status": reason.status(),
            "reason": reason.as_str(),
            "message": message,
            "lastTransitionTime": to_the_second(*since),
        }),
        None => json!({ "type": DRAIN_BLOCKED, "$patch": "delete" }),
    };
    json!({ "metadata": { "uid": write.uid }, "status": { "conditions": [condition] } })
}
