//! Cordoning: what drain-lock may take out of the cluster's room, and what it leaves on the node.

use std::sync::Arc;

use jiff::SignedDuration;
use nodeward_api::node_drain::Evictor;
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::saturating_add;

use crate::snapshot::NodeFacts;

use super::node_markers::{self, Cordon, Progress};
use super::verdict::{self, DrainVerdict};
use super::{Action, File, Planner};

/// How long a cordon waits that would take a pod's last room, before it is looked at again.
const A_MOMENT: SignedDuration = SignedDuration::from_secs(1);

impl Planner<'_> {
    /// Cordons a node whose turn has come, unless that would take the last room that a movable pod of another draining
    /// node finds. With nothing else in progress a drain is never refused for room.
    pub(super) fn cordon(&mut self, file: &File, node: &Arc<NodeFacts>, verdict: &mut DrainVerdict) {
        self.stand_aside(file, node);
        // What has waited for longer finds no node, whatever it looks like from here.
        let since = saturating_add(self.now, -self.policy.unschedulable_after);
        let others = self.strangers.iter().filter(|(name, _)| *name != node.name);
        let leaving = others.map(|(_, pods)| pods.as_slice());
        if let Some(pod) = self.scheduling.stranded_by_cordon(&node.name, leaving, since) {
            self.requeue_at.note(saturating_add(self.now, A_MOMENT));
            self.write_node_markers(node, Cordon::Keep, true, None);
            let text = format!("its cordon would take the last room that pod {pod} of another draining node finds");
            verdict
                .blocked_by
                .push(verdict::about_node(LockReason::NoRoom, text.clone()));
            verdict.message = text;
            return;
        }
        self.write_node_markers(node, Self::own_cordon(file), false, Some(Progress::InProgress));
        self.take_room_of(file, node);
        verdict.says("is being cordoned");
    }

    /// From now on the node offers no room, and its own movable pods need some.
    fn take_room_of(&mut self, file: &File, node: &Arc<NodeFacts>) {
        self.scheduling.to_mut().cordon(&node.name);
        let movable = file.look.as_ref().map(|look| look.movable.clone()).unwrap_or_default();
        self.strangers.push((node.name.clone(), movable));
    }

    /// The cordon that a node is to have that is drained by us; another's cordon is respected.
    pub(super) fn own_cordon(file: &File) -> Cordon {
        if file.case.evictor() == Evictor::Requester || file.case.has_foreign_cordon() {
            return Cordon::Keep;
        }
        Cordon::Set {
            by: file.case.drain_uid().to_owned(),
        }
    }

    /// Sees to it that the node says what it is to say.
    pub(super) fn write_node_markers(
        &mut self,
        node: &Arc<NodeFacts>,
        cordon: Cordon,
        queued: bool,
        progress: Option<Progress>,
    ) {
        self.plan
            .actions
            .extend(node_markers::spec(node, cordon, queued).map(Action::Node));
        self.plan
            .actions
            .extend(node_markers::conditions(node, progress).map(Action::Conditions));
    }
}
