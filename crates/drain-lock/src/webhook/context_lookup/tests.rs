use nodeward_core::id::PodKey;
use nodeward_core::opt_out::OptOut;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::decide::{Admission, Caller, Decision, Drainer, EvictionRequest, LookupResult, decide};
use super::super::planning_timeout;
use super::super::review::User;
use super::*;
use crate::config::Config;
use crate::tests::fixture::{Cluster, budget, cordoned, merged, node, now, owner, pod, waiting};

fn policy(config: Value) -> Policy {
    Policy::from_config(serde_json::from_value::<Config>(config).unwrap()).unwrap()
}

fn review() -> EvictionReview {
    EvictionReview {
        uid: "r1".to_owned(),
        user: User {
            name: "alice".to_owned(),
            ..User::default()
        },
        pod: PodKey::new("shop", "a"),
        pod_uid: None,
        dry_run: false,
        ticket: None,
        unknown_fields: 0,
    }
}

/// What is seen of the pod `shop/a`.
fn seen(cluster: &Cluster, config: Value) -> EvictionContext {
    match ContextLookup::new(cluster.cache()).look_up(&review(), &policy(config), now(), Instant::now()) {
        LookupResult::Found(context) => *context,
        other => panic!("{other:?}"),
    }
}

fn of(node: Value, pod: Value) -> EvictionContext {
    seen(&Cluster::new([node], [pod]), json!({}))
}

#[rstest]
#[case::ready(pod("a", json!({})), PodState::Counts)]
#[case::unready(pod("a", json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } })), PodState::Unready)]
#[case::pending(waiting("a", json!({})), PodState::SkipsBudgets)]
#[case::bound_and_pending(pod("a", json!({ "status": { "phase": "Pending", "conditions": null } })), PodState::Pending)]
#[case::finished(pod("a", json!({ "status": { "phase": "Succeeded" } })), PodState::SkipsBudgets)]
#[case::failed(pod("a", json!({ "status": { "phase": "Failed" } })), PodState::SkipsBudgets)]
#[case::terminating(pod("a", json!({ "metadata": { "deletionTimestamp": "2026-01-01T11:59:00Z" } })), PodState::SkipsBudgets)]
#[case::mirror(pod("a", json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "x" } } })), PodState::Mirror)]
fn pod_facts_match_the_eviction_api(#[case] pod: Value, #[case] state: PodState) {
    assert_eq!(of(node("n1", json!({})), pod).state, state);
}

fn tainted(key: &str) -> Value {
    node(
        "n1",
        json!({ "spec": { "taints": [{ "key": key, "effect": "NoSchedule" }] } }),
    )
}

#[rstest]
#[case::runs(node("n1", json!({})), false)]
#[case::cordoned(cordoned("n1"), true)]
#[case::by_karpenter(tainted("karpenter.sh/disrupted"), true)]
#[case::by_the_autoscaler(tainted("ToBeDeletedByClusterAutoscaler"), true)]
#[case::perhaps_by_the_autoscaler_later(tainted("DeletionCandidateOfClusterAutoscaler"), false)]
#[case::out_of_memory(tainted("node.kubernetes.io/memory-pressure"), false)]
fn emptied_node_is_known_by_its_markers(#[case] node: Value, #[case] is_emptied: bool) {
    let node = of(node, pod("a", json!({}))).node.unwrap();
    assert_eq!((node.cordoned, node.takes_drainers()), (is_emptied, is_emptied));
}

#[rstest]
#[case::default(json!({}), true)]
#[case::off(json!({ "auto": { "enabled": false } }), false)]
#[case::selected(json!({ "nodeSelector": { "topology.kubernetes.io/zone": "z1" } }), true)]
#[case::not_selected(json!({ "nodeSelector": { "topology.kubernetes.io/zone": "z2" } }), false)]
fn auto_mode_concerns_the_nodes_that_the_configuration_selects(#[case] config: Value, #[case] asks: bool) {
    let cluster = Cluster::new([cordoned("n1")], [pod("a", json!({}))]);
    assert_eq!(seen(&cluster, config).node.unwrap().takes_drainers(), asks);
}

#[test]
fn daemon_set_pod_requests_no_drain() {
    let daemon = json!({ "metadata": { "ownerReferences": [owner("apps/v1", "DaemonSet", "web")] } });
    let node = of(cordoned("n1"), pod("a", daemon)).node.unwrap();
    assert!(node.cordoned && !node.takes_drainers());
}

#[rstest]
#[case::nobody_asked(None, false)]
#[case::somebody(Some(json!({})), true)]
#[case::before_its_node_is_known(Some(json!({ "spec": { "nodeUID": null } })), true)]
#[case::preview(Some(json!({ "spec": { "dryRun": true } })), false)]
#[case::over(Some(json!({ "metadata": { "deletionTimestamp": "2026-01-01T11:59:00Z" } })), false)]
#[case::of_a_node_before(Some(json!({ "spec": { "nodeUID": "uid-before" } })), false)]
fn drain_that_goes_on_is_seen(#[case] patch: Option<Value>, #[case] has_drain: bool) {
    let drain = json!({ "metadata": { "name": "n1", "uid": "d" }, "spec": { "nodeName": "n1", "nodeUID": "uid-n1" } });
    let cluster = Cluster::new([cordoned("n1")], [pod("a", json!({}))]).drains(patch.map(|patch| merged(drain, patch)));
    assert_eq!(seen(&cluster, json!({})).node.unwrap().has_drain, has_drain);
}

/// Whoever drains nothing waits for no plan, and must not use up the patience of the next drainer.
#[test]
fn planning_times_out_only_for_who_waits() {
    let lookup = ContextLookup::new(Cluster::new([cordoned("n1")], [pod("a", json!({}))]).cache());
    let timed_out = |instant| {
        let found = lookup.look_up(&review(), &policy(json!({})), now(), instant);
        found.context().unwrap().node.as_ref().unwrap().planning_timed_out
    };
    let (began, later) = (Instant::now(), Instant::now() + planning_timeout::LIMIT);
    assert!(!timed_out(began) && !timed_out(later));
    lookup.await_plan(&"uid-n1".into(), later);
    assert!(!timed_out(later));
    assert!(timed_out(later + planning_timeout::LIMIT));
}

#[rstest]
#[case::none(vec![], "nothing")]
#[case::one(vec![budget("web", json!({}))], "one")]
#[case::several(vec![budget("web", json!({})), budget("too", json!({}))], "several")]
#[case::of_another_namespace(vec![budget("web", json!({ "metadata": { "namespace": "bank" } }))], "nothing")]
#[case::several_of_which_ceph_closes_one(vec![budget("web", json!({})), budget("too", json!({
    "metadata": { "labels": { "app.kubernetes.io/managed-by": "nodeward-ceph-pdb" } }, "spec": { "maxUnavailable": 0 },
}))], "one")]
fn pod_budgets_are_the_selecting_ones(#[case] budgets: Vec<Value>, #[case] expected: &str) {
    let cluster = Cluster::new([node("n1", json!({}))], [pod("a", json!({}))]).budgets(budgets);
    let found = match seen(&cluster, json!({})).budgets {
        MatchingBudgets::None => "nothing",
        MatchingBudgets::One(_) => "one",
        MatchingBudgets::Several => "several",
    };
    assert_eq!(found, expected);
}

#[rstest]
#[case::skip(json!({ "labels": { "nodeward.dev/drain": "skip" } }), Some(OptOut::Skip))]
#[case::finish(json!({ "labels": { "nodeward.dev/drain": "wait-completed" } }), Some(OptOut::WaitCompleted))]
#[case::by_cluster_api(json!({ "labels": { "cluster.x-k8s.io/drain": "skip" } }), Some(OptOut::Skip))]
#[case::by_karpenter(json!({ "annotations": { "karpenter.sh/do-not-disrupt": "true" } }), Some(OptOut::WaitCompleted))]
#[case::by_karpenter_for_a_time(
    json!({ "annotations": { "karpenter.sh/do-not-disrupt": "4h" } }), Some(OptOut::WaitCompleted)
)]
#[case::no_mark(json!({}), None)]
fn opt_out_is_read_from_label_or_annotation(#[case] metadata: Value, #[case] opted_out: Option<OptOut>) {
    let context = of(node("n1", json!({})), pod("a", json!({ "metadata": metadata })));
    assert_eq!(context.opted_out, opted_out);
}

#[test]
fn a_pod_of_another_uid_is_another_pod() {
    let lookup = ContextLookup::new(Cluster::new([], [pod("a", json!({}))]).cache());
    let look = |uid: Option<&str>| {
        let review = EvictionReview {
            pod_uid: uid.map(Into::into),
            ..review()
        };
        lookup.look_up(&review, &policy(json!({})), now(), Instant::now())
    };
    assert!(matches!(look(None), LookupResult::Found(_)));
    assert!(matches!(look(Some("uid-a")), LookupResult::Found(_)));
    assert!(matches!(look(Some("uid-b")), LookupResult::UnknownPod));
}

/// Whether an eviction of `shop/a` from `n1` is answered at once.
async fn is_answered_at_once(cluster: &Cluster) -> bool {
    let began = time::Instant::now();
    let lookup = ContextLookup::new(cluster.cache());
    lookup.await_cordon(&review(), &policy(json!({})), now()).await;
    began.elapsed().is_zero()
}

fn of_budget(node: Value, allowed: i32) -> Cluster {
    let budget = budget("web", json!({ "status": { "disruptionsAllowed": allowed } }));
    Cluster::new([node], [pod("a", json!({}))]).budgets([budget])
}

/// The node has a claim in this state.
fn with_claim(state: &str) -> Cluster {
    of_budget(node("n1", json!({})), 1).ledger(json!({ "nextTicket": 2, "claims": [{
        "ticket": 1, "node": "n1", "nodeUID": "uid-n1", "state": state, "since": "2026-01-01T11:59:00Z",
        "queuedAt": "2026-01-01T11:59:00Z", "grant": 0, "bootID": "", "foreignCordon": false, "needs": [], "holds": [],
    }] }))
}

#[rstest]
#[case::the_last_disruption(of_budget(node("n1", json!({})), 1), false)]
#[case::one_of_many(of_budget(node("n1", json!({})), 2), true)]
#[case::no_disruption(of_budget(node("n1", json!({})), 0), true)]
#[case::no_budget(Cluster::new([node("n1", json!({}))], [pod("a", json!({}))]), true)]
#[case::cordoned_already(of_budget(cordoned("n1"), 1), true)]
#[case::of_a_drain(with_claim("Waiting"), true)]
#[case::of_what_a_drain_has_left(with_claim("Returning"), false)]
#[tokio::test(start_paused = true)]
async fn only_eviction_of_last_disruption_awaits_cordon(#[case] cluster: Cluster, #[case] at_once: bool) {
    assert_eq!(is_answered_at_once(&cluster).await, at_once);
}

#[tokio::test(start_paused = true)]
async fn early_eviction_is_judged_with_late_cordon() {
    let cache = of_budget(node("n1", json!({})), 1).cache();
    let lookup = ContextLookup::new(Arc::clone(&cache));
    let (began, policy, review) = (time::Instant::now(), policy(json!({})), review());
    let shown = async {
        time::sleep(Duration::from_millis(30)).await;
        cache.insert(&Cluster::new([cordoned("n1")], []).0);
    };
    tokio::join!(lookup.await_cordon(&review, &policy, now()), shown);
    assert!(began.elapsed() < CORDON_SHOWS_WITHIN);
    let LookupResult::Found(context) = lookup.look_up(&review, &policy, now(), Instant::now()) else {
        panic!("unseen");
    };
    assert!(context.node.unwrap().takes_drainers());
}

#[tokio::test(start_paused = true)]
async fn no_flood_of_evictions_makes_all_of_them_wait() {
    let lookup = ContextLookup::new(of_budget(node("n1", json!({})), 1).cache());
    let _all = lookup
        .waiting
        .acquire_many(u32::try_from(WAIT_AT_ONCE).unwrap())
        .await
        .unwrap();
    let began = time::Instant::now();
    lookup.await_cordon(&review(), &policy(json!({})), now()).await;
    assert!(began.elapsed().is_zero());
}

/// Two nodes are drained by others under a budget that spares two disruptions: `n2` has one of them, and `n1`, which comes after
/// it, needs two for pods that are tied to it. Its third pod finds room on `n3`.
fn two_drains() -> Cluster {
    let tied = |name: &str| {
        pod(
            name,
            json!({ "spec": { "nodeSelector": { "kubernetes.io/hostname": "n1" } } }),
        )
    };
    let stays = pod(
        "s",
        json!({ "metadata": { "labels": { "nodeward.dev/drain": "skip" } } }),
    );
    let elsewhere = |name: &str, node: &str| pod(name, json!({ "spec": { "nodeName": node } }));
    let pods = [
        tied("h1"),
        tied("h2"),
        stays,
        pod("m", json!({})),
        elsewhere("g", "n2"),
        elsewhere("x", "n3"),
    ];
    let status = json!({ "disruptionsAllowed": 2, "currentHealthy": 6, "desiredHealthy": 4, "expectedPods": 6 });
    let disruptions = |pods: &[&str]| {
        let pods: Vec<Value> = pods
            .iter()
            .map(|pod| json!({ "name": pod, "uid": format!("uid-{pod}") }))
            .collect();
        json!([{ "pdb": { "namespace": "shop", "name": "web", "uid": "uid-web" }, "pods": pods }])
    };
    let claim = |ticket: u32, node: &str, state: &str, needs: Value, holds: Value| {
        json!({
            "ticket": ticket, "node": node, "nodeUID": format!("uid-{node}"), "state": state, "since": "2026-01-01T11:59:00Z",
            "queuedAt": "2026-01-01T11:59:00Z", "grant": 1, "foreignCordon": true, "needs": needs, "holds": holds,
        })
    };
    let drain = |node: &str| {
        json!({
            "metadata": { "name": node, "uid": format!("uid-of-{node}") },
            "spec": { "nodeName": node, "nodeUID": format!("uid-{node}"), "evict": "Requester" },
        })
    };
    Cluster::new([cordoned("n1"), cordoned("n2"), node("n3", json!({}))], pods)
        .budgets([budget("web", json!({ "status": status }))])
        .drains([drain("n1"), drain("n2")])
        .ledger(json!({ "nextTicket": 3, "claims": [
            claim(1, "n2", "Confirmed", json!([]), disruptions(&["g"])),
            claim(2, "n1", "Waiting", disruptions(&["h1", "h2", "s"]), json!([])),
        ] }))
}

/// What somebody else's eviction of a pod is told.
async fn told(lookup: &ContextLookup, name: &str) -> Decision {
    let review = EvictionReview {
        pod: PodKey::new("shop", name),
        ..review()
    };
    lookup.classify_pods(&review, &policy(json!({})), now()).await;
    let found = lookup.look_up(&review, &policy(json!({})), now(), Instant::now());
    assert!(found.context().is_some(), "{name} is unseen");
    let request = EvictionRequest {
        caller: Caller::Another(Drainer::Yes),
        dry_run: false,
        leaderless: false,
        paused: false,
        ticket: None,
        pod: &review.pod,
    };
    let known = lookup.ledger_view(now(), Instant::now());
    decide(&request, &found, &known.ledger, &known.facts, &known.reservations).decision
}

/// If the movable pod waited with the claim, the held ones would take the last disruptions, and its drain would not end.
#[rstest]
#[case::movable("m", true)]
#[case::held("h1", false)]
#[case::retained("s", false)]
#[tokio::test(start_paused = true)]
async fn movable_pod_leaves_while_claim_waits(#[case] pod: &str, #[case] goes: bool) {
    let told = told(&ContextLookup::new(two_drains().cache()), pod).await;
    assert_eq!(told == Decision::Admit(Admission::FreeDisruption), goes, "{told:?}");
}

/// Nothing else would keep its drainer from being done before the claim is confirmed.
#[tokio::test(start_paused = true)]
async fn last_movable_pod_waits_beside_retained() {
    let mut cluster = two_drains();
    cluster
        .0
        .pods
        .retain(|pod| !pod.metadata.name.as_ref().unwrap().starts_with('h'));
    let told = told(&ContextLookup::new(cluster.cache()), "m").await;
    assert!(matches!(told, Decision::Refuse(_)), "{told:?}");
}

/// Of the pods that no budget guards, one waits for the claim. One that drainers leave alone is none of them.
#[rstest]
#[case::the_last_one("a", false)]
#[case::another_one("b", true)]
#[case::unmanaged("lone", true)]
#[tokio::test(start_paused = true)]
async fn unguarded_pod_with_the_smallest_uid_waits_beside_retained(#[case] name: &str, #[case] goes: bool) {
    let mut cluster = two_drains();
    let pods = &mut cluster.0.pods;
    pods.retain(|pod| !pod.metadata.name.as_ref().unwrap().starts_with('h'));
    let small = json!([{ "name": "c", "resources": { "requests": { "cpu": "100m" } } }]);
    let batch = json!({ "metadata": { "labels": { "app": "batch" } }, "spec": { "containers": small } });
    let unmanaged = json!({ "metadata": { "uid": "uid-a", "ownerReferences": null } });
    let lone = merged(pod("lone", batch.clone()), unmanaged);
    pods.extend(
        Cluster::new([], [pod("b", batch.clone()), pod("a", batch), lone])
            .0
            .pods,
    );
    pods.iter_mut()
        .filter(|pod| pod.metadata.name.as_deref() == Some("a"))
        .for_each(|pod| pod.metadata.uid = Some("uid-aa".to_owned()));
    let told = told(&ContextLookup::new(cluster.cache()), name).await;
    assert_eq!(matches!(told, Decision::Admit(_)), goes, "{told:?}");
}

/// Its pods are not taken for held ones for as long as a classification serves that was made before.
#[tokio::test(start_paused = true)]
async fn pods_of_a_claim_are_classified_as_soon_as_it_is_there() {
    let (mut before, mut after) = (two_drains(), two_drains());
    after.0.ledger.as_mut().unwrap().metadata.resource_version = Some("2".to_owned());
    let other = Cluster::new([], [pod("other", json!({ "spec": { "nodeName": "n2" } }))]);
    before.0.pods.extend(other.0.pods);
    before.0.drains.retain(|drain| drain.spec.node_name == "n2");
    let ledger = before.0.ledger.as_mut().unwrap();
    ledger.spec.claims.retain(|claim| claim.node == "n2");
    let cache = before.cache();
    let lookup = ContextLookup::new(Arc::clone(&cache));
    told(&lookup, "other").await;
    cache.insert(&after.0);
    let told = told(&lookup, "m").await;
    assert_eq!(told, Decision::Admit(Admission::FreeDisruption));
}

#[tokio::test(start_paused = true)]
async fn unclassified_pod_waits_with_the_claim() {
    let cache = two_drains().cache();
    let lookup = ContextLookup::new(Arc::clone(&cache));
    told(&lookup, "m").await;
    cache.insert(&Cluster::new([], [pod("late", json!({}))]).0);
    assert!(matches!(told(&lookup, "late").await, Decision::Refuse(_)));
}

#[tokio::test(start_paused = true)]
async fn place_of_older_drain_is_taken() {
    let mut cluster = two_drains();
    // Room for one pod more: that of n2, which is older.
    let full = node("n3", json!({ "status": { "allocatable": { "pods": "2" } } }));
    cluster.0.nodes[2] = Cluster::new([full], []).0.nodes.remove(0);
    assert!(matches!(
        told(&ContextLookup::new(cluster.cache()), "m").await,
        Decision::Refuse(_)
    ));
}

/// Until they are classified, and while that takes too long, the claim decides.
#[test]
fn movable_pod_waits_until_it_is_classified() {
    let lookup = ContextLookup::new(two_drains().cache());
    let review = EvictionReview {
        pod: PodKey::new("shop", "m"),
        ..review()
    };
    let found = lookup.look_up(&review, &policy(json!({})), now(), Instant::now());
    assert!(!found.context().unwrap().is_movable);
}

fn surged(name: &str, patch: Value) -> Value {
    let record = r#"{"deployment":"web","generation":3,"at":"2026-01-01T11:58:00Z","until":"2026-01-01T12:08:00Z"}"#;
    let marked = json!({ "metadata": { "annotations": { "nodeward.dev/surged": record } } });
    pod(name, merged(marked, patch))
}

#[rstest]
#[case::itself(surged("a", json!({})), Some("a"))]
#[case::another_of_its_budget(surged("b", json!({})), Some("b"))]
#[case::of_another_budget(surged("b", json!({ "metadata": { "labels": { "app": "other" } } })), None)]
#[case::gone_with_its_rollout(surged("b", json!({ "metadata": { "deletionTimestamp": "2026-01-01T11:59:00Z" } })), None)]
#[case::unreadable(surged("b", json!({ "metadata": { "annotations": { "nodeward.dev/surged": "{}" } } })), None)]
#[case::given_up(surged("b", json!({ "metadata": { "annotations": {
    "nodeward.dev/surged": r#"{"deployment":"web","generation":3,"at":"2026-01-01T11:50:00Z","until":"2026-01-01T12:00:00Z"}"#,
} } })), None)]
fn rollout_concerns_all_pods_of_its_budget(#[case] other: Value, #[case] expected: Option<&str>) {
    let labelled = |pod| merged(json!({ "metadata": { "labels": { "app": "web" } } }), pod);
    let pods = [pod("a", json!({})), other].map(labelled);
    let cluster = Cluster::new([node("n1", json!({}))], pods).budgets([budget("web", json!({}))]);
    let surge = seen(&cluster, json!({})).surge;
    assert_eq!(
        surge.map(|surge| surge.pod),
        expected.map(|name| PodKey::new("shop", name))
    );
}
