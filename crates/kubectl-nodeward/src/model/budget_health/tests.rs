use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::fixture::merge;

fn now() -> Timestamp {
    "2026-01-01T10:30:00Z".parse().unwrap()
}

/// A pod that has been Ready for long, with these changes.
fn pod(name: &str, change: Value) -> Pod {
    let mut pod = json!({
        "metadata": {
            "namespace": "shop", "name": name, "labels": { "app": "db" }, "creationTimestamp": "2026-01-01T09:00:00Z",
        },
        "spec": { "containers": [], "nodeName": "node-1" },
        "status": { "phase": "Running", "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T09:01:00Z" },
        ] },
    });
    merge(&mut pod, change);
    serde_json::from_value(pod).unwrap()
}

fn unready(change: Value) -> Value {
    let mut unready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    merge(&mut unready, change);
    unready
}

fn unbound(change: Value) -> Value {
    let conditions = json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available",
    }]);
    let mut unbound =
        json!({ "spec": { "nodeName": null }, "status": { "phase": "Pending", "conditions": conditions } });
    merge(&mut unbound, change);
    unbound
}

fn nodes() -> BTreeMap<String, NodeSummary> {
    let node = |name: &str, ready: &str, unschedulable: bool| {
        let node = json!({
            "metadata": { "name": name }, "spec": { "unschedulable": unschedulable },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        (name.to_owned(), NodeSummary::of(&serde_json::from_value(node).unwrap()))
    };
    [
        node("node-1", "True", false),
        node("node-2", "True", true),
        node("node-3", "Unknown", false),
    ]
    .into()
}

fn budget(healthy: i32, status: &Value) -> PodDisruptionBudget {
    let mut budget = json!({
        "metadata": { "namespace": "shop", "name": "db", "generation": 2 },
        "spec": { "selector": { "matchLabels": { "app": "db" } } },
        "status": {
            "observedGeneration": 2, "disruptionsAllowed": 0, "currentHealthy": healthy, "desiredHealthy": 2, "expectedPods": 3,
        },
    });
    merge(&mut budget, json!({ "status": status }));
    serde_json::from_value(budget).unwrap()
}

fn of(budget: &PodDisruptionBudget, pods: &[Pod]) -> BudgetHealth {
    BudgetHealth::of(budget, pods, &nodes(), now()).unwrap()
}

fn affinity(values: &[&str]) -> Value {
    json!({ "spec": { "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{ "matchExpressions": [{ "key": HOSTNAME, "operator": "In", "values": values }] }],
    } } } } })
}

#[rstest]
#[case::pinned(
    unbound(json!({ "spec": { "nodeSelector": { HOSTNAME: "node-2" } } })),
    "is Pending: it fits only node-2, which is cordoned"
)]
#[case::affinity(
    unbound(affinity(&["node-2", "node-3", "node-9"])),
    "is Pending: it fits only node-2, which is cordoned, node-3, which is not Ready and node-9, which does not exist"
)]
#[case::another_node_would_do(unbound(affinity(&["node-1", "node-2"])), "is Pending: 0/2 nodes are available")]
#[case::unschedulable(unbound(json!({})), "is Pending: 0/2 nodes are available")]
#[case::nobody_says_why(
    unbound(json!({ "status": { "conditions": null } })),
    "is Pending: the scheduler has not said why"
)]
#[case::crashing(
    unready(json!({ "status": { "containerStatuses": [{
        "name": "db", "image": "i", "imageID": "i", "ready": false, "restartCount": 7, "state": { "waiting": { "reason": "CrashLoopBackOff" } },
    }] } })),
    "is not Ready on node-1: container db waits: CrashLoopBackOff after 7 restarts"
)]
#[case::pulling(
    unready(json!({ "status": { "phase": "Pending", "containerStatuses": [{
        "name": "db", "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": { "waiting": { "reason": "ImagePullBackOff" } },
    }] } })),
    "is starting on node-1: container db waits: ImagePullBackOff"
)]
#[case::condition_says_why(
    unready(json!({ "status": { "conditions": [{ "type": "Ready", "status": "False", "message": "containers with unready status: [db]" }] } })),
    "is not Ready on node-1: containers with unready status: [db]"
)]
#[case::node_is_away(unready(json!({ "spec": { "nodeName": "node-3" } })), "is not Ready on node-3, which is not Ready")]
#[case::terminating(
    json!({ "metadata": { "deletionTimestamp": "2026-01-01T10:31:00Z", "deletionGracePeriodSeconds": 60 } }),
    "terminates on node-1; its grace ends at 10:31:00Z (in 1m)"
)]
#[case::failed(json!({ "status": { "phase": "Failed", "reason": "NodeShutdown" } }), "has failed on node-1: NodeShutdown")]
fn unhealthy_pod_is_named_with_its_cause(#[case] change: Value, #[case] cause: &str) {
    let pods = [pod("db-0", change), pod("db-1", json!({})), pod("db-2", json!({}))];
    let health = of(&budget(2, &json!({})), &pods);
    let [unhealthy] = health.unhealthy.as_slice() else {
        panic!("{health:?}")
    };
    assert_eq!((unhealthy.pod.as_str(), unhealthy.cause.as_str()), ("shop/db-0", cause));
    assert_eq!((health.healthy, health.not_true.len()), (2, 0), "{health:?}");
}

#[test]
fn other_pods_and_finished_ones_do_not_count() {
    let other = json!({ "metadata": { "labels": { "app": "web" } }, "status": { "conditions": null } });
    let finished = json!({ "status": { "phase": "Succeeded", "conditions": null } });
    let health = of(
        &budget(1, &json!({})),
        &[pod("db-0", json!({})), pod("web-0", other), pod("db-job", finished)],
    );
    assert!(health.is_sound(), "{health:?}");
}

#[rstest]
#[case::older_spec(3, json!({ "observedGeneration": 1 }), "its counts are of an older spec")]
#[case::sync_failed(
    3, json!({ "conditions": [{
        "type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "found no controllers for pod db-0",
        "lastTransitionTime": "2026-01-01T09:00:00Z",
    }] }),
    "Kubernetes cannot count its pods (SyncFailed): found no controllers for pod db-0"
)]
#[case::successor_is_here(
    2, json!({ "disruptedPods": { "db-new": "2026-01-01T10:29:00Z" } }),
    "it counts db-new as evicted until 10:31:00Z (in 1m), although its successor is here"
)]
#[case::pod_is_here(
    2, json!({ "disruptedPods": { "db-0": "2026-01-01T10:29:00Z" } }),
    "it counts db-0 as evicted until 10:31:00Z (in 1m), although the pod is still here"
)]
#[case::pod_is_gone(
    3, json!({ "disruptedPods": { "db-7": "2026-01-01T10:29:00Z" } }),
    "it counts db-7 as evicted until 10:31:00Z (in 1m), although the pod is gone"
)]
#[case::count_is_late(2, json!({}), "it counts 2 healthy pods, and 3 are")]
fn count_that_is_not_true_is_told(#[case] healthy: i32, #[case] status: Value, #[case] told: &str) {
    let new = json!({ "metadata": { "creationTimestamp": "2026-01-01T10:29:30Z" } });
    let pods = [pod("db-0", json!({})), pod("db-1", json!({})), pod("db-new", new)];
    let health = of(&budget(healthy, &status), &pods);
    let [not_true] = health.not_true.as_slice() else {
        panic!("{health:?}")
    };
    assert!(not_true.starts_with(told), "{not_true}");
}

#[rstest]
#[case::true_count(3, json!({}))]
#[case::entry_has_expired(3, json!({ "disruptedPods": { "db-0": "2026-01-01T10:20:00Z" } }))]
fn true_count_is_not_questioned(#[case] healthy: i32, #[case] status: Value) {
    let pods = ["db-0", "db-1", "db-2"].map(|name| pod(name, json!({})));
    assert!(of(&budget(healthy, &status), &pods).is_sound());
}

#[test]
fn count_gets_ten_seconds_to_follow() {
    let fresh = json!({ "status": { "conditions": [
        { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T10:29:55Z" },
    ] } });
    assert!(of(&budget(0, &json!({})), &[pod("db-0", fresh)]).is_sound());
}
