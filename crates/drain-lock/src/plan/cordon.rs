//! Cordoning: when a drain may take its node out of what the cluster can schedule on.

use jiff::SignedDuration;
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::saturating_add;

use super::node_markers::Cordon;
use super::verdict::DrainVerdict;
use super::{ActiveDrain, Planner};

/// How long a cordon waits that would take a pod's last room, before it is looked at again.
const A_MOMENT: SignedDuration = SignedDuration::from_secs(1);

impl Planner<'_> {
    /// Cordons a node whose turn has come, unless it is being remediated, or that would take the last room that a movable pod of another draining
    /// node finds. With nothing else in progress a drain is never refused for room.
    pub(super) fn cordon(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) {
        let node = active.node;
        self.set_needs(active, Vec::new());
        if let Some(text) = self.remediation(&node.name) {
            self.write_node_markers(node, Cordon::Keep, true, None);
            verdict.block(LockReason::UnderRemediation, text.clone());
            verdict.message = text;
            return;
        }
        // A person has to see to it, and meanwhile the node goes on serving.
        let mut problems = active.classes.problems.iter();
        if let Some(problem) = problems.find(|problem| problem.reason.is_misconfiguration()) {
            self.write_node_markers(node, Cordon::Keep, true, None);
            verdict.message = format!("is not begun: {}", problem.message);
            return;
        }
        if let Some(pod) = self.cordons.stranded_by(&node.name) {
            self.requeue_at.note(saturating_add(self.now, A_MOMENT));
            self.write_node_markers(node, Cordon::Keep, true, None);
            let text = format!("its cordon would take the last room that pod {pod} of another draining node finds");
            verdict.block(LockReason::NoRoom, text.clone());
            verdict.message = text;
            return;
        }
        self.mark_draining(active);
        // From now on the node offers no room, and its own movable pods need some.
        self.cordons.cordon(&node.name);
        self.cordons.leave(node.name.clone(), active.classes.movable.clone());
        verdict.set_message("is being cordoned");
    }
}
