//! Where pods can go, rule by rule, by the view of the cluster that is gathered from what the watches tell.

use std::collections::BTreeSet;

use nodeward_core::id::NodeName;
use nodeward_scheduling::{Cordons, Placement};
use rstest::rstest;
use serde_json::{Value, json};

use crate::tests::fixture::{Cluster, cordoned, merged, node, owner, pod, volume, waiting};

/// Where the pods of `n1` go, one after another; `-` for nowhere.
fn places(cluster: &Cluster) -> String {
    let snapshot = cluster.snapshot();
    let mut placement = Placement::new(&snapshot.scheduling);
    let from = NodeName::from("n1");
    let places = snapshot
        .pods_of(&from)
        .iter()
        .map(|pod| match placement.place(pod, Some(&from)) {
            Ok(node) => node.to_string(),
            Err(_) => "-".to_owned(),
        });
    places.collect::<Vec<_>>().join(" ")
}

/// Where the one pod of `n1` goes, with `n1` and `n2` alone, and these on `n2`.
fn place_beside(pod_spec: Value, node_2: Value, others: Vec<Value>) -> String {
    let mut pods = vec![pod("a", json!({ "spec": pod_spec }))];
    pods.extend(others);
    places(&Cluster::new([cordoned("n1"), node("n2", node_2)], pods))
}

fn with_requests(requests: Value) -> Value {
    json!({ "containers": [{ "name": "c", "resources": { "requests": requests } }] })
}

fn allocatable(list: Value) -> Value {
    json!({ "status": { "allocatable": list } })
}

/// A pod of another controller, on `n2`.
fn resident(name: &str, patch: Value) -> Value {
    let base = json!({
        "metadata": { "labels": { "app": "other" }, "ownerReferences": [owner("apps/v1", "ReplicaSet", "other")] },
        "spec": { "nodeName": "n2" },
    });
    pod(name, merged(base, patch))
}

#[rstest]
#[case::room(json!({}), "n2")]
#[case::cordoned(json!({ "spec": { "unschedulable": true } }), "-")]
#[case::karpenter(json!({ "spec": { "taints": [{ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" }] } }), "-")]
#[case::autoscaler(json!({ "spec": { "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }] } }), "-")]
#[case::not_ready(json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }), "-")]
#[case::readiness_unknown(json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } }), "-")]
#[case::no_schedule(json!({ "spec": { "taints": [{ "key": "dedicated", "effect": "NoSchedule" }] } }), "-")]
#[case::no_execute(json!({ "spec": { "taints": [{ "key": "dedicated", "effect": "NoExecute" }] } }), "-")]
#[case::prefer_no_schedule(json!({ "spec": { "taints": [{ "key": "nodeward.dev/queued", "effect": "PreferNoSchedule" }] } }), "n2")]
#[case::no_allocatable(json!({ "status": { "allocatable": null } }), "-")]
fn pod_fits_only_ready_schedulable_nodes(#[case] patch: Value, #[case] place: &str) {
    assert_eq!(place_beside(json!({}), patch, vec![]), place);
}

#[rstest]
#[case::key_and_effect(json!([{ "key": "dedicated", "value": "db", "effect": "NoSchedule" }]), "n2")]
#[case::exists(json!([{ "key": "dedicated", "operator": "Exists" }]), "n2")]
#[case::everything(json!([{ "operator": "Exists" }]), "n2")]
#[case::other_value(json!([{ "key": "dedicated", "value": "web", "effect": "NoSchedule" }]), "-")]
#[case::other_effect(json!([{ "key": "dedicated", "operator": "Exists", "effect": "NoExecute" }]), "-")]
#[case::other_key(json!([{ "key": "other", "operator": "Exists" }]), "-")]
#[case::unknown_operator(json!([{ "key": "dedicated", "operator": "Gt", "value": "1" }]), "-")]
fn a_taint_repels_who_does_not_tolerate_it(#[case] tolerations: Value, #[case] place: &str) {
    let tainted = json!({ "spec": { "taints": [{ "key": "dedicated", "value": "db", "effect": "NoSchedule" }] } });
    assert_eq!(
        place_beside(json!({ "tolerations": tolerations }), tainted, vec![]),
        place
    );
}

#[rstest]
#[case::all_of_it(with_requests(json!({ "cpu": "4", "memory": "8Gi" })), json!({}), "n2")]
#[case::too_much_cpu(with_requests(json!({ "cpu": "4001m" })), json!({}), "-")]
#[case::too_much_memory(with_requests(json!({ "memory": "8193Mi" })), json!({}), "-")]
#[case::too_much_storage(with_requests(json!({ "ephemeral-storage": "2Gi" })), allocatable(json!({ "ephemeral-storage": "1Gi" })), "-")]
#[case::storage_that_nobody_reports(with_requests(json!({ "ephemeral-storage": "1" })), json!({}), "-")]
#[case::no_gpu(with_requests(json!({ "example.com/gpu": "1" })), json!({}), "-")]
#[case::gpu(with_requests(json!({ "example.com/gpu": "1" })), allocatable(json!({ "example.com/gpu": "1" })), "n2")]
#[case::huge_pages(with_requests(json!({ "hugepages-2Mi": "4Mi" })), allocatable(json!({ "hugepages-2Mi": "2Mi" })), "-")]
#[case::no_pod_more(with_requests(json!({})), allocatable(json!({ "pods": "0" })), "-")]
#[case::containers_are_added_up(
    json!({ "containers": [
        { "name": "a", "resources": { "requests": { "cpu": "3" } } }, { "name": "b", "resources": { "requests": { "cpu": "2" } } },
    ] }), json!({}), "-"
)]
#[case::an_init_container_alone_can_be_the_greatest(
    json!({ "initContainers": [{ "name": "i", "resources": { "requests": { "cpu": "5" } } }] }), json!({}), "-"
)]
#[case::init_containers_follow_each_other(
    json!({ "initContainers": [
        { "name": "i", "resources": { "requests": { "cpu": "3" } } }, { "name": "j", "resources": { "requests": { "cpu": "3" } } },
    ] }), json!({}), "n2"
)]
#[case::a_sidecar_runs_beside_all(
    json!({ "initContainers": [
        { "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": "2" } } },
        { "name": "i", "resources": { "requests": { "cpu": "3" } } },
    ] }), json!({}), "-"
)]
#[case::a_sidecar_that_starts_later_does_not(
    json!({ "initContainers": [
        { "name": "i", "resources": { "requests": { "cpu": "3" } } },
        { "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": "2" } } },
    ] }), json!({}), "n2"
)]
#[case::overhead(json!({ "overhead": { "cpu": "3001m" } }), json!({}), "-")]
#[case::the_pod_as_a_whole(json!({ "resources": { "requests": { "cpu": "5" } } }), json!({}), "-")]
#[case::nonsense_asks_for_nothing(with_requests(json!({ "cpu": "plenty" })), json!({}), "n2")]
fn a_pod_needs_what_the_scheduler_reserves_for_it(#[case] spec: Value, #[case] patch: Value, #[case] place: &str) {
    assert_eq!(place_beside(spec, patch, vec![]), place);
}

#[rstest]
#[case::beside_what_runs(resident("b", json!({})), "n2")]
#[case::not_beside_too_much(resident("b", json!({ "spec": with_requests(json!({ "cpu": "3500m" })) })), "-")]
#[case::a_finished_pod_takes_nothing(
    resident("b", json!({ "spec": with_requests(json!({ "cpu": "4" })), "status": { "phase": "Succeeded" } })), "n2"
)]
#[case::a_terminating_pod_still_does(
    resident("b", json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" }, "spec": with_requests(json!({ "cpu": "4" })) })), "-"
)]
#[case::a_daemon_does(
    resident("b", json!({ "metadata": { "ownerReferences": [owner("apps/v1", "DaemonSet", "d")] }, "spec": with_requests(json!({ "cpu": "4" })) })), "-"
)]
#[case::a_bound_pod_that_has_yet_to_start_does(
    resident("b", json!({ "spec": with_requests(json!({ "cpu": "4" })), "status": { "phase": "Pending" } })), "-"
)]
fn what_runs_on_a_node_takes_room(#[case] other: Value, #[case] place: &str) {
    assert_eq!(place_beside(json!({}), json!({}), vec![other]), place);
}

#[rstest]
#[case::an_older_one_goes_first("3500m", json!({}), "-")]
#[case::one_that_leaves_enough("3", json!({}), "n2")]
#[case::one_that_is_gated_takes_nothing("4", json!({ "spec": { "schedulingGates": [{ "name": "g" }] } }), "n2")]
#[case::one_that_fits_nowhere_takes_nothing("5", json!({}), "n2")]
#[case::one_that_terminates_takes_nothing("4", json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } }), "n2")]
fn pods_that_wait_for_a_node_take_room_first(#[case] cpu: &str, #[case] patch: Value, #[case] place: &str) {
    let other = merged(json!({ "spec": with_requests(json!({ "cpu": cpu })) }), patch);
    assert_eq!(place_beside(json!({}), json!({}), vec![waiting("b", other)]), place);
}

#[rstest]
#[case::selected(json!({ "nodeSelector": { "disk": "ssd" } }), "n2")]
#[case::not_selected(json!({ "nodeSelector": { "disk": "hdd" } }), "-")]
#[case::all_must_match(json!({ "nodeSelector": { "disk": "ssd", "pool": "blue" } }), "-")]
#[case::affinity(required(json!([{ "matchExpressions": [{ "key": "disk", "operator": "In", "values": ["hdd", "ssd"] }] }])), "n2")]
#[case::one_term_is_enough(required(json!([
    { "matchExpressions": [{ "key": "disk", "operator": "In", "values": ["hdd"] }] },
    { "matchExpressions": [{ "key": "disk", "operator": "Exists" }] },
])), "n2")]
#[case::all_of_a_term_must_hold(required(json!([
    { "matchExpressions": [{ "key": "disk", "operator": "Exists" }, { "key": "pool", "operator": "Exists" }] },
])), "-")]
#[case::not_in(required(json!([{ "matchExpressions": [{ "key": "disk", "operator": "NotIn", "values": ["ssd"] }] }])), "-")]
#[case::does_not_exist(required(json!([{ "matchExpressions": [{ "key": "pool", "operator": "DoesNotExist" }] }])), "n2")]
#[case::greater(required(json!([{ "matchExpressions": [{ "key": "cores", "operator": "Gt", "values": ["7"] }] }])), "n2")]
#[case::not_greater(required(json!([{ "matchExpressions": [{ "key": "cores", "operator": "Gt", "values": ["8"] }] }])), "-")]
#[case::less(required(json!([{ "matchExpressions": [{ "key": "cores", "operator": "Lt", "values": ["9"] }] }])), "n2")]
#[case::by_name(required(json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n2"] }] }])), "n2")]
#[case::by_another_name(required(json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] }])), "-")]
#[case::by_an_unknown_field(required(json!([{ "matchFields": [{ "key": "metadata.uid", "operator": "In", "values": ["n2"] }] }])), "-")]
#[case::an_empty_term_selects_nothing(required(json!([{}])), "-")]
#[case::no_term_selects_nothing(required(json!([])), "-")]
#[case::nonsense(required(json!([{ "matchExpressions": [{ "key": "disk", "operator": "Near" }] }])), "-")]
fn selectors_and_affinity_choose_nodes(#[case] spec: Value, #[case] place: &str) {
    let labels = json!({ "metadata": { "labels": { "disk": "ssd", "cores": "8" } } });
    assert_eq!(place_beside(spec, labels, vec![]), place);
}

fn required(terms: Value) -> Value {
    json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } } })
}

#[rstest]
#[case::reached(json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }]), &["n1", "n2"], "n2")]
#[case::out_of_reach(json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }]), &["n1"], "-")]
#[case::of_another_claim(json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "other" } }]), &["n1"], "n2")]
#[case::ephemeral(json!([{ "name": "v", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }]), &["n1"], "n2")]
#[case::empty_dir(json!([{ "name": "v", "emptyDir": {} }]), &["n1"], "n2")]
fn a_volume_must_be_reached(#[case] volumes: Value, #[case] nodes: &[&str], #[case] place: &str) {
    let pods = [pod("a", json!({ "spec": { "volumes": volumes } }))];
    let cluster = Cluster::new([cordoned("n1"), node("n2", json!({}))], pods).volumes([volume("pv", "data", nodes)]);
    assert_eq!(places(&cluster), place);
}

#[test]
fn ephemeral_volume_claim_is_named_after_its_pod() {
    let volumes = json!([{ "name": "v", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }]);
    let pods = [pod("a", json!({ "spec": { "volumes": volumes } }))];
    let cluster = Cluster::new([cordoned("n1"), node("n2", json!({}))], pods).volumes([volume("pv", "a-v", &["n1"])]);
    assert_eq!(places(&cluster), "-");
}

fn ports(list: Value) -> Value {
    json!({ "containers": [{ "name": "c", "ports": list }] })
}

#[rstest]
#[case::another(json!([{ "containerPort": 1, "hostPort": 81 }]), "n2")]
#[case::the_same(json!([{ "containerPort": 1, "hostPort": 80 }]), "-")]
#[case::of_another_protocol(json!([{ "containerPort": 1, "hostPort": 80, "protocol": "UDP" }]), "n2")]
#[case::at_an_address_of_its_own(json!([{ "containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.1" }]), "-")]
#[case::none_of_the_host(json!([{ "containerPort": 80 }]), "n2")]
fn a_port_of_the_host_is_used_once(#[case] scope: Value, #[case] place: &str) {
    let other = resident(
        "b",
        json!({ "spec": ports(json!([{ "containerPort": 1, "hostPort": 80 }])) }),
    );
    assert_eq!(place_beside(ports(scope), json!({}), vec![other]), place);
}

#[test]
fn a_promised_port_is_in_use_too() {
    let listens = json!({ "spec": ports(json!([{ "containerPort": 1, "hostPort": 80 }])) });
    let pods = [pod("a", listens.clone()), pod("b", listens)];
    assert_eq!(
        places(&Cluster::new([cordoned("n1"), node("n2", json!({}))], pods)),
        "n2 -"
    );
}

fn anti(term: Value) -> Value {
    json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } })
}

fn term(app: &str, topology_key: &str) -> Value {
    json!({ "labelSelector": { "matchLabels": { "app": app } }, "topologyKey": topology_key })
}

const HOST: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

#[rstest]
#[case::own_term(anti(term("other", HOST)), json!({}), "-")]
#[case::own_term_about_others(anti(term("third", HOST)), json!({}), "n2")]
#[case::the_others_term(json!({}), json!({ "spec": anti(term("web", HOST)) }), "-")]
#[case::the_others_term_about_others(json!({}), json!({ "spec": anti(term("third", HOST)) }), "n2")]
#[case::of_a_finished_pod(json!({}), json!({ "spec": anti(term("web", HOST)), "status": { "phase": "Failed" } }), "n2")]
#[case::of_a_terminating_pod(
    anti(term("other", HOST)), json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } }), "-"
)]
#[case::a_label_that_nodes_do_not_have(anti(term("other", "rack")), json!({}), "n2")]
#[case::other_namespaces_do_not_count(anti(term("other", HOST)), json!({ "metadata": { "namespace": "bank" } }), "n2")]
#[case::unless_listed(
    anti(merged(term("other", HOST), json!({ "namespaces": ["bank"] }))), json!({ "metadata": { "namespace": "bank" } }), "-"
)]
#[case::or_all_are_meant(
    anti(merged(term("other", HOST), json!({ "namespaceSelector": {} }))), json!({ "metadata": { "namespace": "bank" } }), "-"
)]
#[case::chosen_by_labels_may_be_any(
    anti(merged(term("other", HOST), json!({ "namespaceSelector": { "matchLabels": { "a": "b" } } }))),
    json!({ "metadata": { "namespace": "bank" } }), "-"
)]
#[case::the_others_term_from_afar(
    json!({}),
    json!({ "metadata": { "namespace": "bank" }, "spec": anti(merged(term("web", HOST), json!({ "namespaces": ["shop"] }))) }), "-"
)]
#[case::the_others_term_from_afar_about_its_own(
    json!({}), json!({ "metadata": { "namespace": "bank" }, "spec": anti(term("web", HOST)) }), "n2"
)]
#[case::a_term_without_selector_means_nobody(anti(json!({ "topologyKey": HOST })), json!({}), "n2")]
fn anti_affinity_of_either_side_keeps_pods_apart(#[case] spec: Value, #[case] other: Value, #[case] place: &str) {
    assert_eq!(place_beside(spec, json!({}), vec![resident("b", other)]), place);
}

#[test]
fn pods_that_repel_each_other_are_promised_different_nodes() {
    let apart = json!({ "spec": anti(term("web", HOST)) });
    let pods = [pod("a", apart.clone()), pod("b", apart.clone()), pod("c", apart)];
    let nodes = [cordoned("n1"), node("n2", json!({})), node("n3", json!({}))];
    assert_eq!(places(&Cluster::new(nodes, pods)), "n2 n3 -");
}

#[test]
fn pod_does_not_repel_its_own_replacement() {
    let pods = [pod("a", json!({ "spec": anti(term("web", ZONE)) }))];
    let nodes = [cordoned("n1"), node("n2", json!({}))];
    assert_eq!(places(&Cluster::new(nodes, pods)), "n2");
}

#[rstest]
#[case::there(term("other", HOST), json!({}), "n2")]
#[case::not_there(term("third", HOST), json!({}), "-")]
#[case::in_the_zone(term("other", ZONE), json!({}), "n2")]
#[case::the_first_of_its_kind(term("web", HOST), json!({}), "n2")]
#[case::in_another_namespace(term("other", HOST), json!({ "metadata": { "namespace": "bank" } }), "-")]
#[case::namespaces_that_cannot_be_known(
    merged(term("other", HOST), json!({ "namespaceSelector": { "matchLabels": { "a": "b" } } })), json!({}), "-"
)]
fn affinity_wants_company(#[case] wanted: Value, #[case] other: Value, #[case] place: &str) {
    let spec = json!({ "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [wanted] } } });
    assert_eq!(place_beside(spec, json!({}), vec![resident("b", other)]), place);
}

#[test]
fn affinity_may_follow_a_pod_promised_a_place() {
    let follows = json!({ "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term("lead", HOST)] } } });
    let pods = [
        pod("a", json!({ "spec": follows })),
        pod("b", json!({ "metadata": { "labels": { "app": "lead" } } })),
        pod("c", json!({ "spec": follows })),
    ];
    let lead_was_here = places(&Cluster::new([cordoned("n1"), node("n2", json!({}))], pods));
    assert_eq!(lead_was_here, "- n2 n2");
}

fn spread_over(topology_key: &str, patch: Value) -> Value {
    let constraint = json!({
        "maxSkew": 1, "topologyKey": topology_key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } },
    });
    json!({ "spec": { "topologySpreadConstraints": [merged(constraint, patch)] } })
}

fn in_zone(name: &str, zone: &str) -> Value {
    node(name, json!({ "metadata": { "labels": { ZONE: zone } } }))
}

#[rstest]
// n1 is cordoned and still a domain, with nobody in it once the pod has left: n2 would be two ahead.
#[case::a_cordoned_domain_counts(spread_over(HOST, json!({})), &["n2"], "-")]
#[case::unless_taints_are_honoured(spread_over(HOST, json!({ "nodeTaintsPolicy": "Honor" })), &["n2"], "n2")]
#[case::a_greater_skew(spread_over(HOST, json!({ "maxSkew": 2 })), &["n2"], "n2")]
#[case::even_again(spread_over(HOST, json!({})), &[], "n2")]
#[case::only_a_preference(spread_over(HOST, json!({ "whenUnsatisfiable": "ScheduleAnyway" })), &["n2"], "n2")]
#[case::too_few_domains(spread_over(HOST, json!({ "nodeTaintsPolicy": "Honor", "minDomains": 2 })), &["n2"], "-")]
#[case::a_label_that_no_node_has(spread_over("rack", json!({})), &[], "-")]
#[case::counted_by_further_labels(spread_over(HOST, json!({ "matchLabelKeys": ["hash"] })), &["n2"], "n2")]
fn pods_are_spread(#[case] constraint: Value, #[case] others: &[&str], #[case] place: &str) {
    let tainted = json!({ "spec": {
        "unschedulable": true, "taints": [{ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" }],
    } });
    let own = merged(constraint, json!({ "metadata": { "labels": { "hash": "new" } } }));
    let mut pods = vec![pod("a", own)];
    for (index, on) in others.iter().enumerate() {
        let labels = json!({ "hash": "old" });
        pods.push(pod(
            &format!("other-{index}"),
            json!({ "metadata": { "labels": labels }, "spec": { "nodeName": on } }),
        ));
    }
    assert_eq!(
        places(&Cluster::new([node("n1", tainted), node("n2", json!({}))], pods)),
        place
    );
}

#[test]
fn promised_places_are_spread_too() {
    let pods = ["a", "b", "c"].map(|name| pod(name, spread_over(ZONE, json!({}))));
    let nodes = [
        cordoned("n1"),
        in_zone("n2", "z1"),
        in_zone("n3", "z2"),
        in_zone("n4", "z3"),
    ];
    // The pods that have yet to leave are in z1 still.
    assert_eq!(places(&Cluster::new(nodes, pods)), "n3 n4 n3");
}

#[test]
fn two_pods_never_share_the_last_place() {
    let pods = [pod("a", json!({})), pod("b", json!({}))];
    let nodes = [cordoned("n1"), node("n2", allocatable(json!({ "cpu": "1500m" })))];
    assert_eq!(places(&Cluster::new(nodes, pods)), "n2 -");
}

#[test]
fn later_drain_finds_the_remaining_room() {
    let pods = [pod("a", json!({})), pod("b", json!({ "spec": { "nodeName": "n3" } }))];
    let nodes = [
        cordoned("n1"),
        node("n2", allocatable(json!({ "cpu": "1500m" }))),
        cordoned("n3"),
    ];
    let snapshot = Cluster::new(nodes, pods).snapshot_of(&["n1", "n3"]);
    let mut placement = Placement::new(&snapshot.scheduling);
    assert!(placement.place(snapshot.pod("a"), Some(&"n1".into())).is_ok());
    assert!(placement.place(snapshot.pod("b"), Some(&"n3".into())).is_err());
}

#[rstest]
#[case::no_other_node(json!({}), &["n1"], "no other node reaches its volume")]
#[case::one_that_has_no_room(json!({}), &["n1", "n2"], "of 2 other nodes 1 are cordoned, 1 do not reach its volume")]
fn what_no_room_would_help_is_named_first(#[case] patch: Value, #[case] reached: &[&str], #[case] says: &str) {
    let volumes = json!({ "spec": { "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }] } });
    let cluster = Cluster::new(
        [cordoned("n1"), cordoned("n2"), node("n3", json!({}))],
        [pod("a", merged(volumes, patch))],
    )
    .volumes([volume("pv", "data", reached)]);
    let snapshot = cluster.snapshot();
    let outcome = Placement::new(&snapshot.scheduling).place(snapshot.pod("a"), Some(&"n1".into()));
    assert_eq!(outcome.unwrap_err().to_string(), says);
}

#[rstest]
#[case::last_room("n2", &["n2"], Some("shop/a"))]
#[case::room_elsewhere("n2", &["n2", "n3"], None)]
#[case::a_node_without_room("n3", &["n2"], None)]
#[case::no_room_anyway("n3", &[], None)]
#[case::its_own_node("n1", &["n2"], None)]
fn cordon_that_strands_movable_pod_is_found(
    #[case] cordon: &str,
    #[case] with_room: &[&str],
    #[case] stranded: Option<&str>,
) {
    let nodes = ["n1", "n2", "n3"].map(|name| {
        let cpu = if with_room.contains(&name) { "2" } else { "0" };
        let unschedulable = name == "n1";
        node(
            name,
            merged(
                allocatable(json!({ "cpu": cpu })),
                json!({ "spec": { "unschedulable": unschedulable } }),
            ),
        )
    });
    let snapshot = Cluster::new(nodes, [pod("a", json!({}))]).snapshot();
    let node = snapshot.nodes.get(cordon).unwrap();
    let mut cordons = Cordons::new(&snapshot.scheduling, &BTreeSet::new(), &[]);
    cordons.leave(snapshot.pods_of(&"n1".into()).to_vec());
    let found = cordons.cordon_if_room(&node.name, &[]).err();
    assert_eq!(found.map(|pod| pod.key.to_string()).as_deref(), stranded);
}
