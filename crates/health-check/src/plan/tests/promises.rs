//! What is said to end at a time ends then, and what was waiting for that happens: `kubectl nodeward why` and the status promise
//! it.

use nodeward_api::reason::HealthReason as Reason;
use rstest::rstest;
use serde_json::json;

use super::gates::blind_signal;
use super::world::{World, at, chain, name, second_of, two_steps, with};
use crate::plan::Standing;
use crate::snapshot::RemediationFacts;

const REBOOT: &[&str] = &["Reboot of w1"];
const BOTH: &[&str] = &["Fence of w1", "Reboot of w1"];
const TWICE: &[&str] = &["Reboot of w1", "Reboot of w1"];
const NONE: &[&str] = &[];

fn failed(check: serde_json::Value) -> World {
    World::workers(5).check("workers", check).failed("w1", 0)
}

fn running() -> World {
    World::remediating(two_steps())
}

/// A storm, in which one of five was healthy, has just passed.
fn cooling_down() -> World {
    let mut world = failed(json!({ "stormCooldownDuration": "2m" }));
    world.fail_all(["w2", "w3", "w4"], 0);
    world.live(300, 400);
    world.heal_all(["w2", "w3", "w4"], 400);
    world.settle(400);
    world
}

/// A finalizer keeps what was deleted at `since`.
fn kept(mut world: World, since: i64) -> World {
    world.change_remediations(|live| {
        live.deleting = Some(at(since));
        live.finalizers = ["example.org/remediator".into()].into();
    });
    world
}

fn changed(mut world: World, change: impl FnOnce(&mut World)) -> World {
    change(&mut world);
    world
}

/// It was healthy for a moment, and its remediation is kept under the name that the next one needs.
fn waits_for_its_name() -> World {
    let mut world = failed(two_steps()).single();
    world.settle(300);
    world.heal("w1", 400);
    world.change_remediations(|live| live.finalizers = ["example.org/remediator".into()].into());
    world.settle(400);
    world.fail("w1", 500);
    world.live(500, 800);
    world
}

/// In the eyes of another NodeHealthCheck, whose step runs from 60 to 360, the node is healthy, and a finalizer keeps its
/// remediation.
fn remediated_by_another() -> World {
    let full = json!({ "unhealthyConditions": [{ "type": "DiskPressure", "status": "True", "duration": "1m" }] });
    let mut world = World::workers(5)
        .check("workers", json!({}))
        .check("disks", with(chain(&[("Replace", "5m")]), full));
    world.set_condition("w1", "DiskPressure", Some("True"), 0);
    world.settle(60);
    world.set_condition("w1", "DiskPressure", Some("False"), 200);
    world.change_remediations(|live| live.finalizers = ["example.org/remediator".into()].into());
    world.settle(200);
    world.fail("w1", 30);
    world
}

/// Its Node was deleted, and is there again, unhealthy: its first remediation is left.
fn made_again(change: impl Fn(&mut RemediationFacts)) -> World {
    let mut world = running();
    world.change_remediations(change);
    world.remove_node("w1");
    world.add_node("w1", "worker", 391);
    world.fail("w1", 92);
    world.settle(400);
    world
}

#[rstest]
#[case::not_expired(failed(json!({})), 10, Reason::NotExpired, 300, REBOOT)]
#[case::step(running(), 310, Reason::RemediationRunning, 600, BOTH)]
#[case::step_that_is_being_deleted(kept(running(), 350), 360, Reason::RemediationRunning, 600, BOTH)]
#[case::settling(changed(failed(json!({})), |w| w.snapshot.settle_until = Some(at(340))), 310, Reason::Settling, 340, REBOOT)]
#[case::stop_that_has_ended(changed(running(), |w| { w.settle(590); w.restart_leader(); }), 620, Reason::Settling, 680, BOTH)]
#[case::storm(cooling_down(), 410, Reason::StormCooldown, 520, REBOOT)]
#[case::lease(changed(failed(json!({})), |w| w.lease("node-w1", "drainer", 290, 2)), 310, Reason::LeaseTaken, 410, REBOOT)]
#[case::drain(changed(failed(json!({})), |w| w.drain("w1", "Draining", 450)), 310, Reason::UnderMaintenance, 450, REBOOT)]
#[case::repeat(changed(failed(with(json!({}), json!({ "backoff": { "type": "exponential", "initial": "1m", "limit": "4m" } }))), |w| { w.settle(300); w.snapshot.remediations.clear(); }), 310, Reason::BackingOff, 370, REBOOT)]
#[case::chain_that_is_over(changed(failed(with(chain(&[("Reboot", "5m")]), json!({ "backoff": { "type": "exponential", "initial": "1m", "limit": "4m" } }))), |w| { w.live(300, 600); }), 610, Reason::ChainExhausted, 660, REBOOT)]
#[case::healthy_delay(changed(failed(json!({ "healthyDelay": "2m" })), |w| { w.settle(300); w.heal("w1", 400); }), 400, Reason::HealthyDelayed, 520, NONE)]
#[case::name(waits_for_its_name(), 800, Reason::EarlierRemediation, 1100, BOTH)]
#[case::unknown_upgrade(changed(failed(json!({})), blind_signal), 310, Reason::UpgradeSignalUnknown, 910, REBOOT)]
#[case::another_check(remediated_by_another(), 340, Reason::RemediatedByAnotherCheck, 360, &["Reboot of w1", "Replace of w1"])]
#[case::earlier_node_that_was_told(made_again(|live| live.finalizers = ["example.org/remediator".into()].into()), 410, Reason::EarlierRemediation, 460, TWICE)]
#[case::earlier_node_that_is_awaited(made_again(|live| live.node_deletion_expected = true), 410, Reason::EarlierRemediation, 600, REBOOT)]
#[case::refused_write(changed(failed(json!({})), |w| w.snapshot.memory.start_refused((&"workers".into(), &name("w1"), 0), Standing::new(Reason::PermissionMissing, "403"), at(308))), 310, Reason::PermissionMissing, 313, REBOOT)]
#[case::refused_remediation(changed(failed(json!({})), |w| w.snapshot.memory.start_refused((&"workers".into(), &name("w1"), 0), Standing::new(Reason::RemediationRejected, "422"), at(308))), 310, Reason::RemediationRejected, 313, REBOOT)]
fn promise_is_kept(
    #[case] mut world: World,
    #[case] now: i64,
    #[case] reason: Reason,
    #[case] until: i64,
    #[case] then: &[&str],
) {
    let told = |world: &mut World, now: i64| {
        let plan = world.settle(now);
        let node = plan.node("w1");
        assert!(
            node.until.is_none_or(|until| until > at(now)),
            "it has passed: {node:?}"
        );
        assert!(
            plan.requeue_at.map(second_of) <= node.until.map(second_of).or(Some(i64::MAX)),
            "nobody looks then"
        );
        (node.reason, node.until.map(second_of))
    };
    world.policy.safety_pass = jiff::SignedDuration::from_hours(1000);
    assert_eq!(told(&mut world, now), (reason, Some(until)));
    let before = world.remediations();
    assert_eq!(told(&mut world, until - 1), (reason, Some(until)));
    assert_eq!(world.remediations(), before, "nothing happens before");
    let plan = world.settle(until);
    assert_eq!(world.remediations(), then);
    assert!(then != before || plan.reason("w1") != reason, "nothing happens then");
}
