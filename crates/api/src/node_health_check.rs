//! `NodeHealthCheck`: which nodes are watched, when one counts as unhealthy, and what remediates it.
//!
//! The kind is that of medik8s' node-healthcheck-operator (<https://github.com/medik8s/node-healthcheck-operator>), with the same
//! names of fields; `backoff`, `maxConcurrentRemediations`, `dryRun` and `observedGeneration` are Nodeward's. It is served in that
//! operator's place, so what it has stored always decodes: a field that cannot be read never loses the object. An unreadable
//! field of the spec is kept in [`NodeHealthCheckSpec::unreadable`], for it must not be taken for its default.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::lenient::{Fields, or_default, readable};
use crate::reason::HealthReason;
use crate::schema;

/// Which nodes are watched, when one counts as unhealthy, and what remediates it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema, CustomResource)]
#[kube(
    group = "remediation.medik8s.io",
    version = "v1alpha1",
    kind = "NodeHealthCheck",
    plural = "nodehealthchecks",
    shortname = "nhc",
    category = "remediation",
    status = "NodeHealthCheckStatus",
    derive = "PartialEq",
    derive = "Default",
    crates(kube_core = "::kube_core"),
    doc = "Watches the health of nodes, and has those remediated that stay unhealthy.",
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase", "description": "Disabled, Paused, Remediating or Enabled"}"#,
    printcolumn = r#"{"name": "Healthy", "type": "integer", "jsonPath": ".status.healthyNodes", "description": "Selected nodes that are healthy"}"#,
    printcolumn = r#"{"name": "Observed", "type": "integer", "jsonPath": ".status.observedNodes", "description": "Selected nodes"}"#,
    printcolumn = r#"{"name": "Remediating", "type": "string", "jsonPath": ".status.unhealthyNodes[?(@.remediations)].name", "description": "The first node that is being remediated"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.reason", "description": "Why the phase is as it is", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::node_health_check_rules)]
pub struct NodeHealthCheckSpec {
    /// The nodes to watch. Absent: nodes with the role worker; where no node has that role, nodes without a control-plane role.
    /// The choice is written here once. An empty selector selects all nodes, control-plane nodes included: better have one
    /// NodeHealthCheck for workers and another one for control-plane nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: Option<LabelSelector>,
    /// When a node is unhealthy: as soon as one of these holds. Absent: Ready is False or Unknown for 300s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::unhealthy_conditions")]
    pub unhealthy_conditions: Option<Vec<UnhealthyCondition>>,
    /// Remediation starts only while at least as many selected nodes are healthy: a number, or a percentage, which is rounded
    /// up. 100% stops all remediation. Excludes maxUnhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::number_or_percentage")]
    pub min_healthy: Option<IntOrString>,
    /// Remediation starts only while at most as many selected nodes are not healthy: a number, or a percentage, which is
    /// rounded up. 0 stops all remediation. Excludes minHealthy. With neither it is 49%, and for machine deletion minHealthy is
    /// 51%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::number_or_percentage")]
    pub max_unhealthy: Option<IntOrString>,
    /// The template of the remediation that is created for an unhealthy node. Excludes escalatingRemediations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::template_reference")]
    pub remediation_template: Option<ObjectReference>,
    /// Remediations that are tried one after another, until the node is healthy. Excludes remediationTemplate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::escalating_remediations")]
    pub escalating_remediations: Option<Vec<EscalatingRemediation>>,
    /// While there is an entry no remediation starts or escalates. Each is free text: say who pauses, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pause_requests: Vec<String>,
    /// How long a node's conditions must be healthy before its remediations are deleted. Negative: until the node is annotated
    /// `remediation.medik8s.io/manually-confirmed-healthy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::signed_go_duration")]
    pub healthy_delay: Option<String>,
    /// For how long no remediation starts after too many nodes were unhealthy at once and enough are healthy again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::go_duration")]
    pub storm_cooldown_duration: Option<String>,
    /// How long a node that was remediated before waits for the next remediation. Absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::backoff")]
    pub backoff: Option<Backoff>,
    /// How many nodes are remediated at the same time. Absent: as many as minHealthy or maxUnhealthy allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::at_least_one")]
    pub max_concurrent_remediations: Option<i32>,
    /// Decide and report, and write nothing but the status.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The stored fields that could not be read, each with the reason. They were not absent: a spec with one of them must not
    /// be followed.
    #[serde(skip)]
    pub unreadable: Vec<String>,
}

impl<'de> Deserialize<'de> for NodeHealthCheckSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = Fields::of(Option::<Value>::deserialize(deserializer)?);
        Ok(Self {
            selector: fields.take("selector"),
            unhealthy_conditions: fields.take("unhealthyConditions"),
            min_healthy: fields.take("minHealthy"),
            max_unhealthy: fields.take("maxUnhealthy"),
            remediation_template: fields.take("remediationTemplate"),
            escalating_remediations: fields.take("escalatingRemediations"),
            pause_requests: fields.take("pauseRequests").unwrap_or_default(),
            healthy_delay: fields.take("healthyDelay"),
            storm_cooldown_duration: fields.take("stormCooldownDuration"),
            backoff: fields.take("backoff"),
            max_concurrent_remediations: fields.take("maxConcurrentRemediations"),
            dry_run: fields.take("dryRun").unwrap_or_default(),
            unreadable: fields.unreadable,
        })
    }
}

/// A condition of a Node that makes it unhealthy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// Its status: True, False, Unknown, or [`MISSING`] for a node that has no condition of the type.
    pub status: String,
    /// How long it must last, such as `300s`.
    pub duration: String,
}

/// The status that stands for a node without a condition of the type.
pub const MISSING: &str = "Missing";

/// What [`NodeHealthCheckSpec::unhealthy_conditions`] is when it is absent.
pub fn default_unhealthy_conditions() -> Vec<UnhealthyCondition> {
    let not_ready = |status: &str| UnhealthyCondition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        duration: "300s".to_owned(),
    };
    vec![not_ready("False"), not_ready("Unknown")]
}

/// What [`NodeHealthCheckSpec::max_unhealthy`] is where that and minHealthy are absent.
pub const DEFAULT_MAX_UNHEALTHY: &str = "49%";

/// What [`NodeHealthCheckSpec::min_healthy`] is where it is absent, and machines are deleted.
pub const DEFAULT_MIN_HEALTHY_OF_MACHINE_DELETION: &str = "51%";

/// The kind of templates that delete a node's Machine.
pub const MACHINE_DELETION_TEMPLATE: &str = "MachineDeletionRemediationTemplate";

/// A step of a chain of remediations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EscalatingRemediation {
    /// The template of the remediation.
    pub remediation_template: ObjectReference,
    /// Its place in the chain: lower ones come first.
    pub order: i64,
    /// How long the node has to become healthy before the next step, such as `5m`; at least a minute.
    pub timeout: String,
}

/// How long a node that was remediated before waits for the next remediation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Backoff {
    /// How the delay grows: `exponential`, twice as long each time.
    #[serde(rename = "type", default = "exponential")]
    pub type_: String,
    /// The first delay. Absent: [`DEFAULT_BACKOFF_INITIAL`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial: Option<String>,
    /// The longest delay; a node that was healthy for that long starts again at `initial`. Absent: [`DEFAULT_BACKOFF_LIMIT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

/// The only [`Backoff::type_`].
pub const EXPONENTIAL: &str = "exponential";

fn exponential() -> String {
    EXPONENTIAL.to_owned()
}

/// What [`Backoff::initial`] is when it is absent.
pub const DEFAULT_BACKOFF_INITIAL: &str = "1m";

/// What [`Backoff::limit`] is when it is absent.
pub const DEFAULT_BACKOFF_LIMIT: &str = "10m";

/// State of the selected nodes, and their remediations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeHealthCheckStatus {
    /// How many nodes are selected.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub observed_nodes: Option<i32>,
    /// How many of them are healthy.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub healthy_nodes: Option<i32>,
    /// Deprecated and always empty, see unhealthyNodes.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::timestamps_by_name")]
    pub in_flight_remediations: BTreeMap<String, Timestamp>,
    /// The nodes that are unhealthy for long enough, or have a remediation.
    #[serde(default, deserialize_with = "readable", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub unhealthy_nodes: Vec<UnhealthyNode>,
    /// Disabled; with stormCooldownDuration also StormActive and StormCooldownActive.
    #[serde(default, deserialize_with = "readable", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Disabled, Paused, Remediating or Enabled.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub phase: Option<Phase>,
    /// Human-readable explanation of the phase.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When the status last changed.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::timestamp")]
    pub last_update_time: Option<Timestamp>,
    /// The `metadata.generation` that this status was written for.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::generation")]
    pub observed_generation: Option<i64>,
}

/// A node that is unhealthy for long enough, or has a remediation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyNode {
    /// Name of the node.
    pub name: String,
    /// The remediations that were created for it, the first step first.
    #[serde(default, deserialize_with = "readable", skip_serializing_if = "Vec::is_empty")]
    pub remediations: Vec<Remediation>,
    /// Those of an earlier outage that are still there. Their remediators are told that their time is over, and they are deleted.
    #[serde(default, deserialize_with = "readable", skip_serializing_if = "Vec::is_empty")]
    pub earlier_remediations: Vec<Remediation>,
    /// From when on no unhealthy condition held any more. The node counts as unhealthy until its remediations are gone.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::timestamp")]
    pub conditions_healthy_timestamp: Option<Timestamp>,
    /// Whether its remediations are kept for healthyDelay.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::boolean")]
    pub healthy_delayed: Option<bool>,
    /// When the unhealthy condition last changed, as far as that was seen, if it did so after the first remediation. Where the
    /// node tells another time, it may have been healthy between, and its remediations begin anew.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::timestamp")]
    pub last_transition_time: Option<Timestamp>,
    /// What stops its remediation, or the next step of it. Left out of all nodes where the status would be too large.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<StoppedBy>,
}

/// What stops a remediation that is due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoppedBy {
    /// What it is, in one CamelCase word.
    #[schemars(with = "String")]
    pub reason: HealthReason,
    /// Human-readable detail.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it ends by itself, where that is known. A lease ends when its holder renews it no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::timestamp")]
    pub until: Option<Timestamp>,
}

/// A remediation that was created for a node, or is about to be: then its resource has no uid yet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Remediation {
    /// The remediation.
    #[schemars(schema_with = "schema::object_reference")]
    pub resource: ObjectReference,
    /// When it was created. Absent only where the stored value cannot be read.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::timestamp")]
    pub started: Option<Timestamp>,
    /// When it timed out, as a step of escalatingRemediations.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::timestamp")]
    pub timed_out: Option<Timestamp>,
    /// Name of the template, where the remediator supports several templates of its kind.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub template_name: Option<String>,
    /// Why it is not there although its step is not over: Gone, or KindNotServed, which does not tell that its remediator has
    /// stopped.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub absence: Option<String>,
}

/// An absence: nobody is remediated by it.
pub const GONE: &str = "Gone";

/// An absence: it went with the definition of its kind.
pub const KIND_NOT_SERVED: &str = "KindNotServed";

impl UnhealthyNode {
    /// Its remediations, of whichever outage.
    pub fn all_remediations(&self) -> impl Iterator<Item = &Remediation> {
        self.remediations.iter().chain(&self.earlier_remediations)
    }
}

impl Remediation {
    /// Whether it is intended, or its remediator may be at work.
    pub fn runs(&self) -> bool {
        self.timed_out.is_none() && !self.is_gone()
    }

    /// Whether it is gone though its step was not over: the step starts anew.
    pub fn is_gone(&self) -> bool {
        self.absence.as_deref() == Some(GONE)
    }
}

/// Where a NodeHealthCheck stands.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
pub enum Phase {
    /// Its condition Disabled is True: nothing is started.
    Disabled,
    /// It has pauseRequests: nothing is started.
    Paused,
    /// A node is being remediated.
    Remediating,
    /// None is.
    Enabled,
}

impl Phase {
    /// Every phase; the first that holds counts.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its spelling in the status and on the command line.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> NodeHealthCheck {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_object_without_spec_or_status_decodes() {
        let bare = read(json!({ "metadata": { "name": "a" } }));
        assert_eq!(bare.spec, NodeHealthCheckSpec::default());
        assert_eq!(bare.status, None);
    }

    #[test]
    fn fields_keep_their_names_when_written_back() {
        let stored = json!({
            "apiVersion": "remediation.medik8s.io/v1alpha1",
            "kind": "NodeHealthCheck",
            "metadata": { "name": "a" },
            "spec": {
                "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/worker", "operator": "Exists" }] },
                "unhealthyConditions": [{ "type": "Ready", "status": "Unknown", "duration": "300s" }],
                "minHealthy": "51%",
                "maxUnhealthy": 2,
                "remediationTemplate": { "apiVersion": "a/v1", "kind": "ATemplate", "namespace": "n", "name": "t" },
                "escalatingRemediations": [{
                    "remediationTemplate": { "apiVersion": "a/v1", "kind": "ATemplate", "namespace": "n", "name": "t" },
                    "order": 1, "timeout": "300s",
                }],
                "pauseRequests": ["an upgrade"],
                "healthyDelay": "-1s",
                "stormCooldownDuration": "10m",
                "backoff": { "type": "exponential", "initial": "1m", "limit": "10m" },
                "maxConcurrentRemediations": 3,
                "dryRun": true,
            },
            "status": {
                "observedNodes": 3,
                "healthyNodes": 2,
                "inFlightRemediations": { "n1": "2026-01-01T00:00:00Z" },
                "unhealthyNodes": [{
                    "name": "n1",
                    "remediations": [{
                        "resource": { "apiVersion": "a/v1", "kind": "A", "namespace": "n", "name": "n1-x7k2p", "uid": "u" },
                        "started": "2026-01-01T00:00:00Z", "timedOut": "2026-01-01T00:05:00Z", "templateName": "t",
                    }],
                    "conditionsHealthyTimestamp": "2026-01-01T00:06:00Z",
                    "healthyDelayed": true,
                }],
                "conditions": [{
                    "type": "Disabled", "status": "False", "reason": "NodeHealthCheckEnabled", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
                "phase": "Remediating",
                "reason": "NHC is remediating 1 nodes",
                "lastUpdateTime": "2026-01-01T00:06:00Z",
                "observedGeneration": 4,
            },
        });
        let read = read(stored.clone());
        assert_eq!(read.spec.unreadable, Vec::<String>::new());
        assert_eq!(serde_json::to_value(read).unwrap(), stored);
    }

    #[test]
    fn unreadable_spec_field_is_not_absent() {
        let spec = read(json!({ "metadata": {}, "spec": {
            "minHealthy": { "at": "least" }, "unhealthyConditions": [{ "type": "Ready" }], "maxUnhealthy": null, "dryRun": "yes",
            "stormCooldownDuration": "10m",
        } }))
        .spec;
        assert_eq!(spec.min_healthy, None);
        assert_eq!(spec.storm_cooldown_duration.as_deref(), Some("10m"));
        let fields: Vec<_> = spec
            .unreadable
            .iter()
            .map(|text| text.split(':').next().unwrap())
            .collect();
        assert_eq!(fields, ["unhealthyConditions", "minHealthy", "dryRun"]);
        let whole = read(json!({ "metadata": {}, "spec": "all" })).spec;
        assert_eq!(whole.unreadable.len(), 1, "{:?}", whole.unreadable);
    }

    #[test]
    fn list_that_is_none_is_empty() {
        for lists in [
            json!(null),
            json!("a"),
            json!(1),
            json!(-1),
            json!(0.5),
            json!(true),
            json!({ "a": [1] }),
        ] {
            let status = json!({ "unhealthyNodes": lists, "conditions": lists, "healthyNodes": 2 });
            let status = read(json!({ "metadata": {}, "spec": {}, "status": status }))
                .status
                .unwrap();
            let expected = NodeHealthCheckStatus {
                healthy_nodes: Some(2),
                ..NodeHealthCheckStatus::default()
            };
            assert_eq!(status, expected);
        }
    }

    #[test]
    fn an_unreadable_entry_of_the_status_loses_itself_alone() {
        let status = read(json!({ "metadata": {}, "spec": {}, "status": {
            "observedNodes": "three",
            "healthyNodes": 2,
            "phase": "RemediationTemplateNotFound",
            "inFlightRemediations": { "n1": 3 },
            "unhealthyNodes": [
                { "remediations": [] },
                { "name": "n1", "healthyDelayed": "no", "remediations": [
                    { "started": "2026-01-01T00:00:00Z" },
                    { "resource": { "name": "n1" }, "started": "yesterday", "timedOut": "2026-01-01T00:05:00Z" },
                ] },
            ],
            "conditions": [{ "type": 3 }],
        } }))
        .status
        .unwrap();
        assert_eq!((status.observed_nodes, status.healthy_nodes), (None, Some(2)));
        assert_eq!((status.phase, status.conditions.len()), (None, 0));
        let [node] = &*status.unhealthy_nodes else {
            panic!("{:?}", status.unhealthy_nodes)
        };
        assert_eq!((node.name.as_str(), node.healthy_delayed), ("n1", None));
        let [remediation] = &*node.remediations else {
            panic!("{:?}", node.remediations)
        };
        assert_eq!(remediation.resource.name.as_deref(), Some("n1"));
        assert_eq!((remediation.started, remediation.timed_out.is_some()), (None, true));
    }
}
