//! Movable pods that leave before the claim, or without a disruption of it: until others are Ready in their place, whoever waits for
//! their budgets waits for their drain. Pure.

use std::collections::BTreeSet;

use nodeward_core::deadline::{is_due, saturating_add};
use nodeward_core::id::BudgetKey;
use nodeward_core::ledger::{Claim, Disruptions, HeldPod};

use crate::snapshot::PodFacts;

use super::disruptions::budget_ref;
use super::{ActiveDrain, Planner};

impl Planner<'_> {
    /// Forgets those that have been replaced, and those whose replacement finds no node.
    pub(super) fn settle_moving(&mut self) {
        let budgets = self.before.claims().iter().flat_map(Claim::budgets_of_moving);
        let mut stuck: BTreeSet<BudgetKey> = budgets.collect();
        stuck.retain(|budget| self.has_unschedulable_pod(budget));
        self.write.next.settle_moving(&self.snapshot.facts, &stuck);
    }

    fn has_unschedulable_pod(&mut self, budget: &BudgetKey) -> bool {
        let unhealthy = self.snapshot.unhealthy.get(budget).into_iter().flatten();
        let since = unhealthy.filter_map(|pod| pod.unschedulable_since).min();
        let Some(since) = since else { return false };
        let lasting = saturating_add(since, self.policy.unschedulable_after);
        self.requeue_at.note(lasting);
        is_due(lasting, self.now)
    }

    /// Notes the pods of a drain that are on their way out.
    pub(super) fn note_moving(&mut self, active: &ActiveDrain<'_>) {
        let leaves = |pod: &&PodFacts| pod.deletion.is_some() && pod.owner.is_some();
        let leaving = active.classes.departing.iter().map(|pod| &**pod).filter(leaves);
        let leaving = leaving.filter_map(|pod| {
            let [key] = self.snapshot.budgets_of(pod) else {
                return None;
            };
            Some(Disruptions {
                pdb: budget_ref(key, self.snapshot),
                pods: vec![HeldPod::new(&pod.key, &pod.uid, false)],
                ..Disruptions::default()
            })
        });
        let leaving = leaving.collect();
        self.write.next.note_moving(active.uid(), leaving);
    }
}
