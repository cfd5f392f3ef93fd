//! Faults of managed-upgrade-operator's nodekeeper that a decision here must not repeat. Each is told by what that operator
//! does to a pod or a node, and guarded by what is decided instead.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "tests")]

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::budget::{BudgetView, Budgets};
use nodeward_core::duration::ConfigDuration;
use nodeward_core::node::NodeView;
use nodeward_core::pod::PodView;
use nodeward_core::signal::{KindState, SignalInputs, Tristate, UpgradeSignal, WatchedResource};
use nodeward_core::strategy::{Strategy, StrategyName, Waits};
use rstest::rstest;
use serde_json::{Value, json};

const WAITS: Waits = Waits {
    time_out: SignedDuration::from_mins(45),
    expected_drain: SignedDuration::from_mins(8),
    budget_force: SignedDuration::from_mins(60),
    force_after: SignedDuration::from_mins(5),
    surge: SignedDuration::from_mins(2),
};

/// A running pod of the namespace `shop` with the labels `app: web` and `tier: front`.
fn pod(metadata: Value) -> PodView {
    let mut pod = json!({
        "metadata": { "namespace": "shop", "name": "web-0", "labels": { "app": "web", "tier": "front" } },
        "status": { "phase": "Running" },
    });
    for (key, value) in metadata.as_object().unwrap() {
        pod["metadata"][key] = value.clone();
    }
    PodView::project(&serde_json::from_value(pod).unwrap()).unwrap()
}

fn budget(namespace: &str, selector: Value) -> Budgets {
    let budget = json!({ "metadata": { "namespace": namespace, "name": "b" }, "spec": { "selector": selector } });
    let view = BudgetView::project(&serde_json::from_value(budget).unwrap()).unwrap();
    Budgets::new([Arc::new(view)])
}

/// The pod's strategy, and how many minutes after the drain's start it falls due.
fn decided(pod: &PodView, budgets: &Budgets) -> Option<(StrategyName, i64)> {
    let strategy = Strategy::for_pod(pod, !budgets.matching(pod).is_empty(), &[])?;
    let start = Timestamp::UNIX_EPOCH;
    Some((
        strategy.name,
        strategy.due(pod, start, &WAITS).duration_since(start).as_mins(),
    ))
}

const UNCOVERED: (StrategyName, i64) = (StrategyName::Delete, 45);
const COVERED: (StrategyName, i64) = (StrategyName::PdbDelete, 68);

#[rstest]
// There, a budget of any namespace counts.
#[case::of_another_namespace("other", json!({ "matchLabels": { "app": "web" } }), UNCOVERED)]
#[case::everything_of_another_namespace("other", json!({}), UNCOVERED)]
// There, one label of several is enough.
#[case::one_label_of_two("shop", json!({ "matchLabels": { "app": "web", "tier": "back" } }), UNCOVERED)]
#[case::both_labels("shop", json!({ "matchLabels": { "app": "web", "tier": "front" } }), COVERED)]
// There, only matchLabels is read: a pod that expressions cover is forced as if it had no budget.
#[case::expressions_only("shop", json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["web", "api"] }] }), COVERED)]
#[case::existence_only("shop", json!({ "matchExpressions": [{ "key": "tier", "operator": "Exists" }] }), COVERED)]
#[case::absence_only("shop", json!({ "matchExpressions": [{ "key": "canary", "operator": "DoesNotExist" }] }), COVERED)]
#[case::labels_and_expressions_that_exclude_it(
    "shop",
    json!({ "matchLabels": { "app": "web" }, "matchExpressions": [{ "key": "tier", "operator": "NotIn", "values": ["front"] }] }),
    UNCOVERED
)]
// There, an empty selector covers nothing; in policy/v1 it covers the namespace.
#[case::everything_of_its_namespace("shop", json!({}), COVERED)]
#[case::nothing("shop", Value::Null, UNCOVERED)]
fn pod_deadline_follows_only_covering_budgets(
    #[case] namespace: &str,
    #[case] selector: Value,
    #[case] expected: (StrategyName, i64),
) {
    assert_eq!(decided(&pod(json!({})), &budget(namespace, selector)), Some(expected));
}

/// There, every pod on the node loses its finalizers at the deadline.
#[test]
fn a_pod_that_does_not_terminate_keeps_its_finalizers() {
    let pod = pod(json!({ "finalizers": ["a.io/x"] }));
    assert_eq!(decided(&pod, &Budgets::default()), Some(UNCOVERED));
    assert_eq!(decided(&pod, &budget("shop", json!({}))), Some(COVERED));
}

/// There, only the older of the two labels is looked at.
#[rstest]
#[case("node-role.kubernetes.io/control-plane", true)]
#[case("node-role.kubernetes.io/master", true)]
#[case("node-role.kubernetes.io/worker", false)]
fn either_role_label_makes_a_control_plane_node(#[case] label: &str, #[case] is_control_plane: bool) {
    assert_eq!(node(json!({ label: "" })).is_control_plane(), is_control_plane);
}

/// There, a missing `timeOut` is 0 minutes, which forces at the moment of the cordon. Absent is for the configuration to
/// fill in; 0 is never a time.
#[rstest]
#[case(json!(0))]
#[case(json!(-45))]
#[case(json!("0s"))]
#[case(json!(null))]
#[case(json!(""))]
fn no_time_is_ever_zero(#[case] written: Value) {
    assert!(serde_json::from_value::<ConfigDuration>(written).is_err());
}

fn node(labels: Value) -> NodeView {
    let node = json!({ "metadata": { "name": "n1", "labels": labels }, "spec": { "unschedulable": true } });
    NodeView::project(&serde_json::from_value(node).unwrap()).unwrap()
}

fn pool(name: &str, selector: Value, machines: i64, updated: i64) -> Arc<Value> {
    Arc::new(json!({
        "metadata": { "name": name },
        "spec": { "nodeSelector": { "matchLabels": selector } },
        "status": { "machineCount": machines, "updatedMachineCount": updated },
    }))
}

/// There, the worker pool is asked for every node: one of another pool is forced while only the workers are upgraded, and
/// left alone while its own pool is.
#[rstest]
#[case::own_pool_upgrades(3, 2, 3, 3, Tristate::Yes)]
#[case::only_the_worker_pool_upgrades(3, 3, 3, 2, Tristate::No)]
fn the_nodes_own_pool_is_asked(
    #[case] infra: i64,
    #[case] infra_updated: i64,
    #[case] workers: i64,
    #[case] workers_updated: i64,
    #[case] truth: Tristate,
) {
    let worker = json!({ "node-role.kubernetes.io/worker": "" });
    let mut inputs = SignalInputs::default();
    inputs.insert(
        WatchedResource::all("machineconfiguration.openshift.io/v1", "MachineConfigPool"),
        KindState::Synced(vec![
            pool("worker", worker, workers, workers_updated),
            pool(
                "infra",
                json!({ "node-role.kubernetes.io/infra": "" }),
                infra,
                infra_updated,
            ),
        ]),
    );
    inputs.insert(
        WatchedResource::all("upgrade.managed.openshift.io/v1alpha1", "UpgradeConfig"),
        KindState::Synced(vec![Arc::new(json!({
            "metadata": { "name": "managed-upgrade-config" },
            "spec": { "desired": { "version": "4.20.1" }, "PDBForceDrainTimeout": 60 },
            "status": { "history": [{ "version": "4.20.1", "phase": "Upgrading" }] },
        }))]),
    );
    let node = node(json!({ "node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/infra": "" }));
    let answer = UpgradeSignal::default().evaluate(&inputs, &node);
    assert_eq!(answer.truth, truth, "{:?}", answer.notes);
}
