use rstest::rstest;

use super::*;

const NOW: &str = "2026-01-01T00:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn eviction() -> DrainRequest {
    DrainRequest {
        node: "n1".into(),
        node_uid: Some("u1".into()),
        requester: "eviction:alice".to_owned(),
        sign_precision: SIGN_PRECISION,
        purpose: Some("evictions by alice".to_owned()),
        evict: Evictor::Requester,
        consents: Consents::default(),
        fallback: Some(Fallback::Wait),
        deadlines: Deadlines::default(),
        ignore_windows: false,
        ask_owners: false,
        dry_run: false,
        eviction: Some(EvictionSign::Seen),
        changes_settings: false,
    }
}

fn person() -> DrainRequest {
    DrainRequest {
        node_uid: None,
        requester: "kubectl-nodeward:alice".to_owned(),
        purpose: None,
        evict: Evictor::Nodeward,
        fallback: None,
        eviction: None,
        changes_settings: true,
        ..eviction()
    }
}

fn drain(fields: Value) -> NodeDrain {
    let mut drain = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain",
        "metadata": { "name": "n1", "uid": "d1", "resourceVersion": "7", "annotations": { "nodeward.dev/last-eviction": NOW } },
        "spec": {
            "nodeName": "n1", "nodeUID": "u1", "evict": "Requester", "requesters": [{ "name": "eviction:alice", "since": NOW }],
        },
    });
    for (section, fields) in fields.as_object().unwrap() {
        for (key, value) in fields.as_object().unwrap() {
            drain[section][key] = value.clone();
        }
    }
    serde_json::from_value(drain).unwrap()
}

fn bobs() -> Value {
    json!({ "spec": {
        "requesters": [{ "name": "kubectl-nodeward:bob" }], "purpose": "kernel", "fallback": "Wait",
        "deadlines": { "queue": "5m", "drain": "6m" }, "evict": "Requester",
    } })
}

fn joined(present: Value, request: &DrainRequest, now: &str) -> (JoinOutcome, Option<Value>) {
    match join(Some(&drain(present)), request, at(now)) {
        JoinStep::Create(_) => panic!("there is one"),
        JoinStep::Done(outcome) => (outcome, None),
        JoinStep::Patch(outcome, patch) => {
            assert_eq!(patch["metadata"]["uid"], "d1");
            assert_eq!(patch["metadata"]["resourceVersion"], "7");
            (outcome, Some(patch))
        }
    }
}

fn names(patch: &Value) -> Vec<&str> {
    let requesters = patch["spec"]["requesters"].as_array().unwrap();
    requesters.iter().map(|one| one["name"].as_str().unwrap()).collect()
}

#[test]
fn a_new_drain_names_its_requester_and_node() {
    let JoinStep::Create(created) = join(None, &eviction(), at("2026-01-01T00:00:00.5Z")) else {
        panic!("not created");
    };
    let created = serde_json::to_value(created).unwrap();
    assert_eq!(
        created["metadata"],
        json!({ "name": "n1", "annotations": { "nodeward.dev/last-eviction": NOW } })
    );
    assert_eq!(created["spec"]["nodeUID"], "u1");
    assert_eq!(created["spec"]["evict"], "Requester");
    assert_eq!(created["spec"]["fallback"], "Wait");
    assert_eq!(
        created["spec"]["requesters"],
        json!([{ "name": "eviction:alice", "since": NOW }])
    );
}

fn of_machine() -> Value {
    json!({ "spec": { "evict": "Nodeward", "requesters": [{ "name": "fleetlock:workers:n1" }] } })
}

fn crowded(requesters: usize) -> Value {
    let requesters: Vec<Value> = (0..requesters)
        .map(|user| json!({ "name": format!("eviction:{user}") }))
        .collect();
    json!({ "spec": { "requesters": requesters } })
}

#[rstest]
#[case::asked_again_soon(json!({}), "2026-01-01T00:00:59Z", JoinOutcome::Known)]
#[case::asked_again_later(json!({}), "2026-01-01T00:01:00Z", JoinOutcome::Noted)]
#[case::a_sign_from_the_future(json!({}), "2025-12-31T23:59:00Z", JoinOutcome::Noted)]
#[case::an_unreadable_sign(json!({ "metadata": { "annotations": { "nodeward.dev/last-eviction": "now" } } }), NOW, JoinOutcome::Noted)]
#[case::asked_for_by_another(json!({ "spec": { "requesters": [{ "name": "nodedrain" }] } }), NOW, JoinOutcome::Added)]
#[case::asked_for_by_nobody(json!({ "spec": { "requesters": [] } }), NOW, JoinOutcome::Added)]
#[case::of_a_node_that_we_drain(of_machine(), NOW, JoinOutcome::Known)]
#[case::later_of_a_node_that_we_drain(of_machine(), "2026-01-01T00:01:00Z", JoinOutcome::Noted)]
#[case::beside_many_others(crowded(31), NOW, JoinOutcome::Added)]
#[case::beside_too_many_others(crowded(32), NOW, JoinOutcome::Known)]
#[case::of_another_node(json!({ "spec": { "nodeUID": "u0" } }), NOW, JoinOutcome::Conflicting(Conflict::OtherNode))]
#[case::of_an_unknown_node(json!({ "spec": { "nodeUID": null } }), NOW, JoinOutcome::Known)]
#[case::ending(json!({ "metadata": { "deletionTimestamp": NOW } }), NOW, JoinOutcome::Conflicting(Conflict::Ending))]
#[case::later_and_ending(json!({ "metadata": { "deletionTimestamp": NOW } }), "2026-01-01T00:01:00Z", JoinOutcome::Conflicting(Conflict::Ending))]
fn evictions_join_once_and_sign_every_minute(#[case] present: Value, #[case] now: &str, #[case] expected: JoinOutcome) {
    let (outcome, patch) = joined(present, &eviction(), now);
    assert_eq!(outcome, expected);
    let Some(patch) = patch else { return };
    if expected == JoinOutcome::Added {
        assert_eq!(names(&patch).last(), Some(&"eviction:alice"));
    } else {
        assert_eq!(patch["metadata"]["annotations"]["nodeward.dev/last-eviction"], now);
        assert_eq!(patch.get("spec"), None);
    }
}

#[test]
fn eviction_makes_a_drain_of_a_preview() {
    let preview = json!({ "spec": { "dryRun": true, "evict": "Nodeward", "requesters": [{ "name": "bob" }] } });
    let (outcome, patch) = joined(preview.clone(), &eviction(), NOW);
    let patch = patch.unwrap();
    assert_eq!(outcome, JoinOutcome::Added);
    assert_eq!(names(&patch), ["bob", "eviction:alice"]);
    assert_eq!(
        (&patch["spec"]["dryRun"], &patch["spec"]["evict"]),
        (&json!(false), &json!("Requester"))
    );
    let asks = DrainRequest {
        eviction: None,
        ..eviction()
    };
    assert_eq!(joined(preview, &asks, NOW), (JoinOutcome::Preview, None));
}

/// That its node is drained again is told at once, whenever the last drain's evictions were.
#[rstest]
#[case::evicted_before_its_end("2026-01-01T00:00:10Z", Some("2026-01-01T00:00:20Z"))]
#[case::evicted_at_its_end(NOW, Some("2026-01-01T00:00:20Z"))]
#[case::evicted_since_its_end("2025-12-31T23:59:59Z", None)]
fn eviction_after_the_end_of_a_drain_is_noted_at_once(#[case] ended: &str, #[case] sign: Option<&str>) {
    let ending = json!({ "metadata": { "deletionTimestamp": ended } });
    let (outcome, patch) = joined(ending, &eviction(), "2026-01-01T00:00:20Z");
    assert_eq!(outcome, JoinOutcome::Conflicting(Conflict::Ending));
    let noted = patch.map(|patch| patch["metadata"]["annotations"]["nodeward.dev/last-eviction"].clone());
    assert_eq!(noted, sign.map(|sign| json!(sign)));
}

/// A drainer that goes on is never taken to be silent, however short the silence that ends its drain.
#[rstest]
#[case::by_default("10m", "1m")]
#[case::short("20s", "5s")]
fn signs_are_as_precise_as_the_silence_asks(#[case] quiet_period: SignedDuration, #[case] precision: SignedDuration) {
    let request = DrainRequest {
        sign_precision: sign_precision(quiet_period),
        ..eviction()
    };
    let after = |passed: SignedDuration| joined(json!({}), &request, &(at(NOW) + passed).to_string()).0;
    assert_eq!(after(precision), JoinOutcome::Noted);
    assert_eq!(after(precision - SignedDuration::from_secs(1)), JoinOutcome::Known);
}

#[test]
fn requests_that_are_no_evictions_leave_no_sign() {
    let reboot = DrainRequest {
        eviction: None,
        ..eviction()
    };
    let (outcome, patch) = joined(json!({}), &reboot, "2026-06-01T00:00:00Z");
    assert_eq!((outcome, patch), (JoinOutcome::Known, None));
    assert_eq!(new_drain(&reboot, at(NOW)).metadata.annotations, None);
}

#[test]
fn programs_leave_the_settings_of_a_drain_alone() {
    let (outcome, patch) = joined(bobs(), &eviction(), NOW);
    let patch = patch.unwrap();
    assert_eq!(outcome, JoinOutcome::Added);
    assert_eq!(patch["spec"].as_object().unwrap().len(), 1, "requesters alone: {patch}");
}

#[test]
fn people_change_only_what_they_name() {
    let request = DrainRequest {
        deadlines: Deadlines {
            drain: Some("1h".to_owned()),
            ..Deadlines::default()
        },
        ..person()
    };
    let (outcome, patch) = joined(bobs(), &request, NOW);
    let mut patch = patch.unwrap();
    assert_eq!(outcome, JoinOutcome::Added);
    assert_eq!(names(&patch), ["kubectl-nodeward:bob", "kubectl-nodeward:alice"]);
    patch["spec"].as_object_mut().unwrap().remove("requesters");
    assert_eq!(
        patch["spec"],
        json!({ "deadlines": { "drain": "1h" }, "evict": "Nodeward" })
    );
}

#[test]
fn repeated_request_changes_only_named_fields() {
    let mine = json!({ "spec": { "evict": "Nodeward", "requesters": [{ "name": "kubectl-nodeward:alice" }] } });
    assert_eq!(joined(mine.clone(), &person(), NOW), (JoinOutcome::Known, None));
    let now_says_why = DrainRequest {
        purpose: Some("kernel".to_owned()),
        fallback: Some(Fallback::Wait),
        ..person()
    };
    let (outcome, patch) = joined(mine, &now_says_why, NOW);
    assert_eq!(outcome, JoinOutcome::Noted);
    assert_eq!(
        patch.unwrap()["spec"],
        json!({ "purpose": "kernel", "fallback": "Wait" })
    );
}

/// One of several requesters without the emergency does not take it back.
#[rstest]
#[case::asked_for(false, true, json!({ "ignoreWindows": true }))]
#[case::asked_for_before(true, true, Value::Null)]
#[case::anothers_emergency(true, false, Value::Null)]
fn windows_once_ignored_stay_so(#[case] present: bool, #[case] ignore_windows: bool, #[case] expected: Value) {
    let mine = [json!({ "name": "kubectl-nodeward:alice" })];
    let mine = json!({ "spec": { "evict": "Nodeward", "requesters": mine, "ignoreWindows": present } });
    let request = DrainRequest {
        ignore_windows,
        ..person()
    };
    assert_eq!(new_drain(&request, at(NOW)).spec.ignore_windows, ignore_windows);
    let (_, patch) = joined(mine, &request, NOW);
    assert_eq!(patch.map_or(Value::Null, |patch| patch["spec"].clone()), expected);
}

const EMPTY_DIR: Consents = Consents {
    unmanaged_pods: Consent::Keep,
    empty_dir_data: Consent::Evict,
};

#[rstest]
#[case::first_consent(json!({}), EMPTY_DIR, json!({ "emptyDirData": "Evict" }))]
#[case::consent_beside_anothers(json!({ "unmanagedPods": "Evict" }), EMPTY_DIR, json!({ "emptyDirData": "Evict" }))]
#[case::consent_that_is_there(json!({ "emptyDirData": "Evict" }), EMPTY_DIR, Value::Null)]
#[case::none_after_anothers(json!({ "unmanagedPods": "Evict", "emptyDirData": "Evict" }), Consents::default(), Value::Null)]
#[case::all(json!({}), Consents::ALL, json!({ "unmanagedPods": "Evict", "emptyDirData": "Evict" }))]
fn consents_of_requesters_add_up(#[case] present: Value, #[case] consents: Consents, #[case] expected: Value) {
    let mut fields = present;
    fields["evict"] = json!("Nodeward");
    let present = json!({ "spec": fields });
    let machine = DrainRequest {
        evict: Evictor::Nodeward,
        consents,
        eviction: None,
        ..eviction()
    };
    let adds_nothing = expected == Value::Null;
    assert_eq!(is_fulfilled_by(&machine, &drain(present.clone())), adds_nothing);
    let (outcome, patch) = joined(present, &machine, NOW);
    let written = patch.map_or(Value::Null, |patch| patch["spec"].clone());
    assert_eq!(written, expected);
    assert_eq!(
        outcome,
        if adds_nothing {
            JoinOutcome::Known
        } else {
            JoinOutcome::Noted
        }
    );
}

#[test]
fn new_drain_has_its_requesters_consents() {
    let request = DrainRequest {
        evict: Evictor::Nodeward,
        consents: EMPTY_DIR,
        ..eviction()
    };
    assert_eq!(Consents::of(&new_drain(&request, at(NOW)).spec), EMPTY_DIR);
}

#[rstest]
#[case::of_a_drain_without_the_fields(json!({ "spec": { "evict": "Nodeward" } }), Consents::default())]
#[case::of_a_later_value(json!({ "spec": { "evict": "Nodeward", "emptyDirData": "Copy" } }), Consents::default())]
#[case::of_whoever_evicts_himself(json!({}), Consents::ALL)]
fn consent_is_never_assumed_for_our_evictions(#[case] present: Value, #[case] expected: Consents) {
    assert_eq!(Consents::of(&drain(present).spec), expected);
}

#[test]
fn a_preview_becomes_a_drain_when_a_person_asks() {
    let preview = json!({ "spec": { "dryRun": true } });
    assert_eq!(joined(preview, &person(), NOW).1.unwrap()["spec"]["dryRun"], false);
}

#[rstest]
#[case::of_the_webhook(&evicting_requester("system:serviceaccount:kube-system:karpenter"), false)]
#[case::with_a_name_that_is_cut(&evicting_requester(&"u".repeat(REQUESTER_AT_MOST)), false)]
#[case::of_fleet_lock(&machine_requester("workers", "n1"), true)]
#[case::of_the_plugin("kubectl-nodeward:alice", true)]
#[case::by_hand("alice", true)]
fn only_evicting_requesters_never_release(#[case] name: &str, #[case] expected: bool) {
    assert_eq!(releases_by_itself(name), expected);
    assert!(name.len() <= REQUESTER_AT_MOST);
}

#[test]
fn leaving_removes_only_the_own_request() {
    let both =
        drain(json!({ "spec": { "requesters": [{ "name": "eviction:alice" }, { "name": "kubectl-nodeward:bob" }] } }));
    let patch = leave(&both, "eviction:alice").unwrap();
    assert_eq!(patch["spec"]["requesters"], json!([{ "name": "kubectl-nodeward:bob" }]));
    assert_eq!(patch["metadata"], json!({ "uid": "d1", "resourceVersion": "7" }));
    assert_eq!(leave(&both, "eviction:carol"), None);
}

#[test]
fn the_last_requester_leaves_an_empty_list() {
    let patch = leave(&drain(json!({})), "eviction:alice").unwrap();
    assert_eq!(patch["spec"]["requesters"], json!([]));
}
