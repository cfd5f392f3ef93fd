//! What each stage of a drain does, and what it leaves alone.

use super::*;

/// The ordinary life of a drain that drain-lock carries out.
#[rstest]
#[case::a_new_wish_is_adopted_before_anything_is_done_for_it(
    cluster(node("n1", json!({})), Some(drain(json!({ "metadata": { "finalizers": null }, "spec": { "nodeUID": null } }))), &[], &[held("a", json!({}))]),
    &["adopt", "n1 is Queued"]
)]
#[case::an_adopted_wish_is_queued_and_its_node_cordoned(
    cluster(node("n1", json!({})), Some(drain(json!({}))), &[], &[held("a", json!({}))]),
    &["ledger: n1#1 Waiting needs [] holds []", "cordon n1", "n1 is Scheduled"]
)]
#[case::movable_pods_leave_first_and_nothing_is_claimed_for_them(
    cluster(ours(json!({})), Some(drain(json!({}))), &[claim(json!({}))], &[pod("a", json!({}))]),
    &["evict a", "n1 is Draining"]
)]
#[case::pods_that_asked_for_it_finish_first(
    cluster(ours(json!({})), Some(drain(json!({}))), &[claim(json!({}))], &[
        pod("a", json!({ "metadata": { "labels": { "nodeward.dev/drain": "wait-completed" } } })), pod("d", bare()),
    ]),
    &["n1 is Draining: WaitCompleted"]
)]
#[case::then_all_held_disruptions_are_claimed_at_once(
    cluster(ours(json!({})), Some(drain(json!({}))), &[claim(json!({}))], &[held("a", json!({}))]),
    &["ledger: n1#1 Waiting needs [a] holds []", "grant uid-n1", "n1 is Draining"]
)]
#[case::a_grant_is_made_sure_of_before_anything_leaves(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Granted", &["a"])], &[held("a", json!({}))]),
    &["ledger: n1#1 Granted needs [] holds [a]", "confirm uid-n1 5", "n1 is Draining: AwaitsConfirmation"]
)]
#[case::held_pods_leave_under_the_grant_that_is_in_the_ledger(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["evict a under 1/5", "n1 is Draining"]
)]
#[case::a_pod_on_its_way_out_is_waited_for(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[held("a", leaving(json!({})))]),
    &["n1 is Draining"]
)]
#[case::the_ledger_says_drained_before_anybody_is_told(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["(a)"])], &[retained("a", json!({}))]),
    &["ledger: n1#1 Confirmed needs [] holds [a]", "make sure that n1 is drained", "n1 is Draining"]
)]
#[case::drained(
    cluster(ours(json!({})), Some(drain(json!({}))), &[merged(granted("Confirmed", &["(a)"]), json!({ "mayGoDown": true }))], &[retained("a", json!({}))]),
    &["n1 is Drained"]
)]
#[case::after_a_reboot_the_disruption_waits_for_its_pod(
    cluster(
        ours(rebooted()), Some(drain(json!({}))), &[merged(granted("Confirmed", &["(a)"]), json!({ "mayGoDown": true }))],
        &[retained("a", json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }))],
    ),
    &["n1 is Recovering"]
)]
#[case::late_pods_of_a_suspect_drain_are_back(
    cluster(
        ours(rebooted()), Some(drain(json!({}))), &[claim(json!({ "state": "Suspect", "mayGoDown": true, "bootID": "boot-1", "grant": 5 }))], &[],
    ),
    &["n1 is Recovering"]
)]
#[case::a_disruption_returns_when_its_pod_is_back(
    cluster(
        ours(rebooted()), Some(drain(json!({}))),
        &[merged(granted("Confirmed", &["(a)"]), json!({ "mayGoDown": true, "queuedAt": "2026-01-01T11:00:00Z" }))],
        &[retained("a", json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T11:31:00Z" }] } }))],
    ),
    &["ledger: n1#1 Confirmed, may go down, needs [] holds []", "n1 is Recovering"]
)]
#[case::a_node_that_crashes_in_mid_drain_is_not_drained(
    cluster(
        ours(rebooted()), Some(drain(json!({}))), &[granted("Confirmed", &["a"])],
        &[held("a", json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }))],
    ),
    &["evict a under 1/5", "n1 is Draining"]
)]
#[case::whoever_evicts_by_himself_may_reboot_before_he_says_so(
    cluster(
        foreign(rebooted()), Some(drain(json!({ "spec": { "evict": "Requester" } }))), &[merged(granted("Confirmed", &["a"]), json!({ "foreignCordon": true }))],
        &[held("a", json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }))],
    ),
    &["delete NodeDrain: Rebooted", "n1 is Recovering"]
)]
#[case::drain_by_others_goes_on_until_the_pods_that_stay_are_back(
    cluster(
        foreign(rebooted()), Some(drain(json!({ "spec": { "evict": "Requester" } }))),
        &[merged(granted("Confirmed", &["a", "(b)"]), json!({ "foreignCordon": true, "mayGoDown": true }))],
        &[retained("b", json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }))],
    ),
    &["n1 is Recovering"]
)]
#[case::drain_by_others_goes_on_until_the_node_is_back(
    cluster(
        foreign(merged(rebooted(), json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }))),
        Some(drain(json!({ "spec": { "evict": "Requester" } }))), &[merged(granted("Confirmed", &["a"]), json!({ "foreignCordon": true }))], &[],
    ),
    &["n1 is Recovering"]
)]
// The drain that takes over the claim has yet to get a grant of its own.
#[case::drain_after_a_reboot_begins(
    cluster(
        foreign(rebooted()), Some(drain(json!({ "spec": { "evict": "Requester" } }))),
        &[merged(granted("Returning", &["a"]), json!({ "foreignCordon": true, "mayGoDown": true }))], &[held("b", json!({}))],
    ),
    &["ledger: n1#9 Waiting, may go down, needs [] holds [a]", "grant uid-n1", "n1 is Draining"]
)]
fn a_drain_takes_one_step_at_a_time(#[case] cluster: Cluster, #[case] expected: &[&str]) {
    assert_eq!(shown(&planned(&cluster)), expected);
}

/// The last movable pods are on their way: what they took is none of what the claim asks for.
#[test]
fn claim_is_asked_for_once_the_last_movable_pods_leave() {
    let pods = [held("a", json!({})), pod("d", leaving(json!({})))];
    let plan = planned(&cluster(
        ours(json!({})),
        Some(drain(json!({}))),
        &[claim(json!({}))],
        &pods,
    ));
    let asks = shown(&plan).iter().any(|line| line.contains("needs [a]"));
    assert!(asks, "{:?}", shown(&plan));
}

/// The API refused it a moment ago, for a reason of its own.
#[rstest]
#[case::held(granted("Confirmed", &["a"]), held("a", json!({})))]
#[case::movable(granted("Confirmed", &[]), pod("a", bare()))]
fn failed_eviction_is_named_until_retried(#[case] claim: Value, #[case] pod: Value) {
    let cluster = cluster(ours(json!({})), Some(drain(json!({}))), &[claim], &[pod]);
    let mut memory = Memory::default();
    memory.note_eviction(PodUid::from("uid-a"), false, at(IN_A_MOMENT));
    let plan = plan(&cluster.snapshot(), &memory, &policy(), now());
    let blocked: Vec<_> = plan.drains[0]
        .blocked_by
        .iter()
        .map(|one| (one.reason, one.pod.as_deref()))
        .collect();
    assert_eq!(blocked, [(LockReason::EvictionFailed, Some("shop/a"))]);
    assert_eq!(plan.requeue_at, Some(at(IN_A_MOMENT)));
}

const IN_A_MOMENT: &str = "2026-01-01T12:00:05Z";

/// A pod's grace has been over for so long. Whoever evicts it, a person is told what the drain waits for.
#[rstest]
#[case::in_its_grace("2026-01-01T12:00:30Z", json!([]), "n1 is Draining", None)]
#[case::not_confirmed_yet("2026-01-01T11:59:55Z", json!([]), "n1 is Draining", Some(IN_A_MOMENT))]
#[case::kubelet_is_silent("2026-01-01T11:59:50Z", json!([]), "n1 is Draining: StuckTerminating", None)]
#[case::its_controller_may_take_a_moment("2026-01-01T11:59:05Z", json!(["a.io/x"]), "n1 is Draining", Some(IN_A_MOMENT))]
#[case::finalizers_keep_it("2026-01-01T11:59:00Z", json!(["a.io/x", "b.io/y"]), "n1 is Draining: FinalizerStuck", None)]
fn pods_beyond_their_grace_are_named(
    #[values("Nodeward", "Requester")] evict: &str,
    #[case] deleted: &str,
    #[case] finalizers: Value,
    #[case] expected: &str,
    #[case] looks_again: Option<&str>,
) {
    let terminating = json!({ "metadata": { "deletionTimestamp": deleted, "finalizers": finalizers } });
    let plan = planned(&cluster(
        ours(json!({})),
        Some(drain(json!({ "spec": { "evict": evict } }))),
        &[granted("Confirmed", &["a"])],
        &[held("a", terminating)],
    ));
    assert_eq!(shown(&plan).last().map(String::as_str), Some(expected));
    if let Some(moment) = looks_again {
        assert_eq!(plan.requeue_at, Some(at(moment)));
    }
    for blocked in &plan.drains[0].blocked_by {
        let names = if finalizers.as_array().unwrap().is_empty() {
            ""
        } else {
            ": a.io/x, b.io/y"
        };
        assert!(
            blocked.message.starts_with("pod shop/a is ") && blocked.message.ends_with(names),
            "{}",
            blocked.message
        );
    }
}

#[test]
fn node_crashed_in_drain_is_still_drained() {
    let crashed = || ours(rebooted());
    let before = planned(&cluster(
        crashed(),
        Some(drain(json!({}))),
        &[granted("Confirmed", &["a"])],
        &[],
    ));
    assert_eq!(
        shown(&before),
        [
            "ledger: n1#1 Confirmed needs [] holds [a]",
            "make sure that n1 is drained",
            "n1 is Draining"
        ]
    );
    let mut write = before.ledger.unwrap();
    let ask = write.drained.remove(0);
    assert!(write.next.drained(ask.node_uid.as_str(), ask.fence, &ask.boot_id));
    let claims = serde_json::to_value(write.next.claims()).unwrap();
    let after = planned(&cluster(
        crashed(),
        Some(drain(json!({}))),
        claims.as_array().unwrap(),
        &[],
    ));
    assert_eq!(shown(&after), ["n1 is Drained"]);
}

/// What is never done.
#[rstest]
#[case::under_a_foreign_cordon_no_cordon_is_taken_over(
    cluster(foreign(json!({})), Some(drain(json!({}))), &[claim(json!({ "foreignCordon": true }))], &[held("a", json!({}))]),
    &["ledger: n1#1 Waiting needs [a] holds []", "grant uid-n1", "mark n1", "n1 is Draining"]
)]
#[case::another_evicts_and_we_do_not(
    cluster(foreign(json!({})), Some(drain(json!({ "spec": { "evict": "Requester" } }))), &[merged(granted("Confirmed", &["a"]), json!({ "foreignCordon": true }))], &[held("a", json!({}))]),
    &["n1 is Draining"]
)]
#[case::another_evicts_its_movable_pods_while_it_asks(
    cluster(foreign(json!({})), Some(drain(json!({ "spec": { "evict": "Requester" } }))), &[claim(json!({ "foreignCordon": true }))], &[held("a", json!({})), pod("d", bare())]),
    &["ledger: n1#1 Waiting needs [a] holds []", "grant uid-n1", "n1 is Draining"]
)]
#[case::no_pod_leaves_without_a_disruption_that_is_free(
    cluster(ours(json!({})), Some(drain(json!({}))), &[
        claim(json!({})), merged(granted("Confirmed", &["b"]), json!({ "ticket": 2, "node": "n3", "nodeUID": "uid-n3" })),
    ], &[pod("a", json!({}))]),
    &["ledger: n1#1 Waiting needs [] holds []", "n1 is Queued: WaitsForDisruptions", "n3 is Recovering: AwaitingReady"]
)]
#[case::a_disruption_that_is_about_to_be_returned_is_not_used_yet(
    cluster(ours(json!({})), Some(drain(json!({}))), &[
        claim(json!({})), merged(granted("Confirmed", &["b"]), json!({ "ticket": 2, "node": "n2", "nodeUID": "uid-n2" })),
    ], &[pod("a", json!({}))]),
    &["ledger: n1#1 Waiting needs [] holds []", "n1 is Queued: WaitsForDisruptions"]
)]
#[case::nothing_more_is_evicted_when_the_need_has_grown(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[held("a", json!({})), held("d", json!({}))]),
    &["ledger: n1#1 Waiting needs [a+d] holds []", "n1 is Draining: NeedExceedsBudget"]
)]
#[case::no_node_goes_down_with_a_pod_that_stays_and_has_no_disruption(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["(a)"])], &[retained("a", json!({})), retained("d", json!({}))]),
    &["ledger: n1#1 Waiting needs [a+d] holds []", "n1 is Draining: NeedExceedsBudget"]
)]
#[case::nor_once_it_was_drained(
    cluster(ours(json!({})), Some(drain(json!({}))), &[merged(granted("Confirmed", &["(a)"]), json!({ "mayGoDown": true }))], &[retained("a", json!({})), retained("d", json!({}))]),
    &["ledger: n1#1 Waiting, may go down, needs [d] holds [a]", "n1 is Draining: NeedExceedsBudget"]
)]
#[case::a_disruption_of_another_budget_is_none(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))])
        .budgets([budget("db", json!({}))]),
    &["ledger: n1#1 Waiting needs [a] holds []", "n1 is Draining"]
)]
#[case::a_dry_run_touches_nothing(
    cluster(node("n1", json!({})), Some(drain(json!({ "metadata": { "finalizers": null }, "spec": { "dryRun": true } }))), &[], &[held("a", json!({}))]),
    &["n1 is Scheduled"]
)]
#[case::a_node_of_the_same_name_is_not_the_one_that_was_meant(
    cluster(node("n1", json!({})), Some(drain(json!({ "metadata": { "finalizers": null }, "spec": { "nodeUID": "uid-before" } }))), &[], &[held("a", json!({}))]),
    &["n1 is Failed: NodeReplaced"]
)]
fn what_is_not_its_to_do_is_left(#[case] cluster: Cluster, #[case] expected: &[&str]) {
    let lines = shown(&planned(&cluster));
    let lines: Vec<_> = lines.iter().filter(|line| !line.starts_with("ledger: n3")).collect();
    assert_eq!(lines, expected);
}

/// `b` of the same budget is down on `n2`.
#[rstest]
#[case::no_claim(None, &["WaitsForDisruptions"])]
#[case::queued_claim(Some(claim(json!({}))), &["WaitsForDisruptions"])]
#[case::asking_claim(Some(claim(json!({ "needs": [disruptions(&["a"])] }))), &["WaitsForDisruptions"])]
#[case::suspect_claim(Some(granted("Suspect", &["a"])), &["Suspect"])]
#[case::granted_claim(Some(granted("Confirmed", &["a"])), &[])]
fn dry_run_and_explanation_name_the_same_obstacles(#[case] own: Option<Value>, #[case] expected: &[&str]) {
    let other = json!({ "ticket": 2, "node": "n2", "nodeUID": "uid-n2" });
    let claims: Vec<Value> = own
        .into_iter()
        .chain([merged(granted("Confirmed", &["b"]), other)])
        .collect();
    let dry_run = drain(json!({ "spec": { "dryRun": true } }));
    let cluster = cluster(node("n1", json!({})), Some(dry_run), &claims, &[held("a", json!({}))]);
    let plan = planned(&cluster);
    let verdict = plan
        .drains
        .iter()
        .find(|verdict| verdict.node.as_str() == "n1")
        .unwrap();
    let explained = explain(&cluster.cache(), &policy(), "n1", now()).unwrap();
    assert_eq!(explained.obstacles, verdict.blocked_by);
    let reasons: Vec<_> = verdict.blocked_by.iter().map(|why| why.reason.as_str()).collect();
    assert_eq!(reasons, expected);
}

#[test]
fn blocked_held_pod_delays_no_other() {
    let cluster = cluster(
        ours(json!({})),
        Some(drain(json!({}))),
        &[granted("Confirmed", &["a", "d"])],
        &[held("a", json!({})), held("d", json!({}))],
    );
    let mut memory = Memory::default();
    memory.note_eviction(PodUid::from("uid-a"), false, at("2026-01-01T12:00:10Z"));
    let one_at_a_time = Policy {
        evictions_per_node: 1,
        ..policy()
    };
    let lines = shown(&plan(&cluster.snapshot(), &memory, &one_at_a_time, now()));
    assert!(lines.contains(&"evict d under 1/5".to_owned()), "{lines:?}");
}

#[rstest]
#[case::readable(None, 0, false)]
#[case::state_of_a_later_version(Some("claims[0].state: unknown variant"), 0, true)]
#[case::budget_outside_the_table(None, 7, true)]
fn unreadable_ledger_gives_an_empty_plan(#[case] unreadable: Option<&str>, #[case] place: u32, #[case] is_empty: bool) {
    let claims = [granted("Confirmed", &["a"])];
    let mut cluster = cluster(
        ours(json!({})),
        Some(drain(json!({}))),
        &claims,
        &[held("a", json!({}))],
    );
    let spec = &mut cluster.0.ledger.as_mut().unwrap().spec;
    spec.unreadable = unreadable.map(str::to_owned);
    spec.claims[0].holds[0].budget = place;
    let plan = planned(&cluster);
    let has_nothing = plan.ledger.is_none() && plan.actions.is_empty() && plan.drains.is_empty();
    assert_eq!(has_nothing, is_empty, "{plan:?}");
}

#[test]
fn plan_wakes_at_each_deadline() {
    let cluster = cluster(
        ours(json!({})),
        Some(drain(json!({ "spec": { "deadlines": { "drain": "5m" } } }))),
        &[granted("Confirmed", &["a"])],
        &[held(
            "a",
            leaving(json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:30:00Z" } })),
        )],
    )
    .budgets([budget("web", json!({ "status": { "currentHealthy": 2 } }))]);
    let requeue_at = planned(&cluster).requeue_at.unwrap();
    assert_eq!(
        requeue_at.duration_since(at(A_MINUTE_AGO)),
        SignedDuration::from_mins(5)
    );
}

fn with_empty_dir(patch: Value) -> Value {
    merged(
        json!({ "spec": { "volumes": [{ "name": "v", "emptyDir": {} }] } }),
        patch,
    )
}

fn consenting(spec: Value) -> Value {
    drain(json!({ "spec": merged(json!({ "emptyDirData": "Evict" }), spec) }))
}

/// What nobody has consented to is never evicted, and nothing is begun before somebody has.
#[rstest]
#[case::nothing_begins_without_consent(
    cluster(node("n1", json!({})), Some(drain(json!({}))), &[claim(json!({}))], &[pod("a", with_empty_dir(json!({}))), pod("d", bare())]),
    &["n1 is Scheduled: EmptyDirDataKept"]
)]
#[case::it_begins_with_consent(
    cluster(node("n1", json!({})), Some(consenting(json!({}))), &[claim(json!({}))], &[pod("a", with_empty_dir(json!({})))]),
    &["cordon n1", "n1 is Scheduled"]
)]
#[case::nothing_is_claimed_without_consent(
    cluster(ours(json!({})), Some(drain(json!({}))), &[claim(json!({}))], &[held("a", with_empty_dir(json!({})))]),
    &["n1 is Draining: EmptyDirDataKept"]
)]
#[case::it_is_claimed_with_consent(
    cluster(ours(json!({})), Some(consenting(json!({}))), &[claim(json!({}))], &[held("a", with_empty_dir(json!({})))]),
    &["ledger: n1#1 Waiting needs [a] holds []", "grant uid-n1", "n1 is Draining"]
)]
// It came late, or the drain was granted before there was consent to give.
#[case::a_granted_drain_leaves_it_and_goes_on(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[
        held("a", json!({})), pod("d", with_empty_dir(bare())),
    ]),
    &["evict a under 1/5", "n1 is Draining: EmptyDirDataKept"]
)]
#[case::a_node_with_it_is_not_drained(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &[])], &[pod("d", with_empty_dir(bare()))]),
    &["n1 is Draining: EmptyDirDataKept"]
)]
#[case::whoever_evicts_himself_is_not_asked(
    cluster(
        foreign(json!({})), Some(drain(json!({ "spec": { "evict": "Requester" } }))), &[claim(json!({ "foreignCordon": true }))],
        &[held("a", with_empty_dir(json!({})))],
    ),
    &["ledger: n1#1 Waiting needs [a] holds []", "grant uid-n1", "n1 is Draining"]
)]
fn only_consent_evicts_what_is_lost(#[case] cluster: Cluster, #[case] expected: &[&str]) {
    assert_eq!(shown(&planned(&cluster)), expected);
}

/// Whatever a drain's fallback is, or was.
#[rstest]
#[case::of_the_queue(claim(json!({ "queuedAt": YESTERDAY })))]
#[case::of_a_grant(merged(granted("Confirmed", &[]), json!({ "since": YESTERDAY })))]
fn no_deadline_consents(#[values("Wait", "Delete")] fallback: &str, #[case] claim: Value) {
    let pods = [pod("d", with_empty_dir(bare()))];
    let keeps = drain(json!({ "spec": { "fallback": fallback } }));
    let plan = planned(&cluster(
        ours(json!({})),
        Some(keeps),
        std::slice::from_ref(&claim),
        &pods,
    ));
    let steps = shown(&plan);
    assert!(!steps.iter().any(|step| step.starts_with("evict")), "{steps:?}");
    assert!(
        steps.last().is_some_and(|last| last.contains("EmptyDirDataKept")),
        "{steps:?}"
    );
    assert!(plan.ledger.is_none_or(|write| write.announcements.is_empty()));
    let consents = consenting(json!({ "fallback": fallback }));
    let steps = shown(&planned(&cluster(ours(json!({})), Some(consents), &[claim], &pods)));
    assert!(
        steps.len() > 1 && !steps.last().is_some_and(|last| last.contains("EmptyDirDataKept")),
        "{steps:?}"
    );
}

/// Beside a pod that stays, movable pods wait for the claim where no other pod does: a pod without a controller is none, for
/// drainers leave it alone. So the claim is asked for at once.
#[rstest]
#[case::alone(vec![], true)]
#[case::beside_unmanaged(vec![unguarded("z", json!({ "metadata": { "ownerReferences": null } }))], true)]
#[case::beside_unguarded(vec![unguarded("z", json!({}))], false)]
fn claim_is_asked_for_where_movable_pods_wait_with_it(#[case] others: Vec<Value>, #[case] asks: bool) {
    let pods = [vec![retained("a", json!({})), pod("m", json!({}))], others].concat();
    let waits = claim(json!({ "foreignCordon": true }));
    let requested = drain(json!({ "spec": { "evict": "Requester" } }));
    let cluster = cluster(foreign(json!({})), Some(requested), &[waits], &pods);
    let spares_two =
        json!({ "status": { "disruptionsAllowed": 2, "currentHealthy": 4, "desiredHealthy": 2, "expectedPods": 4 } });
    let lines = shown(&planned(&cluster.budgets([budget("web", spares_two)])));
    assert_eq!(lines.iter().any(|line| line.starts_with("grant")), asks, "{lines:?}");
}

fn unguarded(name: &str, patch: Value) -> Value {
    merged(pod(name, bare()), patch)
}
