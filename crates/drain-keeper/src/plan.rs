//! The decision: from one [`Snapshot`], a [`Policy`] and the time to what is done, said and waited for. Pure.

mod failed_drain;
mod limits;
mod pod;
pub mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::annotation;
use nodeward_api::drain_clock::DrainClock;
use nodeward_api::reason::{BlockerReason, GateReason};
use nodeward_core::deadline::NextWake;
use nodeward_core::id::{NodeName, NodeUid, PodUid};
use nodeward_core::node::{DrainingNode, NodeView, Taint};
use nodeward_core::pod::PodView;
use nodeward_core::signal::{NoteLevel, PdbForceDrainTimeout, pdb_force_drain_timeout};
use nodeward_core::strategy::{Remedy, StrategyName};
use nodeward_core::verdict::{Blocker, Next, NodeVerdict};

use crate::clock::{self, ClockWrite, Reading, Seen, Sight};
use crate::gate::{self, Gates};
use crate::policy::Policy;
use crate::snapshot::{NodePods, Snapshot};

use self::limits::Limits;
use self::pod::{Candidate, DrainOfNode, Standing};
use self::turn::Turns;

/// What follows from a [`Snapshot`].
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// What is to be done, each on its own.
    pub actions: Vec<Action>,
    /// By node, what stands between it and the end of its drain. Only nodes that are cordoned have one.
    pub verdicts: Vec<NodeVerdict>,
    /// Nodes whose pods have to be watched.
    pub watch_pods: BTreeSet<NodeName>,
    /// What has now been seen, for the next plan.
    pub seen: BTreeMap<NodeUid, Seen>,
    /// Pods that are held back although their strategy is due, so that what comes late by intent is told from what is late.
    pub held_back: BTreeSet<PodUid>,
    /// Annotations and the like that could not be read, each said once.
    pub oddities: BTreeSet<Oddity>,
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
    /// The node.
    pub node: Arc<NodeView>,
    /// What to write.
    pub write: ClockWrite,
}

/// Do something to a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodAction {
    /// The pod's node.
    pub node: NodeName,
    /// UID of that node.
    pub node_uid: NodeUid,
    /// The clock by which the action fell due.
    pub clock: DrainClock,
    /// The pod.
    pub pod: Arc<PodView>,
    /// The strategy that is carried out.
    pub strategy: StrategyName,
    /// What it does.
    pub remedy: Remedy,
    /// When it fell due.
    pub due: Timestamp,
    /// Whether it was held back by a limit, a hold or a budget's turn after it fell due, so that it comes later than
    /// its deadline by intent.
    pub was_held_back: bool,
}

/// Something in the cluster that could not be read as it is meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Oddity {
    /// Stays the same while the oddity does: one that has been reported need not be reported again.
    pub key: String,
    /// What is wrong, and what to do.
    pub text: String,
    /// The node whose drain it concerns.
    pub node: NodeName,
    /// UID of that node.
    pub node_uid: NodeUid,
}

impl Oddity {
    fn new(node: &NodeView, key: String, text: String) -> Self {
        Self { key, text, node: node.name.clone(), node_uid: node.uid.clone() }
    }
}

/// Decides.
pub fn plan(snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let mut wake = NextWake::after(now);
    let mut candidates = Vec::new();
    let mut nodes = Vec::new();
    for node in &snapshot.nodes {
        let Some(details) = node.drain.as_deref() else { continue };
        let standing = stand(node, details, snapshot, policy, now, &mut plan, &mut wake);
        nodes.push((node, details, standing));
    }
    for (index, (node, details, standing)) in nodes.iter_mut().enumerate() {
        if let NodeStanding::Draining { clock, pods, blockers } = standing {
            let drain = DrainOfNode::new(node, details, clock, snapshot, policy, now);
            for pod in pods.iter() {
                match drain.standing(pod) {
                    Standing::NoBlocker => {}
                    Standing::Blocker(blocker) => blockers.push(blocker),
                    Standing::Candidate(candidate) => candidates.push((index, candidate)),
                }
            }
        }
    }
    let decided = act_on_candidates(candidates, &nodes, snapshot, policy, now, &mut plan.actions);
    for (index, blocker) in decided {
        if let NodeStanding::Draining { blockers, .. } = &mut nodes[index].2 {
            blockers.push(blocker);
        }
    }
    for (node, details, standing) in nodes {
        conclude(node, details, standing, snapshot, policy, now, &mut plan, &mut wake);
    }
    if let Some(at) = snapshot.memory.next_act_at {
        wake.note(at);
    }
    plan.requeue_at = wake.at();
    plan
}

/// How a node stands before its pods are looked at.
enum NodeStanding<'a> {
    /// Nothing is done on it.
    Closed { gates: Gates },
    /// A gate that comes after the clock keeps it, or its pods or its clock are not known yet.
    NotYet { reason: GateReason, clock: Option<DrainClock>, detail: String },
    /// Its pods are judged.
    Draining { clock: DrainClock, pods: &'a [Arc<PodView>], blockers: Vec<Blocker> },
}

/// Gates and clock of one node.
fn stand<'a>(
    node: &Arc<NodeView>,
    details: &DrainingNode,
    snapshot: &'a Snapshot,
    policy: &Policy,
    now: Timestamp,
    plan: &mut Plan,
    wake: &mut NextWake,
) -> NodeStanding<'a> {
    let gates = gate::look(node, details, snapshot, policy);
    for note in gates.notes.iter().filter(|note| note.level == NoteLevel::Warning) {
        plan.oddities.insert(Oddity::new(node, note.key.clone(), note.message.clone()));
    }
    if gates.are_open() {
        plan.watch_pods.insert(node.name.clone());
        if let PdbForceDrainTimeout::Malformed(text) | PdbForceDrainTimeout::Missing(text) =
            pdb_force_drain_timeout(&snapshot.signals)
        {
            let text = format!("{text}; the configured pdbForceDrainTimeout counts instead");
            plan.oddities.insert(Oddity::new(node, "PDBForceDrainTimeout".to_owned(), text));
        }
    }
    let recorded = recorded_clock(node, details, plan);
    let sight = Sight {
        recorded: recorded.as_ref(),
        cordon: gates.cordon,
        gates_open: gates.are_open(),
        upgrade_since: gates.upgrade_since,
        boot_id: &details.boot_id,
    };
    let before = snapshot.memory.seen.get(&node.uid).copied().unwrap_or_default();
    let mut seen = before.and(&sight, now);
    let reading = clock::read(&sight, before, policy.flap_tolerance, now);
    let standing = match reading {
        Reading::Stopped => NodeStanding::Closed { gates },
        Reading::Interrupted(until) => {
            wake.note(until);
            NodeStanding::Closed { gates }
        }
        Reading::Write(write) => {
            if let Some(pending) = snapshot.memory.clock_writes.get(&node.uid).filter(|pending| now < pending.until) {
                wake.note(pending.until);
            } else {
                plan.actions.push(Action::WriteClock(ClockAction { node: Arc::clone(node), write }));
            }
            if gates.are_open() {
                NodeStanding::NotYet { reason: GateReason::ClockStarting, clock: None, detail: gates.detail }
            } else {
                NodeStanding::Closed { gates }
            }
        }
        Reading::Running(clock) => {
            seen.parked = false;
            draining(node, clock, gates, snapshot)
        }
    };
    plan.seen.insert(node.uid.clone(), seen);
    standing
}

/// A node whose clock runs.
fn draining<'a>(node: &NodeView, clock: DrainClock, gates: Gates, snapshot: &'a Snapshot) -> NodeStanding<'a> {
    let not_yet = |reason, clock| NodeStanding::NotYet { reason, clock: Some(clock), detail: gates.detail };
    if snapshot.remediations.contains(&node.name) {
        return not_yet(GateReason::UnderRemediation, clock);
    }
    match snapshot.pods.get(&node.name) {
        None | Some(NodePods::Syncing) => not_yet(GateReason::PodsSyncing, clock),
        Some(NodePods::Synced(pods)) => NodeStanding::Draining { clock, pods, blockers: Vec::new() },
    }
}

fn recorded_clock(node: &NodeView, details: &DrainingNode, plan: &mut Plan) -> Option<DrainClock> {
    let value = details.annotations.get(annotation::DRAIN_CLOCK)?;
    match DrainClock::parse(value) {
        Ok(clock) => Some(clock),
        Err(error) => {
            let text = format!("annotation {} is not readable and is written anew: {error}", annotation::DRAIN_CLOCK);
            plan.oddities.insert(Oddity::new(node, format!("drain-clock/{}", node.name), text));
            None
        }
    }
}

/// Of the pods whose strategy is due, those that may be acted on now, in order; the others learn what holds them back.
fn act_on_candidates(
    mut candidates: Vec<(usize, Candidate)>,
    nodes: &[(&Arc<NodeView>, &DrainingNode, NodeStanding<'_>)],
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
    actions: &mut Vec<Action>,
) -> Vec<(usize, Blocker)> {
    candidates.sort_by(|(_, a), (_, b)| {
        (a.pod.ready, a.due, &a.pod.key).cmp(&(b.pod.ready, b.due, &b.pod.key))
    });
    let mut limits = Limits::new(policy, snapshot, now);
    let mut turns = Turns::new(snapshot, policy.override_spacing, now);
    let mut decided = Vec::new();
    for (index, candidate) in candidates {
        let (node, details, standing) = &nodes[index];
        let NodeStanding::Draining { clock, pods, .. } = standing else { continue };
        let held_back = |reason, until, detail| candidate.blocker(reason, Next::HeldBack {
            strategy: candidate.strategy,
            due: candidate.due,
            until,
        }, detail);
        let blocker = if let Err(wait) = limits.check(node, details, clock, pods) {
            held_back(BlockerReason::LimitReached, wait.until, wait.detail)
        } else if let Err(wait) = turns.take(&candidate) {
            held_back(BlockerReason::BudgetInUse, wait.until, wait.detail)
        } else {
            limits.take(node);
            actions.push(Action::Act(Box::new(PodAction {
                node: node.name.clone(),
                node_uid: node.uid.clone(),
                clock: clock.clone(),
                pod: Arc::clone(&candidate.pod),
                strategy: candidate.strategy,
                remedy: candidate.remedy,
                due: candidate.due,
                was_held_back: snapshot.memory.held_back.contains(&candidate.pod.uid),
            })));
            let now = Next::Now { strategy: candidate.strategy, due: candidate.due };
            candidate.blocker(candidate.reason, now, String::new())
        };
        decided.push((index, blocker));
    }
    decided
}

/// The node's verdict, and the moments at which it could change.
fn conclude(
    node: &NodeView,
    details: &DrainingNode,
    standing: NodeStanding<'_>,
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
    plan: &mut Plan,
    wake: &mut NextWake,
) {
    let verdict = |gate, gate_detail, since, blockers, drain_failed| NodeVerdict {
        node: node.name.clone(),
        gate,
        gate_detail,
        since,
        blockers,
        drain_failed,
    };
    match standing {
        NodeStanding::Closed { gates } => {
            if details.unschedulable || gates.cordon.is_some() {
                plan.verdicts.push(verdict(gates.reason, gates.detail, None, Vec::new(), false));
            }
        }
        NodeStanding::NotYet { reason, clock, detail } => {
            plan.verdicts.push(verdict(reason, detail, clock.map(|c| c.start), Vec::new(), false));
        }
        NodeStanding::Draining { clock, mut blockers, .. } => {
            blockers.sort_by(|a, b| a.pod.cmp(&b.pod));
            for blocker in &blockers {
                match blocker.next {
                    Next::At { due, .. } => wake.note(due),
                    Next::HeldBack { until: Some(until), .. } => wake.note(until),
                    Next::HeldBack { until: None, .. } | Next::Now { .. } | Next::Nothing => {}
                }
                if let Some(ends) = blocker.grace_ends {
                    wake.note(ends);
                }
                if let Next::HeldBack { due, .. } = blocker.next
                    && due <= now
                {
                    plan.held_back.insert(blocker.uid.clone());
                }
            }
            if let Some(seen) = plan.seen.get_mut(&node.uid) {
                seen.drained = blockers.is_empty();
            }
            let failed_at = failed_drain::failed_at(&blockers, &clock, &policy.waits_for(details, &snapshot.signals));
            if let Some(at) = failed_at {
                wake.note(at);
            }
            let failed = failed_at.is_some_and(|at| at <= now);
            plan.verdicts.push(verdict(GateReason::Open, String::new(), Some(clock.start), blockers, failed));
        }
    }
}

/// The taint by which the node is cordoned, for predicates over tolerations.
pub(crate) fn cordon_of<'a>(details: &'a DrainingNode, policy: &Policy) -> Option<&'a Taint> {
    gate::cordon_taint(details, policy)
}

#[cfg(test)]
mod tests;
