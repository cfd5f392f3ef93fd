//! Maintenance windows: a drain of drain-lock's own begins in one, and goes on outside.

use super::*;

const CLOSED: &str = "[{ from: '13:00', to: '15:00' }]";
const OPEN: &str = "[{ from: '11:00', to: '15:00' }]";

fn planned_in(windows: &str, cluster: &Cluster) -> Plan {
    let policy = Policy {
        windows: serde_yaml::from_str(windows).unwrap(),
        ..policy()
    };
    plan(&cluster.snapshot(), &Memory::default(), &policy, now())
}

fn wanted(node: Value, spec: Value, claims: &[Value]) -> Cluster {
    cluster(
        node,
        Some(drain(json!({ "spec": spec }))),
        claims,
        &[held("a", json!({}))],
    )
}

fn evicted_by_others() -> Cluster {
    let annotations = json!({ nodeward_api::annotation::LAST_EVICTION: A_MINUTE_AGO });
    let drain = drain(json!({ "metadata": { "annotations": annotations } }));
    cluster(foreign(json!({})), Some(drain), &[], &[held("a", json!({}))])
}

const WAITS: &[&str] = &["n1 is Scheduled: WaitsForWindow"];
const BEGINS: &[&str] = &["ledger: n1#1 Waiting needs [] holds []", "cordon n1", "n1 is Scheduled"];
const GOES_ON: &[&str] = &[
    "ledger: n1#1 Waiting needs [a] holds []",
    "grant uid-n1",
    "n1 is Draining",
];

#[rstest]
#[case::has_not_begun(CLOSED, wanted(node("n1", json!({})), json!({}), &[]), WAITS)]
#[case::begins_in_a_window(OPEN, wanted(node("n1", json!({})), json!({}), &[]), BEGINS)]
#[case::begins_in_an_emergency(CLOSED, wanted(node("n1", json!({})), json!({ "ignoreWindows": true }), &[]), BEGINS)]
#[case::window_closed_before_its_turn(
    CLOSED, wanted(node("n1", json!({})), json!({}), &[claim(json!({}))]), &["ledger: empty", "n1 is Scheduled: WaitsForWindow"]
)]
#[case::was_begun(CLOSED, wanted(ours(json!({})), json!({}), &[claim(json!({}))]), GOES_ON)]
#[case::was_begun_and_its_claim_is_lost(
    CLOSED, wanted(ours(json!({})), json!({}), &[]),
    &["ledger: n1#1 Waiting needs [a] holds []", "grant uid-n1", "n1 is Draining"]
)]
#[case::found_a_cordoned_node_and_has_not_begun(CLOSED, wanted(foreign(json!({})), json!({}), &[]), WAITS)]
#[case::has_pods_down(
    CLOSED,
    cluster(
        node("n1", rebooted()), Some(drain(json!({}))), &[merged(granted("Returning", &["(a)"]), json!({ "needs": [] }))],
        &[retained("a", json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }))],
    ),
    &["n1 is Recovering: WaitsForWindow"]
)]
fn drain_of_ours_begins_in_a_window(#[case] windows: &str, #[case] cluster: Cluster, #[case] expected: &[&str]) {
    assert_eq!(shown(&planned_in(windows, &cluster)), expected);
}

#[rstest]
#[case::by_a_requester(wanted(foreign(json!({})), json!({ "evict": "Requester" }), &[]))]
#[case::beside_a_drain_of_ours(evicted_by_others())]
fn drains_by_others_are_not_held_back(#[case] cluster: Cluster) {
    let lines = shown(&planned_in(CLOSED, &cluster));
    assert!(lines.contains(&"grant uid-n1".to_owned()), "{lines:?}");
}

#[test]
fn waiting_drain_says_when_the_window_opens() {
    let plan = planned_in(CLOSED, &wanted(node("n1", json!({})), json!({}), &[]));
    let message = "waits for a maintenance window, which opens at 2026-01-01T13:00:00Z";
    let verdict = &plan.drains[0];
    assert_eq!((&*verdict.message, &*verdict.blocked_by[0].message), (message, message));
    assert_eq!(
        (plan.requeue_at, &verdict.claim),
        (Some(at("2026-01-01T13:00:00Z")), &None)
    );
}

/// Its turn may come only after that.
#[test]
fn queued_drain_is_looked_at_again_when_the_window_closes() {
    let misconfigured = json!({ "spec": { "maxUnavailable": 0 }, "status": { "disruptionsAllowed": 0 } });
    let cluster = wanted(node("n1", json!({})), json!({}), &[]).budgets([budget("web", misconfigured)]);
    let plan = planned_in("[{ from: '11:00', to: '12:10' }]", &cluster);
    assert_eq!(
        (plan.drains[0].phase, plan.requeue_at),
        (Phase::Scheduled, Some(at("2026-01-01T12:10:00Z")))
    );
}

/// What a queued node carries goes with its ticket.
#[test]
fn mark_of_the_queue_goes_with_the_ticket() {
    let taint = json!({ "key": nodeward_api::taint::QUEUED, "effect": "PreferNoSchedule" });
    let marked = node("n1", json!({ "spec": { "taints": [taint] } }));
    let plan = planned_in(CLOSED, &wanted(marked, json!({}), &[claim(json!({}))]));
    assert_eq!(
        shown(&plan),
        ["ledger: empty", "mark n1", "n1 is Scheduled: WaitsForWindow"]
    );
}
