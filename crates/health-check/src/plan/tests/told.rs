//! Remediators are told that their time is over before another one is at work on the machine.

use nodeward_api::reason::HealthReason;
use serde_json::json;

use super::world::{World, at, chain, template, two_steps};
use crate::plan::RemediationChange;

/// To one NodeHealthCheck the node is healthy, and its remediator has not finished; another finds the node's disk full.
#[test]
fn no_second_remediator_beside_one_that_has_yet_to_finish() {
    let disk = json!({
        "unhealthyConditions": [{ "type": "DiskPressure", "status": "True", "duration": "1m" }],
        "remediationTemplate": template("Fence"),
    });
    let mut world = World::remediating(two_steps()).check("disks", disk);
    world.heal("w1", 390);
    world.set_condition("w1", "DiskPressure", Some("True"), 330);
    world.change_remediations(|live| {
        live.deleting = Some(at(391));
        live.finalizers = ["example.org/remediator".into()].into();
    });
    let of_disks = |world: &mut World, now: i64| {
        let plan = world.settle(now);
        let mut nodes = plan.verdicts.nodes.iter();
        nodes.find(|verdict| *verdict.check.name == *"disks").unwrap().reason
    };
    assert_eq!(
        world.holder("node-w1").map(str::to_owned),
        Some("NodeHealthCheck-workers".to_owned())
    );
    assert_eq!(of_disks(&mut world, 400), HealthReason::RemediatedByAnotherCheck);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    // It does not wait for ever, nor until nobody keeps the remediation: its remediator is told when its time is over.
    let plan = world.plan(600);
    assert_eq!(plan.annotations(), [RemediationChange::TimedOut(at(600))]);
    assert_eq!(plan.intended("disks"), [""; 0]);
    world.settle(600);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// A single template was over in the status alone, for its remediator could not be told. Then it becomes the first of two.
#[test]
fn step_is_not_added_beside_a_remediator_that_was_not_told() {
    let mut world = World::remediating(json!({})).may_not_annotate();
    world.live(300, 2300);
    assert_eq!(world.plan(2300).reason("w1"), HealthReason::ChainExhausted);
    world.set_check("workers", two_steps());
    assert_eq!(world.settle(2310).reason("w1"), HealthReason::PermissionMissing);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    for facts in world.snapshot.kinds.values_mut() {
        facts.may_annotate = true;
    }
    let plan = world.plan(2320);
    assert_eq!(plan.annotations(), [RemediationChange::TimedOut(at(2320))]);
    assert_eq!(plan.intended("workers"), [""; 0]);
    world.settle(2320);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// A chain that was over has given its slot up.
#[test]
fn step_is_not_added_beyond_the_limit() {
    let limited = |steps| super::world::with(chain(steps), json!({ "maxConcurrentRemediations": 1 }));
    let mut world = World::workers(5)
        .check("workers", limited(&[("Reboot", "5m")]))
        .failed("w1", 0);
    world.fail("w2", 10);
    world.live(300, 650);
    assert_eq!(world.remediations(), ["Reboot of w1", "Reboot of w2"]);
    world.set_check("workers", limited(&[("Reboot", "5m"), ("Fence", "5m")]));
    let plan = world.settle(660);
    assert_eq!(plan.reason("w1"), HealthReason::ConcurrencyLimitReached);
    assert!(plan.node("w1").detail.contains("w2"), "{:?}", plan.node("w1"));
    world.live(660, 900);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1", "Reboot of w2"]);
}

/// Nobody tells its remediator: it has the time of its step.
#[test]
fn check_that_only_reports_leaves_its_node_to_another() {
    let other = json!({ "remediationTemplate": template("Fence") });
    let mut world = World::remediating(two_steps()).check("others", other);
    world.change_check("workers", |check| check.spec.dry_run = true);
    world.live(310, 599);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.live(600, 700);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// A NodeHealthCheck that is disabled ends no step, and its remediator is not told: nobody else starts beside it. A person hands
/// the node over by deleting the remediation.
#[test]
fn disabled_check_keeps_its_node_while_its_remediator_is_not_told() {
    let other = json!({ "remediationTemplate": template("Fence") });
    let mut world = World::remediating(two_steps()).check("others", other);
    world.change_check("workers", |check| check.spec.problems.push("bad".to_owned()));
    world.live(310, 3000);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.snapshot.remediations.clear();
    world.live(3001, 3100);
    assert_eq!(world.remediations(), ["Fence of w1"]);
}
