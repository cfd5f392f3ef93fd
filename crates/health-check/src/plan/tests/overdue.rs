//! Overdue timeouts: what a stop has held falls due a while after its end, for the machines of many nodes may just be coming back.

use nodeward_api::reason::HealthReason;
use rstest::rstest;
use serde_json::json;

use super::world::{World, at, chain, two_steps, with};
use crate::action_tracker::ActionTracker;

const EXCLUDED: &str = "remediation.medik8s.io/exclude-from-remediation";

/// The switch is back, and with it the machines: their timeouts were overdue all along.
#[test]
fn overdue_timeouts_do_not_fire_in_the_instant_in_which_the_threshold_holds_again() {
    let check = with(
        chain(&[("Reboot", "5m"), ("Replace", "5m")]),
        json!({ "minHealthy": 5 }),
    );
    let mut world = World::workers(10).check("workers", check);
    world.fail_all(["w1", "w2", "w3"], 0);
    world.settle(300);
    world.fail_all(["w4", "w5", "w6", "w7"], 310);
    world.live(310, 700);
    assert_eq!(world.plan(700).reason("w1"), HealthReason::TooFewHealthy);
    world.heal_all(["w4", "w5", "w6", "w7"], 700);
    let plan = world.settle(700);
    assert_eq!(
        (plan.reason("w1"), plan.node("w1").until),
        (HealthReason::Settling, Some(at(760)))
    );
    world.heal_all(["w1", "w2"], 730);
    world.live(700, 760);
    assert_eq!(world.remediations(), ["Reboot of w3", "Replace of w3"]);
}

/// A stop that returns begins the wait anew.
#[test]
fn overdue_timeout_waits_after_the_last_of_several_stops() {
    let mut world = World::remediating(two_steps());
    world.label("w1", EXCLUDED, Some("true"));
    world.settle(600);
    world.label("w1", EXCLUDED, None);
    world.settle(610);
    world.label("w1", EXCLUDED, Some("true"));
    world.settle(620);
    world.label("w1", EXCLUDED, None);
    world.settle(640);
    world.settle(699);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.settle(700);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// It does not know what was stopped, and until when.
#[test]
fn process_that_begins_waits_with_what_is_overdue_then() {
    let mut world = World::remediating(two_steps());
    world.label("w1", EXCLUDED, Some("true"));
    world.settle(700);
    world.label("w1", EXCLUDED, None);
    world.restart_leader();
    let plan = world.settle(710);
    assert_eq!(
        (plan.reason("w1"), plan.node("w1").until),
        (HealthReason::Settling, Some(at(770)))
    );
    world.live(710, 770);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// What falls due before its eyes it knows.
#[test]
fn process_that_began_earlier_fires_in_time() {
    let mut world = World::remediating(two_steps());
    world.restart_leader();
    world.live(590, 600);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// The API server was away, and too few nodes were healthy until shortly before the wait for that ends.
#[test]
fn settling_forgets_no_stop() {
    let mut world = World::remediating(two_steps());
    world.fail_all(["w2", "w3", "w4"], 550);
    world.settle(610);
    world.snapshot.settle_until = Some(at(680));
    world.settle(620);
    world.heal_all(["w2", "w3", "w4"], 670);
    world.live(670, 729);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.live(729, 730);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// An exclusion lets the step end, which has to wait, and is lifted shortly before that wait ends.
#[rstest]
#[case::for_the_clock(|w: &mut World| w.snapshot.settle_until = Some(at(680)))]
#[case::for_a_pause_that_has_ended(|w: &mut World| {
    w.change_check("workers", |check| check.spec.pauses = vec!["me".to_owned()]);
    w.settle(620);
    w.change_check("workers", |check| check.spec.pauses.clear());
})]
fn settling_forgets_no_exclusion(#[case] wait: fn(&mut World)) {
    let mut world = World::remediating(two_steps());
    world.label("w1", EXCLUDED, Some("true"));
    world.settle(590);
    wait(&mut world);
    world.live(621, 670);
    world.label("w1", EXCLUDED, None);
    world.live(670, 729);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(world.snapshot.remediations[0].timed_out, None);
    world.live(729, 730);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// Nobody is told anything by a NodeHealthCheck that only reports.
#[test]
fn overdue_timeout_waits_after_a_dry_run() {
    let mut world = World::remediating(two_steps());
    world.change_check("workers", |check| check.spec.dry_run = true);
    world.live(310, 700);
    assert_eq!(world.plan(700).reason("w1"), HealthReason::Escalating);
    world.change_check("workers", |check| check.spec.dry_run = false);
    let plan = world.settle(710);
    assert_eq!(
        (plan.reason("w1"), plan.node("w1").until),
        (HealthReason::Settling, Some(at(770)))
    );
    world.live(710, 770);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// By the emergency stop nothing is carried out, and all is looked at: the wait begins with its end.
#[test]
fn overdue_timeout_waits_after_the_emergency_stop() {
    let mut world = World::remediating(two_steps());
    let mut tracker = ActionTracker::default();
    for now in [590, 600, 700] {
        tracker.planned(&world.plan(now), false);
        world.snapshot.memory = tracker.observations(at(now)).clone();
    }
    let plan = world.settle(710);
    assert_eq!(
        (plan.reason("w1"), plan.node("w1").until),
        (HealthReason::Settling, Some(at(770)))
    );
    world.live(710, 770);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}
