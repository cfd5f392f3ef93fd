//! Starts under way: what they create the watches do not show yet.

use nodeward_api::reason::HealthReason;
use rstest::rstest;
use serde_json::json;

use super::world::{World, name};
use crate::plan::{LeaseChange, LeaseName, LeaseStep};

/// The intent is written, and the start of the node's remediation has taken its leases. Its remediation is not seen yet.
fn starting(mut world: World, check: &str, node: &str) -> World {
    let plan = world.plan(300);
    assert_eq!(plan.intended(check), [node]);
    world.apply(plan, 300);
    let plan = world.plan(300);
    assert_eq!(plan.started(), [node]);
    let start = plan.starts()[0].clone();
    let key = (start.check.name.clone(), start.node.clone());
    let starting = &mut world.snapshot.memory.starting;
    starting.insert(key, start.is_of_control_plane());
    for change in start.leases() {
        let LeaseStep::Take(terms) = &change.step else {
            panic!("a start gives no lease back");
        };
        world.lease(&change.name.to_string(), &terms.holder, 300, 10);
    }
    world
}

fn starting_worker(spec: serde_json::Value) -> World {
    starting(
        World::workers(5).check("workers", spec).failed("w1", 0),
        "workers",
        "w1",
    )
}

fn starting_master(count: usize) -> World {
    let spec = json!({
        "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" }] },
        "maxUnhealthy": "100%",
    });
    let world = World::workers(3).control_plane(count).check("masters", spec);
    starting(world.failed("m1", 0), "masters", "m1")
}

fn given_back(leases: &[&LeaseChange]) -> Vec<LeaseName> {
    let given_back = leases.iter().filter(|change| change.step == LeaseStep::GiveBack);
    given_back.map(|change| change.name.clone()).collect()
}

fn ended(world: &mut World, check: &str, node: &str) {
    world.snapshot.memory.starting.remove(&(check.into(), name(node)));
}

#[rstest]
#[case::healed(|w: &mut World| w.heal("w1", 301))]
#[case::gone(|w: &mut World| w.remove_node("w1"))]
#[case::paused(|w: &mut World| w.set_check("workers", json!({ "pauseRequests": ["maintenance"] })))]
#[case::check_gone(|w: &mut World| { w.snapshot.memory.checks.insert("workers".into()); w.snapshot.checks.clear(); })]
fn lease_is_kept_while_its_start_runs(#[case] changed: fn(&mut World)) {
    let mut world = starting_worker(json!({}));
    changed(&mut world);
    for _ in 0..2 {
        let plan = world.plan(302);
        assert_eq!(given_back(&plan.leases()), []);
        world.apply(plan, 302);
    }
    ended(&mut world, "workers", "w1");
    assert_eq!(given_back(&world.plan(303).leases()), [LeaseName::Node(name("w1"))]);
}

#[test]
fn control_plane_lease_is_kept_while_its_start_runs() {
    let mut world = starting_master(3);
    world.remove_node("m1");
    let plan = world.plan(302);
    assert_eq!(given_back(&plan.leases()), []);
    world.apply(plan, 302);
    ended(&mut world, "masters", "m1");
    let expected = [LeaseName::ControlPlane, LeaseName::Node(name("m1"))];
    assert_eq!(given_back(&world.plan(303).leases()), expected);
}

#[rstest]
#[case::healed(|w: &mut World| w.heal("m1", 301))]
#[case::gone(|w: &mut World| w.remove_node("m1"))]
fn second_control_plane_node_waits_while_one_starts(#[case] changed: fn(&mut World)) {
    let mut world = starting_master(5);
    changed(&mut world);
    world.fail("m2", 0);
    // Whoever else has the lease is not what stops it.
    world.snapshot.leases.clear();
    for _ in 0..2 {
        let plan = world.plan(302);
        assert_eq!(plan.reason("m2"), HealthReason::ControlPlaneNodeAway);
        world.apply(plan, 302);
    }
    ended(&mut world, "masters", "m1");
    assert_eq!(world.plan(303).reason("m2"), HealthReason::StartingRemediation);
}

#[test]
fn start_under_way_counts_under_the_cap() {
    let mut world = starting_worker(json!({ "maxConcurrentRemediations": 1 }));
    assert_eq!(world.plan(301).started(), ["w1"], "it is not in its own way");
    world.heal("w1", 301);
    world.fail("w2", 0);
    for _ in 0..2 {
        let plan = world.plan(302);
        assert_eq!(plan.reason("w2"), HealthReason::ConcurrencyLimitReached);
        world.apply(plan, 302);
    }
    ended(&mut world, "workers", "w1");
    assert_eq!(world.plan(303).reason("w2"), HealthReason::StartingRemediation);
}

#[test]
fn healed_node_that_starts_is_not_healthy() {
    let mut world = starting_worker(json!({}));
    world.heal("w1", 301);
    for _ in 0..2 {
        let plan = world.plan(302);
        assert_eq!((plan.counts("workers"), plan.check("workers").remediating), ((4, 5), 1));
        world.apply(plan, 302);
    }
    ended(&mut world, "workers", "w1");
    assert_eq!(world.plan(303).counts("workers"), (5, 5));
}

#[test]
fn node_that_starts_is_left_to_its_check() {
    let mut world = starting_worker(json!({}));
    world.set_check("workers", json!({ "pauseRequests": ["maintenance"] }));
    world.set_check("others", json!({}));
    world.snapshot.leases.clear();
    let plan = world.plan(302);
    let others = plan
        .verdicts
        .nodes
        .iter()
        .find(|verdict| *verdict.check.name == *"others");
    assert_eq!(others.unwrap().reason, HealthReason::RemediatedByAnotherCheck);
}
