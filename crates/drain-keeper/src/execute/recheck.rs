//! Recheck: what overrides a budget, removes finalizers or takes a pod's grace re-reads what it rests on, by quorum, just
//! before. One GET of the Node and one LIST of the namespace's budgets serve all actions of a pass, for as long as they are
//! fresh; where drain-lock's kinds are installed, and a budget selects the pod, so do one GET of the ledger and one LIST of
//! the namespace's holds.

mod holds;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::{Api, Client};
use nodeward_api::drain_clock::DrainClock;
use nodeward_api::drain_ledger::DrainLedgerSpec;
use nodeward_api::reason::GateReason;
use nodeward_core::budget::{BudgetView, Budgets};
use nodeward_core::drain::NodeDrainView;
use nodeward_core::hold::{Hold, Holds};
use nodeward_core::node::NodeView;
use nodeward_core::strategy::StrategyName;
use nodeward_runtime::ApiError;
use tokio::sync::OnceCell;

use crate::gate;
use crate::plan::{PodAction, unreachable};

use super::{Outcome, Pass};

/// How long a read serves the actions of its pass.
const FRESH: Duration = Duration::from_secs(2);

/// Why an action is not carried out after all.
#[derive(Debug, Clone)]
pub(super) enum Doubt {
    /// What it rested on has changed.
    Changed(String),
    /// It could not be read.
    Unread(ApiError),
}

impl From<Doubt> for Outcome {
    fn from(doubt: Doubt) -> Self {
        match doubt {
            Doubt::Changed(what) => Self::Outdated(what),
            Doubt::Unread(refusal) => Self::Failed(refusal),
        }
    }
}

type Reads<K, V> = Arc<Mutex<HashMap<K, Arc<OnceCell<Result<V, ApiError>>>>>>;

/// The reads of one pass.
#[derive(Clone)]
pub(super) struct Recheck {
    client: Client,
    began: Instant,
    nodes: Reads<(String, u64), Option<Arc<NodeView>>>,
    budgets: Reads<(String, u64), Arc<Budgets>>,
    ledger: Reads<(String, u64), Option<Arc<DrainLedgerSpec>>>,
    owners: Reads<(String, u64), Vec<Hold>>,
    drains: Reads<(String, u64), Option<Arc<NodeDrainView>>>,
}

/// What an action rests on, as it was read anew.
pub(super) struct Grounds {
    /// The budgets that select the pod.
    pub(super) budgets: Vec<Arc<BudgetView>>,
    /// What holds them, or did.
    pub(super) holds: Holds,
}

impl Recheck {
    /// Nothing read yet.
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            began: Instant::now(),
            nodes: Reads::default(),
            budgets: Reads::default(),
            ledger: Reads::default(),
            owners: Reads::default(),
            drains: Reads::default(),
        }
    }

    /// The node still drains, and the pod's budgets and whoever holds them still let it be forced.
    pub(super) async fn still_allows(&self, action: &PodAction, pass: &Pass) -> Result<Grounds, Doubt> {
        // Each is boxed while it lasts: see `super::act`.
        Box::pin(self.node_still_drains(action, pass)).await?;
        let budgets = Box::pin(self.budgets_of(action)).await?;
        let holds = Box::pin(self.holds_on(&budgets, &action.node_uid, pass)).await?;
        let now = Timestamp::now();
        for budget in &budgets {
            if let Some(reason) = budget.forbids_force() {
                return Err(Doubt::Changed(format!(
                    "the pod {} ({})",
                    reason.explanation(),
                    budget.key
                )));
            }
            if let Some(hold) = holds.against(&budget.key, &action.node_uid, &action.pod.uid, now) {
                return Err(Doubt::Changed(format!("budget {} is {hold}", budget.key)));
            }
        }
        let is_for_uncovered = matches!(
            action.strategy,
            StrategyName::Finalizer | StrategyName::StuckTerminating
        );
        match budgets.first().filter(|_| is_for_uncovered) {
            Some(budget) => Err(Doubt::Changed(format!("budget {} selects the pod now", budget.key))),
            None => Ok(Grounds { budgets, holds }),
        }
    }

    /// The node is the same, under the same cordon, timed by the same clock, with all gates open; and if it is not Ready,
    /// the pod is not one that could run twice.
    async fn node_still_drains(&self, action: &PodAction, pass: &Pass) -> Result<(), Doubt> {
        let name = action.node.as_str().to_owned();
        let node = read_once(&self.nodes, self.window(&name), async {
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
        if !node.concerns_drains() {
            return changed("is no longer cordoned");
        }
        let (drains, unread) = self.drains_for(&action.node, pass).await;
        let gates = gate::look(&node, &pass.snapshot.signals, &drains, &pass.policy);
        if !gates.are_open() {
            return match unread {
                Some(refusal) if gates.reason == GateReason::DrainUnknown => Err(Doubt::Unread(refusal)),
                _ => changed(gates.reason.explanation()),
            };
        }
        let clock = DrainClock::of(&node.annotations).and_then(Result::ok);
        if clock.as_ref() != Some(&action.clock) {
            return changed("its drain is timed by another clock now");
        }
        if gates.cordon.and_then(|cordon| cordon.time_added) != action.clock.cordoned_at {
            return changed("is under another cordon now");
        }
        if unreachable::could_run_twice(&node, &action.pod, action.remedy, &pass.policy) {
            return changed("is not Ready, and the pod must not run twice");
        }
        Ok(())
    }

    /// What a read is kept under: it serves for [`FRESH`] and no longer.
    fn window(&self, name: &str) -> (String, u64) {
        (name.to_owned(), self.began.elapsed().as_secs() / FRESH.as_secs())
    }

    /// The budgets that select the pod, as they stand now.
    async fn budgets_of(&self, action: &PodAction) -> Result<Vec<Arc<BudgetView>>, Doubt> {
        let namespace = action.pod.key.namespace.to_string();
        let budgets = read_once(&self.budgets, self.window(&namespace), async {
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
) -> Result<V, ApiError> {
    let cell = Arc::clone(
        reads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(key)
            .or_default(),
    );
    cell.get_or_init(async || read.await.map_err(|error| ApiError::from(&error)))
        .await
        .clone()
}
