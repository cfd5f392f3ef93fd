//! What a drain leaves on its node: the cordon with its author, the taint of the queue, and two conditions.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::condition::{DRAIN_LOCK_DRAINED as DRAINED, DRAIN_LOCK_DRAINING as DRAINING};
use nodeward_api::reason::LockReason;
use nodeward_api::{annotation, condition, taint};
use nodeward_core::deadline::to_the_second;
use nodeward_core::id::NodeName;
use nodeward_core::node::ConditionView;

use crate::snapshot::NodeFacts;

use super::intent::was_evicted_since_its_end;
use super::{Action, ActiveDrain, DrainContext, Planner};

/// A change of what a node says of its drain.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeWrite {
    /// The node as it was seen.
    pub node: Arc<NodeFacts>,
    /// What becomes of its cordon.
    pub cordon: Cordon,
    /// Whether it is to carry the taint of the queue.
    pub queued: bool,
    /// Whether it is to carry Karpenter's `do-not-disrupt`, which an emptied node is not removed with.
    pub do_not_disrupt: bool,
    /// What its conditions are to say; `None`: they are to go.
    pub progress: Option<Progress>,
}

impl NodeWrite {
    /// Whether its spec or its annotations change, and not its conditions alone.
    pub fn changes_spec(&self) -> bool {
        self.cordon != Cordon::Keep
            || self.node.taint(taint::QUEUED, None).is_some() != self.queued
            || !changed_do_not_disrupt(&self.node, self.do_not_disrupt).is_empty()
    }

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
    /// Nothing: it is another's, and a drain of ours goes on under it.
    Respect,
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
        let (is_in_progress, reason) = match self {
            Self::InProgress => (true, DRAINING),
            Self::Drained => (false, DRAINED),
        };
        [
            (condition::DRAIN_IN_PROGRESS, is_in_progress, reason),
            (condition::DRAINED, !is_in_progress, reason),
        ]
    }
}

/// The value of the record that drain-lock gave the node Karpenter's annotation.
const DRAIN_LOCK: &str = "drain-lock";

/// What is to change of the two conditions of a node: those that another program has set stay as they are.
pub fn changed_conditions(node: &NodeFacts, progress: Option<Progress>) -> Vec<ChangedCondition> {
    // Other drainers set conditions of the same types.
    let is_ours = |standing: &ConditionView| [DRAINING, DRAINED].contains(&&*standing.reason);
    let wanted = progress.map(Progress::conditions);
    let kinds = [condition::DRAIN_IN_PROGRESS, condition::DRAINED].into_iter();
    let changes = kinds.enumerate().filter_map(|(index, kind)| {
        let standing = node.condition(kind);
        if standing.is_some_and(|standing| !is_ours(standing)) {
            return None;
        }
        let Some((_, holds, reason)) = wanted.map(|wanted| wanted[index]) else {
            return standing.map(|_| ChangedCondition::Removed(kind));
        };
        let status = if holds { "True" } else { "False" };
        let is_so = |standing: &ConditionView| *standing.status == *status && *standing.reason == *reason;
        let same_status = standing.filter(|standing| *standing.status == *status);
        (!standing.is_some_and(is_so)).then(|| ChangedCondition::Set {
            kind,
            status,
            reason,
            since: same_status.and_then(|standing| standing.last_transition),
        })
    });
    changes.collect()
}

/// A change of one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedCondition {
    Set {
        kind: &'static str,
        status: &'static str,
        reason: &'static str,
        /// Since when it has had this status; `None`: from now on.
        since: Option<Timestamp>,
    },
    Removed(&'static str),
}

/// Whether the last cordon that drain-lock gave the node was for the NodeDrain of this UID.
pub fn is_cordoned_for(node: &NodeFacts, drain_uid: &str) -> bool {
    node.cordon_record().is_some_and(|record| record.drain_uid == drain_uid)
}

/// What is to change of a node, if it does not say what it should.
pub fn change(node: &Arc<NodeFacts>, cordon: Cordon, queued: bool, progress: Option<Progress>) -> Option<NodeWrite> {
    let do_not_disrupt = match &cordon {
        Cordon::Keep => node.has_do_not_disrupt_record(),
        Cordon::Set { .. } | Cordon::Respect => true,
        Cordon::Lift | Cordon::Forget => false,
    };
    let cordon = match cordon {
        Cordon::Respect => Cordon::Keep,
        Cordon::Set { by } if node.is_cordoned_by_us() && is_cordoned_for(node, &by) => Cordon::Keep,
        Cordon::Lift | Cordon::Forget if node.cordon_record().is_none() => Cordon::Keep,
        Cordon::Lift if !node.is_cordoned_by_us() => Cordon::Forget,
        other => other,
    };
    let write = NodeWrite {
        node: Arc::clone(node),
        cordon,
        queued,
        do_not_disrupt,
        progress,
    };
    let is_wrong = write.changes_spec() || !changed_conditions(node, progress).is_empty();
    is_wrong.then_some(write)
}

/// The annotations that keep Karpenter from removing an emptied node, as far as they are to change: key, and the value that it gets.
/// What somebody else gave the node stays as it is, and what somebody took away is not given again.
pub fn changed_do_not_disrupt(node: &NodeFacts, wanted: bool) -> Vec<(&'static str, Option<&'static str>)> {
    let present = node.annotations.get(annotation::KARPENTER_DO_NOT_DISRUPT);
    let is_true = present.is_some_and(|value| value == annotation::KARPENTER_DO_NOT_DISRUPT_TRUE);
    let record = (annotation::DO_NOT_DISRUPT_BY, wanted.then_some(DRAIN_LOCK));
    let annotation = (
        annotation::KARPENTER_DO_NOT_DISRUPT,
        wanted.then_some(annotation::KARPENTER_DO_NOT_DISRUPT_TRUE),
    );
    match (wanted, node.has_do_not_disrupt_record()) {
        (true, false) if present.is_none() => vec![annotation, record],
        (false, true) if is_true => vec![annotation, record],
        (false, true) => vec![record],
        (true | false, _) => Vec::new(),
    }
}

impl Planner<'_> {
    /// What becomes of our own cordon once the drain does not need it: it is not lifted under another drainer, and a person is
    /// told what lifts it. To one that goes on after our drain has ended it is left.
    pub(super) fn lifted(&mut self, context: &DrainContext) -> (Cordon, Option<String>) {
        if context.drain.as_deref().is_some_and(was_evicted_since_its_end) {
            return (Cordon::Forget, None);
        }
        let Some(until) = context.cordon_stays_until(self.policy.auto.quiet_period, self.now) else {
            return (Cordon::Lift, None);
        };
        self.requeue_at.note(until);
        let (node, why) = (&context.name, LockReason::CordonShared.explanation());
        let text = format!(
            "node {node} {why}; the cordon is lifted at {}, or now: kubectl uncordon {node}",
            to_the_second(until)
        );
        (Cordon::Keep, Some(text))
    }

    /// Sees to it that the node says what it is to say.
    pub(super) fn write_node_markers(
        &mut self,
        node: &Arc<NodeFacts>,
        cordon: Cordon,
        queued: bool,
        progress: Option<Progress>,
    ) {
        let write = change(node, cordon, queued, progress);
        self.plan.actions.extend(write.map(Action::Node));
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

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::observe::project_node;
    use crate::tests::fixture::{at, node, parse};

    const SINCE: &str = "2026-01-01T11:00:00Z";

    fn standing(kind: &str, status: &str, reason: &str) -> Value {
        json!({ "type": kind, "status": status, "reason": reason, "lastTransitionTime": SINCE })
    }

    fn ours(in_progress: &str, drained: &str, reason: &str) -> Value {
        json!([
            standing("DrainInProgress", in_progress, reason),
            standing("Drained", drained, reason)
        ])
    }

    fn changes(conditions: Value, progress: Option<Progress>) -> Vec<ChangedCondition> {
        let node = node("n1", json!({ "status": { "conditions": conditions } }));
        changed_conditions(&project_node(&parse(node)).unwrap(), progress)
    }

    fn set(kind: &'static str, status: &'static str, reason: &'static str, since: Option<&str>) -> ChangedCondition {
        let since = since.map(at);
        ChangedCondition::Set {
            kind,
            status,
            reason,
            since,
        }
    }

    #[rstest]
    #[case::first(json!([]), Some(Progress::InProgress), vec![
        set("DrainInProgress", "True", DRAINING, None), set("Drained", "False", DRAINING, None),
    ])]
    #[case::said_already(ours("True", "False", DRAINING), Some(Progress::InProgress), vec![])]
    #[case::drained(ours("True", "False", DRAINING), Some(Progress::Drained), vec![
        set("DrainInProgress", "False", DRAINED, None), set("Drained", "True", DRAINED, None),
    ])]
    #[case::one_was_lost(json!([standing("Drained", "False", DRAINED)]), Some(Progress::InProgress), vec![
        set("DrainInProgress", "True", DRAINING, None), set("Drained", "False", DRAINING, Some(SINCE)),
    ])]
    #[case::over(ours("False", "True", DRAINED), None, vec![
        ChangedCondition::Removed("DrainInProgress"), ChangedCondition::Removed("Drained"),
    ])]
    #[case::never_was(json!([]), None, vec![])]
    fn conditions_follow_the_drain(
        #[case] conditions: Value,
        #[case] progress: Option<Progress>,
        #[case] expected: Vec<ChangedCondition>,
    ) {
        assert_eq!(changes(conditions, progress), expected);
    }

    /// `kubectl drain` is to set them too.
    #[rstest]
    fn conditions_of_others_stay(
        #[values(None, Some(Progress::InProgress), Some(Progress::Drained))] progress: Option<Progress>,
        #[values("True", "False", "Unknown")] status: &str,
        #[values("Draining", "")] reason: &str,
    ) {
        assert_eq!(changes(ours(status, status, reason), progress), []);
        let one = changes(json!([standing("Drained", status, reason)]), progress);
        let kinds: Vec<&str> = one
            .iter()
            .map(|change| match change {
                ChangedCondition::Set { kind, .. } | ChangedCondition::Removed(kind) => *kind,
            })
            .collect();
        let expected = progress.map(|_| "DrainInProgress");
        assert_eq!(
            kinds,
            expected.into_iter().collect::<Vec<_>>(),
            "the other is ours to set"
        );
    }
}
