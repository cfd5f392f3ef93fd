//! What a plan has found out about a drain: the one source of its status, its Events and its metrics.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::node_drain::{BlockedBy, DrainPlan, NodeDrain, Phase, PodCounts};
use nodeward_api::reason::LockReason;
use nodeward_core::id::{BudgetKey, NodeName, NodeUid};
use nodeward_core::ledger::{Claim, Obstacle};

use crate::snapshot::{PodFacts, Snapshot};

use super::eviction_budget::NotEvictable;
use super::unhealthy::unhealthy_pods;

/// How many nodes are named that a cordon waits for.
const NAMED_AT_MOST: usize = 3;

/// How a drain stands.
#[derive(Debug, Clone, PartialEq)]
pub struct DrainVerdict {
    /// The drain; `None` for what is left of one.
    pub drain: Option<Arc<NodeDrain>>,
    pub node: NodeName,
    /// UID of its node, where it is known.
    pub node_uid: Option<NodeUid>,
    /// Where it stands.
    pub phase: Phase,
    /// Its claim, as it is after this pass.
    pub claim: Option<Claim>,
    /// What it waits for.
    pub blocked_by: Vec<BlockedBy>,
    /// What becomes of each pod.
    pub plan: Option<DrainPlan>,
    /// How many pods have gone.
    pub counts: PodCounts,
    /// Until when the phase lasts at most.
    pub deadline: Option<Timestamp>,
    /// From when on it goes on without the pods that cannot go, where it waits for one.
    pub leaves_out_at: Option<Timestamp>,
    /// Whether all its pods should have been back by now: the node's lease is given back.
    pub gives_lease_up: bool,
    /// Where it stands, for a person.
    pub message: String,
    /// Whether somebody else has the node's lease.
    pub lease_lost: bool,
}

impl DrainVerdict {
    pub(super) fn set_message(&mut self, message: impl Into<String>) {
        self.message = message.into();
    }

    /// Adds something about the node itself.
    pub(super) fn block(&mut self, reason: LockReason, message: impl Into<String>) {
        self.blocked_by.push(about_node(reason, message.into()));
    }

    /// Adds something that another node is to blame for, where one is.
    pub(super) fn block_by_node(&mut self, reason: LockReason, message: String, node: Option<&NodeName>) {
        self.blocked_by.push(BlockedBy {
            node: node.map(ToString::to_string),
            ..about_node(reason, message)
        });
    }

    /// Says that the cordon of its node `own` waits: this pod would find no room while these others are drained.
    pub(super) fn block_for_room(&mut self, own: &NodeName, pod: &PodFacts, awaited: &[NodeName]) {
        let key = &pod.key;
        let of_another = pod.node.as_ref().filter(|node| *node != own);
        let what = match (of_another, &pod.node) {
            (Some(node), _) => format!("its cordon would take the last room of pod {key}, which leaves node {node}"),
            (None, None) => format!("its cordon would take the last room of pod {key}, which waits for a node"),
            (None, Some(_)) => format!("pod {key} {}", LockReason::NoRoom.explanation()),
        };
        self.message = format!("{what}; it waits for {}", drains_of(awaited));
        self.blocked_by.push(BlockedBy {
            pod: Some(key.to_string()),
            node: awaited.first().map(ToString::to_string),
            ..about_node(LockReason::NoRoom, self.message.clone())
        });
    }

    /// Adds why a pod is not evicted yet.
    pub(super) fn block_pod(&mut self, pod: &PodFacts, why: &NotEvictable) {
        self.blocked_by.push(BlockedBy {
            pdb: why.pdb.as_ref().map(ToString::to_string),
            pod: Some(pod.key.to_string()),
            node: why.holder.as_ref().map(ToString::to_string),
            ..about_node(why.reason, format!("pod {} {}", pod.key, why.reason.explanation()))
        });
    }

    /// Whether each of the pods waits for another drain.
    pub(super) fn waits_for_drains_with(&self, pods: &[Arc<PodFacts>]) -> bool {
        let waits = self.blocked_by.iter().filter(|one| one.reason.waits_for_a_drain());
        let waits: BTreeSet<&str> = waits.filter_map(|one| one.pod.as_deref()).collect();
        !pods.is_empty() && pods.iter().all(|pod| waits.contains(pod.key.to_string().as_str()))
    }

    /// Adds a pod that stays with its disruption while another program evicts from its node.
    pub(super) fn block_pod_that_stays(&mut self, pod: &PodFacts) {
        let message = format!(
            "pod {} has its disruption and stays while its node's drainer evicts: that one leaves it out, or its errors say why, \
             often that another webhook refuses",
            pod.key
        );
        self.blocked_by.push(BlockedBy {
            pod: Some(pod.key.to_string()),
            ..about_node(LockReason::EvictionFailed, message)
        });
    }

    /// Adds a pod that stays until whoever runs it moves it.
    pub(super) fn block_for_owner(&mut self, pod: &PodFacts, budget: &BudgetKey) {
        let message = format!(
            "pod {} leaves when whoever runs it moves it, who is asked once a minute: budget {budget} can never allow a disruption",
            pod.key
        );
        self.blocked_by.push(BlockedBy {
            pdb: Some(budget.to_string()),
            pod: Some(pod.key.to_string()),
            ..about_node(LockReason::AwaitingPods, message)
        });
    }

    /// Adds a pod that should be gone by now.
    pub(super) fn block_overdue(&mut self, pod: &PodFacts) {
        let finalizers = pod.deletion.as_ref().map_or(&[][..], |deletion| &deletion.finalizers);
        let (reason, which) = if finalizers.is_empty() {
            (LockReason::StuckTerminating, String::new())
        } else {
            (LockReason::FinalizerStuck, format!(": {}", finalizers.join(", ")))
        };
        let message = format!("pod {} {}{which}", pod.key, reason.explanation());
        self.blocked_by.push(BlockedBy {
            pod: Some(pod.key.to_string()),
            ..about_node(reason, message)
        });
    }

    /// Adds what stands in the way of its grant.
    pub(super) fn block_by(&mut self, obstacles: &[Obstacle], snapshot: &Snapshot) {
        let obstacles = obstacles.iter().map(|obstacle| blocked_by(obstacle, snapshot));
        self.blocked_by.extend(obstacles);
    }
}

/// Something that people are told once it has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    pub node: NodeName,
    pub node_uid: NodeUid,
    /// What happened.
    pub reason: LockReason,
    /// The same for a person.
    pub note: String,
}

/// An obstacle, as the status shows it.
pub fn blocked_by(obstacle: &Obstacle, snapshot: &Snapshot) -> BlockedBy {
    let is_unhealthy = obstacle.reason == LockReason::BudgetUnhealthy;
    let budget = obstacle.pdb.as_ref().filter(|_| is_unhealthy);
    let message = match budget.and_then(|budget| unhealthy_pods(snapshot, budget)) {
        Some(pods) => format!("{obstacle}: {pods}"),
        None => obstacle.to_string(),
    };
    BlockedBy {
        pdb: obstacle.pdb.as_ref().map(ToString::to_string),
        pod: obstacle.pod.as_ref().map(ToString::to_string),
        node: obstacle.holder.as_ref().map(ToString::to_string),
        ..about_node(obstacle.reason, message)
    }
}

/// Something that is about the node itself.
pub fn about_node(reason: LockReason, message: String) -> BlockedBy {
    BlockedBy {
        reason,
        pdb: None,
        pod: None,
        node: None,
        message,
    }
}

/// The drains of these nodes, for a person.
fn drains_of(nodes: &[NodeName]) -> String {
    let named: Vec<&str> = nodes.iter().take(NAMED_AT_MOST).map(NodeName::as_str).collect();
    let more = match nodes.len().saturating_sub(NAMED_AT_MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let drains = if nodes.len() == 1 { "drain" } else { "drains" };
    format!("the {drains} of {}{more}", named.join(", "))
}

/// All obstacles, for a person.
pub fn in_words(obstacles: &[Obstacle]) -> String {
    let words: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
    words.join("; ")
}
