//! Places in node groups: taken before the cordon or with the grant, kept until the node is back.

use super::*;
use nodeward_core::ledger::NodeGroupVerdict;

fn policy_with(groups: Value) -> Policy {
    let config: Config = serde_json::from_value(json!({ "nodeGroups": groups })).unwrap();
    Policy {
        medik8s_leases: None,
        ..Policy::from_config(config).unwrap()
    }
}

/// All nodes, of which so many may be away.
fn workers(max_unavailable: Value) -> Policy {
    policy_with(json!([{ "name": "workers", "selector": {}, "maxUnavailable": max_unavailable }]))
}

fn worker(name: &str, patch: Value) -> Value {
    node(
        name,
        merged(json!({ "metadata": { "creationTimestamp": YESTERDAY } }), patch),
    )
}

fn not_ready(since: &str) -> Value {
    json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "lastTransitionTime": since }] } })
}

fn drain_of(name: &str, patch: Value) -> Value {
    let base = json!({
        "metadata": { "name": name, "uid": format!("uid-drain-{name}") },
        "spec": { "nodeName": name, "nodeUID": format!("uid-{name}") },
    });
    merged(drain(base), patch)
}

fn claim_of_node(ticket: i64, name: &str, patch: Value) -> Value {
    let base = json!({ "ticket": ticket, "node": name, "nodeUID": format!("uid-{name}"), "state": "Waiting" });
    claim(merged(base, patch))
}

fn with_places(patch: Value) -> Value {
    merged(json!({ "nodeGroups": ["workers"] }), patch)
}

/// What becomes of these nodes, and the places that claims have afterwards.
fn groups_after(
    policy: &Policy,
    nodes: Vec<Value>,
    drains: Vec<Value>,
    claims: &[Value],
) -> (Vec<String>, Vec<String>) {
    let cluster = Cluster::new(nodes, [])
        .drains(drains)
        .ledger(json!({ "nextTicket": 9, "claims": claims }));
    let plan = plan(&cluster.snapshot(), &Memory::default(), policy, now());
    let mut lines = shown(&plan);
    lines.retain(|line| !line.starts_with("ledger") && !line.starts_with("mark"));
    let ledger = plan.ledger.as_ref().map(|write| write.next.claims().to_vec());
    let before: Vec<_> = cluster.snapshot().claims().to_vec();
    let claims = ledger.unwrap_or(before);
    let places = claims.iter().filter(|claim| !claim.node_groups.is_empty());
    (lines, places.map(|claim| claim.node.clone()).collect())
}

#[rstest]
#[case::place_comes_before_the_cordon(json!({}), &["n1 is Scheduled"], &["n1"])]
#[case::cordon_follows_the_place(with_places(json!({})), &["cordon n1", "n1 is Scheduled"], &["n1"])]
fn node_is_cordoned_once_it_has_its_place(#[case] state: Value, #[case] expected: &[&str], #[case] places: &[&str]) {
    let nodes = vec![worker("n1", json!({})), worker("n2", json!({}))];
    let done = groups_after(
        &workers(json!(1)),
        nodes,
        vec![drain_of("n1", json!({}))],
        &[claim_of_node(1, "n1", state)],
    );
    assert_eq!(
        done,
        (
            expected.iter().map(ToString::to_string).collect(),
            places.iter().map(ToString::to_string).collect()
        )
    );
}

#[rstest]
#[case::one_at_a_time(json!(1), &["n1"], "n2 is Queued: WaitsForNodeGroup")]
#[case::two_at_a_time(json!(2), &["n1", "n2"], "n2 is Scheduled")]
#[case::half_of_four(json!("50%"), &["n1", "n2"], "n2 is Scheduled")]
#[case::a_third_of_four(json!("33%"), &["n1"], "n2 is Queued: WaitsForNodeGroup")]
fn oldest_drains_take_the_places(#[case] limit: Value, #[case] places: &[&str], #[case] second: &str) {
    let nodes = ["n1", "n2", "n3", "n4"].map(|name| worker(name, json!({}))).to_vec();
    let drains = ["n1", "n2"].map(|name| drain_of(name, json!({}))).to_vec();
    let claims = [claim_of_node(1, "n1", json!({})), claim_of_node(2, "n2", json!({}))];
    let (lines, taken) = groups_after(&workers(limit), nodes, drains, &claims);
    assert_eq!(taken, places);
    assert_eq!(lines[1], second);
}

/// `n2` is away without a drain, and `n1` asks for the one place.
#[rstest]
#[case::not_ready(worker("n2", not_ready(A_MINUTE_AGO)), "n1 is Scheduled: GroupUnhealthy")]
#[case::has_not_joined_yet(
    worker("n2", merged(not_ready("2026-01-01T11:59:30Z"), json!({ "metadata": { "creationTimestamp": "2026-01-01T11:59:30Z" } }))),
    "n1 is Scheduled"
)]
#[case::is_being_deleted(
    worker("n2", merged(not_ready(A_MINUTE_AGO), json!({ "metadata": { "deletionTimestamp": A_MINUTE_AGO } }))), "n1 is Scheduled"
)]
fn nodes_that_failed_take_places(#[case] other: Value, #[case] expected: &str) {
    let nodes = vec![worker("n1", json!({})), other];
    let claims = [claim_of_node(1, "n1", json!({}))];
    let (lines, _) = groups_after(&workers(json!(1)), nodes, vec![drain_of("n1", json!({}))], &claims);
    assert_eq!(lines, [expected]);
}

#[test]
fn verdict_of_a_group_tells_drained_from_failed() {
    let failed = not_ready(A_MINUTE_AGO);
    let nodes = [
        ("n1", failed.clone()),
        ("n2", failed),
        ("n3", json!({})),
        ("n4", json!({})),
    ];
    let nodes = nodes.map(|(name, patch)| worker(name, patch));
    let cluster = Cluster::new(nodes, [])
        .drains([drain_of("n1", json!({}))])
        .ledger(json!({ "nextTicket": 9, "claims": [claim_of_node(1, "n1", with_places(json!({})))] }));
    let policy = workers(json!("50%"));
    let plan = plan(&cluster.snapshot(), &Memory::default(), &policy, now());
    let verdict = plan.node_groups.iter().find(|group| group.name == "workers").unwrap();
    assert_eq!(
        *verdict,
        NodeGroupVerdict {
            name: "workers".to_owned(),
            allowed: 2,
            draining: ["n1".into()].into(),
            unhealthy: ["n2".into()].into(),
        }
    );
}

/// They were told so before the group was configured, and may go down at any moment, however their claims wait since.
#[rstest]
#[case("Confirmed")]
#[case("Waiting")]
#[case("Returning")]
#[case("Suspect")]
fn node_that_may_go_down_counts_as_away(#[case] state: &str) {
    let nodes = vec![worker("n1", json!({})), worker("n2", json!({}))];
    let told = json!({ "state": state, "mayGoDown": true, "holds": [disruptions(&["(x)"])] });
    let claims = [claim_of_node(1, "n1", json!({})), claim_of_node(2, "n2", told)];
    let (_, places) = groups_after(&workers(json!(1)), nodes, vec![drain_of("n1", json!({}))], &claims);
    assert_eq!(places, [""; 0]);
}

#[test]
fn failed_node_may_be_drained_itself() {
    let nodes = vec![worker("n1", not_ready(A_MINUTE_AGO)), worker("n2", json!({}))];
    let claims = [claim_of_node(1, "n1", json!({}))];
    let (_, places) = groups_after(&workers(json!(1)), nodes, vec![drain_of("n1", json!({}))], &claims);
    assert_eq!(places, ["n1"]);
}

/// `n1` waits for a place in two groups, one of which is full; `n3` asks for one in the other.
#[test]
fn oldest_waiting_drain_keeps_its_places_free() {
    let groups = policy_with(json!([
        { "name": "a", "selector": { "matchLabels": { "a": "" } }, "maxUnavailable": 1 },
        { "name": "b", "selector": { "matchLabels": { "b": "" } }, "maxUnavailable": 1 },
    ]));
    let labelled = |name: &str, labels: Value| worker(name, json!({ "metadata": { "labels": labels } }));
    let nodes = vec![
        labelled("n1", json!({ "a": "", "b": "" })),
        labelled("n2", json!({ "a": "" })),
        labelled("n3", json!({ "b": "" })),
    ];
    let drains = ["n1", "n3"].map(|name| drain_of(name, json!({}))).to_vec();
    let claims = [
        claim_of_node(1, "n1", json!({})),
        claim_of_node(
            2,
            "n2",
            json!({ "state": "Confirmed", "mayGoDown": true, "nodeGroups": ["a"] }),
        ),
        claim_of_node(3, "n3", json!({})),
    ];
    let (lines, places) = groups_after(&groups, nodes, drains, &claims);
    assert_eq!(places, ["n2"]);
    assert!(
        lines.contains(&"n3 is Queued: WaitsForNodeGroup".to_owned()),
        "{lines:?}"
    );
}

/// Both asked for by others, who have cordoned the nodes: with the grant one of them has the place.
#[test]
fn foreign_drain_takes_place_with_its_grant() {
    let cordoned = |name: &str| worker(name, json!({ "spec": { "unschedulable": true } }));
    let by_others = |name: &str| drain_of(name, json!({ "spec": { "evict": "Requester" } }));
    let claims = ["n1", "n2"]
        .iter()
        .zip(1..)
        .map(|(name, ticket)| claim_of_node(ticket, name, json!({ "foreignCordon": true })));
    let cluster = Cluster::new([cordoned("n1"), cordoned("n2")], [])
        .drains([by_others("n1"), by_others("n2")])
        .ledger(json!({ "nextTicket": 9, "claims": claims.collect::<Vec<_>>() }));
    let plan = plan(&cluster.snapshot(), &Memory::default(), &workers(json!(1)), now());
    let asks = &plan.ledger.as_ref().unwrap().grants;
    assert_eq!(asks.len(), 1);
    assert_eq!(
        (asks[0].node_uid.as_str(), asks[0].node_groups.as_slice()),
        ("uid-n1", ["workers".to_owned()].as_slice())
    );
    assert_eq!(shown(&plan).last().unwrap(), "n2 is Queued: WaitsForNodeGroup");
}

/// The drain of `n2` is over, and its node is back: what the write of that rests on is read only then, and may not be so.
#[rstest]
#[case::the_older(1, 2)]
#[case::the_younger(2, 1)]
fn place_is_free_once_its_return_is_written(#[case] ticket: i64, #[case] ticket_of_over: i64) {
    let nodes = [
        worker("n1", json!({ "spec": { "unschedulable": true } })),
        worker("n2", json!({})),
    ];
    let asks = |claims: &[Value]| {
        let cluster = Cluster::new(nodes.clone(), [])
            .drains([
                drain_of("n1", json!({ "spec": { "evict": "Requester" } })),
                drain_of("n2", json!({ "metadata": { "deletionTimestamp": A_MINUTE_AGO } })),
            ])
            .ledger(json!({ "nextTicket": 9, "claims": claims }));
        let plan = plan(&cluster.snapshot(), &Memory::default(), &workers(json!(1)), now());
        plan.ledger.map_or(0, |write| write.grants.len())
    };
    let asking = claim_of_node(ticket, "n1", json!({ "foreignCordon": true }));
    let over = claim_of_node(ticket_of_over, "n2", with_places(json!({ "state": "Returning" })));
    let mut both = [asking.clone(), over];
    both.sort_by_key(|claim| claim["ticket"].as_i64());
    assert_eq!(asks(&both), 0);
    assert_eq!(asks(&[asking]), 1);
}

/// The drain of `n1` is over.
#[rstest]
#[case::ready_and_uncordoned(worker("n1", json!({})), &[])]
#[case::still_cordoned(worker("n1", json!({ "spec": { "unschedulable": true } })), &["n1"])]
#[case::not_ready(worker("n1", not_ready(A_MINUTE_AGO)), &["n1"])]
fn place_returns_with_the_node(#[case] node_1: Value, #[case] places: &[&str]) {
    let nodes = vec![node_1, worker("n2", json!({}))];
    let deleted = drain_of("n1", json!({ "metadata": { "deletionTimestamp": A_MINUTE_AGO } }));
    let claims = [claim_of_node(1, "n1", with_places(json!({ "state": "Returning" })))];
    let (_, left) = groups_after(&workers(json!(1)), nodes, vec![deleted], &claims);
    assert_eq!(left, places);
}

/// Else the group would never have that place again: a suspect claim whose drain is over is resumed by nobody.
#[rstest]
#[case::back(false, worker("n1", json!({})), true, &[])]
#[case::back_from_its_reboot(true, worker("n1", json!({})), true, &[])]
#[case::still_cordoned(false, worker("n1", json!({ "spec": { "unschedulable": true } })), true, &["n1"])]
#[case::not_ready(false, worker("n1", not_ready(A_MINUTE_AGO)), true, &["n1"])]
#[case::still_wanted(false, worker("n1", json!({ "spec": { "unschedulable": true } })), false, &["n1"])]
fn suspect_claim_returns_its_place_once_over(
    #[case] may_go_down: bool,
    #[case] node_1: Value,
    #[case] is_over: bool,
    #[case] places: &[&str],
) {
    let deleted = is_over.then_some(A_MINUTE_AGO);
    let drain_1 = drain_of("n1", json!({ "metadata": { "deletionTimestamp": deleted } }));
    let nodes = vec![node_1, worker("n2", json!({}))];
    let suspect = with_places(json!({ "state": "Suspect", "mayGoDown": may_go_down }));
    let claims = [claim_of_node(1, "n1", suspect)];
    let (_, left) = groups_after(&workers(json!(1)), nodes, vec![drain_1], &claims);
    assert_eq!(left, places);
}

#[test]
fn deleted_node_gives_its_place_back() {
    let claims = [claim_of_node(
        1,
        "n1",
        with_places(json!({ "state": "Confirmed", "mayGoDown": true })),
    )];
    let (_, left) = groups_after(&workers(json!(1)), vec![worker("n2", json!({}))], vec![], &claims);
    assert_eq!(left, [""; 0]);
}

#[test]
fn removed_group_has_no_places() {
    let nodes = vec![worker("n1", json!({ "spec": { "unschedulable": true } }))];
    let claims = [claim_of_node(
        1,
        "n1",
        with_places(json!({ "state": "Confirmed", "mayGoDown": true })),
    )];
    let (_, left) = groups_after(&policy_with(json!([])), nodes, vec![drain_of("n1", json!({}))], &claims);
    assert_eq!(left, [""; 0]);
}

/// Its budget's owner holds all: with a place it would keep others from theirs for as long.
#[test]
fn drain_that_cannot_be_granted_takes_no_place() {
    let cluster = Cluster::new(
        [worker("n1", json!({})), worker("n2", json!({}))],
        [
            held("a", json!({})),
            pod("b", json!({ "spec": { "nodeName": "n2" } })),
            pod("c", json!({ "spec": { "nodeName": "n2" } })),
        ],
    )
    .budgets([budget(
        "web",
        json!({ "metadata": { "annotations": { "nodeward.dev/hold": "release" } } }),
    )])
    .drains([drain_of("n1", json!({}))])
    .ledger(json!({ "nextTicket": 9, "claims": [claim_of_node(1, "n1", json!({}))] }));
    let plan = plan(&cluster.snapshot(), &Memory::default(), &workers(json!(1)), now());
    assert_eq!(shown(&plan).last().unwrap(), "n1 is Scheduled: OwnerHold");
    let taken = plan.ledger.iter().flat_map(|write| write.next.claims());
    assert!(taken.into_iter().all(|claim| claim.node_groups.is_empty()));
}

/// Its node is uncordoned before it queues again, and others have the place meanwhile.
#[test]
fn turn_that_ends_gives_the_place_back() {
    let nodes = vec![
        ours(json!({ "metadata": { "creationTimestamp": YESTERDAY } })),
        worker("n2", json!({})),
    ];
    let granted = with_places(json!({ "state": "Granted", "grant": 5, "since": YESTERDAY }));
    let cluster = Cluster::new(nodes, [])
        .drains([drain(json!({ "spec": { "fallback": "ReleaseAndRequeue" } }))])
        .ledger(json!({ "nextTicket": 9, "claims": [claim_of_node(1, "n1", granted)] }));
    let plan = plan(&cluster.snapshot(), &Memory::default(), &workers(json!(1)), now());
    let lines = shown(&plan);
    assert!(lines.contains(&"uncordon n1".to_owned()), "{lines:?}");
    let after = plan.ledger.unwrap().next;
    assert_eq!(after.claims()[0].node_groups, ["workers"], "until it is uncordoned");
}
