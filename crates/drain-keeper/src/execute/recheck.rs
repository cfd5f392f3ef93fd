//! Recheck: what overrides a budget or takes a pod's grace re-reads what it rests on, by quorum, just before. One GET of
//! the Node and one LIST of the namespace's budgets serve all actions of a pass.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::{Api, Client};
use nodeward_api::annotation;
use nodeward_api::drain_clock::DrainClock;
use nodeward_core::budget::{BudgetView, Budgets};
use nodeward_core::node::NodeView;
use nodeward_runtime::Refusal;
use tokio::sync::OnceCell;

use crate::gate::cordon_taint;
use crate::plan::PodAction;
use crate::policy::Policy;

use super::Outcome;

/// Why an action is not carried out after all.
#[derive(Debug, Clone)]
pub(super) enum Doubt {
    /// What it rested on has changed.
    Changed(String),
    /// It could not be read.
    Unread(Refusal),
}

impl From<Doubt> for Outcome {
    fn from(doubt: Doubt) -> Self {
        match doubt {
            Doubt::Changed(what) => Self::Outdated(what),
            Doubt::Unread(refusal) => Self::Failed(refusal),
        }
    }
}

type Reads<K, V> = Arc<Mutex<HashMap<K, Arc<OnceCell<Result<V, Refusal>>>>>>;

/// The reads of one pass.
#[derive(Clone)]
pub(super) struct Recheck {
    client: Client,
    nodes: Reads<String, Option<Arc<NodeView>>>,
    budgets: Reads<String, Arc<Budgets>>,
}

impl Recheck {
    /// Nothing read yet.
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            nodes: Reads::default(),
            budgets: Reads::default(),
        }
    }

    /// The node is the same, still cordoned, and still timed by the same clock.
    pub(super) async fn node_still_drains(&self, action: &PodAction, policy: &Policy) -> Result<(), Doubt> {
        let name = action.node.as_str().to_owned();
        let node = read_once(&self.nodes, name.clone(), async {
            let nodes: Api<Node> = Api::all(self.client.clone());
            nodes
                .get_opt(&name)
                .await
                .map(|node| node.and_then(|node| NodeView::project(&node)).map(Arc::new))
        })
        .await
        .map_err(Doubt::Unread)?;
        let changed = |what: &str| Err(Doubt::Changed(format!("node {name}: {what}")));
        let Some(node) = node.filter(|node| node.uid == action.node_uid) else {
            return changed("is gone");
        };
        let Some(details) = node
            .drain
            .as_deref()
            .filter(|details| cordon_taint(details, policy).is_some())
        else {
            return changed("is no longer cordoned");
        };
        let clock = details
            .annotations
            .get(annotation::DRAIN_CLOCK)
            .and_then(|value| DrainClock::parse(value).ok());
        match clock {
            Some(clock) if clock == action.clock => Ok(()),
            _ => changed("its drain is timed by another clock now"),
        }
    }

    /// The budgets that select the pod, as they stand now.
    pub(super) async fn budgets_of(&self, action: &PodAction) -> Result<Vec<Arc<BudgetView>>, Doubt> {
        let namespace = action.pod.key.namespace.to_string();
        let budgets = read_once(&self.budgets, namespace.clone(), async {
            let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &namespace);
            let list = budgets.list(&ListParams::default()).await?;
            Ok(Arc::new(Budgets::new(
                list.items.iter().filter_map(BudgetView::project).map(Arc::new),
            )))
        })
        .await
        .map_err(Doubt::Unread)?;
        Ok(budgets.matching(&action.pod).into_iter().cloned().collect())
    }
}

/// Reads what has not been read in this pass.
async fn read_once<K: Eq + Hash, V: Clone>(
    reads: &Reads<K, V>,
    key: K,
    read: impl Future<Output = Result<V, kube::Error>>,
) -> Result<V, Refusal> {
    let cell = Arc::clone(
        reads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(key)
            .or_default(),
    );
    cell.get_or_init(async || read.await.map_err(|error| Refusal::from(&error)))
        .await
        .clone()
}
