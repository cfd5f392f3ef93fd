use std::sync::Arc;

use serde_json::json;

use super::world::{World, at};
use crate::plan::count::default_selector;
use crate::plan::{Action, Plan};

fn written(plan: &Plan) -> usize {
    let is_selector = |action: &&Action| matches!(action, Action::WriteSelector(_));
    plan.actions.iter().filter(is_selector).count()
}

#[test]
fn default_is_workers() {
    let world = World::workers(3).control_plane(1);
    let expressions = default_selector(&world.snapshot.nodes).match_expressions.unwrap();
    let shown: Vec<_> = expressions
        .iter()
        .map(|e| (e.key.as_str(), e.operator.as_str()))
        .collect();
    assert_eq!(shown, [("node-role.kubernetes.io/worker", "Exists")]);
}

#[test]
fn without_workers_default_is_all_but_the_control_plane() {
    let mut world = World::workers(0).control_plane(1);
    world.add_node("n1", "other", 0);
    let expressions = default_selector(&world.snapshot.nodes).match_expressions.unwrap();
    let shown: Vec<_> = expressions
        .iter()
        .map(|e| (e.key.as_str(), e.operator.as_str()))
        .collect();
    let expected = [
        ("node-role.kubernetes.io/control-plane", "DoesNotExist"),
        ("node-role.kubernetes.io/master", "DoesNotExist"),
        ("node-role.kubernetes.io/etcd", "DoesNotExist"),
        ("node-role.kubernetes.io/arbiter", "DoesNotExist"),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn default_is_written_once_before_anything_is_started() {
    let mut world = World::workers(5)
        .check("workers", json!({ "selector": null }))
        .failed("w1", 0);
    let plan = world.plan(300);
    assert_eq!((written(&plan), plan.counts("workers")), (1, (4, 5)));
    assert_eq!(plan.intended("workers"), [""; 0]);
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(written(&world.plan(301)), 0);
}

#[test]
fn nothing_is_written_to_a_check_that_is_being_deleted() {
    let mut world = World::workers(5).check("workers", json!({ "selector": null }));
    world.change_check("workers", |check| check.deleting = true);
    assert_eq!(written(&world.plan(0)), 0);
}

#[test]
fn intent_waits_while_a_removed_selector_is_written_again() {
    let mut world = World::watched(5).failed("w1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    world.change_check("workers", |check| check.spec.selector = None);
    let plan = world.plan(301);
    assert_eq!((written(&plan), plan.started()), (1, vec![]));
}

#[test]
fn empty_selector_is_all_nodes() {
    let mut world = World::workers(3)
        .control_plane(2)
        .check("all", json!({ "selector": null }));
    world.change_check("all", |check| {
        check.spec.selector = Some(nodeward_core::selector::Selector::everything());
    });
    assert_eq!(world.plan(0).counts("all"), (5, 5));
}

/// The status is written by resourceVersion, and the selector changes that.
#[test]
fn status_waits_for_the_selector_to_be_written() {
    let mut world = World::workers(5).check("workers", json!({ "selector": null }));
    let plan = world.plan(0);
    assert_eq!((written(&plan), plan.written("workers").is_some()), (1, false));
    world.apply(plan, 0);
    assert!(world.plan(0).written("workers").is_some());
}

/// What the peer followed so far meant all nodes.
#[test]
fn default_of_the_peers_object_is_all_nodes() {
    let mut world = World::workers(3)
        .control_plane(2)
        .check("workers", json!({ "selector": null }));
    world.change_check("workers", |check| {
        Arc::make_mut(&mut check.status).last_update_time = Some(at(0));
    });
    world.settle(10);
    assert_eq!(world.plan(20).counts("workers"), (5, 5));
}
