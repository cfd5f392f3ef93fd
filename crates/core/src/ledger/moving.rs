//! Movable pods that have left draining nodes, and that nothing replaces yet: others wait for these drains, not for a budget whose
//! pods are unhealthy by themselves.

use std::collections::{BTreeMap, BTreeSet};

use super::{BudgetFacts, Claim, Disruptions, Facts, Ledger, disruptions};
use crate::id::BudgetKey;

impl Claim {
    /// How many movable pods of this very budget have left its node, and have yet to be replaced.
    pub(super) fn moving_of(&self, budget: &BudgetFacts) -> i32 {
        let is_of =
            |moving: &&Disruptions| disruptions::is_of(&moving.pdb, &budget.key) && *moving.pdb.uid == *budget.uid;
        let moving = self.moving.iter().filter(is_of).flat_map(|moving| &moving.pods);
        disruptions::count(moving.filter(|pod| !budget.is_healthy(&pod.uid)).count())
    }
}

impl Ledger {
    /// Notes movable pods of the node that are on their way out, but for those that the claim has a disruption for by name.
    pub fn note_moving(&mut self, node_uid: &str, leaving: Vec<Disruptions>) {
        let Some(claim) = self.claim(node_uid) else { return };
        let mut moving = claim.moving.clone();
        for mut leaving in leaving {
            leaving.pods.retain(|pod| !claim.has_disruption(&pod.uid));
            disruptions::add(&mut moving, &leaving);
        }
        let moving = disruptions::normal(moving);
        if moving != claim.moving
            && let Some(claim) = self.claim_mut(node_uid)
        {
            claim.moving = moving;
        }
    }

    /// Forgets moving pods that have been replaced. Of a budget as many are still missing as it lacks healthy pods, beside those
    /// of claims that are down, and those that are down `by_themselves`, of which no drain's end brings one back: of the oldest
    /// claims they are replaced first.
    pub fn settle_moving(&mut self, facts: &Facts, by_themselves: &BTreeMap<BudgetKey, i32>) {
        let budgets: BTreeSet<BudgetKey> = self.claims.iter().flat_map(Claim::budgets_of_moving).collect();
        if budgets.is_empty() {
            return;
        }
        let mut claims = self.claims.clone();
        for key in budgets {
            let budget = facts.get(&key);
            if budget.is_some_and(|budget| !budget.current) {
                continue;
            }
            let mut missing = budget.map_or(0, |budget| {
                let by_themselves = by_themselves.get(&key).copied().unwrap_or_default();
                let missing = budget.expected_pods - self.healthy_without_claims(budget) - by_themselves;
                usize::try_from(missing).unwrap_or_default()
            });
            let moving = claims.iter_mut().rev().flat_map(|claim| &mut claim.moving);
            for moving in moving.filter(|moving| disruptions::is_of(&moving.pdb, &key)) {
                let is_this_budget = budget.is_some_and(|budget| *budget.uid == *moving.pdb.uid);
                let kept = if is_this_budget {
                    moving.pods.len().min(missing)
                } else {
                    0
                };
                missing -= kept;
                moving.pods.drain(..moving.pods.len() - kept);
            }
        }
        for claim in &mut claims {
            claim.moving.retain(|moving| !moving.pods.is_empty());
        }
        if claims != self.claims {
            self.note_change();
            self.claims = claims;
        }
    }
}
