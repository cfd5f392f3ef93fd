use jiff::SignedDuration;
use nodeward_api::reason::HealthReason;
use rstest::rstest;
use serde_json::json;

use super::world::{World, at, chain, with};
use crate::plan::{Action, LeaseStep, RemediationChange, RestsOn};

const CONFIRMED: &str = "remediation.medik8s.io/manually-confirmed-healthy";

fn remediated(delay: &str) -> World {
    let mut world = World::workers(5)
        .check("workers", json!({ "healthyDelay": delay }))
        .failed("w1", 0);
    world.settle(300);
    world
}

#[test]
fn healthy_node_is_freed_at_once() {
    let mut world = World::watched(5).failed("w1", 0);
    world.settle(300);
    world.heal("w1", 310);
    let plan = world.plan(310);
    assert_eq!(plan.deleted(), ["w1"]);
    assert_eq!(plan.reason("w1"), HealthReason::RemovingRemediations);
    let Some(Action::DeleteRemediation(write)) = plan
        .actions
        .iter()
        .find(|action| matches!(action, Action::DeleteRemediation(_)))
    else {
        panic!();
    };
    assert!(
        matches!(&write.evidence.as_ref().unwrap().rests_on, RestsOn::Healthy { conditions, .. } if conditions.len() == 2)
    );
}

#[test]
fn node_is_healthy_only_once_its_remediation_is_gone() {
    let mut world = World::watched(5).failed("w1", 0);
    world.settle(300);
    world.heal("w1", 310);
    assert!(
        world.plan(310).leases().is_empty(),
        "it may fail again before it is deleted"
    );
    world.change_remediations(|live| live.deleting = Some(at(310)));
    let plan = world.plan(310);
    assert_eq!(plan.counts("workers"), (4, 5));
    assert_eq!(
        plan.leases().iter().map(|change| &change.step).collect::<Vec<_>>(),
        [&LeaseStep::GiveBack]
    );
    world.settle(310);
    assert!(world.entry("w1").is_some() && world.holder("node-w1").is_none());
    world.snapshot.remediations.clear();
    let plan = world.settle(320);
    assert_eq!(plan.counts("workers"), (5, 5));
    assert!(world.entry("w1").is_none());
}

#[test]
fn healthy_delay_counts_from_the_annotation() {
    let mut world = remediated("2m");
    world.heal("w1", 400);
    let plan = world.plan(400);
    assert_eq!(plan.annotations(), [RemediationChange::HealthySince(Some(at(400)))]);
    let plan = world.settle(400);
    assert_eq!(plan.reason("w1"), HealthReason::HealthyDelayed);
    assert_eq!((plan.node("w1").until, plan.counts("workers")), (Some(at(520)), (4, 5)));
    let entry = world.entry("w1").unwrap();
    assert_eq!(
        (entry.conditions_healthy_timestamp, entry.healthy_delayed),
        (Some(at(400)), Some(true))
    );
    world.live(401, 519);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.live(519, 520);
    assert_eq!(world.remediations(), [""; 0]);
}

/// The status is another moment's.
#[test]
fn annotation_tells_the_delay_before_the_status() {
    let mut world = remediated("2m");
    world.heal("w1", 340);
    world.settle(350);
    world.change_remediations(|live| live.healthy_since = Some(at(400)));
    assert_eq!(world.plan(450).node("w1").until, Some(at(520)));
}

#[test]
fn relapse_begins_the_delay_anew() {
    for status in ["Unknown", "False"] {
        let mut world = remediated("2m");
        world.heal("w1", 400);
        world.settle(400);
        world.set_condition("w1", "Ready", Some(status), 450);
        let plan = world.plan(450);
        assert_eq!(plan.annotations(), [RemediationChange::HealthySince(None)]);
        world.settle(450);
        assert_eq!(world.entry("w1").unwrap().conditions_healthy_timestamp, None);
        world.heal("w1", 460);
        world.settle(460);
        world.live(461, 579);
        assert_eq!(world.remediations(), ["Reboot of w1"]);
        world.live(579, 580);
        assert_eq!(world.remediations(), [""; 0]);
    }
}

#[test]
fn relapse_that_nobody_saw_begins_the_delay_anew() {
    let mut world = remediated("2m");
    world.heal("w1", 400);
    world.settle(400);
    world.heal("w1", 500);
    world.settle(530);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.settle(620);
    assert_eq!(world.remediations(), [""; 0]);
}

#[test]
fn delay_without_the_right_to_annotate_is_kept_in_the_status() {
    let mut world = remediated("2m").may_not_annotate();
    world.heal("w1", 400);
    world.set_condition("w1", "Ready", Some("True"), 390);
    assert_eq!(world.plan(400).annotations(), []);
    world.settle(400);
    world.live(401, 519);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.live(519, 521);
    assert_eq!(world.remediations(), [""; 0]);
}

#[rstest]
#[case::only_by_hand("-1s")]
#[case::or_earlier("2h")]
fn person_confirms_that_a_node_is_healthy(#[case] delay: &str) {
    let mut world = remediated(delay);
    world.heal("w1", 400);
    world.live(400, 4000);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.annotate_node("w1", CONFIRMED, Some(""));
    world.settle(4001);
    assert_eq!(world.remediations(), [""; 0]);
    assert_eq!(world.node_annotation("w1", CONFIRMED), None, "it is removed afterwards");
}

#[test]
fn confirmation_skips_the_delay_and_nothing_else() {
    let mut world = remediated("-1s");
    world.annotate_node("w1", CONFIRMED, Some(""));
    let plan = world.settle(400);
    assert_eq!(world.remediations(), ["Reboot of w1"], "its conditions are unhealthy");
    assert_eq!(plan.reason("w1"), HealthReason::RemediationRunning);
    assert_eq!(world.node_annotation("w1", CONFIRMED), Some(""), "it is not spent yet");
}

#[test]
fn confirmation_is_kept_until_every_remediation_is_gone() {
    let mut world = World::watched(5).failed("w1", 0);
    world.settle(300);
    world.set_check("others", json!({ "healthyDelay": "1h" }));
    world.heal("w1", 400);
    world.annotate_node("w1", CONFIRMED, Some(""));
    world.change_remediations(|live| live.deleting = Some(at(301)));
    world.settle(400);
    assert_eq!(world.node_annotation("w1", CONFIRMED), Some(""));
    world.snapshot.remediations.clear();
    world.settle(410);
    assert_eq!(world.node_annotation("w1", CONFIRMED), None);
}

#[test]
fn confirmation_is_left_alone_where_no_delay_asks_for_it() {
    let mut world = World::watched(3);
    world.annotate_node("w1", CONFIRMED, Some(""));
    world.settle(0);
    assert_eq!(world.node_annotation("w1", CONFIRMED), Some(""));
}

#[test]
fn all_steps_are_deleted_at_once() {
    let check = with(
        chain(&[("Reboot", "1m"), ("Fence", "1m"), ("Replace", "1m")]),
        json!({}),
    );
    let mut world = World::workers(5).check("workers", check).failed("w1", 0);
    world.live(300, 440);
    assert_eq!(world.remediations().len(), 3);
    world.heal("w1", 445);
    assert_eq!(world.plan(445).deleted(), ["w1"; 3]);
}

#[test]
fn remediation_older_than_two_days_is_flagged() {
    let mut world = World::watched(5).failed("w1", 0);
    world.settle(300);
    let old_at = 300 + 48 * 3600;
    let plan = world.settle(old_at - 30);
    assert!(plan.check("workers").old_remediations.is_empty());
    assert_eq!(plan.requeue_second(), old_at);
    let plan = world.plan(old_at);
    assert_eq!(plan.annotations(), [RemediationChange::FlagOld]);
    assert_eq!(plan.check("workers").old_remediations.len(), 1);
    world.policy.old_remediation = SignedDuration::from_hours(72);
    assert_eq!(world.plan(old_at).annotations(), []);
}

#[test]
fn old_remediation_that_may_not_be_annotated_is_told_all_the_same() {
    let mut world = World::watched(5).failed("w1", 0).may_not_annotate();
    world.settle(300);
    let plan = world.settle(300 + 48 * 3600);
    assert_eq!(plan.check("workers").old_remediations.len(), 1);
}

/// Whoever wrote it had a clock that was ahead.
#[test]
fn delay_that_begins_in_the_future_begins_now() {
    let mut world = World::remediating(json!({ "healthyDelay": "1m" }));
    world.heal("w1", 310);
    world.settle(310);
    world.change_remediations(|live| live.healthy_since = Some(at(99_999)));
    world.change_check("workers", |check| {
        let entries = &mut std::sync::Arc::make_mut(&mut check.status).unhealthy_nodes;
        entries[0].conditions_healthy_timestamp = Some(at(99_999));
    });
    world.live(320, 379);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.live(379, 380);
    assert_eq!(world.remediations(), [""; 0]);
}
