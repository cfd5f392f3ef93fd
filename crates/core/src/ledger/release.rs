//! How disruptions come back: by a write while their pods run, by observation once they are down, and never by time alone.

use std::collections::BTreeSet;

use jiff::Timestamp;
use nodeward_api::drain_ledger::ClaimState;

use super::{Claim, HeldPod, Ledger, disruptions};

/// What became of a claim whose time ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimedOut {
    /// Nothing: the node has no claim; it may go down at any moment, or is suspect, and what it holds is never freed by
    /// time; or its pods are on their way back already.
    Unchanged,
    /// It waits and holds nothing: it keeps its place, and its turn begins anew.
    KeepsWaiting,
    /// All its disruptions are returned, and it is at the end of the queue.
    Requeued {
        /// Its new ticket.
        ticket: i64,
    },
    /// Pods are down, and the cordon is ours: the node is to be uncordoned. The claim asks for nothing until its pods
    /// are back, and is then at this place.
    ComesBack {
        /// Its new ticket.
        ticket: i64,
        /// Disruptions that stay with it until their pods are back.
        kept: usize,
    },
    /// Pods are down, and the cordon is not ours: the claim keeps its ticket and goes ahead of every claim that needs
    /// what it holds.
    KeepsPlace {
        /// Disruptions that stay with it.
        kept: usize,
    },
}

/// What became of a claim that was let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// There was none.
    NoClaim,
    /// Nothing was down, and its node counts as away in no group: the claim is gone.
    Gone,
    /// Pods are down, and their disruptions stay until the pods are observed back; or the node counts as away in a group
    /// until it is back.
    ComesBack {
        /// How many.
        kept: usize,
    },
}

impl Claim {
    /// Whether it has its node come back before it queues again: as long as that is cordoned by us, it counts as away in
    /// its groups.
    fn returns_its_node(&self) -> bool {
        !self.node_groups.is_empty() && !self.foreign_cordon
    }
}

impl Ledger {
    /// Has the node count as one that is away in these groups: before it is cordoned, or with its grant. Answers whether it
    /// has a claim that may.
    pub fn take_node_groups(&mut self, node_uid: &str, groups: &[String]) -> bool {
        let claim = self.claim_mut_unnoted(node_uid);
        let Some(claim) = claim.filter(|claim| claim.state != ClaimState::Returning) else {
            return false;
        };
        for group in groups {
            if !claim.node_groups.contains(group) {
                claim.node_groups.push(group.clone());
            }
        }
        claim.node_groups.sort_unstable();
        true
    }

    /// The node is back, or will never be: it counts as away in no group any more. With `kept`, those alone that still
    /// exist.
    pub fn return_node_groups(&mut self, node_uid: &str, keeps: impl Fn(&str) -> bool) {
        let returns = |claim: &Claim| !claim.node_groups.iter().all(|group| keeps(group));
        if !self.claim(node_uid).is_some_and(returns) {
            return;
        }
        if let Some(claim) = self.claim_mut(node_uid) {
            claim.node_groups.retain(|group| keeps(group));
            claim.settle();
        }
    }

    /// Whether the claim has disruptions that a write can give back.
    pub fn has_unused(&self, node_uid: &str, is_down: &dyn Fn(&HeldPod) -> bool) -> bool {
        self.claim(node_uid).is_some_and(|claim| {
            let mut pods = claim.held_pods();
            claim.holds.iter().any(|held| held.movable) || pods.any(|pod| claim.can_return(pod, is_down))
        })
    }

    /// Gives up what a claim whose time ran out can give up, and queues it again.
    pub fn time_out(&mut self, node_uid: &str, is_down: &dyn Fn(&HeldPod) -> bool, now: Timestamp) -> TimedOut {
        let Some(claim) = self.claim_mut(node_uid) else {
            return TimedOut::Unchanged;
        };
        match claim.state {
            ClaimState::Waiting if claim.holds.is_empty() && (claim.may_go_down || !claim.returns_its_node()) => {
                claim.queued_at = now;
                TimedOut::KeepsWaiting
            }
            ClaimState::Waiting | ClaimState::Granted | ClaimState::Confirmed if !claim.may_go_down => {
                let kept = claim.requeue(is_down, now);
                let foreign = claim.foreign_cordon;
                match kept {
                    0 if !claim.returns_its_node() => TimedOut::Requeued {
                        ticket: self.move_to_the_end(node_uid),
                    },
                    _ if foreign => TimedOut::KeepsPlace { kept },
                    _ => {
                        claim.needs.clear();
                        claim.state = ClaimState::Returning;
                        let ticket = self.move_to_the_end(node_uid);
                        TimedOut::ComesBack { ticket, kept }
                    }
                }
            }
            _ => TimedOut::Unchanged,
        }
    }

    /// Lets a claim go: its node was uncordoned, its drain is over or was called off. The disruptions of running pods are
    /// returned; those of pods that are down stay until the pods are observed back. Nothing may be evicted under it any
    /// more.
    ///
    /// A retained pod of a node that may go down counts as down until it is back, however often its claim is let go. One that
    /// is suspect stays so: nobody knows when its pods are back.
    pub fn release(&mut self, node_uid: &str, is_down: &dyn Fn(&HeldPod) -> bool, now: Timestamp) -> Released {
        let Some(claim) = self.claim_mut(node_uid) else {
            return self
                .claim(node_uid)
                .map_or(Released::NoClaim, |claim| Released::ComesBack {
                    kept: claim.held_disruptions(),
                });
        };
        if claim.state == ClaimState::Returning || claim.state == ClaimState::Suspect {
            claim.return_running(is_down);
        } else {
            claim.requeue(is_down, now);
            claim.enter(ClaimState::Returning);
        }
        claim.foreign_cordon = false;
        claim.needs.clear();
        let kept = claim.held_disruptions();
        if self.remove(node_uid) {
            return Released::Gone;
        }
        Released::ComesBack { kept }
    }

    /// Returns the disruptions of pods that were observed back; answers how many. What is not held is ignored.
    pub fn return_pods<Uid: AsRef<str>>(&mut self, node_uid: &str, back: &[Uid]) -> usize {
        let back: BTreeSet<&str> = back.iter().map(AsRef::as_ref).collect();
        let Some(claim) = self.claim_mut(node_uid) else {
            return 0;
        };
        let returned = disruptions::retain(&mut claim.holds, |_, pod| !back.contains(pod.uid.as_str()));
        claim.settle();
        returned
    }

    /// Notes that whoever drained has vanished while disruptions are held. Answers whether the claim is suspect now; a claim
    /// that holds nothing never is, nor one that waits for its own pods alone: nobody has to go on with it.
    pub fn suspect(&mut self, node_uid: &str, now: Timestamp) -> bool {
        let can_be = |claim: &&mut Claim| !claim.holds.is_empty() && claim.state != ClaimState::Returning;
        let Some(claim) = self.claim_mut(node_uid).filter(can_be) else {
            return false;
        };
        if claim.state != ClaimState::Suspect {
            // Nobody evicts under it.
            disruptions::retain_movable(&mut claim.holds, |_| false);
            claim.enter(ClaimState::Suspect);
            claim.since = now;
        }
        true
    }

    /// Notes that the pods that a claim waits for are not back in time: from now on nobody knows when they will be, and no
    /// other claim waits for them in particular. Answers whether it is suspect by that.
    pub fn suspect_overdue(&mut self, node_uid: &str, now: Timestamp) -> bool {
        let is_overdue = |claim: &&mut Claim| !claim.holds.is_empty() && claim.state == ClaimState::Returning;
        let Some(claim) = self.claim_mut(node_uid).filter(is_overdue) else {
            return false;
        };
        claim.enter(ClaimState::Suspect);
        claim.since = now;
        true
    }

    /// Notes that the drainer of a suspect claim is back. What it holds is granted again and must be confirmed anew; if
    /// it needs more than it holds, it waits for that. Answers whether the claim was suspect.
    pub fn resume(&mut self, node_uid: &str, now: Timestamp) -> bool {
        let Some(claim) = self
            .claim_mut(node_uid)
            .filter(|claim| claim.state == ClaimState::Suspect)
        else {
            return false;
        };
        if claim.needs.is_empty() && !claim.holds.is_empty() {
            claim.enter(ClaimState::Granted);
        } else {
            claim.queued_at = now;
            claim.enter(ClaimState::Waiting);
        }
        claim.since = now;
        true
    }

    /// Removes a claim that holds nothing; answers whether the node has none now.
    pub fn remove(&mut self, node_uid: &str) -> bool {
        let keeps = |claim: &Claim| !claim.holds.is_empty() || !claim.node_groups.is_empty();
        if self.claim(node_uid).is_some_and(keeps) {
            return false;
        }
        self.note_change();
        self.claims.retain(|claim| claim.node_uid != node_uid);
        true
    }

    /// Removes a claim with all that it holds: the audited override of an administrator, who says that nothing is down.
    /// Answers with what was removed, for the record.
    pub fn release_by_override(&mut self, node_uid: &str) -> Option<Claim> {
        let at = self.place_of(node_uid)?;
        self.note_change();
        Some(self.claims.remove(at))
    }

    /// Gives the claim a new ticket, the last one.
    pub(super) fn move_to_the_end(&mut self, node_uid: &str) -> i64 {
        let ticket = self.next_ticket();
        if let Some(claim) = self.claim_mut(node_uid) {
            claim.ticket = ticket;
        }
        self.note_change();
        self.claims.sort_by_key(|claim| claim.ticket);
        ticket
    }
}
