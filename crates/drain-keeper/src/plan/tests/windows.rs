//! Maintenance windows: what would begin waits for one, and what was begun goes on.

use nodeward_api::reason::BlockerReason;
use nodeward_core::hold::Holder;
use nodeward_core::strategy::StrategyName;
use nodeward_core::verdict::Next;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, budget, finalizers, minute, pod, terminating, with};
use crate::snapshot::Outcome;

/// Open from minute 120 to minute 240 after the start, and a day later again.
const WINDOWS: &str = "windows: [{ from: '02:00', to: '04:00' }]";

fn world() -> World {
    World::draining().also(WINDOWS)
}

fn waits(strategy: StrategyName, due: i64) -> Next {
    Next::HeldBack {
        strategy,
        due: minute(due),
        until: Some(minute(120)),
    }
}

/// Its delete was asked for before the start.
fn stuck() -> Value {
    with(pod("p"), terminating(1, 2))
}

#[rstest]
#[case::eviction(world().pod(pod("p")), StrategyName::Delete, 45)]
#[case::override_of_a_budget(world().pod(pod("p")).budget(budget("web", 0)), StrategyName::PdbDelete, 68)]
#[case::stuck_after_a_delete_by_others(world().pod(stuck()), StrategyName::StuckTerminating, 45)]
#[case::finalizer_after_a_delete_by_others(
    world().pod(with(stuck(), finalizers(&["a.io/x"]))), StrategyName::Finalizer, 45
)]
#[case::drain_by_others_that_was_begun(
    world().pod(pod("p")).node_drain_with("Draining", json!({ "spec": { "evict": "Requester" } })), StrategyName::Delete, 45
)]
#[case::another_drain_that_was_begun_by_drain_lock(
    world().pod(pod("p")).node_drain_with("Draining", json!({ "spec": { "nodeUID": "older" } })), StrategyName::Delete, 45
)]
fn what_is_due_waits_for_the_window(#[case] world: World, #[case] strategy: StrategyName, #[case] due: i64) {
    let before = world.at(due);
    assert_eq!(before.acted().len(), 0);
    assert_eq!(before.reason("p"), Some(BlockerReason::WaitsForWindow));
    assert_eq!(before.next("p"), waits(strategy, due));
    assert!(before.held_back.contains("p"));
    let long_due = world.at(119);
    assert_eq!((long_due.requeue_at, long_due.has_failed()), (Some(minute(120)), false));
    assert_eq!(world.at(120).strategy(), Some(strategy));
    assert_eq!(world.at(240).acted().len(), 0, "it has closed");
}

fn overridden() -> Value {
    let record = json!({
        "at": minute(-2).to_string(), "pod": "p", "uid": "p", "strategy": "PdbDelete", "replica": "r", "signal": "always",
    });
    with(
        budget("web", 0),
        json!({ "metadata": { "annotations": { "nodeward.dev/last-override": record.to_string() } } }),
    )
}

fn evicted_by_us() -> World {
    let mut world = world().pod(stuck()).attempted("p", Outcome::Sent, minute(-2));
    world.memory.attempts.get_mut("p").unwrap().asked_at = Some(minute(-2));
    world
}

#[rstest]
#[case::evicted_by_us(evicted_by_us(), StrategyName::StuckTerminating, 45)]
#[case::overridden_by_whoever_led(world().pod(stuck()).budget(overridden()), StrategyName::PdbStuckTerminating, 68)]
#[case::drain_of_ours(world().pod(pod("p")).node_drain("Draining"), StrategyName::Delete, 45)]
#[case::emergency(
    world().pod(pod("p")).node_drain_with("Draining", json!({ "spec": { "evict": "Requester", "ignoreWindows": true } })),
    StrategyName::Delete, 45
)]
fn what_was_begun_goes_on_outside(#[case] world: World, #[case] strategy: StrategyName, #[case] due: i64) {
    assert_eq!(
        (world.at(due - 1).strategy(), world.at(due).strategy()),
        (None, Some(strategy))
    );
}

/// The clock goes on, and a deadline outside is none.
#[rstest]
#[case::outside("02:00", "04:00", 120, "no maintenance window is open at 2026-01-01T00:45:00Z")]
#[case::within("00:30", "04:00", 45, "")]
#[case::open_now_and_closed_by_then("23:00", "00:30", 23 * 60, "no maintenance window is open at 2026-01-01T00:45:00Z")]
fn what_is_said_before_is_what_will_be(#[case] from: &str, #[case] to: &str, #[case] acts: i64, #[case] detail: &str) {
    let world = World::draining()
        .also(&format!("windows: [{{ from: '{from}', to: '{to}' }}]"))
        .pod(pod("p"));
    let plan = world.at(10);
    let (strategy, due) = (StrategyName::Delete, minute(acts));
    assert_eq!(plan.next("p"), Next::At { strategy, due });
    assert_eq!(plan.reason("p"), Some(BlockerReason::AwaitingEviction));
    assert_eq!(plan.blocker("p").unwrap().detail, detail);
    assert_eq!(world.at(acts).acted(), ["p"]);
}

#[test]
fn hold_and_window_must_both_permit() {
    let world = world().pod(pod("p")).budget(budget("web", 1));
    let held = world
        .clone()
        .held("web", Holder::Owner("alice".to_owned()), Some(minute(100)));
    assert_eq!(held.at(90).next("p"), waits(StrategyName::PdbDelete, 68));
    assert_eq!(held.at(90).reason("p"), Some(BlockerReason::BudgetHeld));
    assert_eq!(held.at(101).reason("p"), Some(BlockerReason::WaitsForWindow));
    let longer = world.held("web", Holder::Owner("alice".to_owned()), Some(minute(130)));
    assert_eq!((longer.at(125).acted().len(), longer.at(130).acted()), (0, vec!["p"]));
}

#[test]
fn node_is_looked_at_again_when_the_window_closes() {
    let world = world().pod(with(
        pod("p"),
        json!({ "metadata": { "labels": { "nodeward.dev/drain": "wait-completed" } } }),
    ));
    assert_eq!(world.at(130).requeue_at, Some(minute(240)));
}
