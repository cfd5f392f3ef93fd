//! What this process remembers between two plans, kept up from what actions came to. No I/O.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::annotation;
use nodeward_core::deadline::later;
use nodeward_core::id::{NodeUid, PodUid};
use nodeward_core::node::NodeView;
use nodeward_runtime::{ApiError, BackoffPolicy, Backoffs, TokenBucket};

use crate::clock::ClockWrite;
use crate::execute::{self, Completion, PodCompletion, Started};
use crate::plan::Plan;
use crate::snapshot::{Attempt, Memory, NodePods, Outcome, Overridden, PendingWrite, Snapshot};

/// How long the watch is waited for to show what was done, before it is done again.
const UNTIL_SEEN: SignedDuration = SignedDuration::from_secs(10);

/// How long an attempt may be under way: a few requests, each with its own time limit.
const UNDER_WAY: SignedDuration = SignedDuration::from_mins(3);

/// How long a dry run keeps quiet about what it has said of an object that does not change.
const DRY_RUN_SILENCE: SignedDuration = SignedDuration::from_hours(1);

/// Delay after a first failure, and at most.
const BACKOFF: BackoffPolicy = BackoffPolicy {
    first: SignedDuration::from_secs(1),
    limit: SignedDuration::from_secs(60),
};

/// The memory, and what it is kept up with.
pub struct Remember {
    memory: Memory,
    pods: Backoffs<PodUid>,
    nodes: Backoffs<NodeUid>,
    acts: TokenBucket,
    dry_run: bool,
}

impl Remember {
    /// Nothing remembered.
    pub fn nothing(acts_per_minute: NonZeroU32, dry_run: bool, now: Timestamp) -> Self {
        Self {
            memory: Memory::default(),
            pods: Backoffs::new(BACKOFF),
            nodes: Backoffs::new(BACKOFF),
            acts: TokenBucket::per_minute(acts_per_minute, now),
            dry_run,
        }
    }

    /// The memory as the next plan needs it.
    pub fn at(&mut self, acts_per_minute: NonZeroU32, now: Timestamp) -> &Memory {
        self.acts.set_rate(acts_per_minute, now);
        self.memory.acts_left = self.acts.available(now);
        self.memory.next_act_at = self.acts.next_at(now);
        &self.memory
    }

    /// Takes the snapshot's word for what has come back through the watch, and forgets what is gone. In a dry run the
    /// clocks that would have been written are put into the snapshot instead.
    pub fn compare(&mut self, snapshot: &mut Snapshot) {
        if self.dry_run {
            self.overlay_clocks(snapshot);
        }
        let present: BTreeSet<&NodeUid> = snapshot.nodes.iter().map(|node| &node.uid).collect();
        self.memory.clock_writes.retain(|uid, _| present.contains(uid));
        self.memory.seen.retain(|uid, _| present.contains(uid));
        self.nodes.retain(|uid| present.contains(uid));
        for node in &snapshot.nodes {
            let is_seen = self
                .memory
                .clock_writes
                .get(&node.uid)
                .is_some_and(|pending| stands(&pending.write, node));
            if is_seen && !self.dry_run {
                self.memory.clock_writes.remove(&node.uid);
            }
        }
        let all_synced = snapshot.pods.values().all(|pods| matches!(pods, NodePods::Synced(_)));
        if all_synced {
            let pods: BTreeSet<&PodUid> = snapshot.watched_pods().map(|pod| &pod.uid).collect();
            self.memory.attempts.retain(|uid, _| pods.contains(uid));
            self.memory.held_back.retain(|uid| pods.contains(uid));
            self.pods.retain(|uid| pods.contains(uid));
        }
        snapshot.memory = self.memory.clone();
    }

    /// What the plan has seen.
    pub fn planned(&mut self, plan: &Plan) {
        self.memory.seen.clone_from(&plan.seen);
        self.memory.held_back.extend(plan.held_back.iter().cloned());
    }

    /// Something is on its way.
    pub fn started(&mut self, started: &Started, now: Timestamp) {
        match started {
            Started::Clock(action) => {
                // In a dry run the write stands from now on, in the overlay, and none is waited for.
                let until = if self.dry_run { now } else { later(now, UNTIL_SEEN) };
                let pending = PendingWrite {
                    write: action.write.clone(),
                    until,
                };
                self.memory.clock_writes.insert(action.node.uid.clone(), pending);
            }
            Started::Pod(uid, resource_version) => {
                // The plan counted on this act; whether it takes place is known when it completes.
                let _ = self.acts.try_take(now);
                let attempt = Attempt {
                    resource_version: resource_version.clone(),
                    outcome: Outcome::Sent,
                    retry_at: later(now, UNDER_WAY),
                    ..self.last_attempt(uid)
                };
                self.memory.attempts.insert(uid.clone(), attempt);
            }
        }
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

    /// How many attempts at a pod have failed in a row.
    pub fn failures(&self, pod: &PodUid) -> u32 {
        self.pods.attempts(pod)
    }

    /// Something has come to its end.
    pub fn completed(&mut self, completion: &Completion, now: Timestamp) {
        match completion {
            Completion::Clock(action, Ok(())) => self.nodes.succeeded(&action.node.uid),
            Completion::Clock(action, Err(refusal)) => {
                let uid = &action.node.uid;
                let until = self.nodes.failed(uid.clone(), now, refusal.retry_after());
                if let Some(pending) = self.memory.clock_writes.get_mut(uid) {
                    pending.until = until;
                }
                // A conflict is ordinary once or twice.
                if *refusal != ApiError::Conflict || self.nodes.attempts(uid) > 2 {
                    tracing::warn!(node = %action.node.name, %refusal, retry_at = %until, "drain clock not written");
                }
            }
            Completion::Pod(done) => self.pod_completed(done, now),
        }
    }

    fn pod_completed(&mut self, done: &PodCompletion, now: Timestamp) {
        use execute::Outcome as Done;
        let uid = done.action.pod.uid.clone();
        // A write whose answer was lost may have happened, and counts.
        let may_have_acted = match &done.outcome {
            Done::Failed(refusal) => refusal.is_ambiguous(),
            other => other.has_acted(),
        };
        if !may_have_acted {
            self.acts.give_back();
        }
        if let Done::BudgetOverridden(budgets) = &done.outcome {
            for budget in budgets {
                let overridden = Overridden {
                    at: now,
                    pod: uid.clone(),
                };
                self.memory.overridden.insert(budget.clone(), overridden);
            }
        }
        let (outcome, retry_at) = match &done.outcome {
            Done::Evicted | Done::BudgetOverridden(_) | Done::FinalizersRemoved(_) | Done::DeletedNow | Done::Gone => {
                self.pods.succeeded(&uid);
                (Outcome::Sent, later(now, UNTIL_SEEN))
            }
            Done::DryRun => (Outcome::NotSent, later(now, DRY_RUN_SILENCE)),
            Done::NotLeading => {
                self.memory.attempts.remove(&uid);
                return;
            }
            Done::RefusedByBudget(refusal) => (
                Outcome::RefusedByBudget,
                self.pods.failed(uid.clone(), now, refusal.retry_after),
            ),
            Done::NamespaceTerminating => (Outcome::NamespaceTerminating, self.pods.failed(uid.clone(), now, None)),
            Done::Outdated(_) => (Outcome::NotSent, self.pods.failed(uid.clone(), now, None)),
            Done::Failed(refusal) => (
                Outcome::Failed(refusal.to_string()),
                self.pods.failed(uid.clone(), now, refusal.retry_after()),
            ),
        };
        let last = self.last_attempt(&uid);
        let has_asked = matches!(done.outcome, Done::Evicted | Done::BudgetOverridden(_));
        let attempt = Attempt {
            resource_version: done.action.pod.resource_version.clone(),
            failures: self.pods.attempts(&uid),
            was_refused_by_budget: last.was_refused_by_budget || outcome == Outcome::RefusedByBudget,
            asked_at: if has_asked { Some(now) } else { last.asked_at },
            outcome,
            retry_at,
        };
        self.memory.attempts.insert(uid, attempt);
    }

    fn overlay_clocks(&self, snapshot: &mut Snapshot) {
        for node in &mut snapshot.nodes {
            let Some(pending) = self.memory.clock_writes.get(&node.uid) else {
                continue;
            };
            let mut overlaid = NodeView::clone(node);
            let annotations = &mut overlaid.annotations;
            match &pending.write {
                ClockWrite::Set(clock) => annotations.insert(annotation::DRAIN_CLOCK.to_owned(), clock.to_string()),
                ClockWrite::Remove => annotations.remove(annotation::DRAIN_CLOCK),
            };
            *node = Arc::new(overlaid);
        }
    }
}

/// Whether the node's annotation is what was to be written.
fn stands(write: &ClockWrite, node: &NodeView) -> bool {
    let recorded = node.annotations.get(annotation::DRAIN_CLOCK);
    match write {
        ClockWrite::Set(clock) => recorded.is_some_and(|text| *text == clock.to_string()),
        ClockWrite::Remove => recorded.is_none(),
    }
}

#[cfg(test)]
mod tests;
