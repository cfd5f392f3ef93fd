//! The cache against objects of every kind, and its indexes against what a walk over all pods would say.

mod placement;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodeward_api::DisruptionHold;
use nodeward_core::id::PodKey;
use nodeward_core::ledger::OwnerDisruptions;
use nodeward_runtime::Index;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::table::Store;
use super::*;
use crate::tests::fixture::{
    Cluster, NOW, at, budget, cordoned, merged, node, now, owner, parse, pod, volume, waiting,
};
use nodeward_scheduling::{NodeUsage, Resources};

fn names<'a>(pods: impl IntoIterator<Item = &'a Arc<PodFacts>>) -> BTreeSet<String> {
    pods.into_iter().map(|pod| pod.key.to_string()).collect()
}

fn web() -> BudgetKey {
    BudgetKey::new("shop", "web")
}

#[test]
fn pod_is_found_by_each_membership() {
    let cluster = Cluster::new([], [pod("a", json!({})), waiting("b", json!({}))]).budgets([budget("web", json!({}))]);
    let cache = cluster.cache();
    let both = BTreeSet::from(["shop/a".to_owned(), "shop/b".to_owned()]);
    assert_eq!(cache.pod("shop", "a").unwrap().uid.as_str(), "uid-a");
    assert_eq!(names(cache.read().pods.of_node("n1")), ["shop/a".to_owned()].into());
    assert_eq!(names(cache.read().pods.of_budget(&web())), both);
    let pod = cache.pod("shop", "b").unwrap();
    assert_eq!(cache.budgets_of(&pod)[0].view.key, web());
    assert_eq!(cache.pod("shop", "c"), None);
    assert_eq!(cache.pod("bank", "a"), None);
}

#[rstest]
#[case::covered_only_once_it_is_there(&[], budget("web", json!({})), &["shop/a"])]
#[case::no_longer_covered(&[budget("web", json!({}))], budget("web", json!({ "spec": { "selector": { "matchLabels": { "app": "db" } } } })), &[])]
#[case::of_another_namespace(&[], budget("web", json!({ "metadata": { "namespace": "bank" } })), &[])]
fn a_budget_covers_what_its_present_selector_selects(
    #[case] before: &[Value],
    #[case] after: Value,
    #[case] covered: &[&str],
) {
    let cache = Cluster::new([], [pod("a", json!({}))]).budgets(before.to_vec()).cache();
    cache.insert(&Cluster::default().budgets([after.clone()]).0);
    let key = BudgetKey::new(after["metadata"]["namespace"].as_str().unwrap(), "web");
    let covered: BTreeSet<String> = covered.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(names(cache.read().pods.of_budget(&key)), covered);
}

#[rstest]
#[case::healthy(json!({}), json!({}), true)]
#[case::not_ready(json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }), json!({}), false)]
#[case::terminating(json!({ "metadata": { "deletionTimestamp": "2026-01-01T11:59:00Z" } }), json!({}), false)]
#[case::evicted_and_not_seen_to_go_yet(json!({}), json!({ "a": "2026-01-01T11:58:01Z" }), false)]
#[case::evicted_2_min_ago(json!({}), json!({ "a": "2026-01-01T11:58:00Z" }), true)]
#[case::another_was_evicted(json!({}), json!({ "b": "2026-01-01T11:59:59Z" }), true)]
fn healthy_is_what_the_disruption_controller_counts(
    #[case] patch: Value,
    #[case] disrupted: Value,
    #[case] healthy: bool,
) {
    let budget = budget("web", json!({ "status": { "disruptedPods": disrupted } }));
    let facts = Cluster::new([], [pod("a", patch)])
        .budgets([budget])
        .cache()
        .budget_facts(&web(), now())
        .unwrap();
    assert_eq!(facts.healthy.iter().any(|uid| uid.as_str() == "uid-a"), healthy);
}

/// Pod `a` was created at noon, and claims may hold a disruption for a pod of that name.
#[rstest]
#[case::evicted_before_it_was_there("2026-01-01T11:59:59Z", None, json!({}), Some("2026-01-01T11:59:59Z"))]
#[case::made_again_within_the_second(NOW, Some("uid-before"), json!({}), Some(NOW))]
#[case::made_again_and_not_ready_yet(
    NOW, Some("uid-before"), json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }), Some(NOW)
)]
#[case::itself_within_the_second(NOW, Some("uid-a"), json!({}), Some("2026-01-01T12:00:30Z"))]
#[case::nobody_knows_which_one(NOW, None, json!({}), Some("2026-01-01T12:00:30Z"))]
#[case::evicted_and_never_deleted("2026-01-01T12:01:00Z", None, json!({}), Some("2026-01-01T12:01:30Z"))]
#[case::on_its_way_out("2026-01-01T12:01:00Z", None, json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:01:30Z" } }), None)]
#[case::not_ready_since("2026-01-01T12:01:00Z", None, json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }), None)]
fn entry_of_another_or_of_a_healthy_pod_is_stale(
    #[case] evicted: &str,
    #[case] held: Option<&str>,
    #[case] patch: Value,
    #[case] certain: Option<&str>,
) {
    let created = json!({ "metadata": { "creationTimestamp": NOW } });
    let holds = held.map(|uid| {
        json!({ "pdb": { "namespace": "shop", "name": "web", "uid": "uid-web" }, "pods": [{ "name": "a", "uid": uid }] })
    });
    let claim = json!({
        "ticket": 1, "node": "n1", "nodeUID": "uid-n1", "state": "Confirmed", "since": NOW, "queuedAt": NOW, "grant": 1,
        "holds": holds.into_iter().collect::<Vec<_>>(),
    });
    let snapshot = Cluster::new([node("n1", json!({}))], [pod("a", merged(created, patch))])
        .budgets([budget(
            "web",
            json!({ "status": { "disruptedPods": { "a": evicted } } }),
        )])
        .ledger(json!({ "nextTicket": 2, "claims": [claim] }))
        .snapshot();
    let stale = snapshot.stale_entries.get(&web()).and_then(|stale| stale.get("a"));
    assert_eq!(stale.copied(), certain.map(at));
}

#[test]
fn pods_that_several_budgets_select_are_known() {
    let other = budget(
        "other",
        json!({ "spec": { "selector": { "matchLabels": { "tier": "front" } } } }),
    );
    let pods = [
        pod("a", json!({ "metadata": { "labels": { "tier": "front" } } })),
        pod("b", json!({})),
    ];
    let cache = Cluster::new([], pods)
        .budgets([budget("web", json!({})), other.clone()])
        .cache();
    let several = || cache.budget_facts(&web(), now()).unwrap().several;
    assert_eq!(several(), BTreeSet::from(["uid-a".into()]));
    // The other budget lets go of it.
    let narrower = merged(
        other,
        json!({ "spec": { "selector": { "matchLabels": { "app": "none" } } } }),
    );
    cache.insert(&Cluster::default().budgets([narrower]).0);
    assert_eq!(several(), BTreeSet::new());
}

#[rstest]
#[case::current(json!({}), true)]
#[case::behind(json!({ "metadata": { "generation": 2 } }), false)]
fn budget_status_counts_only_for_present_spec(#[case] patch: Value, #[case] current: bool) {
    let facts = Cluster::default()
        .budgets([budget("web", patch)])
        .cache()
        .budget_facts(&web(), now())
        .unwrap();
    assert_eq!(facts.current, current);
    assert_eq!(
        (facts.disruptions_allowed, facts.desired_healthy, facts.expected_pods),
        (1, 2, 3)
    );
    assert_eq!(&*facts.uid, "uid-web");
}

fn hold(name: &str, patch: Value) -> DisruptionHold {
    parse(merged(
        json!({
            "metadata": { "namespace": "shop", "name": name }, "spec": { "pdbRef": "web", "reason": "rebalancing" },
        }),
        patch,
    ))
}

#[rstest]
#[case::none(json!({}), vec![], None)]
#[case::the_short_form(json!({ "metadata": { "annotations": { "nodeward.dev/hold": "upgrade" } } }), vec![], Some(OwnerDisruptions::All))]
#[case::the_short_form_that_has_ended(
    json!({ "metadata": { "annotations": { "nodeward.dev/hold": "upgrade", "nodeward.dev/hold-until": "2026-01-01T12:00:00Z" } } }), vec![], None
)]
#[case::all(json!({}), vec![hold("h", json!({}))], Some(OwnerDisruptions::All))]
#[case::some(json!({}), vec![hold("h", json!({ "spec": { "disruptions": 2 } }))], Some(OwnerDisruptions::Some(2)))]
#[case::several_add_up(
    json!({}), vec![hold("h", json!({ "spec": { "disruptions": 2 } })), hold("i", json!({ "spec": { "disruptions": 1 } }))], Some(OwnerDisruptions::Some(3))
)]
#[case::all_and_some(
    json!({}), vec![hold("h", json!({ "spec": { "disruptions": 2 } })), hold("i", json!({}))], Some(OwnerDisruptions::All)
)]
#[case::negative_is_none(json!({}), vec![hold("h", json!({ "spec": { "disruptions": -2 } }))], Some(OwnerDisruptions::Some(0)))]
#[case::expired(json!({}), vec![hold("h", json!({ "spec": { "expiresAt": "2026-01-01T12:00:00Z" } }))], None)]
#[case::not_yet(json!({}), vec![hold("h", json!({ "spec": { "expiresAt": "2026-01-01T12:00:01Z" } }))], Some(OwnerDisruptions::All))]
#[case::capped_by_policy(
    json!({}),
    vec![hold("h", json!({ "spec": { "expiresAt": "2026-01-01T13:00:00Z" }, "status": { "effectiveUntil": "2026-01-01T11:00:00Z" } }))],
    None
)]
#[case::released_by_an_administrator(
    json!({}), vec![hold("h", json!({ "metadata": { "annotations": { "nodeward.dev/release": "bob: upgrade" } } }))], None
)]
#[case::released_by_nobody_for_no_reason(
    json!({}), vec![hold("h", json!({ "metadata": { "annotations": { "nodeward.dev/release": " " } } }))], Some(OwnerDisruptions::All)
)]
#[case::of_another_budget(json!({}), vec![hold("h", json!({ "spec": { "pdbRef": "db" } }))], None)]
#[case::of_another_namespace(json!({}), vec![hold("h", json!({ "metadata": { "namespace": "bank" } }))], None)]
fn what_an_owner_keeps_for_himself(
    #[case] patch: Value,
    #[case] holds: Vec<DisruptionHold>,
    #[case] expected: Option<OwnerDisruptions>,
) {
    let mut cluster = Cluster::default().budgets([budget("web", patch)]);
    cluster.0.holds = holds;
    let facts = cluster.cache().budget_facts(&web(), now()).unwrap();
    assert_eq!(facts.owner_disruptions, expected);
}

#[test]
fn siblings_share_what_they_have_in_common() {
    let tolerations = json!({ "spec": { "tolerations": [{ "key": "a", "operator": "Exists" }] } });
    let cache = Cluster::new([], [pod("a", tolerations.clone()), pod("b", tolerations)]).cache();
    let (a, b) = (cache.pod("shop", "a").unwrap(), cache.pod("shop", "b").unwrap());
    assert!(Arc::ptr_eq(&a.labels, &b.labels));
    assert!(Arc::ptr_eq(&a.requirements, &b.requirements));
    assert!(Arc::ptr_eq(a.owner.as_ref().unwrap(), b.owner.as_ref().unwrap()));
    assert!(Arc::ptr_eq(&a.key.namespace, &b.key.namespace));
    // A hundred and fifty thousand of them are kept. With its counters, glibc gives each a chunk of 272 bytes.
    assert!(size_of::<PodFacts>() <= 248, "{}", size_of::<PodFacts>());
}

#[test]
fn daemons_share_too_though_each_names_its_node() {
    let daemon = |name: &str, on: &str| {
        let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [on] }] },
        ] } } });
        let owners = json!([owner("apps/v1", "DaemonSet", "d")]);
        pod(
            name,
            json!({ "metadata": { "ownerReferences": owners }, "spec": { "nodeName": on, "affinity": affinity } }),
        )
    };
    let cache = Cluster::new([], [daemon("a", "n1"), daemon("b", "n2")]).cache();
    let (a, b) = (cache.pod("shop", "a").unwrap(), cache.pod("shop", "b").unwrap());
    assert!(Arc::ptr_eq(&a.requirements, &b.requirements));
    assert_eq!(a.requirements.requests.cpu, 1000);
}

#[rstest]
#[case::pod(json!({}))]
#[case::pod_without_namespace(json!({ "metadata": { "name": "a" } }))]
#[case::pod_without_anything(json!({ "metadata": { "namespace": "shop", "name": "a" } }))]
#[case::pod_of_nonsense(json!({
    "metadata": {
        "namespace": "", "name": "", "labels": { "": "" }, "ownerReferences": [{ "apiVersion": "", "kind": "", "name": "", "uid": "", "controller": true }],
        "deletionTimestamp": "0001-01-01T00:00:00Z",
    },
    "spec": {
        "nodeName": "", "containers": [{ "name": "", "ports": [{ "containerPort": -1, "hostPort": -5 }], "resources": { "requests": { "": "x", "cpu": "-1", "pods": "9e99" } } }],
        "tolerations": [{ "operator": "?" }], "volumes": [{ "name": "" }],
        "topologySpreadConstraints": [{ "maxSkew": -1, "topologyKey": "", "whenUnsatisfiable": "DoNotSchedule", "minDomains": -3 }],
        "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
            { "topologyKey": "", "labelSelector": { "matchExpressions": [{ "key": "", "operator": "?" }] } },
        ] } },
    },
    "status": { "phase": "?", "conditions": [{ "type": "", "status": "" }], "containerStatuses": [] },
}))]
fn no_object_makes_the_world_panic(#[case] object: Value) {
    let mut objects = Objects {
        pods: vec![parse(object.clone())],
        nodes: vec![parse(node("n1", json!({})))],
        ..Objects::default()
    };
    let metadata = json!({ "metadata": object["metadata"].clone() });
    if !object["metadata"].is_null() {
        objects.nodes.push(parse(metadata.clone()));
        objects.budgets.push(parse(metadata.clone()));
        objects.volumes.push(parse(metadata.clone()));
        objects.leases.push(parse(metadata));
    }
    let cache = ClusterCache::fixed(&objects);
    let scope = SnapshotScope {
        nodes: ["n1".into(), "".into()].into(),
        ..SnapshotScope::default()
    };
    let snapshot = cache.snapshot(&scope, now()).unwrap();
    let mut placement = nodeward_scheduling::Placement::new(&snapshot.scheduling);
    for pod in snapshot.pods.values().flatten() {
        let _ = placement.place(pod, None);
    }
}

/// What is no longer so has to be taken back, also when no drain needs the budget any more.
#[rstest]
#[case::held(json!({ "nodeward.dev/hold": "true" }), true)]
#[case::no_longer_held(json!({ "nodeward.dev/hold-until": "2026-01-01T00:00:00Z" }), true)]
#[case::locked(json!({ "nodeward.dev/locked-by": "n1" }), true)]
#[case::of_others(json!({ "example.com/locked-by": "n1" }), false)]
fn annotated_budgets_are_those_with_annotations_of_ours(#[case] annotations: Value, #[case] expected: bool) {
    let web = budget("web", json!({ "metadata": { "annotations": annotations } }));
    let annotated = Cluster::new([], []).budgets([web]).cache().annotated_budgets();
    assert_eq!(!annotated.is_empty(), expected);
}

#[test]
fn a_node_is_projected_to_what_decisions_read() {
    let patch = json!({
        "metadata": { "annotations": { "nodeward.dev/cordoned-by": "drain-uid" } },
        "spec": { "unschedulable": true, "taints": [{ "key": "k", "value": "v", "effect": "NoExecute" }] },
        "status": { "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" },
            { "type": "DrainInProgress", "status": "True", "reason": "R", "message": "M" },
        ] },
    });
    let node = project_node(&parse(node("n1", patch))).unwrap();
    assert_eq!((node.name.as_str(), node.uid.as_str()), ("n1", "uid-n1"));
    assert!(node.ready && node.is_cordoned() && node.is_cordoned_by_us());
    assert_eq!(node.ready_since, Some(at("2026-01-01T00:00:00Z")));
    assert_eq!((&*node.boot_id, &*node.machine_id), ("boot-1", "machine"));
    assert_eq!(
        (node.allocatable.cpu, node.allocatable.memory, node.allocatable.pods),
        (4000, 8 << 30, 10)
    );
    assert_eq!(&*node.condition("DrainInProgress").unwrap().reason, "R");
    assert!(node.taint("k", None).is_some());
}

#[rstest]
#[case::annotation_alone(json!({ "metadata": { "annotations": { "nodeward.dev/cordoned-by": "u" } } }), false, false)]
#[case::cordoned_by_another(json!({ "spec": { "unschedulable": true } }), true, false)]
#[case::by_us(json!({ "metadata": { "annotations": { "nodeward.dev/cordoned-by": "u" } }, "spec": { "unschedulable": true } }), true, true)]
fn a_cordon_is_ours_only_if_we_recorded_it(#[case] patch: Value, #[case] cordoned: bool, #[case] ours: bool) {
    let node = project_node(&parse(node("n1", patch))).unwrap();
    assert_eq!((node.is_cordoned(), node.is_cordoned_by_us()), (cordoned, ours));
}

#[test]
fn a_claims_volume_follows_its_binding() {
    let claims = json!({ "spec": { "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }] } });
    let cluster = Cluster::new([cordoned("n1")], [pod("a", claims)]).volumes([volume("old", "data", &["n1"])]);
    let cache = cluster.cache();
    let reached = || {
        let scope = SnapshotScope {
            nodes: ["n1".into()].into(),
            ..SnapshotScope::default()
        };
        let snapshot = cache.snapshot(&scope, now()).unwrap();
        let nodes = ["n1", "n2"].into_iter().filter(|name| {
            let hostname = json!({ "metadata": { "labels": { "kubernetes.io/hostname": name } } });
            let node = project_node(&parse(node(name, hostname))).unwrap();
            snapshot
                .scheduling
                .volumes_of(snapshot.pod("a"))
                .all(|volume| volume.accepts(&node))
        });
        nodes.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(reached(), "n1");
    // The claim is bound to another volume, and only then the old one goes.
    cache.insert(&Cluster::default().volumes([volume("new", "data", &["n2"])]).0);
    assert_eq!(reached(), "n2");
    let released = merged(
        volume("old", "data", &["n1"]),
        json!({ "status": { "phase": "Released" } }),
    );
    cache.insert(&Cluster::default().volumes([released]).0);
    assert_eq!(reached(), "n2");
    let unbound = merged(volume("new", "data", &["n2"]), json!({ "spec": { "claimRef": null } }));
    cache.insert(&Cluster::default().volumes([unbound]).0);
    assert_eq!(reached(), "n1 n2");
}

#[test]
fn snapshot_holds_nodes_and_pods_of_claims() {
    let claim = json!({
        "ticket": 1, "node": "n2", "nodeUID": "uid-n2", "state": "Waiting", "since": "2026-01-01T11:00:00Z", "queuedAt": "2026-01-01T11:00:00Z",
        "needs": [{ "pdb": { "namespace": "shop", "name": "db", "uid": "uid-db" }, "pods": [{ "name": "c", "uid": "uid-c" }] }],
        "holds": [{ "pdb": { "namespace": "shop", "name": "db", "uid": "uid-db" }, "pods": [{ "name": "far", "uid": "uid-far" }] }],
    });
    let pods = [
        pod("a", json!({ "spec": { "nodeName": "n2" } })),
        pod("far", json!({ "spec": { "nodeName": "n3" } })),
        pod("other", json!({ "spec": { "nodeName": "n3" } })),
    ];
    let nodes = ["n1", "n2", "n3"].map(|name| node(name, json!({})));
    let cluster = Cluster::new(nodes, pods)
        .budgets([
            budget("web", json!({})),
            budget(
                "db",
                json!({ "spec": { "selector": { "matchLabels": { "app": "db" } } } }),
            ),
        ])
        .ledger(json!({ "claims": [claim] }));
    let snapshot = cluster.snapshot();
    let scope: Vec<&str> = snapshot.pods.keys().map(nodeward_core::id::NodeName::as_str).collect();
    assert_eq!(scope, ["n1", "n2"]);
    assert_eq!(names(snapshot.held.values()), ["shop/far".to_owned()].into());
    assert_eq!(snapshot.budgets_of(snapshot.pod("a")), [web()]);
    let facts: Vec<String> = snapshot.facts.keys().map(ToString::to_string).collect();
    assert_eq!(facts, ["shop/db", "shop/web"]);
    assert_eq!(snapshot.nodes.len(), 3);
}

#[test]
fn volume_deleted_after_relist_ties_no_pod() {
    let objects = Cluster::default().volumes([volume("pv", "data", &["n1"])]).0;
    let cache = ClusterCache::fixed(&objects);
    cache.insert(&objects);
    Index::deleted(&mut index_handler::volumes(&cache.index), objects.volumes[0].clone());
    assert!(cache.read().volumes_by_claim.is_empty());
}

#[tokio::test]
async fn a_world_that_has_not_been_listed_decides_nothing() {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = Client::try_from(config).unwrap();
    let cache = ClusterCache::watch(&Watches::detached(), &client, &Watched::default());
    assert!(!cache.is_fresh());
    assert!(cache.snapshot(&SnapshotScope::default(), now()).is_none());
}

/// What a watch may tell about pods.
#[derive(Debug, Clone)]
enum Told {
    ListBegan,
    ListEnded,
    Put(Value),
    Deleted(String),
    Budget(Value),
    BudgetDeleted(String),
}

fn any_pod() -> impl Strategy<Value = Value> {
    (0..6_usize, 0..3_usize, 0..3_usize, 0..4_usize, 1..4_i64).prop_map(|(name, on, app, state, cpu)| {
        let on = [Some("n1"), Some("n2"), None][on];
        let phase = ["Running", "Pending", "Succeeded", "Running"][state];
        let terminating = (state == 3).then_some("2026-01-01T12:00:00Z");
        let app = ["web", "db", "both"][app];
        let apart = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
            { "topologyKey": "kubernetes.io/hostname", "namespaceSelector": {}, "labelSelector": {} },
        ] } });
        pod(
            &format!("p{name}"),
            json!({
                "metadata": {
                    "labels": { "app": app }, "deletionTimestamp": terminating, "ownerReferences": [owner("apps/v1", "ReplicaSet", app)],
                },
                "spec": {
                    "nodeName": on, "affinity": (app == "db").then_some(apart),
                    "containers": [{ "name": "c", "ports": [{ "containerPort": 1, "hostPort": cpu }], "resources": { "requests": { "cpu": cpu.to_string(), "example.com/gpu": (cpu - 1).to_string() } } }],
                },
                "status": { "phase": phase },
            }),
        )
    })
}

fn any_told() -> impl Strategy<Value = Told> {
    let selector = prop::sample::select(vec![
        json!({ "matchLabels": { "app": "web" } }),
        json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["db", "both"] }] }),
        json!({}),
    ]);
    prop_oneof![
        1 => Just(Told::ListBegan),
        1 => Just(Told::ListEnded),
        8 => any_pod().prop_map(Told::Put),
        3 => (0..6_usize).prop_map(|name| Told::Deleted(format!("p{name}"))),
        2 => (0..3_usize, selector).prop_map(|(name, selector)| {
            Told::Budget(budget(&format!("b{name}"), json!({ "spec": { "selector": selector } })))
        }),
        1 => (0..3_usize).prop_map(|name| Told::BudgetDeleted(format!("b{name}"))),
    ]
}

proptest! {
    /// Every index says at any time what a walk over all pods would say.
    #[test]
    fn indexes_agree_with_a_walk_over_all_pods(told in prop::collection::vec(any_told(), 0..60)) {
        let index = SharedIndex::default();
        let mut pods = index_handler::pods(&index);
        let mut budgets = index_handler::budgets(&index);
        let mut model: BTreeMap<String, PodFacts> = BTreeMap::new();
        let mut selectors: BTreeMap<String, nodeward_core::selector::Selector> = BTreeMap::new();
        let mut named: Option<BTreeSet<String>> = None;
        let meta = |name: &str| ObjectMeta { namespace: Some("shop".to_owned()), name: Some(name.to_owned()), ..ObjectMeta::default() };
        for step in told {
            match step {
                Told::ListBegan => {
                    Index::<Pod>::list_began(&mut pods);
                    named = Some(BTreeSet::new());
                }
                Told::ListEnded => {
                    // An end without a beginning does not occur.
                    if let Some(named) = named.take() {
                        Index::<Pod>::list_ended(&mut pods);
                        model.retain(|name, _| named.contains(name));
                    }
                }
                Told::Put(object) => {
                    let object: Pod = parse(object);
                    let facts = PodFacts::project(&object).unwrap();
                    if let Some(named) = &mut named {
                        named.insert(facts.key.name.to_string());
                        Index::<Pod>::listed(&mut pods, object);
                        model.insert(facts.key.name.to_string(), facts);
                    } else {
                        let changed = Index::<Pod>::applied(&mut pods, object);
                        let before = model.insert(facts.key.name.to_string(), facts.clone());
                        prop_assert_eq!(changed, before.as_ref() != Some(&facts));
                    }
                }
                Told::Deleted(name) => {
                    // While a list is under way the watch tells nothing else.
                    if named.is_none() {
                        let object = Pod { metadata: meta(&name), ..Pod::default() };
                        let changed = Index::<Pod>::deleted(&mut pods, object);
                        prop_assert_eq!(changed, model.remove(&name).is_some());
                    }
                }
                Told::Budget(object) => {
                    let object: PodDisruptionBudget = parse(object);
                    let entry = project_budget(&object).unwrap();
                    selectors.insert(entry.view.key.name.to_string(), entry.view.selector.clone());
                    budgets.put(&object);
                }
                Told::BudgetDeleted(name) => {
                    Index::deleted(&mut budgets, PodDisruptionBudget { metadata: meta(&name), ..PodDisruptionBudget::default() });
                    selectors.remove(&name);
                }
            }
            let index = index.read();
            let chosen = |wanted: &dyn Fn(&PodFacts) -> bool| -> BTreeSet<String> {
                model.values().filter(|pod| wanted(pod)).map(|pod| pod.key.to_string()).collect()
            };
            prop_assert_eq!(index.pods.len(), model.len());
            prop_assert_eq!(names(index.pods.all()), chosen(&|_| true));
            prop_assert_eq!(names(index.pods.awaiting()), chosen(&PodFacts::awaits_a_node));
            prop_assert_eq!(
                names(index.pods.repelling_far()),
                chosen(&|pod| !pod.requirements.anti_affinity.is_empty() && !pod.is_finished())
            );
            for on in ["n1", "n2"] {
                let is_on = |pod: &PodFacts| pod.node.as_ref().is_some_and(|node| node.as_str() == on);
                prop_assert_eq!(names(index.pods.of_node(on)), chosen(&is_on));
                let mut expected = NodeUsage::default();
                for pod in model.values().filter(|pod| is_on(pod) && !pod.is_finished()) {
                    expected.requests += &pod.requirements.requests;
                    expected.host_ports.extend(pod.requirements.host_ports.iter().cloned());
                }
                let mut load = NodeUsage::clone(&index.pods.usage_of(on));
                load.host_ports.sort();
                expected.host_ports.sort();
                prop_assert_eq!(load, expected);
            }
            for (name, selector) in &selectors {
                let key = BudgetKey::new("shop", name.as_str());
                prop_assert_eq!(
                    names(index.pods.of_budget(&key)),
                    chosen(&|pod| selector.matches(&pod.labels))
                );
            }
            for pod in model.values() {
                let matching = selectors.values().filter(|selector| selector.matches(&pod.labels)).count();
                prop_assert_eq!(index.pods.budgets_of(pod).count(), matching);
                prop_assert_eq!(index.pods.has_several_budgets(&pod.key), matching > 1);
            }
        }
    }
}

#[test]
fn a_node_whose_pods_are_gone_carries_nothing() {
    let cache = Cluster::new([], [pod("a", json!({}))]).cache();
    assert_ne!(cache.read().pods.usage_of("n1").requests, Resources::default());
    cache.index.write().pods.remove(&PodKey::new("shop", "a"));
    assert_eq!(*cache.read().pods.usage_of("n1"), NodeUsage::default());
    assert_eq!(cache.read().pods.len(), 0);
}

/// Where nobody lets us read the leases of nodes, nobody uses them. An API server that restarts says the same for a moment.
#[rstest]
#[case::not_listed_yet(KindState::Syncing, None, false)]
#[case::listed(KindState::Synced(()), Some(0), false)]
#[case::never_let_in(forbidden(), None, true)]
#[case::refused_for_a_moment(forbidden(), Some(30), false)]
#[case::shut_out_since_long(forbidden(), Some(300), true)]
#[case::cut_off_is_not_shut_out(KindState::Synced(()), Some(900), false)]
fn right_is_missing_only_after_lasting_refusal(
    #[case] state: KindState,
    #[case] silent_for: Option<u64>,
    #[case] expected: bool,
) {
    assert_eq!(is_shut_out(&state, silent_for.map(Duration::from_secs)), expected);
}

fn forbidden() -> KindState {
    KindState::Forbidden("leases is forbidden".into())
}
