//! What decisions rest on, as plain values: nodes, pods, budgets and the room that there is, at one moment.

#[cfg(test)]
pub(crate) mod fixture;
pub mod memory;
pub mod resources;
pub mod room;
pub mod scheduling;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::drain_ledger::DrainLedgerSpec;
use nodeward_api::node_drain::NodeDrain;
use nodeward_api::opt_out::{OptOut, OptOutSource};
use nodeward_core::budget::BudgetView;
use nodeward_core::id::{BudgetKey, NodeName, PodKey, PodUid, ResourceVersion};
use nodeward_core::ledger::{Facts, Ledger};
use nodeward_core::node::NodeView;
use nodeward_core::pod::Phase;

pub use memory::{Memory, Reserved};
pub use nodeward_core::labels::Labels;
pub use resources::Resources;
pub use room::{Floor, Load, Room};
pub use scheduling::Scheduling;

/// For so long after its eviction the disruption controller counts a pod as gone that it still sees (`DeletionTimeout` in
/// `pkg/controller/disruption/disruption.go`).
pub const DISRUPTED_FOR: SignedDuration = SignedDuration::from_mins(2);

/// A Node, with what its pods may request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// What all operators read.
    pub view: NodeView,
    /// What its pods may request in all.
    pub allocatable: Resources,
}

impl Deref for NodeFacts {
    type Target = NodeView;

    fn deref(&self) -> &NodeView {
        &self.view
    }
}

/// A Pod, projected to what decisions read. A hundred and fifty thousand of them are kept: what siblings have in common is
/// shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// Namespace and name.
    pub key: PodKey,
    /// UID.
    pub uid: PodUid,
    /// The node that it is bound to.
    pub node: Option<NodeName>,
    /// `status.phase`.
    pub phase: Phase,
    /// Whether the `Ready` condition is `True`.
    pub ready: bool,
    /// Whether it is the API's copy of a static pod.
    pub mirror: bool,
    /// Whether scheduling gates keep it from being scheduled at all.
    pub gated: bool,
    /// What its owner asked of drains, and where.
    pub opt_out: Option<(OptOut, OptOutSource)>,
    /// `metadata.deletionTimestamp`: present while it terminates.
    pub deletion: Option<Timestamp>,
    /// When it was created.
    pub created: Timestamp,
    /// When the present `Ready` became what it is.
    pub ready_since: Option<Timestamp>,
    /// Since when all of its containers have run: when the first of them that runs was started.
    pub started_at: Option<Timestamp>,
    /// Since when the scheduler has found no node for it.
    pub unschedulable_since: Option<Timestamp>,
    /// Its controller.
    pub owner: Option<Arc<OwnerFacts>>,
    /// Labels.
    pub labels: Arc<Labels>,
    /// What it asks of its node.
    pub scheduling: Arc<Scheduling>,
    /// The PersistentVolumeClaims that it mounts, by name.
    pub claims: Box<[Arc<str>]>,
}

/// The controller that would make a pod again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnerFacts {
    /// Group and version.
    pub api_version: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
}

impl OwnerFacts {
    /// Whether it is a DaemonSet of Kubernetes itself: drains leave its pods alone.
    pub fn is_daemon_set(&self) -> bool {
        &*self.kind == "DaemonSet" && self.api_version.starts_with("apps/")
    }
}

impl PodFacts {
    /// Whether it has ended, well or badly.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether the eviction API deletes it without asking any budget (Kubernetes `canIgnorePDB`).
    pub fn skips_budgets(&self) -> bool {
        self.is_finished() || self.phase == Phase::Pending || self.deletion.is_some()
    }

    /// Whether the disruption controller counts it as healthy, but for evictions that it has yet to see.
    pub fn is_healthy(&self) -> bool {
        self.ready && self.deletion.is_none()
    }

    /// Whether it waits for the scheduler.
    pub fn awaits_a_node(&self) -> bool {
        self.node.is_none() && self.phase == Phase::Pending && self.deletion.is_none()
    }

    /// Whether a DaemonSet made it.
    pub fn is_daemon(&self) -> bool {
        self.owner.as_deref().is_some_and(OwnerFacts::is_daemon_set)
    }

    /// Whether both are made by the same controller.
    pub fn is_sibling_of(&self, other: &Self) -> bool {
        match (&self.owner, &other.owner) {
            (Some(own), Some(others)) => own.uid == others.uid,
            _ => false,
        }
    }
}

/// A budget, with what drain-lock reads of it besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetEntry {
    /// What all operators read.
    pub view: Arc<BudgetView>,
    /// `spec.maxUnavailable` is 0, or 0 %.
    pub zero_unavailable: bool,
    /// Value of the annotation `nodeward.dev/hold`.
    pub hold: Option<Arc<str>>,
    /// Value of the annotation `nodeward.dev/locked-by`.
    pub locked_by: Option<Arc<str>>,
}

/// The node lease by which drainers exclude each other (medik8s).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseFacts {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// Resource version, the precondition of taking or giving it back.
    pub resource_version: ResourceVersion,
    /// Who holds it; `None` or empty: nobody.
    pub holder: Option<Arc<str>>,
    /// When it was last renewed.
    pub renewed: Option<Timestamp>,
    /// For how many seconds from then it holds.
    pub duration_seconds: Option<i32>,
}

/// What an owner asked of a budget: a `DisruptionHold` as far as it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldFacts {
    /// Namespace and name of the hold.
    pub key: nodeward_core::id::NamespacedName,
    /// UID of the hold.
    pub uid: Arc<str>,
    /// The budget.
    pub budget: BudgetKey,
    /// How many units; `None`: all.
    pub units: Option<i32>,
    /// Why.
    pub reason: Arc<str>,
    /// When it was made.
    pub created: Timestamp,
    /// When it ends, by what the owner asked and, once its status tells, by policy.
    pub until: Option<Timestamp>,
    /// Until when the owner asked for it.
    pub asked_until: Option<Timestamp>,
    /// Which administrator has released it, and why (annotation `nodeward.dev/release`).
    pub released_by: Option<Arc<str>>,
    /// `metadata.generation`.
    pub generation: i64,
    /// Its status as it was last written.
    pub status: Option<Arc<nodeward_api::disruption_hold::DisruptionHoldStatus>>,
}

impl HoldFacts {
    /// Whether it counts at `now`.
    pub fn is_in_force(&self, now: Timestamp) -> bool {
        self.released_by.is_none() && self.until.is_none_or(|until| now < until)
    }
}

/// The ledger as the watch last showed it.
#[derive(Debug, Clone, PartialEq)]
pub enum LedgerState {
    /// There is none: it has yet to be created.
    Absent,
    /// It is there.
    Present(Arc<LedgerFacts>),
}

impl LedgerState {
    /// What it says; one that is not there says nothing.
    pub fn ledger(&self) -> Ledger {
        match self {
            Self::Absent => Ledger::default(),
            Self::Present(facts) => Ledger(facts.spec.clone()),
        }
    }
}

/// The ledger, with what a write of it is conditioned on.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerFacts {
    /// `metadata.name`; the one that counts is named `cluster`.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// Resource version: the precondition of every write.
    pub resource_version: ResourceVersion,
    /// Its content.
    pub spec: DrainLedgerSpec,
}

/// One moment of the cluster, as far as the drains in it are concerned.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// All nodes.
    pub nodes: BTreeMap<NodeName, Arc<NodeFacts>>,
    /// All drains, by their node's name.
    pub drains: BTreeMap<NodeName, Arc<NodeDrain>>,
    /// The ledger.
    pub ledger: LedgerState,
    /// The pods of the nodes that were asked for, and of those that have a drain or a claim.
    pub pods: BTreeMap<NodeName, Vec<Arc<PodFacts>>>,
    /// The budgets that select each of these pods, and each that waits for a node; a pod that is not here is under none.
    pub covering: BTreeMap<PodUid, Vec<BudgetKey>>,
    /// Those budgets, and the ones that the ledger names, as they stand.
    pub budgets: BTreeMap<BudgetKey, Arc<BudgetEntry>>,
    /// The same budgets as the ledger reads them.
    pub facts: Facts,
    /// Room for pods that have to leave.
    pub floor: Floor,
    /// The pods that the ledger's units are held for, and pods that bear their names, by name.
    pub held: BTreeMap<PodKey, Arc<PodFacts>>,
    /// Node leases by name, as far as they are listed; `None` where they are not used.
    pub leases: Option<BTreeMap<Arc<str>, Arc<LeaseFacts>>>,
    /// Owners' holds, in force or not.
    pub holds: Vec<Arc<HoldFacts>>,
}

impl Snapshot {
    /// The pods of a node that was asked for.
    pub fn pods_of(&self, node: &NodeName) -> &[Arc<PodFacts>] {
        self.pods.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// The budgets that select a pod.
    pub fn budgets_of(&self, pod: &PodFacts) -> &[BudgetKey] {
        self.covering.get(&pod.uid).map(Vec::as_slice).unwrap_or_default()
    }
}

/// What one look at the world is to contain.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// Nodes whose pods are wanted.
    pub nodes: BTreeSet<NodeName>,
    /// Budgets that are wanted whether they select one of those pods or not.
    pub budgets: BTreeSet<BudgetKey>,
}
