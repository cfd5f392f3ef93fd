//! What a claim is granted, and what keeps it from being granted.

use std::slice;

use jiff::Timestamp;
use nodeward_api::drain_ledger::ClaimState;
use nodeward_api::reason::LockReason;

use super::waits::Waits;
use super::{
    BudgetFacts, Claim, Disruptions, Facts, Fence, HeldPod, Ledger, Need, Obstacle, OwnerDisruptions, Reservations,
    Unusable, disruptions,
};
use crate::id::BudgetKey;

/// Why a grant does not stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// There is no such grant: the claim is gone, waits, is suspect, or has another grant.
    NotGranted,
    /// A disruption was taken between the grant and now. The disruptions of running pods are returned, and the claim waits under its
    /// ticket.
    Returned {
        /// What is missing.
        obstacles: Vec<Obstacle>,
        /// Disruptions that stay with the claim, for their pods are down.
        kept: usize,
    },
}

impl Ledger {
    /// What stands in the way of a grant; nothing for a claim that has one.
    pub fn obstacles(&self, node_uid: &str, facts: &Facts) -> Vec<Obstacle> {
        let mut reservations = Reservations::new(self, facts);
        reservations.look_ahead_of(node_uid, self, facts);
        self.obstacles_by(node_uid, facts, &reservations)
    }

    /// The same by reservations that are known as far as that claim, for whoever asks about many claims.
    pub fn obstacles_by(&self, node_uid: &str, facts: &Facts, reservations: &Reservations) -> Vec<Obstacle> {
        let Some(claim) = self.claim(node_uid) else {
            return vec![Obstacle::of_claim(LockReason::NotPlanned, None)];
        };
        let own = |reason| vec![Obstacle::of_claim(reason, Some(claim.node.as_str().into()))];
        match claim.state {
            ClaimState::Granted | ClaimState::Confirmed => Vec::new(),
            ClaimState::Suspect => own(LockReason::Suspect),
            ClaimState::Returning => own(LockReason::AwaitingReady),
            ClaimState::Waiting => Waits::new(self, facts, reservations).obstacles(claim),
        }
    }

    /// Why a budget has too few disruptions for these of a node's pods, even once those of all other claims are back: its pods are
    /// not healthy by themselves, or its owner holds it. What the claim holds for them counts as given back.
    pub fn beyond_claims(&self, node_uid: &str, needed: Disruptions, facts: &Facts) -> Option<Obstacle> {
        let claim = self.claim(node_uid)?;
        let key = BudgetKey::from(&needed.pdb);
        let budget = facts.get(&key)?;
        let free = self.free(budget);
        // With what it has already, there is enough whatever others hold.
        let lacking = disruptions::missing(slice::from_ref(&needed), &claim.holds);
        if budget.owner_disruptions.is_none() && disruptions::count(disruptions::len(&lacking)) <= free {
            return None;
        }
        let mut without = claim.clone();
        without.forget(&needed);
        let given_back = claim.outstanding(budget, &[]) - without.outstanding(budget, &[]);
        let reservations = Reservations::with_free(key, free + given_back);
        Waits::new(self, facts, &reservations).beyond_claims(&without, &Need::from(needed))
    }

    /// Grants all that the claim needs, or nothing. The pods have to be known ([`Ledger::set_needs`]): they are not stored.
    /// Answers with the number of the grant; for a claim that has one, with that.
    pub fn try_grant(
        &mut self,
        node_uid: &str,
        boot_id: &str,
        facts: &Facts,
        now: Timestamp,
    ) -> Result<i64, Vec<Obstacle>> {
        self.try_grant_by(&mut Reservations::new(self, facts), node_uid, boot_id, facts, now)
    }

    /// The same by reservations of this ledger, which follow the grant, for whoever tries many.
    pub fn try_grant_by(
        &mut self,
        reservations: &mut Reservations,
        node_uid: &str,
        boot_id: &str,
        facts: &Facts,
        now: Timestamp,
    ) -> Result<i64, Vec<Obstacle>> {
        reservations.look_ahead_of(node_uid, self, facts);
        let obstacles = self.obstacles_by(node_uid, facts, reservations);
        if !obstacles.is_empty() {
            return Err(obstacles);
        }
        let budgets = self.claim(node_uid).into_iter().flat_map(Claim::budgets).collect();
        let granted = self.take_all(node_uid, boot_id, facts, now);
        reservations.follow_grant(&budgets, self, facts);
        granted.ok_or_else(|| vec![Obstacle::of_claim(LockReason::NotPlanned, None)])
    }

    fn take_all(&mut self, node_uid: &str, boot_id: &str, facts: &Facts, now: Timestamp) -> Option<i64> {
        let claim = self.claim(node_uid)?;
        if claim.state.has_grant() {
            return Some(claim.grant);
        }
        if claim.state != ClaimState::Waiting || !claim.needs.iter().all(Need::is_planned) {
            return None;
        }
        let taken: Vec<Disruptions> = claim
            .needs
            .iter()
            .map(|need| Disruptions {
                pdb: need.pdb.clone(),
                healthy_at_grant: facts
                    .get(&BudgetKey::from(&need.pdb))
                    .map_or(0, |budget| self.healthy_without_claims(budget)),
                movable: need.movable.0,
                pods: need.pods.0.clone(),
            })
            .collect();
        self.claim_mut_unnoted(node_uid)?;
        for held in &taken {
            self.note_first_grant(&held.pdb, 0, facts);
        }
        self.note_taken(node_uid, &taken);
        let claim = self.claim_mut_unnoted(node_uid)?;
        let holds = std::mem::take(&mut claim.holds);
        claim.state = ClaimState::Granted;
        // Where nothing is held, nothing is left of what the node was drained under; but a pod that comes later and stays is one
        // more that goes down with it.
        let stays = |held: &Disruptions| !held.movable && held.pods.iter().all(|pod| pod.retained);
        let only_stay = !claim.foreign_cordon && !taken.is_empty() && taken.iter().all(stays);
        claim.may_go_down &= !holds.is_empty() || only_stay;
        claim.holds = disruptions::normal(holds.into_iter().chain(taken));
        claim.needs.clear();
        claim.since = now;
        // Granted more after it was drained, the node may have been rebooted in between: its boot is still the one before. Under
        // another's cordon it is drained again, and the next reboot counts.
        if claim.foreign_cordon || !claim.may_go_down {
            boot_id.clone_into(&mut claim.boot_id);
        }
        claim.grant += 1;
        Some(claim.grant)
    }

    /// Takes pods into a node's claim that have begun to leave it beside that: somebody deleted them, or their budget let them go.
    /// Those behind it wait for this drain then, and not for pods that are unhealthy by themselves.
    pub fn note_forced(&mut self, node_uid: &str, leaving: Vec<Disruptions>, facts: &Facts) {
        let Some(claim) = self.claim(node_uid) else { return };
        let forced = leaving.into_iter().map(|mut leaving| {
            leaving.pods.retain(|pod| !claim.has_disruption(&pod.uid));
            leaving
        });
        let mut forced = disruptions::normal(forced);
        if forced.is_empty() {
            return;
        }
        for taken in &mut forced {
            let pods = disruptions::count(taken.pods.len());
            let budget = facts.get(&BudgetKey::from(&taken.pdb));
            taken.healthy_at_grant = budget.map_or(0, |budget| self.healthy_without_claims(budget) + pods);
            self.note_first_grant(&taken.pdb, pods, facts);
        }
        self.note_taken(node_uid, &forced);
        if let Some(claim) = self.claim_mut_unnoted(node_uid) {
            let holds = std::mem::take(&mut claim.holds);
            claim.holds = disruptions::normal(holds.into_iter().chain(forced));
        }
    }

    /// How many pods of the budget would be healthy if none were down under a claim: otherwise a pod that is down already,
    /// and comes back, would pass for one that goes down under the grant now made.
    pub(super) fn healthy_without_claims(&self, budget: &BudgetFacts) -> i32 {
        let holds = self.holders_of(&budget.key).flat_map(|claim| &claim.holds);
        let down = holds
            .filter(|u| disruptions::is_of(&u.pdb, &budget.key) && *u.pdb.uid == *budget.uid)
            .flat_map(|u| &u.pods)
            .filter(|pod| !budget.is_healthy(&pod.uid));
        disruptions::count(budget.healthy.len() + down.count())
    }

    /// Makes sure of a grant by what was read after it: only then may the first pod be evicted, or the node be rebooted.
    /// If a disruption is gone, all that can be returned is.
    pub fn confirm(
        &mut self,
        node_uid: &str,
        grant: i64,
        facts: &Facts,
        is_down: &dyn Fn(&HeldPod) -> bool,
        now: Timestamp,
    ) -> Result<(), Lost> {
        let claim = self.claim(node_uid).filter(|claim| claim.grant == grant);
        match claim.map(|claim| claim.state) {
            Some(ClaimState::Confirmed) => return Ok(()),
            Some(ClaimState::Granted) => {}
            _ => return Err(Lost::NotGranted),
        }
        let obstacles = self.broken(node_uid, facts, &|claim, pod| claim.can_return(pod, is_down));
        let Some(claim) = self.claim_mut(node_uid) else {
            return Err(Lost::NotGranted);
        };
        if obstacles.is_empty() {
            claim.state = ClaimState::Confirmed;
            claim.since = now;
            return Ok(());
        }
        let kept = claim.requeue(is_down, now);
        Err(Lost::Returned { obstacles, kept })
    }

    /// Notes that the node may go down ([`Ledger::drained`]), if what was read just now still shows the disruptions of the
    /// pods that stay: nothing evicts them, so nothing else would ask their budgets. If one is gone, all that can be
    /// returned is.
    pub fn confirm_drained(
        &mut self,
        node_uid: &str,
        fence: Fence,
        boot_id: &str,
        facts: &Facts,
        is_down: &dyn Fn(&HeldPod) -> bool,
        now: Timestamp,
    ) -> Result<(), Lost> {
        let is_confirmed =
            |claim: &Claim| claim.state == ClaimState::Confirmed && !claim.may_go_down && Fence::of(claim) == fence;
        if self.claim(node_uid).is_some_and(is_confirmed) {
            let stays_and_runs = |claim: &Claim, pod: &HeldPod| pod.retained && claim.can_return(pod, is_down);
            let obstacles = self.broken(node_uid, facts, &stays_and_runs);
            if !obstacles.is_empty()
                && let Some(claim) = self.claim_mut(node_uid)
            {
                let kept = claim.requeue(is_down, now);
                return Err(Lost::Returned { obstacles, kept });
            }
        }
        if self.drained(node_uid, fence, boot_id) {
            Ok(())
        } else {
            Err(Lost::NotGranted)
        }
    }

    /// The budgets that no longer have the disruptions of the claim's pods that stay on their node.
    pub fn lost_by_retained(&self, node_uid: &str, facts: &Facts) -> Vec<Obstacle> {
        let mut lost = self.broken(node_uid, facts, &|_, pod| pod.retained);
        // A budget that is gone forbids nothing.
        lost.retain(|obstacle| obstacle.reason != LockReason::NotPlanned);
        lost
    }

    /// The budgets of a grant that no longer have room for it, where pods of which `counts` holds rest on them. One of which
    /// every held pod is down has nothing to give back, and nothing more is taken from it: it breaks no grant, for the same
    /// grant would follow at once.
    fn broken(&self, node_uid: &str, facts: &Facts, counts: &dyn Fn(&Claim, &HeldPod) -> bool) -> Vec<Obstacle> {
        let Some(claim) = self.claim(node_uid) else {
            return Vec::new();
        };
        let held = claim.holds.iter().filter_map(|held| {
            let counted = || held.pods.iter().filter(|pod| counts(claim, pod));
            if counted().next().is_none() && !held.movable {
                return None;
            }
            let key = BudgetKey::from(&held.pdb);
            let budget = facts.get(&key).filter(|b| *b.uid == *held.pdb.uid);
            let free = budget.map_or(0, |b| b.without_owner(self.free(b)));
            let reason = match budget {
                None => LockReason::NotPlanned,
                Some(b) if !b.current => LockReason::StatusBehind,
                Some(b) if self.free(b) < 0 => b.unusable.map_or(LockReason::BudgetUnhealthy, Unusable::reason),
                Some(b) if free < 0 || b.owner_disruptions == Some(OwnerDisruptions::All) => LockReason::OwnerHold,
                Some(_) => return None,
            };
            let for_pods = budget.map_or_else(|| disruptions::count(counted().count()), |b| b.cost(counted()));
            let needed = for_pods + i32::from(held.movable);
            Some(Obstacle::of_budget(reason, &key, needed, free))
        });
        held.collect()
    }

    /// The ticket of the claim that reserves: the first in the queue that waits for disruptions which other claims hold and
    /// which will come back.
    #[cfg(test)]
    pub fn reserver(&self, facts: &Facts) -> Option<i64> {
        Reservations::of_all(self, facts).reserver()
    }

    /// The node of a claim that holds disruptions of pods that are down, waits for another such claim, and is waited for by it,
    /// and whose cordon is ours: the youngest. [`Ledger::time_out`] is to be called for it at once, for no time would
    /// end that wait. Of claims under a foreign cordon nobody can give way but whoever cordoned; they are told
    /// (`CircularWait`), and reserve nothing.
    pub fn gives_way(&self, facts: &Facts) -> Option<&str> {
        let reservations = Reservations::new(self, facts);
        let claim = Waits::new(self, facts, &reservations).gives_way();
        claim.map(|claim| claim.node_uid.as_str())
    }

    /// Whether a pod may go that no claim holds a disruption for: a movable one of a draining node, or one of any other node. It goes by
    /// the disruption that its node's claim holds for movable pods, or else by one that is free after grants, owners' holds
    /// and reservations of claims ahead of its node's.
    pub fn admits(
        &self,
        node_uid: Option<&str>,
        budget: &BudgetFacts,
        reservations: &Reservations,
    ) -> Result<(), Obstacle> {
        let left = self.spares(node_uid, budget)?;
        let claim = node_uid.and_then(|uid| self.claim(uid));
        if claim.is_some_and(|claim| claim.gives_movable(budget)) {
            return Ok(());
        }
        let place = claim.map_or(usize::MAX, |claim| reservations.place_of(claim.ticket));
        match reservations.ahead_of(place, &budget.key) {
            Some((reserved, node)) if left <= reserved => Err(Obstacle {
                holder: Some(node.clone()),
                ..Obstacle::of_budget(LockReason::Reserved, &budget.key, 1, left - reserved)
            }),
            _ => Ok(()),
        }
    }

    /// How many disruptions there are for such a pod, whoever is to have them; at least one.
    pub fn spares(&self, node_uid: Option<&str>, budget: &BudgetFacts) -> Result<i32, Obstacle> {
        let claim = node_uid.and_then(|uid| self.claim(uid));
        let own = claim.is_some_and(|claim| claim.gives_movable(budget));
        let free = self.free(budget) + i32::from(own);
        let left = budget.without_owner(free);
        if left >= 1 {
            return Ok(left);
        }
        if let Some(unusable @ (Unusable::ClosedForNow | Unusable::SyncFailed)) = budget.unusable {
            return Err(Obstacle::of_budget(unusable.reason(), &budget.key, 1, 0));
        }
        if free >= 1 {
            return Err(Obstacle::of_budget(LockReason::OwnerHold, &budget.key, 1, left));
        }
        let has_some = |claim: &Claim| claim.disruptions_of(budget) + claim.moving_of(budget) > 0;
        let is_other = |claim: &&Claim| Some(claim.node_uid.as_str()) != node_uid && has_some(claim);
        let holder = self.holders_of(&budget.key).find(is_other);
        let is_to_be_confirmed =
            claim.is_some_and(|claim| claim.state == ClaimState::Granted && claim.has_movable_disruption(&budget.key));
        let is_replaced_first = claim.is_some_and(has_some);
        let reason = match (&holder, budget.unusable) {
            _ if is_to_be_confirmed => LockReason::AwaitsConfirmation,
            (Some(_), _) => LockReason::WaitsForDisruptions,
            (None, Some(unusable)) => unusable.reason(),
            (None, None) if is_replaced_first => LockReason::AwaitingReady,
            (None, None) => LockReason::BudgetUnhealthy,
        };
        Err(Obstacle {
            holder: holder.map(|claim| claim.node.as_str().into()),
            ..Obstacle::of_budget(reason, &budget.key, 1, free)
        })
    }
}
