#![allow(
    clippy::needless_pass_by_value,
    reason = "a row of a table writes its values in place"
)]

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T10:30:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// `workers` selects all nodes; `change` is merged into its spec and status.
fn check(name: &str, spec: Value, status: Value) -> NodeHealthCheck {
    let template = |kind: &str| json!({ "apiVersion": "a/v1", "kind": kind, "namespace": "n", "name": "t" });
    let mut check = json!({
        "metadata": { "name": name },
        "spec": {
            "selector": {},
            "escalatingRemediations": [
                { "remediationTemplate": template("SecondTemplate"), "order": 7, "timeout": "5m" },
                { "remediationTemplate": template("FirstTemplate"), "order": 2, "timeout": "10m" },
            ],
        },
        "status": { "healthyNodes": 5, "observedNodes": 6 },
    });
    for (key, change) in [("spec", spec), ("status", status)] {
        for (field, value) in change.as_object().into_iter().flatten() {
            check[key][field] = value.clone();
        }
    }
    serde_json::from_value(check).unwrap()
}

fn node(labels: Value, conditions: Value) -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": "n1", "labels": labels, "creationTimestamp": "2026-01-01T10:00:00Z" },
        "status": { "conditions": conditions },
    }))
    .unwrap()
}

fn not_ready(since: &str) -> Value {
    json!([{ "type": "Ready", "status": "False", "lastTransitionTime": since }])
}

fn ready() -> Value {
    json!([{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T10:00:00Z" }])
}

/// Not Ready for half an hour.
fn sick() -> Node {
    node(json!({}), not_ready("2026-01-01T10:00:00Z"))
}

fn remediation(kind: &str, more: Value) -> Value {
    let mut remediation = json!({
        "resource": { "apiVersion": "a/v1", "kind": kind, "namespace": "n", "name": "n1", "uid": "u" },
        "started": "2026-01-01T10:25:00Z",
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        remediation[field] = value.clone();
    }
    remediation
}

fn entry(remediations: Value, more: Value) -> Value {
    let mut entry = json!({ "name": "n1", "remediations": remediations });
    for (field, value) in more.as_object().into_iter().flatten() {
        entry[field] = value.clone();
    }
    json!({ "unhealthyNodes": [entry] })
}

fn health(check: NodeHealthCheck, node: &Node) -> NodeHealth {
    let sources = HealthSources {
        checks: &[check],
        node: Some(node),
        ..HealthSources::default()
    };
    of_node("n1", &sources, at(NOW)).pop().unwrap()
}

#[rstest]
#[case::well(ready(), HealthReason::Healthy)]
#[case::no_condition(json!([]), HealthReason::ReadyUnknown)]
#[case::not_for_long(not_ready("2026-01-01T10:26:00Z"), HealthReason::NotExpired)]
#[case::for_long(not_ready("2026-01-01T10:25:00Z"), HealthReason::StartingRemediation)]
fn condition_counts_once_its_duration_has_passed(#[case] conditions: Value, #[case] reason: HealthReason) {
    let health = health(check("workers", json!({}), json!({})), &node(json!({}), conditions));
    assert_eq!(health.reason, reason);
    let is_due = matches!(reason, HealthReason::NotExpired | HealthReason::StartingRemediation);
    assert_eq!(health.condition.is_some(), is_due);
    let next = health.next.map(|next| (next.number, next.template));
    assert_eq!(next, is_due.then(|| (1, "FirstTemplate n/t".to_owned())));
}

#[test]
fn the_condition_that_counts_first_is_shown() {
    let conditions = json!([
        { "type": "Ready", "status": "False", "duration": "1h" },
        { "type": "Gpu", "status": "Missing", "duration": "40m" },
        { "type": "Disk", "status": "True", "duration": "1m" },
    ]);
    let health = health(
        check("workers", json!({ "unhealthyConditions": conditions }), json!({})),
        &sick(),
    );
    let condition = health.condition.unwrap();
    assert_eq!(
        (condition.type_.as_str(), condition.status.as_str()),
        ("Gpu", "Missing")
    );
    assert_eq!(
        (health.reason, health.until),
        (HealthReason::NotExpired, Some(at("2026-01-01T10:40:00Z")))
    );
}

#[rstest]
#[case::paused(json!({ "pauseRequests": ["bob"] }), json!({}), HealthReason::CheckPaused, "bob")]
#[case::disabled(
    json!({}),
    json!({ "conditions": [{
        "type": "Disabled", "status": "True", "reason": "RemediationTemplateNotFound", "message": "FirstTemplate n/t",
        "lastTransitionTime": NOW,
    }] }),
    HealthReason::CheckDisabled,
    "RemediationTemplateNotFound: FirstTemplate n/t"
)]
#[case::too_few(
    json!({}), json!({ "healthyNodes": 2 }), HealthReason::TooFewHealthy, "4 of 6 nodes are not healthy, and maxUnhealthy 49% allows 3"
)]
#[case::cooldown(
    json!({ "stormCooldownDuration": "30m" }),
    json!({ "conditions": [{
        "type": "StormCooldownActive", "status": "True", "reason": "HealthyNodeThresholdChange", "message": "cools down",
        "lastTransitionTime": "2026-01-01T10:20:00Z",
    }] }),
    HealthReason::StormCooldown,
    "cools down"
)]
#[case::cap(
    json!({ "maxConcurrentRemediations": 1 }),
    entry(json!([]), json!({ "stoppedBy": { "reason": "ConcurrencyLimitReached", "message": "1 of 1: n2" } })),
    HealthReason::ConcurrencyLimitReached,
    "as many nodes as allowed are being remediated: 1 of 1: n2"
)]
#[case::dry_run(json!({ "dryRun": true }), json!({}), HealthReason::WouldRemediate, "")]
fn first_step_is_stopped(
    #[case] spec: Value,
    #[case] status: Value,
    #[case] reason: HealthReason,
    #[case] detail: &str,
) {
    let health = health(check("workers", spec, status), &sick());
    assert_eq!(health.reason, reason);
    assert_eq!(
        health.stopped_by.first().map_or("", |stop| stop.detail.as_str()),
        detail
    );
}

/// health-check lists a node before it does anything: where it does not, something keeps it from writing the status.
#[rstest]
#[case::in_time("2026-01-01T10:24:30Z", json!({}), HealthReason::StartingRemediation)]
#[case::late("2026-01-01T10:23:00Z", json!({}), HealthReason::RemediationRejected)]
#[case::listed("2026-01-01T10:23:00Z", json!({ "unhealthyNodes": [{ "name": "n1" }] }), HealthReason::StartingRemediation)]
fn node_that_no_status_lists_needs_a_person(#[case] since: &str, #[case] status: Value, #[case] reason: HealthReason) {
    let health = health(check("workers", json!({}), status), &node(json!({}), not_ready(since)));
    assert_eq!(health.reason, reason);
    assert!(health.stopped_by.iter().all(|stop| !stop.ends_by_itself(at(NOW))));
}

#[rstest]
#[case::exclusion_label("true", true)]
#[case::another_value("yes", false)]
fn exclusion_label_stops_with_its_one_value(#[case] value: &str, #[case] stops: bool) {
    let labels = json!({ "remediation.medik8s.io/exclude-from-remediation": value });
    let node = node(labels, not_ready("2026-01-01T10:00:00Z"));
    let health = health(check("workers", json!({}), json!({})), &node);
    assert_eq!(health.reason == HealthReason::ExcludedByLabel, stops, "{health:?}");
}

fn lease(holder: &str) -> LeaseView {
    let lease = json!({
        "metadata": { "name": "node-n1" },
        "spec": { "holderIdentity": holder, "renewTime": "2026-01-01T10:29:00.000000Z", "leaseDurationSeconds": 120 },
    });
    LeaseView::project(&serde_json::from_value(lease).unwrap()).unwrap()
}

#[rstest]
#[case::another_program("somebody", Some(HealthReason::LeaseTaken))]
#[case::this_check("NodeHealthCheck-workers", None)]
fn lease_of_another_holder_is_maintenance(#[case] holder: &str, #[case] reason: Option<HealthReason>) {
    let listed = json!({ "unhealthyNodes": [{ "name": "n1" }] });
    let (node, lease, checks) = (sick(), lease(holder), [check("workers", json!({}), listed)]);
    let sources = HealthSources {
        checks: &checks,
        node: Some(&node),
        lease: Some(&lease),
        ..HealthSources::default()
    };
    let health = of_node("n1", &sources, at(NOW)).pop().unwrap();
    assert_eq!(health.stopped_by.first().map(|stop| stop.reason), reason);
    let until = health.stopped_by.first().and_then(|stop| stop.until);
    assert_eq!(until, reason.map(|_| at("2026-01-01T10:31:00Z")));
}

#[rstest]
#[case("Granted", "True", "2026-01-01T10:31:00Z", true)]
#[case("Draining", "True", "2026-01-01T10:31:00Z", true)]
#[case("Draining", "False", "2026-01-01T10:31:00Z", false)]
#[case("Drained", "True", "2026-01-01T10:31:00Z", true)]
#[case("Recovering", "False", "2026-01-01T10:31:00Z", true)]
#[case("Drained", "True", "2026-01-01T10:30:00Z", false)]
#[case("Scheduled", "False", "2026-01-01T10:31:00Z", false)]
#[case("Queued", "False", "2026-01-01T10:31:00Z", false)]
#[case("Suspect", "False", "2026-01-01T10:31:00Z", false)]
#[case("Failed", "False", "2026-01-01T10:31:00Z", false)]
fn drain_within_its_deadline_is_maintenance(
    #[case] phase: &str,
    #[case] granted: &str,
    #[case] deadline: &str,
    #[case] stops: bool,
) {
    let granted = json!({
        "type": "Granted", "status": granted, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T10:00:00Z",
    });
    let drain = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": "n1" },
        "spec": { "nodeName": "n1", "requesters": [] },
        "status": { "phase": phase, "deadline": deadline, "conditions": [granted] },
    });
    let drain = Drain::of(&serde_json::from_value(drain).unwrap());
    let (node, checks) = (sick(), [check("workers", json!({}), json!({}))]);
    let sources = HealthSources {
        checks: &checks,
        node: Some(&node),
        drain: Some(&drain),
        ..HealthSources::default()
    };
    let health = of_node("n1", &sources, at(NOW)).pop().unwrap();
    assert_eq!(health.reason == HealthReason::UnderMaintenance, stops, "{health:?}");
}

/// What health-check says of each node is told beside what the status shows, each once.
#[rstest]
#[case::what_only_it_knows(
    json!({}),
    json!({ "reason": "EtcdQuorumAtRisk", "message": "2 of 3 are Ready" }),
    &[(HealthReason::EtcdQuorumAtRisk, "etcd may lose its quorum without it: 2 of 3 are Ready")]
)]
#[case::its_end_alone(
    json!({}),
    json!({ "reason": "BackingOff", "message": "until 2026-01-01T10:37:20Z", "until": "2026-01-01T10:37:20Z" }),
    &[(HealthReason::BackingOff, "it was remediated not long ago")]
)]
#[case::no_detail(
    json!({}),
    json!({ "reason": "Settling", "until": "2026-01-01T10:31:00Z" }),
    &[(HealthReason::Settling, "nodes get a moment to report first")]
)]
#[case::beside_what_is_seen(
    json!({ "pauseRequests": ["bob"] }),
    json!({ "reason": "ClusterUpgrading", "message": "ClusterVersion" }),
    &[(HealthReason::CheckPaused, "bob"), (HealthReason::ClusterUpgrading, "being upgraded: ClusterVersion")]
)]
#[case::seen_and_told(
    json!({ "pauseRequests": ["bob"] }),
    json!({ "reason": "CheckPaused", "message": "alice; bob" }),
    &[(HealthReason::CheckPaused, "bob")]
)]
#[case::of_another_version(json!({}), json!({ "reason": "MoonIsFull", "message": "m" }), &[])]
fn what_health_check_says_stops_the_node(
    #[case] spec: Value,
    #[case] stop: Value,
    #[case] expected: &[(HealthReason, &str)],
) {
    let until = stop.get("until").and_then(Value::as_str).map(at);
    let status = entry(json!([]), json!({ "stoppedBy": stop }));
    let health = health(check("workers", spec, status), &sick());
    let told = health.stopped_by.iter().map(|stop| (stop.reason, &*stop.detail));
    assert_eq!(told.collect::<Vec<_>>(), expected);
    let first = expected
        .first()
        .map_or(HealthReason::StartingRemediation, |(reason, _)| *reason);
    assert_eq!(health.reason, first);
    assert_eq!(health.stopped_by.last().and_then(|stop| stop.until), until);
}

/// An upgrade, NodeMaintenance or an outage stops an escalation too, and only the operator knows of them.
#[test]
fn what_stops_an_escalation_is_told_beside_its_step() {
    let stop = json!({ "stoppedBy": { "reason": "ClusterUpgrading", "message": "its annotation upgrading" } });
    let late = json!([remediation("First", json!({ "started": "2026-01-01T10:15:00Z" }))]);
    let health = health(check("workers", json!({}), entry(late, stop)), &sick());
    let stop = health.stopped_by.first().map(|stop| stop.reason);
    assert_eq!(
        (health.reason, stop),
        (HealthReason::RemediationRunning, Some(HealthReason::ClusterUpgrading))
    );
}

/// Each stopped node is told by its cause, and not the first one alone.
#[test]
fn stopped_nodes_of_a_check_are_told_by_their_cause() {
    let node = |name: &str, reason: &str| json!({ "name": name, "stoppedBy": { "reason": reason, "message": "m" } });
    let nodes = [
        node("n1", "EtcdQuorumAtRisk"),
        node("n2", "PermissionMissing"),
        node("n3", "EtcdQuorumAtRisk"),
        node("n4", "CheckPaused"),
        json!({ "name": "n5" }),
    ];
    let told = HealthCheck::of(&check("workers", json!({}), json!({ "unhealthyNodes": nodes }))).stopped;
    let told: Vec<_> = told
        .into_iter()
        .map(|stopped| (stopped.stop.reason, stopped.nodes.join(" ")))
        .collect();
    let expected = [
        (HealthReason::EtcdQuorumAtRisk, "n1 n3"),
        (HealthReason::PermissionMissing, "n2"),
    ];
    assert_eq!(told, expected.map(|(reason, nodes)| (reason, nodes.to_owned())));
}

/// The writer's clock is ahead: health-check counts from when it first saw the condition, so no later than from now on.
#[rstest]
#[case::listed(true, HealthReason::StartingRemediation, NOW)]
#[case::not_yet(false, HealthReason::NotExpired, "2026-01-01T10:35:00Z")]
fn stamp_in_the_future_counts_as_health_check_counts_it(
    #[case] is_listed: bool,
    #[case] reason: HealthReason,
    #[case] expires: &str,
) {
    let status = if is_listed {
        entry(json!([]), json!({}))
    } else {
        json!({})
    };
    let node = node(json!({}), not_ready("2026-01-01T11:00:00Z"));
    let health = health(check("workers", json!({}), status), &node);
    let condition = health.condition.unwrap();
    assert_eq!(
        (health.reason, condition.since, condition.expires),
        (reason, at(NOW), at(expires))
    );
}

fn owner(uid: &str) -> Value {
    json!({ "apiVersion": "a/v1", "kind": "NodeHealthCheck", "name": "workers", "uid": uid })
}

#[rstest]
#[case::kept(json!({}), true)]
#[case::of_another_node(json!({ "annotations": { "remediation.medik8s.io/node-name": "n2" } }), false)]
#[case::of_another_check(json!({ "ownerReferences": [owner("other")] }), false)]
#[case::of_a_check_that_is_gone(json!({ "ownerReferences": [owner("gone")] }), true)]
#[case::of_nobody(json!({ "ownerReferences": [] }), true)]
#[case::nothing_keeps_it(json!({ "finalizers": [] }), false)]
#[case::not_in_deletion(json!({ "deletionTimestamp": null }), false)]
fn remediation_that_a_finalizer_keeps_is_named(#[case] change: Value, #[case] is_named: bool) {
    let mut metadata = json!({
        "name": "n1", "namespace": "n", "deletionTimestamp": "2026-01-01T10:00:00Z", "finalizers": ["a.example/f"],
        "ownerReferences": [owner("c")],
    });
    for (field, value) in change.as_object().unwrap() {
        metadata[field] = value.clone();
    }
    let remediation = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
    let all = ["c", "other"].map(|uid| {
        let mut check = check("workers", json!({}), json!({}));
        check.metadata.uid = Some(uid.to_owned());
        check
    });
    let expected = is_named.then(|| KeptRemediation {
        check: "workers".to_owned(),
        remediation: "First n/n1".to_owned(),
        deleted: at("2026-01-01T10:00:00Z"),
        finalizers: vec!["a.example/f".to_owned()],
    });
    assert_eq!(
        KeptRemediation::of("First", &remediation, "n1", &all[0], &all),
        expected
    );
}

#[rstest]
#[case::first_step(json!([remediation("First", json!({}))]), HealthReason::RemediationRunning, 1, Some(2))]
#[case::intent(
    json!([{ "resource": { "apiVersion": "a/v1", "kind": "First", "namespace": "n", "name": "n1" }, "started": NOW }]), HealthReason::StartingRemediation, 1, Some(2)
)]
#[case::between_steps(
    json!([remediation("First", json!({ "timedOut": NOW }))]), HealthReason::Escalating, 1, Some(2)
)]
#[case::last_step(
    json!([remediation("First", json!({ "timedOut": NOW })), remediation("Second", json!({}))]),
    HealthReason::RemediationRunning, 2, None
)]
#[case::after_the_last(
    json!([remediation("Second", json!({ "timedOut": NOW }))]), HealthReason::ChainExhausted, 2, None
)]
#[case::last_step_is_gone(
    json!([remediation("First", json!({ "timedOut": NOW })), remediation("Second", json!({ "absence": "Gone" }))]),
    HealthReason::Escalating, 1, Some(2)
)]
fn steps_follow_the_escalation_chain(
    #[case] remediations: Value,
    #[case] reason: HealthReason,
    #[case] number: usize,
    #[case] next: Option<usize>,
) {
    let health = health(check("workers", json!({}), entry(remediations, json!({}))), &sick());
    let step = health.step.unwrap();
    assert_eq!((health.reason, step.number, step.of), (reason, number, 2));
    assert_eq!(health.next.map(|next| next.number), next);
}

/// A step whose remediation is gone starts anew, as the first one does, and waits as that does.
#[test]
fn remediation_that_is_gone_does_not_run() {
    let stop = json!({ "stoppedBy": { "reason": "BackingOff", "until": "2026-01-01T10:40:00Z" } });
    let status = entry(json!([remediation("First", json!({ "absence": "Gone" }))]), stop);
    let health = health(check("workers", json!({}), status), &sick());
    assert_eq!((health.reason, health.step), (HealthReason::BackingOff, None));
}

#[rstest]
#[case::delayed("5m", Some("2026-01-01T10:33:00Z"))]
#[case::until_a_person_confirms("-1s", None)]
fn healthy_delay_keeps_the_remediation(#[case] delay: &str, #[case] until: Option<&str>) {
    let delayed = json!({ "conditionsHealthyTimestamp": "2026-01-01T10:28:00Z", "healthyDelayed": true });
    let status = entry(json!([remediation("First", json!({}))]), delayed);
    let health = health(
        check("workers", json!({ "healthyDelay": delay }), status),
        &node(json!({}), ready()),
    );
    assert_eq!(
        (health.reason, health.until),
        (HealthReason::HealthyDelayed, until.map(at))
    );
    assert_eq!(health.next, None);
}

#[rstest]
#[case::all(json!({}), true)]
#[case::its_role(Value::Null, false)]
#[case::another_label(json!({ "matchLabels": { "zone": "a" } }), false)]
fn only_selected_nodes_are_watched(#[case] selector: Value, #[case] watched: bool) {
    let checks = [check("workers", json!({ "selector": selector }), json!({}))];
    let node = node(json!({ "zone": "b" }), ready());
    let sources = HealthSources {
        checks: &checks,
        node: Some(&node),
        ..HealthSources::default()
    };
    assert_eq!(of_node("n1", &sources, at(NOW)).len(), usize::from(watched));
}

#[test]
fn only_nodes_with_a_remediation_that_runs_are_remediated() {
    for over in [
        json!({ "timedOut": "2026-01-01T10:20:00Z" }),
        json!({ "absence": "Gone" }),
    ] {
        let over = json!([remediation("First", over)]);
        let told = HealthCheck::of(&check("workers", json!({}), entry(over, json!({}))));
        assert_eq!(told.remediating, [""; 0]);
    }
    let running = json!([
        remediation("First", json!({ "timedOut": "2026-01-01T10:20:00Z" })),
        remediation("Second", json!({})),
    ]);
    let told = HealthCheck::of(&check("workers", json!({}), entry(running, json!({}))));
    assert_eq!(told.remediating, ["n1"]);
}
