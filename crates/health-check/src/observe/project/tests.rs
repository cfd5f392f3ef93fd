use jiff::SignedDuration;
use rstest::rstest;
use serde_json::json;

use super::*;

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn minutes(minutes: i64) -> Timestamp {
    now() + SignedDuration::from_mins(minutes)
}

fn node(uid: &str, status: &str, stamp: &str, heartbeat: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {
            "name": "n1", "uid": uid, "creationTimestamp": "2025-01-01T00:00:00Z", "labels": { "pool": "a" },
            "annotations": {
                "machine.openshift.io/machine": "machines/m1",
                "machineconfiguration.openshift.io/state": "Done",
                "example.com/noise": heartbeat,
            },
        },
        "status": { "conditions": [
            { "type": "Ready", "status": status, "lastTransitionTime": stamp, "lastHeartbeatTime": heartbeat },
            { "type": "DiskPressure", "status": "False", "lastTransitionTime": stamp, "lastHeartbeatTime": heartbeat },
        ] },
    }))
    .unwrap()
}

fn project(node: &Node, before: Option<&NodeFacts>, is_first_list: bool, now: Timestamp) -> NodeFacts {
    NodeProjector::new(false)
        .project(node, before, is_first_list, now.into())
        .unwrap()
}

const STAMP: &str = "2026-01-01T11:00:00Z";

#[test]
fn heartbeat_leaves_a_node_as_it_is() {
    let first = node("u1", "True", STAMP, "2026-01-01T11:59:00Z");
    let known = project(&first, None, true, now());
    let second = node("u1", "True", STAMP, "2026-01-01T12:04:00Z");
    assert_eq!(project(&second, Some(&known), false, minutes(5)), known);
}

#[rstest]
#[case::past_stamp_of_the_first_list_is_trusted("2026-01-01T11:00:00Z", true, minutes(-60))]
#[case::future_stamp_counts_from_its_first_sight("2026-01-01T12:05:00Z", true, now())]
#[case::live_change_counts_from_its_arrival("2026-01-01T11:55:00Z", false, now())]
fn condition_counts(#[case] stamp: &str, #[case] is_first_list: bool, #[case] since: Timestamp) {
    let before = project(&node("u1", "True", STAMP, STAMP), None, true, minutes(-90));
    let before = (!is_first_list).then_some(before);
    let known = project(
        &node("u1", "Unknown", stamp, stamp),
        before.as_ref(),
        is_first_list,
        now(),
    );
    assert_eq!(known.condition("Ready").unwrap().counts_since, since);
}

#[test]
fn node_that_was_made_again_has_its_own_history() {
    let before = project(&node("u1", "Unknown", STAMP, STAMP), None, true, minutes(-60));
    let again = project(&node("u2", "Unknown", STAMP, STAMP), Some(&before), false, now());
    assert_eq!(again.condition("Ready").unwrap().counts_since, now());
}

#[rstest]
#[case::few(false, &["machineconfiguration.openshift.io/state"])]
#[case::all_for_a_signal_of_the_users(
    true,
    &["example.com/noise", "machine.openshift.io/machine", "machineconfiguration.openshift.io/state"]
)]
fn annotations_are_kept(#[case] keeps_all: bool, #[case] expected: &[&str]) {
    let object = node("u1", "True", STAMP, STAMP);
    let facts = NodeProjector::new(keeps_all)
        .project(&object, None, true, now().into())
        .unwrap();
    assert_eq!(facts.view.annotations.keys().collect::<Vec<_>>(), expected);
    assert_eq!(facts.machine, Some(NamespacedName::new("machines", "m1")));
}

fn kind() -> RemediationKind {
    RemediationKind {
        api_version: "a.example.com/v1".into(),
        kind: "Reboot".into(),
    }
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

#[test]
fn remediation_of_health_check_is_read() {
    let remediation = remediation(
        kind(),
        &object(json!({
            "apiVersion": "a.example.com/v1", "kind": "Reboot",
            "metadata": {
                "namespace": "ns", "name": "n1-5f", "uid": "r1", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T12:00:00Z", "deletionTimestamp": "2026-01-01T12:30:00Z", "finalizers": ["a.example.com/reboot"],
                "labels": { "remediation.medik8s.io/isControlPlaneNode": "" },
                "annotations": {
                    "remediation.medik8s.io/node-name": "n1",
                    "remediation.medik8s.io/template-name": "t1",
                    "nodeward.dev/node-uid": "u1",
                    "remediation.medik8s.io/nhc-timed-out": "2026-01-01T12:10:00Z",
                    "remediation.medik8s.io/healthy-delay": "no time",
                    "nodehealthcheck.medik8s.io/old-remediation-cr-flag": "flagon",
                },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "A", "name": "a", "uid": "c1" }],
            },
            "status": { "conditions": [
                { "type": "Succeeded", "status": "False" },
                { "type": "PermanentNodeDeletionExpected", "status": "True" },
            ] },
        })),
    );
    let expected = RemediationFacts {
        kind: kind(),
        key: NamespacedName::new("ns", "n1-5f"),
        uid: "r1".into(),
        resource_version: "7".into(),
        created: now(),
        deleting: Some(minutes(30)),
        finalizers: ["a.example.com/reboot".into()].into(),
        node: "n1".into(),
        tells_node: true,
        node_uid: Some("u1".into()),
        template: Some("t1".into()),
        owners: ["c1".into()].into(),
        is_control_plane: true,
        timed_out: Some(minutes(10)),
        healthy_since: None,
        is_flagged_old: true,
        succeeded: Some("False".into()),
        node_deletion_expected: true,
    };
    assert_eq!(remediation, Some(expected));
}

/// Its presence alone tells the remediator that its time is over.
#[test]
fn timeout_that_cannot_be_read_is_one() {
    let annotations = json!({ "remediation.medik8s.io/nhc-timed-out": "no time" });
    let metadata = json!({ "namespace": "ns", "name": "n2", "uid": "r2", "annotations": annotations });
    let facts = remediation(kind(), &object(json!({ "metadata": metadata }))).unwrap();
    assert_eq!(facts.timed_out, Some(Timestamp::MAX));
    assert!(!facts.runs());
}

#[test]
fn remediation_of_others_is_named_after_its_node() {
    let bare = object(json!({ "metadata": { "namespace": "ns", "name": "n2", "uid": "r2" } }));
    let facts = remediation(kind(), &bare).unwrap();
    assert_eq!((facts.node.as_str(), facts.owners.len()), ("n2", 0));
    assert_eq!(facts.succeeded, None);
    assert!(!facts.tells_node, "it may be named after a machine");
    let labels = json!({ "app.kubernetes.io/part-of": "node-healthcheck-controller" });
    let of_the_peer = object(json!({ "metadata": { "namespace": "ns", "name": "n2", "uid": "r2", "labels": labels } }));
    assert!(remediation(kind(), &of_the_peer).unwrap().tells_node);
}

#[rstest]
#[case::with_spec(json!({ "spec": { "template": { "spec": { "a": 1 } } } }), Some(json!({ "a": 1 })))]
#[case::without_spec(json!({ "spec": { "template": {} } }), None)]
#[case::empty(json!({}), None)]
fn template_is_read(#[case] mut value: Value, #[case] spec: Option<Value>) {
    value["metadata"] =
        json!({ "name": "t", "annotations": { "remediation.medik8s.io/multiple-templates-support": "" } });
    let facts = template(&object(value));
    assert_eq!((facts.spec, facts.supports_multiple), (spec, true));
}

#[rstest]
#[case::without_a_phase(json!({}), true)]
#[case::running(json!({ "phase": "Running" }), true)]
#[case::drained(json!({ "phase": "Succeeded" }), true)]
#[case::failed(json!({ "phase": "Failed" }), false)]
fn maintenance_protects_unless_it_has_failed(#[case] status: Value, #[case] protects: bool) {
    let maintenance = object(json!({ "metadata": { "name": "m" }, "spec": { "nodeName": "n1" }, "status": status }));
    assert_eq!(maintained_node(&maintenance).is_some(), protects);
}

#[rstest]
#[case::ready(Some("True"), true)]
#[case::not_ready(Some("False"), false)]
#[case::silent(Some("Unknown"), true)]
#[case::never_ready(None, false)]
fn guard_is_down_only_when_it_is_known_to_be(#[case] ready: Option<&str>, #[case] is_up: bool) {
    let conditions: Vec<Value> = ready
        .iter()
        .map(|status| json!({ "type": "Ready", "status": status }))
        .collect();
    let pod = object(json!({
        "metadata": { "name": "guard" }, "spec": { "nodeName": "n1" }, "status": { "conditions": conditions },
    }));
    assert_eq!(guard(&pod), Some(("n1".into(), is_up)));
}

#[rstest]
#[case::terminating(json!([{ "type": "Terminating", "status": "True" }]), true)]
#[case::not_ready_too(json!([{ "type": "Terminating", "status": "True" }, { "type": "Ready", "status": "False" }]), false)]
#[case::nothing(json!([]), false)]
fn termination_handler_is_known_by_what_it_selects(#[case] conditions: Value, #[case] handles: bool) {
    let check = object(json!({ "metadata": { "name": "any" }, "spec": { "unhealthyConditions": conditions } }));
    assert_eq!(handles_termination(&check), handles);
}
