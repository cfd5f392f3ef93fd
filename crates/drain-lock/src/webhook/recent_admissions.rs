//! What this process has admitted and no watch has shown yet, so that one free disruption is not given to two evictions that
//! arrive together. The API's own check is the last guard; this only spares the loser a wrong answer.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nodeward_core::id::{BudgetKey, PodUid};
use nodeward_core::ledger::BudgetFacts;

/// How long an admission counts: far longer than a watch lags, and no longer than a refused client waits.
const LASTS: Duration = Duration::from_secs(3);

/// How many are remembered; beyond that the oldest are forgotten.
const AT_MOST: usize = 4096;

/// Recent admissions, by budget.
#[derive(Debug, Default)]
pub struct RecentAdmissions {
    by_budget: HashMap<BudgetKey, Vec<Admission>>,
    len: usize,
    last: Number,
}

/// Counts admissions.
pub type Number = u64;

#[derive(Debug)]
struct Admission {
    number: Number,
    pod: PodUid,
    at: Instant,
}

impl RecentAdmissions {
    /// Takes what was admitted for other pods out of a budget's facts, as the disruption controller is about to. What the
    /// facts show already is not taken twice: the pod is no longer among the healthy. Answers with the last admission that
    /// is taken into account.
    pub fn take_out(&mut self, budget: &mut BudgetFacts, pod: &PodUid, now: Instant) -> Option<Number> {
        let admissions = self.by_budget.get(&budget.key)?;
        let counts = |admitted: &&Admission| now.saturating_duration_since(admitted.at) < LASTS;
        for admitted in admissions.iter().filter(counts) {
            if admitted.pod != *pod && budget.healthy.remove(&admitted.pod) {
                budget.disruptions_allowed -= 1;
            }
        }
        admissions.last().map(|admitted| admitted.number)
    }

    /// Remembers an admission, unless there was one for the budget after the one that was `seen` last: then the facts that it
    /// rests on are out of date. Answers whether it was remembered.
    pub fn add(&mut self, budget: &BudgetKey, pod: &PodUid, seen: Option<Number>, now: Instant) -> bool {
        let known = self.by_budget.get(budget).and_then(|admissions| admissions.last());
        if known.map(|admitted| admitted.number) > seen {
            return false;
        }
        if self.len >= AT_MOST {
            self.forget(now);
        }
        self.last += 1;
        let admissions = self.by_budget.entry(budget.clone()).or_default();
        let before = admissions.len();
        admissions.retain(|known| known.pod != *pod && now.saturating_duration_since(known.at) < LASTS);
        admissions.push(Admission {
            number: self.last,
            pod: pod.clone(),
            at: now,
        });
        self.len = self.len + admissions.len() - before;
        true
    }

    /// Forgets what has expired, and, if that is too little, the older half of the rest.
    fn forget(&mut self, now: Instant) {
        let oldest = self.last.saturating_sub(u64::try_from(AT_MOST / 2).unwrap_or_default());
        self.len = 0;
        self.by_budget.retain(|_, admissions| {
            admissions.retain(|known| known.number > oldest && now.saturating_duration_since(known.at) < LASTS);
            self.len += admissions.len();
            !admissions.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use nodeward_core::ledger::BudgetPods;

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
            pods: BudgetPods::default(),
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
        recent_admissions.add(&facts.key, &"a".into(), None, now);
        assert_eq!(after(&mut recent_admissions, &facts, "b", now), (1, 2));
        // The watch shows it: the API lowered what is allowed, and the pod is marked as disrupted.
        assert_eq!(after(&mut recent_admissions, &budget(&["b", "c"], 1), "b", now), (1, 2));
        assert_eq!(after(&mut recent_admissions, &facts, "b", now + LASTS), (2, 3));
    }

    #[test]
    fn repeated_pod_does_not_block_itself() {
        let (mut recent_admissions, now) = (RecentAdmissions::default(), Instant::now());
        let facts = budget(&["a", "b", "c"], 1);
        assert!(recent_admissions.add(&facts.key, &"a".into(), None, now));
        let seen = recent_admissions.take_out(&mut facts.clone(), &"a".into(), now);
        assert!(recent_admissions.add(&facts.key, &"a".into(), seen, now));
        assert_eq!(after(&mut recent_admissions, &facts, "a", now), (1, 3));
        assert_eq!(after(&mut recent_admissions, &facts, "b", now), (0, 2));
    }

    #[test]
    fn other_budgets_are_untouched() {
        let (mut recent_admissions, now) = (RecentAdmissions::default(), Instant::now());
        assert!(recent_admissions.add(&BudgetKey::new("shop", "db"), &"a".into(), None, now));
        let mut facts = budget(&["a", "b"], 1);
        recent_admissions.take_out(&mut facts, &"b".into(), now);
        assert_eq!((facts.disruptions_allowed, facts.healthy), (1, uids(&["a", "b"])));
    }

    #[test]
    fn admission_beside_another_is_judged_again() {
        let (mut recent_admissions, now) = (RecentAdmissions::default(), Instant::now());
        let mut facts = budget(&["a", "b", "c"], 1);
        let seen = recent_admissions.take_out(&mut facts, &"a".into(), now);
        assert!(recent_admissions.add(&facts.key, &"b".into(), None, now));
        assert!(!recent_admissions.add(&facts.key, &"a".into(), seen, now));
        let seen = recent_admissions.take_out(&mut facts, &"a".into(), now);
        assert_eq!(facts.disruptions_allowed, 0);
        assert!(recent_admissions.add(&facts.key, &"a".into(), seen, now));
    }

    #[test]
    fn no_flood_of_evictions_makes_it_grow() {
        let (mut recent_admissions, now) = (RecentAdmissions::default(), Instant::now());
        for number in 0..2 * AT_MOST {
            let budget = BudgetKey::new("shop", format!("web-{}", number % 3));
            recent_admissions.add(&budget, &format!("p{number}").into(), Some(u64::MAX), now);
        }
        let all = || recent_admissions.by_budget.values().flatten();
        assert!(all().count() <= AT_MOST);
        assert_eq!(recent_admissions.len, all().count());
        let last = format!("p{}", 2 * AT_MOST - 1).into();
        assert!(all().any(|admitted| admitted.pod == last));
    }
}
