//! Pools that cannot lose a host.

use super::*;

fn with_unsurvivable_pool() -> World {
    let mut world = World::new();
    world.dump().pools[1].min_size = 2;
    world.view.stop_answers = [[0, 1], [2, 3], [4, 5]]
        .map(|ids| (ids.into(), world::loses(&[&format!("2.{}", ids[0])])))
        .into();
    world.run();
    world
}

#[test]
fn unsurvivable_pool_is_left_out_and_named() {
    let mut world = with_unsurvivable_pool();
    assert!(
        world
            .condition(CephCondition::UnsurvivablePools)
            .unwrap()
            .contains("thin")
    );
    assert_eq!(world.default().0, 1);
    let answers = world.view.stop_answers.clone();
    world.drain(2);
    world.view.stop_answers = answers;
    world.run();
    assert_eq!(
        world.state().reason,
        CephReason::DomainDown,
        "the pool counts for nothing"
    );
}

#[test]
fn pool_that_was_changed_counts_again() {
    let mut world = with_unsurvivable_pool();
    world.dump().pools[1].size = 3;
    assert_eq!(world.verdict().state.conditions, []);
    let answers = world.view.stop_answers.clone();
    world.drain(2);
    world.view.stop_answers = answers;
    world.run();
    assert_eq!(world.state().reason, CephReason::SecondDomainDown);
}

#[test]
fn unsurvivable_pool_blocks_where_configured() {
    let mut world = with_unsurvivable_pool();
    world.policy.blocks_on_unsurvivable_pools = true;
    world.run();
    assert_eq!(
        (world.state().reason, world.default().0),
        (CephReason::UnsurvivablePool, 0)
    );
}

/// A disk has died, and with it what a pool with one copy had there. The other OSD of its host goes, and then every other host.
#[rstest]
#[case::left_out(2, "2.0", CephReason::DownOsdsExcluded, None)]
#[case::another_pool_lacks_copies_too(3, "2.0", CephReason::DomainDown, None)]
#[case::another_pool_would_stop(3, "1.0", CephReason::SecondDomainDown, Some("pools data without osd.2, osd.3"))]
fn dead_disk_of_a_pool_with_one_copy_blocks_nothing(
    #[case] unclean: i64,
    #[case] lost: &str,
    #[case] reason: CephReason,
    #[case] refused: Option<&str>,
) {
    let mut world = with_unsurvivable_pool();
    world.stop(2, false);
    world.view.status.pgmap.pgs_by_state = serde_json::from_value(json!([
        {"state_name": "active+clean", "count": 16 - unclean}, {"state_name": "stale+active+clean", "count": unclean},
    ]))
    .unwrap();
    world.view.stop_answers = [([2, 3].into(), world::loses(&[lost]))].into();
    world.mark_down(2);
    assert!(world.plan().questions["ns"].wants_pool_states);
    world.view.pool_states = [(2, [("stale+active+clean".to_owned(), 2)].into())].into();
    world.run();
    assert_eq!(world.state().reason, reason);
    assert_eq!(world.condition(CephCondition::StopCheckRefused).as_deref(), refused);
    assert!(
        world.plan().questions["ns"].wants_pool_states,
        "as long as it rests on that"
    );
}

/// The pool that is left out and another one recover alike, and the first is whole already: how many there are in a state says nothing of
/// whose they are.
#[rstest]
#[case::only_the_one_left_out(&[(2, "active+recovering+degraded", 2)], "active+recovering+degraded", CephReason::AllClean)]
#[case::both(&[(1, "active+recovering+degraded", 1), (2, "active+recovering+degraded", 2)], "active+recovering+degraded", CephReason::Recovering)]
#[case::other_waited(&[(1, "active+recovery_wait+degraded", 1), (2, "active+recovering+degraded", 2)], "active+recovering+degraded", CephReason::Recovering)]
fn pools_that_recover_beside_one_left_out_count(
    #[case] reported: &[(i64, &str, i64)],
    #[case] state: &str,
    #[case] reason: CephReason,
) {
    let mut world = with_unsurvivable_pool();
    world.stop(2, false);
    world.run();
    world.start(2);
    world.view.stop_answers.clear();
    world.view.status.pgmap.pgs_by_state = serde_json::from_value(json!([
        {"state_name": "active+clean", "count": 14}, {"state_name": state, "count": 2},
    ]))
    .unwrap();
    world.ask();
    for (pool, state, count) in reported {
        let of_pool = world.view.pool_states.entry(*pool).or_default();
        of_pool.insert((*state).to_owned(), *count);
    }
    world.run();
    assert_eq!(world.state().reason, reason);
}

/// Whoever asks which domains a node would take with it need not wait for one whose data is complete elsewhere.
#[test]
fn node_has_no_osds_that_nobody_misses() {
    let mut world = World::settled();
    let is_listed = |world: &World| world.state().nodes.contains_key("node-2");
    world.stop(2, false);
    world.unclean("active+undersized+degraded");
    world.mark_down(2);
    world.run();
    assert!(is_listed(&world));
    world.clean();
    world.run();
    assert_eq!(world.state().reason, CephReason::DownOsdsExcluded);
    assert!(!is_listed(&world));
    world.start(2);
    world.run();
    assert!(is_listed(&world));
}

/// A node has died long ago, and its OSDs are out. Another one of another rack fails: its rack is the one that is missed.
#[test]
fn domain_that_is_missed_is_exempt_before_one_that_is_lost() {
    let mut world = World::settled();
    world.stop(0, false);
    world.dump().osds[0].is_in = false;
    world.mark_down(0);
    world.run();
    assert_eq!(world.state().reason, CephReason::DownOsdsExcluded);
    world.stop(2, false);
    world.unclean("active+undersized+degraded");
    world.mark_down(2);
    world.may_stop_all(true);
    world.run();
    assert_eq!(world.state().exempt_domain.as_deref(), Some("b"));
    let nodes = world.state().nodes;
    assert!(
        nodes.contains_key("node-2") && !nodes.contains_key("node-0"),
        "{nodes:?}"
    );
}

/// A dead node's pods go, and its OSDs are still its own: also before Ceph has told a new leader so.
#[test]
fn node_keeps_osds_whose_pods_are_gone() {
    let mut world = World::settled();
    let racks = |world: &World| world.state().nodes.get("node-2").cloned();
    assert_eq!(racks(&world), Some(BTreeSet::from(["b".to_owned()])));
    let osd = world.osds.get_mut(&2).unwrap();
    (osd.pod, osd.node) = (OsdPod::Pending, None);
    world.run();
    assert_eq!(racks(&world), Some(BTreeSet::from(["b".to_owned()])));
    world.osds.get_mut(&2).unwrap().last_node = None;
    world.ceph = Some(CephState::Connecting);
    world.osds.get_mut(&3).unwrap().pod = OsdPod::Missing;
    world.run();
    let state = world.state();
    assert_eq!(state.down_osds["b"], BTreeSet::from([2, 3]), "it is published");
    assert_eq!(racks(&world), Some(BTreeSet::from(["b".to_owned()])));
}

#[test]
fn published_state_names_the_leader_lease() {
    let lease = World::settled().state().leader_lease.unwrap();
    assert_eq!((lease.namespace.as_str(), lease.name.as_str()), ("system", "ceph-pdb"));
}

#[test]
fn published_freshness_is_dated_once() {
    let mut world = World::settled();
    let first = world.state().statistics_fresh_since;
    assert!(first.is_some());
    // Another process has watched for a shorter time.
    world.pass(minutes(5));
    world.view.fresh_since = Some(world.now);
    world.run();
    assert_eq!(world.state().statistics_fresh_since, first);
    world.view.fresh_since = None;
    world.run();
    assert_eq!(world.state().statistics_fresh_since, None);
    world.view.fresh_since = Some(world.now);
    world.run();
    assert_eq!(world.state().statistics_fresh_since, Some(world.now));
}
