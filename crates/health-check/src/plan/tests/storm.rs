use nodeward_api::reason::{HealthEvent, HealthReason};
use serde_json::json;

use super::world::World;
use crate::plan::{Action, Plan};

/// Of five workers two may be unhealthy; the cooldown is a minute.
fn stormy() -> World {
    World::workers(5).check("workers", json!({ "maxUnhealthy": 2, "stormCooldownDuration": "1m" }))
}

fn conditions(world: &World) -> (&str, &str) {
    let status = |type_: &str| {
        let mut conditions = world.status("workers").conditions.iter();
        conditions
            .find(|condition| condition.type_ == type_)
            .map_or("", |condition| &*condition.status)
    };
    (status("StormActive"), status("StormCooldownActive"))
}

fn storm_events(plan: &Plan) -> Vec<HealthEvent> {
    let announced = plan.actions.iter().flat_map(|action| match action {
        Action::WriteStatus(write) => write.announcements.clone(),
        _ => Vec::new(),
    });
    let is_of_a_storm = |event: &HealthEvent| event.as_str().starts_with("Storm");
    announced
        .map(|announcement| announcement.event)
        .filter(is_of_a_storm)
        .collect()
}

/// With three workers unhealthy since 0, of which the first two are due at 300 and found too many.
fn in_a_storm() -> World {
    let mut world = stormy();
    world.fail_all(["w1", "w2", "w3"], 0);
    let plan = world.plan(300);
    assert_eq!(storm_events(&plan), [HealthEvent::StormRecoveryStarted]);
    world.apply(plan, 300);
    world.settle(300);
    assert_eq!(conditions(&world), ("True", "False"));
    world
}

#[test]
fn storm_begins_when_an_expired_node_is_refused() {
    let mut world = stormy();
    world.fail_all(["w1", "w2", "w3"], 0);
    world.settle(299);
    assert_eq!(conditions(&world), ("False", "False"), "none is expired yet");
    in_a_storm();
}

#[test]
fn storm_ends_after_its_cooldown() {
    let mut world = in_a_storm();
    world.heal("w3", 400);
    let plan = world.plan(400);
    assert_eq!(storm_events(&plan), [HealthEvent::StormRecoveryCooldownStarted]);
    let plan = world.settle(400);
    assert_eq!(conditions(&world), ("True", "True"));
    assert_eq!(plan.reason("w1"), HealthReason::StormCooldown);
    assert_eq!(plan.requeue_second(), 460);
    world.settle(459);
    assert_eq!(world.remediations(), [""; 0]);
    assert_eq!(storm_events(&world.plan(460)), [HealthEvent::StormRecoveryEnded]);
    world.settle(460);
    assert_eq!(conditions(&world), ("False", "False"));
    assert_eq!(world.remediations(), ["Reboot of w1", "Reboot of w2"]);
}

#[test]
fn falling_below_again_clears_the_cooldown() {
    let mut world = in_a_storm();
    world.heal("w3", 400);
    world.settle(400);
    world.fail("w4", 430);
    world.settle(430);
    assert_eq!(conditions(&world), ("True", "False"));
    world.heal("w4", 440);
    assert_eq!(world.settle(440).requeue_second(), 500, "it counts anew");
    world.settle(499);
    assert_eq!(conditions(&world), ("True", "True"));
    world.settle(500);
    assert_eq!(conditions(&world), ("False", "False"));
}

#[test]
fn storm_ends_when_all_recover_and_none_is_left() {
    let mut world = in_a_storm();
    world.heal_all(["w1", "w2", "w3"], 400);
    world.live(400, 459);
    assert_eq!(conditions(&world), ("True", "True"));
    world.live(459, 460);
    assert_eq!(conditions(&world), ("False", "False"));
}

#[test]
fn second_storm_is_one_of_its_own() {
    let mut world = in_a_storm();
    world.heal("w3", 400);
    world.live(400, 470);
    assert_eq!(conditions(&world), ("False", "False"));
    world.fail_all(["w3", "w4"], 500);
    world.settle(800);
    assert_eq!(conditions(&world), ("True", "False"));
    assert_eq!(world.remediations(), ["Reboot of w1", "Reboot of w2"]);
}

#[test]
fn what_has_begun_is_cleaned_up_in_a_storm_and_goes_no_further() {
    let steps = super::world::chain(&[("Reboot", "5m"), ("Fence", "5m")]);
    let check = super::world::with(steps, json!({ "maxUnhealthy": 2, "stormCooldownDuration": "1m" }));
    let mut world = World::workers(5).check("workers", check).failed("w1", 0);
    world.settle(300);
    world.fail_all(["w2", "w3"], 590);
    let plan = world.settle(600);
    assert_eq!(plan.reason("w1"), HealthReason::TooFewHealthy);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(conditions(&world), ("False", "False"), "no first step was refused");
    world.heal("w1", 650);
    world.settle(650);
    assert_eq!(world.remediations(), [""; 0]);
}

#[test]
fn without_a_cooldown_there_are_no_storm_conditions() {
    let mut world = in_a_storm();
    world.set_check("workers", json!({ "maxUnhealthy": 2 }));
    world.settle(310);
    assert_eq!(conditions(&world), ("", ""));
    world.heal("w3", 320);
    world.settle(320);
    assert_eq!(world.remediations(), ["Reboot of w1", "Reboot of w2"]);
}

#[test]
fn unusable_threshold_is_no_storm() {
    let check = json!({ "maxUnhealthy": 9, "stormCooldownDuration": "1m" });
    let mut world = World::workers(5).check("workers", check).failed("w1", 0);
    world.settle(300);
    assert_eq!(conditions(&world), ("False", "False"));
    assert_eq!(world.remediations(), [""; 0]);
}
