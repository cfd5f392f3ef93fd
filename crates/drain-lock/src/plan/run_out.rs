//! Time that runs out, and what the fallback makes of it.

use std::sync::Arc;

use nodeward_api::node_drain::{Evictor, Fallback, NodeDrain};
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::{is_due, saturating_add};
use nodeward_core::ledger::{Claim, ClaimState, TimedOut};

use crate::snapshot::NodeFacts;

use super::intent::{is_wanted_by_another, last_sign_of_life};
use super::time_limits::TimeLimits;
use super::{File, Force, Planner};

impl Planner<'_> {
    /// Gives up what has taken too long, as the drain's fallback says. Returns whether the drain goes on without the units
    /// that it waited for.
    pub(super) fn run_out(
        &mut self,
        file: &File,
        drain: &NodeDrain,
        node: &Arc<NodeFacts>,
        limits: &TimeLimits,
    ) -> bool {
        let uid = node.uid.as_str();
        let Some(claim) = self.write.next.claim(uid).cloned() else {
            return false;
        };
        let goes_on_without = match claim.state {
            ClaimState::Recovering | ClaimState::Unknown => false,
            ClaimState::Queued | ClaimState::Asking | ClaimState::DrainedAsking => {
                let until = limits.queue_until(&claim);
                self.requeue_at.note(until);
                is_due(until, self.now) && self.fall_back(file, drain, node, "queue")
            }
            ClaimState::Granted | ClaimState::DrainedGranted => {
                let until = limits.drain_until(&claim);
                self.requeue_at.note(until);
                if is_due(until, self.now) && drain.spec.fallback != Fallback::Wait {
                    // Nothing was evicted under it yet: no fallback has more to do than to begin anew.
                    self.requeue(file, node, "drain");
                }
                false
            }
            ClaimState::Confirmed | ClaimState::Drained => self.granted(file, drain, node, limits, &claim),
            ClaimState::Suspect | ClaimState::DrainedSuspect => {
                if last_sign_of_life(drain).is_some_and(|sign| claim.since < sign) {
                    self.write.next.resume(uid, self.now);
                }
                false
            }
        };
        let is_by_fallback = |claim: &Claim| claim.by_fallback;
        goes_on_without || self.write.next.claim(uid).is_some_and(is_by_fallback)
    }

    /// A granted drain has two limits: one for the pods to leave, one for all of them to be back.
    fn granted(
        &mut self,
        file: &File,
        drain: &NodeDrain,
        node: &Arc<NodeFacts>,
        limits: &TimeLimits,
        claim: &Claim,
    ) -> bool {
        let (drained_by, back_by) = (limits.drain_until(claim), limits.recover_until(claim));
        let quiet_from = self.quiet_from(file, drain);
        self.requeue_at.note(drained_by);
        self.requeue_at.note(back_by);
        let has_vanished = is_due(back_by, self.now) || quiet_from.is_some_and(|from| is_due(from, self.now));
        // Whoever evicts by himself may reboot before he says so; our own drain of a node that crashed goes on.
        let is_drained = claim.state == ClaimState::Drained
            || (file.case.evictor() == Evictor::Requester && file.case.has_rebooted());
        let has_pods_down = file.down.has_any();
        if has_vanished && has_pods_down && (is_drained || file.case.evictor() == Evictor::Requester) {
            self.write.next.suspect(node.uid.as_str(), self.now);
            let note = LockReason::Suspect.explanation().to_owned();
            self.announce(&node.name, node.uid.as_str(), LockReason::Suspect, true, note);
            return false;
        }
        if !is_drained && is_due(drained_by, self.now) {
            return self.fall_back(file, drain, node, "drain");
        }
        false
    }

    /// When a foreign drainer counts as gone. Somebody else who wants the drain may have seen it end meanwhile, and what is
    /// down then is away as it should be: the time to be back tells.
    fn quiet_from(&self, file: &File, drain: &NodeDrain) -> Option<jiff::Timestamp> {
        (file.case.evictor() == Evictor::Requester)
            .then(|| last_sign_of_life(drain))
            .flatten()
            .filter(|_| !is_wanted_by_another(drain))
            .map(|sign| saturating_add(sign, self.policy.auto.quiet_period))
    }

    fn fall_back(&mut self, file: &File, drain: &NodeDrain, node: &Arc<NodeFacts>, which: &str) -> bool {
        let uid = node.uid.as_str();
        match drain.spec.fallback {
            Fallback::Wait => false,
            Fallback::ReleaseAndRequeue => {
                self.requeue(file, node, which);
                false
            }
            Fallback::EvictAnyway | Fallback::Delete => {
                let is_first = self.write.next.claim(uid).is_some_and(|claim| !claim.state.has_grant());
                if is_first && node.is_cordoned() {
                    let note = format!(
                        "its time ({which}) is over: it goes on as {:?} says",
                        drain.spec.fallback
                    );
                    self.announce(&node.name, uid, LockReason::Fallback, true, note);
                }
                true
            }
        }
    }

    /// Gives back what a drain whose time is over can give back, and queues it again.
    fn requeue(&mut self, file: &File, node: &NodeFacts, which: &str) {
        let (uid, down) = (node.uid.as_str(), &file.down);
        let what = match self.write.next.time_out(uid, &|pod| down.is_down(pod), self.now) {
            TimedOut::Unchanged => return,
            TimedOut::KeepsWaiting => "it held nothing, and its turn begins anew".to_owned(),
            TimedOut::Requeued { ticket } => format!("its units are returned, and its ticket is {ticket} now"),
            TimedOut::ComesBack { ticket, kept } => {
                format!("{kept} pods are down and come back first; its ticket is {ticket} now")
            }
            TimedOut::KeepsPlace { kept } => {
                format!("{kept} pods are down under another's cordon; it keeps its ticket and their units")
            }
        };
        let note = format!("its time ({which}) is over: {what}");
        self.announce(&node.name, uid, LockReason::Requeued, true, note);
    }

    /// Whether pods that the server refuses to evict are deleted: only once a time has run out, and only where the drain
    /// says so.
    pub(super) fn force(&self, file: &File, claim: &Claim) -> Force {
        let Some(drain) = file.case.drain.as_deref() else {
            return Force::Never;
        };
        let limits = TimeLimits::of(Some(drain), self.policy.deadlines);
        let is_over = claim.by_fallback || is_due(limits.drain_until(claim), self.now);
        if is_over && drain.spec.fallback == Fallback::Delete {
            Force::Delete
        } else {
            Force::Never
        }
    }
}
