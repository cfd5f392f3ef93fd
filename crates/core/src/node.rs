//! What decisions need to know of a Node.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use nodeward_api::{annotation, condition, label};
use serde_json::{Value, json};

use crate::id::{NodeName, NodeUid, ResourceVersion};

/// Key of the taint that the node-lifecycle controller adds to an unschedulable node.
pub const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// Key of Karpenter's taint on a node that it is about to remove. Karpenter never sets `spec.unschedulable`.
pub const KARPENTER_DISRUPTED_TAINT: &str = "karpenter.sh/disrupted";

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
        let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
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
            || conditions.into_iter().any(|c| c.type_ == condition::DRAIN_BLOCKED)
    }
}

impl DrainingNode {
    fn project(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
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
            ready: conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"),
            boot_id: status
                .and_then(|s| s.node_info.as_ref())
                .map(|i| i.boot_id.clone())
                .unwrap_or_default(),
            drain_blocked: conditions
                .iter()
                .find(|c| c.type_ == condition::DRAIN_BLOCKED)
                .map(|c| ConditionView {
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

/// Identity of a Node object at one moment, for preconditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Name.
    pub name: NodeName,
    /// UID.
    pub uid: NodeUid,
    /// Resource version, where the write carries one.
    pub resource_version: Option<ResourceVersion>,
}
