//! Timeouts.

use super::*;

#[test]
fn health_check_timeout_survives_a_restart() {
    let mut world = World::settled();
    world.cluster.pg_health_check_timeout = Some(minutes(10));
    world.drain(2);
    world.run();
    world.start(2);
    world.run();
    let (since, closed_since) = (world.state().recovering_since.unwrap(), world.state().since);
    world.pass(minutes(9));
    world.run();
    assert_eq!(
        (world.state().recovering_since, world.state().since),
        (Some(since), closed_since)
    );
    assert_eq!(world.state().reason, CephReason::Recovering);
    assert_eq!(world.plan().requeue_at, Some(since + minutes(10)));
    world.pass(minutes(1));
    let answers = std::mem::take(&mut world.view.stop_answers);
    assert_eq!(world.plan().questions["ns"].may_stop.len(), 3, "asked only now");
    let conditions = world.verdict().state.conditions;
    assert!(conditions.is_empty(), "{conditions:?}");
    world.view.stop_answers = answers;
    world.run();
    assert_eq!((world.state().reason, world.default().0), (CephReason::AllUp, 1));
}

#[rstest]
#[case::inactive("undersized+peered", true)]
#[case::refused("active+undersized", false)]
fn health_check_timeout_is_ignored_where_data_is_at_risk(#[case] state: &str, #[case] may_stop: bool) {
    let mut world = World::settled();
    world.cluster.pg_health_check_timeout = Some(minutes(10));
    world.drain(2);
    world.run();
    world.start(2);
    world.unclean(state);
    world.may_stop_all(may_stop);
    world.run();
    world.pass(minutes(11));
    world.run();
    assert_eq!(world.state().disruptions, PublishedDisruptions::Closed);
    assert!(world.condition(CephCondition::HealthCheckTimeoutIgnored).is_some());
}

#[rstest]
#[case::no_domain_left(3, None, Some("too few for pools data"))]
#[case::flag(2, Some("norecover"), Some("norecover"))]
#[case::may_heal(2, None, None)]
fn cluster_that_cannot_heal_says_so(#[case] size: i64, #[case] flag: Option<&str>, #[case] expected: Option<&str>) {
    let mut world = World::settled();
    for pool in &mut world.dump().pools {
        pool.size = size;
    }
    world.dump().flags_set.extend(flag.map(str::to_owned));
    for osd in [2, 3] {
        world.stop(osd, false);
        world.mark_down(osd);
    }
    world.unclean("active+undersized");
    world.run();
    let found = world.condition(CephCondition::CannotHeal);
    assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
    assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()));
}
