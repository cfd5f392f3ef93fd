//! Remediations that the status names and whose kind cannot be listed.

use std::sync::Arc;

use nodeward_api::reason::HealthReason;
use rstest::rstest;
use serde_json::json;

use super::world::{World, at, chain, kind, with};
use crate::snapshot::Listed;

/// `w1` is rebooted at 300, and then its remediation's kind cannot be listed any more.
fn unlisted() -> (World, Arc<str>) {
    let mut world = World::workers(5)
        .check("workers", chain(&[("Reboot", "5m"), ("Fence", "5m")]))
        .failed("w1", 0);
    world.settle(300);
    let uid = Arc::clone(&world.snapshot.remediations[0].uid);
    world.snapshot.remediations.clear();
    let known = world.snapshot.kinds.get_mut(&kind("Reboot")).unwrap();
    known.listed = Listed::Forbidden("403".to_owned());
    (world, uid)
}

fn time_out(world: &mut World) {
    world.change_check("workers", |check| {
        Arc::make_mut(&mut check.status).unhealthy_nodes[0].remediations[0].timed_out = Some(at(600));
    });
}

#[rstest]
#[case::healed(|w: &mut World| w.heal("w1", 400), 401)]
#[case::healed_after_its_step(|w: &mut World| { time_out(w); w.heal("w1", 700); }, 701)]
#[case::gone_for_longer_than_its_step(|w: &mut World| w.remove_node("w1"), 600)]
fn unlisted_remediation_ends_with_its_delete(#[case] changed: fn(&mut World), #[case] second: i64) {
    let (mut world, uid) = unlisted();
    changed(&mut world);
    for _ in 0..2 {
        let plan = world.plan(second);
        assert_eq!(plan.deleted(), ["w1"], "it is tried until it is known to be gone");
        let warnings = plan.verdicts.warnings.iter();
        let told: Vec<_> = warnings.filter(|warning| warning.key.starts_with("list/")).collect();
        assert_eq!(told.len(), 1);
        assert!(told[0].text.contains("403"), "{}", told[0].text);
    }
    world.snapshot.memory.gone.insert(uid);
    let plan = world.settle(second + 1);
    assert_eq!(plan.deleted(), [""; 0]);
    assert!(world.entry("w1").is_none(), "{:?}", world.entry("w1"));
    assert!(world.snapshot.leases.is_empty());
}

/// Its template has left the chain.
#[test]
fn unlisted_remediation_is_deleted_before_the_next_round() {
    let (mut world, _) = unlisted();
    time_out(&mut world);
    let backoff = json!({ "backoff": { "type": "exponential", "initial": "5m" } });
    world.set_check("workers", with(chain(&[("Fence", "5m")]), backoff));
    world.live(600, 900);
    assert_eq!(world.plan(1200).deleted(), ["w1"; 2]);
}

#[test]
fn unlisted_remediation_of_a_gone_node_has_its_steps_time() {
    let (mut world, _) = unlisted();
    world.remove_node("w1");
    let plan = world.plan(599);
    assert_eq!((plan.deleted(), plan.requeue_second()), (vec![], 600));
    assert_eq!(plan.reason("w1"), HealthReason::ReplacementExpected);
}
