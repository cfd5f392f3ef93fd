use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rstest::rstest;

use nodeward_api::reason::CephReason;

use super::{CephFacts, Decision, Disruptions, OsdFacts, PgHealth, decide};
use crate::ceph::OsdId;
use crate::ceph::freshness::Doubt;

/// Two OSDs in each of three racks: 0 and 1 in `a`, 2 and 3 in `b`, 4 and 5 in `c`; each on a host of its own.
fn osds(down: &[OsdId], draining: &[OsdId]) -> BTreeMap<OsdId, OsdFacts> {
    let facts = |id: OsdId| OsdFacts {
        domain: Some(["a", "b", "c"][usize::try_from(id / 2).unwrap()].into()),
        host: Some(format!("host-{id}").as_str().into()),
        node: Some(format!("node-{id}").as_str().into()),
        is_down: down.contains(&id),
        is_up_in_ceph: !down.contains(&id),
        is_in: true,
        is_draining: draining.contains(&id),
        is_abandoned: false,
    };
    (0..6).map(|id| (id, facts(id))).collect()
}

fn together(ids: &[OsdId]) -> BTreeSet<OsdId> {
    ids.iter().copied().collect()
}

fn unclean() -> CephFacts {
    CephFacts {
        is_current: true,
        is_fresh: true,
        pgs: PgHealth::Degraded,
        ..CephFacts::default()
    }
}

fn clean() -> CephFacts {
    CephFacts {
        is_current: true,
        is_fresh: true,
        pgs: PgHealth::Clean,
        ..CephFacts::default()
    }
}

fn answered(facts: CephFacts, answers: &[(&[OsdId], bool)]) -> CephFacts {
    let safe_together = answers.iter().map(|(ids, safe)| (together(ids), *safe)).collect();
    CephFacts { safe_together, ..facts }
}

const OPEN: Disruptions = Disruptions::Open {
    excluded: BTreeSet::new(),
};

fn closed(exempt: &[OsdId]) -> Disruptions {
    Disruptions::Closed {
        exempt: together(exempt),
    }
}

fn is_closed(exempt: &[OsdId], reason: CephReason) -> (Disruptions, CephReason) {
    (closed(exempt), reason)
}

fn is_open(excluded: &[OsdId], reason: CephReason) -> (Disruptions, CephReason) {
    let excluded = together(excluded);
    (Disruptions::Open { excluded }, reason)
}

fn disruptions(
    osds: &BTreeMap<OsdId, OsdFacts>,
    ceph: impl Into<Option<CephFacts>>,
    current: &Disruptions,
) -> (Disruptions, CephReason) {
    result(decide(osds, ceph.into().as_ref(), current, false))
}

fn result(decision: Decision) -> (Disruptions, CephReason) {
    (decision.disruptions, decision.reason)
}

#[test]
fn all_up_and_clean_is_open() {
    assert_eq!(
        disruptions(&osds(&[], &[]), clean(), &closed(&[0, 1])),
        is_open(&[], CephReason::AllClean)
    );
}

#[test]
fn harmless_down_osds_are_excluded() {
    assert_eq!(
        disruptions(&osds(&[1, 4], &[4]), clean(), &OPEN),
        is_open(&[1, 4], CephReason::DownOsdsExcluded)
    );
}

#[test]
fn clean_is_ignored_while_ceph_counts_leaving_osd() {
    let mut osds = osds(&[2], &[2]);
    osds.get_mut(&2).unwrap().is_up_in_ceph = true;
    let asked = decide(&osds, Some(&clean()), &OPEN, false);
    assert_eq!(result(asked), is_closed(&[], CephReason::AwaitingStopCheck));
    let agreed = answered(clean(), &[(&[2, 3], true)]);
    assert_eq!(
        disruptions(&osds, agreed, &OPEN),
        is_closed(&[2, 3], CephReason::DomainDown)
    );
}

#[test]
fn down_osd_closes_before_ceph_answers() {
    let decided = disruptions(&osds(&[2], &[2]), None, &OPEN);
    assert_eq!(decided, is_closed(&[], CephReason::CephNotAsked));
}

#[test]
fn no_domain_is_exempt_on_old_statistics() {
    let stale = CephFacts {
        is_fresh: false,
        pgs: PgHealth::Clean,
        ..answered(unclean(), &[(&[2, 3], true)])
    };
    let decided = disruptions(&osds(&[2], &[2]), stale, &OPEN);
    assert_eq!(decided, is_closed(&[], CephReason::StatisticsStale));
}

#[test]
fn a_domain_is_exempt_once_ceph_agrees() {
    let (osds, current) = (osds(&[2], &[2]), OPEN);
    let decision = decide(&osds, Some(&unclean()), &current, false);
    assert_eq!(decision.questions, BTreeSet::from([together(&[2, 3])]));
    assert_eq!(result(decision), is_closed(&[], CephReason::AwaitingStopCheck));
    let agreed = answered(unclean(), &[(&[2, 3], true)]);
    let decision = decide(&osds, Some(&agreed), &current, false);
    assert_eq!(decision.questions, BTreeSet::from([together(&[2, 3])]), "asked no more");
    assert_eq!(result(decision), is_closed(&[2, 3], CephReason::DomainDown));
}

#[test]
fn nothing_is_exempt_where_ceph_refuses() {
    let refused = answered(unclean(), &[(&[2, 3], false)]);
    let decided = disruptions(&osds(&[2], &[2]), refused, &OPEN);
    assert_eq!(decided, is_closed(&[], CephReason::SecondDomainDown));
}

#[test]
fn osds_down_elsewhere_are_asked_for_too() {
    let decision = decide(&osds(&[2, 5], &[2]), Some(&unclean()), &closed(&[2, 3]), false);
    assert_eq!(decision.questions, BTreeSet::from([together(&[2, 3, 5])]));
}

/// What is exempt where Ceph refuses nothing.
#[rstest]
#[case::draining_before_name(&[1, 4], &[4], &[], &[4, 5])]
#[case::by_name(&[1, 4], &[], &[], &[0, 1])]
#[case::current(&[1, 4], &[], &[4, 5], &[4, 5])]
#[case::draining_before_current(&[1, 4], &[4], &[0, 1], &[4, 5])]
#[case::current_before_draining_by_name(&[1, 4], &[1, 4], &[4, 5], &[4, 5])]
#[case::current_is_up_again(&[4], &[4], &[0, 1], &[4, 5])]
#[case::drained_and_nothing_down(&[4], &[0, 1, 2, 3], &[], &[4, 5])]
fn one_domain_is_chosen(
    #[case] down: &[OsdId],
    #[case] draining: &[OsdId],
    #[case] current: &[OsdId],
    #[case] expected: &[OsdId],
) {
    let answers = [[0, 1], [2, 3], [4, 5]].map(|domain| (&together(down) | &together(&domain), true));
    let ceph = CephFacts {
        safe_together: BTreeMap::from(answers),
        ..unclean()
    };
    let decided = disruptions(&osds(down, draining), ceph, &closed(current));
    assert_eq!(decided, is_closed(expected, CephReason::DomainDown));
}

fn borrowed(answers: &[(Vec<OsdId>, bool)]) -> Vec<(&[OsdId], bool)> {
    answers.iter().map(|(osds, safe)| (osds.as_slice(), *safe)).collect()
}

/// OSD 2 of a drained node is down. Beside it the node has OSD 3, or also OSD 4 of another domain.
#[rstest]
#[case::domain(&[2, 3], &[], vec![(vec![2, 3], true)], &[2, 3])]
#[case::all_of_the_node_is_down(&[2], &[], vec![(vec![2, 3], false), (vec![2], true)], &[])]
#[case::domain_before_node(&[2, 4], &[], vec![(vec![2, 3, 4, 5], true), (vec![2, 4], true)], &[2, 3, 4, 5])]
#[case::domain_is_not_answered(&[2, 4], &[], vec![(vec![2, 4], true)], &[])]
#[case::all_domains_of_the_node(&[2, 4], &[], vec![(vec![2, 3, 4, 5], true)], &[2, 3, 4, 5])]
#[case::node_of_several_domains(&[2, 4], &[], vec![(vec![2, 3, 4, 5], false), (vec![2, 4], true)], &[2, 4])]
#[case::beside_another_that_is_down(&[2, 4], &[0], vec![(vec![0, 2, 3, 4, 5], false), (vec![0, 2, 4], true)], &[2, 4])]
#[case::neither(&[2, 4], &[], vec![(vec![2, 3, 4, 5], false), (vec![2, 4], false)], &[])]
fn drained_node_goes_with_its_domains_or_alone(
    #[case] on_node: &[OsdId],
    #[case] also_down: &[OsdId],
    #[case] answers: Vec<(Vec<OsdId>, bool)>,
    #[case] expected: &[OsdId],
) {
    let mut osds = osds(&[&[2], also_down].concat(), on_node);
    for id in on_node {
        osds.get_mut(id).unwrap().node = Some("shared".into());
    }
    let ceph = answered(unclean(), &borrowed(&answers));
    assert_eq!(disruptions(&osds, ceph, &OPEN).0, closed(expected));
}

/// OSD 2 is down and OSD 3 follows; the answer is older than that.
#[rstest]
#[case::was_asked_about(&[2, 3], vec![(vec![2, 3], true)], true, &[2, 3])]
#[case::seen_in_the_pods_first(&[2, 3], vec![(vec![2, 3], true)], false, &[2, 3])]
#[case::another_one_too(&[2, 3, 4], vec![(vec![2, 3], true)], true, &[])]
#[case::refused(&[2, 3], vec![(vec![2, 3], false)], true, &[])]
#[case::no_longer_answered(&[2, 3], vec![], true, &[])]
fn exemption_outlives_its_own_osds_going_down(
    #[case] down: &[OsdId],
    #[case] answers: Vec<(Vec<OsdId>, bool)>,
    #[case] is_current: bool,
    #[case] expected: &[OsdId],
) {
    let ceph = CephFacts {
        is_current,
        is_fresh: !is_current,
        ..answered(unclean(), &borrowed(&answers))
    };
    let osds = osds(down, &[2, 3]);
    assert_eq!(disruptions(&osds, ceph.clone(), &closed(&[2, 3])).0, closed(expected));
    assert_eq!(disruptions(&osds, ceph, &OPEN).0, closed(&[]), "nothing new is exempt");
    assert_eq!(disruptions(&osds, None, &closed(&[2, 3])).0, closed(&[]));
}

#[test]
fn exempt_domain_stays_while_its_osds_are_down() {
    let ceph = answered(unclean(), &[(&[0, 1, 4], false), (&[1, 4, 5], true)]);
    let decided = disruptions(&osds(&[1, 4], &[]), ceph, &closed(&[0, 1]));
    assert_eq!(decided, is_closed(&[], CephReason::SecondDomainDown));
}

#[test]
fn open_budgets_stay_open_while_placement_groups_move() {
    let moving = CephFacts {
        pgs: PgHealth::Moving,
        ..unclean()
    };
    assert_eq!(
        disruptions(&osds(&[], &[]), moving, &OPEN),
        is_open(&[], CephReason::AllUp)
    );
    assert_eq!(
        disruptions(&osds(&[], &[]), None, &OPEN),
        is_open(&[], CephReason::AllUp)
    );
}

#[test]
fn open_budgets_close_unless_each_domain_could_be_lost() {
    let domains: [&[OsdId]; 3] = [&[0, 1], &[2, 3], &[4, 5]];
    for refused in [None, Some(0), Some(2)] {
        let answers: Vec<(&[OsdId], bool)> = domains
            .iter()
            .enumerate()
            .map(|(index, osds)| (*osds, Some(index) != refused))
            .collect();
        let decision = decide(&osds(&[], &[]), Some(&answered(unclean(), &answers)), &OPEN, false);
        assert_eq!(decision.questions.len(), 3, "all are asked again");
        let expected = if refused.is_none() {
            is_open(&[], CephReason::AllUp)
        } else {
            is_closed(&[], CephReason::Recovering)
        };
        assert_eq!(result(decision), expected);
    }
}

/// An OSD that lies in no domain is judged with none.
#[test]
fn no_domain_is_no_proof() {
    let mut osds = osds(&[], &[]);
    for osd in osds.values_mut() {
        osd.domain = None;
    }
    assert_eq!(
        disruptions(&osds, unclean(), &OPEN),
        is_closed(&[], CephReason::Recovering)
    );
}

#[rstest]
#[case::degraded(unclean(), false, None)]
#[case::degraded_beyond_the_timeout(unclean(), true, Some(CephReason::HealthCheckTimedOut))]
#[case::inactive_beyond_the_timeout(CephFacts { pgs: PgHealth::Inactive, ..unclean() }, true, None)]
#[case::moving(CephFacts { pgs: PgHealth::Moving, ..unclean() }, false, Some(CephReason::NothingDegraded))]
#[case::moving_and_stale(CephFacts { pgs: PgHealth::Moving, is_fresh: false, ..unclean() }, true, None)]
fn unclean_budgets_open_when_nothing_is_lost(
    #[case] facts: CephFacts,
    #[case] timeout_is_over: bool,
    #[case] opens: Option<CephReason>,
) {
    let domains: [(&[OsdId], bool); 3] = [(&[0, 1], true), (&[2, 3], true), (&[4, 5], true)];
    let ceph = answered(facts, &domains);
    let decided = decide(&osds(&[], &[]), Some(&ceph), &closed(&[2, 3]), timeout_is_over);
    let expected = opens.map_or_else(
        || is_closed(&[2, 3], CephReason::Recovering),
        |reason| is_open(&[], reason),
    );
    assert_eq!(result(decided), expected);
}

#[test]
fn closed_budgets_stay_closed_until_each_domain_may_go() {
    let remapped = CephFacts {
        pgs: PgHealth::Moving,
        ..unclean()
    };
    let ceph = answered(remapped, &[(&[0, 1], true), (&[2, 3], false)]);
    let decision = decide(&osds(&[], &[]), Some(&ceph), &closed(&[]), false);
    assert_eq!(decision.questions.len(), 3);
    assert_eq!(result(decision), is_closed(&[], CephReason::Recovering));
}

/// All OSDs are up, and what was exempt has come back. What nobody has seen may have cost copies elsewhere.
#[rstest]
#[case::silent(None, &[])]
#[case::never_asked(Some(unclean()), &[])]
#[case::agreed(Some(answered(unclean(), &[(&[4, 5], true)])), &[4, 5])]
#[case::refused(Some(answered(unclean(), &[(&[4, 5], false)])), &[])]
#[case::agreed_before_they_came_up(Some(CephFacts { is_fresh: false, ..answered(unclean(), &[(&[4, 5], true)]) }), &[4, 5])]
#[case::seen_in_the_pods_first(Some(CephFacts { is_current: false, ..answered(unclean(), &[(&[4, 5], true)]) }), &[4, 5])]
fn closed_budgets_stay_exempt_by_an_answer_alone(#[case] ceph: Option<CephFacts>, #[case] exempt: &[OsdId]) {
    let decided = disruptions(&osds(&[], &[]), ceph, &closed(&[4, 5]));
    assert_eq!(decided, is_closed(exempt, CephReason::Recovering));
}

#[test]
fn drained_hosts_keep_their_data() {
    let noout_hosts = |down: &[OsdId], draining: &[OsdId], ceph: Option<CephFacts>| {
        let decision: Decision = decide(&osds(down, draining), ceph.as_ref(), &OPEN, false);
        let hosts: Vec<String> = decision.noout_hosts.iter().map(ToString::to_string).collect();
        hosts
    };
    assert_eq!(noout_hosts(&[2, 4], &[2, 3], None), ["host-2"]);
    assert_eq!(noout_hosts(&[2, 4], &[2, 4], Some(unclean())), ["host-2", "host-4"]);
    assert!(noout_hosts(&[2], &[], Some(unclean())).is_empty());
    assert!(noout_hosts(&[2], &[2], Some(clean())).is_empty());
}

#[test]
fn osd_without_domain_goes_with_its_node_alone() {
    let mut osds = osds(&[2], &[2]);
    osds.get_mut(&2).unwrap().domain = None;
    let ceph = answered(unclean(), &[(&[2, 3], true), (&[2], true)]);
    let decided = disruptions(&osds, ceph, &OPEN);
    assert_eq!(
        decided,
        is_closed(&[2], CephReason::DomainDown),
        "but itself, which is down"
    );
}

/// Its pod is on its way out for good: of what is exempt it is no part, and an open budget leaves it out.
#[test]
fn abandoned_osd_is_left_out() {
    let mut osds = osds(&[2], &[2]);
    osds.get_mut(&3).unwrap().is_abandoned = true;
    let ceph = answered(unclean(), &[(&[2], true)]);
    assert_eq!(disruptions(&osds, ceph, &OPEN), is_closed(&[2], CephReason::DomainDown));
    osds.get_mut(&2).unwrap().is_down = false;
    assert_eq!(disruptions(&osds, clean(), &OPEN), is_open(&[3], CephReason::AllClean));
}

fn any_ceph() -> impl Strategy<Value = Option<CephFacts>> {
    let answers =
        proptest::collection::btree_map(proptest::collection::btree_set(0_i64..6, 1..6), any::<bool>(), 0..40);
    let pgs = proptest::sample::select(vec![
        PgHealth::Clean,
        PgHealth::Moving,
        PgHealth::Degraded,
        PgHealth::Inactive,
    ]);
    let facts = (any::<bool>(), pgs, answers).prop_map(|(is_fresh, pgs, safe_together)| CephFacts {
        is_fresh,
        doubt: Doubt::None,
        pgs,
        safe_together,
        is_current: true,
    });
    proptest::option::of(facts)
}

proptest! {
    #[test]
    fn budgets_open_only_upon_fresh_answers(
        down in proptest::collection::vec(0_i64..6, 0..4),
        draining in proptest::collection::vec(0_i64..6, 0..4),
        ceph in any_ceph(),
        exempt in proptest::option::of(0_usize..3),
        timeout_is_over in any::<bool>(),
    ) {
        let osds = osds(&down, &draining);
        let exempt_now = exempt.map_or([].as_slice(), |index| [[0, 1], [2, 3], [4, 5]][index].as_slice());
        let current = closed(exempt_now);
        let decision = decide(&osds, ceph.as_ref(), &current, timeout_is_over);
        let is_fresh = ceph.as_ref().is_some_and(|ceph| ceph.is_fresh);
        match (decision.disruptions, decision.reason) {
            (Disruptions::Open { excluded }, _) => {
                prop_assert!(is_fresh);
                prop_assert_eq!(&excluded, &down.iter().copied().collect::<BTreeSet<_>>());
                prop_assert!(excluded.is_empty() || ceph.unwrap().pgs == PgHealth::Clean);
            }
            (Disruptions::Closed { exempt }, CephReason::DomainDown) => {
                let together: BTreeSet<OsdId> = down.iter().chain(&exempt).copied().collect();
                prop_assert!(is_fresh || exempt == exempt_now.iter().copied().collect());
                let safe = ceph.and_then(|ceph| ceph.safe_together.get(&together).copied());
                prop_assert_eq!(safe, Some(true));
            }
            (Disruptions::Closed { exempt }, _) => {
                let safe = ceph.and_then(|ceph| ceph.safe_together.get(&exempt).copied());
                prop_assert!(exempt.is_empty() || (down.is_empty() && safe == Some(true)));
            }
        }
    }
}
