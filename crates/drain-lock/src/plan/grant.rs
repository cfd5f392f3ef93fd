//! How a drain gets its turn: it asks for all disruptions at once, holding nothing before, and makes sure of what it was granted.
//! The order among drains that ask is [`nodeward_core::ledger`]'s (`waits.rs`).

use std::sync::Arc;

use nodeward_api::reason::LockReason;
use nodeward_core::id::NodeName;
use nodeward_core::lease::LeaseState;
use nodeward_core::ledger::{Disruptions, Obstacle};

use crate::snapshot::PodFacts;

use super::disruptions::moves_by;
use super::eviction_budget::{Ledgers, NotEvictable};
use super::need::{is_refused_again, last_unguarded};
use super::verdict::{DrainVerdict, in_words};
use super::{ActiveDrain, ConfirmAsk, GrantAsk, Planner};

impl Planner<'_> {
    /// Says what the drain's claim needs; nothing: it keeps its place in the queue, and asks for nothing.
    pub(super) fn set_needs(&mut self, active: &ActiveDrain<'_>, needs: Vec<Disruptions>) {
        let unavailable = &active.context.unavailable;
        let is_down = |pod: &_| unavailable.contains(pod);
        let (ledger, reservations) = (&mut self.write.next, &mut self.reservations);
        ledger.set_needs_before(reservations, active.uid(), needs, &is_down, self.now);
    }

    /// What stands in the way of the drain's claim.
    pub(super) fn obstacles(&mut self, active: &ActiveDrain<'_>) -> Vec<Obstacle> {
        let (ledger, facts, uid) = (&self.write.next, &self.snapshot.facts, active.uid());
        self.reservations.look_ahead_of(uid, ledger, facts);
        ledger.obstacles_by(uid, facts, &self.reservations)
    }

    /// Whether the drain's claim is to be asked for: no movable pod under a budget is left, or pods that stay down wait for it and
    /// none of the movable ones could go now, or its drainer asks for other pods first. What was asked for stays asked for, while its
    /// drainer shows a sign of life.
    pub(super) fn is_to_ask(&mut self, active: &ActiveDrain<'_>) -> bool {
        // Nobody would use it until the drainer evicts again.
        if active.context.is_idle {
            return false;
        }
        let (classes, uid) = (active.classes, active.uid());
        let by_budget = |pod: &&Arc<PodFacts>| moves_by(pod, self.snapshot).map(|key| (Arc::clone(pod), key));
        let movable: Vec<_> = classes.movable.iter().filter_map(|pod| by_budget(&pod)).collect();
        let go_first = movable.iter().any(|(_, key)| classes.movable_first.contains(*key));
        if movable.is_empty() || go_first {
            return !go_first;
        }
        // For the place of the node, or the pods that stay on it, others may not evict the last of its pods before the claim:
        // one that no budget guards, if there is one.
        let waits_with_last = active.context.is_by_requester() && (!active.has_places || !classes.retained.is_empty());
        let pods = self.snapshot.pods_of(&active.node.name);
        let is_guarded = |pod: &PodFacts| !self.snapshot.budgets_of(pod).is_empty();
        let last = || last_unguarded(pods, active.node, Some(active.drain), self.now, is_guarded);
        let goes_nowhere = waits_with_last && last().is_none();
        let has_asked = self.write.next.claim(uid).is_some_and(|claim| !claim.needs.is_empty());
        let is_refused_again = is_refused_again(active.drain, self.write.next.claim(uid));
        if has_asked || goes_nowhere || is_refused_again {
            return true;
        }
        // No drain waits for one that holds nothing and whose pods all come back elsewhere. As anywhere, what is free goes to
        // whoever asks next: kept for one node, it would lie idle until the drainer of that node asks again.
        let claim = self.write.next.claim(uid);
        let holds = claim.is_some_and(|claim| !claim.holds.is_empty() || !claim.node_groups.is_empty());
        let mut staying = classes.held.iter().chain(&classes.retained);
        if !holds && staying.all(|pod| !is_guarded(pod)) {
            return false;
        }
        !movable.iter().any(|(pod, _)| self.could_go(active, pod).is_ok())
    }

    /// Whether a pod could go now that its node's claim has no disruption for by name.
    fn could_go(&mut self, active: &ActiveDrain<'_>, pod: &PodFacts) -> Result<(), NotEvictable> {
        self.reservations
            .look_ahead_of(active.uid(), &self.write.next, &self.snapshot.facts);
        let ledgers = Ledgers {
            written: &self.before,
            next: &self.write.next,
            reservations: &self.reservations,
        };
        self.eviction_budget
            .free_disruption(ledgers, active.uid(), pod)
            .map(|_| ())
    }

    /// Says of movable pods that somebody else evicts what they wait for, where none of them could go now.
    pub(super) fn name_waits(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) {
        if !active.context.is_by_requester() {
            return;
        }
        let asks_budget = |pod: &&Arc<PodFacts>| {
            let is_unguarded = self.snapshot.budgets_of(pod).is_empty();
            is_unguarded || moves_by(pod, self.snapshot).is_some()
        };
        let pods: Vec<_> = active.classes.movable.iter().filter(asks_budget).collect();
        let waits: Option<Vec<_>> = pods
            .into_iter()
            .map(|pod| Some((pod, self.could_go(active, pod).err()?)))
            .collect();
        for (pod, why) in waits.into_iter().flatten() {
            verdict.block_pod(pod, &why);
        }
    }

    /// What keeps drain-lock off a node that somebody is remediating.
    pub(super) fn remediation(&mut self, node: &NodeName) -> Option<String> {
        let open = self.snapshot.remediations.of(node, self.now).ok()??;
        self.requeue_at.note(open.until());
        Some(format!("{} ({open})", LockReason::UnderRemediation.explanation()))
    }

    /// Whether its pods stay for now: whoever remediates the node has it to itself.
    pub(super) fn is_left_to_remediation(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) -> bool {
        let remediation = self.remediation(&active.node.name);
        let is_said = verdict
            .blocked_by
            .iter()
            .any(|one| one.reason == LockReason::UnderRemediation);
        if let Some(text) = remediation.as_ref().filter(|_| !is_said) {
            verdict.block(LockReason::UnderRemediation, text.clone());
            verdict.message.clone_from(text);
        }
        remediation.is_some()
    }

    /// Who else has the node, or another one of the control plane.
    pub(super) fn taken_by_other(&mut self, active: &ActiveDrain<'_>) -> Option<(LockReason, String)> {
        // Whoever evicts may be the remediation itself, which deletes the machine and ends only with its drain.
        if !active.context.is_by_requester()
            && let Some(text) = self.remediation(&active.node.name)
        {
            return Some((LockReason::UnderRemediation, text));
        }
        if let Some(LeaseState::Others { holder, until }) = self.lease(active.context) {
            self.requeue_at.note(until);
            let text = format!("{} ({holder})", LockReason::LeaseHeldByOther.explanation());
            return Some((LockReason::LeaseHeldByOther, text));
        }
        let text = self.control_plane_is_busy(active.node)?;
        Some((LockReason::ControlPlaneBusy, text))
    }

    /// Asks for all that it needs, unless somebody else has the node, or another one of the control plane.
    pub(super) fn request_grant(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) {
        let (node, uid) = (active.node, active.uid());
        if let Some((reason, text)) = self.taken_by_other(active) {
            // It keeps its place, and budgets are not reserved for a drain that could not use them.
            self.set_needs(active, Vec::new());
            self.mark_draining(active);
            verdict.block(reason, text.clone());
            verdict.message = text;
            return;
        }
        // Who holds disruptions never waits for a group: a drain that has some would wait for one that needs them.
        let holds = self.write.next.claim(uid).is_some_and(|claim| !claim.holds.is_empty());
        if !active.has_places
            && !holds
            && let Some(obstacle) = self.node_group_obstacle(active)
        {
            self.set_needs(active, Vec::new());
            self.mark_draining(active);
            verdict.message.clone_from(&obstacle.text);
            verdict.block_by_node(obstacle.reason, obstacle.text, obstacle.holder.as_ref());
            return;
        }
        self.set_needs(active, active.classes.needs.clone());
        let obstacles = match self.memory.refused_grant(uid, self.now) {
            // The quorum read found what the caches do not show yet; they would send it to ask again at once.
            Some(refused) => {
                self.requeue_at.note(refused.not_before);
                refused.obstacles.clone()
            }
            None => self.obstacles(active),
        };
        // The lease before the disruptions: a drain that has those, and waits for the lease, would keep them from others.
        if obstacles.is_empty() && !self.has_control_plane_lease(node) {
            verdict.set_message("takes the control plane's lease");
        } else if obstacles.is_empty() {
            let node_groups = self.promise_node_groups(node);
            self.write.grants.push(GrantAsk {
                node_uid: node.uid.clone(),
                boot_id: Arc::clone(&node.boot_id),
                node_groups,
            });
            verdict.set_message("asks for its disruptions");
        } else {
            let others = self.wait_for_room(active, obstacles, verdict);
            if !others.is_empty() {
                verdict.message = in_words(&others);
            }
            verdict.block_by(&others, self.snapshot);
        }
        self.mark_draining(active);
    }

    /// Makes sure of a grant, with the node's lease in hand.
    pub(super) fn confirm_grant(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) {
        let (context, node, uid) = (active.context, active.node, active.uid());
        verdict.block(
            LockReason::AwaitsConfirmation,
            LockReason::AwaitsConfirmation.explanation(),
        );
        self.mark_draining(active);
        if let Some((reason, text)) = self.taken_by_other(active) {
            // Nothing is evicted while that lasts, and the grant would only keep other drains waiting.
            let is_down = |pod: &_| context.unavailable.contains(pod);
            self.write.next.time_out(uid, &is_down, self.now);
            verdict.message = format!("gives its disruptions back: it {text}");
            self.announce(&node.name, uid, reason, verdict.message.clone());
            return;
        }
        if !self.has_control_plane_lease(node) {
            verdict.set_message("takes the control plane's lease");
            return;
        }
        match self.lease(context) {
            Some(LeaseState::Free) => {
                self.take_lease(&context.name);
                verdict.set_message("takes the node's lease");
            }
            Some(LeaseState::Ours { .. } | LeaseState::Others { .. }) | None => {
                let Some(claim) = self.write.next.claim(uid) else {
                    return;
                };
                // Only what was read after the grant was written tells that no disruption was taken before it was.
                self.write.confirms.push(ConfirmAsk {
                    node_uid: node.uid.clone(),
                    grant: claim.grant,
                    down: context.unavailable.uids().clone(),
                });
                if let Some(note) = self.lost_quorum(node) {
                    self.announce(&node.name, uid, LockReason::QuorumLost, note);
                }
                verdict.set_message("reads its budgets once more");
            }
        }
    }
}
