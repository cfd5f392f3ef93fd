//! The decision: from one [`Snapshot`], a [`Policy`] and the time to what is done, said and waited for. Pure.

pub mod budget_turn;
mod failed_drain;
mod limits;
pub mod may_force;
pub mod surge;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::drain_clock::{ClockSource, DrainClock};
use nodeward_api::reason::{BlockerReason, DrainReason, GateReason};
use nodeward_api::{annotation, condition};
use nodeward_core::budget::BudgetView;
use nodeward_core::deadline::{RequeueAt, saturating_add};
use nodeward_core::id::{NodeName, NodeUid, PodKey, PodUid};
use nodeward_core::node::NodeView;
use nodeward_core::pod::PodView;
use nodeward_core::signal::{NoteLevel, PdbForceDrainTimeout, upgrades_in_progress};
use nodeward_core::strategy::{Remedy, Strategy};
use nodeward_core::surge::Course;
use nodeward_core::verdict::{Blocker, Next, NodeVerdict};

use crate::clock::{self, ClockInput, ClockState, ClockWrite, NodeHistory};
use crate::gate::{self, Gates};
use crate::policy::Policy;
use crate::snapshot::{Attempt, NodePods, Outcome, Snapshot};

use self::budget_turn::Turns;
use self::limits::Limits;
use self::may_force::{Decision, Evidence, end_of_opt_outs, ignored_opt_outs, may_force};

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

/// A pod whose strategy is due.
struct Candidate {
    pod: Arc<PodView>,
    budgets: Vec<Arc<BudgetView>>,
    reason: BlockerReason,
    strategy: Strategy,
    due: Timestamp,
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

/// A node, and how it stands.
struct NodeInPlan<'a> {
    node: &'a Arc<NodeView>,
    state: NodeState<'a>,
}

/// How a node stands before its pods are looked at.
enum NodeState<'a> {
    /// Nothing is done on it.
    Closed { gates: Gates },
    /// A gate that comes after the clock keeps it, or its pods or its clock are not known yet.
    NotYet {
        reason: GateReason,
        clock: Option<DrainClock>,
        detail: String,
    },
    /// Its pods are judged.
    Draining {
        clock: DrainClock,
        pods: &'a [Arc<PodView>],
        blockers: Vec<Blocker>,
    },
}

impl<'a> Planner<'a> {
    /// Gates and clock of one node.
    fn evaluate_node(&mut self, node: &Arc<NodeView>) -> NodeState<'a> {
        let gates = gate::look(node, &self.snapshot.signals, &self.snapshot.drains, self.policy);
        self.collect_warnings(node, &gates);
        if node.is_being_deleted {
            self.plan.being_deleted.insert(node.name.clone());
        }
        if gates.are_open() {
            // Before the clock runs: the pods are known when the first deadline comes.
            self.plan.watch_pods.insert(node.name.clone());
        }
        let known = self.snapshot.memory.node_history.get(&node.uid);
        let mut before = known.copied().unwrap_or(NodeHistory {
            // It may have been parked until a moment ago: an open gate that is seen first opened just now.
            parked: self.snapshot.memory.is_first_look && gates.cordon.is_some(),
            ..NodeHistory::default()
        });
        let is_selected = gates.reason != GateReason::NotSelected;
        let is_ours = is_selected || before.was_selected;
        let recorded = if is_ours {
            self.recorded_clock(node, &gates, &mut before)
        } else {
            None
        };
        let input = ClockInput {
            recorded: recorded.as_ref(),
            cordon: gates.cordon,
            course: gates.course(),
            upgrade_since: gates.upgrade_since,
            boot_id: &node.boot_id,
        };
        if self.is_in_doubt(&gates, recorded.as_ref(), before) {
            let history = NodeHistory {
                in_doubt_since: before.in_doubt_since.or(Some(self.now)),
                ..before
            };
            self.plan.node_history.insert(node.uid.clone(), history);
            return NodeState::NotYet {
                reason: gates.reason,
                clock: recorded,
                detail: gates.detail,
            };
        }
        let mut history = before.and(&input, self.now);
        history.was_selected |= is_selected;
        if !is_selected && !history.was_selected {
            // What stands there is another drain-keeper's, or nobody's: only what was in scope before is cleaned up.
            self.plan.node_history.insert(node.uid.clone(), history);
            return NodeState::Closed { gates };
        }
        let state = match clock::evaluate(&input, before, self.policy.flap_tolerance, self.now) {
            ClockState::Stopped => {
                history.drained = false;
                if recorded.is_none() && node.annotations.contains_key(annotation::DRAIN_CLOCK) {
                    self.write_clock(node, ClockWrite::Remove);
                }
                NodeState::Closed { gates }
            }
            // An uncordon that may be a flap: the clock is kept, and nothing is done until that is known.
            ClockState::Interrupted(until) => {
                self.requeue_at.note(until);
                NodeState::Closed { gates }
            }
            ClockState::Write(write) => {
                // No deadline counts before the clock is in the cluster, where a restart and the standby find it.
                self.write_clock(node, write);
                if gates.are_open() {
                    NodeState::NotYet {
                        reason: GateReason::ClockStarting,
                        clock: None,
                        detail: gates.detail,
                    }
                } else {
                    NodeState::Closed { gates }
                }
            }
            ClockState::Suspended(clock) => {
                history.parked = false;
                history.began = Some(clock.resumed(self.now).start);
                self.warn_of_second_writer(node, &clock);
                NodeState::Closed { gates }
            }
            ClockState::Running(clock) => {
                history.parked = false;
                history.began = Some(clock.start);
                self.warn_of_second_writer(node, &clock);
                self.draining(node, clock, gates)
            }
        };
        self.plan.node_history.insert(node.uid.clone(), history);
        state
    }

    /// Whether the drain of a node whose clock runs is in doubt: the upgrade or the drain's mark says no, or cannot be told,
    /// and has not done so for longer than a flap may last. Nothing is done to its pods, and its drain is not interrupted.
    fn is_in_doubt(&mut self, gates: &Gates, recorded: Option<&DrainClock>, before: NodeHistory) -> bool {
        let runs = recorded.is_some_and(|clock| clock.uncordoned_at.is_none());
        let is_doubtful = match gates.reason {
            GateReason::UpgradeUnknown | GateReason::DrainUnknown => true,
            // A drain that has done its work ends with its mark.
            GateReason::NotUpgrading | GateReason::NotDraining => {
                !before.drained && !recorded.is_some_and(|clock| clock.ended)
            }
            _ => false,
        };
        if !is_doubtful || !runs {
            return false;
        }
        let until = saturating_add(before.in_doubt_since.unwrap_or(self.now), self.policy.flap_tolerance);
        self.requeue_at.note(until);
        self.now < until
    }

    /// A node whose clock runs.
    fn draining(&mut self, node: &NodeView, clock: DrainClock, gates: Gates) -> NodeState<'a> {
        let not_yet = |reason, clock, detail| NodeState::NotYet {
            reason,
            clock: Some(clock),
            detail,
        };
        if let Some((reason, detail)) = self.remediation(node) {
            return not_yet(reason, clock, detail);
        }
        match self.snapshot.pods.get(&node.name) {
            None | Some(NodePods::Syncing) => not_yet(GateReason::PodsSyncing, clock, gates.detail),
            Some(NodePods::Synced(pods)) => NodeState::Draining {
                clock,
                pods,
                blockers: Vec::new(),
            },
        }
    }

    /// What keeps drain-keeper off a node that somebody is remediating: whoever reboots it takes its pods with it.
    fn remediation(&mut self, node: &NodeView) -> Option<(GateReason, String)> {
        let (reason, detail) = match self.snapshot.remediations.of(&node.name, self.now) {
            Ok(None) => return None,
            Ok(Some(open)) => {
                self.requeue_at.note(open.until());
                (GateReason::UnderRemediation, open.to_string())
            }
            Err(why) => (GateReason::RemediationUnknown, why.to_owned()),
        };
        let text = format!("nothing is forced on it: the node {}: {detail}", reason.explanation());
        // The text names moments that change with each renewal, the key does not.
        self.warn(node, reason.as_str(), format!("{reason}/{}", node.name), text);
        Some((reason, detail))
    }

    fn write_clock(&mut self, node: &Arc<NodeView>, mut write: ClockWrite) {
        if let ClockWrite::Set(clock) = &mut write {
            clock.writer = self.snapshot.installation.as_deref().map(str::to_owned);
        }
        self.plan.actions.push(Action::WriteClock(ClockAction {
            node: Arc::clone(node),
            write,
        }));
    }

    fn recorded_clock(&mut self, node: &NodeView, gates: &Gates, before: &mut NodeHistory) -> Option<DrainClock> {
        match DrainClock::of(&node.annotations)? {
            Ok(clock) => {
                // A cordon or an upgrade from a clock ahead of ours is waited for.
                let cordoned_at = gates.cordon.and_then(|cordon| cordon.time_added);
                let latest = [Some(self.now), cordoned_at, gates.upgrade_since]
                    .into_iter()
                    .flatten()
                    .max();
                if Some(clock.start) <= latest {
                    return Some(clock);
                }
                // The cordon's time would make all of its deadlines past at once, where it had not begun with its cordon.
                before.parked |= clock.from != ClockSource::Taint;
                let text = format!(
                    "annotation {} begins in the future ({}) and does not count: the drain begins anew",
                    annotation::DRAIN_CLOCK,
                    clock.start
                );
                self.warn_unreadable(node, format!("drain-clock/{}", node.name), text);
                None
            }
            Err(error) => {
                // When it began nobody can tell, perhaps a moment ago on a node that had been parked for days.
                before.parked = true;
                let text = format!(
                    "annotation {} is not readable and does not count: the drain begins anew, now: {error}",
                    annotation::DRAIN_CLOCK
                );
                self.warn_unreadable(node, format!("drain-clock/{}", node.name), text);
                None
            }
        }
    }

    /// Another drain-keeper looks after the node, too: each forces by its own timetable.
    fn warn_of_second_writer(&mut self, node: &NodeView, clock: &DrainClock) {
        let own = self.snapshot.installation.as_deref();
        let Some((writer, own)) = clock.writer.as_deref().zip(own).filter(|(writer, own)| writer != own) else {
            return;
        };
        let reason = DrainReason::SecondWriter.as_str();
        let text = format!(
            "its drain clock was written by drain-keeper {writer}, and this is {own}: if both run, each forces its pods; give each \
             nodes of its own (nodeSelector), or uninstall one"
        );
        self.warn(node, reason, format!("{reason}/{}", node.name), text);
    }

    fn warn_unreadable(&mut self, node: &NodeView, key: String, text: String) {
        self.warn(node, DrainReason::Unreadable.as_str(), key, text);
    }

    fn warn(&mut self, node: &NodeView, reason: &'static str, key: String, text: String) {
        let (node, node_uid) = (node.name.clone(), node.uid.clone());
        let warning = Warning {
            key,
            reason,
            text,
            node,
            node_uid,
            pod: None,
        };
        self.plan.warnings.insert(warning);
    }

    fn collect_warnings(&mut self, node: &NodeView, gates: &Gates) {
        for note in gates.notes.iter().filter(|note| note.level == NoteLevel::Warning) {
            self.warn_unreadable(node, note.key.clone(), note.message.clone());
        }
        let (text, counts) = match &self.snapshot.pdb_force_drain_timeout {
            PdbForceDrainTimeout::Malformed(text) | PdbForceDrainTimeout::Missing(text) => {
                (text, "the configured pdbForceDrainTimeout counts")
            }
            PdbForceDrainTimeout::TooLong(text) => (text, "a hundred years count"),
            PdbForceDrainTimeout::NotSet | PdbForceDrainTimeout::Minutes(_) => return,
        };
        if gates.are_open() {
            let text = format!("{text}; {counts} instead");
            self.warn_unreadable(node, "PDBForceDrainTimeout".to_owned(), text);
        }
    }

    /// Judges the pods of draining nodes. Returns those whose strategy is due, with the index of their node.
    fn evaluate_pods(&mut self, nodes: &mut [NodeInPlan<'a>]) -> Vec<(usize, Candidate)> {
        let mut candidates = Vec::new();
        let mut places = self.surge_places(nodes);
        for (index, NodeInPlan { node, state }) in nodes.iter_mut().enumerate() {
            let NodeState::Draining { clock, pods, blockers } = state else {
                continue;
            };
            let waits = self.policy.waits_for(node, &self.snapshot.pdb_force_drain_timeout);
            let planned = self.snapshot.planned_for(node);
            let drain_rules = self.policy.signal.drain_rules(&self.snapshot.signals, node);
            for pod in *pods {
                let budgets: Vec<Arc<BudgetView>> = self.snapshot.budgets.matching(pod).into_iter().cloned().collect();
                let evidence = Evidence {
                    node,
                    clock,
                    budgets: &budgets,
                    holds: &self.snapshot.holds,
                    planned: planned.as_deref(),
                    drain_rules: &drain_rules,
                    without_opt_outs: &self.snapshot.without_opt_outs,
                    surge_namespaces: self.snapshot.surge_namespaces.as_ref(),
                    workloads: self
                        .snapshot
                        .workloads
                        .get(&pod.key.namespace)
                        .map(|workloads| &**workloads),
                    waits,
                    memory: &self.snapshot.memory,
                    policy: self.policy,
                };
                self.requeue_at.note(end_of_opt_outs(pod, &evidence));
                self.requeue_at.note(pod.opt_outs.changes_at());
                let ignored = ignored_opt_outs(pod, &evidence, self.now);
                if !ignored.is_empty() {
                    self.plan.warnings.insert(Warning {
                        key: format!("{}/{}", DrainReason::OptOutIgnored, pod.uid),
                        reason: DrainReason::OptOutIgnored.as_str(),
                        text: ignored.join("; "),
                        node: node.name.clone(),
                        node_uid: node.uid.clone(),
                        pod: Some((pod.key.clone(), pod.uid.clone())),
                    });
                }
                match self.ahead_of(may_force(pod, &evidence, self.now), pod, &evidence, &mut places) {
                    Decision::NoBlocker => {}
                    Decision::Blocked {
                        reason,
                        next,
                        detail,
                        last_due,
                    } => {
                        blockers.push(blocker(pod, &budgets, reason, next, detail, last_due));
                    }
                    Decision::Due { reason, strategy, due } => {
                        let candidate = Candidate {
                            pod: Arc::clone(pod),
                            budgets,
                            reason,
                            strategy,
                            due,
                        };
                        // One attempt at a time: it is under way, or its backoff is not over.
                        match self.snapshot.memory.attempt(pod, self.now) {
                            Some(attempt) => blockers.push(candidate.attempted(attempt)),
                            None => candidates.push((index, candidate)),
                        }
                    }
                }
            }
        }
        candidates
    }

    /// How many more surges may begin.
    fn surge_places(&self, nodes: &[NodeInPlan<'a>]) -> usize {
        let Some(surge) = &self.policy.surge else {
            return 0;
        };
        let pods = nodes.iter().flat_map(|node| match &node.state {
            NodeState::Draining { pods, .. } => *pods,
            NodeState::Closed { .. } | NodeState::NotYet { .. } => &[],
        });
        let is_under_way = |pod: &&Arc<PodView>| {
            let workloads = self
                .snapshot
                .workloads
                .get(&pod.key.namespace)
                .map(|workloads| &**workloads);
            surge::may_be_under_way(pod, workloads, self.now)
        };
        surge.parallel.saturating_sub(pods.filter(is_under_way).count())
    }

    /// What the surge of the pod makes of the decision about it, if it has one or may have.
    fn ahead_of(
        &mut self,
        ordinary: Decision,
        pod: &Arc<PodView>,
        evidence: &Evidence<'_>,
        places: &mut usize,
    ) -> Decision {
        if self.policy.surge.is_none() {
            return ordinary;
        }
        let has_room = evidence
            .budgets
            .iter()
            .all(|budget| budget.allowance(pod).is_available());
        let had_room = self.snapshot.memory.had_room.get(&pod.uid).copied();
        if let Some(at) = has_room.then_some(self.now).or(had_room) {
            self.plan.had_room.insert(pod.uid.clone(), at);
        }
        if !surge::needs_workloads(pod, &ordinary, evidence, self.now) {
            return ordinary;
        }
        self.plan.watch_workloads.insert(Arc::clone(&pod.key.namespace));
        if let Some(course) = surge::course_of(pod, evidence, self.now) {
            if let Course::Recorded(until) | Course::Rolls(until) = course {
                self.requeue_at.note(until);
            }
            let standing = SurgeStanding {
                node: evidence.node.name.clone(),
                pod: pod.key.clone(),
                course,
            };
            self.plan.surges.insert(pod.uid.clone(), standing);
        }
        let is_due = matches!(ordinary, Decision::Due { .. });
        let (decision, looked_at_again) = surge::ahead_of(ordinary, pod, evidence, *places > 0, self.now);
        self.requeue_at.note(looked_at_again);
        match &decision {
            Decision::Due { strategy, .. } if strategy.remedy == Remedy::Restart && pod.surge.record.is_none() => {
                *places = places.saturating_sub(1);
            }
            Decision::Blocked {
                reason: BlockerReason::Surging,
                ..
            } if is_due => {
                self.plan.held_back.insert(pod.uid.clone());
            }
            _ => {}
        }
        decision
    }

    /// Of the pods whose strategy is due, acts on those that limits and budgets allow, in order: not ready before ready,
    /// then the oldest deadline, then by name; but one that keeps failing lets the others go first. The others learn what
    /// holds them back.
    fn admit_candidates(&mut self, mut candidates: Vec<(usize, Candidate)>, nodes: &mut [NodeInPlan<'a>]) {
        if candidates.is_empty() {
            return;
        }
        let failures = |candidate: &Candidate| self.snapshot.memory.failures(&candidate.pod);
        candidates.sort_by_cached_key(|(_, candidate)| {
            (
                failures(candidate),
                candidate.pod.ready,
                candidate.due,
                candidate.pod.key.clone(),
            )
        });
        let mut limits = Limits::new(self.policy, self.snapshot, self.now);
        let signal: Arc<str> = self.signal_with_its_objects().into();
        let mut turns = Turns::new(self.snapshot, self.policy.override_spacing, self.now);
        for (index, candidate) in candidates {
            let NodeInPlan { node, state } = &mut nodes[index];
            let NodeState::Draining { clock, pods, blockers } = state else {
                continue;
            };
            // The limits come first, so that a pod that they hold back takes no turn of its budgets from another.
            let is_about_deployment = candidate.strategy.remedy.is_about_deployment();
            let allowed = if is_about_deployment {
                Ok(())
            } else {
                limits
                    .check(node, clock, pods)
                    .map_err(|wait| (BlockerReason::LimitReached, wait))
                    .and_then(|()| {
                        turns
                            .take(&candidate)
                            .map_err(|wait| (BlockerReason::BudgetInUse, wait))
                    })
            };
            let (strategy, due) = (candidate.strategy.name, candidate.due);
            match allowed {
                Ok(()) => {
                    if !is_about_deployment {
                        limits.take(node);
                    }
                    blockers.push(candidate.blocker(candidate.reason, Next::Now { strategy, due }, String::new()));
                    self.plan.actions.push(Action::Act(Box::new(PodAction {
                        node: node.name.clone(),
                        node_uid: node.uid.clone(),
                        clock: clock.clone(),
                        was_held_back: self.snapshot.memory.held_back.contains(&candidate.pod.uid),
                        pod: candidate.pod,
                        budgets: candidate.budgets,
                        signal: Arc::clone(&signal),
                        strategy: candidate.strategy,
                        due,
                    })));
                }
                Err((reason, wait)) => {
                    let next = Next::HeldBack {
                        strategy,
                        due,
                        until: wait.until,
                    };
                    blockers.push(candidate.blocker(reason, next, wait.detail));
                }
            }
        }
    }

    fn signal_with_its_objects(&self) -> String {
        let (spec, objects) = (self.policy.signal.spec(), upgrades_in_progress(&self.snapshot.signals));
        if objects.is_empty() {
            return spec.to_string();
        }
        format!("{spec}: {}", objects.join(", "))
    }

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

impl Candidate {
    fn blocker(&self, reason: BlockerReason, next: Next, detail: String) -> Blocker {
        blocker(&self.pod, &self.budgets, reason, next, detail, Some(self.due))
    }

    /// The verdict while the last attempt at it still counts.
    fn attempted(&self, attempt: &Attempt) -> Blocker {
        let (strategy, due) = (self.strategy.name, self.due);
        let held_back = Next::HeldBack {
            strategy,
            due,
            until: Some(attempt.retry_at),
        };
        match &attempt.outcome {
            Outcome::Sent | Outcome::Restarted | Outcome::NotSent => {
                self.blocker(self.reason, Next::Now { strategy, due }, String::new())
            }
            Outcome::RefusedByBudget => self.blocker(self.reason, held_back, String::new()),
            Outcome::NamespaceTerminating => {
                self.blocker(BlockerReason::NamespaceTerminating, held_back, String::new())
            }
            Outcome::Denied(error) => self.blocker(BlockerReason::Denied, held_back, error.clone()),
            Outcome::Throttled(error) => self.blocker(BlockerReason::Throttled, held_back, error.clone()),
            Outcome::Failed(error) => self.blocker(BlockerReason::Retrying, held_back, error.clone()),
        }
    }
}

fn blocker(
    pod: &PodView,
    budgets: &[Arc<BudgetView>],
    reason: BlockerReason,
    next: Next,
    detail: String,
    last_due: Option<Timestamp>,
) -> Blocker {
    Blocker {
        pod: pod.key.clone(),
        uid: pod.uid.clone(),
        reason,
        budgets: budgets.iter().map(|budget| budget.key.clone()).collect(),
        finalizers: pod.deletion.as_ref().map_or_else(Vec::new, |_| pod.finalizers.clone()),
        grace_ends: pod.deletion.as_ref().map(|deletion| deletion.deadline),
        detail,
        next,
        last_due,
    }
}

#[cfg(test)]
pub(crate) mod tests;
