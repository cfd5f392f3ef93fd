//! What a drain leaves on its node: the cordon with its author, the taint of the queue, and two conditions.

use std::sync::Arc;

use nodeward_api::reason::LockReason;
use nodeward_api::{condition, taint};
use nodeward_core::id::NodeName;

use crate::snapshot::NodeFacts;

use super::{Action, ActiveDrain, Planner};

/// A change of a node's spec and annotations.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeWrite {
    /// The node as it was seen.
    pub node: Arc<NodeFacts>,
    /// What becomes of its cordon.
    pub cordon: Cordon,
    /// Whether it is to carry the taint of the queue.
    pub queued: bool,
}

impl NodeWrite {
    /// Whether the node stays cordoned although drain-lock had cordoned it: the cordon is somebody else's since.
    pub fn leaves_taken_cordon(&self) -> bool {
        self.cordon == Cordon::Forget && self.node.is_cordon_taken()
    }
}

/// What a person does about a cordon that is not drain-lock's to lift.
pub fn taken(node: &NodeName) -> String {
    format!(
        "node {node} {}; to lift it: kubectl uncordon {node}",
        LockReason::CordonTaken.explanation()
    )
}

/// What becomes of a node's cordon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cordon {
    /// Nothing.
    Keep,
    /// It is cordoned for the NodeDrain of this UID, or its cordon of ours is handed on to it.
    Set {
        /// UID of the NodeDrain.
        by: String,
    },
    /// Our own cordon is lifted, with its annotation.
    Lift,
    /// The node is not under the cordon that we gave it any more: only the annotation goes.
    Forget,
}

/// A change of a node's conditions.
#[derive(Debug, Clone, PartialEq)]
pub struct ConditionWrite {
    /// The node as it was seen.
    pub node: Arc<NodeFacts>,
    /// What they are to say; `None`: they are to go.
    pub progress: Option<Progress>,
}

/// How far the drain of a node has come, in the terms of KEP-5683.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is being drained.
    InProgress,
    Drained,
}

impl Progress {
    /// The two conditions: type, whether it holds, and the reason.
    pub fn conditions(self) -> [(&'static str, bool, &'static str); 2] {
        match self {
            Self::InProgress => [
                (condition::DRAIN_IN_PROGRESS, true, "Draining"),
                (condition::DRAINED, false, "Draining"),
            ],
            Self::Drained => [
                (condition::DRAIN_IN_PROGRESS, false, "Drained"),
                (condition::DRAINED, true, "Drained"),
            ],
        }
    }
}

/// The conditions of a node that a drain sets.
pub const DRAIN_CONDITIONS: [&str; 2] = [condition::DRAIN_IN_PROGRESS, condition::DRAINED];

/// Whether the last cordon that drain-lock gave the node was for the NodeDrain of this UID.
pub fn is_cordoned_for(node: &NodeFacts, drain_uid: &str) -> bool {
    node.cordon_record().is_some_and(|record| record.drain_uid == drain_uid)
}

/// The node's spec, if it is not as it should be.
pub fn spec(node: &Arc<NodeFacts>, cordon: Cordon, queued: bool) -> Option<NodeWrite> {
    let cordon = match cordon {
        Cordon::Set { by } if node.is_cordoned_by_us() && is_cordoned_for(node, &by) => Cordon::Keep,
        Cordon::Lift | Cordon::Forget if node.cordon_record().is_none() => Cordon::Keep,
        Cordon::Lift if !node.is_cordoned_by_us() => Cordon::Forget,
        other => other,
    };
    let is_right = cordon == Cordon::Keep && node.taint(taint::QUEUED, None).is_some() == queued;
    (!is_right).then(|| NodeWrite {
        node: Arc::clone(node),
        cordon,
        queued,
    })
}

/// The node's conditions, if they are not as they should be.
pub fn conditions(node: &Arc<NodeFacts>, progress: Option<Progress>) -> Option<ConditionWrite> {
    let is_right = match progress {
        None => DRAIN_CONDITIONS.iter().all(|kind| node.condition(kind).is_none()),
        Some(progress) => progress.conditions().iter().all(|(kind, holds, reason)| {
            node.condition(kind).is_some_and(|condition| {
                *condition.status == *if *holds { "True" } else { "False" } && *condition.reason == **reason
            })
        }),
    };
    (!is_right).then(|| ConditionWrite {
        node: Arc::clone(node),
        progress,
    })
}

impl Planner<'_> {
    /// Sees to it that the node says what it is to say.
    pub(super) fn write_node_markers(
        &mut self,
        node: &Arc<NodeFacts>,
        cordon: Cordon,
        queued: bool,
        progress: Option<Progress>,
    ) {
        let actions = &mut self.plan.actions;
        actions.extend(spec(node, cordon, queued).map(Action::Node));
        actions.extend(conditions(node, progress).map(Action::Conditions));
    }

    /// The markers of a node whose drain is under way.
    pub(super) fn mark_draining(&mut self, active: &ActiveDrain<'_>) {
        self.write_node_markers(
            active.node,
            active.context.own_cordon(),
            false,
            Some(Progress::InProgress),
        );
    }
}
