use jiff::SignedDuration;
use nodeward_api::reason::HealthReason;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, at};
use crate::plan::Action;

fn conditions(conditions: Value) -> Value {
    json!({ "unhealthyConditions": conditions })
}

#[test]
fn condition_expires_at_the_very_moment() {
    let mut world = World::watched(5).failed("w1", 0);
    let plan = world.settle(299);
    assert_eq!(plan.reason("w1"), HealthReason::NotExpired);
    assert_eq!((plan.node("w1").until, plan.requeue_second()), (Some(at(300)), 300));
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn either_of_several_conditions_is_enough() {
    let both = json!([
        { "type": "Ready", "status": "Unknown", "duration": "10m" },
        { "type": "DiskPressure", "status": "True", "duration": "1m" },
    ]);
    let mut world = World::workers(5).check("workers", conditions(both)).failed("w1", 0);
    world.set_condition("w1", "DiskPressure", Some("True"), 30);
    assert_eq!(world.settle(89).requeue_second(), 90);
    let plan = world.settle(90);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    let condition = plan.node("w1").condition.clone().unwrap();
    assert_eq!(
        (&*condition.type_, condition.since, condition.expires),
        ("DiskPressure", at(30), at(90))
    );
}

/// Not healthy is everybody who is not plainly so; the count is (healthy, observed).
#[rstest]
#[case::healthy(|_: &mut World| {}, 5)]
#[case::not_yet_expired(|w: &mut World| w.fail("w1", 190), 4)]
#[case::expired(|w: &mut World| w.fail("w1", -200), 4)]
#[case::excluded(|w: &mut World| w.label("w1", "remediation.medik8s.io/exclude-from-remediation", Some("true")), 5)]
#[case::in_maintenance(|w: &mut World| w.drain("w1", "Draining", 9999), 5)]
#[case::leased_by_another(|w: &mut World| w.lease("node-w1", "somebody", 0, 60), 5)]
#[case::without_ready(|w: &mut World| w.set_condition("w1", "Ready", None, 0), 4)]
#[case::with_a_remediation(|w: &mut World| { w.add_remediation("Reboot", "w1", &["uid-of-workers"], 100); }, 4)]
#[case::with_anothers_remediation(|w: &mut World| { w.add_remediation("Reboot", "w1", &["somebody"], 100); }, 5)]
#[case::ready_false(|w: &mut World| w.set_condition("w1", "Ready", Some("False"), 190), 4)]
#[case::another_condition(|w: &mut World| w.set_condition("w1", "DiskPressure", Some("True"), 0), 5)]
fn healthy_are_those_that_match_nothing(#[case] change: fn(&mut World), #[case] healthy: usize) {
    let mut world = World::watched(5);
    change(&mut world);
    assert_eq!(world.plan(200).counts("workers"), (healthy, 5));
}

#[test]
fn only_selected_nodes_count() {
    let mut world = World::watched(3).control_plane(3);
    world.fail("m1", 0);
    assert_eq!(world.settle(400).counts("workers"), (3, 3));
    assert_eq!(world.remediations(), [""; 0]);
}

#[test]
fn nodes_before_their_first_ready_condition_are_left_alone() {
    let mut world = World::watched(5);
    world.set_condition("w1", "Ready", None, 0);
    let plan = world.settle(9999);
    assert_eq!(plan.reason("w1"), HealthReason::ReadyUnknown);
    assert_eq!(world.remediations(), [""; 0]);
}

#[test]
fn missing_counts_from_the_later_of_creation_and_first_sight() {
    let missing = json!([{ "type": "GpuHealthy", "status": "Missing", "duration": "10m" }]);
    let mut world = World::workers(5).check(
        "workers",
        json!({ "unhealthyConditions": missing, "maxUnhealthy": "100%" }),
    );
    for node in ["w2", "w3", "w4", "w5"] {
        world.set_condition(node, "GpuHealthy", Some("True"), 0);
    }
    // The node is an hour old, and this process has just come up.
    assert_eq!(world.settle(100).node("w1").until, Some(at(700)));
    assert_eq!(
        world.settle(500).node("w1").until,
        Some(at(700)),
        "the first sight counts"
    );
    world.settle(700);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    // The condition appears, and goes again.
    world.set_condition("w1", "GpuHealthy", Some("True"), 800);
    world.settle(800);
    assert_eq!(world.remediations(), [""; 0]);
    assert!(world.snapshot.memory.found.absent_since.is_empty());
    world.set_condition("w1", "GpuHealthy", None, 900);
    assert_eq!(world.settle(900).node("w1").until, Some(at(1500)));
    // A node whose creation the API server stamps with a clock that is ahead.
    world.add_node("w6", "worker", 1200);
    assert_eq!(world.settle(1000).node("w6").until, Some(at(1800)));
}

#[rstest]
#[case::at_the_limit(json!({ "maxUnhealthy": 2 }), 2, true)]
#[case::above_the_limit(json!({ "maxUnhealthy": 2 }), 3, false)]
#[case::no_unhealthy_allowed(json!({ "maxUnhealthy": 0 }), 1, false)]
#[case::percentage_rounds_up(json!({ "maxUnhealthy": "21%" }), 2, true)]
#[case::percentage_and_one_more(json!({ "maxUnhealthy": "20%" }), 2, false)]
#[case::default_at_the_limit(json!({}), 3, true)]
#[case::default_above_the_limit(json!({}), 4, false)]
#[case::min_healthy(json!({ "minHealthy": 3 }), 2, true)]
#[case::below_min_healthy(json!({ "minHealthy": 4 }), 2, false)]
#[case::min_healthy_rounds_up(json!({ "minHealthy": "41%" }), 3, false)]
#[case::min_healthy_exact(json!({ "minHealthy": "40%" }), 3, true)]
#[case::all_must_be_healthy(json!({ "minHealthy": "100%" }), 1, false)]
fn threshold_stops_one_beyond_its_limit(#[case] check: Value, #[case] failing: usize, #[case] starts: bool) {
    let mut world = World::workers(5).check("workers", check);
    for number in 1..=failing {
        world.fail(&format!("w{number}"), 0);
    }
    let plan = world.settle(300);
    assert_eq!(world.remediations().len(), if starts { failing } else { 0 });
    let reason = if starts {
        HealthReason::RemediationRunning
    } else {
        HealthReason::TooFewHealthy
    };
    assert_eq!(plan.reason("w1"), reason);
}

#[test]
fn mass_failure_blocks_at_the_first_expiry() {
    let mut world = World::watched(10);
    for number in 1..=6 {
        world.fail(&format!("w{number}"), i64::from(number));
    }
    world.live(300, 3000);
    assert_eq!(world.remediations(), [""; 0]);
}

#[test]
fn max_unhealthy_beyond_the_number_of_nodes_starts_nothing_and_says_so() {
    let mut world = World::workers(3)
        .check("workers", json!({ "maxUnhealthy": 4 }))
        .failed("w1", 0);
    let plan = world.settle(300);
    assert_eq!(plan.reason("w1"), HealthReason::TooFewHealthy);
    assert!(
        plan.node("w1").detail.contains("more than the 3 selected nodes"),
        "{:?}",
        plan.node("w1")
    );
    assert_eq!(world.remediations(), [""; 0]);
    assert!(
        world
            .status("workers")
            .reason
            .contains("more than the 3 selected nodes")
    );
}

#[test]
fn no_nodes_are_nothing_to_do() {
    let check = json!({ "maxUnhealthy": 2, "stormCooldownDuration": "1m" });
    let mut world = World::workers(0).check("workers", check);
    let plan = world.settle(0);
    assert_eq!(plan.counts("workers"), (0, 0));
    let message = &world.status("workers").conditions[1].message;
    assert_eq!(message, "enough nodes are healthy", "the limit is not to be lowered");
    let status = world.status("workers");
    assert_eq!((status.observed_nodes, status.healthy_nodes), (Some(0), Some(0)));
    assert_eq!(status.phase.unwrap().as_str(), "Enabled");
}

/// Of the special case: neither deleted nor escalated.
#[test]
fn node_between_conditions_is_left_as_it_is() {
    let check = super::world::chain(&[("Reboot", "5m"), ("Fence", "5m")]);
    let mut world = World::workers(5).check("workers", check).failed("w1", 0);
    world.settle(300);
    // It reboots: Unknown becomes False, which has yet to last.
    world.set_condition("w1", "Ready", Some("False"), 590);
    let plan = world.settle(650);
    assert_eq!(plan.reason("w1"), HealthReason::NotExpired);
    assert_eq!(world.remediations(), ["Reboot of w1"], "its timeout passed at 600");
    assert_eq!(world.snapshot.remediations[0].timed_out, None);
    // It stays so: it is unhealthy again, and its timeout fires.
    world.settle(890);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

#[test]
fn everything_is_evaluated_anew_within_a_minute() {
    let world = World::watched(5);
    assert_eq!(world.plan(1000).requeue_second(), 1060);
}

#[test]
fn unreadable_conditions_leave_remediations_alone() {
    let mut world = World::watched(5).failed("w1", 0);
    world.settle(300);
    world.set_check("workers", json!({ "unhealthyConditions": "nonsense" }));
    world.heal("w1", 400);
    world.live(400, 5000);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn plan_at_rest_does_nothing() {
    let mut world = World::watched(50);
    world.settle(0);
    for second in [1, 60, 3600] {
        let actions: Vec<Action> = world.plan(second).actions;
        assert_eq!(actions, []);
    }
}

#[test]
fn node_whose_remediation_is_not_known_to_be_gone_is_not_healthy() {
    let mut world = World::watched(5).failed("w1", 0);
    world.settle(300);
    world.snapshot.remediations.clear();
    for facts in world.snapshot.kinds.values_mut() {
        facts.listed = crate::snapshot::Listed::NotYet;
    }
    world.heal("w1", 310);
    assert_eq!(world.plan(310).counts("workers"), (4, 5));
    for facts in world.snapshot.kinds.values_mut() {
        facts.listed = crate::snapshot::Listed::Complete;
    }
    assert_eq!(world.plan(320).counts("workers"), (5, 5));
}

/// `w1` has failed for ten seconds, and `w2` has lacked a condition for as long, when the clock is stepped.
#[rstest]
#[case::forward(3600)]
#[case::backward(-200)]
fn stepped_clock_makes_no_condition_older(#[case] step: i64) {
    let missing = json!([
        { "type": "Ready", "status": "Unknown", "duration": "5m" },
        { "type": "Checked", "status": "Missing", "duration": "5m" },
    ]);
    let check = json!({ "unhealthyConditions": missing, "maxUnhealthy": "100%" });
    let mut world = World::workers(2).check("workers", check).failed("w1", 300);
    world.set_condition("w1", "Checked", Some("True"), 0);
    world.settle(300);
    world.settle(310);
    world.snapshot.clock_stepped_by = SignedDuration::from_secs(step);
    world.settle(step + 599);
    assert_eq!(world.remediations(), [""; 0]);
    world.settle(step + 600);
    assert_eq!(world.remediations(), ["Reboot of w1", "Reboot of w2"]);
}
