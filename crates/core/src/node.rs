//! What decisions need to know of a Node.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Toleration};
use nodeward_api::cordon_record::CordonRecord;
use nodeward_api::{annotation, condition, label};
use serde_json::{Value, json};

use crate::id::{NodeName, NodeUid};
use crate::intern::Pool;
use crate::labels::Labels;
use crate::signal::DrainRules;

/// Key of the taint that the node-lifecycle controller adds to an unschedulable node.
pub const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// The effect of [`UNSCHEDULABLE_TAINT`].
pub const UNSCHEDULABLE_TAINT_EFFECT: &str = "NoSchedule";

/// Key of Karpenter's taint on a node that it is about to remove. Karpenter never sets `spec.unschedulable`.
pub const KARPENTER_DISRUPTED_TAINT: &str = "karpenter.sh/disrupted";

/// Key of the cluster autoscaler's taint on a node that it is about to remove.
pub const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// Key of the taint by which a person declares that a node is really shut down.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";

/// Taints that can make a node cordoned, see [`NodeView::concerns_drains`].
pub const CORDON_TAINTS: [&str; 2] = [UNSCHEDULABLE_TAINT, KARPENTER_DISRUPTED_TAINT];

/// Conditions of a node that are ours.
const OWN_CONDITIONS: [&str; 3] = [
    condition::DRAIN_BLOCKED,
    condition::DRAIN_IN_PROGRESS,
    condition::DRAINED,
];

/// A Node, projected to what decisions read.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is true or not, whatever the others are"
)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    pub name: NodeName,
    /// UID: a node that was deleted and created again is another node.
    pub uid: NodeUid,
    pub labels: Labels,
    /// Annotations, as far as the projection keeps them.
    pub annotations: BTreeMap<String, String>,
    pub taints: Box<[Taint]>,
    /// `spec.providerID`: which machine of the infrastructure it is.
    pub provider_id: Option<Box<str>>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Whether the `Ready` condition is `True`.
    pub ready: bool,
    /// When `Ready` last changed.
    pub ready_since: Option<Timestamp>,
    /// When it was created.
    pub created: Timestamp,
    /// Whether it is being deleted.
    pub is_being_deleted: bool,
    /// Whether its Machine of Cluster API is being deleted, as far as whoever projects it knows.
    pub machine_is_being_deleted: bool,
    /// Cluster API's rules for its pods, as far as whoever projects it knows.
    pub drain_rules: Option<Arc<DrainRules>>,
    /// `status.nodeInfo.bootID`: changes with every boot.
    pub boot_id: Arc<str>,
    /// `status.nodeInfo.machineID`.
    pub machine_id: Arc<str>,
    /// The conditions that are ours.
    pub conditions: Box<[ConditionView]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    /// Value; empty if none.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
    /// When it was added; not every client sets it.
    pub time_added: Option<Timestamp>,
}

impl Taint {
    /// The first of these tolerations that matches it, as the scheduler matches them: the one whose seconds count.
    pub fn tolerated_by<'a>(&self, tolerations: &'a [Toleration]) -> Option<&'a Toleration> {
        tolerations.iter().find(|toleration| {
            let effect = toleration.effect.as_deref().unwrap_or_default();
            let key = toleration.key.as_deref().unwrap_or_default();
            let value_matches = match toleration.operator.as_deref().unwrap_or_default() {
                "Exists" => true,
                "Equal" | "" => toleration.value.as_deref().unwrap_or_default() == self.value,
                _ => false,
            };
            (effect.is_empty() || effect == self.effect) && (key.is_empty() || key == self.key) && value_matches
        })
    }
}

/// A condition of ours as it stands in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionView {
    pub type_: Arc<str>,
    /// `True`, `False` or `Unknown`.
    pub status: Arc<str>,
    pub reason: Arc<str>,
    pub message: Arc<str>,
    /// When `status` last changed.
    pub last_transition: Option<Timestamp>,
}

impl NodeView {
    /// Projects a Node as the API server sends it; `None` without a name.
    pub fn project(node: &Node) -> Option<Self> {
        Self::project_sharing(node, &mut Pool::default(), |_| true)
    }

    /// Projects one of many nodes: texts that they have in common are kept once, and of the annotations only those that
    /// `keeps_annotation` names.
    pub fn project_sharing(
        node: &Node,
        texts: &mut Pool<str>,
        keeps_annotation: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let meta = &node.metadata;
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let conditions = || status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions().find(|condition| condition.type_ == "Ready");
        let info = status.and_then(|status| status.node_info.as_ref());
        let annotations = meta.annotations.iter().flatten();
        Some(Self {
            name: meta.name.as_deref()?.into(),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            labels: Labels::project(meta.labels.as_ref(), |text| texts.text(text)),
            annotations: annotations
                .filter(|(key, _)| keeps_annotation(key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            taints: spec
                .iter()
                .flat_map(|spec| spec.taints.iter().flatten())
                .map(|taint| Taint {
                    key: taint.key.clone(),
                    value: taint.value.clone().unwrap_or_default(),
                    effect: taint.effect.clone(),
                    time_added: taint.time_added.as_ref().map(|time| time.0),
                })
                .collect(),
            provider_id: spec.and_then(|spec| spec.provider_id.as_deref()).map(Into::into),
            unschedulable: spec.is_some_and(|spec| spec.unschedulable == Some(true)),
            ready: ready.is_some_and(|ready| ready.status == "True"),
            ready_since: ready.and_then(|ready| Some(ready.last_transition_time.as_ref()?.0)),
            created: meta
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            is_being_deleted: meta.deletion_timestamp.is_some(),
            machine_is_being_deleted: false,
            drain_rules: None,
            boot_id: info.map(|info| info.boot_id.as_str()).unwrap_or_default().into(),
            machine_id: info.map(|info| info.machine_id.as_str()).unwrap_or_default().into(),
            conditions: conditions()
                .filter(|condition| OWN_CONDITIONS.contains(&condition.type_.as_str()))
                .map(|condition| ConditionView {
                    type_: texts.text(&condition.type_),
                    status: texts.text(&condition.status),
                    reason: texts.text(condition.reason.as_deref().unwrap_or_default()),
                    message: condition.message.as_deref().unwrap_or_default().into(),
                    last_transition: condition.last_transition_time.as_ref().map(|time| time.0),
                })
                .collect(),
        })
    }

    /// Whether any drain could concern this node: it is unschedulable, carries a taint that can count as a cordon, or
    /// carries something of drain-keeper's that is to be removed. Most nodes are not kept for that.
    pub fn concerns_drains(&self) -> bool {
        self.unschedulable
            || CORDON_TAINTS.iter().any(|key| self.taint(key, None).is_some())
            || self.annotations.contains_key(annotation::DRAIN_CLOCK)
            || self.condition(condition::DRAIN_BLOCKED).is_some()
    }

    /// Whether it is being emptied, by whoever: unschedulable, or tainted by Karpenter or the cluster autoscaler, which
    /// never set `spec.unschedulable`.
    pub fn is_cordoned(&self) -> bool {
        self.unschedulable || self.is_tainted_for_removal()
    }

    fn is_tainted_for_removal(&self) -> bool {
        self.taint(KARPENTER_DISRUPTED_TAINT, None).is_some() || self.taint(AUTOSCALER_TAINT, None).is_some()
    }

    /// Whether it will not come back: Karpenter or the cluster autoscaler is about to remove it, it or its Machine is being
    /// deleted, or a person has declared it shut down.
    pub fn is_being_removed(&self) -> bool {
        self.is_tainted_for_removal()
            || self.is_being_deleted
            || self.machine_is_being_deleted
            || self.is_out_of_service()
    }

    /// The record of the cordon that drain-lock gave it.
    pub fn cordon_record(&self) -> Option<CordonRecord> {
        let value = self.annotations.get(annotation::CORDONED_BY)?;
        Some(CordonRecord::parse(value))
    }

    /// Whether drain-lock gave it Karpenter's `do-not-disrupt`, though somebody may have taken that away since.
    pub fn has_do_not_disrupt_record(&self) -> bool {
        self.annotations.contains_key(annotation::DO_NOT_DISRUPT_BY)
    }

    /// Whether it is under the very cordon that drain-lock gave it.
    pub fn is_cordoned_by_us(&self) -> bool {
        let record = self.cordon_record().filter(|_| self.unschedulable);
        record.is_some_and(|record| {
            record
                .taint_added
                .is_none_or(|time| self.was_tainted_unschedulable_at(time))
        })
    }

    /// Whether drain-lock had cordoned it, and it is under another cordon since: somebody uncordoned it and cordoned it again.
    pub fn is_cordon_taken(&self) -> bool {
        self.unschedulable && self.cordon_record().is_some() && !self.is_cordoned_by_us()
    }

    fn was_tainted_unschedulable_at(&self, time: Timestamp) -> bool {
        self.tainted_unschedulable_at() == Some(time)
    }

    /// When Kubernetes has seen that it is cordoned.
    pub fn tainted_unschedulable_at(&self) -> Option<Timestamp> {
        let taint = self.taint(UNSCHEDULABLE_TAINT, Some(UNSCHEDULABLE_TAINT_EFFECT));
        taint.and_then(|taint| taint.time_added)
    }

    /// The condition of this type, if it is one of ours.
    pub fn condition(&self, type_: &str) -> Option<&ConditionView> {
        self.conditions.iter().find(|condition| *condition.type_ == *type_)
    }

    /// Whether a control-plane role label is there.
    pub fn is_control_plane(&self) -> bool {
        let mut roles = label::CONTROL_PLANE_ROLES.iter();
        roles.any(|role| self.labels.get(role).is_some())
    }

    /// The taint with this key, with this effect if one is asked for.
    pub fn taint(&self, key: &str, effect: Option<&str>) -> Option<&Taint> {
        let mut taints = self.taints.iter().filter(|taint| taint.key == key);
        taints.find(|taint| effect.is_none_or(|effect| taint.effect == effect))
    }

    /// Whether a person has declared the node shut down, so that nothing runs on it any more. On a Ready node the taint is left
    /// from before, and means nothing to Kubernetes' pod garbage collector either.
    pub fn is_out_of_service(&self) -> bool {
        !self.ready && self.taint(OUT_OF_SERVICE_TAINT, None).is_some()
    }

    /// The node in the API's own shape, as far as it is kept: what `node` is in a signal's expression.
    pub fn to_expression_value(&self) -> Value {
        json!({
            "metadata": {
                "name": self.name.as_str(),
                "uid": self.uid.as_str(),
                "labels": self.labels.iter().collect::<BTreeMap<_, _>>(),
                "annotations": self.annotations,
            },
            "spec": {
                "unschedulable": self.unschedulable,
                "taints": self.taints.iter().map(|t| json!({ "key": t.key, "value": t.value, "effect": t.effect })).collect::<Vec<_>>(),
            },
            "status": { "nodeInfo": { "bootID": &*self.boot_id } },
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

    fn cordoned(mut node: Value) -> NodeView {
        node["spec"]["unschedulable"] = true.into();
        project(node)
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
    fn only_a_cordon_or_our_own_marks_concern_drains(#[case] node: Value, #[case] kept: bool) {
        assert_eq!(project(node).concerns_drains(), kept);
    }

    #[test]
    fn a_draining_node_is_projected_to_what_decisions_read() {
        let node = cordoned(json!({
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
        assert_eq!(node.labels.get("pool"), Some("blue"));
        assert_eq!(node.annotations["a"], "b");
        assert_eq!((node.unschedulable, node.ready, &*node.boot_id), (true, true, "boot"));
        let taint = node.taint(UNSCHEDULABLE_TAINT, Some("NoSchedule")).unwrap();
        assert_eq!(taint.time_added, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(node.taint(UNSCHEDULABLE_TAINT, Some("NoExecute")), None);
        let condition = node.condition("nodeward.dev/DrainBlocked").unwrap();
        assert_eq!(
            (&*condition.status, &*condition.reason, &*condition.message),
            ("True", "R", "M")
        );
        assert_eq!(condition.last_transition, Some("2026-01-01T00:00:01Z".parse().unwrap()));
    }

    const NOON: &str = "2026-01-01T12:00:00Z";

    /// Somebody who uncordons a node and cordons it again leaves the annotation, and a taint of another time.
    #[rstest]
    #[case::its_taint(true, Some("u@2026-01-01T12:00:00Z"), Some(NOON), true, false)]
    #[case::a_later_taint(true, Some("u@2026-01-01T12:00:00Z"), Some("2026-01-01T12:00:07Z"), false, true)]
    #[case::no_taint_yet(true, Some("u@2026-01-01T12:00:00Z"), None, false, true)]
    #[case::unreadable_time(true, Some("u@noon"), Some(NOON), false, true)]
    #[case::a_record_of_an_earlier_version(true, Some("u"), Some(NOON), true, false)]
    #[case::somebody_elses(true, None, Some(NOON), false, false)]
    #[case::uncordoned(false, Some("u@2026-01-01T12:00:00Z"), None, false, false)]
    fn cordon_of_another_time_is_not_ours(
        #[case] unschedulable: bool,
        #[case] record: Option<&str>,
        #[case] taint_added: Option<&str>,
        #[case] ours: bool,
        #[case] taken: bool,
    ) {
        let annotations = record.map(|record| json!({ annotation::CORDONED_BY: record }));
        let taints = taint_added.map(
            |time| json!([{ "key": UNSCHEDULABLE_TAINT, "effect": UNSCHEDULABLE_TAINT_EFFECT, "timeAdded": time }]),
        );
        let node = project(json!({
            "metadata": { "annotations": annotations }, "spec": { "unschedulable": unschedulable, "taints": taints },
        }));
        assert_eq!((node.is_cordoned_by_us(), node.is_cordon_taken()), (ours, taken));
    }

    #[rstest]
    #[case("True", true)]
    #[case("False", false)]
    #[case("Unknown", false)]
    fn node_is_ready_only_by_a_true_condition(#[case] status: &str, #[case] ready: bool) {
        let conditions = json!([{ "type": "Ready", "status": status }]);
        assert_eq!(
            cordoned(json!({ "metadata": {}, "status": { "conditions": conditions } })).ready,
            ready
        );
        assert!(!cordoned(json!({ "metadata": {} })).ready);
    }

    #[rstest]
    #[case(json!({ "node-role.kubernetes.io/control-plane": "" }), true)]
    #[case(json!({ "node-role.kubernetes.io/master": "" }), true)]
    #[case(json!({ "node-role.kubernetes.io/master": "", "node-role.kubernetes.io/worker": "" }), true)]
    #[case(json!({ "node-role.kubernetes.io/worker": "" }), false)]
    #[case(json!({ "role": "master" }), false)]
    fn either_role_label_makes_a_control_plane_node(#[case] labels: Value, #[case] control_plane: bool) {
        assert_eq!(
            cordoned(json!({ "metadata": { "labels": labels } })).is_control_plane(),
            control_plane
        );
    }

    /// Whether it will not come back, and whether it is cordoned.
    #[rstest]
    #[case::serves(json!({}), false, false)]
    #[case::cordoned(json!({ "spec": { "unschedulable": true } }), false, true)]
    #[case::disrupted_by_karpenter(tainted(KARPENTER_DISRUPTED_TAINT, "True"), true, true)]
    #[case::removed_by_the_autoscaler(tainted(AUTOSCALER_TAINT, "True"), true, true)]
    #[case::deleted(json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } }), true, false)]
    #[case::declared_shut_down(tainted(OUT_OF_SERVICE_TAINT, "Unknown"), true, false)]
    #[case::declared_shut_down_before_it_came_back(tainted(OUT_OF_SERVICE_TAINT, "True"), false, false)]
    fn node_that_will_not_come_back_is_known(#[case] node: Value, #[case] removed: bool, #[case] cordoned: bool) {
        let node = project(node);
        assert_eq!((node.is_being_removed(), node.is_cordoned()), (removed, cordoned));
    }

    fn tainted(key: &str, ready: &str) -> Value {
        json!({
            "spec": { "taints": [{ "key": key, "effect": "NoExecute" }] },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        })
    }

    #[test]
    fn an_expression_sees_the_node_in_the_apis_shape() {
        let node = project(json!({
            "metadata": { "uid": "u1", "labels": { "pool": "blue" }, "annotations": { "a": "b" } },
            "spec": { "unschedulable": true, "taints": [{ "key": "k", "value": "v", "effect": "NoExecute" }] },
        }));
        let seen = node.to_expression_value();
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
