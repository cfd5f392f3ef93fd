//! What decisions rest on, as plain values: nodes, pods, budgets and the room that there is, at one moment.

pub mod memory;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::BudgetRef;
use nodeward_api::node_drain::NodeDrain;
use nodeward_core::budget::BudgetView;
use nodeward_core::id::{BudgetKey, NodeName, PodKey, PodUid, ResourceVersion};
use nodeward_core::lease::LeaseView;
use nodeward_core::ledger::{Claim, Facts, Ledger};
use nodeward_core::remediation::Remediations;
use nodeward_scheduling::SchedulingView;

pub use memory::{Contradiction, Doubted, LeavingPods, Memory, PodToBeDown, StaleBudgets, Touched, WriteTarget};
pub use nodeward_scheduling::{NodeFacts, PodFacts};

/// For so long after its eviction the disruption controller counts a pod as gone that it still sees (`DeletionTimeout` in
/// `pkg/controller/disruption/disruption.go`).
pub const DISRUPTED_FOR: SignedDuration = SignedDuration::from_mins(2);

/// A budget, with what drain-lock reads of it besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetEntry {
    /// What all operators read.
    pub view: Arc<BudgetView>,
    /// `spec.maxUnavailable` is 0, or 0 %.
    pub zero_unavailable: bool,
    /// `spec.minAvailable` is a number, so that `status.expectedPods` is how many of its pods exist at this moment, and not how
    /// many there should be.
    pub counts_present_pods: bool,
    /// Value of the annotation `nodeward.dev/locked-by`.
    pub locked_by: Option<Arc<str>>,
}

impl BudgetEntry {
    /// As the ledger names it.
    pub fn reference(&self) -> BudgetRef {
        BudgetRef {
            namespace: self.view.key.namespace.to_string(),
            name: self.view.key.name.to_string(),
            uid: self.view.uid.to_string(),
        }
    }

    /// Whether Ceph's operator has closed it for now.
    pub fn is_closed_by_ceph(&self) -> bool {
        self.zero_unavailable && self.view.kept_by_ceph_operator
    }
}

/// What an owner asked of a budget: a `DisruptionHold` as far as it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldFacts {
    pub key: nodeward_core::id::NamespacedName,
    pub uid: Arc<str>,
    pub budget: BudgetKey,
    /// How many disruptions; `None`: all.
    pub disruptions: Option<i32>,
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

/// The ledger, with what a write of it is conditioned on.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerFacts {
    pub uid: Arc<str>,
    /// Resource version: the precondition of every write.
    pub resource_version: ResourceVersion,
    /// Its content; nothing, where it cannot be read.
    pub ledger: Ledger,
    /// How large its content is, as it is stored.
    pub bytes: usize,
    /// What is wrong with it where this version cannot read it.
    pub unreadable: Option<Arc<str>>,
}

/// A NodeDrain, or why it cannot be read.
pub type ReadableDrain = Result<Arc<NodeDrain>, Arc<str>>;

impl LedgerFacts {
    /// What the ledger says; one that is not there says nothing.
    pub fn content(facts: Option<&Self>) -> Ledger {
        facts.map(|facts| facts.ledger.clone()).unwrap_or_default()
    }
}

/// One moment of the cluster, as far as the drains in it are concerned.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub nodes: BTreeMap<NodeName, Arc<NodeFacts>>,
    /// All drains, by their node's name.
    pub drains: BTreeMap<NodeName, Arc<NodeDrain>>,
    /// Nodes whose NodeDrains cannot be read, and why: they are left alone.
    pub unreadable_drains: BTreeMap<NodeName, Arc<str>>,
    /// Pods that budgets' statuses count as evicted though they are not, each with when that is certain.
    pub stale_entries: BTreeMap<BudgetKey, BTreeMap<String, Timestamp>>,
    /// `None`: it has yet to be created.
    pub ledger: Option<Arc<LedgerFacts>>,
    /// The pods of the nodes that were asked for, and of those that have a drain or a claim.
    pub pods: BTreeMap<NodeName, Vec<Arc<PodFacts>>>,
    /// Pods under budgets that were deleted a moment ago on cordoned nodes, and not evicted; they may be gone.
    pub deleted: Vec<Arc<PodFacts>>,
    /// The budgets that select each of these pods, and each that waits for a node; a pod that is not here is under none.
    pub covering: HashMap<PodUid, Vec<BudgetKey>>,
    /// Those budgets, and the ones that the ledger names, as they stand.
    pub budgets: BTreeMap<BudgetKey, Arc<BudgetEntry>>,
    /// Pods that are not healthy, of those budgets whose status counts too few, in the order of their names.
    pub unhealthy: BTreeMap<BudgetKey, Vec<Arc<PodFacts>>>,
    /// The same budgets as the ledger reads them.
    pub facts: Facts,
    /// Hosts with OSDs that are down, by namespace, where one of these budgets is closed by Ceph's operator.
    pub down_osds: BTreeMap<Arc<str>, BTreeSet<String>>,
    /// What decides where pods that have to leave can go.
    pub scheduling: SchedulingView,
    /// The pods that the ledger's disruptions are held for, and pods that bear their names, by name.
    pub held: BTreeMap<PodKey, Arc<PodFacts>>,
    /// Node leases by name, as far as they are listed; `None` where they are not used.
    pub leases: Option<BTreeMap<Arc<str>, Arc<LeaseView>>>,
    /// Nodes that are being remediated, as far as that is known.
    pub remediations: Remediations,
    /// Owners' holds, in force or not.
    pub holds: Vec<Arc<HoldFacts>>,
}

impl Snapshot {
    /// The claims of the ledger; one that is not there has none.
    pub fn claims(&self) -> &[Claim] {
        self.ledger
            .as_ref()
            .map(|facts| facts.ledger.claims())
            .unwrap_or_default()
    }

    /// The claim of a node.
    pub fn claim(&self, node_uid: &str) -> Option<&Claim> {
        self.ledger.as_ref()?.ledger.claim(node_uid)
    }

    /// The pods of a node that was asked for.
    pub fn pods_of(&self, node: &NodeName) -> &[Arc<PodFacts>] {
        self.pods.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// The budgets that select a pod.
    pub fn budgets_of(&self, pod: &PodFacts) -> &[BudgetKey] {
        self.covering.get(&pod.uid).map(Vec::as_slice).unwrap_or_default()
    }
}

/// What a snapshot is to contain besides the nodes of drains and claims, and their budgets.
#[derive(Debug, Clone, Default)]
pub struct SnapshotScope {
    /// Nodes whose pods are wanted.
    pub nodes: BTreeSet<NodeName>,
    /// Budgets that are wanted whether they select one of those pods or not.
    pub budgets: BTreeSet<BudgetKey>,
}
