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
    json!({ "unhealthyNodes": [{ "name": "n2", "remediations": [remediation("First", json!({}))] }] }),
    HealthReason::ConcurrencyLimitReached,
    "1 nodes are being remediated, maxConcurrentRemediations is 1: n2"
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
    let (node, lease, checks) = (sick(), lease(holder), [check("workers", json!({}), json!({}))]);
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

#[test]
fn first_check_that_remediates_the_node_stops_the_others() {
    let remediated = entry(json!([remediation("First", json!({}))]), json!({}));
    let checks = [
        check("first", json!({}), remediated),
        check("second", json!({}), json!({})),
    ];
    let node = sick();
    let sources = HealthSources {
        checks: &checks,
        node: Some(&node),
        ..HealthSources::default()
    };
    let reasons: Vec<_> = of_node("n1", &sources, at(NOW))
        .iter()
        .map(|health| health.reason)
        .collect();
    assert_eq!(
        reasons,
        [HealthReason::RemediationRunning, HealthReason::RemediatedByAnotherCheck]
    );
}

#[rstest]
#[case::this_node(
    "node n1 is unhealthy, but etcd may lose its quorum without it (2 of 3 are Ready)",
    HealthReason::EtcdQuorumAtRisk
)]
#[case::another_node(
    "node n10 is unhealthy, but etcd may lose its quorum without it",
    HealthReason::StartingRemediation
)]
#[case::another_word("no remediation is under way", HealthReason::StartingRemediation)]
fn what_only_the_operator_knows_comes_from_its_status(#[case] said: &str, #[case] reason: HealthReason) {
    let health = health(check("workers", json!({}), json!({ "reason": said })), &sick());
    assert_eq!(health.reason, reason);
    let details: Vec<_> = health.stopped_by.iter().map(|stop| stop.detail.as_str()).collect();
    let expected: &[&str] = if reason == HealthReason::EtcdQuorumAtRisk {
        &["2 of 3 are Ready"]
    } else {
        &[]
    };
    assert_eq!(details, expected);
}

#[rstest]
#[case::since_it_counts(
    "node n1 is unhealthy, but etcd may lose its quorum without it: its guard pod is Ready",
    "2026-01-01T10:06:00Z",
    HealthReason::EtcdQuorumAtRisk
)]
#[case::of_ceph(
    "node n1 is unhealthy, but another failure domain of Ceph is down: CephCluster rook-ceph/rook: its OSDs are of rack b",
    "2026-01-01T10:06:00Z",
    HealthReason::CephDomainDown
)]
#[case::of_ceph_that_is_not_known(
    "node n1 is unhealthy, but the state of Ceph is not known: namespace rook-ceph: nobody renews a lease",
    "2026-01-01T10:06:00Z",
    HealthReason::CephStateUnknown
)]
#[case::of_an_earlier_failure(
    "node n1 is unhealthy, but etcd may lose its quorum without it",
    "2026-01-01T09:00:00Z",
    HealthReason::StartingRemediation
)]
#[case::of_another_version(
    "node n1 is unhealthy, but the moon is full",
    "2026-01-01T10:06:00Z",
    HealthReason::StartingRemediation
)]
fn what_only_the_operator_knows_comes_from_its_event(
    #[case] note: &str,
    #[case] at_: &str,
    #[case] reason: HealthReason,
) {
    let event = json!({
        "metadata": {}, "involvedObject": { "kind": "Node", "name": "n1" }, "reason": "RemediationSkipped",
        "action": "Remediation", "message": note, "lastTimestamp": at_,
    });
    let event = serde_json::from_value(event).unwrap();
    let (node, checks) = (sick(), [check("workers", json!({}), json!({}))]);
    let sources = HealthSources {
        checks: &checks,
        node: Some(&node),
        skipped: std::slice::from_ref(&event),
        ..HealthSources::default()
    };
    let health = of_node("n1", &sources, at(NOW)).pop().unwrap();
    assert_eq!(health.reason, reason);
    let details: Vec<_> = health.stopped_by.iter().map(|stop| &*stop.detail).collect();
    let expected = match health.reason {
        HealthReason::EtcdQuorumAtRisk => vec!["its guard pod is Ready"],
        HealthReason::CephDomainDown => vec!["CephCluster rook-ceph/rook: its OSDs are of rack b"],
        HealthReason::CephStateUnknown => vec!["namespace rook-ceph: nobody renews a lease"],
        _ => vec![],
    };
    assert_eq!(details, expected);
}

/// An upgrade, NodeMaintenance or an outage stops an escalation too, and only the operator knows of them.
#[rstest]
#[case::the_step_is_over("2026-01-01T10:15:00Z", "2026-01-01T10:26:00Z", Some(HealthReason::ClusterUpgrading))]
#[case::said_before_it_was("2026-01-01T10:15:00Z", "2026-01-01T10:24:00Z", None)]
#[case::the_step_runs("2026-01-01T10:25:00Z", "2026-01-01T10:26:00Z", None)]
fn what_stops_an_escalation_comes_from_the_operators_event(
    #[case] started: &str,
    #[case] said: &str,
    #[case] expected: Option<HealthReason>,
) {
    let event = json!({
        "metadata": {}, "involvedObject": {}, "action": "Remediation",
        "message": "node n1 is unhealthy, but being upgraded: its annotation upgrading",
        "eventTime": said.replace('Z', ".000000Z"),
    });
    let event = serde_json::from_value(event).unwrap();
    let remediations = json!([remediation("First", json!({ "started": started }))]);
    let (node, checks) = (sick(), [check("workers", json!({}), entry(remediations, json!({})))]);
    let sources = HealthSources {
        checks: &checks,
        node: Some(&node),
        skipped: std::slice::from_ref(&event),
        ..HealthSources::default()
    };
    let health = of_node("n1", &sources, at(NOW)).pop().unwrap();
    assert_eq!(health.reason, HealthReason::RemediationRunning);
    assert_eq!(health.stopped_by.first().map(|stop| stop.reason), expected);
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
    let mut status = entry(json!([remediation("First", json!({ "absence": "Gone" }))]), json!({}));
    status["reason"] = json!("node n1 is unhealthy, but was remediated not long ago (until 2026-01-01T10:40:00Z)");
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

/// Two NodeHealthChecks watch the node, and each says why it waits.
#[test]
fn an_event_is_of_the_check_that_it_names() {
    let event = |check: &str, why: &str, at: &str| {
        let event = json!({
            "metadata": {}, "involvedObject": { "kind": "Node", "name": "n1" }, "reason": "RemediationSkipped",
            "related": { "kind": "NodeHealthCheck", "name": check }, "lastTimestamp": at, "message": why,
        });
        serde_json::from_value(event).unwrap()
    };
    let upgraded = "node n1 is unhealthy, but being upgraded: its annotation upgrading";
    let events = [
        event("workers", upgraded, "2026-01-01T10:26:00Z"),
        event("others", "node n1 is unhealthy, but settling", "2026-01-01T10:27:00Z"),
        event(
            "workers",
            "Reboot ns/n1 of node n1 is being deleted",
            "2026-01-01T10:28:00Z",
        ),
    ];
    let (node, checks) = (sick(), [check("workers", json!({}), json!({}))]);
    let sources = HealthSources {
        checks: &checks,
        node: Some(&node),
        skipped: &events,
        ..HealthSources::default()
    };
    let health = of_node("n1", &sources, at(NOW)).pop().unwrap();
    assert_eq!(health.reason, HealthReason::ClusterUpgrading);
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

#[rstest]
#[case::time(
    HealthReason::BackingOff,
    " (until 2026-01-01T10:37:20Z)",
    "it was remediated not long ago",
    Some("2026-01-01T10:37:20Z")
)]
#[case::text(HealthReason::ClusterUpgrading, " (ClusterVersion)", "ClusterVersion", None)]
#[case::parentheses(
    HealthReason::UnderMaintenance,
    " (its NodeDrain (Drained))",
    "its NodeDrain (Drained)",
    None
)]
#[case::nothing(HealthReason::Settling, "", "nodes get a moment to report after an outage", None)]
fn cause_tells_when_it_ends(
    #[case] reason: HealthReason,
    #[case] told: &str,
    #[case] detail: &str,
    #[case] until: Option<&str>,
) {
    let stop = cause("w1", &format!("node w1 {}{told}", reason.explanation())).unwrap();
    assert_eq!(
        (stop.reason, &*stop.detail, stop.until),
        (reason, detail, until.map(at))
    );
}
