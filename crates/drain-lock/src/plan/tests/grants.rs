//! Who is granted what: leases, disruptions that are spent, the last room.

use nodeward_core::id::NodeUid;

use crate::snapshot::WriteTarget;

use super::*;

#[rstest]
#[case::free(json!({ "holderIdentity": "" }), &["take lease", "n1 is Draining: AwaitsConfirmation"])]
#[case::ours(json!({ "holderIdentity": lease::HOLDER, "renewTime": "2026-01-01T11:59:00.000000Z", "leaseDurationSeconds": 600 }), &[
    "ledger: n1#1 Granted needs [] holds [a]", "confirm uid-n1 5", "n1 is Draining: AwaitsConfirmation",
])]
#[case::of_others_its_disruptions_go_back(json!({ "holderIdentity": "medik8s", "renewTime": "2026-01-01T11:59:00.000000Z", "leaseDurationSeconds": 600 }), &[
    "ledger: n1#9 Waiting needs [a] holds []", "n1 is Draining: AwaitsConfirmation",
])]
fn grant_is_used_only_with_the_lease(#[case] spec: Value, #[case] expected: &[&str]) {
    let lease = json!({ "metadata": { "namespace": "medik8s-leases", "name": "node-n1", "resourceVersion": "3" }, "spec": spec });
    let cluster = cluster(
        ours(json!({})),
        Some(drain(json!({}))),
        &[granted("Granted", &["a"])],
        &[held("a", json!({}))],
    );
    let policy = Policy::from_config(Config::default()).unwrap();
    let plan = plan(&cluster.leases([lease]).snapshot(), &Memory::default(), &policy, now());
    assert_eq!(shown(&plan), expected);
}

#[test]
fn requested_eviction_spends_its_disruption_once() {
    let mut memory = Memory::default();
    let until = at("2026-01-01T12:00:10Z");
    memory.note_eviction(PodUid::from("uid-a"), true, until);
    let pods = [pod("a", json!({})), pod("d", json!({}))];
    let cluster = cluster(ours(json!({})), Some(drain(json!({}))), &[claim(json!({}))], &pods);
    let plan = plan(&cluster.snapshot(), &memory, &policy(), now());
    assert_eq!(shown(&plan), ["n1 is Draining: BudgetUnhealthy"]);
}

/// Whoever evicts: the claim has the disruption, and the API refuses it all the same.
#[rstest]
#[case::nothing_is_wrong(json!({}), &[])]
#[case::a_pod_has_crashed_since(json!({ "status": { "disruptionsAllowed": 0, "currentHealthy": 2 } }), &["BudgetUnhealthy shop/web"])]
fn grant_that_its_budget_does_not_allow_is_told(
    #[case] web: Value,
    #[case] expected: &[&str],
    #[values("Nodeward", "Requester")] evictor: &str,
) {
    let drain = drain(json!({ "spec": { "evict": evictor } }));
    let cluster = cluster(
        ours(json!({})),
        Some(drain),
        &[granted("Confirmed", &["a"])],
        &[held("a", json!({}))],
    );
    let plan = planned(&cluster.budgets([budget("web", web)]));
    let told = plan.drains[0].blocked_by.iter();
    let told = told.filter_map(|one| Some(format!("{:?} {}", one.reason, one.pdb.as_ref()?)));
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

#[test]
fn movable_pods_disruption_waits_for_next_pass() {
    let second = json!({
        "metadata": { "annotations": { nodeward_api::annotation::CORDONED_BY: "uid-second" } }, "spec": { "unschedulable": true },
    });
    let stays_there = json!({ "spec": { "nodeName": "n2", "nodeSelector": { "kubernetes.io/hostname": "n2" } } });
    let pods = [
        pod("a", json!({})),
        pod("b", stays_there),
        pod("c", json!({ "spec": { "nodeName": "n3" } })),
    ];
    let cluster = |free: i64| {
        Cluster::new([ours(json!({})), node("n2", second.clone()), node("n3", json!({}))], pods.clone())
            .budgets([budget("web", json!({ "status": { "disruptionsAllowed": free, "desiredHealthy": 3 - free } }))])
            .drains([
                drain(json!({})),
                drain(json!({ "metadata": { "name": "n2", "uid": "uid-second" }, "spec": { "nodeName": "n2", "nodeUID": "uid-n2" } })),
            ])
            .ledger(json!({ "nextTicket": 9, "claims": [
                claim(json!({})), claim(json!({ "ticket": 2, "node": "n2", "nodeUID": "uid-n2" })),
            ] }))
    };
    let grants = |plan: &Plan| plan.ledger.as_ref().map_or(0, |write| write.grants.len());
    let is_evicted = |plan: &Plan| plan.actions.iter().any(|action| matches!(action, Action::Evict { .. }));
    let plan = planned(&cluster(1));
    assert!(is_evicted(&plan) && grants(&plan) == 0, "{:?}", shown(&plan));
    let plan = planned(&cluster(2));
    assert!(is_evicted(&plan) && grants(&plan) == 1, "{:?}", shown(&plan));
}

#[rstest]
#[case::nobody_needs_its_room(None, None, true)]
#[case::a_movable_pod(Some(pod("a", json!({}))), None, false)]
#[case::one_on_its_way_out(Some(pod("a", leaving(json!({})))), None, false)]
#[case::one_that_is_stuck(Some(pod("a", json!({ "metadata": { "deletionTimestamp": A_MINUTE_AGO } }))), None, true)]
#[case::one_that_finishes_first(Some(pod("a", json!({ "metadata": { "labels": { "nodeward.dev/drain": "wait-completed" } } }))), None, true)]
#[case::one_that_has_just_gone(None, Some(pod("a", json!({}))), false)]
#[case::what_replaces_it(Some(newly_waiting("a", json!({}))), None, false)]
#[case::a_pod_that_has_waited_in_vain(Some(waiting("a", json!({ "metadata": { "creationTimestamp": A_MINUTE_AGO } }))), None, true)]
fn cordon_leaves_room_for_pods_of_other_drains(
    #[case] present: Option<Value>,
    #[case] departed: Option<Value>,
    #[case] is_cordoned: bool,
) {
    let nodes = [ours(json!({})), node("n2", json!({}))];
    let second =
        json!({ "metadata": { "name": "n2", "uid": "uid-second" }, "spec": { "nodeName": "n2", "nodeUID": "uid-n2" } });
    let cluster = Cluster::new(nodes.clone(), present)
        .drains([drain(json!({})), drain(second)])
        .ledger(json!({ "nextTicket": 9, "claims": [
            claim(json!({})), claim(json!({ "ticket": 2, "node": "n2", "nodeUID": "uid-n2" })),
        ] }));
    let mut memory = Memory::default();
    if let Some(pod) = departed {
        let before = Cluster::new(nodes, [pod]).snapshot();
        memory.note_departing(
            before.pods_of(&"n1".into()).to_vec(),
            now() + SignedDuration::from_secs(1),
        );
    }
    let plan = plan(&cluster.snapshot(), &memory, &policy(), now());
    let cordons = shown(&plan).iter().any(|line| line == "cordon n2");
    assert_eq!(cordons, is_cordoned, "{:?}", shown(&plan));
}

#[test]
fn last_disruption_goes_to_the_older() {
    let second = json!({ "ticket": 2, "node": "n3", "nodeUID": "uid-n3" });
    let on_n3 = json!({ "spec": { "nodeName": "n3", "nodeSelector": { "kubernetes.io/hostname": "n3" } } });
    let n3 = merged(
        ours(json!({})),
        json!({
            "metadata": { "name": "n3", "uid": "uid-n3", "labels": { "kubernetes.io/hostname": "n3" }, "annotations": { nodeward_api::annotation::CORDONED_BY: "uid-drain-3" } },
        }),
    );
    let drain_3 = drain(
        json!({ "metadata": { "name": "n3", "uid": "uid-drain-3" }, "spec": { "nodeName": "n3", "nodeUID": "uid-n3" } }),
    );
    let cluster = Cluster::new(
        [ours(json!({})), n3, node("n2", json!({}))],
        [held("a", json!({})), pod("d", on_n3)]
            .into_iter()
            .chain(siblings().into_iter().take(1)),
    )
    .budgets([budget("web", json!({}))])
    .drains([drain(json!({})), drain_3])
    .ledger(json!({ "nextTicket": 9, "claims": [claim(json!({})), claim(second)] }));
    let plan = plan(
        &cluster.snapshot_of(&["n1", "n3"]),
        &Memory::default(),
        &policy(),
        now(),
    );
    let grants: Vec<_> = plan
        .ledger
        .unwrap()
        .grants
        .into_iter()
        .map(|ask| ask.node_uid)
        .collect();
    assert_eq!(grants, [NodeUid::from("uid-n1")]);
}

#[rstest]
#[case::at_once(0, true)]
#[case::before_its_time(1, false)]
fn doubted_claim_asks_again_after_its_backoff(#[case] seconds_left: i64, #[case] asks: bool) {
    let cluster = cluster(
        ours(json!({})),
        Some(drain(json!({}))),
        &[claim(json!({}))],
        &[held("a", json!({}))],
    );
    let until = now().checked_add(SignedDuration::from_secs(seconds_left)).unwrap();
    let mut memory = Memory::default();
    memory.note_doubted("uid-n1".into(), "the API server failed".to_owned(), until);
    let plan = plan(&cluster.snapshot(), &memory, &policy(), now());
    let grants = plan.ledger.as_ref().map_or(0, |write| write.grants.len());
    assert_eq!(grants, usize::from(asks));
    let is_told = plan.drains[0]
        .blocked_by
        .iter()
        .any(|why| why.reason == LockReason::ReadFailed);
    assert_eq!(is_told, !asks);
    assert!(asks || plan.requeue_at.is_some_and(|at| at <= until));
}

/// What an admission policy refuses is named while it is to be written, and not after.
#[rstest]
#[case::its_node(WriteTarget::Node("uid-n1".into()), true)]
#[case::another_node(WriteTarget::Node("uid-n2".into()), false)]
#[case::the_ledger(WriteTarget::Ledger, true)]
fn refused_write_is_named(#[case] target: WriteTarget, #[case] expected: bool) {
    let cluster = cluster(
        node("n1", json!({})),
        Some(drain(json!({}))),
        &[],
        &[held("a", json!({}))],
    );
    let mut memory = Memory::default();
    memory.refused_writes.insert(target, "policy says no".to_owned());
    let plan = plan(&cluster.snapshot(), &memory, &policy(), now());
    let verdict = &plan.drains[0];
    let mut blocked = verdict.blocked_by.iter();
    let is_named = blocked.any(|why| why.reason == LockReason::WriteRefused && why.message.contains("policy says no"));
    assert_eq!(is_named, expected, "{:?}", verdict.blocked_by);
    assert_eq!(verdict.message.contains("policy says no"), expected);
}
