//! What is true of an OSD.

use super::*;

#[test]
fn pod_change_closes_before_ceph_answers() {
    let mut world = World::settled();
    world.stop(2, true);
    let writes = world.plan().actions;
    let closes = |write: &Write| matches!(write, Write::WriteBudget { form: BudgetForm::Osds(default), .. } if default.max_unavailable == 0 && default.except_domains.is_empty());
    assert!(writes.iter().any(|planned| closes(&planned.write)), "{writes:?}");
    world.run();
    assert_eq!(world.state().reason, CephReason::CephNotAsked);
}

#[rstest]
#[case::terminating(OsdPod::Terminating, true)]
#[case::missing(OsdPod::Missing, true)]
#[case::pending(OsdPod::Pending, true)]
#[case::running(OsdPod::Running, false)]
fn osd_is_down_by_its_pod(#[case] pod: OsdPod, #[case] is_down: bool) {
    let mut world = World::settled();
    world.osds.get_mut(&2).unwrap().pod = pod;
    let verdict = world.verdict();
    assert_eq!(verdict.osds["b"].down, i64::from(is_down));
}

/// A kubelet is dead, its OSD runs on, and all is clean: until Ceph or Kubernetes says otherwise nothing is down.
#[rstest]
#[case::runs_on(|_: &mut World| (), false)]
#[case::not_yet(|world: &mut World| world.now -= minutes(1), true)]
#[case::node_is_ready_again(|world: &mut World| world.osds.get_mut(&2).unwrap().abandoned_at = None, true)]
#[case::down_in_ceph(|world: &mut World| world.mark_down(2), true)]
#[case::unclean(|world: &mut World| world.unclean("active+undersized+degraded"), true)]
#[case::stale(|world: &mut World| world.view.fresh_since = None, true)]
fn abandoned_osd_is_up_and_not_evictable(#[case] change: fn(&mut World), #[case] is_down: bool) {
    let mut world = World::settled();
    world.stop(2, false);
    world.osds.get_mut(&2).unwrap().pod = OsdPod::Pending;
    world.pass(minutes(1));
    world.osds.get_mut(&2).unwrap().abandoned_at = Some(world.now);
    change(&mut world);
    world.ask();
    assert_eq!(world.verdict().osds["b"].down, i64::from(is_down));
    if !is_down {
        world.run();
        assert_eq!(
            (world.state().reason, world.default()),
            (CephReason::AllClean, (1, vec![], vec![2]))
        );
        let said = world.condition(CephCondition::OsdPodAbandoned).unwrap();
        assert!(said.contains("osd.2 runs on node node-2"), "{said}");
    }
}

#[test]
fn osd_that_ceph_calls_down_is_down() {
    let mut world = World::settled();
    world.mark_down(2);
    assert_eq!(world.verdict().osds["b"].down, 1);
}

#[test]
fn replaced_osd_is_not_down_and_keeps_its_domain() {
    let mut world = World::settled();
    world.stop(2, false);
    world.mark_down(2);
    world.osds.get_mut(&2).unwrap().is_being_replaced = true;
    let counts = world.verdict().osds["b"];
    assert_eq!((counts.up, counts.down), (2, 0));
}

#[test]
fn decommissioned_osds_are_left_out() {
    let mut world = World::settled();
    world.osds.remove(&2);
    world.mark_down(2);
    world.dump().osds[2].is_in = false;
    world.osds.insert(9, OsdObjects::default());
    world.run();
    let verdict = world.verdict();
    assert_eq!(
        verdict.osds.values().map(|counts| counts.down).sum::<i64>(),
        0,
        "{verdict:?}"
    );
    assert_eq!(verdict.osds["b"].up, 1);
}

#[test]
fn osd_without_deployment_counts_while_ceph_needs_it() {
    let mut world = World::settled();
    world.osds.remove(&2);
    world.mark_down(2);
    assert_eq!(world.verdict().osds["b"].down, 1);
}

#[test]
fn wrong_label_exempts_osds_by_number() {
    let mut world = World::settled();
    world.osds.get_mut(&3).unwrap().locations = [(world::rack(), "a".into())].into();
    world.drain(2);
    world.run();
    assert_eq!(world.state().exempt_domain.as_deref(), Some("b"));
    assert_eq!(world.default(), (0, vec![], vec![2, 3]));
    assert!(world.own().is_empty(), "a domain's own budget would select osd.3");
    assert!(world.condition(CephCondition::OsdLabelWrong).unwrap().contains("osd.3"));
    // The one that is labelled as the exempt domain and lies elsewhere is not exempt.
    world.osds.get_mut(&0).unwrap().locations = [(world::rack(), "b".into())].into();
    world.run();
    assert_eq!(world.default(), (0, vec![], vec![2, 3]));
}

#[test]
fn domain_type_is_crushs_unless_configured() {
    let mut world = World::settled();
    assert_eq!(world.state().failure_domain_type.as_deref(), Some("rack"));
    world.policy.failure_domain_type = Some("host".parse().unwrap());
    world.run();
    assert_eq!(world.state().failure_domain_type.as_deref(), Some("host"));
}

#[test]
fn budgets_of_another_type_are_collected() {
    let mut world = World::settled();
    world.drain(2);
    world.run();
    world.policy.failure_domain_type = Some("host".parse().unwrap());
    for (id, osd) in &mut world.osds {
        osd.locations.insert(DomainType::HOST, format!("host-{id}").into());
    }
    world.may_stop_all(true);
    world.run();
    assert_eq!(world.own(), ["host-0", "host-1", "host-3", "host-4", "host-5"]);
}
