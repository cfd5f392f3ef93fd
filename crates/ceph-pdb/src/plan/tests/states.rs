//! The rows of the table of states.

use super::*;

#[test]
fn all_up_and_clean_opens_for_one_osd() {
    let world = World::settled();
    assert_eq!(world.state().reason, CephReason::AllClean);
    assert_eq!(world.default(), (1, vec![], vec![]));
    assert_eq!(world.budgets.len(), 1);
    assert!(world.plan().actions.is_empty(), "nothing is written at rest");
}

#[test]
fn clean_without_down_osds_excludes_them_in_order() {
    let mut world = World::settled();
    for osd in [5, 2] {
        world.stop(osd, false);
        world.mark_down(osd);
    }
    world.run();
    assert_eq!(world.state().reason, CephReason::DownOsdsExcluded);
    assert_eq!(world.default(), (1, vec![], vec![2, 5]));
    assert!(world.state_map.noout.is_empty());
}

#[test]
fn drained_domain_is_exempt_and_gets_noout() {
    let mut world = World::settled();
    world.drain(2);
    world.run();
    let state = world.state();
    assert_eq!(
        (state.reason, state.exempt_domain.as_deref()),
        (CephReason::DomainDown, Some("b"))
    );
    assert_eq!(world.default(), (0, vec!["a", "b", "c"], vec![]));
    assert_eq!(world.own(), ["a", "c"]);
    assert_eq!(world.flags(), ["host-2"]);
    assert_eq!(state.noout.keys().collect::<Vec<_>>(), ["host-2"]);
    assert_eq!(state.down_osds["b"], BTreeSet::from([2]));
}

#[test]
fn failed_osd_closes_around_its_domain_without_noout() {
    let mut world = World::settled();
    world.stop(2, false);
    world.mark_down(2);
    world.unclean("active+undersized+degraded");
    world.may_stop_all(true);
    world.run();
    assert_eq!(world.state().exempt_domain.as_deref(), Some("b"));
    assert!(world.flags().is_empty() && world.state_map.noout.is_empty());
}

#[test]
fn recovering_cluster_stays_closed_around_what_may_go() {
    let mut world = World::settled();
    world.drain(2);
    world.run();
    world.start(2);
    world.run();
    let state = world.state();
    assert_eq!(
        (state.reason, state.exempt_domain.as_deref()),
        (CephReason::Recovering, Some("b"))
    );
    assert!(world.plan().questions["ns"].may_stop.contains(&BTreeSet::from([2, 3])));
    assert!(world.flags().is_empty(), "its OSDs are back");

    world.unclean("active+clean+remapped");
    assert_eq!(world.verdict().state.reason, CephReason::NothingDegraded);
    world.run();
    assert_eq!((world.state().reason, world.default().0), (CephReason::AllUp, 1));
    assert!(world.own().is_empty());
}

/// All OSDs are up, and the domain that was drained lacks copies: it may go again only while the others have them.
#[rstest]
#[case::refused(|world: &mut World| world.may_stop_all(false), None)]
#[case::not_answered(|world: &mut World| world.view.stop_answers.clear(), None)]
#[case::silent(World::silence, None)]
#[case::started_again(|world: &mut World| (world.view.fresh_since, world.view.doubt) = (None, Doubt::OsdStarted), Some("b"))]
fn exemption_ends_with_its_answer(#[case] change: fn(&mut World), #[case] exempt: Option<&str>) {
    let mut world = World::settled();
    world.drain(2);
    world.run();
    world.start(2);
    world.run();
    change(&mut world);
    world.run();
    assert_eq!(world.state().reason, CephReason::Recovering);
    assert_eq!(world.state().exempt_domain.as_deref(), exempt);
}

/// All OSDs are up, and the budget is open.
#[rstest]
#[case::degraded_and_safe("active+recovering+degraded", |_: &mut World| (), true)]
#[case::degraded_and_refused("active+recovering+degraded", |world: &mut World| world.may_stop_all(false), false)]
#[case::degraded_and_not_answered("active+undersized", |world: &mut World| world.view.stop_answers.clear(), false)]
#[case::degraded_and_stale("active+undersized", |world: &mut World| world.view.fresh_since = None, false)]
#[case::inactive_and_refused("peered", |world: &mut World| world.may_stop_all(false), false)]
#[case::moving("active+clean+remapped", |world: &mut World| world.may_stop_all(false), true)]
#[case::moving_and_stale("active+clean+remapped", |world: &mut World| world.view.fresh_since = None, true)]
#[case::stale("active+clean", |world: &mut World| world.view.fresh_since = None, true)]
#[case::pool_raised("active+clean", |world: &mut World| (world.view.fresh_since, world.view.doubt) = (None, Doubt::PoolRaised), false)]
#[case::nobody_watched("active+clean", |world: &mut World| world.lead_next("another"), false)]
#[case::nobody_watched_and_nothing_happened("active+clean", |world: &mut World| world.lead_next("basis"), true)]
#[case::osd_started("active+clean", |world: &mut World| (world.view.fresh_since, world.view.doubt) = (None, Doubt::OsdStarted), false)]
fn open_budget_is_judged_too(#[case] pgs: &str, #[case] change: fn(&mut World), #[case] stays_open: bool) {
    let mut world = World::settled();
    world.unclean(pgs);
    change(&mut world);
    world.run();
    assert_eq!(world.default().0, i32::from(stays_open));
    let reason = if stays_open {
        CephReason::AllUp
    } else {
        CephReason::Recovering
    };
    assert_eq!((world.state().reason, world.state().exempt_domain), (reason, None));
}

#[test]
fn witnesses_that_disagree_are_reported() {
    let mut world = World::settled();
    world.drain(2);
    let answer = world.view.stop_answers.get_mut(&BTreeSet::from([2, 3])).unwrap();
    answer.ceph.lost.clear();
    answer.own.lost.insert("1.0".to_owned());
    world.run();
    assert_eq!(
        world.state().reason,
        CephReason::SecondDomainDown,
        "the stricter one holds"
    );
    let said = world.condition(CephCondition::StopCheckDisagrees).unwrap();
    assert!(said.contains("osd.2, osd.3") && said.contains("1.0"), "{said}");
    world.may_stop_all(false);
    world.run();
    assert_eq!(world.condition(CephCondition::StopCheckDisagrees), None);
}

#[test]
fn missing_manager_is_reported() {
    let mut world = World::settled();
    world.view.status.mgrmap.available = false;
    world.view.fresh_since = None;
    world.run();
    assert!(world.condition(CephCondition::NoManager).is_some());
    assert_eq!(world.default().0, 1, "nothing has happened since");
    world.drain(2);
    world.run();
    assert_eq!(world.state().reason, CephReason::StatisticsStale);
    world.view.status.mgrmap.available = true;
    world.run();
    assert_eq!(world.condition(CephCondition::NoManager), None);
}

/// What is published is what budgets allow: also where the write of one is refused.
#[test]
fn decision_is_published_as_closed_once_the_budget_is() {
    let mut world = World::settled();
    world.stop(2, true);
    let state = world.verdict().state;
    assert_eq!(
        (state.disruptions, state.reason),
        (PublishedDisruptions::Closing, CephReason::CephNotAsked)
    );
    world.run();
    assert_eq!(world.state().disruptions, PublishedDisruptions::Closed);
    // Another domain takes the place of the exempt one.
    world.drain(2);
    world.run();
    world.may_stop_all(false);
    assert_eq!(world.verdict().state.disruptions, PublishedDisruptions::Closing);
    world.run();
    assert_eq!(world.state().disruptions, PublishedDisruptions::Closed);
}

#[test]
fn single_layout_closes_with_one_write() {
    let mut world = World::settled();
    world.policy.layout = Layout::Single;
    world.drain(2);
    world.run();
    assert_eq!(world.default(), (0, vec!["b"], vec![]));
    assert!(world.own().is_empty());
}
