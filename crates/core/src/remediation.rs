//! Remediations: which nodes are being remediated, as NodeHealthChecks, the leases of nodes and remediations themselves tell it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::annotation::{REMEDIATION_NODE_NAME, REMEDIATION_TIMED_OUT};
use nodeward_api::condition::SUCCEEDED;
use nodeward_api::node_health_check::NodeHealthCheck;
use nodeward_api::node_lease::REMEDIATION_HOLDER_PREFIX;
use serde_json::Value;

use crate::id::{NamespacedName, NodeName};
use crate::lease::{LeaseView, remediation_lease};
use crate::signal::WatchedResource;

/// What tells that a node is being remediated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenRemediation {
    /// The status of a NodeHealthCheck lists a remediation of it, or the intent of one.
    Status {
        check: Arc<str>,
        kind: Arc<str>,
        since: Option<Timestamp>,
    },
    /// Its lease is held by a NodeHealthCheck.
    Lease { check: Arc<str>, until: Timestamp },
    /// A remediation of it exists, whoever has created it.
    Object { kind: Arc<str>, key: NamespacedName },
}

impl OpenRemediation {
    /// When it ends by itself, if it does.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Status { .. } | Self::Object { .. } => None,
            Self::Lease { until, .. } => Some(*until),
        }
    }
}

impl fmt::Display for OpenRemediation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { check, kind, since } => {
                write!(f, "NodeHealthCheck {check} has a {kind} for it")?;
                since.iter().try_for_each(|since| write!(f, " since {since}"))
            }
            Self::Lease { check, until } => {
                write!(f, "{REMEDIATION_HOLDER_PREFIX}{check} holds its lease until {until}")
            }
            Self::Object { kind, key } => write!(f, "{kind} {key} exists for it"),
        }
    }
}

/// What is watched: all NodeHealthChecks.
pub fn health_checks() -> WatchedResource {
    WatchedResource::of::<NodeHealthCheck>()
}

/// The node of a remediation: as its annotation tells, or else named like it.
pub fn node_of(name: &str, annotations: &BTreeMap<String, String>) -> NodeName {
    let told = annotations.get(REMEDIATION_NODE_NAME);
    told.map_or(name, String::as_str).into()
}

/// Whether a remediation says that its remediator is not at work any more: it was told that its time is over, or has failed.
pub fn is_over(annotations: &BTreeMap<String, String>, data: &Value) -> bool {
    let conditions = data.pointer("/status/conditions").and_then(Value::as_array);
    let has_failed = |condition: &Value| condition["type"] == SUCCEEDED && condition["status"] == "False";
    annotations.contains_key(REMEDIATION_TIMED_OUT) || conditions.into_iter().flatten().any(has_failed)
}

/// The nodes that a NodeHealthCheck's status lists with a remediation that is not over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemediatedNodes(BTreeMap<NodeName, OpenRemediation>);

impl RemediatedNodes {
    /// Projects a NodeHealthCheck as the API server sends it; `None` without a name. A step that is over is no open one,
    /// though its remediation may be there for days.
    pub fn project(check: &NodeHealthCheck) -> Option<Self> {
        let name: Arc<str> = check.metadata.name.as_deref()?.into();
        let unhealthy = check.status.iter().flat_map(|status| &status.unhealthy_nodes);
        let remediated = unhealthy.filter_map(|node| {
            let mut newest_first = node.remediations.iter().rev();
            let newest = newest_first.find(|step| step.runs())?;
            let open = OpenRemediation::Status {
                check: Arc::clone(&name),
                kind: newest.resource.kind.as_deref().unwrap_or("remediation").into(),
                since: newest.started,
            };
            Some((node.name.as_str().into(), open))
        });
        Some(Self(remediated.collect()))
    }
}

/// All open remediations, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remediations {
    by_node: BTreeMap<NodeName, OpenRemediation>,
    leases: BTreeMap<Arc<str>, Arc<LeaseView>>,
    unknown: Option<String>,
}

impl Remediations {
    /// Adds those that the status of a NodeHealthCheck lists.
    pub fn add_check(&mut self, check: &RemediatedNodes) {
        self.by_node
            .extend(check.0.iter().map(|(node, open)| (node.clone(), open.clone())));
    }

    /// Adds a remediation itself, which is not over. A status tells more of it.
    pub fn add_object(&mut self, node: NodeName, kind: Arc<str>, key: NamespacedName) {
        self.by_node
            .entry(node)
            .or_insert(OpenRemediation::Object { kind, key });
    }

    /// Adds what a lease tells.
    pub fn add_lease(&mut self, lease: Arc<LeaseView>) {
        self.leases.insert(Arc::clone(&lease.name), lease);
    }

    /// Of nodes without an open remediation it cannot be told whether they have one, for this reason.
    pub fn add_unknown(&mut self, why: String) {
        self.unknown.get_or_insert(why);
    }

    /// The open remediation of a node; `None` where there is none.
    ///
    /// # Errors
    /// Why it cannot be told.
    pub fn of(&self, node: &NodeName, now: Timestamp) -> Result<Option<OpenRemediation>, &str> {
        if let Some(open) = self.by_node.get(node) {
            return Ok(Some(open.clone()));
        }
        if let Some((check, until)) = remediation_lease(&self.leases, node, now) {
            return Ok(Some(OpenRemediation::Lease { check, until }));
        }
        self.unknown.as_deref().map_or(Ok(None), Err)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn check(name: &str, unhealthy: Value) -> RemediatedNodes {
        let object = json!({ "metadata": { "name": name }, "spec": {}, "status": { "unhealthyNodes": unhealthy } });
        RemediatedNodes::project(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn lease(node: &str, holder: &str, seconds: Option<i32>) -> Arc<LeaseView> {
        let object = json!({
            "metadata": { "name": format!("node-{node}"), "resourceVersion": "1" },
            "spec": { "holderIdentity": holder, "renewTime": at(0), "leaseDurationSeconds": seconds },
        });
        Arc::new(LeaseView::project(&serde_json::from_value(object).unwrap()).unwrap())
    }

    fn text(remediations: &Remediations) -> Option<String> {
        remediations
            .of(&"n1".into(), at(60))
            .unwrap()
            .map(|open| open.to_string())
    }

    #[rstest]
    #[case::unhealthy_without_a_remediation(json!([{ "name": "n1" }]), None)]
    #[case::of_another_node(json!([{ "name": "n2", "remediations": [{ "resource": { "kind": "Fence" } }] }]), None)]
    #[case::running(
        json!([{ "name": "n1", "remediations": [{ "resource": { "kind": "Fence", "uid": "u" }, "started": at(7) }] }]),
        Some("NodeHealthCheck workers has a Fence for it since 1970-01-01T00:00:07Z")
    )]
    #[case::intended(
        json!([{ "name": "n1", "remediations": [{ "resource": { "kind": "Fence" } }] }]),
        Some("NodeHealthCheck workers has a Fence for it")
    )]
    #[case::over(
        json!([{ "name": "n1", "remediations": [{ "resource": { "kind": "Fence" }, "timedOut": at(9) }] }]),
        None
    )]
    #[case::gone(json!([{ "name": "n1", "remediations": [{ "resource": { "kind": "Fence", "uid": "u" }, "absence": "Gone" }] }]), None)]
    #[case::of_a_kind_that_is_not_served(
        json!([{ "name": "n1", "remediations": [{ "resource": { "kind": "Fence", "uid": "u" }, "absence": "KindNotServed" }] }]),
        Some("NodeHealthCheck workers has a Fence for it")
    )]
    #[case::running_beside_one_that_is_over(
        json!([{ "name": "n1", "remediations": [
            { "resource": { "kind": "Reboot" }, "timedOut": at(9) }, { "resource": { "kind": "Fence" } },
        ] }]),
        Some("NodeHealthCheck workers has a Fence for it")
    )]
    fn a_status_tells_the_remediations_that_are_open(#[case] unhealthy: Value, #[case] expected: Option<&str>) {
        let mut remediations = Remediations::default();
        remediations.add_check(&check("workers", unhealthy));
        remediations.add_check(&check("others", json!([])));
        assert_eq!(text(&remediations).as_deref(), expected);
    }

    #[rstest]
    #[case::of_a_remediation("n1", "NodeHealthCheck-workers", Some(61), true)]
    #[case::expired("n1", "NodeHealthCheck-workers", Some(60), false)]
    #[case::without_a_duration("n1", "NodeHealthCheck-workers", None, false)]
    #[case::of_another_node("n2", "NodeHealthCheck-workers", Some(61), false)]
    #[case::of_maintenance("n1", "node-maintenance-operator", Some(61), false)]
    #[case::given_back("n1", "", Some(61), false)]
    fn a_lease_tells_a_remediation_while_it_is_valid(
        #[case] node: &str,
        #[case] holder: &str,
        #[case] seconds: Option<i32>,
        #[case] is_open: bool,
    ) {
        let mut remediations = Remediations::default();
        remediations.add_lease(lease(node, holder, seconds));
        let expected = is_open.then_some("NodeHealthCheck-workers holds its lease until 1970-01-01T00:01:01Z");
        assert_eq!(text(&remediations).as_deref(), expected);
    }

    #[test]
    fn remediation_of_no_check_is_open_while_it_exists() {
        let mut remediations = Remediations::default();
        remediations.add_object("n1".into(), "Fence".into(), NamespacedName::new("fence", "n1-x"));
        assert_eq!(text(&remediations).as_deref(), Some("Fence fence/n1-x exists for it"));
        let running = json!([{ "name": "n1", "remediations": [{ "resource": { "kind": "Fence" } }] }]);
        remediations.add_check(&check("workers", running));
        assert_eq!(
            text(&remediations).as_deref(),
            Some("NodeHealthCheck workers has a Fence for it")
        );
    }

    #[rstest]
    #[case::running(json!({}), "Unknown", false)]
    #[case::succeeded(json!({}), "True", false)]
    #[case::failed(json!({}), "False", true)]
    #[case::told_to_stop(json!({ "remediation.medik8s.io/nhc-timed-out": "no time" }), "Unknown", true)]
    fn remediation_says_itself_whether_it_is_over(
        #[case] annotations: Value,
        #[case] succeeded: &str,
        #[case] expected: bool,
    ) {
        let annotations = serde_json::from_value(annotations).unwrap();
        let data = json!({ "status": { "conditions": [{ "type": "Succeeded", "status": succeeded }] } });
        assert_eq!(is_over(&annotations, &data), expected);
    }

    #[test]
    fn the_control_planes_lease_is_no_nodes_remediation() {
        let mut control_plane = (*lease("n1", "NodeHealthCheck-workers/n1", Some(61))).clone();
        control_plane.name = nodeward_api::node_lease::CONTROL_PLANE.into();
        let mut remediations = Remediations::default();
        remediations.add_lease(Arc::new(control_plane));
        assert_eq!(text(&remediations), None);
    }

    /// What is known of one node counts although the others' state cannot be told.
    #[test]
    fn what_cannot_be_read_is_not_absent() {
        let mut remediations = Remediations::default();
        remediations.add_unknown("nodehealthchecks may not be read".to_owned());
        remediations.add_lease(lease("n1", "NodeHealthCheck-workers", Some(61)));
        assert!(text(&remediations).is_some());
        assert_eq!(
            remediations.of(&"n2".into(), at(60)),
            Err("nodehealthchecks may not be read")
        );
    }
}
