//! One life for every drain, whoever evicts: movable pods first, then all that is left under one claim.

use rstest::rstest;

use super::*;

fn by_requester(patch: Value) -> Value {
    let base = drain(json!({ "spec": { "evict": "Requester" }, "metadata": { "creationTimestamp": A_MINUTE_AGO } }));
    merged(base, patch)
}

fn waits(patch: Value) -> Value {
    claim(merged(json!({ "foreignCordon": true }), patch))
}

/// A claim of another node that has the one disruption of `web`.
fn of_another() -> Value {
    merged(
        granted("Confirmed", &["b"]),
        json!({ "ticket": 2, "node": "n2", "nodeUID": "uid-n2", "bootID": "" }),
    )
}

/// A pod that only its node can run, of the budget of this name.
fn pinned(name: &str, app: &str) -> Value {
    held(name, json!({ "metadata": { "labels": { "app": app } } }))
}

fn budget_of(app: &str, patch: Value) -> Value {
    let base = json!({
        "spec": { "selector": { "matchLabels": { "app": app } } }, "status": { "desiredHealthy": 0, "expectedPods": 1 },
    });
    budget(app, merged(base, patch))
}

fn never() -> Value {
    budget_of(
        "never",
        json!({ "spec": { "maxUnavailable": 0 }, "status": { "disruptionsAllowed": 0, "desiredHealthy": 1 } }),
    )
}

/// Four pods that only their node can run, each of a budget of its own. One of these never allows a disruption.
fn four_pinned(drain: Value, claims: &[Value]) -> Cluster {
    let pods = ["one", "two", "three", "never"].map(|app| pinned(app, app));
    let node_1 = foreign(json!({}));
    cluster(node_1, Some(drain), claims, &pods).budgets(
        ["one", "two", "three"]
            .map(|app| budget_of(app, json!({})))
            .into_iter()
            .chain([never()]),
    )
}

#[rstest]
#[case::one_can_go(
    cluster(foreign(json!({})), Some(by_requester(json!({}))), &[waits(json!({}))], &[held("a", json!({})), pod("d", json!({}))]),
    "ledger: n1#1 Waiting needs [] holds []"
)]
#[case::none_can_go_now(
    cluster(foreign(json!({})), Some(by_requester(json!({}))), &[waits(json!({})), of_another()], &[held("a", json!({})), pod("d", json!({}))]),
    "ledger: n1#1 Waiting needs [movable] holds []"
)]
// Kept for this node, the disruption would lie idle until its drainer asks again.
#[case::none_can_go_now_and_none_stays_down(
    cluster(foreign(json!({})), Some(by_requester(json!({}))), &[waits(json!({})), of_another()], &[pod("d", json!({}))]),
    "ledger: n1#1 Waiting needs [] holds []"
)]
#[case::none_is_left(
    cluster(foreign(json!({})), Some(by_requester(json!({}))), &[waits(json!({}))], &[held("a", json!({})), pod("d", leaving(json!({})))]),
    "ledger: n1#1 Waiting needs [a] holds []"
)]
#[case::it_has_asked_before(
    cluster(
        foreign(json!({})), Some(by_requester(json!({}))), &[waits(json!({ "needs": [disruptions(&["a"])] }))],
        &[held("a", json!({})), pod("d", json!({}))],
    ),
    "ledger: n1#1 Waiting needs [movable] holds []"
)]
fn claim_is_asked_for_once_no_movable_pod_can_go(#[case] cluster: Cluster, #[case] expected: &str) {
    let lines = shown(&planned(&cluster));
    let own = lines.iter().find(|line| line.starts_with("ledger: n1"));
    // Nothing is written where nothing changes.
    let own = own.map_or("ledger: n1#1 Waiting needs [] holds []", String::as_str);
    assert_eq!(own, expected, "{lines:?}");
}

/// A pod without a grace is gone before anybody sees it leave: others wait for the drain all the same, and not for an unhealthy
/// budget.
#[test]
fn movable_pod_that_is_gone_in_an_instant_is_on_the_move() {
    let of = |pods: &[Value], web: Value| {
        cluster(
            foreign(json!({})),
            Some(by_requester(json!({}))),
            &[waits(json!({}))],
            pods,
        )
        .budgets([budget("web", web)])
    };
    let before = planned(&of(&[pod("d", json!({})), pod("e", json!({}))], json!({})));
    let mut memory = Memory::default();
    memory.to_be_down = before.to_be_down;
    let short = of(
        &[pod("e", json!({}))],
        json!({ "status": { "disruptionsAllowed": 0, "currentHealthy": 2 } }),
    );
    let plan = plan(&short.snapshot(), &memory, &policy(), now());
    let moving = plan.ledger.unwrap().next.claim("uid-n1").unwrap().moving.clone();
    let pods: Vec<&str> = moving.iter().flat_map(|of| &of.pods).map(|pod| &*pod.name).collect();
    assert_eq!(pods, ["d"]);
}

/// Another drain has the one disruption of `web`.
#[rstest]
#[case::all_its_pods_wait(pod("d", json!({})), "n1 is Queued: WaitsForDisruptions")]
#[case::one_of_them_leaves(pod("d", leaving(json!({}))), "n1 is Draining: WaitsForDisruptions")]
fn drain_without_a_claim_says_what_its_pods_wait_for(#[case] pod_d: Value, #[case] expected: &str) {
    let claims = [waits(json!({})), of_another()];
    let pods = [pod("e", json!({})), pod_d];
    let node = foreign(json!({}));
    let lines = shown(&planned(&cluster(node, Some(by_requester(json!({}))), &claims, &pods)));
    let own = lines.iter().filter(|line| line.starts_with("n1 is"));
    let waits = own
        .map(|line| line.replace(", WaitsForDisruptions", ""))
        .collect::<Vec<_>>();
    assert_eq!(waits, [expected], "{lines:?}");
}

#[rstest]
#[case::at_first(json!({}), "BudgetNeverAllows, BudgetNeverAllows", "needs [never+one+three+two]")]
#[case::for_long(json!({ "obstructedSince": "2026-01-01T11:54:59Z" }), "BudgetNeverAllows", "needs [one+three+two]")]
fn pod_that_may_never_go_keeps_the_others_for_some_time_only(
    #[case] patch: Value,
    #[case] blocked: &str,
    #[case] needs: &str,
) {
    let lines = shown(&planned(&four_pinned(by_requester(json!({})), &[waits(patch)])));
    assert!(lines[0].contains(needs), "{lines:?}");
    assert_eq!(
        lines.iter().any(|line| line == "grant uid-n1"),
        !needs.contains("never")
    );
    assert_eq!(lines.last().unwrap(), &format!("n1 is Draining: {blocked}"));
}

/// A budget spares one of two pods. Whoever changes its spec, if only to say the same in other words, makes nobody wait anew.
#[rstest]
#[case::counted(json!({}), Some("2026-01-01T11:58:00Z"))]
#[case::behind_its_spec(json!({ "metadata": { "generation": 2 } }), Some("2026-01-01T11:58:00Z"))]
#[case::spares_both(json!({ "status": { "desiredHealthy": 1, "disruptionsAllowed": 2 } }), None)]
fn time_of_an_obstacle_outlasts_changes_of_its_budget(#[case] patch: Value, #[case] expected: Option<&str>) {
    let since = waits(json!({ "obstructedSince": "2026-01-01T11:58:00Z" }));
    let pods = [held("z1", json!({})), held("z2", json!({}))];
    let node = foreign(json!({}));
    let cluster = cluster(node, Some(by_requester(json!({}))), &[since], &pods).budgets([budget("web", patch)]);
    let write = planned(&cluster).ledger.unwrap();
    let since = write.next.claim("uid-n1").unwrap().obstructed_since;
    assert_eq!(since, expected.map(|at| at.parse().unwrap()));
}

/// Pods of a budget that went down under the claim count to its excess for as long as they are down: one that was left out is not
/// taken up again, or the claim would need more than it has in the middle of its drain.
#[test]
fn excess_counts_pods_that_are_down() {
    let claim = merged(
        granted("Confirmed", &["z1"]),
        json!({ "needs": [], "foreignCordon": true, "obstructedSince": "2026-01-01T11:54:59Z" }),
    );
    let pods = [held("z2", json!({})), held("z1", leaving(json!({})))];
    for gone in [false, true] {
        let pods = if gone { &pods[..1] } else { &pods[..] };
        let cluster = cluster(
            foreign(json!({})),
            Some(by_requester(json!({}))),
            std::slice::from_ref(&claim),
            pods,
        );
        let plan = planned(&cluster);
        let lines = shown(&plan);
        assert!(!lines.iter().any(|line| line.contains("Waiting")), "{gone}: {lines:?}");
        let why = &plan.drains[0].blocked_by;
        assert!(
            why.iter().any(|one| one.reason == LockReason::NeedExceedsBudget),
            "{gone}: {why:?}"
        );
    }
}

/// Of two pods that stay down and a movable one, their budget spares two: one of them was to go after that one. A drainer that asks
/// for it first, however often it is refused, never asks for the movable one: it takes what that was to have, or the drain would
/// stand still with all that it holds.
#[rstest]
#[case::at_first(json!({}), &["a2"], true, &["n1 is Draining: AwaitingPods"])]
#[case::it_was_refused_before_the_grant(refused_at(YESTERDAY), &["a2"], true, &["n1 is Draining: AwaitingPods"])]
#[case::it_is_refused_again(refused_at("2026-01-01T11:59:30Z"), &["a2"], true, &[
    HOLDS_BOTH, "n1 is Draining: NeedExceedsBudget",
])]
#[case::its_turn_has_come(refused_at("2026-01-01T11:59:30Z"), &["a2"], false, &["n1 is Draining: NeedExceedsBudget"])]
#[case::the_movable_one_is_left(refused_at("2026-01-01T11:59:30Z"), &[], false, &["n1 is Draining: NeedExceedsBudget"])]
#[case::a_movable_one_came_late(json!({}), &[], false, &["n1 is Draining: NeedExceedsBudget"])]
fn drainer_that_asks_for_pods_that_stay_down_first_has_them(
    #[case] drain: Value,
    #[case] here: &[&str],
    #[case] with_movable: bool,
    #[case] expected: &[&str],
) {
    let held_by_claim = if with_movable {
        merged(disruptions(&["a1"]), json!({ "movable": true }))
    } else {
        disruptions(&["a1", "a2"])
    };
    let claim = merged(
        granted("Confirmed", &[]),
        json!({ "foreignCordon": true, "needs": [], "holds": [held_by_claim] }),
    );
    let pods = ["a1", "a2", "m"].map(|name| match name {
        "m" => pod("m", json!({})),
        _ if here.contains(&name) => held(name, json!({})),
        _ => held(name, leaving(json!({}))),
    });
    let spares_two = json!({ "status": { "disruptionsAllowed": 1, "desiredHealthy": 3, "expectedPods": 5 } });
    let cluster = cluster(foreign(json!({})), Some(by_requester(drain)), &[claim], &pods);
    let plan = planned(&cluster.budgets([budget("web", spares_two)]));
    let lines = shown(&plan);
    let lines: Vec<_> = lines.iter().filter(|line| !line.starts_with("mark")).collect();
    assert_eq!(lines, expected);
}

const HOLDS_BOTH: &str = "ledger: n1#1 Confirmed needs [] holds [a1+a2]";

fn refused_at(moment: &str) -> Value {
    json!({ "metadata": { "annotations": { nodeward_api::annotation::REFUSED_AGAIN: moment } } })
}

/// The one disruption of `web` is for a pod that stays, and a movable pod is all that its drainer could evict. The last pod waits for
/// the claim, and the claim, which has nothing for that pod, would wait for it to leave: a budget that can spare no two.
#[rstest]
#[case::at_first(json!({}), None, false)]
#[case::for_long(json!({ "obstructedSince": "2026-01-01T11:54:59Z" }), None, true)]
#[case::another_pod_goes_last(json!({ "obstructedSince": "2026-01-01T11:54:59Z" }), Some(pod("d", bare())), false)]
fn movable_pod_goes_last_beside_one_that_stays(
    #[case] patch: Value,
    #[case] other: Option<Value>,
    #[case] is_asked_for: bool,
) {
    let last = other.is_some();
    let pods: Vec<Value> = [retained("a", json!({})), pod("m", json!({}))]
        .into_iter()
        .chain(other)
        .collect();
    let plan = planned(&cluster(
        foreign(json!({})),
        Some(by_requester(json!({}))),
        &[waits(patch)],
        &pods,
    ));
    let lines = shown(&plan);
    assert_eq!(
        lines.iter().any(|line| line.contains("needs [movable]")),
        is_asked_for,
        "{lines:?}"
    );
    let why = &plan.drains[0].blocked_by;
    assert_eq!(
        why.iter().any(|one| one.reason == LockReason::NeedExceedsBudget),
        !last,
        "{why:?}"
    );
}

#[test]
fn drain_of_ours_is_not_begun_while_a_pod_may_never_go() {
    let cluster = four_pinned(drain(json!({})), &[claim(json!({}))]);
    let mut cluster = cluster;
    cluster.0.nodes[0] = Cluster::new([node("n1", json!({}))], []).0.nodes.remove(0);
    let plan = planned(&cluster);
    let lines = shown(&plan);
    assert!(!lines.iter().any(|line| line.starts_with("cordon")), "{lines:?}");
    assert!(
        plan.drains[0].message.starts_with("is not begun"),
        "{}",
        plan.drains[0].message
    );
}

/// Its claim holds nothing for pods that run.
#[rstest]
#[case::karpenter(tainted("karpenter.sh/disrupted"), true)]
#[case::cluster_autoscaler(tainted("ToBeDeletedByClusterAutoscaler"), true)]
#[case::deleted(json!({ "metadata": { "deletionTimestamp": YESTERDAY } }), true)]
#[case::declared_shut_down(
    merged(tainted("node.kubernetes.io/out-of-service"), json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } })),
    true
)]
#[case::removal_was_given_up(json!({}), false)]
fn node_that_will_not_come_back_holds_and_needs_nothing(#[case] removal: Value, #[case] is_removed: bool) {
    let pods = [held("a", json!({})), held("d", json!({}))];
    let drain = || Some(by_requester(json!({})));
    let waits = planned(&cluster(foreign(removal.clone()), drain(), &[claim(json!({}))], &pods));
    let lines = shown(&waits);
    assert_eq!(
        lines.iter().any(|line| line.contains("needs [a")),
        !is_removed,
        "{lines:?}"
    );
    let classes = waits.drains[0].plan.as_ref().unwrap();
    assert_eq!(
        (classes.held.len(), classes.movable),
        if is_removed { (0, 2) } else { (2, 0) }
    );
    let granted = granted("Confirmed", &["a", "d"]);
    let lines = shown(&planned(&cluster(foreign(removal), drain(), &[granted], &pods)));
    assert_eq!(
        lines.iter().any(|line| line.ends_with("holds []")),
        is_removed,
        "{lines:?}"
    );
}

fn tainted(key: &str) -> Value {
    json!({ "spec": { "taints": [{ "key": key, "effect": "NoSchedule" }] } })
}

#[test]
fn node_that_is_drained_again_keeps_what_is_owed_and_adds_what_runs() {
    let comes_back = claim(json!({ "state": "Returning", "holds": [disruptions(&["z"])] }));
    let wide = budget(
        "web",
        json!({ "spec": { "maxUnavailable": 2 }, "status": { "disruptionsAllowed": 1, "desiredHealthy": 1 } }),
    );
    let cluster = cluster(
        foreign(json!({})),
        Some(by_requester(json!({}))),
        &[comes_back],
        &[held("a", json!({})), held("z", leaving(json!({})))],
    );
    let lines = shown(&planned(&cluster.budgets([wide])));
    assert_eq!(lines[0], "ledger: n1#9 Waiting needs [a] holds [z]", "{lines:?}");
}

/// `d` of `n2` terminates, and what replaces it finds a node once it has gone: who waits for the budget waits for that drain.
#[test]
fn pod_moves_for_as_long_as_it_leaves_though_the_next_one_finds_no_node() {
    let leaves = pod("d", merged(leaving(json!({})), json!({ "spec": { "nodeName": "n2" } })));
    let next = json!({ "metadata": { "creationTimestamp": "2026-01-01T11:59:59Z" } });
    let pods = [held("a", json!({})), leaves, waiting("e", next)];
    let moves = json!({ "ticket": 2, "node": "n2", "nodeUID": "uid-n2", "moving": [disruptions(&["d"])] });
    let claims = [waits(json!({})), waits(moves)];
    let status = json!({ "expectedPods": 4, "currentHealthy": 3, "desiredHealthy": 3, "disruptionsAllowed": 0 });
    let cluster = cluster(foreign(json!({})), Some(by_requester(json!({}))), &claims, &pods);
    let lines = shown(&planned(&cluster.budgets([budget("web", json!({ "status": status }))])));
    let own = lines.iter().find(|line| line.starts_with("n1 is"));
    assert_eq!(
        own.map(String::as_str),
        Some("n1 is Queued: WaitsForDisruptions"),
        "{lines:?}"
    );
}

/// A pod elsewhere that is not Ready.
fn failing(created: &str) -> Value {
    let state = json!({ "spec": { "nodeName": "n2" }, "status": { "conditions": [] } });
    merged(pod("e", state), json!({ "metadata": { "creationTimestamp": created } }))
}

#[rstest]
#[case::it_leaves(&[], pod("d", leaving(json!({}))), 3, Some(vec!["d"]))]
#[case::it_is_asked_for_only(&[], pod("d", json!({})), 4, None)]
#[case::nobody_makes_another(&[], merged(pod("d", leaving(json!({}))), json!({ "metadata": { "ownerReferences": null } })), 3, None)]
#[case::another_starts(&["d"], failing("2026-01-01T11:59:30Z"), 3, None)]
#[case::another_is_ready_in_its_place(&["d"], pod("e", json!({ "spec": { "nodeName": "n2" } })), 4, Some(vec![]))]
#[case::another_finds_no_node_yet(&["d"], newly_waiting("e", json!({})), 3, None)]
#[case::another_finds_no_node(&["d"], waiting("e", json!({})), 3, Some(vec![]))]
#[case::another_has_failed_since_before(&["d"], failing("2026-01-01T11:00:00Z"), 3, Some(vec![]))]
fn movable_pod_counts_with_its_drain_until_another_is_ready(
    #[case] known: &[&str],
    #[case] pod: Value,
    #[case] healthy: i32,
    #[case] expected: Option<Vec<&str>>,
) {
    let before: Vec<Value> = known.iter().map(|pod| disruptions(&[pod])).collect();
    let claim = waits(json!({ "moving": before }));
    let pods = [held("a", json!({})), pod];
    let cluster = cluster(foreign(json!({})), Some(by_requester(json!({}))), &[claim], &pods);
    let status = json!({
        "expectedPods": 4, "currentHealthy": healthy, "desiredHealthy": 3, "disruptionsAllowed": healthy - 3,
    });
    let cluster = cluster.budgets([budget("web", json!({ "status": status }))]);
    let told = planned(&cluster).ledger.map(|write| {
        let claim = write.next.claim("uid-n1").unwrap();
        let pods = claim.moving.iter().flat_map(|moving| &moving.pods);
        pods.map(|pod| pod.name.clone()).collect::<Vec<_>>()
    });
    // Where nothing changes, nothing is written.
    let told = told.filter(|told| told != known);
    let expected = expected.map(|pods| pods.into_iter().map(str::to_owned).collect::<Vec<_>>());
    assert_eq!(told, expected, "{:?}", shown(&planned(&cluster)));
}
