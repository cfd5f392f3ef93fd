//! Pods that leave before the claim, or without a disruption of it: until others are Ready in their place, whoever waits for their
//! budgets waits for their drain. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodeward_api::reason::LockReason;
use nodeward_core::deadline::{is_due, saturating_add};
use nodeward_core::id::{BudgetKey, PodUid};
use nodeward_core::ledger::{Claim, Disruptions, HeldPod};

use crate::snapshot::{PodFacts, PodToBeDown};

use super::disruptions::budget_ref;
use super::{ActiveDrain, Planner};

impl Planner<'_> {
    /// Forgets those that have been replaced.
    pub(super) fn settle_moving(&mut self) {
        let budgets: BTreeSet<BudgetKey> = self.before.claims().iter().flat_map(Claim::budgets_of_moving).collect();
        let by_themselves = budgets.into_iter().map(|budget| {
            let down = self.down_by_themselves(&budget);
            (budget, down)
        });
        let by_themselves = by_themselves.collect();
        self.write.next.settle_moving(&self.snapshot.facts, &by_themselves);
    }

    /// How many pods of the budget are down, and no drain's end brings them back: nobody knows when they will be. They find no
    /// node, or were there before the first of its pods moved, so that they replace none of these.
    fn down_by_themselves(&mut self, budget: &BudgetKey) -> i32 {
        let moved = |claim: &&Claim| claim.budgets_of_moving().any(|of| of == *budget);
        let claims = self.before.claims().iter().filter(moved);
        let asked = |claim: &Claim| {
            let drain = self.snapshot.drains.get(claim.node.as_str())?;
            drain.metadata.creation_timestamp.as_ref().map(|time| time.0)
        };
        let began = claims.map(|claim| asked(claim).unwrap_or(claim.queued_at)).min();
        let (mut down, mut without_node, mut on_their_way) = (0, 0, 0);
        for pod in self.snapshot.unhealthy.get(budget).into_iter().flatten() {
            let unschedulable = pod.unschedulable_since;
            let lasting = unschedulable.map(|since| saturating_add(since, self.policy.unschedulable_after));
            self.requeue_at.note(lasting);
            let finds_no_node = lasting.is_some_and(|at| is_due(at, self.now));
            let was_there = began.is_some_and(|began| pod.created < began);
            if self.before.is_held(pod.uid.as_str()) {
                continue;
            }
            if pod.deletion.is_some() {
                on_their_way += 1;
            } else if was_there {
                down += 1;
            } else if finds_no_node {
                without_node += 1;
            }
        }
        // Until the pod has gone that it replaces, one may find no node for that one's sake.
        down + (without_node - on_their_way).max(0)
    }

    /// Notes the pods of a drain that are on their way out. One that nothing replaces before the drain is over is of its claim from
    /// then on, whoever deleted it.
    pub(super) fn note_leaving(&mut self, active: &ActiveDrain<'_>) {
        let uid = &active.node.uid;
        let pods = active.context.pods(self.snapshot);
        let stays = |pod: &PodFacts| pods.iter().any(|one| one.uid == pod.uid && one.deletion.is_none());
        // One that ends at once is gone before anybody sees it leave.
        let remembered = self.memory.to_be_down.get(uid).into_iter().flatten();
        let gone = remembered.filter(|one| !stays(&one.pod)).cloned();
        let (moved, mut forced): (Vec<PodToBeDown>, Vec<PodToBeDown>) = gone.partition(|one| one.moves);
        let known: BTreeSet<PodUid> = moved.iter().chain(&forced).map(|one| one.pod.uid.clone()).collect();
        let with_budgets = |pod: &Arc<PodFacts>| PodToBeDown {
            pod: Arc::clone(pod),
            budgets: self.snapshot.budgets_of(pod).to_vec(),
            moves: false,
        };
        // What an earlier leader has planned, its status tells. A pod that was not Ready was missing before.
        // Of a node that will not come back it may be of before that was known.
        let plan = active.drain.status.as_ref().and_then(|status| status.plan.as_ref());
        let plan = plan.filter(|_| !active.node.is_being_removed());
        let held = plan.filter(|_| active.node.is_cordoned()).map(|plan| &plan.held);
        let held = held
            .into_iter()
            .flatten()
            .filter(|planned| planned.reason != LockReason::NoRoom);
        let planned = plan.into_iter().flat_map(|plan| &plan.left_out).chain(held);
        let planned: BTreeSet<&str> = planned.map(|planned| planned.pod.as_str()).collect();
        let is_told = |pod: &PodFacts| pod.ready && planned.contains(pod.key.to_string().as_str());
        let departing = active.classes.departing.iter();
        let leaving = departing.filter(|pod| is_controlled(pod) && pod.deletion.is_some() && !known.contains(&pod.uid));
        let (told, moving): (Vec<_>, Vec<_>) = leaving.partition(|pod| is_told(pod));
        forced.extend(told.into_iter().map(with_budgets));
        // On a node that takes pods what replaces one may come back, and where others make room for it.
        let is_held = |pod: &PodFacts| {
            let has = |pods: &[Arc<PodFacts>]| pods.iter().any(|one| one.uid == pod.uid);
            active.node.is_cordoned() && has(&active.classes.held) && !has(&active.classes.without_room)
        };
        let is_to_be_down = |pod: &&Arc<PodFacts>| {
            let is_planned = active.classes.obstacles.left_out(pod).is_some() || is_held(pod);
            pod.ready && pod.deletion.is_none() && is_controlled(pod) && is_planned
        };
        // Until the ledger shows that its claim has it, a forced one is noted again.
        let written = self.before.claim(uid.as_str());
        let is_unwritten =
            |one: &&PodToBeDown| !written.is_some_and(|claim| claim.has_disruption(one.pod.uid.as_str()));
        let to_be_down = pods.iter().filter(is_to_be_down).map(with_budgets);
        let to_be_down = to_be_down.chain(forced.iter().filter(is_unwritten).cloned());
        let is_to_move = |pod: &&Arc<PodFacts>| {
            active.node.is_cordoned() && pod.is_healthy() && is_controlled(pod) && !is_to_be_down(pod)
        };
        let to_move = active.classes.movable.iter().filter(is_to_move).map(|pod| PodToBeDown {
            moves: true,
            ..with_budgets(pod)
        });
        let to_be_down = to_be_down.chain(to_move);
        self.plan.to_be_down.insert(uid.clone(), to_be_down.collect());
        let of = |pod: &PodFacts, key: &BudgetKey| Disruptions {
            pdb: budget_ref(key, self.snapshot),
            pods: vec![HeldPod::new(&pod.key, &pod.uid, false)],
            ..Disruptions::default()
        };
        let forced = forced.iter();
        let forced = forced.flat_map(|one| one.budgets.iter().map(|key| of(&one.pod, key)));
        let forced = forced.collect();
        let moving = moving.into_iter().map(|pod| (&**pod, self.snapshot.budgets_of(pod)));
        let moved = moved.iter().map(|one| (&*one.pod, one.budgets.as_slice()));
        let moving = moving.chain(moved).filter_map(|(pod, budgets)| match budgets {
            [key] => Some(of(pod, key)),
            _ => None,
        });
        let moving = moving.collect();
        let (ledger, facts) = (&mut self.write.next, &self.snapshot.facts);
        ledger.note_forced(active.uid(), forced, facts);
        ledger.note_moving(active.uid(), moving);
    }
}

/// Whether another pod is made in its place.
fn is_controlled(pod: &PodFacts) -> bool {
    pod.owner.is_some()
}
