//! What decisions need to know of a Node.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use nodeward_api::{annotation, condition, label};
use serde_json::{Value, json};

use crate::id::{NodeName, NodeUid};

/// Key of the taint that the node-lifecycle controller adds to an unschedulable node.
pub const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// Key of Karpenter's taint on a node that it is about to remove. Karpenter never sets `spec.unschedulable`.
pub const KARPENTER_DISRUPTED_TAINT: &str = "karpenter.sh/disrupted";

/// Key of the cluster autoscaler's taint on a node that it is about to remove.
pub const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// Key of the taint by which a person declares that a node is really shut down.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";

/// Taints that can make a node cordoned, see [`NodeView::concerns_drains`].
pub const CORDON_TAINTS: [&str; 2] = [UNSCHEDULABLE_TAINT, KARPENTER_DISRUPTED_TAINT];

/// A Node, projected to what decisions read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Name.
    pub name: NodeName,
    /// UID.
    pub uid: NodeUid,
    /// Everything else; `None` for a node that no drain concerns, which is most of them: a cluster of 5,000 nodes is
    /// then held in a few hundred kilobytes.
    pub drain: Option<Box<DrainingNode>>,
}

/// The details of a node that is cordoned, or was until recently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainingNode {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Whether the `Ready` condition is `True`.
    pub ready: bool,
    /// `status.nodeInfo.bootID`: changes with every boot.
    pub boot_id: String,
    /// The `nodeward.dev/DrainBlocked` condition, if it is there.
    pub drain_blocked: Option<ConditionView>,
}

/// A taint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value; empty if none.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
    /// When it was added; not every client sets it.
    pub time_added: Option<Timestamp>,
}

/// A condition of ours as it stands in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionView {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
    /// When `status` last changed.
    pub last_transition: Option<Timestamp>,
}

impl NodeView {
    /// Projects a Node as the API server sends it; `None` without a name.
    pub fn project(node: &Node) -> Option<Self> {
        let meta = &node.metadata;
        Some(Self {
            name: meta.name.as_deref()?.into(),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            drain: Self::concerns_drains(node).then(|| Box::new(DrainingNode::project(node))),
        })
    }

    /// Whether any drain could concern this node: it is unschedulable, carries a taint that can count as a cordon, or
    /// carries something of ours that is to be removed.
    fn concerns_drains(node: &Node) -> bool {
        let spec = node.spec.as_ref();
        spec.is_some_and(|s| s.unschedulable == Some(true))
            || spec.is_some_and(|s| {
                s.taints
                    .iter()
                    .flatten()
                    .any(|t| CORDON_TAINTS.contains(&t.key.as_str()))
            })
            || node
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|a| a.contains_key(annotation::DRAIN_CLOCK))
            || condition_of(node, condition::DRAIN_BLOCKED).is_some()
    }
}

/// The node's condition of this type; the API server keeps no two of one type.
fn condition_of<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    let mut conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.find(|c| c.type_ == type_)
}

impl DrainingNode {
    fn project(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        Self {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            annotations: node.metadata.annotations.clone().unwrap_or_default(),
            taints: spec
                .iter()
                .flat_map(|s| s.taints.iter().flatten())
                .map(|t| Taint {
                    key: t.key.clone(),
                    value: t.value.clone().unwrap_or_default(),
                    effect: t.effect.clone(),
                    time_added: t.time_added.as_ref().map(|t| t.0),
                })
                .collect(),
            unschedulable: spec.is_some_and(|s| s.unschedulable == Some(true)),
            ready: condition_of(node, "Ready").is_some_and(|c| c.status == "True"),
            boot_id: status
                .and_then(|s| s.node_info.as_ref())
                .map(|i| i.boot_id.clone())
                .unwrap_or_default(),
            drain_blocked: condition_of(node, condition::DRAIN_BLOCKED).map(|c| ConditionView {
                status: c.status.clone(),
                reason: c.reason.clone().unwrap_or_default(),
                message: c.message.clone().unwrap_or_default(),
                last_transition: c.last_transition_time.as_ref().map(|t| t.0),
            }),
        }
    }

    /// Whether either control-plane role label is there.
    pub fn is_control_plane(&self) -> bool {
        label::CONTROL_PLANE_ROLES
            .iter()
            .any(|role| self.labels.contains_key(*role))
    }

    /// The taint with this key, with this effect if one is asked for.
    pub fn taint(&self, key: &str, effect: Option<&str>) -> Option<&Taint> {
        self.taints
            .iter()
            .find(|t| t.key == key && effect.is_none_or(|effect| t.effect == effect))
    }

    /// Whether a person has declared the node shut down, so that nothing runs on it any more.
    pub fn is_out_of_service(&self) -> bool {
        self.taint(OUT_OF_SERVICE_TAINT, None).is_some()
    }
}

impl NodeView {
    /// The node in the API's own shape, as far as it is kept: what `node` is in a signal's expression.
    pub fn to_expression_value(&self, node: &DrainingNode) -> Value {
        json!({
            "metadata": {
                "name": self.name.as_str(),
                "uid": self.uid.as_str(),
                "labels": node.labels,
                "annotations": node.annotations,
            },
            "spec": {
                "unschedulable": node.unschedulable,
                "taints": node.taints.iter().map(|t| json!({ "key": t.key, "value": t.value, "effect": t.effect })).collect::<Vec<_>>(),
            },
            "status": { "nodeInfo": { "bootID": node.boot_id } },
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn project(mut node: Value) -> NodeView {
        node["metadata"]["name"] = "n1".into();
        NodeView::project(&serde_json::from_value(node).unwrap()).unwrap()
    }

    fn details(node: Value) -> DrainingNode {
        let mut node = node;
        node["spec"]["unschedulable"] = true.into();
        *project(node).drain.unwrap()
    }

    #[test]
    fn a_node_without_a_name_is_none() {
        assert_eq!(NodeView::project(&Node::default()), None);
    }

    #[rstest]
    #[case(json!({ "metadata": {} }), false)]
    #[case(json!({ "metadata": {}, "spec": { "unschedulable": false } }), false)]
    #[case(json!({ "metadata": {}, "spec": { "unschedulable": true } }), true)]
    #[case(json!({ "metadata": {}, "spec": { "taints": [{ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" }] } }), true)]
    #[case(json!({ "metadata": {}, "spec": { "taints": [{ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" }] } }), true)]
    #[case(json!({ "metadata": {}, "spec": { "taints": [{ "key": "dedicated", "effect": "NoSchedule" }] } }), false)]
    #[case(json!({ "metadata": { "annotations": { "nodeward.dev/drain-clock": "{}" } } }), true)]
    #[case(json!({ "metadata": { "annotations": { "other": "{}" } } }), false)]
    #[case(json!({ "metadata": {}, "status": { "conditions": [{ "type": "nodeward.dev/DrainBlocked", "status": "False" }] } }), true)]
    #[case(json!({ "metadata": {}, "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }), false)]
    fn details_are_kept_only_of_nodes_that_a_drain_can_concern(#[case] node: Value, #[case] kept: bool) {
        assert_eq!(project(node).drain.is_some(), kept);
    }

    #[test]
    fn a_draining_node_is_projected_to_what_decisions_read() {
        let node = details(json!({
            "metadata": { "uid": "u1", "labels": { "pool": "blue" }, "annotations": { "a": "b" } },
            "spec": { "taints": [{ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z" }] },
            "status": {
                "nodeInfo": {
                    "bootID": "boot", "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
                },
                "conditions": [
                    { "type": "Ready", "status": "True" },
                    { "type": "nodeward.dev/DrainBlocked", "status": "True", "reason": "R", "message": "M", "lastTransitionTime": "2026-01-01T00:00:01Z" },
                ],
            },
        }));
        assert_eq!(node.labels["pool"], "blue");
        assert_eq!(node.annotations["a"], "b");
        assert_eq!(
            (node.unschedulable, node.ready, node.boot_id.as_str()),
            (true, true, "boot")
        );
        let taint = node.taint(UNSCHEDULABLE_TAINT, Some("NoSchedule")).unwrap();
        assert_eq!(taint.time_added, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(node.taint(UNSCHEDULABLE_TAINT, Some("NoExecute")), None);
        let condition = node.drain_blocked.unwrap();
        assert_eq!(
            (
                condition.status.as_str(),
                condition.reason.as_str(),
                condition.message.as_str()
            ),
            ("True", "R", "M")
        );
        assert_eq!(condition.last_transition, Some("2026-01-01T00:00:01Z".parse().unwrap()));
    }

    #[rstest]
    #[case("True", true)]
    #[case("False", false)]
    #[case("Unknown", false)]
    fn only_a_ready_condition_that_is_true_makes_a_node_ready(#[case] status: &str, #[case] ready: bool) {
        let conditions = json!([{ "type": "Ready", "status": status }]);
        assert_eq!(
            details(json!({ "metadata": {}, "status": { "conditions": conditions } })).ready,
            ready
        );
        assert!(!details(json!({ "metadata": {} })).ready);
    }

    #[rstest]
    #[case(json!({ "node-role.kubernetes.io/control-plane": "" }), true)]
    #[case(json!({ "node-role.kubernetes.io/master": "" }), true)]
    #[case(json!({ "node-role.kubernetes.io/master": "", "node-role.kubernetes.io/worker": "" }), true)]
    #[case(json!({ "node-role.kubernetes.io/worker": "" }), false)]
    #[case(json!({ "role": "master" }), false)]
    fn either_role_label_makes_a_control_plane_node(#[case] labels: Value, #[case] control_plane: bool) {
        assert_eq!(
            details(json!({ "metadata": { "labels": labels } })).is_control_plane(),
            control_plane
        );
    }

    #[test]
    fn a_node_declared_shut_down_is_out_of_service() {
        let taints =
            json!([{ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" }]);
        assert!(details(json!({ "metadata": {}, "spec": { "taints": taints } })).is_out_of_service());
        assert!(!details(json!({ "metadata": {} })).is_out_of_service());
    }

    #[test]
    fn an_expression_sees_the_node_in_the_apis_shape() {
        let node = project(json!({
            "metadata": { "uid": "u1", "labels": { "pool": "blue" }, "annotations": { "a": "b" } },
            "spec": { "unschedulable": true, "taints": [{ "key": "k", "value": "v", "effect": "NoExecute" }] },
        }));
        let seen = node.to_expression_value(node.drain.as_ref().unwrap());
        assert_eq!(
            seen["metadata"],
            json!({ "name": "n1", "uid": "u1", "labels": { "pool": "blue" }, "annotations": { "a": "b" } })
        );
        assert_eq!(seen["spec"]["unschedulable"], json!(true));
        assert_eq!(
            seen["spec"]["taints"],
            json!([{ "key": "k", "value": "v", "effect": "NoExecute" }])
        );
    }
}
