//! The ledger of claims on disruption budgets: who waits, who holds which disruptions, and who may go next.
//!
//! One object holds all of it, so a grant of every disruption that a node needs is one write with a resourceVersion. What is
//! here is the pure state machine: the functions change a copy, and the caller writes it back, or reads again when
//! somebody else was faster. The rules:
//!
//! - **All or nothing.** A claim gets every disruption that the pods of its node need in one grant, or none.
//! - **A claim never grows while it holds.** A new need returns the disruptions of running pods and queues the whole need
//!   again ([`Ledger::set_needs`]).
//! - **First come, first served, with few reservations.** Only the first claim in the queue that waits for disruptions which
//!   other claims hold, and which will come back, reserves; only what it needs; all others go ahead wherever there are
//!   disruptions.
//! - **Disruptions whose pods are down come back by observation alone** ([`Ledger::return_pods`]), or by an audited override.
//! - **An eviction belongs to a grant** ([`Ledger::may_evict`]): a drainer that was paused acts on nothing but the grant
//!   that is in force.

mod budget_row;
mod claim;
mod disruptions;
mod facts;
mod fence;
mod grant;
mod holders;
mod leaderless;
mod moving;
mod needs;
mod node_groups;
mod obstacle;
mod recovery;
mod release;
mod reservations;
pub mod size;
mod stored;
#[cfg(test)]
mod tests;
mod waits;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use jiff::Timestamp;
use nodeward_api::budget_ref::BudgetRef;

pub use nodeward_api::drain_ledger::{ClaimState, Leaderless};

pub use budget_row::{BudgetRow, FirstGrant};
pub use claim::{Claim, Disruptions, HeldPod, Need, Unstored};
pub use facts::{BudgetFacts, BudgetPods, Facts, OwnerDisruptions, Unusable};
pub use fence::Fence;
pub use grant::Lost;
pub use leaderless::until;
pub use needs::NeedChange;
pub use node_groups::{GroupObstacle, NodeGroupVerdict};
pub use obstacle::Obstacle;
pub use recovery::HeldPodState;
pub use release::{Released, TimedOut};
pub use reservations::Reservations;
pub use waits::circle_of;

use holders::{KnownHolders, LastFound};

/// The ledger. Its stored form is [`nodeward_api::drain_ledger`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// The ticket that the next drain gets.
    pub next_ticket: i64,
    /// The claims, in the order of their tickets; one a node.
    pub claims: Vec<Claim>,
    /// Times without a leader, the oldest first.
    pub leaderless: Vec<Leaderless>,
    /// What is kept of budgets beside what claims need and hold of them. Only that of budgets which a claim names is stored.
    pub budgets: BTreeMap<BudgetRef, BudgetRow>,
    holders: KnownHolders,
    last_found: LastFound,
    version: Version,
}

/// Tells apart what a ledger in memory was at different moments. No part of what it says.
#[derive(Debug, Clone, Copy, Default)]
struct Version(u64);

impl PartialEq for Version {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Version {}

impl Hash for Version {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Default for Ledger {
    fn default() -> Self {
        Self::of(0, Vec::new())
    }
}

impl Ledger {
    pub fn of(next_ticket: i64, claims: Vec<Claim>) -> Self {
        Self {
            next_ticket,
            claims,
            leaderless: Vec::new(),
            budgets: BTreeMap::new(),
            holders: KnownHolders::default(),
            last_found: LastFound::default(),
            version: Version::default(),
        }
    }

    /// The claims, in the order of their tickets.
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    pub fn claim(&self, node_uid: &str) -> Option<&Claim> {
        self.claims.get(self.place_of(node_uid)?)
    }

    /// The place of a node's claim among all.
    fn place_of(&self, node_uid: &str) -> Option<usize> {
        let is_it = |claim: &Claim| claim.node_uid == node_uid;
        // A plan asks for one claim many times, and then for the next.
        let last = self.last_found.get().min(self.claims.len());
        let (before, from_last) = self.claims.split_at(last);
        let place = from_last.iter().position(is_it).map(|place| last + place);
        let place = place.or_else(|| before.iter().position(is_it))?;
        self.last_found.set(place);
        Some(place)
    }

    /// The claim of a node, to be changed.
    fn claim_mut(&mut self, node_uid: &str) -> Option<&mut Claim> {
        self.note_change();
        self.claim_mut_unnoted(node_uid)
    }

    /// The same, where neither what it holds nor its state changes, or the caller notes that it did.
    fn claim_mut_unnoted(&mut self, node_uid: &str) -> Option<&mut Claim> {
        let place = self.place_of(node_uid)?;
        self.claims.get_mut(place)
    }

    /// Forgets what followed from the claims as they were.
    fn note_change(&mut self) {
        self.holders = KnownHolders::default();
        self.version.0 += 1;
    }

    /// Puts a node into the queue and answers with its ticket; for a node that is in it, nothing changes but who
    /// cordoned it.
    ///
    /// Grants are counted from the milliseconds of `now`, so that a ledger which was deleted and made again repeats no
    /// [`Fence`].
    pub fn enqueue(&mut self, node: &str, node_uid: &str, foreign_cordon: bool, now: Timestamp) -> i64 {
        if let Some(ticket) = self.claim(node_uid).map(|claim| claim.ticket) {
            if let Some(claim) = self.claim_mut_unnoted(node_uid) {
                claim.foreign_cordon = foreign_cordon;
            }
            return ticket;
        }
        let ticket = self.next_ticket();
        self.claims.push(Claim {
            ticket,
            node: node.to_owned(),
            node_uid: node_uid.to_owned(),
            state: ClaimState::Waiting,
            may_go_down: false,
            since: now,
            queued_at: now,
            grant: now.as_millisecond(),
            boot_id: String::new(),
            foreign_cordon,
            obstructed_since: None,
            reserves: false,
            node_groups: Vec::new(),
            needs: Vec::new(),
            holds: Vec::new(),
            moving: Vec::new(),
        });
        ticket
    }

    /// Notes since when a pod of the claim has had an obstacle that no other drain's end lifts; `None`: it has none. The first
    /// one's time stays.
    pub fn note_obstacle(&mut self, node_uid: &str, since: Option<Timestamp>) {
        if let Some(claim) = self.claim_mut_unnoted(node_uid) {
            claim.obstructed_since = since.map(|since| claim.obstructed_since.unwrap_or(since));
        }
    }

    /// Queues the claim of a node anew that is drained under another program's cordon before the pods of its last drain are back:
    /// they stay owed, with the node's places in its groups, for under that cordon they do not come back before.
    pub fn take_over(&mut self, node_uid: &str, now: Timestamp) {
        if self
            .claim(node_uid)
            .is_none_or(|claim| claim.state != ClaimState::Returning)
        {
            return;
        }
        self.move_to_the_end(node_uid);
        if let Some(claim) = self.claim_mut(node_uid) {
            claim.enter(ClaimState::Waiting);
            // Whoever was told that its node may go down relies on that for the pods that stay.
            claim.may_go_down &= !claim.holds.is_empty();
            (claim.since, claim.queued_at) = (now, now);
        }
    }

    /// Puts the claim of a node back to what it is in `before`, whatever was made of it since: what that rested on could not
    /// be read, or is not so. What was made of other claims stands.
    pub fn put_back(&mut self, node_uid: &str, before: &Self) {
        self.note_change();
        self.claims.retain(|claim| claim.node_uid != node_uid);
        self.claims.extend(before.claim(node_uid).cloned());
        self.claims.sort_by_key(|claim| claim.ticket);
    }

    fn next_ticket(&mut self) -> i64 {
        let last = self.claims.iter().map(|claim| claim.ticket).max().unwrap_or_default();
        let ticket = self.next_ticket.max(last + 1).max(1);
        self.next_ticket = ticket + 1;
        ticket
    }

    /// Disruptions of a budget that no claim has: `min(disruptionsAllowed, healthy − desiredHealthy)`, less the healthy pods
    /// that claims hold, by whichever budget. Negative when something else took what was granted.
    ///
    /// Both bounds are needed: an accepted eviction lowers `disruptionsAllowed` at once and the healthy pods only later,
    /// and a pod that stopped being ready lowers the healthy pods at once and `disruptionsAllowed` only later.
    pub fn free(&self, budget: &BudgetFacts) -> i32 {
        let claims = self.holders_near(budget);
        let granted: i32 = claims.map(|claim| claim.outstanding(budget, &[])).sum();
        budget.unbroken() - granted
    }

    /// Whether any claim holds a disruption for this pod.
    pub fn is_held(&self, pod_uid: &str) -> bool {
        self.holders_for(pod_uid).any(|claim| claim.has_disruption(pod_uid))
    }

    /// Whether this grant is in force and has a disruption for the pod: what an eviction of a held pod, and a reboot over a
    /// retained one, must ask.
    pub fn may_evict(&self, node_uid: &str, fence: Fence, pod_uid: &str) -> bool {
        self.claim(node_uid).is_some_and(|claim| {
            claim.state == ClaimState::Confirmed && Fence::of(claim) == fence && claim.has_disruption(pod_uid)
        })
    }

    /// Notes that the node may go down at any moment: to be written before anybody is told that it is drained. From then
    /// on its retained pods count as down, so that no disruption of theirs can be returned by a write. What counts as its reboot
    /// follows this boot: a node that crashed before has yet to be rebooted. Answers whether the grant is in force; if
    /// not, nobody may be told.
    pub fn drained(&mut self, node_uid: &str, fence: Fence, boot_id: &str) -> bool {
        let Some(claim) = self
            .claim_mut(node_uid)
            .filter(|claim| claim.state == ClaimState::Confirmed && Fence::of(claim) == fence)
        else {
            return false;
        };
        // Said again after the reboot, it is still about the boot before.
        if !claim.may_go_down && !boot_id.is_empty() {
            boot_id.clone_into(&mut claim.boot_id);
        }
        claim.may_go_down = true;
        true
    }

    /// Whether the claim of the node is confirmed and has a disruption for the pod: what an eviction by somebody else, from a
    /// node that drains, must ask.
    pub fn admits_requester(&self, node_uid: &str, pod_uid: &str) -> bool {
        let claim = self.claim(node_uid);
        claim.is_some_and(|claim| claim.state == ClaimState::Confirmed && claim.has_disruption(pod_uid))
    }
}
