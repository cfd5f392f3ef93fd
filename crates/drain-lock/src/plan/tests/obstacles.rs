//! What no other drain's end lifts: the drain waits for it for some time, and goes on without the pods that it keeps.

use nodeward_api::node_drain::BlockedBy;
use nodeward_api::reason::LockReason;
use nodeward_core::ledger::Disruptions;
use rstest::rstest;

use super::*;
use crate::tests::fixture::cordoned;

const FOR_LONG: &str = "2026-01-01T11:54:59Z";

const FIVE_SECONDS_AGO: &str = "2026-01-01T11:59:55Z";

/// The plan where the drain of `n1` has had an obstacle since then, if it still has.
fn planned_since(since: &str, cluster: &Cluster) -> Plan {
    let mut memory = Memory::default();
    memory.obstructed.insert("uid-n1".into(), at(since));
    plan(&cluster.snapshot(), &memory, &policy(), now())
}

/// A pod of the budget of this name, which only its node can run.
fn pinned(name: &str, app: &str, node: &str, patch: Value) -> Value {
    let base = json!({
        "metadata": { "labels": { "app": app } },
        "spec": { "nodeName": node, "nodeSelector": { "kubernetes.io/hostname": node } },
    });
    pod(name, merged(base, patch))
}

fn budget_of(app: &str, patch: Value) -> Value {
    budget(
        app,
        merged(
            json!({ "spec": { "selector": { "matchLabels": { "app": app } } } }),
            patch,
        ),
    )
}

fn unready() -> Value {
    json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } })
}

/// `n1` is drained: it has a pod of `one`, which spares it, and one of `db`, of which another may have crashed.
fn beside(db: Value, third: Value, drain: Value, claims: &[Value]) -> Cluster {
    let pods = [
        pinned("one", "one", "n1", json!({})),
        pinned("d1", "db", "n1", json!({})),
        pinned("d2", "db", "n2", json!({})),
        pinned("d3", "db", "n2", third),
    ];
    let one = budget_of("one", json!({ "status": { "desiredHealthy": 0, "expectedPods": 1 } }));
    let nodes = [cordoned("n1"), node("n2", json!({}))];
    Cluster::new(nodes, pods)
        .budgets([one, budget_of("db", db)])
        .drains([drain])
        .ledger(json!({ "nextTicket": 9, "claims": claims }))
}

fn by_requester() -> Value {
    drain(json!({ "spec": { "evict": "Requester" } }))
}

fn since(obstructed: Option<&str>) -> Value {
    claim(json!({ "foreignCordon": true, "obstructedSince": obstructed }))
}

fn left_out(plan: &Plan) -> Vec<(String, LockReason)> {
    let plan = plan.drains[0].plan.as_ref().unwrap();
    plan.left_out.iter().map(|pod| (pod.pod.clone(), pod.reason)).collect()
}

fn asked_for(plan: &Plan) -> Vec<String> {
    let write = plan.ledger.as_ref().unwrap();
    let claim = write.next.claim("uid-n1").unwrap();
    let pods = claim.needs.iter().flat_map(|need| &need.pods.0);
    pods.map(|pod| pod.name.clone()).collect()
}

fn none_allowed() -> Value {
    json!({ "status": { "disruptionsAllowed": 0, "currentHealthy": 2 } })
}

fn never_allows() -> Value {
    json!({ "spec": { "maxUnavailable": 0 }, "status": { "disruptionsAllowed": 0, "desiredHealthy": 3 } })
}

fn held_by_owner() -> Value {
    json!({ "metadata": { "annotations": { "nodeward.dev/hold": "release" } } })
}

/// Whoever evicts: one pod that waits for somebody else keeps the others of its node for some time only.
#[rstest]
#[case::a_pod_has_crashed(none_allowed(), unready(), LockReason::BudgetUnhealthy)]
#[case::its_owner_holds_it(held_by_owner(), json!({}), LockReason::OwnerHold)]
fn budget_that_no_drain_helps_is_left_out_in_time(
    #[case] db: Value,
    #[case] third: Value,
    #[case] reason: LockReason,
    #[values(by_requester(), drain(json!({})))] drain: Value,
) {
    let at_first = planned_since(
        FIVE_SECONDS_AGO,
        &beside(db.clone(), third.clone(), drain.clone(), &[since(None)]),
    );
    assert_eq!(asked_for(&at_first), ["d1", "one"], "{:?}", shown(&at_first));
    assert_eq!(left_out(&at_first), []);
    let message = &at_first.drains[0].message;
    assert!(message.contains("from 2026-01-01T12:04:55Z on it goes on"), "{message}");
    assert_eq!(at_first.drains[0].leaves_out_at, Some(at("2026-01-01T12:04:55Z")));
    let claim = at_first.ledger.unwrap().next.claim("uid-n1").cloned().unwrap();
    assert_eq!(claim.obstructed_since, Some(at(FIVE_SECONDS_AGO)));

    let for_long = planned(&beside(db, third, drain, &[since(Some(FOR_LONG))]));
    assert_eq!(for_long.drains[0].leaves_out_at, None, "it has come");
    assert_eq!(asked_for(&for_long), ["one"], "{:?}", shown(&for_long));
    assert_eq!(left_out(&for_long), [("shop/d1".to_owned(), reason)]);
    assert!(
        shown(&for_long).contains(&"grant uid-n1".to_owned()),
        "{:?}",
        shown(&for_long)
    );
    let problems = &for_long.drains[0].plan.as_ref().unwrap().problems;
    assert!(problems.iter().any(|problem| problem.reason == reason), "{problems:?}");
}

/// Most are over before the ledger would say so: a pod of the budget has just left, and its successor starts.
#[rstest]
#[case::it_has_just_come(None, None, "2026-01-01T12:00:00Z")]
#[case::it_came_a_moment_ago(Some("2026-01-01T11:59:56Z"), None, "2026-01-01T11:59:56Z")]
#[case::it_lasts(Some(FIVE_SECONDS_AGO), Some(FIVE_SECONDS_AGO), FIVE_SECONDS_AGO)]
fn obstacle_is_noted_once_it_lasts(#[case] known: Option<&str>, #[case] noted: Option<&str>, #[case] remembered: &str) {
    let cluster = beside(none_allowed(), unready(), by_requester(), &[since(None)]);
    let plan = match known {
        Some(since) => planned_since(since, &cluster),
        None => planned(&cluster),
    };
    let claim = plan.ledger.unwrap().next.claim("uid-n1").cloned().unwrap();
    assert_eq!(claim.obstructed_since, noted.map(at));
    assert_eq!(plan.obstructed.values().copied().collect::<Vec<_>>(), [at(remembered)]);
    let lasts = noted.is_none().then(|| at(remembered) + SignedDuration::from_secs(5));
    assert!(
        lasts.is_none_or(|lasts| plan.requeue_at <= Some(lasts)),
        "{:?}",
        plan.requeue_at
    );
}

fn held_by_n1(app: &str, pods: &[&str], movable: bool) -> Value {
    let pods: Vec<Value> = pods
        .iter()
        .map(|name| json!({ "name": name, "uid": format!("uid-{name}") }))
        .collect();
    let pdb = json!({ "namespace": "shop", "name": app, "uid": format!("uid-{app}") });
    json!({ "pdb": pdb, "healthyAtGrant": 3, "movable": movable, "pods": pods })
}

/// It went in the drain before, and came back to the node, which is drained anew. Its budget can spare one, and misses one.
#[rstest]
#[case::of_its_name("d1", unready(), true)]
#[case::of_its_name_and_ready("d1", json!({}), true)]
#[case::another("d9", unready(), false)]
fn pod_that_came_back_takes_over_its_disruption(#[case] name: &str, #[case] patch: Value, #[case] takes_over: bool) {
    let hold = json!({ "pdb": { "namespace": "shop", "name": "db", "uid": "uid-db" }, "healthyAtGrant": 3,
        "pods": [{ "name": name, "uid": "uid-old" }] });
    let claim = claim(json!({ "foreignCordon": true, "holds": [hold] }));
    let pods = [
        pinned("d1", "db", "n1", patch),
        pinned("d2", "db", "n2", json!({})),
        pinned("d3", "db", "n2", json!({})),
    ];
    let cluster = Cluster::new([cordoned("n1"), node("n2", json!({}))], pods)
        .budgets([budget_of("db", none_allowed())])
        .drains([by_requester()])
        .ledger(json!({ "nextTicket": 9, "claims": [claim] }));
    let first = planned(&cluster);
    assert_eq!(asked_for(&first), ["d1"], "{:?}", shown(&first));
    let claim = first.ledger.unwrap().next.claim("uid-n1").cloned().unwrap();
    assert_eq!(claim.holds.is_empty(), takes_over, "{claim:?}");
    let exceeds = |blocked: &BlockedBy| blocked.reason == LockReason::NeedExceedsBudget;
    assert_eq!(!first.drains[0].blocked_by.iter().any(exceeds), takes_over);
}

/// What comes after the grant is an obstacle, too: nobody could evict the pod by what the claim holds for it.
#[rstest]
#[case::a_pod_has_crashed(none_allowed(), unready(), LockReason::BudgetUnhealthy)]
#[case::its_owner_holds_it(held_by_owner(), json!({}), LockReason::OwnerHold)]
fn budget_that_breaks_after_the_grant_is_left_out_in_time(
    #[case] db: Value,
    #[case] third: Value,
    #[case] reason: LockReason,
    #[values(by_requester(), drain(json!({})))] drain: Value,
    #[values(false, true)] is_movable: bool,
) {
    let cluster = |obstructed: Option<&str>| {
        let d1: &[&str] = if is_movable { &[] } else { &["d1"] };
        let holds = [held_by_n1("db", d1, is_movable), held_by_n1("one", &["one"], false)];
        let confirmed = json!({ "state": "Confirmed", "grant": 5, "bootID": "boot-1", "holds": holds, "obstructedSince": obstructed });
        let mut cluster = beside(db.clone(), third.clone(), drain.clone(), &[claim(confirmed)]);
        if is_movable {
            let movable = pod("d1", json!({ "metadata": { "labels": { "app": "db" } } }));
            cluster.0.pods[1] = Cluster::new([], [movable]).0.pods.remove(0);
        }
        cluster
    };
    let held = |plan: &Plan| {
        let claim = plan.ledger.as_ref().unwrap().next.claim("uid-n1").cloned().unwrap();
        let of_movable = claim.holds.iter().any(|held| held.movable);
        (names(&claim.holds), of_movable, claim.obstructed_since)
    };
    let at_first = planned_since(FIVE_SECONDS_AGO, &cluster(None));
    let all: &[&str] = if is_movable { &["one"] } else { &["d1", "one"] };
    let all: Vec<String> = all.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(
        held(&at_first),
        (all, is_movable, Some(at(FIVE_SECONDS_AGO))),
        "{:?}",
        shown(&at_first)
    );
    assert_eq!(left_out(&at_first), []);
    let message = &at_first.drains[0].message;
    assert!(message.contains("from 2026-01-01T12:04:55Z on it goes on"), "{message}");
    assert_eq!(at_first.drains[0].leaves_out_at, Some(at("2026-01-01T12:04:55Z")));

    let for_long = planned(&cluster(Some(FOR_LONG)));
    let one = vec!["one".to_owned()];
    assert_eq!(
        held(&for_long),
        (one, false, Some(at(FOR_LONG))),
        "{:?}",
        shown(&for_long)
    );
    assert_eq!(left_out(&for_long), [("shop/d1".to_owned(), reason)]);
}

/// What the grant's own pods take is no obstacle, nor what another drain has.
#[rstest]
#[case::own_pod_is_down(&["d1", "d3"], &[], 1)]
#[case::another_drain_has_one(&["d1"], &["d3"], 0)]
fn budget_of_a_grant_that_goes_on_is_no_obstacle(#[case] own: &[&str], #[case] others: &[&str], #[case] allowed: i32) {
    let holds = [held_by_n1("db", own, false)];
    let confirmed = json!({ "state": "Confirmed", "grant": 5, "bootID": "boot-1", "holds": holds });
    let other = claim(json!({
        "ticket": 2, "node": "n2", "nodeUID": "uid-n2", "state": "Confirmed", "grant": 6, "foreignCordon": true,
        "holds": [held_by_n1("db", others, false)],
    }));
    let status =
        json!({ "status": { "disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2 - allowed } });
    let mut claims = vec![claim(confirmed)];
    claims.extend((!others.is_empty()).then_some(other));
    let cluster = beside(status, unready(), by_requester(), &claims);
    let plan = planned(&cluster);
    let ledger = plan
        .ledger
        .map(|write| write.next.claim("uid-n1").and_then(|claim| claim.obstructed_since));
    assert_eq!(ledger.flatten(), None);
}

/// A pod that stays goes down with its node. Where its budget lacks the disruption for a while, the node waits for that with
/// nothing else left on it; where it can never have it, nobody's waiting helps.
#[rstest]
#[case::another_pod_has_crashed(none_allowed(), unready(), LockReason::BudgetUnhealthy, false)]
#[case::its_owner_holds_it(held_by_owner(), json!({}), LockReason::OwnerHold, false)]
#[case::it_never_allows_one(never_allows(), json!({}), LockReason::BudgetNeverAllows, true)]
fn node_goes_down_over_no_pod_whose_budget_may_recover(
    #[case] db: Value,
    #[case] third: Value,
    #[case] reason: LockReason,
    #[case] goes_down: bool,
) {
    let confirmed = json!({ "state": "Confirmed", "grant": 5, "bootID": "boot-1", "obstructedSince": FOR_LONG });
    let mut cluster = beside(db, third, drain(json!({})), &[claim(confirmed)]);
    let labels = json!({ "metadata": { "labels": { "app": "db" } }, "spec": { "nodeName": "n1" } });
    cluster.0.pods[1] = Cluster::new([], [retained("d1", labels)]).0.pods.remove(0);
    cluster.0.pods.remove(0);
    let plan = planned(&cluster);
    let asks = shown(&plan).contains(&"make sure that n1 is drained".to_owned());
    assert_eq!(asks, goes_down, "{:?}", shown(&plan));
    assert_eq!(left_out(&plan), [("shop/d1".to_owned(), reason)]);
    let drain = &plan.drains[0];
    assert_eq!(drain.phase, Phase::Draining);
    let waits = drain
        .message
        .contains("pod shop/d1 stays on the node until its budget lets it go down");
    assert_eq!(waits, !goes_down, "{}", drain.message);
}

/// A node that nobody has cordoned goes on serving, however long somebody lets its drain wait.
#[rstest]
#[case::a_pod_has_crashed(none_allowed(), unready())]
#[case::its_owner_holds_it(held_by_owner(), json!({}))]
fn drain_is_not_begun_beside_an_obstacle(
    #[case] db: Value,
    #[case] third: Value,
    #[values(None, Some(FOR_LONG))] obstructed: Option<&str>,
) {
    let claim = claim(json!({ "foreignCordon": false, "obstructedSince": obstructed }));
    let mut cluster = beside(db, third, drain(json!({})), &[claim]);
    cluster.0.nodes[0] = Cluster::new([node("n1", json!({}))], []).0.nodes.remove(0);
    let plan = planned(&cluster);
    let message = &plan.drains[0].message;
    assert!(message.starts_with("is not begun"), "{message}");
    assert_eq!(left_out(&plan), []);
    let claim = plan.ledger.as_ref().map(|write| write.next.claim("uid-n1").cloned());
    assert_eq!(claim.flatten().and_then(|claim| claim.obstructed_since), None);
}

/// What another drain has comes back.
#[test]
fn budget_that_another_drain_has_is_waited_for() {
    let other = merged(
        granted("Confirmed", &[]),
        json!({
            "ticket": 2, "node": "n2", "nodeUID": "uid-n2", "bootID": "", "needs": [],
            "holds": [{
                "pdb": { "namespace": "shop", "name": "db", "uid": "uid-db" }, "healthyAtGrant": 3,
                "pods": [{ "name": "d3", "uid": "uid-d3" }],
            }],
        }),
    );
    let cluster = beside(
        none_allowed(),
        unready(),
        by_requester(),
        &[since(Some(FOR_LONG)), other],
    );
    let plan = planned(&cluster);
    assert_eq!(
        (asked_for(&plan).len(), left_out(&plan)),
        (2, vec![]),
        "{:?}",
        shown(&plan)
    );
    assert_eq!(
        plan.ledger.unwrap().next.claim("uid-n1").unwrap().obstructed_since,
        None
    );
}

/// A movable pod goes as soon as its budget lets it, and those that stay down do not wait for that.
#[test]
fn movable_pod_of_a_budget_that_no_drain_helps_keeps_no_other() {
    let cluster = |claims: &[Value]| {
        let mut cluster = beside(none_allowed(), unready(), by_requester(), claims);
        let movable = pod("d1", json!({ "metadata": { "labels": { "app": "db" } } }));
        let fixed = Cluster::new([], [movable]).0.pods.remove(0);
        let known = cluster
            .0
            .pods
            .iter_mut()
            .find(|pod| pod.metadata.name.as_deref() == Some("d1"));
        *known.unwrap() = fixed;
        cluster
    };
    let at_first = planned(&cluster(&[since(None)]));
    assert!(
        !shown(&at_first).contains(&"grant uid-n1".to_owned()),
        "{:?}",
        shown(&at_first)
    );
    let for_long = planned(&cluster(&[since(Some(FOR_LONG))]));
    assert_eq!(asked_for(&for_long), ["one"]);
    assert_eq!(
        left_out(&for_long),
        [("shop/d1".to_owned(), LockReason::BudgetUnhealthy)]
    );
    assert!(
        shown(&for_long).contains(&"grant uid-n1".to_owned()),
        "{:?}",
        shown(&for_long)
    );
}

/// Two pods of a budget that spares one find no room on `n2`: whoever adds nodes does that for a pod that waits for one.
#[rstest]
#[case::nobody_else_drains(cordoned("n2"), &[], json!({}), &["a"], "NeedExceedsBudget")]
#[case::another_drain_takes_the_room(cordoned("n2"), &["n2"], json!({}), &["a", "b"], "NoRoom")]
// It comes back when somebody uncordons it, which may be never.
#[case::another_program_has_drained_the_room(
    cordoned("n2"), &["n2"], json!({ "state": "Confirmed", "mayGoDown": true }), &["a"], "NeedExceedsBudget"
)]
fn excess_for_want_of_room_is_asked_for_pod_by_pod(
    #[case] node_2: Value,
    #[case] others: &[&str],
    #[case] state: Value,
    #[case] asked: &[&str],
    #[case] blocked: &str,
) {
    let pods = ["a", "b"].map(|name| pod(name, json!({})));
    let third = pod("c", json!({ "spec": { "nodeName": "n2" } }));
    let of_others = others.iter().map(|name| {
        drain(json!({
            "metadata": { "name": name, "uid": format!("uid-drain-{name}") },
            "spec": { "nodeName": name, "nodeUID": format!("uid-{name}"), "evict": "Requester" },
        }))
    });
    let other_claims = others.iter().map(|name| {
        let base = json!({ "ticket": 2, "node": name, "nodeUID": format!("uid-{name}"), "foreignCordon": true });
        claim(merged(base, state.clone()))
    });
    let claims: Vec<Value> = [since(None)].into_iter().chain(other_claims).collect();
    let cluster = Cluster::new([cordoned("n1"), node_2], pods.into_iter().chain([third]))
        .budgets([budget("web", json!({}))])
        .drains([by_requester()].into_iter().chain(of_others))
        .ledger(json!({ "nextTicket": 9, "claims": claims }));
    let plan = plan(
        &cluster.snapshot_of(&["n1", "n2"]),
        &Memory::default(),
        &policy(),
        now(),
    );
    assert_eq!(asked_for(&plan), asked, "{:?}", shown(&plan));
    let own = plan
        .drains
        .iter()
        .find(|verdict| verdict.node.as_str() == "n1")
        .unwrap();
    let reasons: Vec<&str> = own.blocked_by.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(reasons, [blocked], "{:?}", shown(&plan));
}

/// `a` would come back with its node alone, and `b` wherever somebody makes room: the other way round the drain would not end.
#[rstest]
#[case::asked(since(None), &["b"])]
#[case::granted(granted("Confirmed", &["b"]), &[])]
fn excess_for_want_of_room_is_asked_for_what_comes_back_first(#[case] own: Value, #[case] asked: &[&str]) {
    let to_n1 = json!({ "spec": { "nodeSelector": { "kubernetes.io/hostname": "n1" } } });
    let third = pod("c", json!({ "spec": { "nodeName": "n2" } }));
    let pods = [pod("a", to_n1), pod("b", json!({})), third];
    let cluster = Cluster::new([cordoned("n1"), cordoned("n2")], pods)
        .budgets([budget("web", json!({}))])
        .drains([by_requester()])
        .ledger(json!({ "nextTicket": 9, "claims": [own] }));
    let plan = plan(
        &cluster.snapshot_of(&["n1", "n2"]),
        &Memory::default(),
        &policy(),
        now(),
    );
    assert_eq!(asked_for(&plan), asked, "{:?}", shown(&plan));
}

/// Somebody deletes what is down until the node is back: whoever waits for the budget waits for the drain.
#[rstest]
#[case::queued(json!({ "held": [{ "pod": "shop/d1", "reason": "Pinned" }] }), json!({}), &["d1"], &[])]
#[case::left_out(json!({ "leftOut": [{ "pod": "shop/d1", "reason": "NeedExceedsBudget" }] }), json!({}), &["d1"], &[])]
#[case::it_was_missing_before(json!({ "leftOut": [{ "pod": "shop/d1", "reason": "BudgetUnhealthy" }] }), unready(), &[], &["d1"])]
#[case::it_moves(json!({ "movable": 1 }), json!({}), &[], &["d1"])]
fn pod_that_is_deleted_beside_the_claim_is_of_it(
    #[case] planned_before: Value,
    #[case] pod: Value,
    #[case] held: &[&str],
    #[case] moving: &[&str],
) {
    let drain = merged(by_requester(), json!({ "status": { "plan": planned_before } }));
    let mut cluster = beside(json!({}), json!({}), drain, &[since(Some(FOR_LONG))]);
    let terminates =
        json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:30Z", "deletionGracePeriodSeconds": 30 } });
    let deleted = pinned("d1", "db", "n1", merged(terminates, pod));
    cluster.0.pods[1] = Cluster::new([], [deleted]).0.pods.remove(0);
    let ledger = planned(&cluster).ledger.unwrap().next;
    let claim = ledger.claim("uid-n1").unwrap();
    assert_eq!(names(&claim.holds), held);
    assert_eq!(names(&claim.moving), moving);
}

fn names(of: &[Disruptions]) -> Vec<String> {
    let pods = of.iter().flat_map(|one| &one.pods);
    pods.map(|pod| pod.name.clone()).collect()
}

/// The status that tells of it may be behind, its readiness goes first, and a pod without a grace is gone in an instant.
#[rstest]
#[case::it_is_gone(None)]
#[case::it_is_not_ready_any_more(Some(merged(unready(), json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:30Z" } }))))]
fn pod_that_was_left_out_is_remembered(#[case] left: Option<Value>) {
    let budget = never_allows();
    let mut cluster = beside(budget, json!({}), by_requester(), &[since(Some(FOR_LONG))]);
    let before = planned(&cluster);
    assert_eq!(left_out(&before).len(), 1, "{:?}", shown(&before));
    let mut memory = Memory::default();
    memory.to_be_down = before.to_be_down;
    cluster.0.pods.remove(1);
    if let Some(patch) = left {
        let leaving = Cluster::new([], [pinned("d1", "db", "n1", patch)]);
        cluster.0.pods.push(leaving.0.pods[0].clone());
    }
    let plan = plan(&cluster.snapshot(), &memory, &policy(), now());
    let claim = plan.ledger.unwrap().next.claim("uid-n1").cloned().unwrap();
    assert_eq!(names(&claim.holds), ["d1"]);
    // The write may fail.
    let remembered = plan.to_be_down.values().flatten();
    assert_eq!(remembered.filter(|one| *one.pod.key.name == *"d1").count(), 1);
}

fn asks_owners() -> Value {
    drain(json!({ "spec": { "askOwners": true } }))
}

/// `d1` of a budget that never lets it go, and `one`, which may leave.
fn beside_never(node_1: Value, drain: Value) -> Cluster {
    let claim = claim(json!({ "foreignCordon": false }));
    let mut cluster = beside(never_allows(), json!({}), drain, &[claim]);
    cluster.0.nodes[0] = Cluster::new([node_1], []).0.nodes.remove(0);
    cluster
}

#[test]
fn drain_that_asks_owners_begins_beside_a_budget_that_never_allows() {
    let is_cordoned =
        |drain: Value| shown(&planned(&beside_never(node("n1", json!({})), drain))).contains(&"cordon n1".to_owned());
    assert!(!is_cordoned(drain(json!({}))));
    assert!(is_cordoned(asks_owners()));
}

/// Under another program's cordon the drain has to ask for it; whoever evicts by himself asks by that.
#[rstest]
#[case::for_the_drain(ours(json!({})), asks_owners(), true, LockReason::AwaitingPods)]
#[case::for_the_drain_under_another_cordon(cordoned("n1"), asks_owners(), true, LockReason::AwaitingPods)]
#[case::under_our_cordon(ours(json!({})), drain(json!({})), true, LockReason::BudgetNeverAllows)]
#[case::under_another_cordon(cordoned("n1"), drain(json!({})), false, LockReason::BudgetNeverAllows)]
#[case::of_a_requester_that_evicts(cordoned("n1"), by_requester(), false, LockReason::BudgetNeverAllows)]
fn owner_is_asked(#[case] node_1: Value, #[case] drain: Value, #[case] is_asked: bool, #[case] reason: LockReason) {
    let plan = planned(&beside_never(node_1, drain));
    let lines = shown(&plan);
    assert_eq!(lines.contains(&"ask for d1".to_owned()), is_asked, "{lines:?}");
    let of_db = |one: &&BlockedBy| one.pdb.as_deref() == Some("shop/db");
    let reasons: BTreeSet<_> = plan.drains[0]
        .blocked_by
        .iter()
        .filter(of_db)
        .map(|one| one.reason.as_str())
        .collect();
    assert_eq!(
        reasons,
        BTreeSet::from([reason.as_str()]),
        "{:?}",
        plan.drains[0].blocked_by
    );
}

/// Nothing is claimed for it, so that the rest of the drain does not wait.
#[test]
fn pod_of_an_owner_is_left_out_at_once() {
    let plan = planned(&beside_never(ours(json!({})), asks_owners()));
    assert_eq!(left_out(&plan), [("shop/d1".to_owned(), LockReason::BudgetNeverAllows)]);
    assert_eq!(asked_for(&plan), ["one"]);
    assert_eq!(plan.drains[0].leaves_out_at, None);
}

#[test]
fn owner_is_not_asked_again_before_a_minute_is_over() {
    let mut memory = Memory::default();
    memory.note_owner_asked("uid-d1".into(), at("2026-01-01T11:59:01Z"));
    let plan = plan(
        &beside_never(ours(json!({})), asks_owners()).snapshot(),
        &memory,
        &policy(),
        now(),
    );
    let lines = shown(&plan);
    assert!(!lines.contains(&"ask for d1".to_owned()), "{lines:?}");
}

/// It would begin anew at once, and keeps nothing from others.
#[rstest]
#[case::of_owners(asks_owners(), true)]
#[case::of_a_person(drain(json!({})), false)]
fn drain_that_waits_for_owners_is_not_requeued(#[case] drain: Value, #[case] waits: bool) {
    let mut cluster = beside_never(ours(json!({})), drain);
    let granted = merged(
        granted("Confirmed", &[]),
        json!({ "since": "2026-01-01T11:00:00Z", "holds": [], "needs": [], "obstructedSince": FOR_LONG }),
    );
    cluster = cluster.ledger(json!({ "nextTicket": 9, "claims": [granted] }));
    let plan = planned(&cluster);
    let lines = shown(&plan);
    let is_requeued = lines.iter().any(|line| line.contains("n1#9"));
    assert_eq!(is_requeued, !waits, "{lines:?}");
}
