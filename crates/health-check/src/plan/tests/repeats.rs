//! A chain that begins anew without health between: the first time at once, and each further time later.

use nodeward_api::annotation::REMEDIATIONS;
use nodeward_api::reason::HealthReason;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, at, chain, kind, with};
use crate::plan::Action;
use crate::snapshot::Listed;

fn exhausted(check: Value) -> World {
    let mut world = World::workers(5).check("workers", check).failed("w1", 0);
    world.settle(300);
    world.succeeded("False");
    world.settle(300);
    world
}

/// Whatever is there is deleted at once, by an automation say; when the remediations come.
fn created_while_all_is_deleted(world: &mut World, from: i64, to: i64) -> Vec<i64> {
    let mut created = Vec::new();
    for second in from..=to {
        world.snapshot.remediations.clear();
        world.settle(second);
        if !world.snapshot.remediations.is_empty() {
            created.push(second);
        }
    }
    created
}

#[rstest]
#[case::single_template(json!({}))]
#[case::chain(chain(&[("Reboot", "5m")]))]
fn repeats_come_at_growing_distances(#[case] check: Value) {
    let mut world = exhausted(check);
    let created = created_while_all_is_deleted(&mut world, 310, 3000);
    // A remediation is seen to be gone a second later.
    assert_eq!(created, [310, 371, 492, 733, 1214, 1815, 2416]);
}

#[test]
fn deleting_the_chain_begins_it_anew_at_its_first_step() {
    let mut world = exhausted(chain(&[("Reboot", "5m"), ("Fence", "5m")]));
    world.succeeded("False");
    let plan = world.settle(310);
    assert_eq!(plan.reason("w1"), HealthReason::ChainExhausted);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
    // One of two is not all.
    world.snapshot.remediations.remove(0);
    assert_eq!(world.settle(320).reason("w1"), HealthReason::ChainExhausted);
    world.snapshot.remediations.clear();
    world.settle(330);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(world.entry("w1").unwrap().remediations.len(), 1);
}

#[test]
fn repeat_passes_all_gates() {
    let mut world = exhausted(json!({}));
    world.fail_all(["w2", "w3", "w4"], 320);
    world.snapshot.remediations.clear();
    assert_eq!(world.settle(330).reason("w1"), HealthReason::TooFewHealthy);
    assert_eq!(world.remediations(), [""; 0]);
}

#[test]
fn longer_of_backoff_and_the_delay_of_repeats_counts() {
    let backoff = json!({ "backoff": { "type": "exponential", "initial": "1s", "limit": "2s" } });
    let mut world = exhausted(with(chain(&[("Reboot", "5m")]), backoff));
    let created = created_while_all_is_deleted(&mut world, 310, 500);
    assert_eq!(created, [310, 371, 492]);
}

#[test]
fn ten_minutes_of_health_end_the_row() {
    let mut world = exhausted(json!({}));
    created_while_all_is_deleted(&mut world, 310, 400);
    world.heal("w1", 500);
    world.live(500, 1099);
    assert!(world.node_annotation("w1", "nodeward.dev/remediations").is_some());
    world.live(1099, 1100);
    assert_eq!(world.node_annotation("w1", "nodeward.dev/remediations"), None);
    world.fail("w1", 1200);
    world.settle(1500);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

/// To one NodeHealthCheck the node is healthy: what another one has counted stays.
#[test]
fn history_stays_while_any_check_finds_the_node_unhealthy() {
    let disks = json!({ "unhealthyConditions": [{ "type": "DiskPressure", "status": "True", "duration": "1m" }] });
    let mut world = exhausted(json!({})).check("disks", disks);
    let created = created_while_all_is_deleted(&mut world, 310, 500);
    assert_eq!(created, [310, 371, 492]);
    world.heal("w1", 510);
    world.live(510, 1110);
    assert_eq!(world.node_annotation("w1", "nodeward.dev/remediations"), None);
}

/// Carries out a plan, but for its annotations of nodes.
fn act_uncounted(world: &mut World, second: i64) {
    let plan = world.plan(second);
    world.remember(&plan);
    let others = plan
        .actions
        .into_iter()
        .filter(|action| !matches!(action, Action::AnnotateNode { .. }));
    for action in others {
        world.try_act(action, second);
    }
}

/// The annotation fails while the remediation is deleted.
#[test]
fn what_has_ended_is_known_until_it_is_counted() {
    let mut world = exhausted(json!({}));
    world.heal("w1", 400);
    for second in 400..410 {
        act_uncounted(&mut world, second);
    }
    assert_eq!(world.remediations(), [""; 0]);
    world.settle(410);
    assert!(world.node_annotation("w1", REMEDIATIONS).is_some());
    assert!(world.entry("w1").is_none(), "{:?}", world.entry("w1"));
}

#[rstest]
#[case::gone(World::remediating(json!({})))]
#[case::exhausted(exhausted(json!({})))]
fn repeat_that_may_not_be_counted_waits_and_says_so(#[case] mut world: World) {
    world.snapshot.remediations.clear();
    let refused = (world.snapshot.nodes["w1"].view.uid.as_str().into(), REMEDIATIONS);
    let why = ("denied by the policy".to_owned(), at(1000));
    world.snapshot.memory.unannotated.insert(refused.clone(), why);
    act_uncounted(&mut world, 400);
    let plan = world.plan(401);
    assert_eq!(
        (plan.started(), plan.reason("w1")),
        (vec![], HealthReason::RemediationRejected)
    );
    assert!(
        plan.node("w1").detail.ends_with("denied by the policy"),
        "{:?}",
        plan.node("w1")
    );
    world.snapshot.memory.unannotated.remove(&refused);
    world.settle(402);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

/// Of a remediation that no list shows the status of its NodeHealthCheck tells.
#[test]
fn history_stays_while_any_check_has_an_unlisted_remediation() {
    let disks = json!({ "unhealthyConditions": [{ "type": "DiskPressure", "status": "True", "duration": "1m" }] });
    let mut world = exhausted(json!({})).check("disks", disks);
    world.heal("w1", 400);
    world.annotate_node(
        "w1",
        REMEDIATIONS,
        Some(&format!(r#"{{"count":3,"lastEnd":"{}"}}"#, at(301))),
    );
    world.snapshot.kinds.get_mut(&kind("Reboot")).unwrap().listed = Listed::Forbidden("403".to_owned());
    world.snapshot.remediations.clear();
    let plan = world.plan(2000);
    let forgets = plan
        .actions
        .iter()
        .any(|action| matches!(action, Action::AnnotateNode { .. }));
    assert!(!forgets, "{:?}", plan.actions);
}
