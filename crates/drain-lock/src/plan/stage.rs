//! The life of a drain: where one stands, and what is done at each stage.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::node_drain::{Evictor, Phase};
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::to_the_second;
use nodeward_core::ledger::{Claim, ClaimState, Fence};
use nodeward_core::text::counted;

use super::eviction_budget::NotEvictable;
use super::need::leaves_out_at;
use super::node_markers::Progress;
use super::timeouts::TimeLimits;
use super::verdict::DrainVerdict;
use super::{ActiveDrain, DrainedAsk, Planner};

/// The life of a drain that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its turn ended while pods were down: they come back before it queues again.
    Recovering,
    /// Pods are kept until somebody consents to their eviction. As for `kubectl drain`, nothing is evicted before.
    AwaitingConsent,
    /// It has a ticket, and no place in its node's groups yet.
    AwaitingNodeGroup,
    /// It has a ticket, and its node is not cordoned.
    Uncordoned,
    /// Pods that asked for it finish first.
    Completing,
    /// The movable pods leave.
    Leaving,
    /// It asks for all disruptions that it needs; what movable pods are left go on leaving.
    Claiming,
    /// It was granted them, and makes sure.
    Confirming,
    /// The held pods leave.
    Evicting,
    /// No pod has to leave any more, and the ledger does not say so yet.
    Finishing,
    /// No pod has to leave any more.
    Drained,
    /// The node has booted anew.
    Rebooted,
    /// Its drainer vanished.
    Suspect,
}

impl Stage {
    /// Where a drain with this claim stands, given what is left on its node.
    pub(super) fn of(claim: &Claim, active: &ActiveDrain<'_>) -> Self {
        let (context, classes) = (active.context, active.classes);
        match claim.state {
            ClaimState::Returning => Self::Recovering,
            // A node that waits for a person is neither cordoned nor counted as away.
            ClaimState::Waiting if !claim.may_go_down && !classes.kept.is_empty() => Self::AwaitingConsent,
            ClaimState::Waiting
                if !claim.may_go_down
                    && context.evictor() == Evictor::Nodeward
                    && !active.has_places
                    && claim.holds.is_empty() =>
            {
                Self::AwaitingNodeGroup
            }
            ClaimState::Waiting => match context.evictor() {
                _ if !active.node.is_cordoned() => Self::Uncordoned,
                Evictor::Nodeward if !classes.completing.is_empty() => Self::Completing,
                _ if !active.asks => Self::Leaving,
                Evictor::Nodeward | Evictor::Requester => Self::Claiming,
            },
            ClaimState::Granted => Self::Confirming,
            // A node of ours that boots anew before it was drained has crashed: what is left of its drain goes on.
            ClaimState::Confirmed if context.has_rebooted() && (claim.may_go_down || context.is_by_requester()) => {
                Self::Rebooted
            }
            ClaimState::Confirmed if classes.has_pods_to_leave() => Self::Evicting,
            ClaimState::Confirmed if claim.may_go_down => Self::Drained,
            ClaimState::Confirmed => Self::Finishing,
            // Its pods are back, late.
            ClaimState::Suspect if claim.may_go_down && claim.holds.is_empty() && context.has_rebooted() => {
                Self::Rebooted
            }
            ClaimState::Suspect => Self::Suspect,
        }
    }

    /// Until when it lasts at most.
    pub(super) fn until(self, claim: &Claim, limits: &TimeLimits) -> Timestamp {
        match self {
            Self::AwaitingConsent
            | Self::AwaitingNodeGroup
            | Self::Uncordoned
            | Self::Completing
            | Self::Leaving
            | Self::Claiming => limits.queue_until(claim),
            Self::Confirming | Self::Evicting | Self::Finishing => limits.drain_until(claim),
            Self::Drained | Self::Rebooted | Self::Recovering | Self::Suspect => limits.recover_until(claim),
        }
    }

    /// Whether it has yet to be granted what it needs.
    pub(super) fn waits_for_its_turn(self) -> bool {
        match self {
            Self::AwaitingConsent
            | Self::AwaitingNodeGroup
            | Self::Uncordoned
            | Self::Completing
            | Self::Leaving
            | Self::Claiming => true,
            Self::Confirming
            | Self::Evicting
            | Self::Finishing
            | Self::Drained
            | Self::Rebooted
            | Self::Recovering
            | Self::Suspect => false,
        }
    }

    /// The phase that people see, and that other programs rest on: `Queued` says that it waits for other drains.
    pub(super) fn phase(self, is_cordoned: bool, waits_for_drains: bool) -> Phase {
        match self {
            Self::AwaitingNodeGroup | Self::Uncordoned | Self::Leaving | Self::Claiming if waits_for_drains => {
                Phase::Queued
            }
            Self::AwaitingConsent | Self::AwaitingNodeGroup | Self::Uncordoned if !is_cordoned => Phase::Scheduled,
            Self::AwaitingConsent
            | Self::AwaitingNodeGroup
            | Self::Uncordoned
            | Self::Completing
            | Self::Leaving
            | Self::Claiming
            | Self::Confirming
            | Self::Evicting
            | Self::Finishing => Phase::Draining,
            Self::Drained => Phase::Drained,
            Self::Recovering | Self::Rebooted => Phase::Recovering,
            Self::Suspect => Phase::Suspect,
        }
    }
}

impl Planner<'_> {
    pub(super) fn run_stage(&mut self, stage: Stage, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) {
        let (context, node, classes) = (active.context, active.node, active.classes);
        if self.opens_circle(stage, active, verdict) {
            return;
        }
        if matches!(
            stage,
            Stage::Leaving | Stage::Claiming | Stage::Confirming | Stage::Evicting
        ) {
            self.ask_owners(active, verdict);
        }
        match stage {
            Stage::Recovering => {
                let (cordon, stays) = self.lifted(context);
                self.write_node_markers(node, cordon, false, None);
                verdict.set_message("its turn ended while pods were down; they come back before it queues again");
                if let Some(text) = stays {
                    verdict.block(LockReason::CordonShared, text);
                }
            }
            Stage::AwaitingConsent => {
                self.set_needs(active, Vec::new());
                verdict.message = format!(
                    "keeps {} until somebody consents to the eviction",
                    counted(classes.kept.len(), "pod")
                );
            }
            Stage::AwaitingNodeGroup => self.take_node_groups(active, verdict),
            Stage::Uncordoned => self.cordon(active, verdict),
            Stage::Completing => {
                self.mark_draining(active);
                // Granted now, its disruptions would be kept from others for as long as these pods take.
                self.set_needs(active, Vec::new());
                for pod in &classes.completing {
                    verdict.block_pod(pod, &NotEvictable::because(LockReason::WaitCompleted));
                }
                verdict.message = format!("waits for {} to finish", counted(classes.completing.len(), "pod"));
            }
            Stage::Leaving => {
                self.mark_draining(active);
                // These go within what their budgets allow; the claim is for the pods that stay down.
                self.set_needs(active, Vec::new());
                if active.context.is_idle {
                    verdict.set_message(LockReason::AwaitsDrainer.explanation());
                    verdict.block(LockReason::AwaitsDrainer, LockReason::AwaitsDrainer.explanation());
                    return;
                }
                let pods = counted(classes.movable.len() + classes.departing.len(), "pod");
                verdict.message = format!("{pods} with room elsewhere must leave first");
                if classes.movable.is_empty() {
                    verdict.block(LockReason::AwaitingPods, verdict.message.clone());
                }
                self.name_waits(active, verdict);
                self.evict_before_claim(active, verdict);
            }
            Stage::Claiming => {
                self.request_grant(active, verdict);
                // What it asks for is to be there still when that is read.
                if !self.write.grants.iter().any(|ask| ask.node_uid == node.uid) {
                    self.evict_before_claim(active, verdict);
                }
            }
            Stage::Confirming => self.confirm_grant(active, verdict),
            Stage::Evicting => self.evict(active, verdict),
            // Pods that came since need more than was granted: the node may not go down without that.
            Stage::Finishing | Stage::Drained if self.requeue_grown_need(active, verdict) => {
                self.keep_lease(context, verdict);
                self.mark_draining(active);
            }
            Stage::Finishing => {
                self.keep_lease(context, verdict);
                self.mark_draining(active);
                if let Some(pod) = classes.awaiting_budget() {
                    let text = format!("pod {} stays on the node until its budget lets it go down", pod.key);
                    verdict.set_message(text);
                    return;
                }
                let claim = self.write.next.claim(active.uid());
                self.write.drained.extend(claim.map(|claim| DrainedAsk {
                    node: node.name.clone(),
                    node_uid: node.uid.clone(),
                    fence: Fence::of(claim),
                    boot_id: Arc::clone(&node.boot_id),
                    down: context.unavailable.uids().clone(),
                    unclaimed: classes.unclaimed(),
                }));
            }
            Stage::Drained | Stage::Rebooted => {
                self.keep_lease(context, verdict);
                self.write_node_markers(node, context.own_cordon(), false, Some(Progress::Drained));
                verdict.set_message(if stage == Stage::Drained {
                    "no pod has to leave any more: the node may go down"
                } else {
                    "the node has booted anew; its disruptions return as its pods do"
                });
            }
            Stage::Suspect => {
                // Its disruptions stay, for the pods are down; the node is free for whoever goes on with it.
                self.release_lease(&context.name);
                verdict.set_message(
                    "pods are down and nobody drains the node; what it holds returns as its pods do, or by an administrator",
                );
                verdict.block(LockReason::Suspect, LockReason::Suspect.explanation());
            }
        }
    }

    /// Ends the verdict on a drain that goes on, with its claim as this pass leaves it.
    pub(super) fn conclude(&mut self, stage: Stage, active: &ActiveDrain<'_>, mut verdict: DrainVerdict) {
        let claim = self.write.next.claim(active.uid()).cloned();
        let is_waiting = |claim: &Claim| claim.state == ClaimState::Waiting;
        // Where this pass queued the whole need again, the node is not to go down under the old one.
        let stage = match stage {
            Stage::Evicting | Stage::Finishing | Stage::Drained if claim.as_ref().is_some_and(is_waiting) => {
                Stage::Claiming
            }
            stage => stage,
        };
        if stage.waits_for_its_turn() || stage == Stage::Evicting {
            self.name_circle(active, &mut verdict);
        }
        if let Some(at) = claim.as_ref().and_then(|claim| leaves_out_at(claim, self.policy))
            && self.now < at
            && matches!(stage, Stage::Leaving | Stage::Claiming | Stage::Evicting)
        {
            let more = format!(
                "; from {} on it goes on without the pods that cannot go",
                to_the_second(at)
            );
            verdict.message.push_str(&more);
            verdict.leaves_out_at = Some(at);
        }
        let waits_for_drains = match stage {
            Stage::Leaving => {
                active.classes.departing.is_empty() && verdict.waits_for_drains_with(&active.classes.movable)
            }
            _ => verdict.blocked_by.iter().any(|one| one.reason.waits_for_a_drain()),
        };
        verdict.phase = stage.phase(active.node.is_cordoned(), waits_for_drains);
        self.requeue_at.note(active.classes.next_overdue);
        for pod in &active.classes.overdue {
            verdict.block_overdue(pod);
        }
        verdict.deadline = claim.as_ref().map(|claim| stage.until(claim, &active.limits));
        verdict.claim = claim;
        if let Some(until) = verdict.deadline {
            self.requeue_at.note(until);
            if until <= self.now {
                verdict.block(LockReason::DeadlinePassed, LockReason::DeadlinePassed.explanation());
            }
        }
        self.plan.drains.push(verdict);
    }
}
