//! What this process has admitted and no watch has shown yet, so that one free disruption is not given to two evictions that
//! arrive together. The API's own check is the last guard; this only spares the loser a wrong answer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nodeward_core::id::{BudgetKey, PodUid};
use nodeward_core::ledger::BudgetFacts;

/// How long an admission counts: far longer than a watch lags, and no longer than a refused client waits.
const LASTS: Duration = Duration::from_secs(3);

/// How many are remembered; beyond that the oldest are forgotten.
const AT_MOST: usize = 4096;

/// Recent admissions, the oldest first.
#[derive(Debug, Default)]
pub struct RecentAdmissions(VecDeque<Admission>);

#[derive(Debug)]
struct Admission {
    budget: BudgetKey,
    pod: PodUid,
    at: Instant,
}

impl RecentAdmissions {
    /// Takes what was admitted for other pods out of a budget's facts, as the disruption controller is about to. What the
    /// facts show already is not taken twice: the pod is no longer among the healthy.
    pub fn take_out(&mut self, budget: &mut BudgetFacts, pod: &PodUid, now: Instant) {
        self.0
            .retain(|admitted| now.saturating_duration_since(admitted.at) < LASTS);
        for admitted in &self.0 {
            if admitted.budget == budget.key && admitted.pod != *pod && budget.healthy.remove(&admitted.pod) {
                budget.disruptions_allowed -= 1;
            }
        }
    }

    /// Remembers an admission.
    pub fn add(&mut self, budget: &BudgetKey, pod: &PodUid, now: Instant) {
        self.0.retain(|known| known.pod != *pod);
        if self.0.len() >= AT_MOST {
            self.0.pop_front();
        }
        self.0.push_back(Admission {
            budget: budget.clone(),
            pod: pod.clone(),
            at: now,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(healthy: &[&str], allowed: i32) -> BudgetFacts {
        BudgetFacts {
            key: BudgetKey::new("shop", "web"),
            uid: "b".into(),
            current: true,
            disruptions_allowed: allowed,
            desired_healthy: 1,
            expected_pods: 3,
            unusable: None,
            is_by_node: false,
            healthy: healthy.iter().map(|uid| PodUid::from(*uid)).collect(),
            several: [].into(),
            owner_disruptions: None,
        }
    }

    fn uids(uids: &[&str]) -> std::collections::BTreeSet<PodUid> {
        uids.iter().map(|uid| PodUid::from(*uid)).collect()
    }

    fn after(recent_admissions: &mut RecentAdmissions, facts: &BudgetFacts, pod: &str, now: Instant) -> (i32, usize) {
        let mut facts = facts.clone();
        recent_admissions.take_out(&mut facts, &pod.into(), now);
        (facts.disruptions_allowed, facts.healthy.len())
    }

    #[test]
    fn admitted_disruption_is_spent_until_shown_or_expired() {
        let (mut recent_admissions, now) = (RecentAdmissions::default(), Instant::now());
        let facts = budget(&["a", "b", "c"], 2);
        recent_admissions.add(&facts.key, &"a".into(), now);
        assert_eq!(after(&mut recent_admissions, &facts, "b", now), (1, 2));
        // The watch shows it: the API lowered what is allowed, and the pod is marked as disrupted.
        assert_eq!(after(&mut recent_admissions, &budget(&["b", "c"], 1), "b", now), (1, 2));
        assert_eq!(after(&mut recent_admissions, &facts, "b", now + LASTS), (2, 3));
    }

    #[test]
    fn repeated_pod_does_not_block_itself() {
        let (mut recent_admissions, now) = (RecentAdmissions::default(), Instant::now());
        let facts = budget(&["a", "b", "c"], 1);
        recent_admissions.add(&facts.key, &"a".into(), now);
        recent_admissions.add(&facts.key, &"a".into(), now);
        assert_eq!(after(&mut recent_admissions, &facts, "a", now), (1, 3));
        assert_eq!(after(&mut recent_admissions, &facts, "b", now), (0, 2));
    }

    #[test]
    fn other_budgets_are_untouched() {
        let (mut recent_admissions, now) = (RecentAdmissions::default(), Instant::now());
        recent_admissions.add(&BudgetKey::new("shop", "db"), &"a".into(), now);
        let mut facts = budget(&["a", "b"], 1);
        recent_admissions.take_out(&mut facts, &"b".into(), now);
        assert_eq!((facts.disruptions_allowed, facts.healthy), (1, uids(&["a", "b"])));
    }

    #[test]
    fn no_flood_of_evictions_makes_it_grow() {
        let (mut recent_admissions, now) = (RecentAdmissions::default(), Instant::now());
        for number in 0..2 * AT_MOST {
            recent_admissions.add(&BudgetKey::new("shop", "web"), &format!("p{number}").into(), now);
        }
        assert_eq!(recent_admissions.0.len(), AT_MOST);
        assert_eq!(
            recent_admissions.0.back().unwrap().pod,
            format!("p{}", 2 * AT_MOST - 1).into()
        );
    }
}
