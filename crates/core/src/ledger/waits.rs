//! Who waits for whom, and for what: the one relation from which the order of the queue, reservations, circles and what
//! people are told are read.

use std::collections::{BTreeMap, BTreeSet};

use nodeward_api::drain_ledger::ClaimState;
use nodeward_api::reason::LockReason;

use super::{Claim, Facts, Ledger, Need, Obstacle, OwnerDisruptions, Reservations, Unusable, disruptions};
use crate::id::{BudgetKey, PodKey};

/// Whose disruptions come back without anybody's help, by ticket.
type Returning = BTreeSet<i64>;

/// What a claim waits for.
pub(super) struct Wait<'a> {
    /// Of which budget it lacks disruptions, why, and whose claim is in the way first.
    pub obstacle: Obstacle,
    /// The claims that have what it waits for, where nothing else is in its way; in the order of their tickets.
    on: Vec<&'a Claim>,
}

/// Who waits for whom at one moment.
pub(super) struct Waits<'a, 'f> {
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
    let waits = Waits::new(ledger, facts, reservations);
    loop {
        let more: Vec<i64> = claims
            .iter()
            .filter(|claim| claim.asks() && !claim.holds.is_empty() && !returning.contains(&claim.ticket))
            .filter(|claim| waits.are_for_disruptions_at_most(claim, 0, &returning))
            .map(|claim| claim.ticket)
            .collect();
        if more.is_empty() {
            return returning;
        }
        returning.extend(more);
    }
}

impl<'a, 'f> Waits<'a, 'f> {
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
    pub(super) fn are_for_disruptions_at_most(&self, claim: &Claim, place: usize, returning: &Returning) -> bool {
        self.of(claim, place, &|holder| returning.contains(&holder.ticket))
            .all(|wait| {
                matches!(
                    wait.obstacle.reason,
                    LockReason::WaitsForDisruptions | LockReason::AwaitingPods | LockReason::Reserved
                )
            })
    }

    /// What stands in the way of a claim that asks.
    pub(super) fn obstacles(&self, claim: &Claim) -> Vec<Obstacle> {
        let place = self.reservations.place_of(claim.ticket);
        let mut obstacles: Vec<Obstacle> = self.of(claim, place, &|_| true).map(|wait| wait.obstacle).collect();
        if self.is_in_circle(claim) {
            let for_disruptions = |obstacle: &&mut Obstacle| obstacle.reason == LockReason::WaitsForDisruptions;
            for obstacle in obstacles.iter_mut().filter(for_disruptions) {
                obstacle.reason = LockReason::CircularWait;
            }
        }
        obstacles
    }

    /// Why the budget has too few disruptions for this need of the claim even once those of all other claims are back: its pods are
    /// not healthy by themselves, or its owner holds it. Nothing, where the budget cannot be counted.
    pub(super) fn beyond_claims(&self, claim: &Claim, need: &Need) -> Option<Obstacle> {
        let wait = self.wait(claim, need, 0, &|_| true)?;
        let is_beyond = matches!(
            wait.obstacle.reason,
            LockReason::BudgetUnhealthy | LockReason::OwnerHold
        );
        is_beyond.then_some(wait.obstacle)
    }

    /// What the claim waits for, budget by budget, if `returns` tells whose disruptions will come back.
    pub(super) fn of<'c>(
        &'c self,
        claim: &'c Claim,
        place: usize,
        returns: &'c dyn Fn(&Claim) -> bool,
    ) -> impl Iterator<Item = Wait<'a>> + 'c {
        claim
            .needs
            .iter()
            .filter_map(move |need| self.wait(claim, need, place, returns))
    }

    fn wait(&self, claim: &Claim, need: &Need, place: usize, returns: &dyn Fn(&Claim) -> bool) -> Option<Wait<'a>> {
        let key = BudgetKey::from(&need.pdb);
        let (beyond, demand, several) = need.counted(claim, self.facts);
        let wait = |reason, needed, free| Wait {
            obstacle: Obstacle::of_budget(reason, &key, needed, free),
            on: Vec::new(),
        };
        let Some(budget) = self.facts.get(&key).filter(|b| *b.uid == *need.pdb.uid) else {
            return Some(wait(LockReason::NotPlanned, beyond, 0));
        };
        let held_of = |claim: &Claim| claim.disruptions_of(budget);
        let moving_of = |claim: &Claim| claim.moving_of(budget);
        let whole = beyond + held_of(claim);
        if let Some(pod) = several {
            let pod = PodKey::new(need.pdb.namespace.as_str(), pod.as_str());
            return Some(Wait {
                obstacle: Obstacle::of_pod(LockReason::SeveralPDBs, pod),
                on: Vec::new(),
            });
        }
        let held_by = |other: &&Claim| other.node_uid != claim.node_uid && held_of(other) + moving_of(other) > 0;
        let others: Vec<&Claim> = self.ledger.holders_of(&key).filter(held_by).collect();
        if let Some(unusable) = budget.unusable {
            // It opens again once the pods are back that another drain has taken down.
            let holder = others.first().filter(|_| unusable == Unusable::ClosedForNow);
            let reason = holder.map_or(unusable.reason(), |_| LockReason::WaitsForDisruptions);
            let mut wait = wait(reason, whole, 0);
            wait.obstacle.holder = holder.map(|other| other.node.as_str().into());
            return Some(wait);
        }
        // Its numbers are those of an earlier spec, and may allow what this one forbids.
        if !budget.current {
            return Some(wait(LockReason::StatusBehind, whole, 0));
        }
        // No waiting helps: even with all pods healthy it never allows so many.
        if whole > budget.ceiling() {
            return Some(wait(LockReason::NeedExceedsBudget, whole, budget.ceiling()));
        }

        let free = self.reservations.free(budget, self.ledger);
        let for_claims = budget.without_owner(free);
        // A pod that moves comes back whatever its drain waits for.
        let back = |other: &&Claim| moving_of(other) + if returns(other) { held_of(other) } else { 0 };
        let back = moving_of(claim) + others.iter().map(back).sum::<i32>();
        let in_time = (free + back).min(budget.ceiling() - held_of(claim));
        let owner_has_all = budget.owner_disruptions == Some(OwnerDisruptions::All);

        // From here on the reason names who has to act: whoever mends pods, the owner, or only those ahead.
        if in_time < demand {
            return Some(wait(LockReason::BudgetUnhealthy, demand, free));
        }
        if owner_has_all || budget.without_owner(in_time) < demand {
            return Some(wait(LockReason::OwnerHold, demand, for_claims));
        }
        if for_claims < demand {
            let Some(first) = others.first() else {
                return Some(wait(LockReason::AwaitingPods, demand, for_claims));
            };
            let mut wait = wait(LockReason::WaitsForDisruptions, demand, for_claims);
            wait.obstacle.holder = Some(first.node.as_str().into());
            let on = others.into_iter().filter(|other| held_of(other) > 0).collect();
            return Some(Wait { on, ..wait });
        }
        let (disruptions, node) = self.reservations.ahead_of(place, &key)?;
        (for_claims - disruptions < demand).then(|| {
            let mut wait = wait(LockReason::Reserved, demand, for_claims - disruptions);
            wait.obstacle.holder = Some(node.clone());
            wait
        })
    }

    /// Whether the claim waits for a claim that, by way of others or at once, waits for this one, so that neither comes
    /// to an end by itself.
    fn is_in_circle(&self, claim: &Claim) -> bool {
        if claim.holds.is_empty() || self.reservations.returning.contains(&claim.ticket) {
            return false;
        }
        let asking = |ticket: i64| {
            let claim = self.ledger.claims().iter().find(|claim| claim.ticket == ticket);
            let waits = claim.into_iter().flat_map(|claim| self.of(claim, 0, &|_| true));
            let on = waits.flat_map(|wait| wait.on);
            on.filter(|holder| holder.asks()).map(|holder| holder.ticket).collect()
        };
        !circle_of(claim.ticket, asking).is_empty()
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

/// Those who wait for each other in a circle that begins with this one; nobody, if it is in none. Who waits for himself alone is in
/// none.
pub fn circle_of<T: Copy + Ord>(begin: T, waits_on: impl Fn(T) -> Vec<T>) -> Vec<T> {
    let mut reached = BTreeMap::from([(begin, begin)]);
    let mut open = vec![begin];
    while let Some(at) = open.pop() {
        for next in waits_on(at) {
            if next == begin && at != begin {
                let before = |at: &T| reached.get(at).copied().filter(|before| before != at);
                let mut circle: Vec<T> = std::iter::successors(Some(at), before).collect();
                circle.reverse();
                return circle;
            }
            reached.entry(next).or_insert_with(|| {
                open.push(next);
                at
            });
        }
    }
    Vec::new()
}
