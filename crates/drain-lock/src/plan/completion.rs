//! The end of a drain: our own cordon is lifted, disruptions return as their pods do, and the NodeDrain goes last.

use std::sync::Arc;

use nodeward_api::annotation;
use nodeward_api::node_drain::{NodeDrain, Phase};
use nodeward_api::reason::LockReason;
use nodeward_core::lease::LeaseState;
use nodeward_core::ledger::{Claim, ClaimState};
use nodeward_core::text::counted;

use super::drain_context::claim_of;
use super::intent::{Ending, was_evicted_since_its_end};
use super::lease::node_lease;
use super::node_markers::{self, Cordon};
use super::timeouts::TimeLimits;
use super::{Action, DrainContext, Planner};

impl Planner<'_> {
    /// A drain that is over. Its NodeDrain is deleted first: with that it is recorded that nothing is to begin anew,
    /// whenever this process ends.
    pub(super) fn complete(&mut self, context: &DrainContext, ending: Ending) {
        let is_alive = |drain: &&Arc<NodeDrain>| drain.metadata.deletion_timestamp.is_none();
        if let Some(drain) = context.drain.as_ref().filter(is_alive) {
            self.plan.actions.push(Action::Delete {
                drain: Arc::clone(drain),
                reason: ending.reason(),
            });
            let mut verdict = self.verdict(context);
            verdict.phase = Phase::Recovering;
            verdict.message = format!("is over: the node {}", ending.reason().explanation());
            self.plan.drains.push(verdict);
            return;
        }
        let (cordon, stays) = self.lifted(context);
        if let Some(node) = &context.node {
            self.write_node_markers(node, cordon, false, None);
        }
        if let Some(uid) = &context.node_uid {
            let before = self.write.next.claim(uid.as_str()).cloned();
            let is_down = |pod: &_| context.unavailable.contains(pod);
            self.write.next.release(uid.as_str(), &is_down, self.now);
            if context.drain.is_none() && before.as_ref() != self.write.next.claim(uid.as_str()) {
                self.write.absent.push((context.name.clone(), uid.clone()));
            }
            self.suspect_overdue(context);
        }
        self.finish_drain(context, stays);
    }

    /// What is left to do, and whether the NodeDrain may go: once the ledger, the node and the lease say nothing of it. `stays`:
    /// why the cordon does.
    fn finish_drain(&mut self, context: &DrainContext, stays: Option<String>) {
        let mut verdict = self.verdict(context);
        verdict.phase = Phase::Recovering;
        if let Some(text) = stays {
            verdict.set_message(text.clone());
            verdict.block(LockReason::CordonShared, text);
        }
        let is_in_ledger = claim_of(context.node_uid.as_ref(), &self.before).is_some();
        let markers = |node| node_markers::change(node, Cordon::Lift, false, None);
        let is_on_node = context.node.as_ref().and_then(markers).is_some();
        let lease = node_lease(&context.name, self.snapshot, self.memory, self.policy, self.now);
        let has_lease = matches!(lease, Some(LeaseState::Ours { .. }));
        // A drainer is back before its pods are: the next NodeDrain of that name takes the claim over.
        let waits = |claim: &Claim| matches!(claim.state, ClaimState::Returning | ClaimState::Suspect);
        let is_drained_anew = context.has_foreign_cordon()
            && context.drain.as_deref().is_some_and(was_evicted_since_its_end)
            && claim_of(context.node_uid.as_ref(), &self.before).is_some_and(waits)
            && verdict.claim.as_ref().is_some_and(waits);
        let is_suspect = verdict
            .claim
            .as_ref()
            .is_some_and(|claim| claim.state == ClaimState::Suspect);
        if !is_in_ledger || is_suspect || is_drained_anew {
            self.release_lease(&context.name);
        }
        if let Some(claim) = &verdict.claim {
            let limits = TimeLimits::of(context.drain.as_deref(), self.policy.deadlines, &self.write.next);
            verdict.deadline = Some(limits.recover_until(claim));
            verdict.message = match claim.held_disruptions() {
                0 if !claim.node_groups.is_empty() => {
                    let groups = claim.node_groups.join(", ");
                    format!("counts as away in node group {groups} until the node is Ready and uncordoned")
                }
                pods => format!("waits for {} to come back", counted(pods, "pod")),
            };
            verdict.block(LockReason::AwaitingReady, verdict.message.clone());
            if is_suspect {
                verdict.phase = Phase::Suspect;
                verdict.block(LockReason::Suspect, LockReason::Suspect.explanation());
            }
        }
        match &context.drain {
            Some(drain) if (!is_in_ledger || is_drained_anew) && !is_on_node && !has_lease => {
                if context.is_adopted() {
                    // Its status is left to that, so that the two writes do not get into each other's way.
                    verdict.drain = None;
                    let drain = Arc::clone(drain);
                    self.plan.actions.push(Action::Finish { drain });
                }
                verdict.phase = Phase::Released;
                verdict.set_message("holds nothing any more");
            }
            None if verdict.claim.is_none() => return,
            _ => {}
        }
        self.plan.drains.push(verdict);
    }

    /// An administrator says that nothing is down: everything is returned at once, and on the record.
    pub(super) fn release_by_override(&mut self, context: &DrainContext) {
        let drain = context.drain.as_deref();
        let said = drain.and_then(|drain| annotation::released_by(&drain.metadata));
        if let Some(uid) = &context.node_uid
            && let Some(claim) = self.write.next.release_by_override(uid.as_str())
        {
            let (disruptions, said) = (claim.disruptions(&self.snapshot.facts), said.unwrap_or_default());
            let note = format!("an administrator freed {}: {said}", counted(disruptions, "disruption"));
            self.announce(&context.name, uid.as_str(), LockReason::AdminRelease, note);
        }
        self.complete(context, Ending::Deleted);
    }
}
