//! The decision: from one [`Snapshot`], a [`Policy`] and the time to what is done, said and waited for. Pure.

pub mod budget_turn;
mod candidates;
mod failed_drain;
mod limits;
pub mod may_force;
mod node_state;
pub mod surge;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::condition;
use nodeward_api::drain_clock::DrainClock;
use nodeward_api::reason::GateReason;
use nodeward_core::budget::BudgetView;
use nodeward_core::deadline::RequeueAt;
use nodeward_core::id::{NodeName, NodeUid, PodKey, PodUid};
use nodeward_core::node::NodeView;
use nodeward_core::pod::PodView;
use nodeward_core::strategy::Strategy;
use nodeward_core::surge::Course;
use nodeward_core::verdict::{Blocker, Next, NodeVerdict};

use crate::clock::{ClockWrite, NodeHistory};
use crate::policy::Policy;
use crate::snapshot::Snapshot;

use self::node_state::{NodeInPlan, NodeState};

/// What follows from a [`Snapshot`].
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// What is to be done, each on its own.
    pub actions: Vec<Action>,
    /// By node, what stands between it and the end of its drain. Only nodes that are cordoned have one, and those
    /// out of scope that carry a condition, which is not to be touched.
    pub verdicts: Vec<NodeVerdict>,
    /// Nodes whose pods have to be watched.
    pub watch_pods: BTreeSet<NodeName>,
    /// Nodes that are being deleted: whether their drains failed concerns nobody any more.
    pub being_deleted: BTreeSet<NodeName>,
    /// What has now been seen, for the next plan.
    pub node_history: BTreeMap<NodeUid, NodeHistory>,
    /// Namespaces whose workloads have to be watched.
    pub watch_workloads: BTreeSet<Arc<str>>,
    /// Where the surges of pods stand.
    pub surges: BTreeMap<PodUid, SurgeStanding>,
    /// When the budgets of pods last had room for them, for the next plan.
    pub had_room: BTreeMap<PodUid, Timestamp>,
    /// Pods that are held back although their strategy is due, so that what comes late by intent is told from what is late.
    pub held_back: BTreeSet<PodUid>,
    /// Annotations and the like that could not be read, each said once.
    pub warnings: BTreeSet<Warning>,
    /// When to plan again at the latest.
    pub requeue_at: Option<Timestamp>,
}

/// Something to do. Each carries its own preconditions, and each may be done twice without harm.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Write a node's drain clock.
    WriteClock(ClockAction),
    /// Do something to a pod.
    Act(Box<PodAction>),
}

/// Write a node's drain clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockAction {
    pub node: Arc<NodeView>,
    pub write: ClockWrite,
}

/// Do something to a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodAction {
    pub node: NodeName,
    pub node_uid: NodeUid,
    /// The clock by which the action fell due.
    pub clock: DrainClock,
    pub pod: Arc<PodView>,
    /// The budgets that select it.
    pub budgets: Vec<Arc<BudgetView>>,
    /// What says that an upgrade is on: the configured signal, and the objects behind it with their generation.
    pub signal: Arc<str>,
    /// The strategy that is carried out.
    pub strategy: Strategy,
    /// When it fell due.
    pub due: Timestamp,
    /// Whether it was held back by a limit, a hold or a budget's turn after it fell due, so that it comes later than
    /// its deadline by intent.
    pub was_held_back: bool,
}

/// Where the surge of a pod stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurgeStanding {
    pub node: NodeName,
    pub pod: PodKey,
    pub course: Course,
}

/// Something in the cluster that could not be read as it is meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// Stays the same while the warning does: one that has been reported need not be reported again.
    pub key: String,
    /// Of its Event.
    pub reason: &'static str,
    /// What is wrong, and what to do.
    pub text: String,
    /// The node whose drain it concerns.
    pub node: NodeName,
    pub node_uid: NodeUid,
    /// The pod that it is about, if not the whole node.
    pub pod: Option<(PodKey, PodUid)>,
}

/// Decides.
pub fn plan(snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> Plan {
    let mut planner = Planner {
        snapshot,
        policy,
        now,
        plan: Plan::default(),
        requeue_at: RequeueAt::after(now),
    };
    let mut nodes: Vec<NodeInPlan<'_>> = snapshot
        .nodes
        .iter()
        .filter(|node| node.concerns_drains())
        .map(|node| NodeInPlan {
            node,
            state: planner.evaluate_node(node),
        })
        .collect();
    let candidates = planner.evaluate_pods(&mut nodes);
    planner.admit_candidates(candidates, &mut nodes);
    for node in nodes {
        planner.add_verdict(node);
    }
    planner.finish()
}

/// A plan in the making.
struct Planner<'a> {
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    now: Timestamp,
    plan: Plan,
    requeue_at: RequeueAt,
}

impl<'a> Planner<'a> {
    /// The node's verdict, and the moments at which it could change.
    fn add_verdict(&mut self, NodeInPlan { node, state }: NodeInPlan<'a>) {
        let verdict = |gate, gate_detail, since, blockers, drain_failed| NodeVerdict {
            node: node.name.clone(),
            gate,
            gate_detail,
            since,
            blockers,
            drain_failed,
        };
        let verdict = match state {
            NodeState::Closed { gates } => {
                // A condition of another drain-keeper is not to be touched, and the report has to know of it.
                let is_others =
                    gates.reason == GateReason::NotSelected && node.condition(condition::DRAIN_BLOCKED).is_some();
                if !node.unschedulable && gates.cordon.is_none() && !is_others {
                    return;
                }
                verdict(gates.reason, gates.detail, None, Vec::new(), false)
            }
            NodeState::NotYet { reason, clock, detail } => {
                verdict(reason, detail, clock.map(|clock| clock.start), Vec::new(), false)
            }
            NodeState::Draining {
                clock, mut blockers, ..
            } => {
                blockers.sort_by(|a, b| a.pod.cmp(&b.pod));
                self.note_moments(&blockers);
                if let Some(history) = self.plan.node_history.get_mut(&node.uid) {
                    history.drained = blockers.is_empty();
                }
                let waits = self.policy.waits_for(node, &self.snapshot.pdb_force_drain_timeout);
                let failed_at = failed_drain::failed_at(&blockers, &clock, &waits);
                self.requeue_at.note(failed_at);
                let has_failed = failed_at.is_some_and(|at| at <= self.now);
                verdict(GateReason::Open, String::new(), Some(clock.start), blockers, has_failed)
            }
        };
        self.plan.verdicts.push(verdict);
    }

    fn note_moments(&mut self, blockers: &[Blocker]) {
        for blocker in blockers {
            match blocker.next {
                Next::At { due, .. } => self.requeue_at.note(due),
                Next::HeldBack { due, until, .. } => {
                    self.requeue_at.note(due);
                    self.requeue_at.note(until);
                    if due <= self.now {
                        self.plan.held_back.insert(blocker.uid.clone());
                    }
                }
                Next::Now { .. } | Next::Nothing => {}
            }
            self.requeue_at.note(blocker.grace_ends);
        }
    }

    fn finish(mut self) -> Plan {
        for attempt in self.snapshot.memory.attempts.values() {
            self.requeue_at.note(attempt.retry_at);
        }
        if !self.plan.held_back.is_empty() {
            self.requeue_at.note(self.snapshot.memory.next_act_at);
        }
        self.plan.requeue_at = self.requeue_at.at();
        self.plan
    }
}

#[cfg(test)]
pub(crate) mod tests;
