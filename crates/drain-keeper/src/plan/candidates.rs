//! The pods of draining nodes: which keep their drain from ending, and which are forced now.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::reason::{BlockerReason, DrainReason};
use nodeward_core::budget::BudgetView;
use nodeward_core::pod::PodView;
use nodeward_core::signal::upgrades_in_progress;
use nodeward_core::strategy::{Remedy, Strategy};
use nodeward_core::surge::Course;
use nodeward_core::verdict::{Blocker, Next};

use crate::snapshot::{Attempt, Outcome};

use super::budget_turn::Turns;
use super::limits::Limits;
use super::may_force::{Decision, Evidence, end_of_opt_outs, has_begun, ignored_opt_outs, may_force};
use super::node_state::{NodeInPlan, NodeState};
use super::{Action, Planner, PodAction, SurgeStanding, Warning, surge};

/// A pod whose strategy is due.
pub(super) struct Candidate {
    pub pod: Arc<PodView>,
    pub budgets: Vec<Arc<BudgetView>>,
    pub reason: BlockerReason,
    pub strategy: Strategy,
    pub due: Timestamp,
}

impl<'a> Planner<'a> {
    /// Judges the pods of draining nodes. Returns those whose strategy is due, with the index of their node.
    pub(super) fn evaluate_pods(&mut self, nodes: &mut [NodeInPlan<'a>]) -> Vec<(usize, Candidate)> {
        let mut candidates = Vec::new();
        let mut places = self.surge_places(nodes);
        let window_changes_at = self.policy.windows.changes_at(self.now);
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
                let is_for_pod = |_: &_| !has_begun(pod, &evidence);
                self.requeue_at.note(window_changes_at.filter(is_for_pod));
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
    pub(super) fn admit_candidates(&mut self, mut candidates: Vec<(usize, Candidate)>, nodes: &mut [NodeInPlan<'a>]) {
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
                    let mut blocker = candidate.blocker(candidate.reason, Next::Now { strategy, due }, String::new());
                    if self.snapshot.memory.failures(&candidate.pod) == 0 {
                        // Its turn may have come long after it was due: the drain has not failed by what is done only now.
                        blocker.last_due = Some(due.max(self.now));
                    }
                    blockers.push(blocker);
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
            Outcome::Sent | Outcome::Restarted | Outcome::NotSent => Blocker {
                last_due: attempt.asked_at.max(Some(due)),
                ..self.blocker(self.reason, Next::Now { strategy, due }, String::new())
            },
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
