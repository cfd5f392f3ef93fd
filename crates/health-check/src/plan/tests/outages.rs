//! An outage of a node: a step that was started before it is no step of it, whoever has seen the health between.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::reason::HealthReason;
use rstest::rstest;
use serde_json::json;

use super::world::{World, at, two_steps, with};
use crate::observations::Observations;
use crate::plan::{Action, Plan};

/// Who sees that `w1` is healthy between two outages, and what becomes of its remediation then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    /// The emergency stop: it is seen, and nothing is done.
    Stopped,
    /// The API server refuses to delete the remediation.
    DeleteRefused,
    /// It only reports for a while.
    DryRun,
    /// No process looks, and the one that comes remembers nothing.
    Away,
    /// The process looks again only afterwards.
    CutOff,
}

/// Carries out what may be done.
fn pass(world: &mut World, second: i64, between: Between) {
    let Plan { actions, .. } = &mut world.plan(second);
    let plan = world.plan(second);
    world.remember(&plan);
    for action in std::mem::take(actions) {
        let is_done = match between {
            Between::Stopped => false,
            Between::DeleteRefused => !matches!(action, Action::DeleteRemediation(_)),
            Between::DryRun | Between::Away | Between::CutOff => true,
        };
        if is_done {
            world.try_act(action, second);
        }
    }
}

/// The first step of `w1` runs since 300. The node is healthy at 400, and fails again at 500.
fn second_outage(mut world: World, between: Between) -> World {
    let looks = !matches!(between, Between::Away | Between::CutOff);
    let set_dry_run = |world: &mut World, on: bool| world.change_check("workers", |check| check.spec.dry_run = on);
    set_dry_run(&mut world, between == Between::DryRun);
    world.heal("w1", 400);
    for second in [400, 401].into_iter().filter(|_| looks) {
        pass(&mut world, second, between);
    }
    world.fail("w1", 500);
    for second in [500, 501].into_iter().filter(|_| looks) {
        pass(&mut world, second, between);
    }
    set_dry_run(&mut world, false);
    if between == Between::Away {
        world.restart_leader();
    }
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world
}

/// When each remediation of the second outage was created.
fn created(world: &mut World, from: i64, to: i64) -> Vec<(String, i64)> {
    let mut created = Vec::new();
    for second in from..=to {
        let before: Vec<_> = world
            .snapshot
            .remediations
            .iter()
            .map(|live| live.uid.clone())
            .collect();
        world.settle(second);
        let live = world.snapshot.remediations.iter();
        let new = live.filter(|live| !before.contains(&live.uid));
        created.extend(new.map(|live| (live.kind.kind.replace("Remediation", ""), second)));
    }
    created
}

#[rstest]
fn no_second_step_without_the_first_one_of_the_same_outage(
    #[values(
        Between::Stopped,
        Between::DeleteRefused,
        Between::DryRun,
        Between::Away,
        Between::CutOff
    )]
    between: Between,
    #[values(false, true)] is_single: bool,
    #[values(false, true)] has_failed: bool,
    #[values(false, true)] is_annotated: bool,
) {
    let mut world = World::workers(5);
    if is_single {
        world = world.single();
    }
    world = world.check("workers", two_steps()).failed("w1", 0);
    world.settle(300);
    if has_failed {
        world.succeeded("False");
        world.label("w1", "remediation.medik8s.io/exclude-from-remediation", Some("true"));
        world.settle(310);
        world.label("w1", "remediation.medik8s.io/exclude-from-remediation", None);
    }
    if !is_annotated {
        world = world.may_not_annotate();
    }
    let mut world = second_outage(world, between);
    let steps = created(&mut world, 502, 1300);
    let [(first, began), (second, escalated)] = &*steps else {
        let is_untold = !is_annotated && steps.len() == 1 && steps[0].0 == "Reboot";
        assert!(is_untold, "{steps:?}");
        return;
    };
    assert_eq!((&**first, &**second), ("Reboot", "Fence"));
    assert!(800 <= *began && began + 300 <= *escalated, "{steps:?}");
}

/// The condition went from Unknown to False, which the leader saw: the outage is the same to it and to the next leader.
#[rstest]
#[case::same_leader(false)]
#[case::next_leader(true)]
fn outage_goes_on_when_its_condition_changes(#[case] restarts: bool) {
    let mut world = World::remediating(two_steps());
    world.set_condition("w1", "Ready", Some("False"), 400);
    world.settle(400);
    if restarts {
        world.restart_leader();
    }
    assert_eq!(created(&mut world, 410, 800), [("Fence".to_owned(), 700)]);
}

/// Nobody saw what was between.
#[test]
fn condition_that_changed_unseen_begins_another_outage() {
    let mut world = World::remediating(two_steps());
    world.set_condition("w1", "Ready", Some("False"), 400);
    world.restart_leader();
    let steps = created(&mut world, 410, 1200);
    assert_eq!(steps, [("Reboot".to_owned(), 700), ("Fence".to_owned(), 1000)]);
}

/// Its remediator is not told before the node has been unhealthy for long enough, and may reboot it at any moment.
#[test]
fn remediator_of_an_earlier_outage_takes_its_slot_until_it_is_told() {
    let check = with(two_steps(), json!({ "maxConcurrentRemediations": 1 }));
    let mut world = second_outage(World::remediating(check), Between::DeleteRefused);
    world.fail("w2", 210);
    assert_eq!(world.settle(510).reason("w2"), HealthReason::ConcurrencyLimitReached);
    assert_eq!(world.holder("node-w1"), Some("NodeHealthCheck-workers"));
    assert_eq!(created(&mut world, 511, 799), []);
    // It goes, and the node that expired first comes first.
    assert_eq!(created(&mut world, 800, 900), [("Reboot".to_owned(), 800)]);
    assert_eq!(world.remediations(), ["Reboot of w2"]);
}

/// By whatever clock the outage is told, what is started in it is of it.
#[rstest]
#[case::stamp_that_is_still_to_come(|w: &mut World| w.change_node("w1", |node| node.conditions[0].last_transition = Some(at(99_999))))]
#[case::stamp_that_is_missing(|w: &mut World| w.change_node("w1", |node| node.conditions[0].last_transition = None))]
#[case::clock_that_steps_back(|w: &mut World| w.snapshot.clock_stepped_by = SignedDuration::from_secs(-3600))]
#[case::clock_that_steps_forward(|w: &mut World| w.snapshot.clock_stepped_by = SignedDuration::from_secs(3600))]
fn remediation_is_of_the_outage_in_which_it_was_started(#[case] change: fn(&mut World)) {
    let mut world = World::workers(5).check("workers", two_steps()).failed("w1", 0);
    world.settle(0);
    change(&mut world);
    let stepped = world.snapshot.clock_stepped_by.as_secs();
    let steps = created(&mut world, stepped + 290, stepped + 700);
    let expected = [
        ("Reboot".to_owned(), stepped + 300),
        ("Fence".to_owned(), stepped + 600),
    ];
    assert_eq!(steps, expected);
}

/// Health that its delay still keeps from counting ends no outage.
#[test]
fn relapse_within_the_delay_is_of_the_same_outage() {
    let mut world = World::remediating(with(two_steps(), json!({ "healthyDelay": "1h" })));
    world.heal("w1", 400);
    world.settle(400);
    world.fail("w1", 500);
    world.settle(500);
    assert_eq!(created(&mut world, 510, 900), [("Fence".to_owned(), 800)]);
}

/// A change that comes after a step has begun is noted for the next leader.
#[test]
fn status_tells_when_the_condition_changed() {
    let noted = |world: &World| world.entry("w1").and_then(|entry| entry.last_transition_time);
    let mut world = World::workers(5).check("workers", two_steps()).failed("w1", 0);
    world.settle(300);
    assert_eq!(noted(&world), None::<Timestamp>);
    world.set_condition("w1", "Ready", Some("False"), 400);
    world.settle(400);
    assert_eq!(noted(&world), Some(at(400)));
    world.heal("w1", 500);
    world.settle(500);
    assert_eq!(noted(&world), None::<Timestamp>);
}

/// Another leader has started the remediation while this process stood still, and it sees the node fail only now. It may have heard
/// of other nodes meanwhile.
#[rstest]
#[case::of_all_nodes(80)]
#[case::of_this_node_alone(0)]
fn remediation_of_another_leader_is_of_an_outage_that_is_seen_late(#[case] silent_for: i64) {
    let mut world = World::remediating(two_steps());
    let memory = &mut world.snapshot.memory;
    *memory = Observations::default();
    memory.found.overdue_stops = Some(BTreeMap::new());
    memory.found.looked_at = Some(at(-10));
    // It looks once more before its watch tells.
    let failed = world.snapshot.nodes.clone();
    world.heal("w1", -10);
    world.snapshot.nodes_silent_for = SignedDuration::from_secs(silent_for);
    let plan = world.plan(309);
    world.remember(&plan);
    world.snapshot.nodes = failed;
    world.snapshot.nodes_silent_for = SignedDuration::ZERO;
    world.change_node("w1", |node| {
        for condition in &mut node.conditions {
            condition.counts_since = at(310);
        }
    });
    assert_eq!(created(&mut world, 310, 700), [("Fence".to_owned(), 610)]);
}
