//! Time that has run out, what a fallback makes of it, and what it goes around.

use nodeward_core::ledger::Leaderless;

use super::*;

fn waits_since_yesterday() -> Value {
    claim(json!({ "since": YESTERDAY, "queuedAt": YESTERDAY }))
}

/// What a fallback makes of time that has run out.
#[rstest]
#[case::wait_waits("Wait", waits_since_yesterday(), &["ledger: n1#1 Asking needs [a] holds []",
    "mark n1 queued",
    "n1 is Queued: BudgetNeverAllows, BudgetNeverAllows, DeadlinePassed",
])]
#[case::a_claim_that_holds_nothing_keeps_its_place("ReleaseAndRequeue", waits_since_yesterday(), &[
    "ledger: n1#1 Asking needs [a] holds []", "mark n1 queued", "n1 is Queued: BudgetNeverAllows, BudgetNeverAllows",
])]
#[case::what_is_never_confirmed_goes_back("ReleaseAndRequeue", merged(granted_yesterday(&["a"]), json!({ "state": "Granted" })), &[
    "ledger: n1#9 Asking needs [a] holds []", "mark n1 queued", "n1 is Queued: BudgetNeverAllows, BudgetNeverAllows",
])]
#[case::whatever_its_fallback_is("EvictAnyway", merged(granted_yesterday(&["a"]), json!({ "state": "Granted" })), &[
    "ledger: n1#9 Asking needs [a] holds []", "mark n1 queued", "n1 is Queued: BudgetNeverAllows, BudgetNeverAllows",
])]
#[case::a_fallback_that_it_had_before_counts_no_more("ReleaseAndRequeue", merged(granted_yesterday(&["a"]), json!({ "byFallback": true })), &[
    "ledger: n1#9 Asking needs [a] holds []", "mark n1 queued", "n1 is Queued: BudgetNeverAllows, BudgetNeverAllows",
])]
#[case::the_pods_go_without_their_disruptions("EvictAnyway", waits_since_yesterday(), &[
    "ledger: n1#1 Confirmed needs [] holds [a]", "n1 is Queued: BudgetNeverAllows, DeadlinePassed",
])]
#[case::running_pods_return_their_disruptions_and_queue_last("ReleaseAndRequeue", granted_yesterday(&["a"]), &[
    "ledger: n1#9 Asking needs [a] holds []", "mark n1 queued", "n1 is Queued: BudgetNeverAllows, BudgetNeverAllows",
])]
#[case::evictions_go_on("EvictAnyway", granted_yesterday(&["a"]), &["evict a under 1/5", "n1 is Draining: BudgetNeverAllows, DeadlinePassed"])]
#[case::refused_evictions_become_deletions("Delete", granted_yesterday(&["a"]), &[
    "evict a or delete under 1/5", "n1 is Draining: BudgetNeverAllows, DeadlinePassed",
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
        .filter(|line| *line != "ledger: n1#1 Queued needs [] holds []")
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
#[case::first_plan_of_a_leader(Memory::of_new_leader(), false)]
#[case::nobody_led(without_leader_from(YESTERDAY), false)]
#[case::nobody_led_for_a_minute(without_leader_from("2026-01-01T11:58:00Z"), true)]
fn only_time_under_a_leader_counts(
    #[case] memory: Memory,
    #[case] falls_back: bool,
    #[values("EvictAnyway", "ReleaseAndRequeue", "Delete")] fallback: &str,
) {
    let claim = merged(granted_yesterday(&["a"]), json!({ "state": "Granted" }));
    let cluster = cluster(
        ours(json!({})),
        Some(with_fallback(fallback)),
        &[claim],
        &[held("a", json!({}))],
    );
    let plan = plan(&cluster.snapshot(), &memory, &policy(), now());
    let requeued = plan
        .ledger
        .is_some_and(|write| write.next.claim("uid-n1").is_some_and(|claim| claim.ticket == 9));
    assert_eq!(requeued, falls_back);
}

/// Only the fallback itself makes a drain one that goes on without: no wait, however long it was.
#[rstest]
#[case::granted_late("Wait", false, &["evict a under 1/5", "n1 is Draining: DeadlinePassed"])]
#[case::granted_by_its_fallback("EvictAnyway", true, &["evict a under 1/5", "evict d", "n1 is Draining: DeadlinePassed"])]
fn only_a_fallback_evicts_what_a_drain_waits_for(
    #[case] fallback: &str,
    #[case] by_fallback: bool,
    #[case] expected: &[&str],
) {
    let claim = merged(
        granted("Confirmed", &["a"]),
        json!({ "since": "2026-01-01T02:00:00Z", "queuedAt": YESTERDAY, "byFallback": by_fallback }),
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
        Some(with_fallback(fallback)),
        &[claim],
        &[held("a", json!({})), completing],
    )));
    assert_eq!(lines, expected);
}

/// A fallback makes no disruption: what budgets granted to others, and what owners keep, is not its to take.
#[rstest]
#[case::a_free_one(json!({}), None, vec![], "EvictAnyway", &["evict a under 1/5"])]
#[case::one_that_is_not_there(json!({ "status": { "disruptionsAllowed": 0 } }), None, vec![], "EvictAnyway", &[])]
#[case::one_that_is_deleted_around(json!({ "status": { "disruptionsAllowed": 0 } }), None, vec![], "Delete", &["evict a or delete under 1/5"])]
#[case::one_of_another_grant(json!({}), Some(false), vec![], "EvictAnyway", &[])]
#[case::one_of_another_fallback(json!({}), Some(true), vec![], "EvictAnyway", &["evict a under 1/5"])]
#[case::one_of_the_owner(json!({}), None, vec![owner_hold(json!({}))], "EvictAnyway", &[])]
#[case::one_of_the_owner_whatever_it_deletes(json!({}), None, vec![owner_hold(json!({}))], "Delete", &[])]
fn a_fallback_takes_no_disruption_of_anybody_elses(
    #[case] patch: Value,
    #[case] another_by_fallback: Option<bool>,
    #[case] holds: Vec<Value>,
    #[case] fallback: &str,
    #[case] expected: &[&str],
) {
    let own = merged(granted("Confirmed", &["a"]), json!({ "byFallback": true }));
    let another = another_by_fallback.map(|by_fallback| {
        merged(
            granted("Confirmed", &["b"]),
            json!({ "ticket": 2, "node": "n2", "nodeUID": "uid-n2", "byFallback": by_fallback }),
        )
    });
    let cluster = cluster(
        ours(json!({})),
        Some(with_fallback(fallback)),
        &[Some(own), another].into_iter().flatten().collect::<Vec<_>>(),
        &[held("a", json!({}))],
    )
    .budgets([budget("web", patch)])
    .holds(holds);
    let lines = shown(&planned(&cluster));
    let evictions: Vec<_> = lines.iter().filter(|line| line.starts_with("evict")).collect();
    assert_eq!(evictions, expected);
}

#[rstest]
#[case::the_first(None, "evict a under 1/5")]
#[case::one_that_cannot_go_now_takes_none(Some("uid-a"), "evict d under 1/5")]
fn a_fallback_takes_no_more_disruptions_than_are_free(#[case] failed: Option<&str>, #[case] expected: &str) {
    let own = merged(granted("Confirmed", &["a", "d"]), json!({ "byFallback": true }));
    let pods = [held("a", json!({})), held("d", json!({}))];
    let cluster = cluster(ours(json!({})), Some(with_fallback("EvictAnyway")), &[own], &pods);
    let mut memory = Memory::default();
    if let Some(pod) = failed {
        memory.note_eviction(PodUid::from(pod), false, at("2026-01-01T12:00:10Z"));
    }
    let lines = shown(&plan(&cluster.snapshot(), &memory, &policy(), now()));
    assert_eq!(lines.first().map(String::as_str), Some(expected), "{lines:?}");
}

/// What no fallback goes around.
#[rstest]
#[case::nothing(json!({}), vec![], Force::Delete)]
#[case::a_budget_that_forbids_it(json!({ "metadata": { "labels": { nodeward_api::label::FORCE_DRAIN: "never" } } }), vec![], Force::Never)]
#[case::an_owner_who_holds_it(json!({}), vec![owner_hold(json!({}))], Force::Never)]
#[case::an_owner_who_holds_a_disruption(json!({}), vec![owner_hold(json!({ "spec": { "disruptions": 1 } }))], Force::Never)]
#[case::an_owner_whose_time_is_over(json!({}), vec![owner_hold(json!({ "spec": { "expiresAt": YESTERDAY } }))], Force::Delete)]
#[case::the_short_form(json!({ "metadata": { "annotations": { nodeward_api::annotation::HOLD: "rebalancing" } } }), vec![], Force::Never)]
fn no_fallback_deletes_what_its_owner_keeps(#[case] patch: Value, #[case] holds: Vec<Value>, #[case] expected: Force) {
    let claim = granted_yesterday(&["a"]);
    let cluster = cluster(
        ours(json!({})),
        Some(with_fallback("Delete")),
        &[claim],
        &[held("a", json!({}))],
    )
    .budgets([budget("web", patch)])
    .holds(holds);
    let forces: Vec<Force> = planned(&cluster)
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::EvictHeld { pods, .. } => Some(pods[0].force),
            _ => None,
        })
        .collect();
    assert_eq!(forces, [expected]);
}

fn owner_hold(patch: Value) -> Value {
    let base = json!({
        "metadata": { "namespace": "shop", "name": "h", "uid": "uid-h", "creationTimestamp": A_MINUTE_AGO },
        "spec": { "pdbRef": "web", "reason": "rebalancing" },
    });
    merged(base, patch)
}

#[rstest]
fn absent_drained_node_is_suspect_and_holds(#[values(false, true)] by_fallback: bool) {
    let claim = merged(
        granted_yesterday(&["(a)"]),
        json!({ "drained": true, "byFallback": by_fallback }),
    );
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
            "ledger: n1#1 DrainedSuspect needs [] holds [a]",
            "n1 is Suspect: Suspect"
        ]
    );
}

#[rstest]
#[case::nobody_else_wants_the_drain(&["eviction:bob"], &["ledger: n1#1 Suspect needs [] holds [a]", "n1 is Suspect: Suspect"])]
#[case::a_machine_does(&["eviction:bob", "fleetlock:workers:n1"], &["n1 is Draining"])]
fn vanished_drainer_with_down_pods_is_suspect(#[case] requesters: &[&str], #[case] expected: &[&str]) {
    let claim = merged(granted("Confirmed", &["a"]), json!({ "foreignCordon": true }));
    let lines = shown(&planned(&cluster(
        foreign(json!({})),
        Some(silent_drain_of(requesters)),
        &[claim],
        &[held("a", leaving(json!({})))],
    )));
    assert_eq!(lines, expected);
}

#[rstest]
#[case::its_pods_are_not_back("Recovering", &["a"], "ledger: n1#1 Suspect needs [] holds [a]")]
#[case::they_are_back_after_all("Suspect", &[], "ledger: n1#1 Queued needs [] holds []")]
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
#[case::ours(ours(json!({})), &["uncordon n1", "n1 is Recovering"])]
#[case::taken(taken(json!({})), &["forget cordon n1", "n1 is Recovering: CordonTaken"])]
fn requeued_drain_lifts_its_own_cordon(#[case] node: Value, #[case] expected: &[&str]) {
    let claim = claim(json!({ "holds": [disruptions(&["a"])] }));
    let lines = shown(&planned(&cluster(
        node,
        Some(drain(json!({}))),
        &[claim],
        &[held("a", leaving(json!({})))],
    )));
    let lines: Vec<_> = lines.iter().filter(|line| !line.starts_with("ledger")).collect();
    assert_eq!(lines, expected);
}
