//! Writes the condition into the Node's status, without the loop that plans waiting for it.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_core::deadline::to_the_second;
use nodeward_core::id::NodeUid;
use nodeward_runtime::{ApiError, Clients, Leadership, OperatorContext, TaskSet};
use serde_json::{Value, json};

use crate::settings::Settings;

use super::condition::{Change, DrainBlocked};

/// Writes under way at once: they are many when many nodes drain, and never urgent, so what is done to pods goes first.
const AT_ONCE: usize = 4;

/// Writes conditions.
pub struct ConditionWriter {
    clients: Clients,
    leadership: Leadership,
    dry_run: bool,
    under_way: TaskSet<NodeUid, bool>,
}

impl ConditionWriter {
    /// Nothing under way.
    pub fn new(context: &OperatorContext<Settings>) -> Self {
        Self {
            clients: context.clients.clone(),
            leadership: context.leadership.clone(),
            dry_run: context.args.dry_run,
            under_way: TaskSet::at_once(AT_ONCE),
        }
    }

    /// Starts writing a change; in a dry run it is only logged.
    pub fn start(&mut self, change: Change) {
        let text = change
            .condition
            .as_ref()
            .map_or("removed", |condition| condition.message.as_str());
        tracing::info!(node = %change.node, condition = text, "{DRAIN_BLOCKED}");
        if self.dry_run {
            return;
        }
        let nodes = Api::<Node>::all(self.clients.requests.clone());
        let leadership = self.leadership.clone();
        self.under_way.start(change.uid.clone(), async move {
            leadership.is_leading_now() && write(&nodes, &change).await
        });
    }

    /// Returns when a write has come to its end; never while none is under way.
    pub async fn wait(&mut self) {
        self.under_way.wait().await;
    }

    /// Which writes have come to their end, and whether they succeeded.
    pub fn completed(&mut self) -> Vec<(NodeUid, bool)> {
        let ended = self.under_way.take_ended();
        let succeeded = |outcome: Option<bool>| outcome.unwrap_or(false);
        ended
            .into_iter()
            .map(|task| (task.key, succeeded(task.outcome)))
            .collect()
    }

    /// Waits for all of them.
    pub async fn finish(&mut self) {
        self.under_way.finish().await;
    }
}

async fn write(nodes: &Api<Node>, change: &Change) -> bool {
    let patch = patch(change);
    match nodes
        .patch_status(change.node.as_str(), &PatchParams::default(), &Patch::Strategic(patch))
        .await
    {
        Ok(_) => true,
        Err(error) => match ApiError::from(&error) {
            ApiError::NotFound => true,
            refusal => {
                tracing::warn!(node = %change.node, %refusal, "condition {DRAIN_BLOCKED} not written");
                false
            }
        },
    }
}

/// A strategic merge, so that the other conditions of the node stay.
fn patch(change: &Change) -> Value {
    let condition = match &change.condition {
        Some(DrainBlocked { reason, message, since }) => json!({
            "type": DRAIN_BLOCKED,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": to_the_second(*since),
        }),
        None => json!({ "type": DRAIN_BLOCKED, "$patch": "delete" }),
    };
    json!({ "metadata": { "uid": change.uid }, "status": { "conditions": [condition] } })
}
