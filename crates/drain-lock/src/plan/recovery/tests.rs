//! When a pod counts as back.

use nodeward_core::ledger::{Claim, Ledger};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::tests::fixture::{Cluster, budget, claims, merged, node, now, owner, parse, pod};

const BACK_AT: &str = "2026-01-01T11:30:00Z";

fn rebooted(patch: Value) -> Value {
    let base = json!({ "status": {
        "nodeInfo": { "bootID": "boot-2" },
        "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": BACK_AT }],
    } });
    node("n1", merged(base, patch))
}

fn started(time: &str) -> Value {
    json!({ "status": { "containerStatuses": [{
        "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": { "running": { "startedAt": time } },
    }] } })
}

fn ready_since(time: &str) -> Value {
    json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": time }] } })
}

const BEFORE: &str = "2026-01-01T11:29:59Z";
const AFTER: &str = "2026-01-01T11:30:01Z";

#[rstest]
#[case::started_since(json!({}), started(AFTER), true)]
#[case::started_at_the_same_moment(json!({}), started(BACK_AT), false)]
#[case::started_before(json!({}), started(BEFORE), false)]
// It needs no network of the cluster, and was started before the node was Ready.
#[case::started_before_and_ready_since(json!({}), merged(started(BEFORE), ready_since(AFTER)), true)]
#[case::nothing_runs(json!({}), json!({}), false)]
#[case::not_ready(
    json!({}), merged(started(AFTER), json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } })), false
)]
#[case::terminating(
    json!({}), merged(started(AFTER), json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } })), false
)]
#[case::the_same_boot(json!({ "status": { "nodeInfo": { "bootID": "boot-1" } } }), started(AFTER), false)]
#[case::a_boot_that_nobody_told(json!({ "status": { "nodeInfo": { "bootID": "" } } }), started(AFTER), false)]
#[case::its_node_is_not_ready(
    json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "lastTransitionTime": BACK_AT }] } }), started(AFTER), false
)]
#[case::since_when_its_node_is_ready_is_not_told(
    json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }), started(AFTER), false
)]
fn retained_pod_recovers_ready_in_new_boot(#[case] node_patch: Value, #[case] pod_patch: Value, #[case] back: bool) {
    let snapshot = Cluster::new([rebooted(node_patch)], [pod("a", pod_patch)]).snapshot();
    let claim: Claim = parse(claim(1, 5, &["a"]));
    assert_eq!(
        claim.is_back(&claim.holds[0].pods[0], snapshot.pod("a"), &snapshot.nodes["n1"]),
        back
    );
}

/// Claims stand where they do since 11:00, and the node is back since 11:30.
#[rstest]
#[case::both_since_then("2026-01-01T11:20:00Z", "2026-01-01T11:20:01Z", BACK_AT, true)]
#[case::started_before("2026-01-01T11:00:00Z", "2026-01-01T11:20:01Z", BACK_AT, false)]
#[case::ready_before("2026-01-01T11:20:00Z", "2026-01-01T11:00:00Z", BACK_AT, false)]
#[case::its_node_was_ready_all_the_time("2026-01-01T09:20:00Z", "2026-01-01T09:20:01Z", "2026-01-01T10:00:00Z", false)]
fn host_network_pod_may_precede_its_node(
    #[case] started_at: &str,
    #[case] ready_at: &str,
    #[case] node_back_at: &str,
    #[case] back: bool,
) {
    let conditions = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": node_back_at }] } });
    let pods = [pod("a", merged(started(started_at), ready_since(ready_at)))];
    let snapshot = Cluster::new([rebooted(conditions)], pods).snapshot();
    let claim: Claim = parse(claim(1, 5, &["a"]));
    assert_eq!(
        claim.is_back(&claim.holds[0].pods[0], snapshot.pod("a"), &snapshot.nodes["n1"]),
        back
    );
}

/// Ready all the time, as the Ready condition has it.
fn rebooted_unnoticed() -> Value {
    let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T09:00:00Z" });
    rebooted(json!({ "status": { "conditions": [ready] } }))
}

fn runs(container_id: &str, started_at: &str) -> Value {
    let mut status = started(started_at);
    status["status"]["containerStatuses"][0]["containerID"] = container_id.into();
    merged(status, ready_since(started_at))
}

/// The node was Ready all the time: its reboot took less than the node monitor's grace.
#[rstest]
#[case::reported_as_before("containerd://1", "2026-01-01T09:20:00Z", false)]
#[case::started_anew("containerd://2", "2026-01-01T11:31:00Z", true)]
// The clock of its node is behind.
#[case::started_anew_by_a_clock_behind("containerd://2", "2026-01-01T10:55:00Z", true)]
// It crashed under the claim, before the reboot.
#[case::restarted_before_the_reboot("containerd://1", "2026-01-01T11:10:00Z", false)]
fn retained_pod_recovers_with_other_containers(#[case] id: &str, #[case] started_at: &str, #[case] back: bool) {
    let before = pod("a", runs("containerd://1", "2026-01-01T09:20:00Z"));
    let hash = Cluster::new([], [before]).snapshot().pod("a").containers.unwrap();
    let snapshot = Cluster::new([rebooted_unnoticed()], [pod("a", runs(id, started_at))]).snapshot();
    let mut claim: Claim = parse(claim(1, 5, &["a"]));
    claim.holds[0].pods[0].retained = true;
    claim.holds[0].pods[0].containers = hash.to_string();
    let held = claim.holds[0].pods[0].clone();
    assert_eq!(claim.is_back(&held, snapshot.pod("a"), &snapshot.nodes["n1"]), back);
}

/// Nothing is known of its containers from before: the node was Ready all the time, the claim stands since 11:00.
#[rstest]
#[case::started_before_the_claim("2026-01-01T09:20:00Z", false)]
#[case::started_since("2026-01-01T11:31:00Z", true)]
fn start_tells_where_no_hash_was_kept(#[case] started_at: &str, #[case] back: bool) {
    let snapshot = Cluster::new([rebooted_unnoticed()], [pod("a", started(started_at))]).snapshot();
    let claim: Claim = parse(claim(1, 5, &["a"]));
    let held = &claim.holds[0].pods[0];
    assert_eq!(claim.is_back(held, snapshot.pod("a"), &snapshot.nodes["n1"]), back);
}

/// Its node was not Ready when its turn ended, or its eviction never happened; the node is back in the same boot.
#[rstest]
#[case::turn_ended("Returning", json!({}), json!({}), true)]
#[case::not_healthy("Returning", json!({}), json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }), false)]
#[case::its_node_is_not_ready("Returning", json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } }), json!({}), false)]
#[case::still_granted("Confirmed", json!({}), json!({}), false)]
fn pod_that_runs_on_recovers_once_turn_ended(
    #[case] state: &str,
    #[case] node_patch: Value,
    #[case] pod_patch: Value,
    #[case] back: bool,
) {
    let same_boot = merged(json!({ "status": { "nodeInfo": { "bootID": "boot-1" } } }), node_patch);
    let snapshot = Cluster::new([rebooted(same_boot)], [pod("a", pod_patch)]).snapshot();
    for is_retained in [false, true] {
        let mut claim: Claim = parse(merged(claim(1, 5, &["a"]), json!({ "state": state })));
        claim.holds[0].pods[0].retained = is_retained;
        for may_go_down in [false, true] {
            claim.may_go_down = may_go_down;
            let held = &claim.holds[0].pods[0];
            let state = claim.state_of_present(held, snapshot.pod("a"), &snapshot.nodes["n1"], false, claim.since);
            assert_eq!(state == HeldPodState::Recovered, back && !may_go_down);
        }
    }
}

/// The oldest start counts: a container that was not started anew is still the one from before.
#[rstest]
#[case::one_container_is_older(&[BEFORE, AFTER], false)]
#[case::all_are_new(&[AFTER, AFTER], true)]
fn every_container_must_have_been_started_anew(#[case] times: &[&str], #[case] back: bool) {
    let statuses: Vec<Value> = times
        .iter()
        .map(|time| started(time)["status"]["containerStatuses"][0].clone())
        .collect();
    let patch = json!({ "status": { "containerStatuses": statuses } });
    let snapshot = Cluster::new([rebooted(json!({}))], [pod("a", patch)]).snapshot();
    let claim: Claim = parse(claim(1, 5, &["a"]));
    assert_eq!(
        claim.is_back(&claim.holds[0].pods[0], snapshot.pod("a"), &snapshot.nodes["n1"]),
        back
    );
}

fn claim(ticket: i64, healthy_at_grant: i32, pods: &[&str]) -> Value {
    let pods: Vec<Value> = pods
        .iter()
        .map(|name| json!({ "name": name, "uid": format!("uid-{name}") }))
        .collect();
    json!({
        "ticket": ticket, "node": format!("n{ticket}"), "nodeUID": format!("uid-n{ticket}"), "state": "Confirmed",
        "since": "2026-01-01T11:00:00Z", "queuedAt": "2026-01-01T11:00:00Z", "grant": 1, "bootID": "boot-1",
        "holds": [{
            "pdb": { "namespace": "shop", "name": "web", "uid": "uid-web" }, "healthyAtGrant": healthy_at_grant, "pods": pods,
        }],
    })
}

/// Which pods of these claims count as back, while these pods are there.
fn back(claims: &[Value], pods: Vec<Value>, budget_patch: Value) -> Vec<String> {
    let status = json!({ "status": { "expectedPods": 5, "desiredHealthy": 4 } });
    let cluster = Cluster::new([node("n1", json!({})), node("n9", json!({}))], pods)
        .budgets([budget("web", merged(status, budget_patch))])
        .ledger(json!({ "nextTicket": 9, "claims": claims }));
    let snapshot = cluster.snapshot();
    let Some(ledger) = &snapshot.ledger else {
        panic!("the ledger is there");
    };
    let holds = ledger.ledger.claims().iter().flat_map(|claim| &claim.holds);
    holds
        .flat_map(|disruptions| disruptions.pods.iter().map(move |pod| (disruptions, pod)))
        .filter(|(disruptions, held)| has_recovered(disruptions, held, &snapshot))
        .map(|(_, held)| held.name.clone())
        .collect()
}

fn running(names: &[&str]) -> Vec<Value> {
    names
        .iter()
        .map(|name| pod(name, json!({ "spec": { "nodeName": "n9" } })))
        .collect()
}

#[rstest]
#[case::its_pod_is_missing(&[claim(1, 5, &["a"])], &["w", "x", "y", "z"], &[])]
#[case::as_many_are_healthy_as_before(&[claim(1, 5, &["a"])], &["v", "w", "x", "y", "z"], &["a"])]
// One pod was not healthy before the grant either.
#[case::as_many_as_before_though_not_all(&[claim(1, 4, &["a"])], &["w", "x", "y", "z"], &["a"])]
#[case::one_of_two_is_replaced(&[claim(1, 5, &["a", "b"])], &["w", "x", "y", "z"], &["a"])]
#[case::none_of_two(&[claim(1, 5, &["a", "b"])], &["x", "y", "z"], &[])]
// One replacement serves one claim, the older one.
#[case::of_two_claims_the_older_is_served(&[claim(1, 5, &["a"]), claim(2, 5, &["b"])], &["w", "x", "y", "z"], &["a"])]
#[case::both(&[claim(1, 5, &["a"]), claim(2, 5, &["b"])], &["v", "w", "x", "y", "z"], &["a", "b"])]
fn evicted_pods_are_back_when_their_budget_has_recovered(
    #[case] claims: &[Value],
    #[case] there: &[&str],
    #[case] expected: &[&str],
) {
    assert_eq!(back(claims, running(there), json!({})), expected);
}

#[test]
fn scaled_down_workload_recovers_with_fewer_pods() {
    let scaled = json!({ "status": { "expectedPods": 3, "desiredHealthy": 2 } });
    assert_eq!(back(&[claim(1, 5, &["a"])], running(&["x", "y", "z"]), scaled), ["a"]);
}

/// Of an integer `minAvailable` Kubernetes counts the pods that exist: the one that is down has gone from `expectedPods`.
#[rstest]
#[case::down(&["x", "y"], "example.com/v1", false)]
#[case::another_in_its_place(&["x", "y", "z"], "example.com/v1", true)]
// Its owner makes another one at once, so that fewer pods are fewer replicas.
#[case::of_a_kind_of_kubernetes(&["x", "y"], "apps/v1", true)]
fn integer_minimum_never_returns_a_down_pods_disruption(
    #[case] there: &[&str],
    #[case] api_version: &str,
    #[case] returned: bool,
) {
    let owner = json!({ "metadata": { "ownerReferences": [owner(api_version, "Load", "load")] } });
    let pods: Vec<Value> = there.iter().map(|name| pod(name, owner.clone())).collect();
    let count = i32::try_from(there.len()).unwrap();
    let budget = json!({
        "spec": { "maxUnavailable": null, "minAvailable": 2 },
        "status": {
            "expectedPods": count, "currentHealthy": count, "desiredHealthy": 2, "disruptionsAllowed": count - 2,
        },
    });
    let expected: &[&str] = if returned { &["a"] } else { &[] };
    assert_eq!(back(&[claim(1, 3, &["a"])], pods, budget), expected);
}

#[test]
fn a_status_that_is_behind_tells_nothing() {
    let behind = json!({ "metadata": { "generation": 2 } });
    assert_eq!(
        back(&[claim(1, 5, &["a"])], running(&["v", "w", "x", "y", "z"]), behind),
        [""; 0]
    );
}

#[test]
fn disruptions_of_a_budget_that_is_gone_are_back() {
    assert_eq!(
        back(
            &[claim(1, 5, &["a"])],
            vec![],
            json!({ "metadata": { "uid": "another" } })
        ),
        ["a"]
    );
}

#[test]
fn unhealthy_pod_keeps_its_disruption() {
    let unready = pod(
        "a",
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
    );
    let mut pods = running(&["v", "w", "x", "y", "z"]);
    pods.push(unready);
    assert_eq!(back(&[claim(1, 5, &["a", "b"])], pods, json!({})), ["b"]);
}

#[rstest]
#[case::ready(json!({}), "old", true)]
#[case::not_ready(json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }), "old", false)]
#[case::terminating(json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } }), "old", false)]
#[case::the_same_pod(json!({}), "uid-a", false)]
fn a_successor_of_the_same_name_replaces_a_pod(#[case] patch: Value, #[case] uid: &str, #[case] replaced: bool) {
    let elsewhere = merged(patch, json!({ "spec": { "nodeName": "n9" } }));
    let mut held = claim(1, 5, &["a"]);
    held["holds"][0]["pods"][0]["uid"] = uid.into();
    let cluster = Cluster::new([node("n9", json!({}))], [pod("a", elsewhere)]).ledger(json!({ "claims": [held] }));
    let snapshot = cluster.snapshot();
    assert_eq!(has_successor(&PodKey::new("shop", "a"), uid, &snapshot.held), replaced);
}

#[test]
fn named_successor_replaces_only_its_own_pod() {
    let mut held = claim(1, 5, &["a", "b"]);
    held["holds"][0]["pods"][0]["uid"] = "old".into();
    // a is back under its name, b is missing.
    assert_eq!(back(&[held], running(&["a", "x", "y", "z"]), json!({})), [""; 0]);
}

/// Two claims of one budget that may miss two: the second is granted while the pod of the first is down.
#[rstest]
#[case::the_other_claims_pod(&["a", "x", "y", "z"], false)]
#[case::its_own_too(&["a", "v", "x", "y", "z"], true)]
fn recovered_pods_of_other_claim_do_not_count(#[case] there: &[&str], #[case] recovered: bool) {
    let status = json!({ "status": { "expectedPods": 5, "desiredHealthy": 3, "disruptionsAllowed": 1 } });
    let before = Cluster::new([], running(&["b", "x", "y", "z"])).budgets([budget("web", status.clone())]);
    let facts = before.cache().facts([&BudgetKey::new("shop", "web")], now());
    let mut waits = claim(2, 0, &[]);
    waits["state"] = "Waiting".into();
    waits["needs"] = waits["holds"].take();
    waits["holds"] = json!([]);
    waits["needs"][0]["pods"] = json!([{ "name": "b", "uid": "uid-b" }]);
    let mut ledger = Ledger::of(9, claims(&json!([claim(1, 5, &["a"]), waits])));
    ledger.try_grant("uid-n2", "boot-1", &facts, now()).unwrap();
    // The first claim's pod is back, and its disruption with it.
    ledger.return_pods("uid-n1", &["uid-a"]);
    ledger.remove("uid-n1");
    let after = Cluster::new([], running(there))
        .budgets([budget("web", status)])
        .ledger(json!({ "nextTicket": 9, "claims": ledger.claims() }));
    let disruptions = &ledger.claim("uid-n2").unwrap().holds[0];
    assert_eq!(
        has_recovered(disruptions, &disruptions.pods[0], &after.snapshot()),
        recovered
    );
}

/// When the newest pod of the first grant was created, and when all others of then.
const THEN: &str = "2026-01-01T00:00:00Z";

/// A pod on another node that was there at the first grant.
fn of_then(name: &str) -> Value {
    pod(name, json!({ "spec": { "nodeName": "n9" } }))
}

fn since(name: &str) -> Value {
    merged(
        of_then(name),
        json!({ "metadata": { "creationTimestamp": "2026-01-01T11:10:00Z" } }),
    )
}

fn failing(pod: Value) -> Value {
    merged(
        pod,
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
    )
}

fn terminating(pod: Value) -> Value {
    merged(
        pod,
        json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } }),
    )
}

fn ended(pod: Value) -> Value {
    merged(failing(pod), json!({ "status": { "phase": "Failed" } }))
}

fn bare(pod: Value) -> Value {
    merged(pod, json!({ "metadata": { "ownerReferences": null } }))
}

/// As [`back`], of a Deployment of so many pods; at the first grant so many of them were missing.
fn back_by_number(claims: &[Value], pods: Vec<Value>, expected: i32, missing: i32) -> Vec<String> {
    let status = json!({ "expectedPods": expected, "desiredHealthy": expected - 1 });
    let mut cluster = Cluster::new([node("n1", json!({})), node("n9", json!({}))], pods)
        .budgets([budget("web", json!({ "status": status }))])
        .ledger(json!({ "nextTicket": 9, "claims": claims }));
    let rows = &mut cluster.0.ledger.as_mut().unwrap().spec.budgets;
    rows[0].newest_pod = Some(THEN.parse().unwrap());
    rows[0].missing_pods = missing;
    let snapshot = cluster.snapshot();
    let ledger = &snapshot.ledger.as_ref().unwrap().ledger;
    let holds = ledger.claims().iter().flat_map(|claim| &claim.holds);
    let mut back: Vec<String> = holds
        .flat_map(|disruptions| disruptions.pods.iter().map(move |pod| (disruptions, pod)))
        .filter(|(disruptions, held)| has_recovered(disruptions, held, &snapshot))
        .map(|(_, held)| held.name.clone())
        .collect();
    back.sort();
    back
}

/// Of three pods `a` was evicted; `d` is in its place.
#[rstest]
#[case::none_is_in_its_place(vec![of_then("b"), of_then("c")], 3, &[])]
#[case::the_one_in_its_place_starts(vec![of_then("b"), of_then("c"), failing(since("d"))], 3, &[])]
#[case::the_one_in_its_place_is_ready(vec![of_then("b"), of_then("c"), since("d")], 3, &["a"])]
#[case::another_fails(vec![failing(of_then("b")), of_then("c"), since("d")], 3, &["a"])]
#[case::another_fails_and_it_starts(vec![failing(of_then("b")), of_then("c"), failing(since("d"))], 3, &[])]
#[case::another_fails_and_none_is_in_its_place(vec![failing(of_then("b")), of_then("c")], 3, &[])]
#[case::others_were_made_anew(vec![since("b2"), since("c2"), failing(since("d"))], 3, &[])]
#[case::all_were_made_anew(vec![since("b2"), since("c2"), since("d")], 3, &["a"])]
#[case::another_is_made_anew_before_it_goes(
    vec![of_then("b"), of_then("c"), failing(since("d")), since("b2")], 3, &[]
)]
#[case::another_goes_and_its_successor_is_ready(
    vec![terminating(of_then("b")), of_then("c"), failing(since("d")), since("b2")], 3, &[]
)]
#[case::another_has_ended(vec![ended(of_then("b")), of_then("c"), failing(since("d")), since("b2")], 3, &[])]
#[case::scaled_up(vec![of_then("b"), of_then("c"), failing(since("d")), since("e")], 4, &[])]
#[case::scaled_up_and_all_are_ready(vec![of_then("b"), of_then("c"), since("d"), since("e")], 4, &["a"])]
#[case::scaled_down(vec![of_then("b"), of_then("c")], 2, &["a"])]
#[case::one_without_a_controller(vec![of_then("b"), of_then("c"), failing(since("d")), bare(since("e"))], 3, &[])]
fn evicted_pod_is_paid_by_number(#[case] there: Vec<Value>, #[case] expected: i32, #[case] returned: &[&str]) {
    assert_eq!(back_by_number(&[claim(1, 3, &["a"])], there, expected, 0), returned);
}

#[rstest]
#[case::one(vec![of_then("c"), since("d")], &["a"])]
#[case::both(vec![of_then("c"), since("d"), since("e")], &["a", "b"])]
fn oldest_grant_is_paid_first(#[case] there: Vec<Value>, #[case] returned: &[&str]) {
    let claims = [claim(2, 3, &["b"]), claim(1, 3, &["a"])];
    assert_eq!(back_by_number(&claims, there, 3, 0), returned);
}

/// The second grant is for the pod that is in the place of the first one's.
#[rstest]
#[case::it_runs(vec![of_then("b"), of_then("c"), since("d")], &["a"])]
#[case::it_went(vec![of_then("b"), of_then("c")], &["a"])]
#[case::it_went_and_another_starts(vec![of_then("b"), of_then("c"), failing(since("e"))], &["a"])]
#[case::it_went_and_another_is_ready(vec![of_then("b"), of_then("c"), since("e")], &["a", "d"])]
fn pod_of_later_grant_owes_its_own(#[case] there: Vec<Value>, #[case] returned: &[&str]) {
    let claims = [claim(1, 3, &["a"]), claim(2, 3, &["d"])];
    assert_eq!(back_by_number(&claims, there, 3, 0), returned);
}

/// A quota keeps the fourth pod from being made.
#[rstest]
#[case::it_starts(failing(since("d")), &[])]
#[case::it_is_ready(since("d"), &["a"])]
fn pod_that_never_was_keeps_nobody_waiting(#[case] in_its_place: Value, #[case] returned: &[&str]) {
    let there = vec![of_then("b"), of_then("c"), in_its_place];
    assert_eq!(back_by_number(&[claim(1, 3, &["a"])], there, 4, 1), returned);
}
