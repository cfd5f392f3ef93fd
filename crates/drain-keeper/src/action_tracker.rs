//! What this process remembers between two plans, kept up from what actions came to. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::annotation;
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::{NodeUid, PodUid};
use nodeward_core::node::NodeView;
use nodeward_runtime::control::EXPECTATION_TIMEOUT;
use nodeward_runtime::{ActionResult, ApiError, Expectations, Stop, TokenBucket};

use crate::clock::{ClockWrite, NodeHistory};
use crate::execute::{Forced, PodResult};
use crate::plan::{ClockAction, Plan, PodAction};
use crate::snapshot::{Attempt, Memory, NodePods, Outcome, Overridden, Snapshot};

/// How long an attempt may be under way: a few requests, each with its own time limit.
const UNDER_WAY: SignedDuration = SignedDuration::from_mins(3);

/// How soon after a denial it is asked again.
const DENIED_AGAIN: SignedDuration = SignedDuration::from_mins(1);

/// How long a dry run keeps quiet about what it has said of an object that does not change.
const DRY_RUN_SILENCE: SignedDuration = SignedDuration::from_hours(1);

/// The memory, and what it is kept up with.
pub struct ActionTracker {
    memory: Memory,
    /// Clocks that were written, by the annotation that they replaced.
    clocks: Expectations<NodeUid, ClockWrite, Option<String>>,
    acts: TokenBucket,
    acts_per_minute: NonZeroU32,
    dry_run: bool,
    /// When it was last compared, by the wall clock.
    compared_at: Timestamp,
}

impl ActionTracker {
    /// Nothing remembered.
    pub fn nothing(acts_per_minute: NonZeroU32, dry_run: bool, now: Timestamp) -> Self {
        Self {
            memory: Memory {
                is_first_look: true,
                ..Memory::default()
            },
            clocks: Expectations::default(),
            acts: TokenBucket::per_minute(acts_per_minute, now),
            acts_per_minute,
            dry_run,
            compared_at: now,
        }
    }

    /// What was remembered is too old by the time this process leads again. What it sees of nodes it goes on seeing.
    pub fn on_leadership_lost(&mut self, now: Timestamp) {
        let history = std::mem::take(&mut self.memory.node_history);
        *self = Self::nothing(self.acts_per_minute, self.dry_run, now);
        self.memory.node_history = history;
        self.memory.is_first_look = false;
    }

    /// The memory as the next plan needs it.
    pub fn at(&mut self, acts_per_minute: NonZeroU32, now: Timestamp) -> &Memory {
        self.acts_per_minute = acts_per_minute;
        self.acts.set_rate(acts_per_minute, now);
        self.memory.acts_left = self.acts.available(now);
        self.memory.next_act_at = self.acts.next_at(now);
        &self.memory
    }

    /// Puts clocks that the watch does not show yet into the snapshot, and forgets what is gone.
    pub fn compare(&mut self, snapshot: &mut Snapshot, now: Timestamp) {
        // A wall clock that steps back would put off every retry by as much.
        if now < self.compared_at {
            let step = self.compared_at.duration_since(now);
            for attempt in self.memory.attempts.values_mut() {
                attempt.retry_at = saturating_add(attempt.retry_at, -step);
            }
        }
        self.compared_at = now;
        for node in &mut snapshot.nodes {
            let base = self.replaced(node);
            if let Some(write) = self.clocks.effective(&node.uid, &base, now) {
                *node = Arc::new(with_clock(node, write));
            }
        }
        let present: BTreeSet<&NodeUid> = snapshot.nodes.iter().map(|node| &node.uid).collect();
        self.clocks.retain(|uid| present.contains(uid));
        self.memory.node_history.retain(|uid, _| present.contains(uid));
        let all_synced = snapshot.pods.values().all(|pods| matches!(pods, NodePods::Synced(_)));
        if all_synced {
            let pods: BTreeSet<&PodUid> = snapshot.watched_pods().map(|pod| &pod.uid).collect();
            self.memory.attempts.retain(|uid, _| pods.contains(uid));
            self.memory.held_back.retain(|uid| pods.contains(uid));
        }
        snapshot.memory = self.memory.clone();
    }

    /// When the first clock that was written and never shown is no longer expected.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.clocks.next_expiry()
    }

    /// What a clock write replaces. A dry run goes on from its own writes, whatever stands there.
    fn replaced(&self, node: &NodeView) -> Option<String> {
        if self.dry_run {
            return None;
        }
        node.annotations.get(annotation::DRAIN_CLOCK).cloned()
    }

    /// What the plan has seen.
    pub fn planned(&mut self, plan: &Plan) {
        self.memory.is_first_look = false;
        self.memory.leads_since.get_or_insert(self.compared_at);
        self.memory.node_history.clone_from(&plan.node_history);
        self.memory.had_room.clone_from(&plan.had_room);
        self.memory.held_back.extend(plan.held_back.iter().cloned());
    }

    /// What a standby has seen.
    pub fn followed(&mut self, node_history: BTreeMap<NodeUid, NodeHistory>) {
        self.memory.node_history = node_history;
        self.memory.is_first_look = false;
        self.memory.leads_since = None;
    }

    /// Something is about to be done to a pod.
    pub fn started(&mut self, action: &PodAction, now: Timestamp) {
        let pod = &action.pod;
        if !action.strategy.remedy.is_about_deployment() {
            // The plan counted on this act; whether it takes place is known when it completes.
            let _ = self.acts.try_take(now);
        }
        let attempt = Attempt {
            resource_version: pod.resource_version.clone(),
            outcome: Outcome::Sent,
            retry_at: saturating_add(now, UNDER_WAY),
            ..self.last_attempt(&pod.uid)
        };
        self.memory.attempts.insert(pod.uid.clone(), attempt);
    }

    /// What stays known of a pod from one attempt to the next.
    fn last_attempt(&self, uid: &PodUid) -> Attempt {
        self.memory.attempts.get(uid).cloned().unwrap_or(Attempt {
            resource_version: "".into(),
            outcome: Outcome::NotSent,
            retry_at: Timestamp::MIN,
            failures: 0,
            was_refused_by_budget: false,
            asked_at: None,
        })
    }

    /// A clock was written, or not. A dry run goes on as if it had been.
    pub fn clock_completed(&mut self, action: &ClockAction, result: &ActionResult, now: Timestamp) {
        let (uid, base) = (action.node.uid.clone(), self.replaced(&action.node));
        match result {
            // Of a node that is gone nothing more is written until the watch shows it, or a while has passed.
            ActionResult::Acted(()) | ActionResult::AlreadyDone => {
                self.clocks.expect(uid, base, action.write.clone(), now);
            }
            ActionResult::Stopped(Stop::DryRun) => {
                self.clocks
                    .expect_until(uid, base, action.write.clone(), Timestamp::MAX);
            }
            _ => {}
        }
    }

    /// Something was done to a pod, or not. It is tried again at `retry_at`, after so many failures in a row.
    pub fn pod_completed(
        &mut self,
        action: &PodAction,
        result: &PodResult,
        retry_at: Timestamp,
        failures: u32,
        now: Timestamp,
    ) {
        let uid = action.pod.uid.clone();
        if !result.may_have_acted() && !action.strategy.remedy.is_about_deployment() {
            self.acts.give_back();
        }
        if let ActionResult::Acted(Forced::BudgetOverridden(budgets)) = result {
            for budget in budgets {
                let overridden = Overridden {
                    at: now,
                    pod: uid.clone(),
                };
                self.memory.overridden.insert(budget.clone(), overridden);
            }
        }
        let (outcome, retry_at) = match result {
            ActionResult::Acted(Forced::Restarted { .. } | Forced::RestartUndone(_)) => {
                (Outcome::Restarted, saturating_add(now, EXPECTATION_TIMEOUT))
            }
            ActionResult::Acted(_) | ActionResult::AlreadyDone => {
                (Outcome::Sent, saturating_add(now, EXPECTATION_TIMEOUT))
            }
            ActionResult::Stopped(Stop::DryRun) => (Outcome::NotSent, saturating_add(now, DRY_RUN_SILENCE)),
            ActionResult::Stopped(Stop::NotLeading) => {
                self.memory.attempts.remove(&uid);
                return;
            }
            ActionResult::Stopped(Stop::PolicyChanged | Stop::Unplanned | Stop::Paused) => (Outcome::NotSent, now),
            ActionResult::Stopped(stop @ Stop::PauseUnknown) => (Outcome::Failed(stop.to_string()), retry_at),
            ActionResult::Outdated(_) => (Outcome::NotSent, retry_at),
            ActionResult::Failed(ApiError::RefusedByBudget { .. }) => (Outcome::RefusedByBudget, retry_at),
            ActionResult::Failed(ApiError::NamespaceTerminating) => (Outcome::NamespaceTerminating, retry_at),
            // Only a person can change that: there is no hurry.
            ActionResult::Failed(
                error @ (ApiError::Denied { .. } | ApiError::Forbidden { .. } | ApiError::Unauthorized { .. }),
            ) => (
                Outcome::Denied(error.to_string()),
                retry_at.max(saturating_add(now, DENIED_AGAIN)),
            ),
            ActionResult::Failed(error @ ApiError::Throttled { .. }) => {
                (Outcome::Throttled(error.to_string()), retry_at)
            }
            ActionResult::Failed(error) => (Outcome::Failed(error.to_string()), retry_at),
        };
        let last = self.last_attempt(&uid);
        let has_asked = matches!(
            result,
            ActionResult::Acted(Forced::Evicted | Forced::BudgetOverridden(_))
        );
        let attempt = Attempt {
            resource_version: action.pod.resource_version.clone(),
            failures,
            was_refused_by_budget: last.was_refused_by_budget || outcome == Outcome::RefusedByBudget,
            asked_at: if has_asked { Some(now) } else { last.asked_at },
            outcome,
            retry_at,
        };
        self.memory.attempts.insert(uid, attempt);
    }
}

/// The node as it is once the write is there.
fn with_clock(node: &NodeView, write: &ClockWrite) -> NodeView {
    let (mut node, key) = (node.clone(), annotation::DRAIN_CLOCK);
    match write {
        ClockWrite::Set(clock) => node.annotations.insert(key.to_owned(), clock.to_string()),
        ClockWrite::Remove => node.annotations.remove(key),
    };
    node
}

#[cfg(test)]
mod tests;
