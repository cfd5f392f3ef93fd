//! How units come back: by a write while their pods run, by observation once they are down, and never by time alone.

use std::collections::BTreeSet;

use jiff::Timestamp;
use nodeward_api::drain_ledger::{Claim, ClaimState, HeldPod};

use super::needs::Turn;
use super::{Ledger, units};

/// What became of a claim whose time ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimedOut {
    /// Nothing: the node has no claim; it may go down at any moment, or is suspect, and what it holds is never freed by
    /// time; or its pods are on their way back already.
    Unchanged,
    /// It waits and holds nothing: it keeps its place, and its turn begins anew.
    KeepsWaiting,
    /// All its units are returned, and it is at the end of the queue.
    Requeued {
        /// Its new ticket.
        ticket: i64,
    },
    /// Pods are down, and the cordon is ours: the node is to be uncordoned. The claim asks for nothing until its pods
    /// are back, and is then at this place.
    ComesBack {
        /// Its new ticket.
        ticket: i64,
        /// Units that stay with it until their pods are back.
        kept: usize,
    },
    /// Pods are down, and the cordon is not ours: the claim keeps its ticket and goes ahead of every claim that needs
    /// what it holds.
    KeepsPlace {
        /// Units that stay with it.
        kept: usize,
    },
}

/// What became of a claim that was let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// There was none.
    NoClaim,
    /// Nothing was down: the claim is gone.
    Gone,
    /// Pods are down: their units stay until the pods are observed back.
    ComesBack {
        /// How many.
        kept: usize,
    },
}

impl Ledger {
    /// Gives up what a claim whose time ran out can give up, and queues it again.
    pub fn time_out(&mut self, node_uid: &str, is_down: &dyn Fn(&HeldPod) -> bool, now: Timestamp) -> TimedOut {
        let Some(claim) = self.claim_mut(node_uid) else {
            return TimedOut::Unchanged;
        };
        let holds_nothing = claim.holds.is_empty();
        match claim.state {
            ClaimState::Suspect => TimedOut::Unchanged,
            ClaimState::Waiting if holds_nothing => {
                claim.queued_at = now;
                TimedOut::KeepsWaiting
            }
            _ if claim.drained => TimedOut::Unchanged,
            ClaimState::Waiting if Self::comes_back(claim) => TimedOut::Unchanged,
            ClaimState::Waiting | ClaimState::Granted | ClaimState::Confirmed => {
                let kept = claim.requeue(is_down, now);
                let foreign = claim.foreign_cordon;
                match kept {
                    0 => TimedOut::Requeued {
                        ticket: self.move_to_the_end(node_uid),
                    },
                    _ if foreign => TimedOut::KeepsPlace { kept },
                    _ => {
                        claim.needs.clear();
                        claim.drained = false;
                        let ticket = self.move_to_the_end(node_uid);
                        TimedOut::ComesBack { ticket, kept }
                    }
                }
            }
        }
    }

    /// Lets a claim go: its node was uncordoned, its drain is over or was called off. The units of running pods are
    /// returned; those of pods that are down stay until the pods are observed back. Nothing may be evicted under it any
    /// more.
    ///
    /// A retained pod counts as down until it is back.
    pub fn release(&mut self, node_uid: &str, is_down: &dyn Fn(&HeldPod) -> bool, now: Timestamp) -> Released {
        let Some(claim) = self.claim_mut(node_uid) else {
            return Released::NoClaim;
        };
        let kept = if Self::comes_back(claim) {
            units::retain(&mut claim.holds, |_, pod| is_down(pod));
            units::len(&claim.holds)
        } else {
            claim.requeue(is_down, now)
        };
        claim.foreign_cordon = false;
        claim.drained = false;
        claim.needs.clear();
        if kept == 0 {
            self.remove(node_uid);
            return Released::Gone;
        }
        Released::ComesBack { kept }
    }

    /// Returns the units of pods that were observed back; answers how many. What is not held is ignored.
    pub fn return_pods<Uid: AsRef<str>>(&mut self, node_uid: &str, back: &[Uid]) -> usize {
        let back: BTreeSet<&str> = back.iter().map(AsRef::as_ref).collect();
        let Some(claim) = self.claim_mut(node_uid) else {
            return 0;
        };
        let held: BTreeSet<String> = claim
            .holds
            .iter()
            .flat_map(|u| u.pods.iter().map(|pod| pod.uid.clone()))
            .filter(|uid| back.contains(uid.as_str()))
            .collect();
        units::retain(&mut claim.needs, |_, pod| !held.contains(&pod.uid));
        units::retain(&mut claim.holds, |_, pod| !held.contains(&pod.uid))
    }

    /// Notes that whoever drained has vanished while units are held. Answers whether the claim is suspect now; a claim
    /// that holds nothing never is.
    pub fn suspect(&mut self, node_uid: &str, now: Timestamp) -> bool {
        let Some(claim) = self.claim_mut(node_uid).filter(|claim| !claim.holds.is_empty()) else {
            return false;
        };
        if claim.state != ClaimState::Suspect {
            claim.state = ClaimState::Suspect;
            claim.since = now;
        }
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
        claim.by_fallback = false;
        claim.state = if has_all_it_needs(claim) {
            ClaimState::Granted
        } else {
            claim.queued_at = now;
            ClaimState::Waiting
        };
        claim.since = now;
        true
    }

    /// Removes a claim that holds nothing; answers whether the node has none now.
    pub fn remove(&mut self, node_uid: &str) -> bool {
        if self.claim(node_uid).is_some_and(|claim| !claim.holds.is_empty()) {
            return false;
        }
        self.0.claims.retain(|claim| claim.node_uid != node_uid);
        true
    }

    /// Removes a claim with all that it holds: the audited override of an administrator, who says that nothing is down.
    /// Answers with what was removed, for the record.
    pub fn release_by_override(&mut self, node_uid: &str) -> Option<Claim> {
        let at = self.0.claims.iter().position(|claim| claim.node_uid == node_uid)?;
        Some(self.0.claims.remove(at))
    }

    /// Gives the claim a new ticket, the last one.
    fn move_to_the_end(&mut self, node_uid: &str) -> i64 {
        let ticket = self.next_ticket();
        if let Some(claim) = self.claim_mut(node_uid) {
            claim.ticket = ticket;
        }
        self.0.claims.sort_by_key(|claim| claim.ticket);
        ticket
    }
}

/// Whether a claim that holds has nothing to ask for. One without a need waits for its own pods, and never has.
fn has_all_it_needs(claim: &Claim) -> bool {
    !claim.needs.is_empty() && units::missing(&claim.needs, &claim.holds).is_empty()
}
