//! NodeDrains: which nodes are declared to be drained, and how far that has come.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::{NodeDrain, Phase};

use crate::duration::ConfigDuration;
use crate::id::{NodeName, NodeUid};

/// A NodeDrain, projected to what other operators than drain-lock read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDrainView {
    pub node: NodeName,
    /// UID of its node, once drain-lock has filled it in.
    pub node_uid: Option<NodeUid>,
    /// Where it stands; `None` until drain-lock has taken it up.
    pub phase: Option<Phase>,
    /// Until when the present phase lasts at most.
    pub deadline: Option<Timestamp>,
    /// What it says of its deadlines itself.
    pub deadlines: DrainDeadlines,
    /// It is a plan, and nothing is done.
    pub dry_run: bool,
    /// It is being deleted: the drain was called off.
    pub called_off: bool,
}

/// Deadlines of a drain; `None` where it leaves them to the configuration of drain-lock, or says what is no duration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrainDeadlines {
    /// From the grant to the node being drained.
    pub drain: Option<SignedDuration>,
    /// On top of `drain`, counted from the grant, to the last disruption's return.
    pub recover: Option<SignedDuration>,
}

impl NodeDrainView {
    /// Projects a NodeDrain as the API server sends it; `None` without a name.
    pub fn project(drain: &NodeDrain) -> Option<Self> {
        let status = drain.status.as_ref();
        let duration = |text: &Option<String>| Some(ConfigDuration::parse(text.as_deref()?).ok()?.get());
        Some(Self {
            node: drain.metadata.name.as_deref()?.into(),
            node_uid: drain.spec.node_uid.as_deref().map(Into::into),
            phase: status.and_then(|status| status.phase),
            deadline: status.and_then(|status| status.deadline),
            deadlines: DrainDeadlines {
                drain: duration(&drain.spec.deadlines.drain),
                recover: duration(&drain.spec.deadlines.recover),
            },
            dry_run: drain.spec.dry_run,
            called_off: drain.metadata.deletion_timestamp.is_some(),
        })
    }

    /// Whether it is of the node with this UID, and not of an earlier one of its name.
    pub fn is_of(&self, node: &NodeUid) -> bool {
        self.node_uid.as_ref().is_none_or(|uid| uid == node)
    }

    /// Whether the node's pods are meant to leave: from the queue, where those leave that need no claim, to the end of the
    /// drain; and while it is unclear what became of its drainer, for a drainer that waits for one stuck pod looks just so.
    /// Not once the drain was given up or called off.
    pub fn is_emptying_its_node(&self) -> bool {
        let has_begun = match self.phase {
            Some(Phase::Queued | Phase::Granted | Phase::Draining | Phase::Suspect) => true,
            Some(Phase::Drained | Phase::Recovering | Phase::Released | Phase::Failed) | None => false,
        };
        has_begun && !self.dry_run && !self.called_off
    }

    /// Whether the drain of its node has yet to begin: nobody is to empty the node before its turn. A phase that this
    /// version does not know, or none, is not past the queue.
    pub fn waits_for_turn(&self) -> bool {
        let has_begun = match self.phase {
            Some(Phase::Queued | Phase::Granted) | None => false,
            Some(
                Phase::Draining | Phase::Drained | Phase::Recovering | Phase::Suspect | Phase::Released | Phase::Failed,
            ) => true,
        };
        !has_begun && !self.dry_run && !self.called_off
    }

    /// Whether it declares maintenance of its node, which a remediation then leaves alone.
    pub fn is_maintenance(&self, now: Timestamp) -> bool {
        is_maintenance(self.phase, self.deadline, now) && !self.dry_run
    }

    /// Until when the present phase lasts at most, in those phases in which the drain has disruptions of budgets.
    pub fn holding_deadline(&self) -> Option<Timestamp> {
        match self.phase {
            Some(Phase::Granted | Phase::Draining | Phase::Drained | Phase::Recovering | Phase::Suspect) => {
                self.deadline
            }
            Some(Phase::Queued | Phase::Released | Phase::Failed) | None => None,
        }
    }
}

/// Whether a drain in this phase declares maintenance of its node: within its own deadline, and while its node is, or is
/// about to be, taken down. One that waits, has failed or is past its deadline does not.
pub fn is_maintenance(phase: Option<Phase>, deadline: Option<Timestamp>, now: Timestamp) -> bool {
    let is_phase = matches!(
        phase,
        Some(Phase::Granted | Phase::Draining | Phase::Drained | Phase::Recovering)
    );
    is_phase && deadline.is_none_or(|deadline| now < deadline)
}

/// All NodeDrains, as far as they are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeDrains {
    /// These, each read or, with the reason, not.
    Known(BTreeMap<NodeName, Result<Arc<NodeDrainView>, String>>),
    /// They cannot be told, for this reason.
    Unknown(String),
}

impl Default for NodeDrains {
    fn default() -> Self {
        Self::Known(BTreeMap::new())
    }
}

impl NodeDrains {
    /// The drain of the node; `None` where there is none.
    ///
    /// # Errors
    /// Why it cannot be told.
    pub fn of(&self, node: &NodeName) -> Result<Option<&NodeDrainView>, &str> {
        match self {
            Self::Unknown(why) => Err(why),
            Self::Known(drains) => match drains.get(node) {
                None => Ok(None),
                Some(Ok(drain)) => Ok(Some(drain)),
                Some(Err(why)) => Err(why),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn drain(phase: Option<&str>, spec: Value, metadata: Value) -> NodeDrainView {
        let mut object = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": metadata, "spec": spec,
            "status": { "phase": phase, "deadline": "2026-01-01T01:00:00Z" },
        });
        object["metadata"]["name"] = "n1".into();
        object["spec"]["nodeName"] = "n1".into();
        NodeDrainView::project(&serde_json::from_value(object).unwrap()).unwrap()
    }

    #[rstest]
    #[case(None, false, false, true)]
    #[case(Some("Queued"), true, false, true)]
    #[case(Some("Granted"), true, true, true)]
    #[case(Some("Draining"), true, true, false)]
    #[case(Some("Drained"), false, true, false)]
    #[case(Some("Recovering"), false, true, false)]
    #[case(Some("Released"), false, false, false)]
    #[case(Some("Suspect"), true, true, false)]
    #[case(Some("Failed"), false, false, false)]
    #[case(Some("Evaporating"), false, false, true)]
    fn phase_tells_emptying_holding_and_waiting(
        #[case] phase: Option<&str>,
        #[case] empties: bool,
        #[case] holds: bool,
        #[case] waits: bool,
    ) {
        let drain = drain(phase, json!({}), json!({}));
        assert_eq!(drain.waits_for_turn(), waits);
        assert_eq!(drain.is_emptying_its_node(), empties);
        assert_eq!(drain.holding_deadline().is_some(), holds);
    }

    #[rstest]
    #[case::dry_run(json!({ "dryRun": true }), json!({}))]
    #[case::called_off(json!({}), json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }))]
    fn planned_and_cancelled_drains_empty_no_node(#[case] spec: Value, #[case] metadata: Value) {
        assert!(!drain(Some("Draining"), spec.clone(), metadata.clone()).is_emptying_its_node());
        assert!(!drain(Some("Queued"), spec, metadata).waits_for_turn());
    }

    #[rstest]
    #[case(json!({}), true)]
    #[case(json!({ "nodeUID": "u1" }), true)]
    #[case(json!({ "nodeUID": "older" }), false)]
    fn drain_is_bound_to_node_uid(#[case] spec: Value, #[case] is_of: bool) {
        assert_eq!(drain(None, spec, json!({})).is_of(&"u1".into()), is_of);
    }

    #[test]
    fn malformed_deadline_is_none() {
        let deadlines = drain(
            None,
            json!({ "deadlines": { "drain": "1h30m", "recover": "soon" } }),
            json!({}),
        )
        .deadlines;
        assert_eq!(deadlines.drain, Some(SignedDuration::from_mins(90)));
        assert_eq!(deadlines.recover, None);
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_absent() {
        let view = Arc::new(drain(Some("Draining"), json!({}), json!({})));
        let known = NodeDrains::Known([("n1".into(), Ok(view)), ("n2".into(), Err("nonsense".to_owned()))].into());
        assert!(known.of(&"n1".into()).unwrap().is_some());
        assert_eq!(known.of(&"n2".into()), Err("nonsense"));
        assert_eq!(known.of(&"n3".into()), Ok(None));
        let unknown = NodeDrains::Unknown("forbidden".to_owned());
        assert_eq!(unknown.of(&"n1".into()), Err("forbidden"));
    }
}
