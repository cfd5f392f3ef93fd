//! What is published.

use super::*;

#[test]
fn restart_publishes_nothing_before_ceph_has_answered() {
    let mut world = World::settled();
    world.ceph = Some(CephState::Connecting);
    assert_eq!(world.plan().actions, []);
    world.ask();
    let fresh_since = world.view.fresh_since.take();
    world.view.is_freshness_known = false;
    assert_eq!(world.plan().actions, [], "statistics are not known to be old yet");
    let mut well = world.clone();
    (well.view.fresh_since, well.view.is_freshness_known) = (fresh_since, true);
    assert_eq!(well.plan().actions, []);
    world.view.is_freshness_known = true;
    world.run();
    assert_eq!(world.state().statistics_fresh_since, None);
}

#[test]
fn restart_publishes_what_has_changed_meanwhile() {
    let mut world = World::settled();
    world.drain(2);
    world.run();
    let published = world.published.clone();
    world.ceph = Some(CephState::Connecting);
    world.run();
    assert_eq!((world.own(), world.published.clone()), (vec!["a", "b", "c"], published));
    world.stop(0, false);
    world.ceph = Some(CephState::Connecting);
    world.run();
    assert_eq!(world.state().down_osds["a"], BTreeSet::from([0]));
    assert_eq!(world.state().exempt_domain, None);
}

#[test]
fn unreadable_state_is_written_anew() {
    let mut world = World::settled();
    world.published.as_mut().unwrap().state = None;
    world.run();
    assert_eq!(world.state().reason, CephReason::AllClean);
}

#[test]
fn field_that_cannot_be_read_is_reported() {
    let mut world = World::settled();
    world.cluster.unreadable = vec!["spec.disruptionManagement.pgHealthyRegex: (".to_owned()];
    world.run();
    assert!(
        world
            .condition(CephCondition::Unreadable)
            .unwrap()
            .contains("pgHealthyRegex")
    );
    assert_eq!(world.state().reason, CephReason::AllClean);
}

#[test]
fn record_of_an_unknown_bucket_is_removed() {
    let mut world = World::settled();
    let record = NooutRecord {
        since: world.now,
        phase: NooutPhase::Set,
        changed: world.now,
    };
    world.state_map.noout.insert("gone".into(), record);
    world.run();
    assert!(world.state_map.noout.is_empty());
}

#[test]
fn gone_node_is_draining() {
    let mut world = World::settled();
    world.drain(2);
    world.osds.get_mut(&2).unwrap().node_state = NodeState::Gone;
    world.run();
    assert_eq!(world.flags(), ["host-2"]);
    assert_eq!(world.verdict().osds["b"].draining, 1);
}

#[test]
fn no_question_rests_on_a_ceph_that_was_never_asked() {
    let mut world = World::new();
    world.ceph = Some(CephState::Connecting);
    world.run();
    assert_eq!(
        (world.state().reason, world.default().0),
        (CephReason::Recovering, 0),
        "created closed"
    );
    world.ceph = Some(CephState::Silent {
        problem: CephProblem {
            kind: CephProblemKind::LibraryMissing,
            message: "no librados".into(),
        },
        since: world.now,
        last: None,
    });
    world.run();
    assert!(
        world
            .condition(CephCondition::CephUnavailable)
            .unwrap()
            .contains("no librados")
    );
}
