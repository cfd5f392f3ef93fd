//! From objects as the API server sends them to what decisions read.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::core::DynamicObject;
use kube::{Resource, ResourceExt};
use nodeward_api::node_health_check::NodeHealthCheck;
use nodeward_api::{annotation, condition, label};
use nodeward_core::id::{NamespacedName, NodeName};
use nodeward_core::intern::Pool;
use nodeward_core::node::NodeView;
use nodeward_core::signal::WatchedResource;
use serde_json::Value;

use crate::observations::{Moment, counts_since};
use crate::plan::TERMINATING;
use crate::snapshot::{
    CheckFacts, ConditionFacts, MachineFacts, NodeFacts, RemediationFacts, RemediationKind, TemplateFacts,
};
use nodeward_core::node_health_check::CheckSpec;

/// On a Node of OpenShift: its Machine, as `<namespace>/<name>`.
const MACHINE_ANNOTATION: &str = "machine.openshift.io/machine";

/// Begins the annotations by which the machine-config operator says where a node's configuration stands.
const MACHINE_CONFIG_PREFIX: &str = "machineconfiguration.openshift.io/";

/// Projects Nodes, which have most of their texts in common.
pub struct NodeProjector {
    texts: Pool<str>,
    keeps_all_annotations: bool,
}

impl NodeProjector {
    /// A signal of the user's may read any annotation; otherwise few are read, and thousands of nodes have many.
    pub fn new(keeps_all_annotations: bool) -> Self {
        Self {
            texts: Pool::default(),
            keeps_all_annotations,
        }
    }

    /// `before` is what was known of the node of this name. A heartbeat changes nothing in the projection.
    pub fn project(
        &mut self,
        node: &Node,
        before: Option<&NodeFacts>,
        is_first_list: bool,
        moment: Moment,
    ) -> Option<NodeFacts> {
        let keeps_all = self.keeps_all_annotations;
        let view = NodeView::project_sharing(node, &mut self.texts, |key| keeps_all || is_read(key))?;
        // A node that was made again has a history of its own.
        let before = before.filter(|before| before.view.uid == view.uid);
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let conditions = conditions.map(|condition| {
            let last_transition = condition.last_transition_time.as_ref().map(|time| time.0);
            let before = before.and_then(|before| before.condition(&condition.type_));
            ConditionFacts {
                type_: self.texts.text(&condition.type_),
                status: self.texts.text(&condition.status),
                last_transition,
                counts_since: counts_since(before, &condition.status, last_transition, is_first_list, moment),
            }
        });
        let machine = node.annotations().get(MACHINE_ANNOTATION);
        Some(NodeFacts {
            conditions: conditions.collect(),
            created: node.creation_timestamp().map_or(moment.now, |created| created.0),
            machine: machine
                .and_then(|machine| machine.split_once('/'))
                .map(|(namespace, name)| NamespacedName::new(namespace, name)),
            view,
        })
    }
}

fn is_read(annotation: &str) -> bool {
    [annotation::MANUALLY_CONFIRMED_HEALTHY, annotation::REMEDIATIONS].contains(&annotation)
        || annotation.starts_with(MACHINE_CONFIG_PREFIX)
}

/// Projects a NodeHealthCheck; `None` without a name.
pub fn check(check: NodeHealthCheck) -> Option<CheckFacts> {
    let meta = check.metadata;
    Some(CheckFacts {
        name: meta.name?.into(),
        uid: meta.uid.unwrap_or_default().into(),
        resource_version: meta.resource_version.unwrap_or_default().into(),
        generation: meta.generation.unwrap_or_default(),
        deleting: meta.deletion_timestamp.is_some(),
        spec: CheckSpec::compile(&check.spec),
        status: Arc::new(check.status.unwrap_or_default()),
    })
}

/// Projects a template.
pub(crate) fn template(template: &DynamicObject) -> TemplateFacts {
    TemplateFacts {
        spec: template.data.pointer("/spec/template/spec").cloned(),
        supports_multiple: template
            .annotations()
            .contains_key(annotation::MULTIPLE_TEMPLATES_SUPPORT),
    }
}

/// The kind of remediations that a watch brings.
pub(super) fn kind_of(watched: &WatchedResource) -> RemediationKind {
    RemediationKind {
        api_version: watched.api_version.as_str().into(),
        kind: watched.kind.as_str().into(),
    }
}

/// Projects a remediation; `None` without a name.
pub(crate) fn remediation(kind: RemediationKind, remediation: &DynamicObject) -> Option<RemediationFacts> {
    let key = NamespacedName::of(remediation.meta())?;
    let annotation = |name: &str| remediation.annotations().get(name).map(String::as_str);
    let time = |name: &str| annotation(name)?.parse::<Timestamp>().ok();
    let named_by = remediation.labels().get(label::PART_OF).map(String::as_str);
    let told_node = annotation(annotation::REMEDIATION_NODE_NAME);
    let succeeded = status_of(&remediation.data, condition::SUCCEEDED);
    let deletion_expected = status_of(&remediation.data, condition::PERMANENT_NODE_DELETION_EXPECTED);
    Some(RemediationFacts {
        node: told_node.map_or_else(|| Arc::clone(&key.name).into(), NodeName::from),
        tells_node: told_node.is_some() || named_by == Some(label::PART_OF_NODE_HEALTH_CHECK),
        uid: remediation.uid().unwrap_or_default().into(),
        resource_version: remediation.resource_version().unwrap_or_default().into(),
        created: remediation
            .creation_timestamp()
            .map_or(Timestamp::UNIX_EPOCH, |created| created.0),
        deleting: remediation.meta().deletion_timestamp.as_ref().map(|time| time.0),
        finalizers: remediation
            .finalizers()
            .iter()
            .map(|name| name.as_str().into())
            .collect(),
        node_uid: annotation(annotation::REMEDIATION_NODE_UID).map(Into::into),
        template: annotation(annotation::REMEDIATION_TEMPLATE_NAME).map(Into::into),
        owners: remediation
            .owner_references()
            .iter()
            .map(|owner| owner.uid.as_str().into())
            .collect(),
        is_control_plane: remediation.labels().contains_key(label::IS_CONTROL_PLANE_NODE),
        timed_out: annotation(annotation::REMEDIATION_TIMED_OUT).map(|at| at.parse().unwrap_or(Timestamp::MAX)),
        healthy_since: time(annotation::HEALTHY_DELAY),
        is_flagged_old: annotation(annotation::OLD_REMEDIATION_FLAG).is_some(),
        succeeded: succeeded.map(Into::into),
        node_deletion_expected: deletion_expected == Some("True"),
        kind,
        key,
    })
}

/// The status of a condition of an object that we know no type of.
fn status_of<'a>(object: &'a Value, type_: &str) -> Option<&'a str> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == type_)?;
    found["status"].as_str()
}

/// Projects a Machine.
pub(super) fn machine(machine: &DynamicObject) -> Option<MachineFacts> {
    Some(MachineFacts {
        api_version: machine
            .types
            .as_ref()
            .map_or(super::surroundings::MACHINE_API, |types| &types.api_version)
            .into(),
        uid: machine.uid()?.into(),
    })
}

/// The node that a NodeMaintenance is about; one that has failed protects nothing, and one that has succeeded means that the
/// node is in maintenance.
pub(super) fn maintained_node(maintenance: &DynamicObject) -> Option<NodeName> {
    let node = maintenance.data.pointer("/spec/nodeName")?.as_str()?;
    let phase = maintenance.data.pointer("/status/phase").and_then(Value::as_str);
    (phase != Some("Failed")).then(|| node.into())
}

/// The node of a guard pod, and whether the member of etcd there is up, or may be: of a node that has gone silent its pods are
/// not known to be down.
pub(crate) fn guard(pod: &DynamicObject) -> Option<(NodeName, bool)> {
    let node = pod.data.pointer("/spec/nodeName")?.as_str()?;
    let ready = status_of(&pod.data, "Ready");
    Some((node.into(), matches!(ready, Some("True" | "Unknown"))))
}

/// Whether a MachineHealthCheck is about machines that are being terminated, and about nothing else.
pub(super) fn handles_termination(check: &DynamicObject) -> bool {
    let conditions = check
        .data
        .pointer("/spec/unhealthyConditions")
        .and_then(Value::as_array);
    conditions.is_some_and(|conditions| {
        !conditions.is_empty() && conditions.iter().all(|condition| condition["type"] == TERMINATING)
    })
}

/// `status.controlPlaneTopology` of OpenShift's Infrastructure.
pub(crate) fn control_plane_topology(infrastructure: &DynamicObject) -> Option<Arc<str>> {
    let topology = infrastructure.data.pointer("/status/controlPlaneTopology")?;
    topology
        .as_str()
        .filter(|topology| !topology.is_empty())
        .map(Into::into)
}

/// `status.disruptionsAllowed` of a PodDisruptionBudget: none before the disruption controller has counted.
pub(crate) fn disruptions_allowed(budget: &DynamicObject) -> i32 {
    let allowed = budget
        .data
        .pointer("/status/disruptionsAllowed")
        .and_then(Value::as_i64);
    allowed
        .and_then(|allowed| i32::try_from(allowed).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
