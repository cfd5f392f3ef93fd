//! What a claim asks for, and what becomes of a need that changes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nodeward_api::drain_ledger::ClaimState;

use super::claim::Unstored;
use super::{BudgetFacts, Claim, Disruptions, Facts, HeldPod, Ledger, Need, Reservations, disruptions};
use crate::id::BudgetKey;

/// What a new need made of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeedChange {
    /// The node has no claim.
    NoClaim,
    /// Nothing changed: it is the same need, or all of it is held.
    Unchanged,
    /// The claim waits, or is suspect, and asks for this from now on.
    Planned,
    /// The claim drains and needs less: the disruptions of running pods that are no longer needed are returned.
    Shrunk {
        /// How many.
        returned: usize,
    },
    /// The claim drained and needs more: the disruptions of running pods are returned, and the whole need is queued under the
    /// same ticket.
    Requeued {
        /// Disruptions that were returned.
        returned: usize,
        /// Disruptions that stay with the claim, for their pods are down.
        kept: usize,
    },
    /// The claim waits for its own pods, and asks for nothing until they are back.
    ComesBack,
}

impl Ledger {
    /// Says what the claim needs; nothing: it has its place in the queue, and asks and reserves nothing. A claim never
    /// grows while it holds.
    ///
    /// A pod is down when its disruption cannot be given back by a write: it is gone, terminating, evicted, or was retained
    /// and its node has gone down since.
    pub fn set_needs(
        &mut self,
        node_uid: &str,
        needs: Vec<Disruptions>,
        is_down: &dyn Fn(&HeldPod) -> bool,
        now: Timestamp,
    ) -> NeedChange {
        let needs = disruptions::normal(needs);
        match self.claim(node_uid).map(|claim| claim.state) {
            None => return NeedChange::NoClaim,
            Some(ClaimState::Returning) => return NeedChange::ComesBack,
            Some(state) if !state.has_grant() => return self.plan_needs(node_uid, &needs),
            Some(_) => {}
        }
        let Some(claim) = self.claim_mut_unnoted(node_uid) else {
            return NeedChange::NoClaim;
        };
        // Most take up the same need again in each pass: what is worked out of the ledger stands until something changes.
        let before = claim.clone();
        let change = claim.change_needs(&needs, is_down, now);
        if *claim != before {
            self.note_change();
        }
        change
    }
}

impl Ledger {
    /// The same, where the reservations that are known follow if they can.
    pub fn set_needs_before(
        &mut self,
        reservations: &mut Reservations,
        node_uid: &str,
        needs: Vec<Disruptions>,
        is_down: &dyn Fn(&HeldPod) -> bool,
        now: Timestamp,
    ) -> NeedChange {
        let before = self.version.0;
        let change = self.set_needs(node_uid, needs, is_down, now);
        reservations.follow(change, node_uid, before, self);
        change
    }

    /// Of a claim that has its grant, and of which no movable pods of a budget are left, gives the disruption that was for them to a
    /// held pod which waits for it, or back.
    pub fn settle_movable(&mut self, node_uid: &str, needs: &[Disruptions]) {
        let is_settled = |claim: &Claim| {
            let mut movable = claim.holds.iter().filter(|held| held.movable);
            !claim.state.has_grant() || movable.all(|held| disruptions::has_movable(needs, &held.pdb))
        };
        if self.claim(node_uid).is_none_or(is_settled) {
            return;
        }
        if let Some(claim) = self.claim_mut(node_uid) {
            disruptions::hand_on_movable(&mut claim.holds, needs);
            disruptions::retain_movable(&mut claim.holds, |pdb| disruptions::has_movable(needs, pdb));
        }
    }

    fn plan_needs(&mut self, node_uid: &str, needs: &[Disruptions]) -> NeedChange {
        let Some(claim) = self.claim_mut_unnoted(node_uid) else {
            return NeedChange::NoClaim;
        };
        let state = claim.state;
        let change = claim.plan(needs);
        if change != NeedChange::Unchanged || claim.state != state {
            self.version.0 += 1;
        }
        change
    }

    /// Keeps the hashes of the containers of retained pods, by UID: another hash after the reboot says that the pod was
    /// started anew.
    pub fn note_containers(&mut self, node_uid: &str, hashes: &BTreeMap<String, String>) {
        let Some(claim) = self.claim_mut_unnoted(node_uid) else {
            return;
        };
        for pod in claim.holds.iter_mut().flat_map(|held| &mut held.pods) {
            if let Some(hash) = hashes.get(&pod.uid).filter(|_| pod.retained) {
                hash.clone_into(&mut pod.containers);
            }
        }
    }

    /// Counts what the ledger stores of the needs that this process has planned, and notes who reserves.
    pub fn count_needs(&mut self, facts: &Facts) {
        self.version.0 += 1;
        for claim in &mut self.claims {
            let mut needs = std::mem::take(&mut claim.needs);
            for need in needs.iter_mut().filter(|need| need.is_planned()) {
                (need.disruptions, need.healthy, need.several) = need.counted(claim, facts);
            }
            claim.needs = needs;
        }
        let reserver = Reservations::of_all(self, facts).reserver();
        for claim in &mut self.claims {
            claim.reserves = Some(claim.ticket) == reserver;
        }
    }
}

/// All of its pods count, until they are looked at ([`Ledger::count_needs`]).
impl From<Disruptions> for Need {
    fn from(needed: Disruptions) -> Self {
        let disruptions = disruptions::count(needed.pods.len()) + i32::from(needed.movable);
        Self {
            pdb: needed.pdb,
            disruptions,
            healthy: disruptions,
            several: None,
            pods: Unstored(needed.pods),
            movable: Unstored(needed.movable),
        }
    }
}

impl Need {
    /// Whether its pods are known.
    pub(super) fn is_planned(&self) -> bool {
        !self.pods.0.is_empty() || self.movable.0
    }

    /// How many disruptions it needs, how many of them it takes from what is free, and a pod that several budgets select: of the
    /// pods, where they are known, and else as it was counted last.
    pub(super) fn counted(&self, claim: &Claim, facts: &Facts) -> (i32, i32, Option<String>) {
        if !self.is_planned() {
            return (self.disruptions, self.healthy, self.several.clone());
        }
        let budget = facts.get(&BudgetKey::from(&self.pdb));
        let movable = i32::from(self.movable.0 && !disruptions::has_movable(&claim.holds, &self.pdb));
        // A budget that was made again may have had pods of this claim before.
        let is_new = |pod: &&HeldPod| !disruptions::holds_pod_of(&claim.holds, &self.pdb, &pod.uid);
        let new = self.pods.0.iter().filter(is_new);
        let beyond = match budget {
            Some(budget) => {
                let held = || disruptions::pods_of(&claim.holds, &self.pdb);
                budget.cost(held().chain(new)) - budget.cost(held())
            }
            None => disruptions::count(new.count()),
        } + movable;
        // An unready pod needs a disruption that is its own already, for it is not counted as healthy; should it turn ready, it
        // counts on both sides.
        let healthy = budget.map_or(0, |budget| {
            let before = claim.outstanding(budget, &[]);
            (claim.outstanding(budget, &self.pods.0) - before).max(0) + movable
        });
        // The eviction API refuses such a pod; one that stays is not evicted.
        let is_refused =
            |pod: &&HeldPod| !pod.retained && budget.is_some_and(|budget| budget.several.contains(pod.uid.as_str()));
        let several = self.pods.0.iter().find(is_refused).map(|pod| pod.name.clone());
        (beyond, healthy, several)
    }
}

impl Claim {
    /// How many disruptions of a budget have yet to be taken for the pods that it holds, by whichever budget, and for `more`; with
    /// the one for movable pods, while none of them is on its way: another may be next.
    pub(super) fn outstanding(&self, budget: &BudgetFacts, more: &[HeldPod]) -> i32 {
        let of_budget = |disruptions: &Disruptions| {
            disruptions::is_of(&disruptions.pdb, &budget.key) && *disruptions.pdb.uid == *budget.uid
        };
        let held = self.holds.iter().flat_map(|disruptions| {
            let is_own = of_budget(disruptions);
            let pods = disruptions.pods.iter();
            pods.filter(move |pod| is_own || budget.is_healthy(&pod.uid))
        });
        let mut pods: Vec<&HeldPod> = more.iter().chain(held).collect();
        pods.sort_by(|a, b| a.uid.cmp(&b.uid));
        pods.dedup_by(|a, b| a.uid == b.uid);
        budget.outstanding(pods) + i32::from(self.has_unused_for_movable(budget))
    }

    /// Holds nothing for these pods any more, nor for movable ones, if those are among them.
    pub(super) fn forget(&mut self, needed: &Disruptions) {
        disruptions::retain(&mut self.holds, |_, held| {
            needed.pods.iter().all(|pod| pod.uid != held.uid)
        });
        disruptions::retain_movable(&mut self.holds, |pdb| !needed.movable || *pdb != needed.pdb);
    }

    /// Whether a write can give the pod's disruption back: it runs, and its node will not take it down at any moment.
    pub(super) fn can_return(&self, pod: &HeldPod, is_down: &dyn Fn(&HeldPod) -> bool) -> bool {
        !(is_down(pod) || self.takes_retained_down() && pod.retained)
    }

    /// Returns the disruptions of running pods and queues the whole need under the same ticket; answers how many disruptions stay.
    pub(super) fn requeue(&mut self, is_down: &dyn Fn(&HeldPod) -> bool, now: Timestamp) -> usize {
        for disruptions in self.holds.clone() {
            let returned = disruptions.pods.iter().filter(|pod| self.can_return(pod, is_down));
            self.ask_again(Disruptions {
                pods: returned.cloned().collect(),
                ..disruptions.clone()
            });
        }
        self.return_running(is_down);
        self.enter(ClaimState::Waiting);
        self.since = now;
        self.queued_at = now;
        self.held_disruptions()
    }

    /// Returns the disruptions that a write can give back.
    pub(super) fn return_running(&mut self, is_down: &dyn Fn(&HeldPod) -> bool) {
        let mut holds = std::mem::take(&mut self.holds);
        disruptions::retain(&mut holds, |_, pod| !self.can_return(pod, is_down));
        disruptions::retain_movable(&mut holds, |_| false);
        self.holds = holds;
    }

    /// Asks for disruptions that were returned.
    fn ask_again(&mut self, returned: Disruptions) {
        if returned.is_empty() {
            return;
        }
        let before = self.needs.iter().position(|need| need.pdb == returned.pdb);
        let mut need = Need::from(returned);
        if let Some(before) = before.map(|at| self.needs.remove(at)) {
            need.disruptions += before.disruptions;
            need.healthy += before.healthy;
            need.pods.0.extend(before.pods.0);
            need.movable.0 |= before.movable.0;
        }
        self.needs.push(need);
        self.needs.sort_by(|a, b| a.pdb.cmp(&b.pdb));
    }

    /// Takes up what a claim that was granted needs now.
    fn change_needs(
        &mut self,
        needs: &[Disruptions],
        is_down: &dyn Fn(&HeldPod) -> bool,
        now: Timestamp,
    ) -> NeedChange {
        disruptions::hand_on_movable(&mut self.holds, needs);
        if disruptions::missing(needs, &self.holds).is_empty() {
            disruptions::retain_pods(&mut self.holds, needs);
            return self.shrink(needs, is_down);
        }
        let before = self.held_disruptions();
        let kept = self.requeue(is_down, now);
        self.plan(needs);
        NeedChange::Requeued {
            returned: before - kept,
            kept,
        }
    }

    /// Asks for what it does not hold of these needs.
    fn plan(&mut self, needs: &[Disruptions]) -> NeedChange {
        let missing = disruptions::missing(needs, &self.holds);
        let beyond: Vec<Need> = missing.into_iter().map(Need::from).collect();
        let is_same = self.needs == beyond;
        self.needs = beyond;
        if self.state != ClaimState::Suspect {
            self.enter(ClaimState::Waiting);
        }
        if is_same {
            NeedChange::Unchanged
        } else {
            NeedChange::Planned
        }
    }

    /// Returns the disruptions of running pods, and of movable ones, that are no longer needed.
    fn shrink(&mut self, needs: &[Disruptions], is_down: &dyn Fn(&HeldPod) -> bool) -> NeedChange {
        let mut holds = std::mem::take(&mut self.holds);
        let returned = disruptions::retain(&mut holds, |_, pod| {
            disruptions::holds_pod(needs, &pod.uid) || !self.can_return(pod, is_down)
        }) + disruptions::retain_movable(&mut holds, |pdb| disruptions::has_movable(needs, pdb));
        self.holds = holds;
        if returned == 0 {
            NeedChange::Unchanged
        } else {
            NeedChange::Shrunk { returned }
        }
    }
}
