//! How each kind goes from its watch onto the board. Objects are projected before the lock is taken.

use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use nodeward_api::{DisruptionHold, DrainLedger, NodeDrain};
use nodeward_core::id::{NamespacedName, NodeName};
use nodeward_core::ledger::Ledger;
use nodeward_runtime::Index;
use nodeward_scheduling::{NodeProjector, PodProjector};

use super::board::{Board, VolumeFacts};
use super::project::{project_budget, project_hold, project_lease, project_volume};
use crate::snapshot::{BudgetEntry, HoldFacts, LeaseFacts, LedgerFacts, NodeFacts, PodFacts};

/// How one kind is kept on the board.
pub(super) trait Shelf<K>: Send + 'static {
    type Facts;

    /// What is kept of an object; `None`: nothing.
    fn project(&mut self, object: &K) -> Option<Self::Facts>;

    /// A list begins.
    fn begin(board: &mut Board);

    /// Whether anything is different now.
    fn put(board: &mut Board, facts: Self::Facts) -> bool;

    /// Whether it was there.
    fn remove(board: &mut Board, meta: &ObjectMeta) -> bool;

    /// Forgets what the list that ended has not named; whether that was anything.
    fn sweep(board: &RwLock<Board>) -> bool;

    fn count(board: &Board) -> usize;
}

/// Feeds the board with one kind.
pub(super) struct Intake<S> {
    pub(super) board: Arc<RwLock<Board>>,
    pub(super) shelf: S,
}

impl<S> Intake<S> {
    pub(super) fn put<K>(&mut self, object: &K) -> bool
    where
        K: Resource,
        S: Shelf<K>,
    {
        let facts = self.shelf.project(object);
        let mut board = self.board.write().unwrap_or_else(PoisonError::into_inner);
        match facts {
            Some(facts) => S::put(&mut board, facts),
            None => S::remove(&mut board, object.meta()),
        }
    }
}

impl<K, S> Index<K> for Intake<S>
where
    K: Resource + 'static,
    S: Shelf<K>,
{
    fn list_began(&mut self) {
        S::begin(&mut self.board.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// The objects of a list are taken in one by one: what it does not name goes when it ends. So nothing is held twice
    /// in memory, and readers do not wait while a hundred thousand objects change places.
    fn listed(&mut self, object: K) -> bool {
        self.put(&object);
        false
    }

    fn list_ended(&mut self) -> bool {
        S::sweep(&self.board);
        true
    }

    fn applied(&mut self, object: K) -> bool {
        self.put(&object)
    }

    fn deleted(&mut self, object: K) -> bool {
        S::remove(
            &mut self.board.write().unwrap_or_else(PoisonError::into_inner),
            object.meta(),
        )
    }

    fn objects(&self) -> usize {
        S::count(&self.board.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shelf<Pod> for PodProjector {
    type Facts = PodFacts;

    fn project(&mut self, pod: &Pod) -> Option<PodFacts> {
        self.project(pod)
    }

    fn begin(board: &mut Board) {
        board.pods.begin_round();
    }

    fn put(board: &mut Board, pod: PodFacts) -> bool {
        board.pods.put(pod)
    }

    fn remove(board: &mut Board, meta: &ObjectMeta) -> bool {
        NamespacedName::of(meta).is_some_and(|pod| board.pods.remove(&pod.namespace, &pod.name))
    }

    fn sweep(board: &RwLock<Board>) -> bool {
        let gone = board.read().unwrap_or_else(PoisonError::into_inner).pods.not_named();
        for key in &gone {
            let mut board = board.write().unwrap_or_else(PoisonError::into_inner);
            board.pods.remove(&key.namespace, &key.name);
        }
        !gone.is_empty()
    }

    fn count(board: &Board) -> usize {
        board.pods.len()
    }
}

impl Shelf<Node> for NodeProjector {
    type Facts = NodeFacts;

    fn project(&mut self, node: &Node) -> Option<NodeFacts> {
        self.project(node)
    }

    fn begin(board: &mut Board) {
        board.nodes.begin_round();
    }

    fn put(board: &mut Board, node: NodeFacts) -> bool {
        board.nodes.put(node.name.clone(), node)
    }

    fn remove(board: &mut Board, meta: &ObjectMeta) -> bool {
        let name = meta.name.as_deref().unwrap_or_default();
        board.nodes.remove(name).is_some()
    }

    fn sweep(board: &RwLock<Board>) -> bool {
        let mut board = board.write().unwrap_or_else(PoisonError::into_inner);
        !board.nodes.sweep().is_empty()
    }

    fn count(board: &Board) -> usize {
        board.nodes.len()
    }
}

pub(super) struct Budgets;

impl Shelf<PodDisruptionBudget> for Budgets {
    type Facts = BudgetEntry;

    fn project(&mut self, budget: &PodDisruptionBudget) -> Option<BudgetEntry> {
        project_budget(budget)
    }

    fn begin(board: &mut Board) {
        board.budgets.begin_round();
    }

    fn put(board: &mut Board, budget: BudgetEntry) -> bool {
        board.put_budget(budget.view.key.clone(), budget)
    }

    fn remove(board: &mut Board, meta: &ObjectMeta) -> bool {
        NamespacedName::of(meta).is_some_and(|budget| board.remove_budget(&budget))
    }

    fn sweep(board: &RwLock<Board>) -> bool {
        let mut board = board.write().unwrap_or_else(PoisonError::into_inner);
        let gone = board.budgets.sweep();
        for (key, _) in &gone {
            board.pods.remove_budget(key);
        }
        !gone.is_empty()
    }

    fn count(board: &Board) -> usize {
        board.budgets.len()
    }
}

pub(super) struct Volumes;

impl Shelf<PersistentVolume> for Volumes {
    type Facts = (Arc<str>, VolumeFacts);

    fn project(&mut self, volume: &PersistentVolume) -> Option<Self::Facts> {
        let name = volume.metadata.name.as_deref()?;
        let (claim, nodes) = project_volume(volume)?;
        let nodes = Arc::new(nodes);
        Some((name.into(), VolumeFacts { claim, nodes }))
    }

    fn begin(board: &mut Board) {
        board.volumes.begin_round();
    }

    fn put(board: &mut Board, (name, volume): Self::Facts) -> bool {
        board.put_volume(name, volume)
    }

    fn remove(board: &mut Board, meta: &ObjectMeta) -> bool {
        board.remove_volume(meta.name.as_deref().unwrap_or_default())
    }

    fn sweep(board: &RwLock<Board>) -> bool {
        board.write().unwrap_or_else(PoisonError::into_inner).sweep_volumes()
    }

    fn count(board: &Board) -> usize {
        board.volumes.len()
    }
}

/// A kind that is kept in a plain table.
macro_rules! plain_shelf {
    ($shelf:ident, $kind:ty, $facts:ty, $table:ident, $project:expr, $key:expr, $key_of_meta:expr) => {
        pub(super) struct $shelf;

        impl Shelf<$kind> for $shelf {
            type Facts = $facts;

            fn project(&mut self, object: &$kind) -> Option<$facts> {
                $project(object)
            }

            fn begin(board: &mut Board) {
                board.$table.begin_round();
            }

            fn put(board: &mut Board, facts: $facts) -> bool {
                let key = $key(&facts);
                board.$table.put(key, facts)
            }

            fn remove(board: &mut Board, meta: &ObjectMeta) -> bool {
                board.$table.remove(&$key_of_meta(meta)).is_some()
            }

            fn sweep(board: &RwLock<Board>) -> bool {
                let mut board = board.write().unwrap_or_else(PoisonError::into_inner);
                !board.$table.sweep().is_empty()
            }

            fn count(board: &Board) -> usize {
                board.$table.len()
            }
        }
    };
}

fn name_in(meta: &ObjectMeta) -> Arc<str> {
    meta.name.as_deref().unwrap_or_default().into()
}

plain_shelf!(
    Drains,
    NodeDrain,
    NodeDrain,
    drains,
    |drain: &NodeDrain| {
        let mut drain = drain.clone();
        drain.metadata.managed_fields = None;
        drain.metadata.name.is_some().then_some(drain)
    },
    |drain: &NodeDrain| NodeName::from(name_in(&drain.metadata)),
    |meta| NodeName::from(name_in(meta))
);

plain_shelf!(
    Ledgers,
    DrainLedger,
    LedgerFacts,
    ledgers,
    |ledger: &DrainLedger| {
        let meta = &ledger.metadata;
        Some(LedgerFacts {
            name: name_in(meta),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            resource_version: meta.resource_version.as_deref().unwrap_or_default().into(),
            ledger: Ledger::from(&ledger.spec),
        })
    },
    |ledger: &LedgerFacts| Arc::clone(&ledger.name),
    name_in
);

plain_shelf!(
    Holds,
    DisruptionHold,
    HoldFacts,
    holds,
    project_hold,
    |hold: &HoldFacts| hold.key.clone(),
    |meta: &ObjectMeta| NamespacedName::new(meta.namespace.as_deref().unwrap_or_default(), name_in(meta))
);

plain_shelf!(
    Leases,
    Lease,
    LeaseFacts,
    leases,
    project_lease,
    |lease: &LeaseFacts| Arc::clone(&lease.name),
    name_in
);
