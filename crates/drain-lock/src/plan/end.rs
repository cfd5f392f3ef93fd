//! The end of a drain: our own cordon is lifted, units return as their pods do, and the NodeDrain goes last.

use std::sync::Arc;

use nodeward_api::node_drain::{NodeDrain, Phase};
use nodeward_api::reason::LockReason;
use nodeward_core::id::NodeName;
use nodeward_core::ledger::Ledger;

use super::intent::{Ending, override_of};
use super::lease::{self, LeaseStand};
use super::node_marks::{self, Cordon};
use super::time_limits::TimeLimits;
use super::verdict::{self, Announcement, Look};
use super::{Action, File, Planner};

impl Planner<'_> {
    /// A drain that is over. Its NodeDrain is deleted first: with that it is recorded that nothing is to begin anew,
    /// whenever this process ends.
    pub(super) fn end(&mut self, file: &File, ending: Ending) {
        let case = &file.case;
        if let Some(drain) = case
            .drain
            .as_ref()
            .filter(|drain| drain.metadata.deletion_timestamp.is_none())
        {
            self.plan.actions.push(Action::Delete {
                drain: Arc::clone(drain),
                reason: ending.reason(),
            });
            let mut verdict = self.verdict(file, None);
            verdict.phase = Phase::Recovering;
            verdict.message = format!("is over: the node {}", ending.reason().explanation());
            self.plan.drains.push(verdict);
            return;
        }
        if let Some(node) = &case.node {
            self.mark(node, Cordon::Lift, false, None);
        }
        if let Some(uid) = &case.node_uid {
            let down = &file.down;
            self.write.next.release(uid, &|pod| down.is_down(pod), self.now);
        }
        self.close_case(file);
    }

    /// What is left to do, and whether the NodeDrain may go: once the ledger, the node and the lease say nothing of it.
    fn close_case(&mut self, file: &File) {
        let case = &file.case;
        let mut verdict = self.verdict(file, None);
        verdict.phase = Phase::Recovering;
        let is_in_ledger = case
            .node_uid
            .as_deref()
            .is_some_and(|uid| self.before.claim(uid).is_some());
        let is_on_node = case.node.as_ref().is_some_and(|node| {
            node_marks::spec(node, Cordon::Lift, false).is_some() || node_marks::conditions(node, None).is_some()
        });
        let stand = lease::stand(&case.name, self.snapshot, self.memory, self.policy, self.now);
        let has_lease = matches!(stand, LeaseStand::Ours { .. });
        if !is_in_ledger && has_lease {
            self.give_lease_back(&case.name);
        }
        if let Some(claim) = &verdict.claim {
            let limits = TimeLimits::of(case.drain.as_deref(), self.policy.deadlines);
            verdict.deadline = Some(limits.recover_until(claim));
            let pods: usize = claim.holds.iter().map(|units| units.pods.len()).sum();
            verdict.message = format!("{pods} pods are awaited back");
            verdict
                .blocked_by
                .push(verdict::about_node(LockReason::AwaitingReady, verdict.message.clone()));
        }
        let Some(drain) = case
            .drain
            .as_ref()
            .filter(|_| !is_in_ledger && !is_on_node && !has_lease)
        else {
            if case.drain.is_some() || verdict.claim.is_some() {
                self.plan.drains.push(verdict);
            }
            return;
        };
        if case.is_adopted() {
            self.plan.actions.push(Action::Finish {
                drain: Arc::clone(drain),
            });
        }
        verdict.phase = Phase::Released;
        verdict.says("holds nothing any more");
        self.plan.drains.push(verdict);
    }

    /// An administrator says that nothing is down: everything is returned at once, and on the record.
    pub(super) fn release_by_override(&mut self, file: &File) {
        let case = &file.case;
        let said = case
            .drain
            .as_deref()
            .and_then(override_of)
            .unwrap_or_default()
            .to_owned();
        if let Some(uid) = &case.node_uid
            && let Some(claim) = self.write.next.release_by_override(uid)
        {
            let units: usize = claim.holds.iter().map(|units| units.pods.len()).sum();
            self.write.announcements.push(Announcement {
                node: case.name.clone(),
                node_uid: uid.as_str().into(),
                reason: LockReason::AdminRelease,
                is_warning: true,
                note: format!("{units} units were freed by hand: {said}"),
            });
        }
        self.end(file, Ending::Deleted);
    }

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

    /// Of claims that hold pods which are down, and wait for each other, the youngest gives way at once: no time would end
    /// that.
    pub(super) fn give_way(&mut self, files: &[File]) {
        let Some(uid) = self.write.next.gives_way(&self.snapshot.facts).map(str::to_owned) else {
            return;
        };
        let Some(file) = files
            .iter()
            .find(|file| file.case.node_uid.as_deref() == Some(uid.as_str()))
        else {
            return;
        };
        let down = &file.down;
        self.write.next.time_out(&uid, &|pod| down.is_down(pod), self.now);
        self.write.announcements.push(Announcement {
            node: NodeName::clone(&file.case.name),
            node_uid: uid.as_str().into(),
            reason: LockReason::Requeued,
            is_warning: true,
            note: "gives way to a drain that waits for it and that it waits for".to_owned(),
        });
    }
}
