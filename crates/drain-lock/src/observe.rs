//! Observe: from watches to a [`World`] that answers questions about one pod, node or budget without walking all of them,
//! and to a [`Snapshot`] for the plan.
//!
//! The eviction webhook asks while the watches go on telling. All of it is behind one lock, which is held for the time of
//! one small change or one small answer; nothing is copied as a whole, and pods share what they have in common.

mod board;
mod intake;
mod pods;
mod project;
mod table;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Api, Client, Resource};
use nodeward_api::{DisruptionHold, DrainLedger, NodeDrain};
use nodeward_core::id::BudgetKey;
use nodeward_core::ledger::{BudgetFacts, Claim, Facts, Ledger};
use nodeward_runtime::{Index, KindState, OperatorContext, Selection, WatchHandle, Watches};
use nodeward_scheduling::PodProjector;
use serde::de::DeserializeOwned;

use crate::snapshot::{Asked, BudgetEntry, HoldFacts, LedgerState, NodeFacts, PodFacts, Snapshot};
use board::Board;
use intake::Intake;

pub use board::{Covered, facts_of, owner_units};
pub use project::{project_budget, project_hold, project_lease, project_node, project_volume};

/// A watch that has not had a sign of life for so long is not believed: bookmarks come every minute.
const STALE_AFTER: Duration = Duration::from_mins(5);

/// What is watched besides what always is.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    /// Namespace of the node leases by which drainers exclude each other, if they are used.
    pub medik8s_namespace: Option<String>,
}

/// The cluster as the watches tell it. Shared by the loop, the webhook and the other servers.
pub struct World {
    board: Arc<RwLock<Board>>,
    handles: Vec<WatchHandle>,
    leases: Option<WatchHandle>,
    /// No watch moves it.
    is_still: bool,
}

impl World {
    /// Opens the watches. The process is ready when all have been complete once, but for the node leases, which may not
    /// be readable.
    pub fn open<T>(context: &OperatorContext<T>, watched: &Watched) -> Arc<Self> {
        let world = Self::watch(&context.watches, &context.clients.watches, watched);
        for watch in &world.handles {
            context.readiness.require_watch(watch);
        }
        Arc::new(world)
    }

    /// Opens the watches, for whoever has no operator around him.
    pub fn watch(watches: &Watches, client: &Client, watched: &Watched) -> Self {
        let board: Arc<RwLock<Board>> = Arc::default();
        let opener = Opener {
            watches,
            client,
            board: &board,
        };
        let handles = vec![
            opener.open::<Node, _>("nodes", project::node_projector()),
            opener.open::<Pod, _>("pods", PodProjector::default()),
            opener.open::<PodDisruptionBudget, _>("poddisruptionbudgets", intake::Budgets),
            opener.open::<PersistentVolume, _>("persistentvolumes", intake::Volumes),
            opener.open::<NodeDrain, _>("nodedrains", intake::Drains),
            opener.open::<DrainLedger, _>("drainledgers", intake::Ledgers),
            opener.open::<DisruptionHold, _>("disruptionholds", intake::Holds),
        ];
        let leases = watched.medik8s_namespace.as_deref().map(|namespace| {
            let api = Api::<Lease>::namespaced(client.clone(), namespace);
            watches.follow("node leases", api, Selection::all(), opener.intake(intake::Leases))
        });
        Self {
            board,
            handles,
            leases,
            is_still: false,
        }
    }

    /// Whether everything that decisions rest on has been listed completely once: what is absent before may exist.
    fn is_synced(&self) -> bool {
        self.handles.iter().all(WatchHandle::is_synced)
    }

    /// Whether decisions can rest on it: complete, and not cut off from the server for long. An API server that restarts
    /// answers 403 for a moment, which changes nothing; one that goes on answering so gives no sign of life.
    pub fn is_fresh(&self) -> bool {
        let is_alive = |watch: &WatchHandle| {
            watch
                .health()
                .last_response
                .is_some_and(|at| at.elapsed() < STALE_AFTER)
        };
        self.is_synced() && self.handles.iter().all(is_alive)
    }

    /// One node.
    pub fn node(&self, name: &str) -> Option<Arc<NodeFacts>> {
        self.read().nodes.get(name).cloned()
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> Vec<Arc<NodeFacts>> {
        self.read().nodes.values().cloned().collect()
    }

    /// One pod.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Arc<PodFacts>> {
        self.read().pods.get(namespace, name).cloned()
    }

    /// One budget.
    pub fn budget(&self, key: &BudgetKey) -> Option<Arc<BudgetEntry>> {
        self.read().budgets.get(key).cloned()
    }

    /// The budgets that select a pod, by name. More than one makes the eviction API answer 500.
    pub fn budgets_of(&self, pod: &PodFacts) -> Vec<Arc<BudgetEntry>> {
        let board = self.read();
        board
            .pods
            .budgets_of(pod)
            .filter_map(|key| board.budgets.get(&key).cloned())
            .collect()
    }

    /// A budget and its pods as the ledger reads them; `None` if there is no such budget.
    pub fn budget_facts(&self, key: &BudgetKey, now: Timestamp) -> Option<BudgetFacts> {
        self.read().budget_facts(key, now)
    }

    /// The same of several budgets at one moment; those that do not exist are left out.
    pub fn facts<'a>(&self, keys: impl IntoIterator<Item = &'a BudgetKey>, now: Timestamp) -> Facts {
        let board = self.read();
        keys.into_iter()
            .filter_map(|key| Some((key.clone(), board.budget_facts(key, now)?)))
            .collect()
    }

    /// The budgets that claims in the ledger need or hold.
    pub fn facts_of_claims(&self, ledger: &Ledger, now: Timestamp) -> Facts {
        let keys: BTreeSet<BudgetKey> = ledger.claims().iter().flat_map(Claim::budgets).collect();
        self.facts(&keys, now)
    }

    /// What the owner of a budget keeps for himself at `now`.
    pub fn owner_units(&self, budget: &BudgetEntry, now: Timestamp) -> Option<nodeward_core::ledger::OwnerUnits> {
        self.read().owner_units(budget, now)
    }

    /// The drain of a node.
    pub fn drain(&self, node: &str) -> Option<Arc<NodeDrain>> {
        self.read().drains.get(node).cloned()
    }

    /// All drains, by their nodes' names.
    pub fn drains(&self) -> Vec<Arc<NodeDrain>> {
        self.read().drains.values().cloned().collect()
    }

    /// The ledger as the watch last showed it; a decision to write it rests on a read of its own.
    pub fn ledger(&self) -> LedgerState {
        self.read().ledger()
    }

    /// All owners' holds, in force or not.
    pub fn owner_holds(&self) -> Vec<Arc<HoldFacts>> {
        self.read().holds.values().cloned().collect()
    }

    /// Whether node leases are used: they are watched, and may be read.
    fn uses_leases(&self) -> bool {
        let is_readable = |watch: &WatchHandle| {
            let silent_for = watch.health().last_response.map(|at| at.elapsed());
            !is_shut_out(&watch.state(), silent_for)
        };
        self.is_still || self.leases.as_ref().is_some_and(is_readable)
    }

    /// This moment, as far as these nodes and budgets are concerned; `None` while it cannot be decided by.
    pub fn snapshot(&self, asked: &Asked, now: Timestamp) -> Option<Snapshot> {
        (self.is_still || self.is_fresh()).then(|| self.read().snapshot(asked, self.uses_leases(), now))
    }

    fn read(&self) -> RwLockReadGuard<'_, Board> {
        self.board.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the right to read is missing. A refusal in between is that of an API server that restarts: for a moment it
/// forbids everybody everything.
fn is_shut_out(state: &KindState, silent_for: Option<Duration>) -> bool {
    matches!(state, KindState::Forbidden(_)) && silent_for.is_none_or(|time| time >= STALE_AFTER)
}

impl Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("watches", &self.handles)
            .finish_non_exhaustive()
    }
}

/// Opens the watches of a board.
struct Opener<'a> {
    watches: &'a Watches,
    client: &'a Client,
    board: &'a Arc<RwLock<Board>>,
}

impl Opener<'_> {
    fn open<K, S>(&self, name: &'static str, shelf: S) -> WatchHandle
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
        Intake<S>: Index<K>,
    {
        let api = Api::<K>::all(self.client.clone());
        self.watches.follow(name, api, Selection::all(), self.intake(shelf))
    }

    fn intake<S>(&self, shelf: S) -> Intake<S> {
        Intake {
            board: Arc::clone(self.board),
            shelf,
        }
    }
}

/// Objects of a world that no watch moves.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Pods.
    pub pods: Vec<Pod>,
    /// Budgets.
    pub budgets: Vec<PodDisruptionBudget>,
    /// Volumes.
    pub volumes: Vec<PersistentVolume>,
    /// Drains.
    pub drains: Vec<NodeDrain>,
    /// The ledger, if there is one.
    pub ledger: Option<DrainLedger>,
    /// Owners' holds.
    pub holds: Vec<DisruptionHold>,
    /// Node leases.
    pub leases: Vec<Lease>,
}

impl World {
    /// A world that no watch moves: complete, and believed. For tests, and for tools that look once.
    pub fn still(objects: &Objects) -> Arc<Self> {
        let world = Self {
            board: Arc::default(),
            handles: Vec::new(),
            leases: None,
            is_still: true,
        };
        world.take_in(objects);
        Arc::new(world)
    }

    /// Adds objects to a world that no watch moves, or replaces those of the same name.
    pub fn take_in(&self, objects: &Objects) {
        self.take(project::node_projector(), &objects.nodes);
        self.take(PodProjector::default(), &objects.pods);
        self.take(intake::Budgets, &objects.budgets);
        self.take(intake::Volumes, &objects.volumes);
        self.take(intake::Drains, &objects.drains);
        self.take(intake::Ledgers, objects.ledger.as_slice());
        self.take(intake::Holds, &objects.holds);
        self.take(intake::Leases, &objects.leases);
    }

    fn take<K: Resource, S: intake::Shelf<K>>(&self, shelf: S, objects: &[K]) {
        let mut intake = Intake {
            board: Arc::clone(&self.board),
            shelf,
        };
        for object in objects {
            intake.put(object);
        }
    }
}
