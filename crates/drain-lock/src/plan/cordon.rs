//! Cordoning: when a drain may take its node out of what the cluster can schedule on.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::{is_due, saturating_add};
use nodeward_core::id::NodeName;
use nodeward_core::ledger::Obstacle;
use nodeward_scheduling::Cordons;

use crate::policy::Policy;
use crate::snapshot::{PodFacts, Snapshot};

use super::drain_context::DrainContext;
use super::intent::Intent;
use super::need::began;
use super::node_markers::Cordon;
use super::verdict::DrainVerdict;
use super::{ActiveDrain, Planner};

/// How long a cordon waits for room, before that is looked at again.
const A_MOMENT: SignedDuration = SignedDuration::from_secs(1);

/// The cordons that this pass begins with, and the pods waiting for a node that are to find one.
pub(super) fn cordons<'a>(
    contexts: &[DrainContext],
    snapshot: &'a Snapshot,
    policy: &Policy,
    now: Timestamp,
) -> Cordons<'a> {
    let open = contexts.iter().filter(|context| context.is_open());
    // The room of a node that another program has drained comes back when somebody uncordons it, which may be never: as anywhere
    // without us, it counts for nothing before.
    let comes_back = |context: &&DrainContext| {
        let is_left_to_others = context.is_by_requester() && context.may_go_down();
        !is_left_to_others && context.node.as_ref().is_some_and(|node| !node.is_being_removed())
    };
    let drained = open.filter(comes_back).map(|context| context.name.clone()).collect();
    // The oldest drain is asked about first, so its node is the last one to give places to others.
    let is_to_be_cordoned =
        |context: &&DrainContext| context.intent == Intent::Drain && !context.is_by_requester() && !context.is_open();
    let last = contexts.iter().rev().filter(is_to_be_cordoned);
    let last: Vec<NodeName> = last.map(|context| context.name.clone()).collect();
    let mut cordons = Cordons::new(&snapshot.scheduling, &drained, &last);
    let began_at = |context: &DrainContext| {
        let queued_at = context.claim.as_ref().map(|claim| claim.queued_at);
        let node_and_drain = context.node.as_ref().zip(context.drain.as_ref());
        node_and_drain
            .and_then(|(node, drain)| began(node, drain))
            .or(queued_at)
    };
    let ahead = contexts.iter().filter(|context| is_ahead(context));
    if let Some(since) = ahead.filter_map(began_at).min() {
        // What has found no node for long finds none, whatever it looks like from here.
        let finds_none = |pod: &PodFacts| {
            let lasting = pod
                .unschedulable_since
                .map(|since| saturating_add(since, policy.unschedulable_after));
            lasting.is_some_and(|at| is_due(at, now))
        };
        let pending = snapshot.scheduling.pending.iter();
        cordons.wait(pending.filter(|pod| since <= pod.created && !finds_none(pod)).cloned());
    }
    cordons
}

/// Whether the drain takes room away, or its claim is owed pods.
fn is_ahead(context: &DrainContext) -> bool {
    context.is_open() || !context.unavailable.is_empty()
}

/// The nodes whose drains take room away, or whose claims are owed pods; but for those whose pods may never go.
pub(super) fn ahead(contexts: &[DrainContext]) -> BTreeSet<NodeName> {
    let is_stopped = |context: &DrainContext| context.classes.as_ref().is_some_and(|classes| classes.is_stopped);
    let ahead = contexts.iter().filter(|context| is_ahead(context));
    let ahead = ahead.filter(|context| !context.unavailable.is_empty() || !is_stopped(context));
    ahead.map(|context| context.name.clone()).collect()
}

impl Planner<'_> {
    /// Cordons a node whose turn has come, unless that is being remediated, has an obstacle, or waits for room.
    pub(super) fn cordon(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) {
        self.set_needs(active, Vec::new());
        if let Some(text) = self.remediation(&active.node.name) {
            verdict.block(LockReason::UnderRemediation, text.clone());
            verdict.message = text;
        } else if !self.is_held_up(active, verdict) && !self.waits_for_room(active, verdict) {
            self.mark_draining(active);
            verdict.set_message("is being cordoned");
            return;
        }
        self.write_node_markers(active.node, Cordon::Keep, true, None);
        self.give_up_places(active);
    }

    /// Whether the drain is not begun, for something that no other drain's end lifts: somebody has to see to it, and meanwhile the
    /// node goes on serving.
    pub(super) fn is_held_up(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) -> bool {
        let classes = active.classes;
        let mut problems = classes.problems.iter();
        // What is left to the owners of pods is none.
        if let Some(problem) = problems.find(|problem| problem.reason.is_misconfiguration()) {
            verdict.message = format!("is not begun: {}", problem.message);
            return true;
        }
        // As if it asked.
        self.set_needs(active, classes.needs.clone());
        let obstacles = self.obstacles(active);
        self.set_needs(active, Vec::new());
        // Of a budget that Ceph's operator has closed for another drain, that drain is what it waits for.
        let is_beyond_drains = |obstacle: &&Obstacle| {
            matches!(
                obstacle.reason,
                LockReason::OwnerHold | LockReason::BudgetUnhealthy | LockReason::CephClosed
            )
        };
        let Some(obstacle) = obstacles.iter().find(is_beyond_drains) else {
            return false;
        };
        verdict.message = format!("is not begun: {obstacle}");
        verdict.block_by(std::slice::from_ref(obstacle), self.snapshot);
        true
    }

    /// Gives back the places of a node that is not to be cordoned now: a drain that it waits for may need them.
    fn give_up_places(&mut self, active: &ActiveDrain<'_>) {
        let (ledger, uid) = (&mut self.write.next, active.uid());
        if ledger.claim(uid).is_some_and(|claim| claim.holds.is_empty()) {
            ledger.return_node_groups(uid, |_| false);
        }
    }

    /// Takes the node for cordoned, unless its cordon waits for room: all find room together that have to move from it and from
    /// every open drain, and those that wait for a node since these began; but for pods that would find none without this
    /// cordon either. With no other drain open, and no claim owed a pod, no cordon waits.
    pub(super) fn waits_for_room(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) -> bool {
        let (name, classes) = (&active.node.name, active.classes);
        let crowded_out = self.crowded_out(active);
        let own: Vec<_> = classes.to_find_room().chain(&crowded_out).cloned().collect();
        let without_room = self.cordons.cordon_if_room(name, &own).err();
        let awaited = without_room.as_ref().map(|pod| (pod, self.awaited_by(name, pod)));
        let Some((pod, awaited)) = awaited.filter(|(_, awaited)| !awaited.is_empty()) else {
            if without_room.is_some() {
                self.cordons.cordon(name, &own);
            }
            self.ahead.insert(name.clone());
            return false;
        };
        verdict.block_for_room(name, pod, &awaited);
        self.requeue_at.note(saturating_add(self.now, A_MOMENT));
        true
    }

    /// Says of a cordoned node, where only other drains keep its pods from finding room, that it waits for these: its budgets are as
    /// they should be. Answers with what else is in its way.
    pub(super) fn wait_for_room(
        &self,
        active: &ActiveDrain<'_>,
        mut obstacles: Vec<Obstacle>,
        verdict: &mut DrainVerdict,
    ) -> Vec<Obstacle> {
        let is_of_room = |obstacle: &Obstacle| {
            let is_crowded_out = |key| active.classes.crowded_out.contains(key);
            obstacle.reason == LockReason::NeedExceedsBudget && obstacle.pdb.as_ref().is_some_and(is_crowded_out)
        };
        if obstacles.iter().any(is_of_room) {
            let name = &active.node.name;
            let crowded_out = self.crowded_out(active);
            let awaited = crowded_out.first().map(|pod| (pod, self.awaited_by(name, pod)));
            if let Some((pod, awaited)) = awaited.filter(|(_, awaited)| !awaited.is_empty()) {
                verdict.block_for_room(name, pod, &awaited);
                obstacles.retain(|obstacle| !is_of_room(obstacle));
            }
        }
        obstacles
    }

    /// The other nodes whose drains this pod waits for, to find room: its own, or else those that would take it. Where none would
    /// by itself, each may make room for what is in its way.
    fn awaited_by(&self, own: &NodeName, pod: &PodFacts) -> Vec<NodeName> {
        let others: BTreeSet<NodeName> = self.ahead.iter().filter(|other| *other != own).cloned().collect();
        if let Some(node) = pod.node.as_ref().filter(|node| others.contains(*node)) {
            return vec![node.clone()];
        }
        let takers = self.cordons.takers(pod, &others);
        if takers.is_empty() {
            others.into_iter().collect()
        } else {
            takers
        }
    }

    /// The pods of the node that find no room, and would if no other drain were open.
    fn crowded_out(&self, active: &ActiveDrain<'_>) -> Vec<Arc<PodFacts>> {
        let classes = active.classes;
        let others: Vec<_> = classes.to_find_room().cloned().collect();
        self.cordons.crowded_out(&others, &classes.without_room)
    }
}
