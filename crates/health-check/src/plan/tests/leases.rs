use rstest::rstest;
use serde_json::json;

use super::world::{World, at, chain};

fn remediated() -> World {
    let mut world = World::workers(5)
        .check("workers", chain(&[("Reboot", "5m"), ("Fence", "20m")]))
        .failed("w1", 0);
    world.settle(300);
    world
}

fn minutes(world: &World) -> i64 {
    world.snapshot.leases["node-w1"].duration.unwrap().as_mins()
}

#[test]
fn lease_lasts_for_the_steps_timeout_and_a_minute() {
    let mut world = remediated();
    assert_eq!(minutes(&world), 6);
    world.settle(600);
    assert_eq!(minutes(&world), 21, "the next step has another timeout");
    let mut single = World::watched(5).failed("w1", 0);
    single.settle(300);
    assert_eq!(minutes(&single), 11);
}

#[test]
fn lease_of_the_longest_step_lasts_a_year() {
    let mut world = World::workers(5)
        .check("workers", chain(&[("Reboot", "9000000h")]))
        .failed("w1", 0);
    world.settle(300);
    assert_eq!(minutes(&world), 365 * 24 * 60 + 1);
}

/// Of two remediations the older runs, as in a chain whose order was edited.
#[test]
fn lease_lasts_for_the_step_that_runs() {
    let mut world = remediated();
    world.add_remediation("Fence", "w1", &["uid-of-workers"], 305);
    let fence = world.snapshot.remediations.last_mut().unwrap();
    std::sync::Arc::make_mut(fence).timed_out = Some(at(306));
    world.settle(310);
    assert_eq!(minutes(&world), 6);
}

#[test]
fn lease_of_a_gone_check_is_not_kept_for_anothers_remediation() {
    let mut world = World::watched(5).failed("w1", 0);
    world.snapshot.memory.checks.insert("gone".into());
    world.add_remediation("Reboot", "w1", &["uid-of-workers"], 0);
    world.lease("node-w1", "NodeHealthCheck-gone", 0, 60);
    world.settle(10);
    assert_eq!(world.holder("node-w1"), Some("NodeHealthCheck-workers"));
}

#[test]
fn lease_is_renewed_at_half_its_duration_for_as_long_as_it_takes() {
    let mut world = World::watched(5).failed("w1", 0);
    assert_eq!(world.settle(300).requeue_second(), 360);
    world.settle(629);
    assert_eq!(world.snapshot.leases["node-w1"].renewed, Some(at(300)));
    world.settle(630);
    assert_eq!(world.snapshot.leases["node-w1"].renewed, Some(at(630)));
    world.live(631, 2279);
    let renewed = world.snapshot.leases["node-w1"].renewed.unwrap();
    assert!(renewed > at(2279 - 11 * 60));
}

#[test]
fn deadline_of_a_lease_wakes_the_loop() {
    let mut world = World::watched(5).failed("w1", 0);
    world.settle(300);
    assert_eq!(world.plan(600).requeue_second(), 630);
}

#[test]
fn lost_lease_is_taken_again_unless_another_has_it() {
    let mut world = remediated();
    world.snapshot.leases.clear();
    world.settle(310);
    assert_eq!(world.holder("node-w1"), Some("NodeHealthCheck-workers"));
    world.lease("node-w1", "somebody", 320, 2);
    world.settle(330);
    assert_eq!(world.holder("node-w1"), Some("somebody"));
    world.settle(440);
    assert_eq!(
        world.holder("node-w1"),
        Some("NodeHealthCheck-workers"),
        "it has run out"
    );
}

#[rstest]
#[case::of_a_check_without_remediation("NodeHealthCheck-workers", true)]
#[case::of_a_check_that_is_gone("NodeHealthCheck-gone", true)]
#[case::of_somebody_else("somebody", false)]
fn lease_without_a_remediation_is_given_back(#[case] holder: &str, #[case] goes: bool) {
    let mut world = World::watched(5);
    world.snapshot.memory.checks.insert("gone".into());
    world.lease("node-w1", holder, 0, 60);
    world.settle(10);
    assert_eq!(world.holder("node-w1").is_none(), goes);
}

/// Of a kind that nobody names any more, a finalizer may keep a remediation.
#[test]
fn lease_of_a_check_that_was_never_seen_has_its_time() {
    let mut world = World::watched(5);
    world.lease("node-w1", "NodeHealthCheck-gone", 0, 60);
    world.settle(3599);
    assert_eq!(world.holder("node-w1"), Some("NodeHealthCheck-gone"));
    assert_eq!(
        world.snapshot.leases["node-w1"].renewed,
        Some(at(0)),
        "it is not renewed"
    );
    world.settle(3600);
    assert_eq!(world.holder("node-w1"), None);
}

#[test]
fn lease_of_a_check_that_is_gone_stays_while_its_remediation_does() {
    let mut world = World::watched(5);
    world.snapshot.memory.checks.insert("gone".into());
    world.lease("node-w1", "NodeHealthCheck-gone", 0, 60);
    world.add_remediation("Reboot", "w1", &["uid-of-gone"], 0);
    world.settle(10);
    assert_eq!(world.holder("node-w1"), Some("NodeHealthCheck-gone"));
    world.snapshot.remediations.clear();
    world.settle(20);
    assert_eq!(world.holder("node-w1"), None);
}

#[test]
fn withdrawn_intent_gives_its_lease_back() {
    let mut world = World::watched(5).failed("w1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    // The lease was taken, and the create failed.
    world.lease("node-w1", "NodeHealthCheck-workers", 300, 11);
    world.set_check("workers", json!({ "pauseRequests": ["me"] }));
    world.settle(301);
    assert_eq!(world.holder("node-w1"), None);
}

#[test]
fn lease_is_kept_while_a_start_is_under_way() {
    let mut world = World::watched(5).failed("w1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    world.lease("node-w1", "NodeHealthCheck-workers", 300, 11);
    let plan = world.plan(300);
    assert!(plan.leases().is_empty(), "{:?}", plan.leases());
    assert_eq!(plan.started(), ["w1"]);
}

#[test]
fn lease_follows_an_edited_timeout() {
    let mut world = remediated();
    world.set_check("workers", chain(&[("Reboot", "15m"), ("Fence", "20m")]));
    world.settle(310);
    assert_eq!(minutes(&world), 16);
    assert!(world.plan(311).leases().is_empty());
}

/// Its NodeHealthCheck is gone, and a finalizer keeps the remediation.
#[test]
fn lease_of_a_gone_check_lasts_as_long_as_its_remediation() {
    let mut world = World::watched(5).failed("w1", 0);
    world.settle(300);
    world.snapshot.memory.checks.insert("workers".into());
    world.snapshot.checks.clear();
    world.change_remediations(|live| live.deleting = Some(at(301)));
    world.settle(629);
    assert_eq!(world.snapshot.leases["node-w1"].renewed, Some(at(300)));
    world.settle(630);
    assert_eq!(world.snapshot.leases["node-w1"].renewed, Some(at(630)));
    assert_eq!(world.holder("node-w1"), Some("NodeHealthCheck-workers"));
    world.snapshot.remediations.clear();
    world.settle(640);
    assert_eq!(world.holder("node-w1"), None);
}
