//! Two owners of workloads, who act as people do: when they read that their pod blocks a drain, and a while later.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_api::reason::BlockerReason;
use nodeward_testkit::fleet;
use serde_json::json;
use tokio::task::JoinSet;

use super::scenario::{REPORT, VAULT};
use crate::demo::environment::Environment;
use crate::demo::narrator::{Narrator, Voice};

/// How long an owner takes to act.
const REACTION: Duration = Duration::from_secs(4);

struct Owner {
    reacts_to: BlockerReason,
    budget: (&'static str, &'static str),
    says: &'static str,
}

const OWNERS: [Owner; 2] = [
    Owner {
        reacts_to: BlockerReason::BudgetNeverForced,
        budget: VAULT,
        says: "reads the Node's condition, fails the vault over by hand, and opens its budget",
    },
    Owner {
        reacts_to: BlockerReason::NamespaceIgnored,
        budget: REPORT,
        says: "reads the Node's condition, lets the report finish, and opens its budget",
    },
];

/// Starts them; they stop when the returned set is dropped.
pub fn start(env: &Environment, narrator: &Arc<Narrator>) -> JoinSet<()> {
    let mut owners = JoinSet::new();
    for owner in OWNERS {
        let namespace = env.named(owner.budget.0);
        let budgets = Api::namespaced(env.client(), &namespace);
        let nodes = Api::all(env.client());
        owners.spawn(act(nodes, env.selecting_ours(), budgets, Arc::clone(narrator), owner));
    }
    owners
}

async fn act(
    nodes: Api<Node>,
    ours: watcher::Config,
    budgets: Api<PodDisruptionBudget>,
    narrator: Arc<Narrator>,
    owner: Owner,
) {
    let mut changes = watcher(nodes, ours).default_backoff().applied_objects().boxed();
    while let Some(change) = changes.next().await {
        let Ok(node) = change else { continue };
        if !is_blocked_for(&node, owner.reacts_to) {
            continue;
        }
        tokio::time::sleep(REACTION).await;
        let (namespace, name) = owner.budget;
        let open = json!({ "spec": { "minAvailable": 0 } });
        match budgets.patch(name, &PatchParams::default(), &Patch::Merge(&open)).await {
            Ok(_) => narrator.say(Voice::Owner, &node.name_any(), &format!("{namespace}: {}", owner.says)),
            Err(error) => narrator.say(
                Voice::Owner,
                &node.name_any(),
                &format!("{namespace}: cannot act: {error}"),
            ),
        }
        return;
    }
}

fn is_blocked_for(node: &Node, reason: BlockerReason) -> bool {
    fleet::condition(node, DRAIN_BLOCKED)
        .is_some_and(|blocked| blocked.status == "True" && blocked.reason.as_deref() == Some(reason.as_str()))
}
