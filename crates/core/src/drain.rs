//! NodeDrains: which nodes are declared to be drained, and how far that has come.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::{NodeDrain, NodeDrainStatus, Phase};

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
    /// Whether its claim has its grant.
    pub granted: bool,
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
            granted: status.is_some_and(NodeDrainStatus::is_granted),
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

    /// Whether its node is being emptied, or is away after that: from the queue, where those pods leave that need no claim, to
    /// the node's return; and while it is unclear what became of its drainer.
    pub fn is_active(&self) -> bool {
        let is_active = match self.phase {
            Some(
                Phase::Queued | Phase::Granted | Phase::Draining | Phase::Drained | Phase::Recovering | Phase::Suspect,
            ) => true,
            Some(Phase::Scheduled | Phase::Released | Phase::Failed) | None => false,
        };
        is_active && self.is_wanted()
    }

    /// Whether the drain of its node has yet to begin, or waits for other drains: nobody is to empty the node before its turn.
    /// A phase that this version does not know, or none, is not past the queue.
    pub fn waits_for_turn(&self) -> bool {
        let waits = match self.phase {
            Some(Phase::Scheduled | Phase::Queued | Phase::Granted) | None => true,
            Some(
                Phase::Draining | Phase::Drained | Phase::Recovering | Phase::Suspect | Phase::Released | Phase::Failed,
            ) => false,
        };
        waits && self.is_wanted()
    }

    /// Whether it marks its cordoned node as one that is being drained, where nothing else does: its pods are to leave, now or
    /// in its turn. What became of a drain without a drainer nobody knows.
    pub fn marks_drain(&self) -> bool {
        self.waits_for_turn() || (self.phase == Some(Phase::Draining) && self.is_wanted())
    }

    /// Whether its turn has come on this node and it is not over: pods that go down with the node go under its claim.
    pub fn is_under_way_on(&self, node: &NodeUid) -> bool {
        let is_under_way = match self.phase {
            Some(Phase::Draining | Phase::Drained | Phase::Recovering | Phase::Suspect) => true,
            Some(Phase::Scheduled | Phase::Queued | Phase::Granted | Phase::Released | Phase::Failed) | None => false,
        };
        is_under_way && self.is_wanted() && self.is_of(node)
    }

    /// Whether it is more than a plan, and was not called off.
    fn is_wanted(&self) -> bool {
        !self.dry_run && !self.called_off
    }

    /// Whether it declares maintenance of its node, which a remediation then leaves alone.
    pub fn is_maintenance(&self, now: Timestamp) -> bool {
        is_maintenance(self.phase, self.granted, self.deadline, now) && !self.dry_run
    }

    /// Until when the present phase lasts at most, in those phases in which the drain has disruptions of budgets.
    pub fn holding_deadline(&self) -> Option<Timestamp> {
        match self.phase {
            Some(Phase::Granted | Phase::Draining | Phase::Drained | Phase::Recovering | Phase::Suspect) => {
                self.deadline
            }
            Some(Phase::Scheduled | Phase::Queued | Phase::Released | Phase::Failed) | None => None,
        }
    }
}

/// Whether a drain in this phase, with its grant or without, declares maintenance of its node: within its own deadline, and
/// while its node is, or is about to be, taken down. One that waits, for other drains or for an obstacle, has failed or is past
/// its deadline does not.
pub fn is_maintenance(phase: Option<Phase>, granted: bool, deadline: Option<Timestamp>, now: Timestamp) -> bool {
    let takes_node_down = match phase {
        Some(Phase::Drained | Phase::Recovering) => true,
        Some(Phase::Granted | Phase::Draining) | None => granted,
        Some(Phase::Scheduled | Phase::Queued | Phase::Suspect | Phase::Released | Phase::Failed) => false,
    };
    takes_node_down && deadline.is_none_or(|deadline| now < deadline)
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
        NodeDrainView::project(&serde_json::from_value(drain_object(phase, spec, metadata)).unwrap()).unwrap()
    }

    fn drain_object(phase: Option<&str>, spec: Value, metadata: Value) -> Value {
        let mut object = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": metadata, "spec": spec,
            "status": { "phase": phase, "deadline": "2026-01-01T01:00:00Z" },
        });
        object["metadata"]["name"] = "n1".into();
        object["spec"]["nodeName"] = "n1".into();
        object
    }

    #[rstest]
    #[case(None, &["waits", "marks"])]
    #[case(Some("Scheduled"), &["waits", "marks"])]
    #[case(Some("Queued"), &["waits", "marks", "active"])]
    #[case(Some("Granted"), &["waits", "marks", "active", "holds"])]
    #[case(Some("Draining"), &["marks", "active", "holds", "under way"])]
    #[case(Some("Drained"), &["active", "holds", "under way"])]
    #[case(Some("Recovering"), &["active", "holds", "under way"])]
    #[case(Some("Released"), &[])]
    #[case(Some("Suspect"), &["active", "holds", "under way"])]
    #[case(Some("Failed"), &[])]
    #[case(Some("Evaporating"), &["waits", "marks"])]
    fn phase_tells_what_others_rest_on(#[case] phase: Option<&str>, #[case] says: &[&str]) {
        let drain = drain(phase, json!({}), json!({}));
        let said = [
            ("waits", drain.waits_for_turn()),
            ("marks", drain.marks_drain()),
            ("active", drain.is_active()),
            ("holds", drain.holding_deadline().is_some()),
            ("under way", drain.is_under_way_on(&"u1".into())),
        ];
        let said: Vec<&str> = said.iter().filter(|(_, holds)| *holds).map(|(word, _)| *word).collect();
        assert_eq!(said, says);
    }

    /// A node that crashes beside an obstacle is remediated.
    #[rstest]
    #[case::waits_for_others("Queued", "True", 59, false)]
    #[case::drains_without_its_grant("Draining", "False", 59, false)]
    #[case::drains_with_its_grant("Draining", "True", 59, true)]
    #[case::drains_past_its_deadline("Draining", "True", 60, false)]
    #[case::confirms_its_grant("Granted", "True", 59, true)]
    #[case::is_down("Drained", "True", 59, true)]
    #[case::comes_back("Recovering", "False", 59, true)]
    #[case::comes_back_too_late("Recovering", "False", 60, false)]
    #[case::has_no_drainer("Suspect", "True", 59, false)]
    #[case::has_failed("Failed", "True", 59, false)]
    #[case::is_in_a_later_versions_phase("Evaporating", "True", 59, true)]
    #[case::waits_in_a_later_versions_phase("Evaporating", "False", 59, false)]
    fn grant_makes_maintenance_of_a_drain(
        #[case] phase: &str,
        #[case] granted: &str,
        #[case] minute: i64,
        #[case] is_maintenance: bool,
    ) {
        let mut object = drain_object(Some(phase), json!({}), json!({}));
        object["status"]["conditions"] = json!([{
            "type": "Granted", "status": granted, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        let drain = NodeDrainView::project(&serde_json::from_value(object).unwrap()).unwrap();
        let now = "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minute);
        assert_eq!(drain.is_maintenance(now), is_maintenance);
    }

    #[rstest]
    #[case::dry_run(json!({ "dryRun": true }), json!({}))]
    #[case::called_off(json!({}), json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }))]
    fn planned_and_cancelled_drains_empty_no_node(#[case] spec: Value, #[case] metadata: Value) {
        let draining = drain(Some("Draining"), spec.clone(), metadata.clone());
        assert!(!draining.is_active() && !draining.marks_drain() && !draining.is_under_way_on(&"u1".into()));
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
