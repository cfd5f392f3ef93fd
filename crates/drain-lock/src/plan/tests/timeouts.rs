//! Time that has run out, and what a fallback makes of it.

use nodeward_core::ledger::{ClaimState, Leaderless};

use super::*;
use crate::tests::fixture::NOW;

fn waits_since_yesterday() -> Value {
    claim(json!({ "since": YESTERDAY, "queuedAt": YESTERDAY }))
}

/// What a fallback makes of time that has run out.
#[rstest]
#[case::wait_waits("Wait", waits_since_yesterday(), &["ledger: n1#1 Waiting needs [a] holds []",
    "ask for a", "n1 is Draining: BudgetNeverAllows, BudgetNeverAllows, DeadlinePassed",
])]
#[case::whatever_its_fallback_is("ReleaseAndRequeue", waits_since_yesterday(), &["ledger: n1#1 Waiting needs [a] holds []",
    "ask for a", "n1 is Draining: BudgetNeverAllows, BudgetNeverAllows, DeadlinePassed",
])]
#[case::what_is_never_confirmed_goes_back("ReleaseAndRequeue", merged(granted_yesterday(&["a"]), json!({ "state": "Granted" })), &[
    "ledger: n1#9 Waiting needs [a] holds []", "ask for a", "n1 is Draining: BudgetNeverAllows, BudgetNeverAllows",
])]
#[case::running_pods_return_their_disruptions_and_queue_last("ReleaseAndRequeue", granted_yesterday(&["a"]), &[
    "ledger: n1#9 Waiting needs [a] holds []", "ask for a", "n1 is Draining: BudgetNeverAllows, BudgetNeverAllows",
])]
#[case::evictions_go_on("Wait", granted_yesterday(&["a"]), &[
    "evict a under 1/5", "n1 is Draining: BudgetNeverAllows, DeadlinePassed",
])]
#[case::one_that_is_gone_counts_as_wait("Delete", granted_yesterday(&["a"]), &[
    "evict a under 1/5", "n1 is Draining: BudgetNeverAllows, InvalidDrain, DeadlinePassed",
])]
#[case::so_does_the_other("EvictAnyway", granted_yesterday(&["a"]), &[
    "evict a under 1/5", "n1 is Draining: BudgetNeverAllows, InvalidDrain, DeadlinePassed",
])]
fn timeout_follows_the_drains_fallback(#[case] fallback: &str, #[case] claim: Value, #[case] expected: &[&str]) {
    let cluster = cluster(
        ours(json!({})),
        Some(with_fallback(fallback)),
        &[claim],
        &[held("a", json!({}))],
    );
    let never = json!({ "spec": { "maxUnavailable": 0 }, "status": { "disruptionsAllowed": 0, "desiredHealthy": 3 } });
    let lines = shown(&planned(&cluster.budgets([budget("web", never)])));
    let lines: Vec<_> = lines
        .iter()
        .filter(|line| *line != "ledger: n1#1 Waiting needs [] holds []")
        .collect();
    assert_eq!(lines, expected);
}

/// Nobody led from this time to a minute ago.
fn without_leader_from(from: &str) -> Memory {
    let mut memory = Memory::default();
    memory.leaderless = vec![Leaderless {
        from: at(from),
        to: at("2026-01-01T11:59:00Z"),
    }];
    memory
}

/// Nothing falls back on time in which nobody led, nor before a new leader has taken in what happened meanwhile.
#[rstest]
#[case::looked_after(Memory::default(), true)]
#[case::first_plan_of_a_leader(Memory::of_first_plan(now()), false)]
#[case::nobody_led(without_leader_from(YESTERDAY), false)]
#[case::nobody_led_for_a_minute(without_leader_from("2026-01-01T11:58:00Z"), true)]
fn only_time_under_a_leader_counts(#[case] memory: Memory, #[case] falls_back: bool) {
    let claim = merged(granted_yesterday(&["a"]), json!({ "state": "Granted" }));
    let cluster = cluster(
        ours(json!({})),
        Some(with_fallback("ReleaseAndRequeue")),
        &[claim],
        &[held("a", json!({}))],
    );
    let plan = plan(&cluster.snapshot(), &memory, &policy(), now());
    let requeued = plan
        .ledger
        .is_some_and(|write| write.next.claim("uid-n1").is_some_and(|claim| claim.ticket == 9));
    assert_eq!(requeued, falls_back);
}

/// It may hold disruptions of pods that are down, and its cordon may be ours: what it waits for is another drain's to end.
#[rstest]
fn no_wait_ends_by_time(#[values("Wait", "ReleaseAndRequeue", "Delete")] fallback: &str) {
    let waits = claim(json!({
        "since": YESTERDAY, "queuedAt": YESTERDAY, "needs": [disruptions(&["d"])], "holds": [disruptions(&["a"])],
    }));
    let pods = [held("a", leaving(json!({}))), held("d", json!({}))];
    let plan = planned(&cluster(
        ours(json!({})),
        Some(with_fallback(fallback)),
        &[waits],
        &pods,
    ));
    let drain = &plan.drains[0];
    let claim = drain.claim.as_ref().unwrap();
    assert_eq!(
        (claim.ticket, claim.state, claim.queued_at),
        (1, ClaimState::Waiting, at(YESTERDAY))
    );
    assert_eq!(claim.held_disruptions(), 1);
    let overdue = drain
        .blocked_by
        .iter()
        .any(|one| one.reason == LockReason::DeadlinePassed);
    assert!(overdue, "{:?}", drain.blocked_by);
    assert!(plan.ledger.is_none_or(|write| write.announcements.is_empty()));
}

#[test]
fn fallback_that_is_gone_is_told_with_what_to_use() {
    let pods = [held("a", json!({}))];
    let plan = planned(&cluster(
        ours(json!({})),
        Some(with_fallback("Delete")),
        &[claim(json!({}))],
        &pods,
    ));
    let told = plan.drains[0]
        .blocked_by
        .iter()
        .find(|one| one.reason == LockReason::InvalidDrain);
    let message = &told.unwrap().message;
    assert!(
        message.contains("counts as Wait") && message.contains("drain-keeper overrides budgets"),
        "{message}"
    );
}

#[test]
fn overdue_drain_waits_for_pods_that_asked_to_finish() {
    let claim = merged(
        granted("Confirmed", &["a"]),
        json!({ "since": "2026-01-01T02:00:00Z", "queuedAt": YESTERDAY }),
    );
    let completing = pod(
        "d",
        merged(
            bare(),
            json!({ "metadata": { "labels": { "nodeward.dev/drain": "wait-completed" } } }),
        ),
    );
    let lines = shown(&planned(&cluster(
        ours(json!({})),
        Some(with_fallback("Wait")),
        &[claim],
        &[held("a", json!({})), completing],
    )));
    assert_eq!(lines, ["evict a under 1/5", "n1 is Draining: DeadlinePassed"]);
}

#[test]
fn absent_drained_node_is_suspect_and_holds() {
    let claim = merged(granted_yesterday(&["(a)"]), json!({ "mayGoDown": true }));
    let away = ours(json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } }));
    let lines = shown(&planned(&cluster(
        away,
        Some(drain(json!({}))),
        &[claim],
        &[retained("a", json!({}))],
    )));
    assert_eq!(
        lines,
        [
            "ledger: n1#1 Suspect, may go down, needs [] holds [a]",
            "n1 is Suspect: Suspect"
        ]
    );
}

/// A drainer is silent for as long as its pods take their grace and its node its reboot: only once these are overdue nobody knows
/// when what is down will be back.
#[rstest]
#[case::its_pods_leave("2026-01-01T11:40:00Z", leaving(json!({})), json!({}), &["n1 is Draining"])]
#[case::their_grace_was_over_yesterday(
    YESTERDAY, leaving_since(YESTERDAY), json!({}),
    &["ledger: n1#1 Suspect needs [] holds [a]", "n1 is Suspect: Suspect, StuckTerminating"]
)]
#[case::its_node_has_just_gone(
    "2026-01-01T11:40:00Z", leaving_since(YESTERDAY), not_ready_since(NOW), &["n1 is Draining: StuckTerminating"]
)]
fn drain_with_pods_down_is_suspect_once_it_shows_no_sign_of_life(
    #[case] granted: &str,
    #[case] pod: Value,
    #[case] node: Value,
    #[case] expected: &[&str],
    #[values(&["eviction:bob"], &["eviction:bob", "fleetlock:workers:n1"])] requesters: &[&str],
) {
    let claim = merged(
        granted_yesterday(&["a"]),
        json!({ "foreignCordon": true, "since": granted }),
    );
    let lines = shown(&planned(&cluster(
        foreign(node),
        Some(silent_drain_of(requesters)),
        &[claim],
        &[held("a", pod)],
    )));
    assert_eq!(lines, expected);
}

/// Two and a half minutes ago.
const STOPPED: &str = "2026-01-01T11:57:30Z";

/// One pod of it is down, and its drainer asks for no other: that one's disruption is for whoever uses it.
#[rstest]
#[case::its_drainer_goes_on(A_MINUTE_AGO, granted_since(A_MINUTE_AGO), &["n1 is Draining: StuckTerminating"])]
#[case::its_drainer_is_silent("2026-01-01T11:40:00Z", granted_since("2026-01-01T11:40:00Z"), &[
    "ledger: n1#1 Waiting needs [] holds [a]", "n1 is Draining: AwaitsDrainer, StuckTerminating",
])]
#[case::it_has_stopped(STOPPED, granted_since(STOPPED), &[
    "ledger: n1#1 Waiting needs [] holds [a]", "n1 is Draining: AwaitsDrainer, StuckTerminating",
])]
#[case::it_stopped_before_that(STOPPED, requeued_since("2026-01-01T11:59:50Z"), &["n1 is Draining: AwaitsDrainer, StuckTerminating"])]
#[case::it_pauses_while_it_waits(STOPPED, requeued_since(STOPPED), &[
    "ledger: n1#1 Waiting needs [d] holds [a]", "grant uid-n1", "n1 is Draining: StuckTerminating",
])]
#[case::it_has_given_back("2026-01-01T11:40:00Z", requeued_since("2026-01-01T11:50:00Z"), &["n1 is Draining: AwaitsDrainer, StuckTerminating"])]
#[case::its_drainer_is_back(A_MINUTE_AGO, requeued_since("2026-01-01T11:50:00Z"), &[
    "ledger: n1#1 Waiting needs [d] holds [a]", "grant uid-n1", "n1 is Draining: StuckTerminating",
])]
#[case::its_drainer_is_gone(YESTERDAY, requeued_since(YESTERDAY), &[
    "ledger: n1#1 Suspect needs [] holds [a]", "n1 is Suspect: Suspect, StuckTerminating",
])]
fn unused_grant_goes_back_until_its_drainer_goes_on(
    #[case] evicted: &str,
    #[case] claim: Value,
    #[case] expected: &[&str],
) {
    let evicted = json!({ "metadata": { "annotations": { nodeward_api::annotation::LAST_EVICTION: evicted } } });
    let drain = merged(silent_drain_of(&["eviction:bob"]), evicted);
    let cluster = cluster(
        foreign(json!({})),
        Some(drain),
        &[claim],
        &[held("a", leaving_since(YESTERDAY)), held("d", json!({}))],
    );
    let spares_two = json!({ "status": { "disruptionsAllowed": 2, "desiredHealthy": 1 } });
    let lines = shown(&planned(&cluster.budgets([budget("web", spares_two)])));
    let lines: Vec<_> = lines.iter().filter(|line| !line.starts_with("mark")).collect();
    assert_eq!(lines, expected);
}

/// Somebody else refuses what its drainer asks for: others may need what it holds in vain.
#[rstest]
#[case::it_has_just_begun(A_MINUTE_AGO, json!({}), &["n1 is Draining"])]
#[case::its_pod_has_not_gone("2026-01-01T11:57:00Z", json!({}), &["n1 is Draining: EvictionFailed"])]
#[case::its_pod_has_its_grace("2026-01-01T11:40:00Z", leaving(json!({})), &["n1 is Draining"])]
#[case::its_pod_stays("2026-01-01T11:40:00Z", json!({}), &[
    "ledger: n1#9 Waiting needs [a] holds []", "grant uid-n1", "n1 is Draining",
])]
fn grant_whose_evictions_change_nothing_goes_back(
    #[case] granted: &str,
    #[case] pod: Value,
    #[case] expected: &[&str],
) {
    let claim = merged(
        super::granted("Confirmed", &["a"]),
        json!({ "foreignCordon": true, "since": granted, "needs": [] }),
    );
    let evicted = json!({ "metadata": { "annotations": { nodeward_api::annotation::LAST_EVICTION: A_MINUTE_AGO } } });
    let drain = merged(silent_drain_of(&["eviction:bob"]), evicted);
    let lines = shown(&planned(&cluster(
        foreign(json!({})),
        Some(drain),
        &[claim],
        &[held("a", pod)],
    )));
    let lines: Vec<_> = lines.iter().filter(|line| !line.starts_with("mark")).collect();
    assert_eq!(lines, expected);
}

fn granted_since(moment: &str) -> Value {
    let since = json!({ "foreignCordon": true, "since": moment, "needs": [] });
    merged(granted("Confirmed", &["a", "d"]), since)
}

fn requeued_since(moment: &str) -> Value {
    claim(json!({ "foreignCordon": true, "since": moment, "queuedAt": moment, "holds": [disruptions(&["a"])] }))
}

fn leaving_since(moment: &str) -> Value {
    leaving(json!({ "metadata": { "deletionTimestamp": moment } }))
}

fn not_ready_since(moment: &str) -> Value {
    json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "lastTransitionTime": moment }] } })
}

#[rstest]
#[case::its_pods_are_not_back("Returning", &["a"], "ledger: n1#1 Suspect needs [] holds [a]")]
#[case::they_are_back_after_all("Suspect", &[], "ledger: n1#1 Waiting needs [] holds []")]
fn overdue_turn_is_suspect_until_pods_return(#[case] state: &str, #[case] pods: &[&str], #[case] expected: &str) {
    let late = claim(json!({ "state": state, "since": YESTERDAY, "holds": [disruptions(pods)] }));
    let down: Vec<Value> = pods.iter().map(|pod| held(pod, leaving(json!({})))).collect();
    let lines = shown(&planned(&cluster(
        node("n1", json!({})),
        Some(drain(json!({}))),
        &[late],
        &down,
    )));
    assert_eq!(lines.first().map(String::as_str), Some(expected), "{lines:?}");
}

#[rstest]
#[case::ours(ours(json!({})), YESTERDAY, &["uncordon n1", "n1 is Recovering"])]
#[case::taken(taken(json!({})), YESTERDAY, &["grant uid-n1", "n1 is Draining"])]
#[case::others_evict(ours(json!({})), A_MINUTE_AGO, &["n1 is Recovering: CordonShared"])]
fn requeued_drain_lifts_its_own_cordon_and_goes_on_under_anothers(
    #[case] node: Value,
    #[case] evicted: &str,
    #[case] expected: &[&str],
) {
    let claim = claim(json!({ "state": "Returning", "holds": [disruptions(&["a"])] }));
    let evicted = json!({ "metadata": { "annotations": { nodeward_api::annotation::LAST_EVICTION: evicted } } });
    let lines = shown(&planned(&cluster(
        node,
        Some(drain(evicted)),
        &[claim],
        &[held("a", leaving(json!({})))],
    )));
    let lines: Vec<_> = lines.iter().filter(|line| !line.starts_with("ledger")).collect();
    assert_eq!(lines, expected);
}
