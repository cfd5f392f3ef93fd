//! Writes the condition into the Node's status, without the loop that plans waiting for it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_core::deadline::to_the_second;
use nodeward_core::id::NodeUid;
use nodeward_runtime::{Clients, Leadership, OperatorContext, Refusal, Wake};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::settings::Settings;

use super::condition::{Change, DrainBlocked};

/// Writes under way at once: they are many when many nodes drain, and never urgent, so what is done to pods goes first.
const AT_ONCE: usize = 4;

/// Writes conditions.
pub struct ConditionWriter {
    clients: Clients,
    leadership: Leadership,
    wake: Wake,
    dry_run: bool,
    turns: Arc<Semaphore>,
    running: JoinSet<(NodeUid, bool)>,
}

impl ConditionWriter {
    /// Nothing under way.
    pub fn new(context: &OperatorContext<Settings>) -> Self {
        Self {
            clients: context.clients.clone(),
            leadership: context.leadership.clone(),
            wake: context.wake.clone(),
            dry_run: context.args.dry_run,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            running: JoinSet::new(),
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
        let turns = Arc::clone(&self.turns);
        let (nodes, leadership, wake) = (
            Api::<Node>::all(self.clients.requests.clone()),
            self.leadership.clone(),
            self.wake.clone(),
        );
        self.running.spawn(async move {
            // The semaphore is never closed.
            let _turn = turns.acquire().await;
            let written = leadership.is_leading_now() && write(&nodes, &change).await;
            wake.wake();
            (change.uid, written)
        });
    }

    /// Which writes have come to their end, and whether they succeeded.
    pub fn completed(&mut self) -> Vec<(NodeUid, bool)> {
        std::iter::from_fn(|| self.running.try_join_next()).flatten().collect()
    }

    /// Waits for all of them.
    pub async fn finish(&mut self) {
        while self.running.join_next().await.is_some() {}
    }
}

async fn write(nodes: &Api<Node>, change: &Change) -> bool {
    let patch = patch(change);
    match nodes
        .patch_status(change.node.as_str(), &PatchParams::default(), &Patch::Strategic(patch))
        .await
    {
        Ok(_) => true,
        Err(error) => match Refusal::from(&error) {
            Refusal::Gone => true,
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
