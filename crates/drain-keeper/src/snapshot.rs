//! Everything that a plan is made from, as plain values: one moment of the cluster, and what this process remembers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_core::budget::Budgets;
use nodeward_core::drain::NodeDrains;
use nodeward_core::hold::Holds;
use nodeward_core::id::{BudgetKey, NodeName, NodeUid, PodUid, ResourceVersion};
use nodeward_core::node::NodeView;
use nodeward_core::pod::PodView;
use nodeward_core::remediation::Remediations;
use nodeward_core::signal::{PdbForceDrainTimeout, SignalInputs};
use nodeward_core::surge::Workloads;

use crate::clock::NodeHistory;
use crate::planned_pods::PlannedPods;

/// One moment of the cluster, as far as drains are concerned.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Nodes that a drain concerns, or did until recently.
    pub nodes: Vec<Arc<NodeView>>,
    /// Pods by node, for the nodes whose pods are watched.
    pub pods: BTreeMap<NodeName, NodePods>,
    pub budgets: Arc<Budgets>,
    /// What the upgrade signal reads.
    pub signals: SignalInputs,
    /// What the UpgradeConfig among them says: read once, for each pod's waits follow from it.
    pub pdb_force_drain_timeout: PdbForceDrainTimeout,
    pub drains: NodeDrains,
    /// By node, what drain-lock has planned for its pods.
    pub planned_pods: BTreeMap<NodeName, Arc<PlannedPods>>,
    /// Budgets that are held by claims of nodes or by their owners.
    pub holds: Holds,
    /// Which of drain-lock's kinds there are.
    pub lock_kinds: LockKinds,
    /// Nodes with an open remediation, as far as that is known.
    pub remediations: Remediations,
    /// Namespaces in which the configuration honours no opt-out.
    pub without_opt_outs: BTreeSet<Arc<str>>,
    /// Namespaces in which Deployments may be told to roll, as far as the configuration makes a difference between them.
    pub surge_namespaces: Option<BTreeSet<Arc<str>>>,
    /// By namespace, the workloads that are watched and known.
    pub workloads: BTreeMap<Arc<str>, Arc<Workloads>>,
    /// Which drain-keeper this is, by the namespace and name of its lease, as it signs clocks; none in a dry run, which is to
    /// run beside another.
    pub installation: Option<Arc<str>>,
    /// What this process remembers.
    pub memory: Memory,
}

/// Which of drain-lock's kinds the API server serves, or may serve: what it does not is not asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockKinds {
    /// NodeDrain.
    pub drains: bool,
    /// DrainLedger.
    pub ledger: bool,
    /// DisruptionHold.
    pub holds: bool,
}

#[derive(Debug, Clone)]
pub enum NodePods {
    /// They are still being listed: absent from here is not absent.
    Syncing,
    /// All of them.
    Synced(Vec<Arc<PodView>>),
}

/// What this process remembers. Losing it costs time, never safety: what safety rests on is read from the API.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// By node, what was seen of its drain.
    pub node_history: BTreeMap<NodeUid, NodeHistory>,
    /// Nothing has been seen yet: what opened a gate before, and when, nobody knows.
    pub is_first_look: bool,
    /// Since when it has led: what was forced before, an earlier leader may have forced.
    pub leads_since: Option<Timestamp>,
    /// By pod, how the last attempt at it went.
    pub attempts: BTreeMap<PodUid, Attempt>,
    /// By budget, what this process overrode last, in case the record on the budget is lost.
    pub overridden: BTreeMap<BudgetKey, Overridden>,
    /// Pods that were held back after their strategy fell due.
    pub held_back: BTreeSet<PodUid>,
    /// By pod, when its budget last had room for it.
    pub had_room: BTreeMap<PodUid, Timestamp>,
    /// How many acts the limit per minute allows now.
    pub acts_left: u32,
    /// When it allows one more.
    pub next_act_at: Option<Timestamp>,
}

/// An override of a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overridden {
    /// When.
    pub at: Timestamp,
    pub pod: PodUid,
}

/// How the last attempt at a pod went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The pod as it was then.
    pub resource_version: ResourceVersion,
    pub outcome: Outcome,
    /// Not before then again.
    pub retry_at: Timestamp,
    /// How many attempts have failed in a row: others go first then.
    pub failures: u32,
    /// The server once refused it for a budget, perhaps one that no cache shows yet.
    pub was_refused_by_budget: bool,
    /// When the server accepted our delete or eviction, by our clock: its grace is not over before it has passed by our
    /// clock too, which may differ from the server's.
    pub asked_at: Option<Timestamp>,
}

/// Outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// On its way, or done and not yet seen through the watch.
    Sent,
    /// Its Deployment was told to roll, or that was taken back, and it is not yet seen through the watch.
    Restarted,
    /// Nothing was sent: what it rested on had changed, or this is a dry run.
    NotSent,
    /// The server refused it for a budget.
    RefusedByBudget,
    /// The pod's namespace is being deleted.
    NamespaceTerminating,
    /// A right is missing, or a webhook denies it, with these words.
    Denied(String),
    /// The API server, or a webhook in its place, asks to come back later, with these words.
    Throttled(String),
    Failed(String),
}

impl Memory {
    /// The attempt that still says something about this pod: one whose delay runs, and, where it only waits for the
    /// watch to catch up, of the pod as it still stands. A pod that was asked to go and does not terminate yet waits for
    /// that, whatever else changes: an eviction sets a condition before it deletes.
    pub fn attempt(&self, pod: &PodView, now: Timestamp) -> Option<&Attempt> {
        self.attempts.get(&pod.uid).filter(|attempt| {
            let is_seen_anew = attempt.resource_version != pod.resource_version;
            let is_answered_by_the_watch = match attempt.outcome {
                Outcome::Sent => is_seen_anew && pod.deletion.is_some(),
                Outcome::NotSent => is_seen_anew,
                Outcome::Restarted
                | Outcome::RefusedByBudget
                | Outcome::NamespaceTerminating
                | Outcome::Denied(_)
                | Outcome::Throttled(_)
                | Outcome::Failed(_) => false,
            };
            now < attempt.retry_at && !is_answered_by_the_watch
        })
    }

    /// Whether the pod was asked to go, and the watch does not show it yet.
    pub fn is_asked_to_go(&self, pod: &PodView, now: Timestamp) -> bool {
        let is_sent = |attempt: &Attempt| attempt.outcome == Outcome::Sent;
        pod.deletion.is_none() && self.attempt(pod, now).is_some_and(is_sent)
    }

    /// Whether the server once refused this pod's eviction for a budget.
    pub fn was_refused_by_budget(&self, pod: &PodView) -> bool {
        self.attempts
            .get(&pod.uid)
            .is_some_and(|attempt| attempt.was_refused_by_budget)
    }

    /// How many attempts at this pod have failed in a row.
    pub fn failures(&self, pod: &PodView) -> u32 {
        self.attempts.get(&pod.uid).map_or(0, |attempt| attempt.failures)
    }

    /// When the server accepted our delete or eviction of this pod, if it did.
    pub fn asked_at(&self, pod: &PodView) -> Option<Timestamp> {
        self.attempts.get(&pod.uid).and_then(|attempt| attempt.asked_at)
    }
}

impl Snapshot {
    /// What drain-lock has planned for the pods of this node, while its drain is under way.
    pub fn planned_for(&self, node: &NodeView) -> Option<Arc<PlannedPods>> {
        let drain = self.drains.of(&node.name).ok()??;
        let planned = self.planned_pods.get(&node.name).cloned().unwrap_or_default();
        drain.is_under_way_on(&node.uid).then_some(planned)
    }

    /// All pods that are in view: those of draining nodes whose list is complete.
    pub fn watched_pods(&self) -> impl Iterator<Item = &Arc<PodView>> {
        self.pods.values().flat_map(|pods| match pods {
            NodePods::Syncing => [].iter(),
            NodePods::Synced(pods) => pods.iter(),
        })
    }
}
