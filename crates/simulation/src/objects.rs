//! Nodes, budgets and volumes as the API server writes them.

use k8s_openapi::api::core::v1::{Node, NodeCondition, PersistentVolume};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::clock::{MINUTE, Millis, stored};
use crate::pod::{NAMESPACE, labels};
use crate::topology::MaxUnavailable;

pub fn node_name(index: usize) -> String {
    format!("n{index}")
}

pub fn budget_name(app: usize) -> String {
    format!("a{app}")
}

/// Whether it is cordoned.
pub fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
}

pub fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub fn ready_condition(is_ready: bool, since: Millis) -> NodeCondition {
    NodeCondition {
        type_: "Ready".to_owned(),
        status: if is_ready { "True" } else { "Unknown" }.to_owned(),
        last_transition_time: Some(Time(stored(since))),
        ..NodeCondition::default()
    }
}

fn parse<K: DeserializeOwned + Default>(object: Value) -> K {
    serde_json::from_value(object).unwrap_or_default()
}

/// A Ready node that takes so many pods.
pub fn node(index: usize, slots: usize) -> Node {
    let name = node_name(index);
    let mut node: Node = parse(json!({
        "metadata": {
            "name": name, "uid": format!("uid-{name}"), "resourceVersion": "0", "creationTimestamp": stored(-600 * MINUTE),
            "labels": { "kubernetes.io/hostname": name },
        },
        "spec": {},
        "status": { "allocatable": { "pods": slots.to_string() }, "conditions": [ready_condition(true, -599 * MINUTE)] },
    }));
    let status = node.status.get_or_insert_default();
    "boot-0".clone_into(&mut status.node_info.get_or_insert_default().boot_id);
    node
}

/// The budget over an application's pods, which nobody has counted yet.
pub fn budget(app: usize, most: MaxUnavailable) -> PodDisruptionBudget {
    let most = match most {
        MaxUnavailable::Pods(pods) => json!(pods),
        MaxUnavailable::Percent(share) => json!(format!("{share}%")),
    };
    parse(json!({
        "metadata": {
            "namespace": NAMESPACE, "name": budget_name(app), "uid": format!("uid-budget-a{app}"), "resourceVersion": "0",
            "generation": 1,
        },
        "spec": { "maxUnavailable": most, "selector": { "matchLabels": labels(app) } },
    }))
}

/// The local volume of a pod, on this node.
pub fn local_volume(pod: &str, node: &str) -> PersistentVolume {
    let on_node = json!([{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }]);
    parse(json!({
        "metadata": { "name": format!("volume-of-{pod}") },
        "spec": {
            "claimRef": { "namespace": NAMESPACE, "name": format!("data-{pod}") },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": on_node }] } },
        },
        "status": { "phase": "Bound" },
    }))
}
