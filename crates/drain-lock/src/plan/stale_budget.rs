//! Budgets whose status contradicts their pods, for Kubernetes to count anew.
//!
//! The disruption controller counts a budget's pods when the budget or one of its pods changes. It may miss a change: of
//! two budgets that select a pod it tells only the first (`getPdbForPod`), so that the second keeps an old count after the
//! first has been deleted, and refuses every eviction until something else moves. Any write to the budget makes it count.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::{NextWake, is_due, later};
use nodeward_core::id::BudgetKey;

use crate::snapshot::Snapshot;

/// How long the same contradiction lasts before it is no mere delay of the disruption controller or of a watch.
const STALE_AFTER: SignedDuration = SignedDuration::from_secs(10);

/// The shortest time between two touches of one budget.
const TOUCH_INTERVAL: SignedDuration = SignedDuration::from_mins(1);

/// Which counts differ, and since when.
#[derive(Debug, Clone, Copy)]
struct Contradiction {
    /// `status.currentHealthy`.
    told: i32,
    /// Healthy pods by the pod cache.
    counted: i32,
    since: Timestamp,
}

/// The contradictions that the leader sees, and the budgets that it touched in the last minute.
#[derive(Debug, Default)]
pub struct StaleBudgets {
    contradictions: BTreeMap<BudgetKey, Contradiction>,
    touched: BTreeMap<BudgetKey, Timestamp>,
}

impl StaleBudgets {
    /// The budgets to touch now, and when to look again.
    pub fn due(&mut self, snapshot: &Snapshot, now: Timestamp) -> (Vec<BudgetKey>, Option<Timestamp>) {
        self.observe(snapshot, now);
        self.touched.retain(|_, at| !is_due(later(*at, TOUCH_INTERVAL), now));
        let mut next = NextWake::after(now);
        let mut due = Vec::new();
        for (key, contradiction) in &self.contradictions {
            let stale_at = later(contradiction.since, STALE_AFTER);
            let may_touch_at = self.touched.get(key).map(|at| later(*at, TOUCH_INTERVAL));
            let touch_at = may_touch_at.map_or(stale_at, |at| at.max(stale_at));
            if is_due(touch_at, now) {
                due.push(key.clone());
                next.note(later(now, TOUCH_INTERVAL));
            } else {
                next.note(touch_at);
            }
        }
        self.touched.extend(due.iter().map(|key| (key.clone(), now)));
        (due, next.at())
    }

    /// Keeps the contradictions that are still the same; one whose counts moved begins anew.
    fn observe(&mut self, snapshot: &Snapshot, now: Timestamp) {
        let before = std::mem::take(&mut self.contradictions);
        // A status that is behind its spec is being counted already.
        for (key, facts) in snapshot.facts.iter().filter(|(_, facts)| facts.current) {
            let Some(budget) = snapshot.budgets.get(key) else {
                continue;
            };
            let told = budget.view.status.current_healthy;
            let counted = i32::try_from(facts.healthy.len()).unwrap_or(i32::MAX);
            if told == counted {
                continue;
            }
            let since = before
                .get(key)
                .filter(|old| (old.told, old.counted) == (told, counted))
                .map_or(now, |old| old.since);
            self.contradictions
                .insert(key.clone(), Contradiction { told, counted, since });
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::snapshot::fixture::{Cluster, budget, cordoned, now, pod};

    /// Budget `shop/web` with this status over two healthy pods.
    fn snapshot(status: Value) -> Snapshot {
        let pods = ["web-1", "web-2"].map(|name| pod(name, json!({})));
        Cluster::new([cordoned("n1")], pods)
            .budgets([budget("web", json!({ "status": status }))])
            .snapshot()
    }

    /// At which seconds the budget is touched, by what its status says at which second.
    #[rstest]
    #[case::counts_that_agree(&[(0, 2), (20, 2)], &[])]
    #[case::lasting_contradiction(&[(0, 0), (9, 0), (10, 0), (20, 0)], &[10])]
    #[case::controller_that_catches_up(&[(0, 1), (5, 2), (10, 2), (15, 1)], &[])]
    #[case::counts_in_motion(&[(0, 0), (6, 1), (12, 0), (18, 1)], &[])]
    #[case::touch_that_does_not_help(&[(0, 0), (10, 0), (69, 0), (70, 0), (71, 0)], &[10, 70])]
    #[case::second_contradiction_within_a_minute(&[(0, 0), (10, 0), (11, 2), (20, 0), (31, 0), (69, 0), (70, 0)], &[10, 70])]
    fn a_lasting_contradiction_is_touched_once_a_minute(#[case] told: &[(i64, i32)], #[case] touched: &[i64]) {
        let mut budgets = StaleBudgets::default();
        let mut seen = Vec::new();
        for (second, healthy) in told {
            let at = later(now(), SignedDuration::from_secs(*second));
            let (due, _) = budgets.due(&snapshot(json!({ "currentHealthy": healthy })), at);
            seen.extend(due.iter().map(|_| *second));
        }
        assert_eq!(seen, touched);
    }

    #[test]
    fn the_next_look_is_when_a_touch_falls_due() {
        let mut budgets = StaleBudgets::default();
        let stale = snapshot(json!({ "currentHealthy": 0 }));
        let ten = later(now(), STALE_AFTER);
        assert_eq!(budgets.due(&stale, now()), (Vec::new(), Some(ten)));
        let (due, next) = budgets.due(&stale, ten);
        assert_eq!(due, [BudgetKey::new("shop", "web")]);
        assert_eq!(next, Some(later(ten, TOUCH_INTERVAL)));
    }

    #[test]
    fn a_status_behind_its_spec_is_left_to_the_controller() {
        let behind = snapshot(json!({ "currentHealthy": 0, "observedGeneration": 0 }));
        let mut budgets = StaleBudgets::default();
        budgets.due(&behind, now());
        assert_eq!(budgets.due(&behind, later(now(), STALE_AFTER)), (Vec::new(), None));
    }
}
