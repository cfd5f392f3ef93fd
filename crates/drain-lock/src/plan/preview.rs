//! Drains that nothing is done for: those that are only to be planned, and those that cannot be followed.

use std::sync::Arc;

use nodeward_api::node_drain::{NodeDrain, Phase};
use nodeward_api::reason::LockReason;
use nodeward_core::ledger::Ledger;

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
    pub(super) fn preview(&mut self, file: &File, drain: &Arc<NodeDrain>, look: Option<&Look>) {
        let mut verdict = self.verdict(file, look);
        verdict.phase = Phase::Queued;
        verdict.says("dry run: nothing is cordoned, claimed or evicted");
        if let (Some(look), Some(node)) = (look, &file.case.node) {
            verdict.blocked_by.extend(look.problems.iter().cloned());
            let mut rehearsal: Ledger = self.before.clone();
            rehearsal.enqueue(drain.spec.node_name.as_str(), node.uid.as_str(), false, self.now);
            rehearsal.set_needs(node.uid.as_str(), look.needs.clone(), &|_| false, self.now);
            let obstacles = rehearsal.obstacles(node.uid.as_str(), &self.snapshot.facts);
            verdict.blocked_by.extend(obstacles.iter().map(verdict::blocked_by));
        }
        self.plan.drains.push(verdict);
    }
}
