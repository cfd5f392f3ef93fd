//! Properties of placements on small fleets, against what counting says.

mod plain;

use std::collections::BTreeSet;
use std::sync::Arc;

use nodeward_core::id::NodeName;
use proptest::prelude::*;
use rstest::rstest;
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

    /// Each leaving pod is looked at alone here, so that none takes another's place.
    #[test]
    fn cordon_is_refused_for_the_only_room_of_a_pod((pods, nodes) in any_fleet(), cordoned in 0..6_usize) {
        let (mut view, leaving) = fleet(&pods, &nodes, &json!({}));
        view.pending.clear();
        let cordoned = cordoned % nodes.len();
        let name = view.nodes[cordoned].node.name.clone();
        let fits = |cpu: i64, (offered, count, cordoned): &ANode| !cordoned && *count > 0 && cpu <= *offered;
        for pod in &leaving {
            let cpu = pod.requirements.requests.cpu;
            let elsewhere = nodes.iter().enumerate().any(|(index, node)| index != cordoned && fits(cpu, node));
            let loses = fits(cpu, &nodes[cordoned]) && !elsewhere;
            let mut cordons = Cordons::new(&view, &BTreeSet::new(), &[]);
            cordons.leave([Arc::clone(pod)]);
            prop_assert_eq!(cordons.cordon_if_room(&name, &[]).is_err(), loses);
        }
    }

    /// What waits for a node counts as what leaves one does, where somebody asks for that.
    #[test]
    fn cordon_is_refused_for_the_only_room_of_a_waiting_pod(cpu in 0..3000_i64, offered in 0..3000_i64, counts in any::<bool>()) {
        let view = SchedulingView {
            nodes: vec![node(0, (offered, 1, false))],
            pending: vec![pod("p", cpu, true, &json!({}))],
            ..SchedulingView::default()
        };
        let mut cordons = Cordons::new(&view, &BTreeSet::new(), &[]);
        cordons.wait(view.pending.iter().filter(|_| counts).cloned());
        prop_assert_eq!(cordons.cordon_if_room(&"n0".into(), &[]).is_err(), cpu <= offered && counts);
    }

    /// All pods ask for the same here, so that counting tells whether they find room together: whatever is cordoned, one node
    /// after another, what moves has as many places as pods.
    #[test]
    fn all_that_move_find_room_together(
        nodes in prop::collection::vec((0..4_usize, 0..5_i64, any::<bool>()), 1..7), turned in any::<bool>(),
    ) {
        let name = |index: usize| NodeName::from(format!("n{index}").as_str());
        let drained: BTreeSet<NodeName> =
            (0..nodes.len()).filter(|index| nodes[*index].2).map(name).collect();
        // A node takes so many more pods than it has.
        let view = SchedulingView {
            nodes: nodes.iter().enumerate().map(|(index, (_, free, is_drained))| node(index, (5000, *free, *is_drained))).collect(),
            ..SchedulingView::default()
        };
        let pods_of = |index: usize| -> Vec<Arc<PodFacts>> {
            (0..nodes[index].0).map(|number| on(&name(index), &format!("p{index}-{number}"))).collect()
        };
        let mut order: Vec<usize> = (0..nodes.len()).filter(|index| !nodes[*index].2).collect();
        if turned {
            order.reverse();
        }
        let last: Vec<NodeName> = order.iter().rev().copied().map(name).collect();
        let mut cordons = Cordons::new(&view, &drained, &last);
        let free = |without: &BTreeSet<usize>| -> i64 {
            let takes = |index: &usize| !nodes[*index].2 && !without.contains(index);
            (0..nodes.len()).filter(takes).map(|index| nodes[index].1).sum()
        };
        let leaving: Vec<_> = (0..nodes.len()).filter(|index| nodes[*index].2).flat_map(pods_of).collect();
        let mut cordoned = BTreeSet::new();
        let mut moving = i64::try_from(leaving.len()).unwrap().min(free(&cordoned));
        cordons.leave(leaving);
        for index in order {
            let own = pods_of(index);
            let with_own = moving + i64::try_from(own.len()).unwrap();
            let without: BTreeSet<usize> = cordoned.iter().copied().chain([index]).collect();
            let found = cordons.cordon_if_room(&name(index), &own);
            prop_assert_eq!(found.is_ok(), with_own <= free(&without), "cordon of n{}", index);
            if found.is_ok() {
                (cordoned, moving) = (without, with_own);
            }
        }
    }
}

/// A pod of this node that asks for next to nothing.
fn on(node: &NodeName, name: &str) -> Arc<PodFacts> {
    let mut pod = PodFacts::clone(&pod(name, 1, false, &json!({})));
    pod.summary.node = Some(node.clone());
    Arc::new(pod)
}

fn view_of(nodes: &[ANode]) -> SchedulingView {
    let nodes = nodes.iter().enumerate();
    SchedulingView {
        nodes: nodes.map(|(index, given)| node(index, *given)).collect(),
        ..SchedulingView::default()
    }
}

#[rstest]
#[case::for_the_pods_of_one(1, &[true, false])]
#[case::for_the_pods_of_both(2, &[true, true])]
#[case::for_none(0, &[false, false])]
fn nodes_are_cordoned_while_there_is_room(#[case] free: i64, #[case] expected: &[bool]) {
    let view = view_of(&[(5000, 0, false), (5000, 0, false), (5000, free, false)]);
    let mut cordons = Cordons::new(&view, &BTreeSet::new(), &[]);
    let done = ["n0", "n1"].map(|name| cordons.cordon_if_room(&name.into(), &[on(&name.into(), name)]).is_ok());
    assert_eq!(done, expected);
}

/// The pod of `n0` could go to `n1`, and goes to `n2` once that is cordoned.
#[test]
fn pod_goes_elsewhere_when_its_node_is_cordoned() {
    let view = view_of(&[(5000, 0, false), (5000, 1, false), (5000, 1, false)]);
    let mut cordons = Cordons::new(&view, &BTreeSet::new(), &[]);
    cordons.cordon_if_room(&"n0".into(), &[on(&"n0".into(), "a")]).unwrap();
    cordons.cordon_if_room(&"n1".into(), &[]).unwrap();
    let lost = cordons.cordon_if_room(&"n2".into(), &[]).unwrap_err();
    assert_eq!(&*lost.key.name, "a");
}

/// A cordon that is refused promises nothing, and one that is made anyway counts.
#[test]
fn refused_cordon_leaves_all_as_it_was() {
    let view = view_of(&[(5000, 0, false), (5000, 0, false), (5000, 1, false)]);
    let mut cordons = Cordons::new(&view, &BTreeSet::new(), &[]);
    let two = ["a", "b"].map(|name| on(&"n0".into(), name));
    assert!(cordons.cordon_if_room(&"n0".into(), &two).is_err());
    let one = [on(&"n1".into(), "c")];
    cordons.cordon_if_room(&"n1".into(), &one).unwrap();
    cordons.cordon(&"n0".into(), &two);
    assert!(cordons.cordon_if_room(&"n2".into(), &[]).is_err());
}

/// A node that is away for its drain would take the pod; another that is not ready would not.
#[rstest]
#[case::drained(&["n1"], &["p"])]
#[case::failed(&[], &[])]
fn pods_that_only_drains_keep_from_room_are_told(#[case] drained: &[&str], #[case] expected: &[&str]) {
    let mut view = view_of(&[(5000, 0, false), (5000, 1, true)]);
    let away = json!([{ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }]);
    let object = json!({
        "metadata": { "name": "n1" }, "spec": { "unschedulable": true, "taints": away },
        "status": { "allocatable": { "cpu": "5", "pods": "1" }, "conditions": [{ "type": "Ready", "status": "False" }] },
    });
    let facts = NodeProjector::keeping(&[]).project(&serde_json::from_value(object).unwrap());
    view.nodes[1].node = Arc::new(facts.unwrap());
    let drained = drained.iter().map(|name| NodeName::from(*name)).collect();
    let cordons = Cordons::new(&view, &drained, &[]);
    let pods = ["p", "q"].map(|name| on(&"n0".into(), name));
    let found = cordons.crowded_out(&[], &pods);
    assert_eq!(found.iter().map(|pod| &*pod.key.name).collect::<Vec<_>>(), expected);
    assert!(cordons.placement().place(&pods[0], pods[0].node.as_ref()).is_err());
}
