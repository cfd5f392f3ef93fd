//! How drains end.

use super::*;

/// How a drain ends.
#[rstest]
#[case::the_last_requester_released_it(
    cluster(ours(json!({})), Some(drain(json!({ "spec": { "requesters": [] } }))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["delete NodeDrain: Cancelled", "n1 is Recovering"]
)]
#[case::somebody_uncordoned_its_node(
    cluster(ours(json!({ "spec": { "unschedulable": null } })), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["delete NodeDrain: Uncordoned", "n1 is Recovering"]
)]
#[case::its_node_is_gone(
    cluster(node("n9", json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[]),
    &["delete NodeDrain: NodeGone", "n1 is Recovering"]
)]
#[case::deleted_while_its_pods_run(
    cluster(ours(json!({})), Some(drain(leaving(json!({})))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["ledger: empty", "uncordon n1", "n1 is Recovering"]
)]
#[case::deleted_while_another_drainer_evicts(
    cluster(ours(json!({})), Some(drain(evicted("2026-01-01T11:50:01Z"))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["ledger: empty", "n1 is Recovering: CordonShared"]
)]
#[case::deleted_when_another_drainer_is_done(
    cluster(ours(json!({})), Some(drain(evicted("2026-01-01T11:50:00Z"))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["ledger: empty", "uncordon n1", "n1 is Recovering"]
)]
#[case::uncordoned_by_hand_while_another_drainer_evicted(
    cluster(
        ours(json!({ "spec": { "unschedulable": null } })), Some(drain(evicted("2026-01-01T11:59:00Z"))),
        &[granted("Confirmed", &["a"])], &[held("a", json!({}))],
    ),
    &["ledger: empty", "forget cordon n1", "n1 is Recovering"]
)]
#[case::deleted_while_a_pod_is_down(
    cluster(ours(json!({})), Some(drain(leaving(json!({})))), &[granted("Confirmed", &["a"])], &[held("a", leaving(json!({})))]),
    &["ledger: n1#1 Returning needs [] holds [a]", "uncordon n1", "n1 is Recovering: AwaitingReady"]
)]
#[case::a_retained_pod_of_a_drained_node_is_down_until_it_is_back(
    cluster(
        ours(json!({})), Some(drain(leaving(json!({})))), &[merged(granted("Confirmed", &["(a)"]), json!({ "mayGoDown": true }))],
        &[retained("a", json!({}))],
    ),
    &["ledger: n1#1 Returning, may go down, needs [] holds [a]", "uncordon n1", "n1 is Recovering: AwaitingReady"]
)]
#[case::a_foreign_cordon_is_never_lifted(
    cluster(foreign(json!({})), Some(drain(leaving(json!({})))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["ledger: empty", "n1 is Recovering"]
)]
#[case::a_cordon_that_was_taken_is_forgotten(
    cluster(taken(json!({})), Some(drain(leaving(json!({})))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["ledger: empty", "forget cordon n1", "n1 is Recovering"]
)]
#[case::so_is_one_whose_drain_is_gone(cluster(taken(json!({})), None, &[], &[]), &["forget cordon n1"])]
#[case::nothing_is_left(
    cluster(node("n1", json!({})), Some(drain(leaving(json!({})))), &[], &[]),
    &["let NodeDrain go", "n1 is Released"]
)]
#[case::a_claim_without_a_drain_ends(
    cluster(node("n1", json!({})), None, &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["ledger: empty"]
)]
#[case::a_cordon_that_a_drain_left_is_lifted(cluster(ours(json!({})), None, &[], &[]), &["uncordon n1"])]
#[case::an_administrator_frees_what_is_down(
    cluster(
        ours(json!({})), Some(drain(json!({ "metadata": { "annotations": { nodeward_api::annotation::RELEASE: "alice: disk is dead" } } }))),
        &[granted("Suspect", &["a"])], &[held("a", leaving(json!({})))],
    ),
    &["ledger: empty", "delete NodeDrain: Cancelled", "n1 is Recovering"]
)]
#[case::a_foreign_drainer_is_silent_and_nothing_is_down(
    cluster(
        foreign(json!({})), Some(silent_drain_of(&["eviction:alice"])), &[granted("Confirmed", &["a"])], &[held("a", json!({}))],
    ),
    &["delete NodeDrain: Abandoned", "n1 is Recovering"]
)]
#[case::a_foreign_drainer_waits_for_a_pod_within_its_grace(
    cluster(
        foreign(json!({})), Some(silent_drain_of(&["eviction:alice"])), &[claim(json!({ "foreignCordon": true }))],
        &[pod("a", json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:20:00Z" } }))],
    ),
    &["ledger: n1#1 Waiting needs [] holds []", "grant uid-n1", "n1 is Draining"]
)]
#[case::drained_anew_while_its_last_drain_is_suspect(
    cluster(
        foreign(json!({})), Some(drain(merged(evicted("2026-01-01T12:00:01Z"), json!({ "spec": { "evict": "Requester" } })))),
        &[merged(granted("Suspect", &["a"]), json!({ "needs": [], "foreignCordon": false }))], &[held("a", leaving(json!({})))],
    ),
    &["let NodeDrain go", "n1 is Released: AwaitingReady, Suspect"]
)]
#[case::ours_is_over_while_another_drainer_goes_on(
    cluster(
        ours(json!({})), Some(drain(evicted("2026-01-01T12:00:01Z"))),
        &[claim(json!({ "state": "Returning", "holds": [disruptions(&["a"])] }))], &[held("a", leaving(json!({})))],
    ),
    &["forget cordon n1", "n1 is Recovering: AwaitingReady"]
)]
#[case::two_foreign_drainers_are_silent(
    cluster(
        foreign(json!({})), Some(silent_drain_of(&["eviction:alice", "eviction:bob"])),
        &[granted("Confirmed", &["a"])], &[held("a", json!({}))],
    ),
    &["delete NodeDrain: Abandoned", "n1 is Recovering"]
)]
#[case::a_silent_drainer_ends_no_drain_that_a_machine_wants(
    cluster(
        foreign(json!({})), Some(silent_drain_of(&["eviction:alice", "fleetlock:workers:n1"])),
        &[merged(granted("Confirmed", &["(a)"]), json!({ "mayGoDown": true, "foreignCordon": true }))], &[retained("a", json!({}))],
    ),
    &["n1 is Drained"]
)]
#[case::but_one_that_nobody_goes_on_with(
    cluster(
        foreign(json!({})), Some(silent_drain_of(&["eviction:alice", "fleetlock:workers:n1"])),
        &[merged(granted("Confirmed", &["a"]), json!({ "foreignCordon": true }))], &[held("a", json!({}))],
    ),
    &["delete NodeDrain: Abandoned", "n1 is Recovering"]
)]
#[case::a_foreign_drain_is_over_when_its_node_is_back(
    cluster(
        foreign(rebooted()), Some(drain(json!({ "spec": { "evict": "Requester" } }))),
        &[claim(json!({ "state": "Confirmed", "bootID": "boot-1", "mayGoDown": true, "foreignCordon": true }))], &[],
    ),
    &["delete NodeDrain: Rebooted", "n1 is Recovering"]
)]
#[case::pods_of_a_node_that_is_gone_count_as_down_until_they_are_deleted(
    cluster(node("n9", json!({})), Some(drain(leaving(json!({})))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["ledger: n1#1 Returning needs [] holds [a]", "n1 is Recovering: AwaitingReady"]
)]
#[case::a_pod_that_stayed_and_outlived_its_node_is_not_down(
    cluster(
        node("n1", json!({ "metadata": { "uid": "uid-again" } })), Some(drain(leaving(json!({})))),
        &[merged(granted("Suspect", &["(a)"]), json!({ "mayGoDown": false }))], &[retained("a", json!({}))],
    ),
    &["ledger: empty", "n1 is Recovering"]
)]
fn a_drain_ends_by_what_is_observed(#[case] cluster: Cluster, #[case] expected: &[&str]) {
    assert_eq!(shown(&planned(&cluster)), expected);
}

/// A drain that is being deleted, and whose node another drainer has last evicted from then.
fn evicted(last: &str) -> Value {
    leaving(json!({ "metadata": { "annotations": { nodeward_api::annotation::LAST_EVICTION: last } } }))
}

#[test]
fn cordon_that_stays_says_until_when_and_what_lifts_it() {
    let plan = planned(&cluster(
        ours(json!({})),
        Some(drain(evicted("2026-01-01T11:55:00Z"))),
        &[],
        &[],
    ));
    let (message, why) = (&plan.drains[0].message, &plan.drains[0].blocked_by[0]);
    assert_eq!((message, why.reason), (&why.message, LockReason::CordonShared));
    assert!(
        message.ends_with("lifted at 2026-01-01T12:05:00Z, or now: kubectl uncordon n1"),
        "{message}"
    );
    assert_eq!(plan.requeue_at, Some(at("2026-01-01T12:05:00Z")));
}

/// A retained pod of a node that was told it may go down, and whose drain was called off then.
fn called_off(since: &str, patch: Value, pod_patch: Value) -> Cluster {
    let claim = claim(json!({
        "state": "Returning", "mayGoDown": true, "since": since, "grant": 5, "bootID": "boot-1", "holds": [disruptions(&["(a)"])],
    }));
    let gone = Some(drain(leaving(json!({}))));
    cluster(node("n1", patch), gone, &[claim], &[retained("a", pod_patch)])
}

const FIVE_MINUTES_AGO: &str = "2026-01-01T11:55:00Z";

/// Whoever was told may still reboot the node.
#[rstest]
#[case::a_moment_ago(A_MINUTE_AGO, json!({}), json!({}), false)]
#[case::long_ago(FIVE_MINUTES_AGO, json!({}), json!({}), true)]
#[case::its_pod_is_not_ready(
    FIVE_MINUTES_AGO, json!({}), json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }), false
)]
#[case::its_node_is_not_ready(
    FIVE_MINUTES_AGO, json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } }), json!({}), false
)]
#[case::in_a_boot_that_nobody_told(FIVE_MINUTES_AGO, json!({ "status": { "nodeInfo": { "bootID": "" } } }), json!({}), false)]
#[case::it_has_rebooted(FIVE_MINUTES_AGO, rebooted(), json!({}), false)]
fn called_off_drain_returns_retained_pods_in_time(
    #[case] since: &str,
    #[case] node_patch: Value,
    #[case] pod_patch: Value,
    #[case] returns: bool,
) {
    let plan = planned(&called_off(since, node_patch, pod_patch));
    let lines = shown(&plan);
    if returns {
        let read = "make sure of n1 since 2026-01-01T12:00:00Z";
        assert_eq!(lines, ["ledger: empty", read, "n1 is Recovering"]);
    } else {
        assert_eq!(lines, ["n1 is Recovering: AwaitingReady"]);
    }
}

/// Of a drain that goes on, its node may go down for as long as it takes.
#[rstest]
#[case::it_is_over(node("n1", json!({})), leaving(json!({})), &["ledger: empty", "make sure of n1 since 2026-01-01T12:00:00Z", "n1 is Recovering"])]
#[case::it_goes_on(ours(json!({})), json!({}), &["n1 is Suspect: Suspect"])]
fn suspect_drain_returns_retained_pods_once_over(#[case] node: Value, #[case] patch: Value, #[case] expected: &[&str]) {
    let suspect = claim(json!({
        "state": "Suspect", "mayGoDown": true, "since": FIVE_MINUTES_AGO, "grant": 5, "bootID": "boot-1", "holds": [disruptions(&["(a)"])],
    }));
    let created = json!({ "metadata": { "creationTimestamp": YESTERDAY } });
    let drain = drain(merged(created, patch));
    let lines = shown(&planned(&cluster(
        node,
        Some(drain),
        &[suspect],
        &[retained("a", json!({}))],
    )));
    assert_eq!(lines, expected);
}

#[test]
fn called_off_drain_is_looked_at_again() {
    let plan = planned(&called_off(A_MINUTE_AGO, json!({}), json!({})));
    assert_eq!(plan.requeue_at, Some(at("2026-01-01T12:04:00Z")));
}

/// Its pods are awaited back for longer than they may take.
#[test]
fn overdue_ending_drain_is_suspect() {
    let claim = |state: &str| {
        let claim = json!({ "state": state, "since": YESTERDAY, "bootID": "boot-1", "holds": [disruptions(&["a"])] });
        merged(self::claim(claim), json!({ "needs": null }))
    };
    let gone = || Some(drain(leaving(json!({}))));
    let pods = [held("a", leaving(json!({})))];
    let late = planned(&cluster(node("n1", json!({})), gone(), &[claim("Returning")], &pods));
    let suspect = "n1 is Suspect: AwaitingReady, Suspect";
    assert_eq!(shown(&late), ["ledger: n1#1 Suspect needs [] holds [a]", suspect]);
    let told: Vec<LockReason> = late
        .ledger
        .unwrap()
        .announcements
        .iter()
        .map(|told| told.reason)
        .collect();
    assert_eq!(told, [LockReason::Suspect]);
    let after = planned(&cluster(node("n1", json!({})), gone(), &[claim("Suspect")], &pods));
    assert_eq!(shown(&after), [suspect]);
}

/// Absent, its drain would be over: the claim would be let go, and the cordon lifted.
#[test]
fn unreadable_drain_leaves_its_node_alone() {
    let claims = [granted("Confirmed", &["a"])];
    let cluster = cluster(ours(json!({})), None, &claims, &[held("a", json!({}))]);
    let mut snapshot = cluster.snapshot();
    snapshot.unreadable_drains.insert("n1".into(), "invalid type".into());
    let plan = plan(&snapshot, &Memory::default(), &policy(), now());
    assert_eq!(shown(&plan), ["n1 is Failed: InvalidDrain"]);
}

#[test]
fn unreadable_ledger_is_no_empty_one() {
    let cluster = cluster(
        ours(json!({})),
        Some(drain(json!({}))),
        &[claim(json!({}))],
        &[held("a", json!({}))],
    );
    let mut snapshot = cluster.snapshot();
    let mut facts = snapshot.ledger.as_deref().unwrap().clone();
    facts.unreadable = Some("invalid type".into());
    snapshot.ledger = Some(Arc::new(facts));
    assert_eq!(
        shown(&plan(&snapshot, &Memory::default(), &policy(), now())),
        Vec::<String>::new()
    );
}

/// Two of three pods are there, and the third may no longer be wanted.
#[test]
fn owners_are_asked_for_scale_once_a_minute() {
    let owner =
        json!({ "metadata": { "ownerReferences": [crate::tests::fixture::owner("example.com/v1", "Load", "load")] } });
    let on_another = merged(owner, json!({ "spec": { "nodeName": "n9" } }));
    let counted = json!({
        "spec": { "maxUnavailable": null, "minAvailable": 2 },
        "status": { "expectedPods": 2, "currentHealthy": 2, "desiredHealthy": 2, "disruptionsAllowed": 0 },
    });
    let mut cluster = Cluster::new(
        [ours(json!({})), node("n9", json!({}))],
        ["b", "c"].map(|name| pod(name, on_another.clone())),
    )
    .budgets([budget("web", counted)])
    .drains([drain(json!({}))])
    .ledger(json!({ "nextTicket": 9, "claims": [merged(granted("Confirmed", &["a"]), json!({ "mayGoDown": true }))] }));
    cluster.0.ledger.as_mut().unwrap().spec.budgets[0].expected_pods = Some(3);
    let web = nodeward_core::id::BudgetKey::new("shop", "web");
    let asked = |plan: &Plan| plan.ledger.as_ref().is_some_and(|write| write.scales.contains(&web));
    assert!(asked(&planned(&cluster)));
    let (mut memory, later) = (Memory::default(), at("2026-01-01T12:01:00Z"));
    memory.note_scale_read(web.clone(), later);
    let after = plan(&cluster.snapshot(), &memory, &policy(), now());
    assert!(!asked(&after));
    assert!(after.requeue_at.is_some_and(|at| at <= later), "{:?}", after.requeue_at);
    assert!(asked(&plan(&cluster.snapshot(), &memory, &policy(), later)));
}
