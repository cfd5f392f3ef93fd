//! Flags.

use super::*;

#[test]
fn noout_ends_with_its_time_and_is_not_set_again() {
    let mut world = World::settled();
    world.drain(2);
    world.run();
    assert_eq!(
        world.plan().requeue_at,
        Some(world.state().noout["host-2"] + minutes(30))
    );
    world.pass(minutes(31));
    world.run();
    assert!(world.flags().is_empty());
    assert_eq!(world.state_map.noout["host-2"].phase, NooutPhase::Over);
    assert!(world.condition(CephCondition::NooutExpired).unwrap().contains("host-2"));
    world.pass(minutes(1));
    world.run();
    assert!(world.flags().is_empty(), "once a drain");
    world.start(2);
    world.run();
    assert!(world.state_map.noout.is_empty());
}

/// A disk has failed long ago: its OSD does not come back with the others of its host.
#[test]
fn osd_that_is_down_for_good_costs_no_later_drain_its_flag() {
    let mut world = World::settled();
    for node in &mut Arc::make_mut(&mut world.view.map).tree.nodes {
        match node.name.as_str() {
            "host-2" => node.children = vec![2, 3],
            "host-3" => node.children = vec![],
            _ => {}
        }
    }
    world.stop(3, false);
    world.dump().osds[3].is_in = false;
    world.mark_down(3);
    world.run();
    assert_eq!(world.state().reason, CephReason::DownOsdsExcluded);
    for _ in 0..2 {
        world.drain(2);
        world.run();
        assert_eq!(world.flags(), ["host-2"]);
        world.start(2);
        world.clean();
        world.run();
        assert!(world.flags().is_empty() && world.state_map.noout.is_empty());
        assert_eq!(world.condition(CephCondition::NooutExpired), None);
    }
}

/// kubectl and the Machine Config Operator uncordon a node when its kubelet is back, which is before its OSDs are.
#[rstest]
#[case::back(true)]
#[case::lost(false)]
fn flag_outlasts_an_uncordon_until_the_osds_are_up(#[case] comes_back: bool) {
    let mut world = World::settled();
    world.drain(2);
    world.run();
    world.osds.get_mut(&2).unwrap().node_state = NodeState::Schedulable;
    world.run();
    assert_eq!(world.flags(), ["host-2"]);
    if comes_back {
        world.start(2);
    } else {
        world.pass(minutes(31));
    }
    world.run();
    assert!(world.flags().is_empty());
}

#[test]
fn flag_that_cannot_be_changed_is_named_until_it_is() {
    let mut world = World::settled();
    let refused = WriteKey::Noout("ns".into());
    world.refused_writes.insert(refused.clone(), "access denied".into());
    world.run();
    assert_eq!(
        world.condition(CephCondition::NooutRefused),
        None,
        "nothing is to be changed"
    );
    world.drain(2);
    let said = |world: &World| {
        let found = world.verdict().state.conditions.into_iter();
        let mut found = found.filter(|found| found.kind == CephCondition::NooutRefused);
        found.next().map(|found| found.message)
    };
    assert_eq!(said(&world).as_deref(), Some("access denied"));
    world.run();
    assert_eq!(said(&world), None, "it is set");
    world.cluster.is_managed_by_rook = true;
    assert_eq!(said(&world).as_deref(), Some("access denied"), "it is to be cleared");
}

#[test]
fn own_maintenance_timeout_counts() {
    let mut world = World::settled();
    world.cluster.osd_maintenance_timeout = Some(minutes(5));
    world.drain(2);
    world.run();
    world.pass(minutes(6));
    world.run();
    assert!(world.flags().is_empty());
}

#[test]
fn flag_of_an_administrator_is_left_alone() {
    let mut world = World::settled();
    world.flag("host-2");
    world.drain(2);
    world.run();
    world.start(2);
    world.clean();
    world.run();
    assert_eq!(world.flags(), ["host-2"]);
}

#[test]
fn record_is_written_before_the_flag() {
    let mut world = World::settled();
    world.drain(2);
    let noout = |world: &World| {
        let plan = world.plan();
        let mut of_noout = plan
            .actions
            .into_iter()
            .filter(|planned| matches!(planned.key(), WriteKey::Noout(_)));
        (of_noout.next().map(|planned| planned.write), of_noout.next())
    };
    let (Some(record @ Write::WriteStateMap { .. }), None) = noout(&world) else {
        panic!("{:?}", world.plan().actions);
    };
    world.apply(&record);
    // What Ceph listed before the record is no reason to act upon it.
    world.now += SignedDuration::from_secs(1);
    world.state_map.noout.get_mut("host-2").unwrap().changed = world.now;
    assert_eq!(noout(&world), (None, None));
    world.ask();
    let (Some(Write::SetNoout { buckets, on: true, .. }), None) = noout(&world) else {
        panic!("{:?}", world.plan().actions);
    };
    assert_eq!(buckets, BTreeSet::from(["host-2".into()]));
}

#[test]
fn flags_wait_for_ceph() {
    let mut world = World::settled();
    world.drain(2);
    world.silence();
    world.run();
    assert!(world.state_map.noout.is_empty());
}
