use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn pod(change: Value) -> Pod {
    let mut pod = json!({
        "metadata": { "namespace": "shop", "name": "web-0", "labels": { "app": "web" } },
        "spec": { "containers": [], "nodeName": "node-1" },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    merge(&mut pod, change);
    serde_json::from_value(pod).unwrap()
}

fn merge(into: &mut Value, change: Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change,
    }
}

fn budget(name: &str, allowed: i32) -> PodDisruptionBudget {
    serde_json::from_value(json!({
        "metadata": { "namespace": "shop", "name": name, "generation": 1 },
        "spec": { "selector": { "matchLabels": { "app": "web" } } },
        "status": {
            "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1,
        },
    }))
    .unwrap()
}

#[rstest]
#[case::room(json!({}), vec![budget("a", 1)], None)]
#[case::no_budget(json!({}), vec![], None)]
#[case::no_room(json!({}), vec![budget("a", 0)], Some(KeptBy::Budget(BlockerReason::BudgetExhausted)))]
#[case::several(json!({}), vec![budget("a", 1), budget("b", 1)], Some(KeptBy::Drain(LockReason::SeveralPDBs)))]
#[case::pending(json!({ "status": { "phase": "Pending" } }), vec![budget("a", 0)], None)]
#[case::asked_to_stay(json!({ "metadata": { "labels": { "nodeward.dev/drain": "skip" } } }), vec![], Some(KeptBy::Drain(LockReason::OptedOut)))]
#[case::asked_to_finish(
    json!({ "metadata": { "annotations": { "nodeward.dev/drain": "wait-completed" } } }), vec![], Some(KeptBy::Drain(LockReason::WaitCompleted))
)]
fn obstacles_are_refused_evictions_and_opt_outs(
    #[case] change: Value,
    #[case] budgets: Vec<PodDisruptionBudget>,
    #[case] kept_by: Option<KeptBy>,
) {
    let seen = PodsOnNode::of(&[pod(change)], Some(&budgets));
    assert_eq!(seen.obstacles.first().map(|obstacle| obstacle.kept_by), kept_by);
    assert_eq!((seen.to_leave, seen.ignored, seen.terminating), (1, 0, 0));
}

#[rstest]
#[case::daemon(json!({
    "metadata": { "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true }] }
}), (0, 1, 0))]
#[case::mirror(json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "m" } } }), (0, 1, 0))]
#[case::finished(json!({ "status": { "phase": "Succeeded" } }), (0, 1, 0))]
#[case::terminating(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), (1, 0, 1))]
fn ignored_and_terminating_pods_are_no_obstacles(#[case] change: Value, #[case] counts: (usize, usize, usize)) {
    let seen = PodsOnNode::of(&[pod(change)], Some(&[budget("a", 0)]));
    assert_eq!((seen.to_leave, seen.ignored, seen.terminating), counts);
    assert_eq!(seen.obstacles, []);
}
