//! What a pass decides of the nodes that it looks at is what it would decide of all.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::world::{World, at};
use crate::plan::expiry::{Health, is_plainly_healthy, judge};
use crate::snapshot::NodeFacts;
use nodeward_core::id::NodeName;
use nodeward_core::node_health_check::UnhealthyCondition;

const TYPES: [&str; 3] = ["Ready", "DiskPressure", "KernelDeadlock"];
const STATUSES: [&str; 3] = ["True", "False", "Unknown"];

/// A condition of some node: its position, type and status, and since when.
type Change = (usize, &'static str, Option<&'static str>, i64);

fn change() -> impl Strategy<Value = Change> {
    let status = prop::option::of(select(&STATUSES[..]));
    (0_usize..6, select(&TYPES[..]), status, -600_i64..600)
}

fn unhealthy() -> impl Strategy<Value = Value> {
    let status = select(&["True", "False", "Unknown", "Missing"][..]);
    (select(&TYPES[..]), status, 0_i64..600).prop_map(
        |(type_, status, seconds)| json!({ "type": type_, "status": status, "duration": format!("{seconds}s") }),
    )
}

fn judged(node: &NodeFacts, conditions: &[UnhealthyCondition], second: i64) -> Health {
    let absent_since = |_: &Arc<str>| at(second).max(node.created);
    judge(node, conditions, false, absent_since, at(second).into())
}

/// The nodes of the verdicts are those that are not healthy, and the others are counted healthy.
fn assert_all_are_told(world: &World, second: i64) {
    let plan = world.plan(second);
    let conditions = &world.snapshot.checks["workers"].spec.conditions;
    let nodes = world.snapshot.nodes.values();
    let is_healthy = |node: &NodeFacts| judged(node, conditions, second) == Health::Healthy;
    let expected: BTreeSet<NodeName> = nodes
        .filter(|node| !is_healthy(node))
        .map(|node| node.view.name.clone())
        .collect();
    let told = plan.verdicts.nodes.iter().map(|verdict| verdict.node.clone());
    assert_eq!(told.collect::<BTreeSet<_>>(), expected);
    assert_eq!(plan.counts("workers"), (6 - expected.len(), 6));
}

proptest! {
    #[test]
    fn every_node_counts_as_it_is_judged(
        before in prop::collection::vec(change(), 0..8),
        after in prop::collection::vec(change(), 0..3),
        first in prop::collection::vec(unhealthy(), 1..3),
        second in prop::collection::vec(unhealthy(), 1..3),
    ) {
        let mut world = World::workers(6).check("workers", json!({ "unhealthyConditions": first }));
        let happen = |world: &mut World, changes: Vec<Change>, now| {
            for (position, type_, status, since) in changes {
                world.set_condition(&format!("w{}", position + 1), type_, status, since);
            }
            assert_all_are_told(world, now);
        };
        happen(&mut world, before, 600);
        assert_all_are_told(&world, 900);
        world.set_check("workers", json!({ "unhealthyConditions": second }));
        assert_all_are_told(&world, 900);
        happen(&mut world, after, 901);
    }

    #[test]
    fn plainly_healthy_is_healthy_at_any_time(
        changes in prop::collection::vec(change(), 0..6),
        conditions in prop::collection::vec(unhealthy(), 1..4),
        second in -1000_i64..1000,
    ) {
        let mut world = World::workers(1).check("workers", json!({ "unhealthyConditions": conditions }));
        for (_, type_, status, since) in changes {
            world.set_condition("w1", type_, status, since);
        }
        let (node, spec) = (&world.snapshot.nodes["w1"], &world.snapshot.checks["workers"].spec);
        let is_healthy = judged(node, &spec.conditions, second) == Health::Healthy;
        prop_assert_eq!(is_plainly_healthy(node, &spec.conditions), is_healthy);
    }
}
