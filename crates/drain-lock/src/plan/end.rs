//! The end of a drain: our own cordon is lifted, units return as their pods do, and the NodeDrain goes last.

use std::sync::Arc;

use nodeward_api::annotation;
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;

use super::intent::Ending;
use super::lease::{self, LeaseStand};
use super::node_markers::{self, Cordon};
use super::time_limits::TimeLimits;
use super::verdict;
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
            self.write_node_markers(node, Cordon::Lift, false, None);
        }
        if let Some(uid) = &case.node_uid {
            let (down, before) = (&file.down, self.write.next.claim(uid).cloned());
            self.write.next.release(uid, &|pod| down.is_down(pod), self.now);
            if case.drain.is_none() && before.as_ref() != self.write.next.claim(uid) {
                self.write.absent.push((case.name.clone(), uid.as_str().into()));
            }
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
            node_markers::spec(node, Cordon::Lift, false).is_some() || node_markers::conditions(node, None).is_some()
        });
        let stand = lease::stand(&case.name, self.snapshot, self.memory, self.policy, self.now);
        let has_lease = matches!(stand, LeaseStand::Ours { .. });
        if !is_in_ledger && has_lease {
            self.give_lease_back(&case.name);
        }
        if let Some(claim) = &verdict.claim {
            let limits = TimeLimits::of(case.drain.as_deref(), self.policy.deadlines);
            verdict.deadline = Some(limits.recover_until(claim));
            let pods = claim.held_units();
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
            .and_then(|drain| annotation::released_by(&drain.metadata))
            .unwrap_or_default()
            .to_owned();
        if let Some(uid) = &case.node_uid
            && let Some(claim) = self.write.next.release_by_override(uid)
        {
            let units = claim.held_units();
            let note = format!("{units} units were freed by hand: {said}");
            self.announce(&case.name, uid, LockReason::AdminRelease, true, note);
        }
        self.end(file, Ending::Deleted);
    }
}
