//! Nodes, and whether they are being drained.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::core::DynamicObject;
use kube::{Api, Client};
use nodeward_api::NodeDrain;
use nodeward_core::drain::NodeDrainView;
use nodeward_core::id::{NamespacedName, NodeUid};
use nodeward_core::intern::Pool;
use nodeward_core::node::{AUTOSCALER_TAINT, KARPENTER_DISRUPTED_TAINT, NodeView, Taint, UNSCHEDULABLE_TAINT};
use nodeward_core::signal::WatchedResource;
use nodeward_runtime::cache::Content;
use nodeward_runtime::{Cache, DynamicCache, KindRegistry, Selection, Watches};

use crate::snapshot::NodeState;

/// Taints of those who are about to empty a node. Some never set `spec.unschedulable`.
const DRAIN_TAINTS: [&str; 3] = [UNSCHEDULABLE_TAINT, KARPENTER_DISRUPTED_TAINT, AUTOSCALER_TAINT];

/// What of a Node tells whether it is drained. Heartbeats change nothing in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeFacts {
    uid: NodeUid,
    is_unschedulable: bool,
    taints: Box<[Taint]>,
    not_ready_since: Option<Timestamp>,
}

impl NodeFacts {
    fn of(view: NodeView) -> Self {
        Self {
            uid: view.uid,
            is_unschedulable: view.unschedulable,
            taints: view.taints,
            not_ready_since: view.ready_since.filter(|_| !view.ready),
        }
    }
}

/// The watches.
pub(super) struct NodeWatches {
    pub(super) nodes: Cache<NodeFacts>,
    drains: DynamicCache<NodeDrainView>,
}

/// The Nodes at one moment.
pub(super) struct Nodes {
    nodes: Content<NodeFacts>,
    drains: Content<NodeDrainView>,
}

impl NodeWatches {
    /// Opens them.
    pub(super) fn open(watches: &Watches, client: Client, kinds: &KindRegistry) -> Self {
        let mut texts = Pool::default();
        let nodes = watches.cache_comparing(
            "nodes",
            Api::<Node>::all(client),
            Selection::all(),
            move |node: Node, _| {
                let view = NodeView::project_sharing(&node, &mut texts, |_| false)?;
                Some(NodeFacts::of(view))
            },
        );
        let drains = watches.dynamic(
            "nodedrains",
            kinds,
            WatchedResource::of::<NodeDrain>(),
            |object: DynamicObject| NodeDrainView::project(&object.try_parse().ok()?),
        );
        Self { nodes, drains }
    }

    /// This moment. NodeDrains that cannot be read leave the cordon to tell.
    pub(super) fn snapshot(&self) -> Nodes {
        Nodes {
            nodes: self.nodes.snapshot(),
            drains: self.drains.snapshot(),
        }
    }
}

impl Nodes {
    /// What is true of a node, and since when it is not Ready; `own_taints` are the keys of further taints that count as a drain.
    pub(super) fn state(&self, name: &str, own_taints: &[Arc<str>]) -> (NodeState, Option<Timestamp>) {
        let key = NamespacedName::cluster(name);
        let drain = self.drains.get(&key).map(|drain| &**drain);
        let node = self.nodes.get(&key);
        let state = node.map_or(NodeState::Gone, |node| state(node, drain, own_taints));
        (state, node.and_then(|node| node.not_ready_since))
    }
}

fn state(node: &NodeFacts, drain: Option<&NodeDrainView>, own_taints: &[Arc<str>]) -> NodeState {
    if node.is_unschedulable {
        return NodeState::Draining("unschedulable".into());
    }
    let mut taints = node.taints.iter().filter(|taint| taint.effect != "PreferNoSchedule");
    let is_drain =
        |taint: &&Taint| DRAIN_TAINTS.contains(&taint.key.as_str()) || own_taints.iter().any(|own| **own == *taint.key);
    if let Some(taint) = taints.find(is_drain) {
        return NodeState::Draining(taint.key.as_str().into());
    }
    match drain.filter(|drain| drain.is_of(&node.uid) && drain.is_active()) {
        Some(drain) => NodeState::Draining(format!("NodeDrain {}", drain.node).into()),
        None => NodeState::Schedulable,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn node(spec: Value) -> NodeFacts {
        let node = json!({ "metadata": { "name": "n1", "uid": "u1" }, "spec": spec });
        NodeFacts::of(NodeView::project(&serde_json::from_value(node).unwrap()).unwrap())
    }

    fn tainted(key: &str, effect: &str) -> Value {
        json!({ "taints": [{ "key": key, "effect": effect }] })
    }

    fn draining(why: &str) -> NodeState {
        NodeState::Draining(why.into())
    }

    #[rstest]
    #[case(json!({}), NodeState::Schedulable)]
    #[case::cordoned(json!({ "unschedulable": true }), draining("unschedulable"))]
    #[case::by_karpenter(tainted("karpenter.sh/disrupted", "NoSchedule"), draining("karpenter.sh/disrupted"))]
    #[case::by_the_autoscaler(
        tainted("ToBeDeletedByClusterAutoscaler", "NoSchedule"),
        draining("ToBeDeletedByClusterAutoscaler")
    )]
    #[case::by_own_taint(tainted("maintenance", "NoExecute"), draining("maintenance"))]
    #[case::only_discouraged(tainted("maintenance", "PreferNoSchedule"), NodeState::Schedulable)]
    #[case::for_something_else(tainted("storage", "NoSchedule"), NodeState::Schedulable)]
    fn cordons_and_taints_of_drains_count(#[case] spec: Value, #[case] expected: NodeState) {
        assert_eq!(state(&node(spec), None, &["maintenance".into()]), expected);
    }

    #[rstest]
    #[case::not_begun("Scheduled", json!({}), false)]
    #[case::queued("Queued", json!({}), true)]
    #[case::draining("Draining", json!({}), true)]
    #[case::away("Drained", json!({}), true)]
    #[case::ended("Released", json!({}), false)]
    #[case::given_up("Failed", json!({}), false)]
    #[case::planned_only("Drained", json!({ "dryRun": true }), false)]
    #[case::of_an_earlier_node("Draining", json!({ "nodeUID": "u0" }), false)]
    fn active_node_drain_counts(#[case] phase: &str, #[case] spec: Value, #[case] counts: bool) {
        let mut drain = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": "n1" }, "spec": spec,
            "status": { "phase": phase },
        });
        drain["spec"]["nodeName"] = "n1".into();
        let drain = NodeDrainView::project(&serde_json::from_value(drain).unwrap()).unwrap();
        let expected = if counts {
            draining("NodeDrain n1")
        } else {
            NodeState::Schedulable
        };
        assert_eq!(state(&node(json!({})), Some(&drain), &[]), expected);
    }
}
