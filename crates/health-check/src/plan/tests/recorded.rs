//! What node-healthcheck-operator leaves behind in the middle of an escalation, as the API server has it: it is read as it is,
//! and the escalation goes on where it stands.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use kube::core::DynamicObject;
use nodeward_api::NodeHealthCheck;
use nodeward_api::node_health_check::Phase;
use nodeward_api::reason::HealthReason;
use nodeward_core::lease::LeaseView;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{API, World, at, chain, kind, with};
use crate::observe::project;

const UID: &str = "7d0c6b1e-6a3f-4d9e-9a55-0c3a1f0a4b11";
const STEPS: [(&str, &str); 2] = [("Reboot", "5m"), ("Fence", "10m")];

/// The NodeHealthCheck `workers`: node w1 failed at 0, was given to Reboot at 300, which timed out at 600, and then to Fence.
fn check() -> Value {
    let remediation = |by: &str, name: &str, uid: &str, started: i64| {
        json!({
            "resource": {
                "apiVersion": API, "kind": format!("{by}Remediation"), "name": name, "namespace": "remediators", "uid": uid,
            },
            "started": at(started).to_string(),
            "templateName": by.to_lowercase(),
        })
    };
    let first = with(
        remediation("Reboot", "w1-4xk7q", "cr-1", 300),
        json!({ "timedOut": at(600).to_string() }),
    );
    let spec = with(
        json!({
            "minHealthy": "51%",
            "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/worker", "operator": "Exists" }] },
            "unhealthyConditions": [
                { "type": "Ready", "status": "False", "duration": "300s" },
                { "type": "Ready", "status": "Unknown", "duration": "300s" },
            ],
        }),
        chain(&STEPS),
    );
    json!({
        "apiVersion": "remediation.medik8s.io/v1alpha1",
        "kind": "NodeHealthCheck",
        "metadata": {
            "name": "workers", "uid": UID, "resourceVersion": "48213", "generation": 2,
            "creationTimestamp": at(-3600).to_string(),
            "managedFields": [{ "manager": "manager", "operation": "Update", "subresource": "status" }],
        },
        "spec": spec,
        "status": {
            "conditions": [{
                "lastTransitionTime": at(-3600).to_string(), "message": "No issues found, NodeHealthCheck is enabled.",
                "reason": "NodeHealthCheckEnabled", "status": "False", "type": "Disabled",
            }],
            "healthyNodes": 4,
            "inFlightRemediations": { "w1": at(600).to_string() },
            "lastUpdateTime": at(600).to_string(),
            "observedNodes": 5,
            "phase": "Remediating",
            "reason": "NHC is remediating 1 nodes",
            "unhealthyNodes": [{
                "name": "w1",
                "remediations": [first, remediation("Fence", "w1-9vbtd", "cr-2", 600)],
            }],
        },
    })
}

/// A remediation: a random suffix, and no UID of the node.
fn remediation(by: &str, name: &str, uid: &str, created: i64, annotations: Value) -> DynamicObject {
    let annotations = with(
        json!({
            "remediation.medik8s.io/node-name": "w1",
            "remediation.medik8s.io/template-name": by.to_lowercase(),
        }),
        annotations,
    );
    let object = json!({
        "apiVersion": API,
        "kind": format!("{by}Remediation"),
        "metadata": {
            "name": name, "namespace": "remediators", "uid": uid, "resourceVersion": "48200", "generateName": "w1-",
            "creationTimestamp": at(created).to_string(),
            "annotations": annotations,
            "labels": { "app.kubernetes.io/part-of": "node-healthcheck-controller" },
            "ownerReferences": [{
                "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "name": "workers", "uid": UID,
                "controller": false, "blockOwnerDeletion": false,
            }],
            "finalizers": ["example.org/remediator"],
        },
        "spec": { "by": by },
        "status": { "conditions": [{ "type": "Processing", "status": "True", "reason": "RemediationStarted" }] },
    });
    serde_json::from_value(object).unwrap()
}

fn lease() -> Lease {
    let lease = json!({
        "metadata": { "name": "node-w1", "namespace": "medik8s-leases", "resourceVersion": "48212" },
        "spec": {
            "holderIdentity": "NodeHealthCheck-workers", "leaseDurationSeconds": 660, "leaseTransitions": 1,
            "acquireTime": "2026-01-01T00:05:00.000000Z", "renewTime": "2026-01-01T00:10:00.000000Z",
        },
    });
    serde_json::from_value(lease).unwrap()
}

/// A cluster with all of that, where `patch` changes the NodeHealthCheck.
fn taken_over(patch: Value) -> World {
    let mut world = World::workers(5).failed("w1", 0);
    let check: NodeHealthCheck = serde_json::from_value(with(check(), patch)).unwrap();
    let check = project::check(check).unwrap();
    assert_eq!(check.spec.problems, Vec::<String>::new());
    world.snapshot.checks.insert("workers".into(), Arc::new(check));
    let timed_out = json!({ "remediation.medik8s.io/nhc-timed-out": at(600).to_string() });
    for (by, object) in [
        ("Reboot", remediation("Reboot", "w1-4xk7q", "cr-1", 300, timed_out)),
        ("Fence", remediation("Fence", "w1-9vbtd", "cr-2", 600, json!({}))),
    ] {
        let facts = project::remediation(kind(by), &object).unwrap();
        assert_eq!(facts.node.as_str(), "w1", "not what the name says, but the annotation");
        world.snapshot.remediations.push(Arc::new(facts));
    }
    world
        .snapshot
        .leases
        .insert("node-w1".into(), Arc::new(LeaseView::project(&lease()).unwrap()));
    world
}

const BOTH: [&str; 2] = ["Fence of w1", "Reboot of w1"];

#[test]
fn recorded_escalation_goes_on_at_its_second_step() {
    let mut world = taken_over(json!({}));
    let plan = world.settle(650);
    assert_eq!(plan.reason("w1"), HealthReason::RemediationRunning);
    assert_eq!(
        world.remediations(),
        BOTH,
        "nothing is remediated twice, nothing is dropped"
    );
    let status = world.status("workers");
    assert_eq!(
        (status.phase, status.in_flight_remediations.len()),
        (Some(Phase::Remediating), 0)
    );
    let started: Vec<_> = world
        .entry("w1")
        .unwrap()
        .remediations
        .iter()
        .map(|record| record.started)
        .collect();
    assert_eq!(
        started,
        [Some(at(300)), Some(at(600))],
        "the timeout counts from the peer's start"
    );

    world.live(650, 1199);
    assert_eq!(world.entry("w1").unwrap().remediations[1].timed_out, None);
    world.live(1199, 1260);
    assert_eq!(world.entry("w1").unwrap().remediations[1].timed_out, Some(at(1200)));
    assert_eq!(world.plan(1300).reason("w1"), HealthReason::ChainExhausted);
    assert_eq!(world.remediations(), BOTH);
}

#[test]
fn recorded_lease_is_ours_to_renew_and_to_release() {
    let mut world = taken_over(json!({}));
    world.live(650, 1000);
    let renewed = world.snapshot.leases["node-w1"].renewed.unwrap();
    assert!(renewed > at(600), "{renewed}");
    assert_eq!(world.holder("node-w1"), Some("NodeHealthCheck-workers"));
    world.change_remediations(|live| live.finalizers = [].into());
    world.heal("w1", 1000);
    world.live(1000, 1100);
    assert_eq!(world.remediations(), Vec::<String>::new());
    assert_eq!(world.holder("node-w1"), None);
    assert!(world.entry("w1").is_none());
}

#[rstest]
#[case::without_status(json!({ "status": null }))]
#[case::of_an_old_version(json!({ "status": { "unhealthyNodes": null } }))]
#[case::without_entries(json!({ "status": { "unhealthyNodes": [] } }))]
fn lost_status_remediates_nobody_twice(#[case] patch: Value) {
    let mut world = taken_over(patch);
    world.settle(650);
    assert_eq!(world.remediations(), BOTH);
    assert_eq!(world.entry("w1").unwrap().remediations.len(), 2);
}
