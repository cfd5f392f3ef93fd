//! Drains that nothing is done for: those that are only to be planned, that wait for a maintenance window, or that cannot be followed.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::node_drain::{BlockedBy, Phase, PodCounts};
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::to_the_second;
use nodeward_core::ledger::{ClaimState, Disruptions, Ledger};

use crate::snapshot::{NodeFacts, Snapshot};

use super::node_markers::Cordon;
use super::{DrainContext, DrainVerdict, Planner, control_plane, verdict};

impl Planner<'_> {
    /// A drain that cannot be followed, and that nothing was done for.
    pub(super) fn report_impossible(&mut self, context: &DrainContext, reason: LockReason) {
        let mut verdict = self.verdict(context);
        verdict.phase = Phase::Failed;
        verdict.message = format!("the node {}", reason.explanation());
        verdict.block(reason, verdict.message.clone());
        self.plan.drains.push(verdict);
    }

    /// Drains that cannot be read: what they ask for is not known, so their nodes and claims stay as they are.
    pub(super) fn report_unreadable(&mut self) {
        for (node, why) in &self.snapshot.unreadable_drains {
            let claim = self.before.claims().iter().find(|claim| claim.node == node.as_str());
            let present = self.snapshot.nodes.get(node).map(|node| node.uid.clone());
            let message = format!("its NodeDrain cannot be read, and the node is left alone: {why}");
            self.plan.drains.push(DrainVerdict {
                drain: None,
                node: node.clone(),
                node_uid: claim.map(|claim| claim.node_uid.as_str().into()).or(present),
                phase: Phase::Failed,
                claim: claim.cloned(),
                blocked_by: vec![verdict::about_node(LockReason::InvalidDrain, message.clone())],
                plan: None,
                counts: PodCounts::default(),
                deadline: None,
                leaves_out_at: None,
                gives_lease_up: false,
                message,
                lease_lost: false,
            });
        }
    }

    /// A drain of ours that has not begun, outside its windows: it is not queued, and its node goes on serving. One that was queued
    /// in a window gives its ticket back; what an earlier turn holds returns as its pods do.
    pub(super) fn await_window(&mut self, context: &DrainContext, node: &Arc<NodeFacts>, opens: Timestamp) {
        let (ledger, uid) = (&mut self.write.next, node.uid.as_str());
        ledger.release(uid, &|pod| context.unavailable.contains(pod), self.now);
        if ledger.claim(uid).is_some_and(|claim| claim.holds.is_empty()) {
            ledger.return_node_groups(uid, |_| false);
            ledger.remove(uid);
        }
        self.write_node_markers(node, Cordon::Keep, false, None);
        let mut verdict = self.verdict(context);
        verdict.phase = match verdict.claim {
            Some(_) => Phase::Recovering,
            None => Phase::Scheduled,
        };
        let reason = LockReason::WaitsForWindow;
        verdict.message = format!("{}, which opens at {}", reason.explanation(), to_the_second(opens));
        verdict.block(reason, verdict.message.clone());
        let problems = context.classes.iter().flat_map(|classes| &classes.problems);
        verdict.blocked_by.extend(problems.cloned());
        self.plan.drains.push(verdict);
    }

    /// A drain that is only to be planned.
    pub(super) fn preview(&mut self, context: &DrainContext) {
        let mut verdict = self.verdict(context);
        verdict.phase = Phase::Scheduled;
        verdict.set_message("dry run: nothing is cordoned, claimed or evicted");
        if let (Some(classes), Some(node)) = (&context.classes, &context.node) {
            verdict.blocked_by.extend(classes.problems.iter().cloned());
            let obstacles = grant_obstacles(self.before.clone(), node, &classes.needs, self.snapshot, self.now);
            verdict.blocked_by.extend(node_obstacles(node, self.snapshot, self.now));
            verdict.blocked_by.extend(obstacles);
        }
        self.plan.drains.push(verdict);
    }
}

/// What keeps a node's drain from its turn besides budgets.
pub fn node_obstacles(node: &NodeFacts, snapshot: &Snapshot, now: Timestamp) -> Vec<BlockedBy> {
    let about = |reason: LockReason, who: String| {
        let text = format!("{} ({who})", reason.explanation());
        verdict::about_node(reason, text)
    };
    let own = snapshot.remediations.of(&node.name, now).ok().flatten();
    let own = own.map(|open| about(LockReason::UnderRemediation, open.to_string()));
    let busy = control_plane::taken_for_another(node, snapshot, now);
    own.into_iter()
        .chain(busy.map(|who| about(LockReason::ControlPlaneBusy, who)))
        .collect()
}

/// Why a node's drain is not granted its disruptions: by the claim that it has, or by one that asks for `needs` after all others.
pub fn grant_obstacles(
    mut ledger: Ledger,
    node: &NodeFacts,
    needs: &[Disruptions],
    snapshot: &Snapshot,
    now: Timestamp,
) -> Vec<BlockedBy> {
    let uid = node.uid.as_str();
    let has_asked = ledger
        .claim(uid)
        .is_some_and(|claim| claim.state != ClaimState::Waiting || claim.asks());
    if !has_asked {
        ledger.enqueue(node.name.as_str(), uid, false, now);
        // A claim that has yet to ask holds nothing, so none of its pods is down.
        ledger.set_needs(uid, needs.to_vec(), &|_| false, now);
    }
    let obstacles = ledger.obstacles(uid, &snapshot.facts);
    let obstacles = obstacles.iter();
    obstacles
        .map(|obstacle| verdict::blocked_by(obstacle, snapshot))
        .collect()
}
