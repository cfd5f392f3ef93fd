use nodeward_api::reason::HealthReason;
use rstest::rstest;
use serde_json::json;

use super::world::{World, at, chain, with};
use crate::plan::RemediationHistory;

const ANNOTATION: &str = "nodeward.dev/remediations";

fn backing_off() -> World {
    let steps = with(
        chain(&[("Reboot", "2m")]),
        json!({ "backoff": { "type": "exponential" } }),
    );
    World::workers(5).check("workers", steps).failed("w1", 0)
}

fn history(world: &World) -> Option<RemediationHistory> {
    RemediationHistory::of(&world.snapshot.nodes["w1"], at(100_000))
}

#[test]
fn remediation_that_helped_is_counted_once() {
    let mut world = backing_off();
    world.settle(300);
    world.heal("w1", 350);
    world.settle(350);
    assert_eq!(world.remediations(), [""; 0]);
    let expected = RemediationHistory {
        count: 1,
        last_end: at(350),
    };
    assert_eq!(history(&world), Some(expected));
}

#[test]
fn next_first_step_waits_twice_as_long_each_time() {
    let mut world = backing_off();
    world.annotate_node(
        "w1",
        ANNOTATION,
        Some(&format!(r#"{{"count":3,"lastEnd":"{}"}}"#, at(200))),
    );
    let plan = world.settle(300);
    assert_eq!(plan.reason("w1"), HealthReason::BackingOff);
    assert_eq!((plan.node("w1").until, plan.requeue_second()), (Some(at(440)), 360));
    assert_eq!(plan.node("w1").detail, "until 2026-01-01T00:07:20Z");
    assert!(world.status("workers").reason.ends_with("(until 2026-01-01T00:07:20Z)"));
    world.settle(439);
    assert_eq!(world.remediations(), [""; 0]);
    world.settle(440);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn exhausted_chain_begins_anew_once_its_remediations_are_gone() {
    let mut world = backing_off();
    world.settle(300);
    let plan = world.settle(420);
    assert_eq!(plan.reason("w1"), HealthReason::ChainExhausted);
    assert_eq!(plan.node("w1").until, Some(at(480)));
    assert_eq!(
        history(&world).unwrap(),
        RemediationHistory {
            count: 1,
            last_end: at(420)
        }
    );
    // A finalizer keeps the remediation.
    let plan = world.plan(480);
    assert_eq!(plan.deleted(), ["w1"]);
    world.change_remediations(|live| live.deleting = Some(at(301)));
    let plan = world.plan(490);
    assert_eq!(plan.intended("workers"), [""; 0]);
    assert_eq!((plan.started(), plan.deleted()), (vec![], vec![]));
    world.settle(490);
    assert_eq!(world.entry("w1").unwrap().remediations.len(), 1);
    world.snapshot.remediations.clear();
    world.settle(500);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    let records = &world.entry("w1").unwrap().remediations;
    assert_eq!((records.len(), records[0].started), (1, Some(at(500))));
    // The second time it waits for two minutes.
    world.settle(620);
    assert_eq!(
        history(&world).unwrap(),
        RemediationHistory {
            count: 2,
            last_end: at(620)
        }
    );
    world.settle(739);
    assert_eq!(world.snapshot.remediations[0].timed_out, Some(at(620)));
    world.settle(740);
    assert_eq!(world.snapshot.remediations[0].timed_out, None);
}

#[test]
fn next_round_begins_without_any_remediation_of_the_last() {
    let steps = with(
        chain(&[("Reboot", "1m"), ("Fence", "1m")]),
        json!({ "backoff": { "type": "exponential", "initial": "5m" } }),
    );
    let mut world = World::workers(5).check("workers", steps).failed("w1", 0);
    world.live(300, 420);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
    assert_eq!(world.plan(720).deleted(), ["w1"; 2]);
}

#[rstest]
#[case::excluded(|w: &mut World| w.label("w1", "remediation.medik8s.io/exclude-from-remediation", Some("true")), HealthReason::ExcludedByLabel)]
#[case::dry_run(|w: &mut World| w.change_check("workers", |check| check.spec.dry_run = true), HealthReason::ChainExhausted)]
fn next_round_waits_for_what_stops_the_node(#[case] stop: fn(&mut World), #[case] reason: HealthReason) {
    let mut world = backing_off();
    world.live(300, 470);
    stop(&mut world);
    let plan = world.plan(480);
    assert_eq!((plan.reason("w1"), plan.deleted()), (reason, vec![]));
}

#[test]
fn without_backoff_an_exhausted_chain_rests() {
    let mut world = World::workers(5)
        .check("workers", chain(&[("Reboot", "2m")]))
        .failed("w1", 0);
    world.live(300, 20_000);
    assert_eq!(world.snapshot.remediations.len(), 1);
    assert!(world.snapshot.remediations[0].timed_out.is_some());
    assert_eq!(history(&world), None);
}

#[test]
fn history_is_forgotten_after_the_limit_of_health() {
    let mut world = backing_off();
    world.settle(300);
    world.heal("w1", 350);
    world.live(350, 949);
    assert!(history(&world).is_some());
    world.live(949, 950);
    assert_eq!(history(&world), None);
}

#[test]
fn relapse_within_the_limit_keeps_the_history() {
    let mut world = backing_off();
    world.settle(300);
    world.heal("w1", 350);
    world.live(350, 800);
    world.fail("w1", 800);
    world.live(800, 1000);
    assert!(history(&world).is_some());
    world.heal("w1", 1000);
    world.live(1000, 1599);
    assert!(history(&world).is_some(), "health counts anew");
    world.live(1599, 1600);
    assert_eq!(history(&world), None);
}

#[test]
fn history_that_cannot_be_read_counts_as_none() {
    let mut world = backing_off();
    world.annotate_node("w1", ANNOTATION, Some("often"));
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

/// A replica whose clock was a year ahead has written it.
#[test]
fn history_from_the_future_neither_delays_nor_lasts() {
    let mut world = backing_off();
    let ahead = format!(r#"{{"count":1,"lastEnd":"{}"}}"#, at(31_536_000));
    world.annotate_node("w1", ANNOTATION, Some(&ahead));
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.heal("w1", 350);
    world.settle(350);
    let expected = RemediationHistory {
        count: 1,
        last_end: at(350),
    };
    assert_eq!(history(&world), Some(expected));
}

#[test]
fn clock_ahead_of_ours_counts_a_chain_once() {
    let mut world = backing_off();
    world.settle(300);
    // The API server stamps the remediation five minutes ahead.
    world.change_remediations(|live| live.created = at(600));
    world.heal("w1", 350);
    for _ in 0..3 {
        let plan = world.plan(351);
        let annotations = plan
            .actions
            .into_iter()
            .filter(|action| matches!(action, crate::plan::Action::AnnotateNode { .. }));
        for action in annotations.collect::<Vec<_>>() {
            world.act(action, 351);
        }
    }
    assert_eq!(history(&world).unwrap().count, 1);
}
