//! The NodeHealthCheck that is created once where there is none: with a remediator and nothing else set up, nodes are watched
//! as the document of `NodeHealthCheck` says by default.
//!
//! A ConfigMap records that it was created, so that it stays away once somebody deletes it. The record is made before the
//! object, and completed after it: a process that dies between the two goes on from what it finds.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use nodeward_api::NodeHealthCheck;
use nodeward_api::node_health_check::NodeHealthCheckSpec;

use crate::snapshot::{Reading, Snapshot, TemplateRef};

/// Name of the NodeHealthCheck.
pub const NAME: &str = "nodeward-default";

/// Name of the ConfigMap, in the operator's namespace.
pub const RECORD_NAME: &str = "nodeward-health-check-default";

/// Key of the ConfigMap.
const STATE: &str = "state";

/// What the ConfigMap says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// There is none.
    Absent,
    /// The NodeHealthCheck is about to be created.
    Creating,
    /// It was created, or there was no need to. Also what cannot be read: in doubt, nothing is created.
    Done,
}

impl Record {
    /// Reads the ConfigMap's data; `None`: there is no ConfigMap.
    pub fn read(data: Option<&BTreeMap<String, String>>) -> Self {
        match data {
            None => Self::Absent,
            Some(data) if data.get(STATE).is_some_and(|state| state == "Creating") => Self::Creating,
            Some(_) => Self::Done,
        }
    }
}

/// A step on the way to the default NodeHealthCheck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultStep {
    /// The record is made: the NodeHealthCheck is about to be created.
    Announce,
    /// The NodeHealthCheck is created. That it exists already is success.
    Create,
    /// The record is to say that it was, by an update of the version that was read.
    Complete,
}

impl DefaultStep {
    /// The data of the ConfigMap after it.
    pub fn record(self) -> BTreeMap<String, String> {
        let state = match self {
            Self::Announce | Self::Create => "Creating",
            Self::Complete => "Done",
        };
        [(STATE, state), ("name", NAME)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }
}

/// What comes next where it is asked for. Nothing is written beside the peer, and its NodeHealthChecks may be on their way.
pub fn next_step(record: Record, snapshot: &Snapshot) -> Option<DefaultStep> {
    if snapshot.peer != Reading::Known(None) {
        return None;
    }
    match (record, snapshot.checks.is_empty()) {
        (Record::Absent, true) => Some(DefaultStep::Announce),
        (Record::Creating, true) => Some(DefaultStep::Create),
        // Ours is there, or somebody made another one meanwhile.
        (Record::Creating, false) => Some(DefaultStep::Complete),
        (Record::Absent, false) | (Record::Done, _) => None,
    }
}

/// The NodeHealthCheck: what its spec leaves out is the default, and the selector is resolved as for any other.
pub fn node_health_check(template: &TemplateRef) -> NodeHealthCheck {
    let reference = ObjectReference {
        api_version: Some(template.api_version.to_string()),
        kind: Some(template.kind.to_string()),
        namespace: Some(template.namespace.to_string()),
        name: Some(template.name.to_string()),
        ..ObjectReference::default()
    };
    let spec = NodeHealthCheckSpec {
        remediation_template: Some(reference),
        ..NodeHealthCheckSpec::default()
    };
    NodeHealthCheck::new(NAME, spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::world::World;
    use nodeward_core::node_health_check::{CheckSpec, Quantity, Threshold};
    use rstest::rstest;
    use serde_json::json;

    fn template() -> TemplateRef {
        TemplateRef {
            api_version: "a/v1".into(),
            kind: "ATemplate".into(),
            namespace: "n".into(),
            name: "t".into(),
        }
    }

    #[rstest]
    #[case::asked_for(Record::Absent, &[], Some(DefaultStep::Announce))]
    #[case::recorded(Record::Creating, &[], Some(DefaultStep::Create))]
    #[case::created(Record::Creating, &[NAME], Some(DefaultStep::Complete))]
    #[case::left_alone(Record::Done, &[NAME], None)]
    #[case::deleted_by_a_user(Record::Done, &[], None)]
    #[case::others_exist(Record::Absent, &["workers"], None)]
    #[case::another_came_first(Record::Creating, &["workers"], Some(DefaultStep::Complete))]
    fn default_check_is_created_once(
        #[case] record: Record,
        #[case] checks: &[&str],
        #[case] expected: Option<DefaultStep>,
    ) {
        let mut world = World::workers(1);
        for check in checks {
            world.set_check(check, json!({}));
        }
        assert_eq!(next_step(record, &world.snapshot), expected);
        for peer in [
            Reading::Known(Some("x leads".to_owned())),
            Reading::Unknown("403".to_owned()),
        ] {
            world.snapshot.peer = peer;
            assert_eq!(next_step(record, &world.snapshot), None);
        }
    }

    #[rstest]
    #[case(DefaultStep::Announce, Record::Creating)]
    #[case(DefaultStep::Complete, Record::Done)]
    fn record_is_read_as_it_was_written(#[case] step: DefaultStep, #[case] record: Record) {
        assert_eq!(Record::read(Some(&step.record())), record);
    }

    #[test]
    fn unreadable_record_creates_nothing() {
        assert_eq!(Record::read(Some(&BTreeMap::new())), Record::Done);
        assert_eq!(Record::read(None), Record::Absent);
    }

    #[test]
    fn default_check_has_the_documents_defaults() {
        let check = node_health_check(&template());
        let spec = CheckSpec::compile(&check.spec);
        assert_eq!(spec.problems, Vec::<String>::new());
        assert_eq!(spec.threshold, Threshold::MaxUnhealthy(Quantity::Percent(49)));
        assert_eq!(spec.conditions.len(), 2);
        assert_eq!(spec.steps.len(), 1);
        assert_eq!(spec.selector, None, "resolved once and written to the spec");
    }
}
