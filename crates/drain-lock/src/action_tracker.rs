//! What this process remembers between two plans, kept up from what actions came to. No I/O. Losing it costs time, never
//! safety: what safety rests on is read from the API.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::planned_at::STALE_AFTER;
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::{NodeUid, PodUid};
use nodeward_core::ledger::Leaderless;
use nodeward_runtime::control::EXPECTATION_TIMEOUT;
use nodeward_runtime::pause::PastPause;
use nodeward_runtime::{ActionResult, ApiError, BackoffPolicy, Backoffs, LeaderState, Stop};

use crate::execute::{Eviction, TaskKey, TaskOutcome};
use crate::plan::Plan;
use crate::snapshot::{Memory, WriteTarget};

/// How long an eviction may be under way: one request with its own time limit.
const UNDER_WAY: SignedDuration = SignedDuration::from_mins(2);

/// How long a namespace of node leases that is not there is not looked for again.
const NO_LEASES_FOR: SignedDuration = SignedDuration::from_mins(10);

/// A failure that was not repeated for so long is forgotten: what it was about is gone, or fine.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// Delay after a first failure, and at most.
pub const BACKOFF: BackoffPolicy = BackoffPolicy {
    first: SignedDuration::from_millis(500),
    limit: SignedDuration::from_secs(30),
};

/// Delay after a grant that fresh reads refused, and at most: a watch tells of most changes before.
const GRANT_BACKOFF: BackoffPolicy = BackoffPolicy {
    first: SignedDuration::from_millis(200),
    limit: SignedDuration::from_secs(5),
};

/// How often the owners of a budget's pods are asked for their scale, while a pod is down that they may no longer want.
const SCALE_READ_EVERY: SignedDuration = SignedDuration::from_mins(1);

/// How long after a movable pod was last seen its replacement is awaited.
const REPLACED_WITHIN: SignedDuration = SignedDuration::from_secs(3);

/// The memory, and what it is kept up with.
pub struct ActionTracker {
    memory: Memory,
    pods: Backoffs<PodUid>,
    grants: Backoffs<NodeUid>,
    /// Claims whose changes rest on reads.
    claims: Backoffs<NodeUid>,
    /// When it was last asked, by the wall clock.
    asked_at: Option<Timestamp>,
    /// When the ledger was last as a plan of this term had it.
    planned_until: Option<Timestamp>,
}

impl ActionTracker {
    /// Nothing remembered.
    pub fn nothing() -> Self {
        Self {
            memory: Memory::default(),
            pods: Backoffs::new(BACKOFF),
            grants: Backoffs::new(GRANT_BACKOFF),
            claims: Backoffs::new(BACKOFF),
            asked_at: None,
            planned_until: None,
        }
    }

    /// The memory as the next plan needs it; what has passed is forgotten.
    pub fn at(&mut self, now: Timestamp) -> &Memory {
        // A wall clock that steps back would leave pods, and claims, alone for as much longer.
        if let Some(before) = self.asked_at.replace(now).filter(|before| now < *before) {
            self.memory.step_back(before.duration_since(now));
        }
        let idle = saturating_add(now, -FORGOTTEN_AFTER);
        self.pods.forget_idle_since(idle);
        self.grants.forget_idle_since(idle);
        self.claims.forget_idle_since(idle);
        self.memory.forget_past(now);
        self.memory.first_plan_at.get_or_insert(now);
        &self.memory
    }

    /// Keeps what the next plan has to know of this one: pods that are on their way out, or that a drain goes on without, and
    /// budgets whose status contradicts their pods.
    pub fn planned(&mut self, plan: &mut Plan, now: Timestamp) {
        let departing = std::mem::take(&mut plan.departing);
        self.memory
            .note_departing(departing, saturating_add(now, REPLACED_WITHIN));
        self.memory.leaving = std::mem::take(&mut plan.leaving);
        self.memory.to_be_down = std::mem::take(&mut plan.to_be_down);
        self.memory.obstructed = std::mem::take(&mut plan.obstructed);
        self.memory.stale_budgets = std::mem::take(&mut plan.stale_budgets);
        let is_planned = |target: &WriteTarget| match target {
            WriteTarget::Ledger => true,
            WriteTarget::Node(node) => plan.writes_node(node),
        };
        self.memory.refused_writes.retain(|target, _| is_planned(target));
    }

    /// Notes for how long nobody planned: before this process led, while it could not, and while it was paused. A failover is
    /// over before anything else happens.
    pub fn leads(&mut self, leader: LeaderState, last_pause: Option<PastPause>, now: Timestamp) {
        let LeaderState::Leading {
            since, leaderless_for, ..
        } = leader
        else {
            return;
        };
        let before_it_led = || since.checked_sub(leaderless_for).unwrap_or(Timestamp::MIN);
        let from = self.planned_until.unwrap_or_else(before_it_led);
        // In whole minutes, or each pass that cannot write the ledger would put off the deadlines in all statuses.
        let minutes = now.duration_since(from).as_mins().saturating_add(1);
        let unplanned = Leaderless {
            from,
            to: saturating_add(from, SignedDuration::from_mins(minutes)),
        };
        let is_long = |from: Timestamp, to: Timestamp| {
            Duration::try_from(to.duration_since(from)).is_ok_and(|time| time >= STALE_AFTER)
        };
        let paused = last_pause.map(|PastPause { from, to }| Leaderless { from, to });
        let paused = paused.filter(|time| is_long(time.from, time.to));
        let unplanned = Some(unplanned).filter(|_| is_long(from, now));
        self.memory.leaderless = [unplanned, paused].into_iter().flatten().collect();
    }

    /// The ledger is as the plan of this leader has it.
    pub fn settled(&mut self, now: Timestamp) {
        self.planned_until = Some(now);
    }

    /// Evictions are on their way.
    pub fn started(&mut self, evictions: &[PodUid], now: Timestamp) {
        for pod in evictions {
            self.memory
                .note_eviction(pod.clone(), true, saturating_add(now, UNDER_WAY));
        }
    }

    /// Something has come to its end.
    pub fn completed(&mut self, key: &TaskKey, outcome: &TaskOutcome, now: Timestamp) {
        self.note_refusal(key, &outcome.done);
        for Eviction { pod, done, .. } in &outcome.evictions {
            match (key, done) {
                // As it is meant: the next attempt does not wait for longer if the budget lets the pod go by then.
                (TaskKey::Owner(_), ActionResult::Failed(_)) => self.memory.note_owner_asked(pod.uid.clone(), now),
                _ => self.evicted(&pod.uid, done, now),
            }
        }
        for (node, obstacles) in &outcome.refused_grants {
            let not_before = self.grants.failed(node.clone(), now, None);
            self.memory
                .note_refused_grant(node.clone(), obstacles.clone(), not_before);
        }
        for (node, why) in &outcome.doubted {
            let not_before = self.claims.failed(node.clone(), now, None);
            self.memory.note_doubted(node.clone(), why.clone(), not_before);
        }
        for budget in &outcome.scales_read {
            self.memory
                .note_scale_read(budget.clone(), saturating_add(now, SCALE_READ_EVERY));
        }
        for node in &outcome.checked {
            self.claims.succeeded(node);
        }
        for node in &outcome.granted {
            self.grants.succeeded(node);
            self.memory.note_grant(node);
        }
        if outcome.leases_absent {
            self.memory.leases_absent_until = Some(saturating_add(now, NO_LEASES_FOR));
        }
    }

    /// Notes a refusal that does not pass by itself, until the write is done.
    fn note_refusal(&mut self, key: &TaskKey, done: &ActionResult) {
        let target = match key {
            TaskKey::Ledger => WriteTarget::Ledger,
            TaskKey::Node(node) => WriteTarget::Node(node.clone()),
            _ => return,
        };
        let refused = &mut self.memory.refused_writes;
        match done {
            ActionResult::Failed(
                refusal @ (ApiError::Denied { .. } | ApiError::Forbidden { .. } | ApiError::Invalid { .. }),
            ) => {
                refused.insert(target, refusal.to_string());
            }
            ActionResult::Acted(()) | ActionResult::AlreadyDone => {
                refused.remove(&target);
            }
            ActionResult::Failed(_) | ActionResult::Outdated(_) | ActionResult::Stopped(_) => {}
        }
    }

    fn evicted(&mut self, pod: &PodUid, done: &ActionResult, now: Timestamp) {
        let (may_have_gone, not_before) = match done {
            ActionResult::Acted(()) | ActionResult::AlreadyDone => {
                self.pods.succeeded(pod);
                (true, saturating_add(now, EXPECTATION_TIMEOUT))
            }
            ActionResult::Outdated(_) | ActionResult::Stopped(Stop::PauseUnknown) => {
                (false, self.pods.failed(pod.clone(), now, None))
            }
            ActionResult::Stopped(_) => (false, now),
            ActionResult::Failed(refusal) => {
                let until = self.pods.failed(pod.clone(), now, refusal.retry_after());
                (refusal.is_ambiguous(), until)
            }
        };
        self.memory.note_eviction(pod.clone(), may_have_gone, not_before);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::tests::fixture::{Cluster, node, now, pod};

    fn second(seconds: i64) -> Timestamp {
        saturating_add(now(), SignedDuration::from_secs(seconds))
    }

    /// From and to, in seconds from now on.
    fn kept_times(tracker: &mut ActionTracker) -> Vec<(i64, i64)> {
        let since = |time: Timestamp| time.duration_since(now()).as_secs();
        let times = tracker.at(now()).leaderless.iter();
        times.map(|time| (since(time.from), since(time.to))).collect()
    }

    fn leads_since_now(leaderless_for: Duration) -> LeaderState {
        LeaderState::Leading {
            since: now(),
            unrenewed_for: Duration::ZERO,
            leaderless_for,
        }
    }

    #[rstest]
    #[case::failover(30, &[])]
    #[case::outage(600, &[(-600, 60)])]
    fn long_time_before_a_term_is_kept(#[case] seconds: u64, #[case] kept: &[(i64, i64)]) {
        let mut tracker = ActionTracker::nothing();
        tracker.leads(LeaderState::Following, None, now());
        assert_eq!(kept_times(&mut tracker), []);
        tracker.leads(leads_since_now(Duration::from_secs(seconds)), None, now());
        assert_eq!(kept_times(&mut tracker), kept);
    }

    #[rstest]
    #[case::short(30, &[])]
    #[case::long(600, &[(-600, 0)])]
    fn long_pause_is_kept(#[case] seconds: i64, #[case] kept: &[(i64, i64)]) {
        let mut tracker = ActionTracker::nothing();
        let pause = PastPause {
            from: second(-seconds),
            to: now(),
        };
        tracker.leads(leads_since_now(Duration::ZERO), Some(pause), now());
        assert_eq!(kept_times(&mut tracker), kept);
    }

    /// It leads for ten minutes and cannot write its ledger, or is paused.
    #[rstest]
    #[case::just_begun(119, &[])]
    #[case::long(120, &[(0, 180)])]
    #[case::a_pass_later(150, &[(0, 180)])]
    #[case::a_minute_later(180, &[(0, 240)])]
    fn time_in_which_a_leader_cannot_plan_is_kept(#[case] seconds: i64, #[case] kept: &[(i64, i64)]) {
        let mut tracker = ActionTracker::nothing();
        let leader = leads_since_now(Duration::from_secs(20));
        tracker.settled(now());
        tracker.leads(leader, None, second(seconds));
        assert_eq!(kept_times(&mut tracker), kept);
        tracker.settled(second(seconds));
        tracker.leads(leader, None, second(seconds + 30));
        assert_eq!(kept_times(&mut tracker), [], "it can again");
    }

    #[rstest]
    #[case::denied(ActionResult::Failed(ApiError::Denied { message: "no".to_owned() }), true)]
    #[case::forbidden(ActionResult::Failed(ApiError::Forbidden { message: "no".to_owned() }), true)]
    #[case::lost(ActionResult::Failed(ApiError::Timeout), false)]
    #[case::outdated(ActionResult::Outdated("changed".to_owned()), false)]
    fn refusal_is_kept_until_the_write_is_done(#[case] done: ActionResult, #[case] kept: bool) {
        let mut tracker = ActionTracker::nothing();
        tracker.completed(&TaskKey::Ledger, &done.into(), now());
        assert_eq!(
            tracker.at(now()).refused_writes.contains_key(&WriteTarget::Ledger),
            kept
        );
        tracker.completed(&TaskKey::Ledger, &ActionResult::Acted(()).into(), now());
        assert!(tracker.at(now()).refused_writes.is_empty());
    }

    /// Once its budget lets the pod go, nothing keeps it from that.
    #[test]
    fn owner_that_was_asked_has_a_minute() {
        let snapshot = Cluster::new([node("n1", json!({}))], [pod("a", json!({}))]).snapshot();
        let pod = snapshot.pod("a").clone();
        let refused = ApiError::RefusedByBudget { retry_after: None };
        let outcome = TaskOutcome {
            evictions: vec![Eviction {
                pod,
                node: "n1".into(),
                done: ActionResult::Failed(refused),
            }],
            ..ActionResult::Acted(()).into()
        };
        let mut tracker = ActionTracker::nothing();
        tracker.completed(&TaskKey::Owner("uid-a".into()), &outcome, now());
        let is_to_be_asked = |seconds| tracker.memory.is_owner_to_be_asked(&"uid-a".into(), second(seconds));
        assert_eq!(
            [is_to_be_asked(0), is_to_be_asked(59), is_to_be_asked(60)],
            [false, false, true]
        );
        assert_eq!(tracker.memory.not_before(&"uid-a".into(), now()), None);
        assert_eq!(tracker.memory.next_attempt(now()), Some(second(60)));
    }

    #[test]
    fn clock_that_steps_back_makes_no_time_without_plans() {
        let mut tracker = ActionTracker::nothing();
        tracker.settled(now());
        tracker.leads(leads_since_now(Duration::ZERO), None, second(-3600));
        assert_eq!(kept_times(&mut tracker), []);
    }

    #[test]
    fn clock_that_steps_back_parks_no_claim() {
        let mut tracker = ActionTracker::nothing();
        tracker.at(now());
        let doubted = TaskOutcome {
            doubted: vec![("uid-n1".into(), "a read failed".to_owned())],
            ..ActionResult::Acted(()).into()
        };
        tracker.completed(&TaskKey::Ledger, &doubted, now());
        let back = saturating_add(now(), -SignedDuration::from_hours(1));
        assert_eq!(
            tracker.at(back).doubted(back).count(),
            1,
            "it is not tried at once either"
        );
        let later = saturating_add(back, BACKOFF.first);
        assert_eq!(tracker.at(later).doubted(later).count(), 0);
    }
}
