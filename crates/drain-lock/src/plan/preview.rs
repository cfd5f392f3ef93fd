//! Drains that nothing is done for: those that are only to be planned, and those that cannot be followed.

use jiff::Timestamp;
use nodeward_api::node_drain::{BlockedBy, Phase};
use nodeward_api::reason::LockReason;
use nodeward_core::ledger::{ClaimState, Facts, Ledger, Units};

use crate::snapshot::NodeFacts;

use super::verdict::{self, Look};
use super::{File, Planner};

impl Planner<'_> {
    /// A drain that cannot be followed, and that nothing was done for.
    pub(super) fn impossible(&mut self, file: &File, reason: LockReason) {
        let mut verdict = self.verdict(file, None);
        verdict.phase = Phase::Failed;
        verdict.message = format!("the node {}", reason.explanation());
        verdict
            .blocked_by
            .push(verdict::about_node(reason, verdict.message.clone()));
        self.plan.drains.push(verdict);
    }

    /// A drain that is only to be planned.
    pub(super) fn preview(&mut self, file: &File, look: Option<&Look>) {
        let mut verdict = self.verdict(file, look);
        verdict.phase = Phase::Queued;
        verdict.says("dry run: nothing is cordoned, claimed or evicted");
        if let (Some(look), Some(node)) = (look, &file.case.node) {
            verdict.blocked_by.extend(look.problems.iter().cloned());
            let (ledger, facts) = (self.before.clone(), &self.snapshot.facts);
            let obstacles = grant_obstacles(ledger, node, &look.needs, facts, self.now);
            verdict.blocked_by.extend(obstacles);
        }
        self.plan.drains.push(verdict);
    }
}

/// Why a node's drain is not granted its units: by the claim that it has, or by one that asks for `needs` after all others.
pub fn grant_obstacles(
    mut ledger: Ledger,
    node: &NodeFacts,
    needs: &[Units],
    facts: &Facts,
    now: Timestamp,
) -> Vec<BlockedBy> {
    let uid = node.uid.as_str();
    let has_asked = ledger.claim(uid).is_some_and(|claim| claim.state != ClaimState::Queued);
    if !has_asked {
        ledger.enqueue(node.name.as_str(), uid, false, now);
        // A claim that has yet to ask holds nothing, so none of its pods is down.
        ledger.set_needs(uid, needs.to_vec(), &|_| false, now);
    }
    ledger.obstacles(uid, facts).iter().map(verdict::blocked_by).collect()
}
