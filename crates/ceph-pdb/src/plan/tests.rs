//! Plans of whole clusters: what the rows and rules of the decision come to in writes.

mod properties;
pub(crate) mod world;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;
use nodeward_api::ceph_state::PublishedDisruptions;
use nodeward_api::reason::{CephCondition, CephReason};
use rstest::rstest;
use serde_json::json;

use self::world::World;
use super::daemon_budgets::{DaemonBudget, Daemons, Limit, MGR_BUDGET, MON_BUDGET};
use super::noout::{NooutPhase, NooutRecord};
use super::{Write, WriteKey};
use crate::budgets::OSD_BUDGET;
use crate::ceph::freshness::Doubt;
use crate::ceph::topology::DomainType;
use crate::plan::budget_steps::Layout;
use crate::snapshot::{
    BudgetFacts, BudgetForm, CephProblem, CephProblemKind, CephState, DefaultBudget, NodeState, OsdObjects, OsdPod,
    RookState,
};

fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

// The rows of the table of states.

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
#[case::not_answered(|world: &mut World| world.view.stop_answers.clear(), Some("b"))]
#[case::started_again(|world: &mut World| (world.view.fresh_since, world.view.doubt) = (None, Doubt::OsdStarted), Some("b"))]
#[case::pool_raised(|world: &mut World| (world.view.fresh_since, world.view.doubt) = (None, Doubt::PoolRaised), None)]
fn exemption_ends_when_it_is_refused(#[case] change: fn(&mut World), #[case] exempt: Option<&str>) {
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

// What is true of an OSD.

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

// When Ceph's word counts.

#[test]
fn old_statistics_exempt_no_domain() {
    let mut world = World::settled();
    world.drain(2);
    world.view.fresh_since = None;
    world.run();
    assert_eq!(world.state().reason, CephReason::StatisticsStale);
    assert_eq!(world.state().exempt_domain, None);
}

#[test]
fn silent_ceph_leaves_open_budgets_and_opens_none() {
    let mut world = World::settled();
    world.silence();
    world.run();
    assert_eq!(world.default().0, 1);
    assert!(
        world
            .condition(CephCondition::CephUnavailable)
            .unwrap()
            .contains("Unreachable")
    );
    world.stop(2, false);
    world.run();
    world.start(2);
    world.silence();
    world.run();
    assert_eq!((world.state().reason, world.default().0), (CephReason::Recovering, 0));
}

#[test]
fn second_domain_down_closes_all() {
    let mut world = World::settled();
    world.drain(2);
    world.may_stop_all(false);
    world.run();
    assert_eq!(world.state().reason, CephReason::SecondDomainDown);
    assert_eq!(world.own(), ["a", "b", "c"]);
    assert!(
        world.plan().questions["ns"].may_stop.contains(&BTreeSet::from([2, 3])),
        "asked again"
    );
}

#[test]
fn unanswered_question_is_asked_and_closes() {
    let mut world = World::settled();
    world.drain(2);
    world.view.stop_answers.clear();
    world.run();
    assert_eq!(world.state().reason, CephReason::AwaitingStopCheck);
    let plan = world.plan();
    assert!(plan.questions["ns"].is_watchful);
    assert!(plan.questions["ns"].may_stop.contains(&BTreeSet::from([2, 3])));
}

#[test]
fn key_that_librados_does_not_know_is_named() {
    let mut world = World::settled();
    world.ceph = Some(CephState::Silent {
        problem: CephProblem::new(CephProblemKind::KeyTypeUnknown, "needs a newer librados"),
        since: world.now,
        last: None,
    });
    world.run();
    for kind in [CephCondition::KeyTypeUnknown, CephCondition::CephUnavailable] {
        assert!(world.condition(kind).unwrap().contains("newer librados"), "{kind:?}");
    }
}

#[test]
fn budget_that_cannot_be_written_is_named_until_it_is() {
    let mut world = World::settled();
    world
        .refused_writes
        .insert(OSD_BUDGET.into(), "a policy denies it".into());
    world.run();
    assert_eq!(
        world.condition(CephCondition::BudgetWriteRefused),
        None,
        "it need not be written"
    );
    world.drain(2);
    let conditions = world.verdict().state.conditions;
    let found = conditions
        .iter()
        .find(|found| found.kind == CephCondition::BudgetWriteRefused);
    assert_eq!(found.unwrap().message, "rook-ceph-osd: a policy denies it");
    world.run();
    assert_eq!(
        world.condition(CephCondition::BudgetWriteRefused),
        None,
        "it is written"
    );
}

#[test]
fn domain_type_that_crush_lacks_is_reported_and_not_taken() {
    let mut world = World::settled();
    world.policy.failure_domain_type = Some("zone".parse().unwrap());
    world.run();
    assert_eq!(world.state().failure_domain_type.as_deref(), Some("rack"));
    assert_eq!(world.default().0, 1);
    let said = world.condition(CephCondition::FailureDomainTypeUnknown).unwrap();
    assert!(said.contains("no zone") && said.contains("rack"), "{said}");
}

#[test]
fn osd_without_deployment_is_up_while_ceph_says_so() {
    let mut world = World::settled();
    world.osds.remove(&2);
    world.run();
    assert_eq!((world.state().reason, world.default().0), (CephReason::AllClean, 1));
    assert_eq!(world.verdict().osds["b"].up, 2);
}

// Pools that cannot lose a host.

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

// Flags.

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

// Time limits.

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

// Taking over and handing back.

fn leftover(form: BudgetForm) -> BudgetFacts {
    BudgetFacts {
        uid: "left".into(),
        resource_version: "1".into(),
        is_deleting: false,
        is_ours: false,
        is_exact: false,
        form: Some(form),
        selects_osds: false,
        selector: "app=x".into(),
    }
}

fn of_rack(domain: &str) -> BudgetForm {
    BudgetForm::OsdsOfDomain {
        max_unavailable: 0,
        domain: (world::rack(), domain.into()),
    }
}

#[test]
fn leftovers_of_rook_are_adopted_in_a_drain() {
    let mut world = World::new();
    for domain in ["a", "c"] {
        world
            .budgets
            .insert(format!("rook-ceph-osd-rack-{domain}").into(), leftover(of_rack(domain)));
    }
    world.flag("b");
    world.state_map.rook = RookState {
        draining_domain: Some("b".into()),
        set_noout: true,
        noout_set_at: [("b".into(), world.now)].into(),
    };
    world.drain(2);
    world.run();
    assert_eq!(world.state().exempt_domain.as_deref(), Some("b"));
    assert_eq!(world.default(), (0, vec!["a", "b", "c"], vec![]));
    assert!(world.budgets.values().all(|budget| budget.is_ours && budget.is_exact));
    assert_eq!(world.flags(), ["host-2"], "the flag of the whole rack was Rook's");
    assert_eq!(world.state_map.rook, RookState::default());
}

#[test]
fn wide_default_of_rook_is_narrowed_to_one() {
    let mut world = World::new();
    let form = BudgetForm::Osds(DefaultBudget {
        max_unavailable: 3,
        except_domains: [].into(),
        except_osds: [].into(),
    });
    world.budgets.insert(OSD_BUDGET.into(), leftover(form));
    world.run();
    assert_eq!(world.default(), (1, vec![], vec![]));
    assert!(world.budgets[OSD_BUDGET].is_ours);
}

#[test]
fn osds_are_protected_beside_a_foreign_budget() {
    let mut world = World::settled();
    let mut foreign = leftover(of_rack("a"));
    foreign.form = None;
    world.budgets.insert(OSD_BUDGET.into(), foreign.clone());
    world.run();
    assert_eq!(world.budgets[OSD_BUDGET], foreign);
    assert!(world.condition(CephCondition::ForeignBudget).unwrap().contains("app=x"));
    let count = |world: &World, osd| world.selected(osd).into_iter().collect::<Vec<_>>();
    assert_eq!(count(&world, 0), [(true, 1)], "one OSD at a time");
    world.drain(2);
    world.run();
    assert_eq!(world.budgets[OSD_BUDGET], foreign);
    assert_eq!((count(&world, 0), count(&world, 3)), (vec![(false, 1)], vec![]));
    // Once it is gone the usual one takes over.
    world.budgets.remove(OSD_BUDGET);
    world.run();
    assert_eq!((count(&world, 0), count(&world, 3)), (vec![(false, 1)], vec![]));
    world.start(2);
    world.clean();
    world.run();
    assert_eq!((world.default(), world.budgets.len()), ((1, vec![], vec![]), 1));
}

#[test]
fn foreign_budget_of_osds_is_reported_under_any_name() {
    let mut world = World::settled();
    world.budgets.insert("my-osds".into(), leftover(of_rack("a")));
    world.run();
    assert!(
        world
            .condition(CephCondition::ForeignBudget)
            .unwrap()
            .contains("my-osds")
    );
    assert!(!world.budgets["my-osds"].is_ours);
    assert_eq!(world.default(), (1, vec![], vec![]));
}

/// Whatever its form: the eviction API answers 500 for a pod that two budgets select.
#[rstest]
#[case::no_form_of_rooks(None)]
#[case::form_of_a_daemon(Some(BudgetForm::Daemon(DaemonBudget { name: "any".to_owned(), selector: ("app", OSD_BUDGET.to_owned()), limit: Limit::MinAvailable(1), evicts_unready: false })))]
fn foreign_budget_is_known_by_what_it_selects(#[case] form: Option<BudgetForm>) {
    let mut world = World::settled();
    let foreign = BudgetFacts {
        form,
        selects_osds: true,
        ..leftover(of_rack("a"))
    };
    world.budgets.insert("any".into(), foreign.clone());
    world.run();
    assert!(world.condition(CephCondition::ForeignBudget).unwrap().contains("any"));
    assert_eq!(world.budgets["any"], foreign, "it is not touched");
}

#[test]
fn budget_somebody_changed_is_mended() {
    let mut world = World::settled();
    let default = world.budgets.get_mut(OSD_BUDGET).unwrap();
    default.form = None;
    world.run();
    assert_eq!(world.default(), (1, vec![], vec![]));
    world.budgets.get_mut(OSD_BUDGET).unwrap().is_exact = false;
    world.run();
    assert!(world.budgets[OSD_BUDGET].is_exact);
}

#[test]
fn domain_is_left_to_the_default_where_its_name_is_taken() {
    let mut world = World::settled();
    let mut foreign = leftover(of_rack("x"));
    foreign.form = None;
    world.budgets.insert("rook-ceph-osd-rack-a".into(), foreign);
    world.drain(2);
    world.run();
    assert_eq!(world.default(), (0, vec!["b", "c"], vec![]));
}

/// A drain is under way: budgets of OSDs stay as they are until Rook has written its own.
#[test]
fn managing_rook_gets_its_budgets_back() {
    let mut world = World::settled();
    several_of_each(&mut world.daemons);
    world.drain(2);
    world.run();
    let of_osds = |world: &World| -> Vec<_> {
        let budgets = world.budgets.iter().filter(|(name, _)| name.starts_with(OSD_BUDGET));
        budgets
            .map(|(name, budget)| (Arc::clone(name), budget.form.clone(), budget.is_ours))
            .collect()
    };
    let before = of_osds(&world);
    world.cluster.is_managed_by_rook = true;
    // It is quicker than we are.
    let rooks = RookState {
        draining_domain: Some("b".into()),
        set_noout: true,
        ..RookState::default()
    };
    world.state_map.rook.clone_from(&rooks);
    world.run();
    assert_eq!(world.state_map.rook, rooks);
    assert_eq!(of_osds(&world), before);
    assert!(!world.budgets[MON_BUDGET].is_ours);
    assert!(world.flags().is_empty() && world.state_map.noout.is_empty());
    assert_eq!(world.state().reason, CephReason::ManagedByRook);
    assert_eq!(
        world.plan().questions["ns"].may_stop,
        [[0, 1].into()].into(),
        "it is checked before the next switch"
    );
    // In the drain it deletes this one, and keeps those of domains that have its names.
    let default = world.budgets.remove(OSD_BUDGET).unwrap();
    world.run();
    assert_eq!(of_osds(&world).len(), before.len() - 1, "no domain is left without one");
    world.start(2);
    let opened = BudgetFacts {
        form: Some(BudgetForm::Osds(DefaultBudget {
            max_unavailable: 1,
            except_domains: [].into(),
            except_osds: [].into(),
        })),
        ..default
    };
    world.budgets.insert(OSD_BUDGET.into(), opened);
    world.run();
    assert_eq!(world.own(), [""; 0]);
    assert_eq!(world.default(), (1, vec![], vec![]), "Rook's, as it has written it");
    assert!(world.budgets.values().all(|budget| !budget.is_ours));
}

/// While Rook manages, what would keep us from taking over is told; nothing is: ready.
#[rstest]
#[case::ready(|_: &mut World| (), None)]
#[case::not_answered(|world: &mut World| world.view.stop_answers.clear(), Some(CephCondition::NotCheckedYet))]
#[case::silent(World::silence, Some(CephCondition::CephUnavailable))]
#[case::no_manager(|world: &mut World| world.view.status.mgrmap.available = false, Some(CephCondition::NoManager))]
#[case::wrong_label(|world: &mut World| world.osds.get_mut(&3).unwrap().locations.clear(), Some(CephCondition::OsdLabelWrong))]
fn cluster_is_checked_before_rook_hands_over(#[case] change: fn(&mut World), #[case] found: Option<CephCondition>) {
    let mut world = World::new();
    world.cluster.is_managed_by_rook = true;
    world.may_stop_all(true);
    change(&mut world);
    world.run();
    assert!(world.budgets.is_empty());
    let conditions: Vec<CephCondition> = world
        .state()
        .conditions
        .iter()
        .map(|condition| condition.kind)
        .collect();
    assert_eq!(conditions.first().copied(), found, "{conditions:?}");
}

#[test]
fn osd_outside_of_any_domain_is_reported() {
    let mut world = World::settled();
    let tree = &mut Arc::make_mut(&mut world.view.map).tree;
    for bucket in &mut tree.nodes {
        bucket.children.retain(|child| *child != 5);
    }
    world.osds.get_mut(&5).unwrap().locations.clear();
    world.run();
    assert_eq!(world.default().0, 1, "the rest works");
    assert_eq!(
        world.condition(CephCondition::OsdOutsideDomains).as_deref(),
        Some("no rack in CRUSH has osd.5")
    );
    world.unclean("active+undersized+degraded");
    assert!(
        world.plan().questions["ns"].may_stop.contains(&BTreeSet::from([5])),
        "it is judged, too"
    );
}

#[test]
fn unready_pod_that_uses_up_the_open_budget_is_reported() {
    let mut world = World::settled();
    world.osds.get_mut(&2).unwrap().is_unready = true;
    world.run();
    assert_eq!(world.condition(CephCondition::OsdNotReady).as_deref(), Some("osd.2"));
    world.drain(0);
    world.run();
    assert_eq!(world.condition(CephCondition::OsdNotReady), None, "nothing is open");
}

/// Names that Rook would not give, and so would never delete: the eviction API would answer 500 for ever.
#[rstest]
#[case::of_another_type("rook-ceph-osd-host-host-0", BudgetForm::OsdsOfDomain { max_unavailable: 0, domain: (DomainType::HOST, "host-0".into()) })]
#[case::hashed("rook-ceph-osd-rack-0123456789abcdef", of_rack("a"))]
#[case::beside_a_foreign_one("rook-ceph-osd-nodeward", BudgetForm::Osds(DefaultBudget { max_unavailable: 1, except_domains: [].into(), except_osds: [].into() }))]
fn budget_that_rook_does_not_know_is_deleted(#[case] name: &str, #[case] form: BudgetForm) {
    let mut world = World::settled();
    let ours = BudgetFacts {
        is_ours: true,
        ..leftover(form)
    };
    world.budgets.insert(name.into(), ours);
    world.cluster.is_managed_by_rook = true;
    world.run();
    assert!(world.budgets.keys().map(|name| &**name).eq([OSD_BUDGET]));
    assert!(!world.budgets[OSD_BUDGET].is_ours);
}

#[test]
fn external_cluster_gets_no_budget() {
    let mut world = World::new();
    world.cluster.is_external = true;
    world.run();
    assert!(world.budgets.is_empty());
    assert_eq!(world.state().reason, CephReason::ExternalCluster);
}

#[test]
fn deleted_cluster_loses_its_flags_and_nothing_else() {
    let mut world = World::settled();
    world.drain(2);
    world.run();
    let before = (world.budgets.clone(), world.published.clone());
    world.cluster.is_deleting = true;
    world.run();
    assert!(world.flags().is_empty() && world.state_map.noout.is_empty());
    assert_eq!((world.budgets, world.published), before);
}

#[test]
fn unknown_namespace_is_left_alone() {
    let world = World::new();
    let mut snapshot = world.snapshot();
    snapshot.unknown.insert("ns".into(), "not listed".into());
    let plan = super::plan(&snapshot, &world.policy, world.now);
    assert!(plan.actions.is_empty() && plan.questions.is_empty() && plan.verdicts.is_empty());
}

// Other daemons.

#[test]
fn daemon_budgets_follow_the_daemons() {
    let mut world = World::settled();
    world.daemons.mons = 3;
    world.daemons.mgrs = Some(2);
    world.daemons.gateways = vec![("store".to_owned(), 3)];
    world.run();
    assert_eq!(world.limit("rook-ceph-rgw-store"), Some(Limit::MinAvailable(2)));
    world.daemons.gateways[0].1 = 5;
    world.view.mons_out_of_quorum = ["c".into()].into();
    world.run();
    assert_eq!(world.limit("rook-ceph-rgw-store"), Some(Limit::MinAvailable(4)));
    assert_eq!(world.limit(MON_BUDGET), Some(Limit::MaxUnavailable(0)));

    world.daemons.gateways.clear();
    world.daemons.unknown = vec!["CephObjectStore".to_owned()];
    world.run();
    assert!(world.limit("rook-ceph-rgw-store").is_some(), "it may exist");
    world.daemons.unknown.clear();
    world.daemons.mgrs = None;
    world.run();
    assert_eq!(world.limit("rook-ceph-rgw-store"), None);
    assert!(!world.budgets[MGR_BUDGET].is_ours, "Rook keeps it");
}

/// With these numbers each daemon has a budget.
fn several_of_each(daemons: &mut Daemons) {
    let named = |name: &str| vec![(name.to_owned(), 2)];
    *daemons = Daemons {
        mons: 3,
        mgrs: Some(2),
        gateways: named("store"),
        metadata_servers: vec![("fs".to_owned(), 1, true)],
        block_mirrors: named("mirror"),
        nfs_servers: named("exports"),
        ..Daemons::default()
    };
}

#[rstest]
#[case::too_few_monitors("rook-ceph-mon-pdb", |all: &mut Daemons| all.mons = 2)]
#[case::one_manager("rook-ceph-mgr-pdb", |all: &mut Daemons| all.mgrs = Some(1))]
#[case::one_gateway("rook-ceph-rgw-store", |all: &mut Daemons| all.gateways[0].1 = 1)]
#[case::no_object_store("rook-ceph-rgw-store", |all: &mut Daemons| all.gateways.clear())]
#[case::no_standby("rook-ceph-mds-fs", |all: &mut Daemons| all.metadata_servers[0].2 = false)]
#[case::no_file_system("rook-ceph-mds-fs", |all: &mut Daemons| all.metadata_servers.clear())]
#[case::one_mirror("rook-ceph-rbd-mirror-pdb", |all: &mut Daemons| all.block_mirrors[0].1 = 1)]
#[case::no_mirrors("rook-ceph-rbd-mirror-pdb", |all: &mut Daemons| all.block_mirrors.clear())]
#[case::one_nfs_server("rook-ceph-nfs-exports", |all: &mut Daemons| all.nfs_servers[0].1 = 1)]
#[case::no_nfs("rook-ceph-nfs-exports", |all: &mut Daemons| all.nfs_servers.clear())]
fn daemon_budget_without_purpose_is_deleted(#[case] name: &str, #[case] change: fn(&mut Daemons)) {
    let mut world = World::settled();
    several_of_each(&mut world.daemons);
    world.run();
    let mut names: BTreeSet<Arc<str>> = world.budgets.keys().cloned().collect();
    assert!(names.remove(name), "{names:?}");
    change(&mut world.daemons);
    world.run();
    assert!(world.budgets.keys().eq(&names), "{name} of {:?}", world.budgets.keys());
}

#[test]
fn silent_ceph_raises_no_monitor_limit() {
    let mut world = World::settled();
    world.daemons.mons = 3;
    world.view.mons_out_of_quorum = ["c".into()].into();
    world.run();
    world.view.mons_out_of_quorum.clear();
    world.silence();
    world.run();
    assert_eq!(world.limit(MON_BUDGET), Some(Limit::MaxUnavailable(0)));
    world.ask();
    world.run();
    assert_eq!(world.limit(MON_BUDGET), Some(Limit::MaxUnavailable(1)));
}

#[test]
fn daemon_budget_of_rook_is_adopted() {
    let mut world = World::new();
    world.daemons.mons = 3;
    world.budgets.insert(
        MON_BUDGET.into(),
        leftover(BudgetForm::Daemon(DaemonBudget {
            name: MON_BUDGET.to_owned(),
            selector: ("app", "rook-ceph-mon".to_owned()),
            limit: Limit::MaxUnavailable(1),
            evicts_unready: false,
        })),
    );
    world.run();
    assert!(world.budgets[MON_BUDGET].is_ours);
}

// What is published.

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
