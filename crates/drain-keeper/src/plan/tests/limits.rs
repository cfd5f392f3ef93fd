//! Limits a node and a minute.

use jiff::SignedDuration;
use nodeward_api::reason::BlockerReason;
use nodeward_core::verdict::Next;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, budget, minute, node, pod, second, terminating, upgrade_config, with};
use crate::snapshot::Outcome;

fn pods(count: usize) -> impl Iterator<Item = Value> {
    (0..count).map(|index| pod(&format!("p{index}")))
}

fn on(node: &str) -> Value {
    json!({ "spec": { "nodeName": node } })
}

#[test]
fn forced_pods_stay_within_the_node_limit() {
    let world = World::draining().pods(pods(7));
    let plan = world.at(45);
    assert_eq!(plan.acted(), ["p0", "p1", "p2", "p3", "p4"]);
    for held in ["p5", "p6"] {
        assert_eq!(plan.reason(held), Some(BlockerReason::LimitReached));
        assert!(plan.blocker(held).unwrap().detail.contains("forcedPerNode"));
        assert!(plan.held_back.contains(held));
    }
    assert!(!plan.has_failed());
    assert!(!world.at(10_000).has_failed(), "five are forced only now");
    assert_eq!(
        World::draining()
            .also("limits: {forcedPerNode: 2}")
            .pods(pods(7))
            .at(45)
            .acted()
            .len(),
        2
    );
}

#[test]
fn each_node_has_a_limit_of_its_own() {
    let other = (0..7).map(|index| with(pod(&format!("q{index}")), on("n2")));
    assert_eq!(
        World::draining()
            .node(node("n2"))
            .pods(pods(7))
            .pods(other)
            .at(45)
            .acted()
            .len(),
        10
    );
}

#[rstest]
// Asked for after the first strategy fell due: forced, whoever asked.
#[case::on_their_way(terminating(60, 12), 3)]
// Asked for before: the drain's own pace.
#[case::the_drainers_own(terminating(60, 20), 5)]
// Beyond their grace: stuck, no longer in flight.
#[case::stuck(terminating(49, 3), 5)]
fn pods_on_their_way_out_count(#[case] state: Value, #[case] allowed: usize) {
    let going = (0..2).map(|index| {
        with(
            with(pod(&format!("a{index}")), state.clone()),
            json!({ "spec": { "nodeName": "n1" } }),
        )
    });
    let plan = World::draining().pods(going).pods(pods(7)).at(50);
    let acted = plan.acted().into_iter().filter(|name| name.starts_with('p')).count();
    let stuck = plan.acted().len() - acted;
    assert_eq!(acted + stuck, allowed, "{:?}", plan.acted());
}

/// A drainer's evictions of pods with a grace of an hour take no slot. Whose they are only who led then can tell.
#[rstest]
#[case::while_it_led(Some(40), false, 5)]
#[case::about_when_it_began_to_lead(Some(48), false, 3)]
#[case::before_it_led(Some(49), false, 3)]
#[case::not_led_yet(None, false, 3)]
#[case::tried_by_itself(Some(40), true, 3)]
fn others_long_graces_take_no_slot(#[case] leads_since: Option<i64>, #[case] tried: bool, #[case] allowed: usize) {
    // Asked for at 48, by a clock that may be a minute from ours.
    let going = (0..2).map(|index| with(pod(&format!("a{index}")), terminating(108, 60)));
    let mut world = World::draining().pods(going).pods(pods(7));
    world.memory.leads_since = leads_since.map(minute);
    if tried {
        for name in ["a0", "a1"] {
            world = world.attempted(name, Outcome::Failed("lost".into()), minute(47));
        }
    }
    assert_eq!(world.at(50).acted().len(), allowed);
}

#[test]
fn full_slots_wait_for_the_first_grace() {
    let going = (0..5).map(|index| with(pod(&format!("a{index}")), terminating(60 + index, 10)));
    let plan = World::draining().pods(going).pod(pod("p")).at(52);
    assert_eq!(
        plan.next("p"),
        Next::HeldBack {
            strategy: nodeward_core::strategy::StrategyName::Delete,
            due: minute(45),
            until: Some(minute(60))
        }
    );
    assert_eq!(plan.requeue_at, Some(minute(60)));
}

/// Between the answer and the watch nothing shows that a pod goes.
#[test]
fn forced_pods_count_before_the_watch() {
    let now = minute(45);
    let mut world = World::draining().pods(pods(7));
    for name in ["p0", "p1", "p2", "p3", "p4"] {
        world = world.attempted(name, Outcome::Sent, now);
    }
    assert!(world.plan(now).acted().is_empty());
    // Nothing came of these.
    let mut world = World::draining().pods(pods(7));
    for name in ["p0", "p1", "p2", "p3", "p4"] {
        world = world.attempted(name, Outcome::NotSent, now);
    }
    assert_eq!(world.plan(now).acted(), ["p5", "p6"]);
}

/// `PDBForceDrainTimeout: 0` makes covered pods fall due before the others.
#[test]
fn forced_pods_count_before_the_drain_timeout() {
    let going = (0..5).map(|index| with(pod(&format!("a{index}")), terminating(60, 50)));
    let world = World::openshift()
        .upgrade_configs([upgrade_config(json!({ "spec": { "PDBForceDrainTimeout": 0 } }))])
        .pods(going)
        .pod(with(pod("p"), json!({ "metadata": { "namespace": "other" } })))
        .budget(with(budget("all", 0), json!({ "metadata": { "namespace": "other" } })));
    assert_eq!(world.at(20).reason("p"), Some(BlockerReason::LimitReached));
}

#[test]
fn forced_pods_per_minute_are_limited() {
    let other = (0..3).map(|index| with(pod(&format!("q{index}")), on("n2")));
    let mut world = World::draining().node(node("n2")).pods(pods(3)).pods(other);
    world.memory.acts_left = 4;
    assert_eq!(world.at(45).acted().len(), 4);
    world.memory.acts_left = 0;
    world.memory.next_act_at = Some(second(45 * 60 + 2));
    let plan = world.at(45);
    assert_eq!((plan.acted().len(), plan.requeue_at), (0, Some(second(45 * 60 + 2))));
    assert!(plan.blocker("p0").unwrap().detail.contains("forcedPerMinute"));
}

/// Without a pod that waits for it, the next free act wakes nobody.
#[test]
fn the_minutes_limit_wakes_only_what_it_holds_back() {
    let mut world = World::draining().pod(pod("p"));
    world.memory.next_act_at = Some(second(1));
    assert_eq!(world.plan(minute(0)).requeue_at, Some(minute(45)));
}

#[test]
fn held_back_pod_is_marked_in_action() {
    let mut world = World::draining().pods(pods(6));
    world.memory.held_back = world.at(45).held_back;
    let gone = world.clone();
    let plan = gone.plan(minute(45) + SignedDuration::from_secs(1));
    let late: Vec<bool> = plan.acts().iter().map(|act| act.was_held_back).collect();
    assert_eq!(late, [false; 5]);
    let mut world = World::draining().pod(pod("p5"));
    world.memory.held_back = plan.held_back;
    assert!(world.at(46).acts()[0].was_held_back);
}
