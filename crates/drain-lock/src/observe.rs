//! Observe: from watches to a [`ClusterCache`] that answers questions about one pod, node or budget without walking all of them,
//! and to a [`Snapshot`] for the plan.
//!
//! The eviction webhook asks while the watches go on telling. All of it is behind one lock, which is held for the time of
//! one small change or one small answer; nothing is copied as a whole, and pods share what they have in common.

mod audit;
mod cluster_index;
mod decoded;
mod fixed;
mod index_handler;
mod machines;
mod pod_index;
mod project;
mod table;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, Resource};
use nodeward_api::NodeDrain;
use nodeward_core::drain_request::{DrainRequest, JoinOutcome};
use nodeward_core::id::BudgetKey;
use nodeward_core::ledger::{BudgetFacts, Claim, Facts, Ledger};
use nodeward_runtime::cache::STALE_AFTER;
use nodeward_runtime::{KindRegistry, KindState, OperatorContext, RemediationWatches, Selection, WatchHandle, Watches};
use parking_lot::RwLockReadGuard;
use serde::de::DeserializeOwned;

use crate::snapshot::{BudgetEntry, HoldFacts, LedgerFacts, NodeFacts, PodFacts, Snapshot, SnapshotScope};
use audit::Audit;
use cluster_index::ClusterIndex;
use index_handler::{IndexHandler, SharedIndex};
use machines::Machines;

pub use cluster_index::{Kept, budget_facts, owner_disruptions};
pub use fixed::Objects;
pub use project::{project_budget, project_hold, project_node, project_volume};

/// What is watched besides what always is.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    /// Namespace of the node leases by which drainers exclude each other, if they are used.
    pub medik8s_namespace: Option<String>,
}

/// The cluster as the watches tell it. Shared by the loop, the webhook and the other servers.
pub struct ClusterCache {
    index: SharedIndex,
    handles: Vec<WatchHandle>,
    leases: Option<WatchHandle>,
    remediations: Option<RemediationWatches>,
    machines: Option<Machines>,
    /// No watch keeps it up.
    is_fixed: bool,
}

impl ClusterCache {
    /// Opens the watches. The process is ready when all have been complete once, but for the node leases, which may not
    /// be readable.
    pub fn open<T>(context: &OperatorContext<T>, watched: &Watched) -> Arc<Self> {
        let cache = Self::watch(&context.watches, &context.clients.watches, watched);
        for watch in &cache.handles {
            context.readiness.require_watch(watch);
        }
        Arc::new(cache)
    }

    /// Opens the watches, for whoever has no operator around him.
    pub fn watch(watches: &Watches, client: &Client, watched: &Watched) -> Self {
        let index = SharedIndex::default();
        let handles = vec![
            follow(watches, client, "nodes", index_handler::nodes(&index)),
            follow(watches, client, "pods", index_handler::pods(&index)),
            follow(watches, client, "poddisruptionbudgets", index_handler::budgets(&index)),
            follow(watches, client, "persistentvolumes", index_handler::volumes(&index)),
            follow(watches, client, "nodedrains", index_handler::drains(&index)),
            follow(watches, client, "drainledgers", index_handler::ledgers(&index)),
            follow(watches, client, "disruptionholds", index_handler::holds(&index)),
        ];
        let leases = watched.medik8s_namespace.as_deref().map(|namespace| {
            let api = Api::<Lease>::namespaced(client.clone(), namespace);
            watches.follow("node leases", api, Selection::all(), index_handler::leases(&index))
        });
        let kinds = KindRegistry::spawn(watches, client.clone());
        let mut remediations = RemediationWatches::new(watches, &kinds);
        remediations.follow(None, &[]);
        Self {
            index,
            handles,
            leases,
            remediations: Some(remediations),
            machines: Some(Machines::watch(watches, &kinds)),
            is_fixed: false,
        }
    }

    /// Whether decisions can rest on it: complete, and not cut off from the server for long. An API server that restarts
    /// answers 403 for a moment, which changes nothing; one that goes on answering so gives no sign of life.
    pub fn is_fresh(&self) -> bool {
        self.handles.iter().all(WatchHandle::is_fresh)
    }

    pub fn node(&self, name: &str) -> Option<Arc<NodeFacts>> {
        let node = self.read().nodes.get(name).cloned();
        node.map(|node| self.with_machine(node))
    }

    /// The node, with what its Machine tells.
    fn with_machine(&self, mut node: Arc<NodeFacts>) -> Arc<NodeFacts> {
        let machines = self.machines.as_ref();
        if let Some(rules) = machines.and_then(|machines| machines.drain_rules(&node)) {
            let is_being_deleted = machines.is_some_and(|machines| machines.is_being_deleted(&node));
            let view = &mut Arc::make_mut(&mut node).view;
            view.machine_is_being_deleted = is_being_deleted;
            view.drain_rules = Some(Arc::new(rules));
        }
        node
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> Vec<Arc<NodeFacts>> {
        self.read().nodes.values().cloned().collect()
    }

    pub fn pod(&self, namespace: &str, name: &str) -> Option<Arc<PodFacts>> {
        self.read().pods.get(namespace, name).cloned()
    }

    /// The pods of a node.
    pub fn pods_on(&self, node: &str) -> Vec<Arc<PodFacts>> {
        self.read().pods.of_node(node).cloned().collect()
    }

    /// The budgets that select a pod, by name. More than one makes the eviction API answer 500.
    pub fn budgets_of(&self, pod: &PodFacts) -> Vec<Arc<BudgetEntry>> {
        let index = self.read();
        index
            .pods
            .budgets_of(pod)
            .filter_map(|key| index.budgets.get(&key).cloned())
            .collect()
    }

    /// The pod of the same budget, this one or another, that moves by a rollout.
    pub fn surging(&self, pod: &PodFacts, now: Timestamp) -> Option<Arc<PodFacts>> {
        self.read().surging(pod, now)
    }

    /// A budget and its pods as the ledger reads them; `None` if there is no such budget.
    pub fn budget_facts(&self, key: &BudgetKey, now: Timestamp) -> Option<BudgetFacts> {
        self.read().budget_facts(key, now)
    }

    /// The same of several budgets at one moment; those that do not exist are left out.
    pub fn facts<'a>(&self, keys: impl IntoIterator<Item = &'a BudgetKey>, now: Timestamp) -> Facts {
        let index = self.read();
        keys.into_iter()
            .filter_map(|key| Some((key.clone(), index.budget_facts(key, now)?)))
            .collect()
    }

    /// The budgets that claims in the ledger need or hold.
    pub fn facts_of_claims(&self, ledger: &Ledger, now: Timestamp) -> Facts {
        let keys: BTreeSet<BudgetKey> = ledger.claims().iter().flat_map(Claim::budgets).collect();
        self.facts(&keys, now)
    }

    pub fn drain(&self, node: &str) -> Option<Arc<NodeDrain>> {
        let index = self.read();
        index.drain(node)?.as_ref().as_ref().ok().cloned()
    }

    /// A time that the API server's clock has reached: that of the newest drain's creation.
    pub fn server_time(&self) -> Option<Timestamp> {
        let drains = self.drains();
        let created = drains
            .iter()
            .filter_map(|drain| drain.metadata.creation_timestamp.as_ref());
        created.map(|created| created.0).max()
    }

    /// All drains that can be read, by their nodes' names.
    pub fn drains(&self) -> Vec<Arc<NodeDrain>> {
        let index = self.read();
        let drains = index.all_drains();
        drains
            .filter_map(|(_, drain)| drain.as_ref().as_ref().ok().cloned())
            .collect()
    }

    /// The ledger as the watch last showed it; a decision to write it rests on a read of its own.
    pub fn ledger(&self) -> Option<Arc<LedgerFacts>> {
        self.read().ledger()
    }

    /// From now on what would be written is kept here, or no longer: then what was kept is forgotten.
    pub fn keep_audit(&self, audits: bool) {
        if self.read().audit.is_some() != audits {
            self.index.write().audit = audits.then(Audit::default);
        }
    }

    /// Takes a ledger for the one that is stored, while this process only audits.
    pub fn keep_ledger(&self, ledger: Ledger) {
        if let Some(audit) = &mut self.index.write().audit {
            audit.put_ledger(ledger);
        }
    }

    /// Takes a requested drain for one that is stored, while this process only audits; `None`: one is stored.
    pub fn keep_drain(&self, request: &DrainRequest, now: Timestamp) -> Option<JoinOutcome> {
        let mut index = self.index.write();
        if index.drains.get(&request.node).is_some() {
            return None;
        }
        Some(index.audit.as_mut()?.request_drain(request, now))
    }

    /// Forgets a drain that was only kept here; whether it was.
    pub fn forget_drain(&self, drain: &NodeDrain) -> bool {
        let audit = &mut self.index.write().audit;
        audit.as_mut().is_some_and(|audit| audit.remove_drain(drain))
    }

    /// All owners' holds, in force or not.
    pub fn owner_holds(&self) -> Vec<Arc<HoldFacts>> {
        self.read().holds.values().cloned().collect()
    }

    /// Budgets that are held by an annotation, and those that still say until when they were, or whose drains hold them.
    pub fn annotated_budgets(&self) -> Vec<BudgetKey> {
        let index = self.read();
        let is_annotated = |budget: &&Arc<BudgetEntry>| {
            let view = &budget.view;
            view.hold.is_some() || view.hold_until.is_some() || budget.locked_by.is_some()
        };
        let budgets = index.budgets.values().filter(is_annotated);
        budgets.map(|budget| budget.view.key.clone()).collect()
    }

    /// Whether node leases are used: they are watched, and may be read.
    fn uses_leases(&self) -> bool {
        let is_readable = |watch: &WatchHandle| {
            let silent_for = watch.health().last_response.map(|at| at.elapsed());
            !is_shut_out(&watch.state(), silent_for)
        };
        self.is_fixed || self.leases.as_ref().is_some_and(is_readable)
    }

    /// This moment, as far as these nodes and budgets are concerned; `None` while it cannot be decided by.
    pub fn snapshot(&self, scope: &SnapshotScope, now: Timestamp) -> Option<Snapshot> {
        if !self.is_fixed && !self.is_fresh() {
            return None;
        }
        let mut snapshot = self.read().snapshot(scope, self.uses_leases(), now);
        for node in snapshot.nodes.values_mut() {
            *node = self.with_machine(Arc::clone(node));
        }
        if let Some(watches) = &self.remediations {
            snapshot.remediations = watches.remediations();
        }
        for lease in snapshot.leases.iter().flat_map(BTreeMap::values) {
            snapshot.remediations.add_lease(Arc::clone(lease));
        }
        Some(snapshot)
    }

    /// Until when the first lists of what tells remediations and Machines are waited for, if they are still to come.
    pub fn waits_until(&self) -> Option<Timestamp> {
        let remediations = self.remediations.as_ref().and_then(RemediationWatches::waits_until);
        let machines = self.machines.as_ref().and_then(Machines::waits_until);
        remediations.into_iter().chain(machines).min()
    }

    fn read(&self) -> RwLockReadGuard<'_, ClusterIndex> {
        self.index.read()
    }
}

/// Whether the right to read is missing. A refusal in between is that of an API server that restarts: for a moment it
/// forbids everybody everything.
fn is_shut_out(state: &KindState, silent_for: Option<Duration>) -> bool {
    matches!(state, KindState::Forbidden(_)) && silent_for.is_none_or(|time| time >= STALE_AFTER)
}

fn follow<K, I: 'static, V: 'static>(
    watches: &Watches,
    client: &Client,
    name: &'static str,
    handler: IndexHandler<K, I, V>,
) -> WatchHandle
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watches.follow(name, Api::<K>::all(client.clone()), Selection::all(), handler)
}
