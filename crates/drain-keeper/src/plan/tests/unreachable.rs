//! Nodes that are not Ready: what must not run twice is not cut off.

use nodeward_api::reason::BlockerReason;
use nodeward_core::strategy::StrategyName;
use nodeward_core::verdict::Next;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, budget, cordon, finalizers, not_ready, owner, pod, terminating, with};

fn owned_by(api_version: &str, kind: &str) -> Value {
    json!({ "metadata": { "ownerReferences": [owner(api_version, kind)] } })
}

fn with_claim() -> Value {
    json!({ "spec": { "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }] } })
}

#[rstest]
#[case::stateful_set(owned_by("apps/v1", "StatefulSet"), true)]
#[case::claim(with_claim(), true)]
#[case::shared_volume(json!({ "spec": { "volumes": [{ "name": "data", "nfs": { "server": "s", "path": "/" } }] } }), true)]
#[case::foreign_owner(owned_by("kubevirt.io/v1", "VirtualMachineInstance"), true)]
#[case::replication_controller(owned_by("v1", "ReplicationController"), false)]
#[case::replica_set(owned_by("apps/v1", "ReplicaSet"), false)]
#[case::job(owned_by("batch/v1", "Job"), true)]
fn singleton_pod_keeps_grace_until_its_end_is_confirmed(
    #[case] patch: Value,
    #[case] kept: bool,
    #[values(false, true)] covered: bool,
) {
    let stuck = with(with(pod("p"), patch), terminating(30, 1));
    let world = |world: World| {
        world
            .pod(stuck.clone())
            .budgets(covered.then(|| budget("web", 0)))
            .at(10_000)
    };
    let unreachable = world(World::draining().node_with(not_ready()));
    assert_eq!(unreachable.strategy().is_none(), kept);
    if kept {
        let blocker = unreachable.blocker("p").unwrap();
        assert_eq!(
            (blocker.reason, blocker.next),
            (BlockerReason::NodeUnreachable, Next::Nothing)
        );
        assert!(blocker.detail.contains("out-of-service") && unreachable.has_failed());
    }
    let name = if covered {
        StrategyName::PdbStuckTerminating
    } else {
        StrategyName::StuckTerminating
    };
    let on_ready_node = world(World::draining());
    if kept {
        let blocker = on_ready_node.blocker("p").unwrap();
        assert_eq!(
            (blocker.reason, blocker.next),
            (BlockerReason::StillRunning, Next::Nothing),
            "the kubelet has not confirmed its end"
        );
    } else {
        assert_eq!(on_ready_node.strategy(), Some(name));
    }
}

/// No time is named at which nothing would be done.
#[rstest]
#[case::unreachable(not_ready(), 2, BlockerReason::NodeUnreachable)]
#[case::unreachable_in_its_grace(not_ready(), 31, BlockerReason::NodeUnreachable)]
#[case::ready_in_its_grace(json!({}), 31, BlockerReason::Terminating)]
#[case::ready_beyond_its_grace(json!({}), 2, BlockerReason::StillRunning)]
fn nothing_is_promised_to_a_withheld_pod(
    #[case] node: Value,
    #[case] grace_ends: i64,
    #[case] reason: BlockerReason,
    #[values(false, true)] covered: bool,
) {
    let world = World::draining()
        .node_with(node)
        .pod(with(with(pod("p"), with_claim()), terminating(grace_ends, 1)))
        .budgets(covered.then(|| budget("web", 0)));
    let plan = world.at(30);
    let blocker = plan.blocker("p").unwrap();
    assert_eq!((blocker.reason, blocker.next), (reason, Next::Nothing));
}

/// The kubelet of a Ready node said that its containers have ended. That the machine is off means nothing once it is back.
#[rstest]
#[case::terminal_phase(json!({ "status": { "phase": "Failed" } }), json!({}), Some(StrategyName::StuckTerminating))]
#[case::was_declared_shut_down(json!({}), json!({ "spec": { "taints": [
    cordon(0), { "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" },
] } }), None)]
fn ended_singleton_pod_is_deleted_without_grace(
    #[case] state: Value,
    #[case] node: Value,
    #[case] strategy: Option<StrategyName>,
) {
    let stuck = with(with(with(pod("p"), with_claim()), terminating(30, 1)), state);
    let world = World::draining().node_with(node).pod(stuck);
    assert_eq!(world.at(10_000).strategy(), strategy);
}

#[rstest]
#[case::unknown(json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } }))]
#[case::no_condition(json!({ "status": { "conditions": null } }))]
fn only_a_node_that_says_ready_is_ready(#[case] patch: Value) {
    let stuck = with(with(pod("p"), with_claim()), terminating(30, 1));
    assert_eq!(
        World::draining().node_with(patch).pod(stuck).at(10_000).reason("p"),
        Some(BlockerReason::NodeUnreachable)
    );
}

#[rstest]
#[case::declared_shut_down("", json!({ "spec": { "taints": [
    cordon(0), { "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" },
] } }))]
#[case::configured("forceOnUnreachable: true", json!({}))]
fn pod_of_powered_off_node_is_forced(#[case] config: &str, #[case] patch: Value) {
    let stuck = with(with(pod("p"), with_claim()), terminating(30, 1));
    let world = World::draining()
        .also(config)
        .node_with(not_ready())
        .node_with(patch)
        .pod(stuck);
    assert_eq!(world.at(45).strategy(), Some(StrategyName::StuckTerminating));
}

/// Only grace 0 is withheld: the eviction is asked for, and finalizers go.
#[rstest]
#[case(json!({}), StrategyName::Delete)]
#[case(with(terminating(30, 1), finalizers(&["a.io/x"])), StrategyName::Finalizer)]
fn gentle_strategies_continue_on_unready_nodes(#[case] state: Value, #[case] strategy: StrategyName) {
    let world = World::draining()
        .node_with(not_ready())
        .pod(with(with(pod("p"), with_claim()), state));
    assert_eq!(world.at(45).strategy(), Some(strategy));
}

/// A grace of 0 makes the API server forget the pod at once, whoever asked for it.
#[rstest]
#[case::its_own(json!({ "spec": { "terminationGracePeriodSeconds": 0 } }), false)]
#[case::its_own_under_a_budget(json!({ "spec": { "terminationGracePeriodSeconds": 0 } }), true)]
#[case::of_a_delete_that_a_finalizer_keeps(with(terminating(30, 0), finalizers(&["a.io/x"])), false)]
fn singleton_pod_with_zero_grace_is_kept(#[case] state: Value, #[case] covered: bool) {
    let world = |pod: Value| {
        World::draining()
            .node_with(not_ready())
            .pod(pod)
            .budgets(covered.then(|| budget("web", 0)))
            .at(10_000)
    };
    let kept = world(with(with(pod("p"), with_claim()), state.clone()));
    assert_eq!(
        (kept.reason("p"), kept.acted().len()),
        (Some(BlockerReason::NodeUnreachable), 0)
    );
    let stateless = world(with(pod("p"), state));
    assert_eq!(stateless.acted(), ["p"]);
}

/// Of a pod that somebody has deleted without grace the last finalizer is all that is left: the kubelet may still be ending it.
#[rstest]
#[case::running(json!({}), false)]
#[case::another_finalizer_is_protected(finalizers(&["a.io/x", "orphan"]), true)]
#[case::ended(json!({ "status": { "phase": "Failed" } }), true)]
#[case::deleted_with_grace(terminating(30, 1), true)]
fn last_finalizer_stays_until_the_end_is_confirmed(#[case] state: Value, #[case] removed: bool) {
    let deleted = with(terminating(30, 0), finalizers(&["a.io/x"]));
    let world = |pod: Value| World::draining().pod(with(pod, state.clone())).at(10_000);
    let plan = world(with(with(pod("p"), with_claim()), deleted.clone()));
    assert_eq!(plan.acted().len(), usize::from(removed));
    assert_eq!(plan.reason("p") == Some(BlockerReason::StillRunning), !removed);
    assert_eq!(world(with(pod("p"), deleted)).acted(), ["p"], "two of it do no harm");
}
