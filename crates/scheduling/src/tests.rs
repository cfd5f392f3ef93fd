//! Properties of placements on small fleets, against what counting says.

mod plain;

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_core::id::NodeName;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// One node: CPU in thousandths, how many pods it takes, and whether it is cordoned.
type ANode = (i64, i64, bool);

fn any_fleet() -> impl Strategy<Value = (Vec<i64>, Vec<ANode>)> {
    (
        prop::collection::vec(0..1500_i64, 0..20),
        prop::collection::vec((0..3000_i64, 0..6_i64, prop::bool::weighted(0.2)), 1..6),
    )
}

fn node(index: usize, (cpu, pods, cordoned): ANode) -> NodeCapacity {
    let object = json!({
        "metadata": { "name": format!("n{index}"), "labels": { "kubernetes.io/hostname": format!("n{index}") } },
        "spec": { "unschedulable": cordoned },
        "status": {
            "allocatable": { "cpu": format!("{cpu}m"), "pods": pods.to_string() },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    let node = NodeProjector::keeping(&[]).project(&serde_json::from_value(object).unwrap());
    NodeCapacity {
        node: Arc::new(node.unwrap()),
        usage: Arc::default(),
    }
}

/// A pod that leaves the node `away`, or one that waits for a node.
fn pod(name: &str, cpu: i64, waits: bool, affinity: &Value) -> Arc<PodFacts> {
    let object = json!({
        "metadata": { "namespace": "shop", "name": name, "uid": name, "labels": { "app": "web" }, "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": {
            "nodeName": (!waits).then_some("away"), "affinity": affinity,
            "containers": [{ "name": "c", "resources": { "requests": { "cpu": format!("{cpu}m") } } }],
        },
        "status": { "phase": if waits { "Pending" } else { "Running" } },
    });
    Arc::new(PodFacts::project(&serde_json::from_value(object).unwrap()).unwrap())
}

/// Every third pod waits for a node, the others leave one that is not in view.
fn fleet(pods: &[i64], nodes: &[ANode], affinity: &Value) -> (SchedulingView, Vec<Arc<PodFacts>>) {
    let pods = pods.iter().enumerate();
    let pods = pods.map(|(index, cpu)| pod(&format!("p{index:02}"), *cpu, index % 3 == 0, affinity));
    let (pending, leaving): (Vec<_>, Vec<_>) = pods.partition(|pod| pod.awaits_a_node());
    let view = SchedulingView {
        nodes: nodes
            .iter()
            .enumerate()
            .map(|(index, given)| node(index, *given))
            .collect(),
        pending,
        ..SchedulingView::default()
    };
    (view, leaving)
}

/// What was promised of a node: CPU, and pods.
fn promised(placement: &Placement<'_>, name: &NodeName) -> (i64, i64) {
    let pods = placement.promises().filter(|(_, node)| node.name == *name);
    pods.fold((0, 0), |(cpu, count), (pod, _)| {
        (cpu + pod.requirements.requests.cpu, count + 1)
    })
}

fn away() -> NodeName {
    "away".into()
}

proptest! {
    #[test]
    fn no_node_is_promised_more_than_it_has((pods, nodes) in any_fleet()) {
        let (view, leaving) = fleet(&pods, &nodes, &json!({}));
        let mut placement = Placement::new(&view);
        let nowhere: Vec<i64> = leaving
            .iter()
            .filter(|pod| placement.place(pod, Some(&away())).is_err())
            .map(|pod| pod.requirements.requests.cpu)
            .collect();
        for (capacity, (cpu, count, cordoned)) in view.nodes.iter().zip(&nodes) {
            let (taken, pods) = promised(&placement, &capacity.node.name);
            prop_assert!(taken <= *cpu && pods <= *count);
            prop_assert!(!cordoned || pods == 0, "{} is cordoned", capacity.node.name);
            // Who found no place would not fit anywhere now either.
            let has_room_for = |asked: &i64| !cordoned && taken + asked <= *cpu && pods < *count;
            prop_assert!(!nowhere.iter().any(has_room_for));
        }
    }

    #[test]
    fn pods_that_repel_each_other_share_no_node((pods, nodes) in any_fleet()) {
        let apart = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
            { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "web" } } },
        ] } });
        let (view, leaving) = fleet(&pods, &nodes, &apart);
        let mut placement = Placement::new(&view);
        for pod in &leaving {
            let _ = placement.place(pod, Some(&away()));
        }
        for capacity in &view.nodes {
            prop_assert!(promised(&placement, &capacity.node.name).1 <= 1);
        }
    }

    /// Each leaving pod is alone on its node here, so that none takes another's place.
    #[test]
    fn cordon_strands_exactly_unplaceable_pods((pods, nodes) in any_fleet(), cordoned in 0..6_usize) {
        let (mut view, leaving) = fleet(&pods, &nodes, &json!({}));
        view.pending.clear();
        let cordoned = cordoned % nodes.len();
        let name = view.nodes[cordoned].node.name.clone();
        let fits = |cpu: i64, (offered, count, cordoned): &ANode| !cordoned && *count > 0 && cpu <= *offered;
        let is_stranded = |pod: &&Arc<PodFacts>| {
            let cpu = pod.requirements.requests.cpu;
            let elsewhere = nodes.iter().enumerate().any(|(index, node)| index != cordoned && fits(cpu, node));
            fits(cpu, &nodes[cordoned]) && !elsewhere
        };
        let expected = leaving.iter().find(is_stranded).map(|pod| pod.key.clone());
        let mut cordons = Cordons::new(&view, Timestamp::MIN);
        for pod in &leaving {
            cordons.leave(away(), vec![Arc::clone(pod)]);
        }
        prop_assert_eq!(cordons.stranded_by(&name), expected);
    }

    /// A drain is never refused for room where nothing else leaves, whatever waits for a node.
    #[test]
    fn a_cordon_strands_nobody_where_nothing_leaves((pods, nodes) in any_fleet()) {
        let (view, _) = fleet(&pods, &nodes, &json!({}));
        let name = view.nodes[0].node.name.clone();
        prop_assert_eq!(Cordons::new(&view, Timestamp::MIN).stranded_by(&name), None);
    }

    /// What waits for a node is stranded as what leaves one is, unless it has waited for too long.
    #[test]
    fn a_cordon_strands_what_waits_for_the_only_node(cpu in 0..3000_i64, offered in 0..3000_i64, is_old in any::<bool>()) {
        let view = SchedulingView {
            nodes: vec![node(0, (offered, 1, false))],
            pending: vec![pod("p", cpu, true, &json!({}))],
            ..SchedulingView::default()
        };
        let created = view.pending[0].created;
        let since = if is_old { created + jiff::SignedDuration::from_secs(1) } else { created };
        let mut cordons = Cordons::new(&view, since);
        cordons.leave(away(), Vec::new());
        prop_assert_eq!(cordons.stranded_by(&"n0".into()).is_some(), cpu <= offered && !is_old);
    }
}
