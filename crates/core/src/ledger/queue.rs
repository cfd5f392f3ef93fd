//! The order of the queue, and who reserves.

use std::collections::BTreeSet;

use nodeward_api::drain_ledger::ClaimState;
use nodeward_api::reason::LockReason;

use super::{Claim, Facts, Ledger, Need, Obstacle, OwnerDisruptions, Reservations, disruptions};
use crate::id::{BudgetKey, PodKey};

/// Whose disruptions come back without anybody's help, by ticket.
type Returning = BTreeSet<i64>;

/// The queue at one moment.
pub(super) struct Queue<'a, 'f> {
    ledger: &'a Ledger,
    facts: &'f Facts,
    reservations: &'f Reservations,
}

/// The claims that ask, in the order in which they are served: by ticket, but a claim that holds disruptions of pods that are
/// down, and asks again, goes ahead of every claim that needs disruptions of those budgets. With it, whether no claim does.
pub(super) fn order(ledger: &Ledger) -> (Vec<i64>, bool) {
    let asking: Vec<&Claim> = ledger.claims().iter().filter(|claim| claim.asks()).collect();
    let holders: Vec<&Claim> = asking.iter().copied().filter(|claim| !claim.holds.is_empty()).collect();
    let mut order = Vec::with_capacity(asking.len());
    let mut seen = BTreeSet::new();
    for claim in &asking {
        serve(claim, &holders, &mut seen, &mut order);
    }
    let is_sorted = order.is_sorted();
    (order, holders.is_empty() && is_sorted)
}

/// The claims whose disruptions come back without a step that can be refused: those that drain, those whose pods are on
/// their way back, and, of those that wait while they hold, those that wait for nothing but such disruptions. What waits
/// in a circle is none of them, nor is what waits for a suspect claim, for health or for an owner.
pub(super) fn returning(ledger: &Ledger, facts: &Facts, reservations: &Reservations) -> Returning {
    let claims = ledger.claims();
    let mut returning: Returning = claims
        .iter()
        .filter(|claim| claim.state.has_grant() || claim.state == ClaimState::Returning)
        .map(|claim| claim.ticket)
        .collect();
    let queue = Queue::new(ledger, facts, reservations);
    loop {
        let more: Vec<i64> = claims
            .iter()
            .filter(|claim| claim.asks() && !claim.holds.is_empty() && !returning.contains(&claim.ticket))
            .filter(|claim| queue.waits_for_disruptions_at_most(claim, 0, &returning))
            .map(|claim| claim.ticket)
            .collect();
        if more.is_empty() {
            return returning;
        }
        returning.extend(more);
    }
}

impl<'a, 'f> Queue<'a, 'f> {
    /// `reservations` are of that ledger and those facts.
    pub(super) fn new(ledger: &'a Ledger, facts: &'f Facts, reservations: &'f Reservations) -> Self {
        Self {
            ledger,
            facts,
            reservations,
        }
    }

    /// Whether nothing but disruptions that `returning` claims hold, claims ahead of its place are to have, or pods on the move take,
    /// is in the claim's way.
    pub(super) fn waits_for_disruptions_at_most(&self, claim: &Claim, place: usize, returning: &Returning) -> bool {
        self.lacks(claim, place, &|holder| returning.contains(&holder.ticket))
            .iter()
            .all(|lack| {
                matches!(
                    lack.reason,
                    LockReason::WaitsForDisruptions | LockReason::AwaitingPods | LockReason::Reserved
                )
            })
    }

    /// What stands in the way of a claim that asks.
    pub(super) fn obstacles(&self, claim: &Claim) -> Vec<Obstacle> {
        let place = self.reservations.place_of(claim.ticket);
        let mut lacks = self.lacks(claim, place, &|_| true);
        if self.is_in_circle(claim) {
            for lack in &mut lacks {
                if lack.reason == LockReason::WaitsForDisruptions {
                    lack.reason = LockReason::CircularWait;
                }
            }
        }
        lacks
    }

    /// What the claim lacks, budget by budget, if `returns` tells whose disruptions will come back.
    pub(super) fn lacks(&self, claim: &Claim, place: usize, returns: &dyn Fn(&Claim) -> bool) -> Vec<Obstacle> {
        claim
            .needs
            .iter()
            .filter_map(|need| self.lack(claim, need, place, returns))
            .collect()
    }

    fn lack(&self, claim: &Claim, need: &Need, place: usize, returns: &dyn Fn(&Claim) -> bool) -> Option<Obstacle> {
        let key = BudgetKey::from(&need.pdb);
        let (beyond, demand, several) = need.counted(claim, self.facts);
        let obstacle = |reason, needed, free| Obstacle::of_budget(reason, &key, needed, free);
        let Some(budget) = self.facts.get(&key).filter(|b| *b.uid == *need.pdb.uid) else {
            return Some(obstacle(LockReason::NotPlanned, beyond, 0));
        };
        let held_of = |claim: &Claim| claim.disruptions_of(budget);
        let moving_of = |claim: &Claim| claim.moving_of(budget);
        let whole = beyond + held_of(claim);
        if let Some(pod) = several {
            return Some(Obstacle {
                pod: Some(PodKey::new(need.pdb.namespace.as_str(), pod.as_str())),
                ..obstacle(LockReason::SeveralPDBs, 0, 0)
            });
        }
        if let Some(unusable) = budget.unusable {
            return Some(obstacle(unusable.reason(), whole, 0));
        }
        // Its numbers are those of an earlier spec, and may allow what this one forbids.
        if !budget.current {
            return Some(obstacle(LockReason::StatusBehind, whole, 0));
        }
        // No waiting helps: even with all pods healthy it never allows so many.
        if whole > budget.ceiling() {
            return Some(obstacle(LockReason::NeedExceedsBudget, whole, budget.ceiling()));
        }

        let free = self.reservations.free(budget, self.ledger);
        let for_claims = budget.without_owner(free);
        let held_by = |other: &&Claim| other.node_uid != claim.node_uid && held_of(other) + moving_of(other) > 0;
        let others = || self.ledger.holders_of(&key).filter(held_by);
        // A pod that moves comes back whatever its drain waits for.
        let back = |other: &Claim| moving_of(other) + if returns(other) { held_of(other) } else { 0 };
        let back = moving_of(claim) + others().map(back).sum::<i32>();
        let in_time = (free + back).min(budget.ceiling() - held_of(claim));
        let owner_has_all = budget.owner_disruptions == Some(OwnerDisruptions::All);

        // From here on the reason names who has to act: whoever mends pods, the owner, or only those ahead.
        if in_time < demand {
            return Some(obstacle(LockReason::BudgetUnhealthy, demand, free));
        }
        if owner_has_all || budget.without_owner(in_time) < demand {
            return Some(obstacle(LockReason::OwnerHold, demand, for_claims));
        }
        if for_claims < demand {
            let Some(holder) = others().next() else {
                return Some(obstacle(LockReason::AwaitingPods, demand, for_claims));
            };
            return Some(Obstacle {
                holder: Some(holder.node.as_str().into()),
                ..obstacle(LockReason::WaitsForDisruptions, demand, for_claims)
            });
        }
        match self.reservations.ahead_of(place, &key) {
            Some((disruptions, node)) if for_claims - disruptions < demand => Some(Obstacle {
                holder: Some(node.clone()),
                ..obstacle(LockReason::Reserved, demand, for_claims - disruptions)
            }),
            _ => None,
        }
    }

    /// Whether the claim waits for a claim that, by way of others or at once, waits for this one, so that neither comes
    /// to an end by itself.
    fn is_in_circle(&self, claim: &Claim) -> bool {
        if claim.holds.is_empty() || self.reservations.returning.contains(&claim.ticket) {
            return false;
        }
        let mut reached = BTreeSet::new();
        let mut open = vec![claim];
        while let Some(next) = open.pop() {
            for holder in self.waits_on(next) {
                if holder.ticket == claim.ticket {
                    return true;
                }
                if reached.insert(holder.ticket) {
                    open.push(holder);
                }
            }
        }
        false
    }

    /// The claims that hold, ask, and have what this one waits for.
    fn waits_on(&self, claim: &Claim) -> Vec<&'a Claim> {
        let lacks = self.lacks(claim, 0, &|_| true);
        let wanted = |holder: &&Claim| {
            lacks
                .iter()
                .filter(|lack| lack.reason == LockReason::WaitsForDisruptions)
                .filter_map(|lack| lack.pdb.as_ref())
                .any(|key| holder.holds.iter().any(|u| disruptions::is_of(&u.pdb, key)))
        };
        self.ledger
            .claims()
            .iter()
            .filter(|other| other.ticket != claim.ticket && other.asks())
            .filter(wanted)
            .collect()
    }

    /// The youngest claim in a circle whose cordon is ours to lift. One whose node may go down at any moment is none: its
    /// time frees nothing.
    pub(super) fn gives_way(&self) -> Option<&'a Claim> {
        self.ledger
            .claims()
            .iter()
            .filter(|claim| claim.asks() && !claim.may_go_down && !claim.foreign_cordon)
            .rfind(|claim| self.is_in_circle(claim))
    }
}

/// Puts the claim into the order, behind those of the holders that go ahead of it. Claims that go ahead of each other keep
/// the order of their tickets.
fn serve(claim: &Claim, holders: &[&Claim], seen: &mut BTreeSet<i64>, order: &mut Vec<i64>) {
    if !seen.insert(claim.ticket) {
        return;
    }
    for holder in holders {
        if disruptions::meet(&claim.needs, &holder.holds) {
            serve(holder, holders, seen, order);
        }
    }
    order.push(claim.ticket);
}
