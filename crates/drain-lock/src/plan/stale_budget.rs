//! Budgets whose status contradicts their pods, for Kubernetes to count anew.
//!
//! The disruption controller counts a budget's pods when the budget or one of its pods changes. It may miss a change: of
//! two budgets that select a pod it tells only the first (`getPdbForPod`), so that the second keeps an old count after the
//! first has been deleted, and refuses every eviction until something else moves. Any write to the budget makes it count.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::{RequeueAt, is_due, saturating_add};
use nodeward_core::id::BudgetKey;

use crate::snapshot::{BudgetEntry, Contradiction, Snapshot, StaleBudgets, Touched};

use super::{Action, Planner};

/// How long the same contradiction lasts before it is no mere delay of the disruption controller or of a watch.
const STALE_AFTER: SignedDuration = SignedDuration::from_secs(10);

/// The shortest time between two touches of one budget; doubled by each touch that does not help.
const TOUCH_INTERVAL: SignedDuration = SignedDuration::from_mins(1);

/// The longest.
const MAX_TOUCH_INTERVAL: SignedDuration = SignedDuration::from_mins(16);

/// One write of a budget's annotation `nodeward.dev/locked-by`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch {
    pub budget: BudgetKey,
    pub uid: Arc<str>,
    /// The annotation in a form that names the same nodes and differs from the one that is there.
    pub annotation: String,
}

impl Planner<'_> {
    /// Plans the touches of budgets that have contradicted their pods for too long.
    pub(super) fn touch_stale_budgets(&mut self) {
        let mut stale = self.memory.stale_budgets.clone();
        let due = touches(self.snapshot, &mut stale, self.now, &mut self.requeue_at);
        self.plan.actions.extend(due.into_iter().map(Action::Touch));
        self.plan.stale_budgets = stale;
    }
}

/// The touches that are due.
fn touches(snapshot: &Snapshot, stale: &mut StaleBudgets, now: Timestamp, requeue_at: &mut RequeueAt) -> Vec<Touch> {
    stale.contradictions = contradictions(snapshot, &stale.contradictions, now);
    let contradictions = &stale.contradictions;
    stale
        .touched
        .retain(|key, last| contradictions.contains_key(key) || !is_due(saturating_add(last.at, TOUCH_INTERVAL), now));
    let mut due = Vec::new();
    for (key, contradiction) in &stale.contradictions {
        let stale_at = saturating_add(contradiction.since, STALE_AFTER);
        let last = stale.touched.get(key);
        // The same contradiction as before the last touch: that one did not help.
        let in_vain = last.filter(|last| contradiction.since <= last.at);
        let interval = in_vain.map_or(TOUCH_INTERVAL, |last| last.interval);
        let touch_at = last.map_or(stale_at, |last| saturating_add(last.at, interval).max(stale_at));
        if !is_due(touch_at, now) {
            requeue_at.note(touch_at);
            continue;
        }
        let interval = in_vain.map_or(TOUCH_INTERVAL, |last| {
            last.interval.saturating_mul(2).min(MAX_TOUCH_INTERVAL)
        });
        requeue_at.note(saturating_add(now, interval));
        stale.touched.insert(key.clone(), Touched { at: now, interval });
        due.extend(snapshot.budgets.get(key).map(|budget| touch(key, budget)));
    }
    due
}

fn touch(key: &BudgetKey, budget: &BudgetEntry) -> Touch {
    let nodes = budget.locked_by.as_ref();
    Touch {
        budget: key.clone(),
        uid: Arc::clone(&budget.view.uid),
        annotation: nodes.map_or_else(String::new, |nodes| format!("{nodes},")),
    }
}

/// The contradictions that there are; one whose counts moved begins anew.
fn contradictions(
    snapshot: &Snapshot,
    before: &BTreeMap<BudgetKey, Contradiction>,
    now: Timestamp,
) -> BTreeMap<BudgetKey, Contradiction> {
    // A status that is behind its spec is being counted already.
    let current = snapshot.facts.iter().filter(|(_, facts)| facts.current);
    let contradictions = current.filter_map(|(key, facts)| {
        let status = &snapshot.budgets.get(key)?.view.status;
        if status.sync_failed {
            // Kubernetes says itself that it cannot count these pods, however often it is asked to.
            return None;
        }
        let told = status.current_healthy;
        let counted = i32::try_from(facts.healthy.len()).unwrap_or(i32::MAX);
        let is_same = |old: &&Contradiction| (old.told, old.counted) == (told, counted);
        let since = before.get(key).filter(is_same).map_or(now, |old| old.since);
        (told != counted).then(|| (key.clone(), Contradiction { told, counted, since }))
    });
    contradictions.collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Config;
    use crate::plan::plan;
    use crate::policy::Policy;
    use crate::snapshot::Memory;
    use crate::tests::fixture::{Cluster, budget, cordoned, now, pod};

    /// Budget `shop/web` with this status over two healthy pods.
    fn snapshot(status: Value) -> Snapshot {
        let pods = ["web-1", "web-2"].map(|name| pod(name, json!({})));
        Cluster::new([cordoned("n1")], pods)
            .budgets([budget("web", json!({ "status": status }))])
            .snapshot()
    }

    /// What a plan touches at that moment, and when the next is made at the latest.
    fn planned(memory: &mut Memory, snapshot: &Snapshot, now: Timestamp) -> (Vec<Touch>, Option<Timestamp>) {
        let policy = Policy::from_config(Config::default()).unwrap();
        let plan = plan(snapshot, memory, &policy, now);
        memory.stale_budgets = plan.stale_budgets;
        let touches = plan.actions.into_iter().filter_map(|action| match action {
            Action::Touch(touch) => Some(touch),
            _ => None,
        });
        (touches.collect(), plan.requeue_at)
    }

    /// At which seconds the budget is touched, by what its status says at which second.
    #[rstest]
    #[case::counts_that_agree(&[(0, 2), (20, 2)], &[])]
    #[case::lasting_contradiction(&[(0, 0), (9, 0), (10, 0), (20, 0)], &[10])]
    #[case::controller_that_catches_up(&[(0, 1), (5, 2), (10, 2), (15, 1)], &[])]
    #[case::counts_in_motion(&[(0, 0), (6, 1), (12, 0), (18, 1)], &[])]
    #[case::touch_that_does_not_help(&[(0, 0), (10, 0), (69, 0), (70, 0), (71, 0)], &[10, 70])]
    #[case::touches_that_never_help(
        &[(0, 0), (10, 0), (70, 0), (189, 0), (190, 0), (430, 0), (910, 0), (1870, 0), (2829, 0), (2830, 0)],
        &[10, 70, 190, 430, 910, 1870, 2830]
    )]
    #[case::contradiction_after_one_that_lasted(
        &[(0, 0), (10, 0), (70, 0), (71, 2), (120, 0), (129, 0), (130, 0), (190, 0)],
        &[10, 70, 130, 190]
    )]
    #[case::second_contradiction_within_a_minute(&[(0, 0), (10, 0), (11, 2), (20, 0), (31, 0), (69, 0), (70, 0)], &[10, 70])]
    fn lasting_contradiction_is_touched_less_and_less_often(#[case] told: &[(i64, i32)], #[case] touched: &[i64]) {
        let mut memory = Memory::default();
        let mut seen = Vec::new();
        for (second, healthy) in told {
            let at = saturating_add(now(), SignedDuration::from_secs(*second));
            let (due, _) = planned(&mut memory, &snapshot(json!({ "currentHealthy": healthy })), at);
            seen.extend(due.iter().map(|_| *second));
        }
        assert_eq!(seen, touched);
    }

    #[test]
    fn the_next_plan_is_when_a_touch_falls_due() {
        let mut memory = Memory::default();
        let stale = snapshot(json!({ "currentHealthy": 0 }));
        let ten = saturating_add(now(), STALE_AFTER);
        assert_eq!(planned(&mut memory, &stale, now()), (Vec::new(), Some(ten)));
        let (due, next) = planned(&mut memory, &stale, ten);
        let budgets: Vec<_> = due.into_iter().map(|touch| touch.budget).collect();
        assert_eq!(budgets, [BudgetKey::new("shop", "web")]);
        assert_eq!(next, Some(saturating_add(ten, TOUCH_INTERVAL)));
    }

    #[test]
    fn outdated_status_is_left_to_its_controller() {
        let behind = snapshot(json!({ "currentHealthy": 0, "observedGeneration": 0 }));
        let mut memory = Memory::default();
        planned(&mut memory, &behind, now());
        let later_on = saturating_add(now(), STALE_AFTER);
        assert_eq!(planned(&mut memory, &behind, later_on), (Vec::new(), None));
    }

    #[rstest]
    #[case::counted("SufficientPods", "True", 1)]
    #[case::not_countable("SyncFailed", "False", 0)]
    fn budget_that_cannot_be_counted_is_not_touched(
        #[case] reason: &str,
        #[case] allowed: &str,
        #[case] touches: usize,
    ) {
        let condition = json!({
            "type": "DisruptionAllowed", "status": allowed, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T11:00:00Z",
        });
        let stale = snapshot(json!({ "currentHealthy": 0, "conditions": [condition] }));
        let mut memory = Memory::default();
        planned(&mut memory, &stale, now());
        let (due, _) = planned(&mut memory, &stale, saturating_add(now(), STALE_AFTER));
        assert_eq!(due.len(), touches);
    }

    #[rstest]
    #[case::absent(None, "")]
    #[case::present(Some("n1,n2"), "n1,n2,")]
    fn a_touch_changes_the_annotation(#[case] present: Option<&str>, #[case] written: &str) {
        let patch = json!({
            "metadata": { "annotations": present.map(|nodes| json!({ nodeward_api::annotation::LOCKED_BY: nodes })) },
            "status": { "currentHealthy": 0 },
        });
        let pods = [pod("web-1", json!({}))];
        let stale = Cluster::new([cordoned("n1")], pods)
            .budgets([budget("web", patch)])
            .snapshot();
        let mut memory = Memory::default();
        planned(&mut memory, &stale, now());
        let (due, _) = planned(&mut memory, &stale, saturating_add(now(), STALE_AFTER));
        assert_eq!(due.first().map(|touch| touch.annotation.as_str()), Some(written));
    }
}
