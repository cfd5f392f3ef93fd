use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rstest::rstest;

use super::{Because, CephFacts, Decision, Disruptions, Domain, OsdFacts, Present, decide};
use crate::ceph::OsdId;

/// Two OSDs in each of three racks: 0 and 1 in `a`, 2 and 3 in `b`, 4 and 5 in `c`; each on a host of its own.
fn osds(down: &[OsdId], draining: &[OsdId]) -> BTreeMap<OsdId, OsdFacts> {
    let facts = |id: OsdId| OsdFacts {
        domain: Some(["a", "b", "c"][usize::try_from(id / 2).unwrap()].into()),
        host: Some(format!("host-{id}").as_str().into()),
        is_down: down.contains(&id),
        is_up_in_ceph: !down.contains(&id),
        is_draining: draining.contains(&id),
    };
    (0..6).map(|id| (id, facts(id))).collect()
}

fn together(ids: &[OsdId]) -> BTreeSet<OsdId> {
    ids.iter().copied().collect()
}

fn unclean() -> CephFacts {
    CephFacts {
        is_fresh: true,
        lacks_redundancy: true,
        ..CephFacts::default()
    }
}

fn clean() -> CephFacts {
    CephFacts {
        is_fresh: true,
        is_clean: true,
        ..CephFacts::default()
    }
}

fn answered(facts: CephFacts, answers: &[(&[OsdId], bool)]) -> CephFacts {
    let safe_together = answers.iter().map(|(ids, safe)| (together(ids), *safe)).collect();
    CephFacts { safe_together, ..facts }
}

fn closed(exempt: Option<&str>) -> Present {
    Present::Closed {
        exempt: exempt.map(Domain::from),
    }
}

fn is_closed(exempt: Option<&str>, because: Because) -> Disruptions {
    Disruptions::Closed {
        exempt: exempt.map(Domain::from),
        because,
    }
}

fn is_open(excluded: &[OsdId]) -> Disruptions {
    Disruptions::Open {
        excluded: together(excluded),
    }
}

fn disruptions(osds: &BTreeMap<OsdId, OsdFacts>, ceph: impl Into<Option<CephFacts>>, present: &Present) -> Disruptions {
    decide(osds, ceph.into().as_ref(), present, false).disruptions
}

#[test]
fn all_up_and_clean_is_open() {
    assert_eq!(disruptions(&osds(&[], &[]), clean(), &closed(Some("a"))), is_open(&[]));
}

#[test]
fn osds_that_are_down_without_harm_are_excluded() {
    assert_eq!(
        disruptions(&osds(&[1, 4], &[4]), clean(), &Present::Open),
        is_open(&[1, 4])
    );
}

#[test]
fn clean_says_nothing_while_ceph_counts_on_a_leaving_osd() {
    let mut osds = osds(&[2], &[2]);
    osds.get_mut(&2).unwrap().is_up_in_ceph = true;
    let asked = decide(&osds, Some(&clean()), &Present::Open, false);
    assert_eq!(asked.disruptions, is_closed(None, Because::NotAnswered));
    let agreed = answered(clean(), &[(&[2, 3], true)]);
    assert_eq!(
        disruptions(&osds, agreed, &Present::Open),
        is_closed(Some("b"), Because::DomainDown)
    );
}

#[test]
fn an_osd_down_closes_without_a_word_from_ceph() {
    let decided = disruptions(&osds(&[2], &[2]), None, &Present::Open);
    assert_eq!(decided, is_closed(None, Because::CephSilent));
}

#[test]
fn no_domain_is_exempt_on_old_statistics() {
    let stale = CephFacts {
        is_fresh: false,
        is_clean: true,
        ..answered(unclean(), &[(&[2, 3], true)])
    };
    let decided = disruptions(&osds(&[2], &[2]), stale, &Present::Open);
    assert_eq!(decided, is_closed(None, Because::StatisticsStale));
}

#[test]
fn a_domain_is_exempt_once_ceph_agrees() {
    let (osds, present) = (osds(&[2], &[2]), Present::Open);
    let decision = decide(&osds, Some(&unclean()), &present, false);
    assert_eq!(decision.disruptions, is_closed(None, Because::NotAnswered));
    assert_eq!(decision.questions, BTreeSet::from([together(&[2, 3])]));
    let agreed = answered(unclean(), &[(&[2, 3], true)]);
    assert_eq!(
        disruptions(&osds, agreed, &present),
        is_closed(Some("b"), Because::DomainDown)
    );
}

#[test]
fn nothing_is_exempt_where_ceph_refuses() {
    let refused = answered(unclean(), &[(&[2, 3], false)]);
    let decided = disruptions(&osds(&[2], &[2]), refused, &Present::Open);
    assert_eq!(decided, is_closed(None, Because::SecondDomainDown));
}

#[test]
fn what_is_down_elsewhere_is_part_of_the_question() {
    let decision = decide(&osds(&[2, 5], &[2]), Some(&unclean()), &closed(Some("b")), false);
    assert_eq!(decision.questions, BTreeSet::from([together(&[2, 3, 5])]));
}

#[rstest]
#[case::draining_before_name(&[1, 4], &[4], None, "c")]
#[case::by_name(&[1, 4], &[], None, "a")]
#[case::present_before_draining(&[1, 4], &[4], Some("a"), "a")]
#[case::present_is_up_again(&[4], &[4], Some("a"), "c")]
fn one_domain_is_chosen(
    #[case] down: &[OsdId],
    #[case] draining: &[OsdId],
    #[case] present: Option<&str>,
    #[case] expected: &str,
) {
    let all = [(0, 1), (2, 3), (4, 5)];
    let answers = all.map(|(first, second)| {
        let mut ids = together(down);
        ids.extend([first, second]);
        (ids, true)
    });
    let ceph = CephFacts {
        safe_together: BTreeMap::from(answers),
        ..unclean()
    };
    let decided = disruptions(&osds(down, draining), ceph, &closed(present));
    assert_eq!(decided, is_closed(Some(expected), Because::DomainDown));
}

#[test]
fn no_other_domain_takes_the_place_of_one_that_is_down() {
    let ceph = answered(unclean(), &[(&[0, 1, 4], false), (&[1, 4, 5], true)]);
    let decided = disruptions(&osds(&[1, 4], &[4]), ceph, &closed(Some("a")));
    assert_eq!(decided, is_closed(None, Because::SecondDomainDown));
}

#[test]
fn open_budgets_stay_open_while_placement_groups_move() {
    assert_eq!(disruptions(&osds(&[], &[]), unclean(), &Present::Open), is_open(&[]));
    assert_eq!(disruptions(&osds(&[], &[]), None, &Present::Open), is_open(&[]));
}

#[rstest]
#[case::degraded(unclean(), false, false)]
#[case::degraded_beyond_the_timeout(unclean(), true, true)]
#[case::inactive_beyond_the_timeout(CephFacts { has_inactive: true, ..unclean() }, true, false)]
#[case::remapped(CephFacts { lacks_redundancy: false, ..unclean() }, false, true)]
#[case::remapped_and_stale(CephFacts { lacks_redundancy: false, is_fresh: false, ..unclean() }, true, false)]
fn closed_budgets_open_once_nothing_is_to_be_repaired(
    #[case] facts: CephFacts,
    #[case] timeout_is_over: bool,
    #[case] opens: bool,
) {
    let domains: [(&[OsdId], bool); 3] = [(&[0, 1], true), (&[2, 3], true), (&[4, 5], true)];
    let ceph = answered(facts, &domains);
    let decided = decide(&osds(&[], &[]), Some(&ceph), &closed(Some("b")), timeout_is_over);
    let expected = if opens {
        is_open(&[])
    } else {
        is_closed(Some("b"), Because::Recovering)
    };
    assert_eq!(decided.disruptions, expected);
}

#[test]
fn closed_budgets_stay_closed_until_each_domain_may_go() {
    let remapped = CephFacts {
        lacks_redundancy: false,
        ..unclean()
    };
    let ceph = answered(remapped, &[(&[0, 1], true), (&[2, 3], false)]);
    let decision = decide(&osds(&[], &[]), Some(&ceph), &closed(None), false);
    assert_eq!(decision.disruptions, is_closed(None, Because::Recovering));
    assert_eq!(decision.questions, BTreeSet::from([together(&[4, 5])]));
}

#[test]
fn closed_budgets_stay_closed_while_ceph_is_silent() {
    let decided = disruptions(&osds(&[], &[]), None, &closed(Some("c")));
    assert_eq!(decided, is_closed(Some("c"), Because::Recovering));
}

#[test]
fn drained_hosts_keep_their_data() {
    let keep_in = |down: &[OsdId], draining: &[OsdId], ceph: Option<CephFacts>| {
        let decision: Decision = decide(&osds(down, draining), ceph.as_ref(), &Present::Open, false);
        let hosts: Vec<String> = decision.keep_in.iter().map(ToString::to_string).collect();
        hosts
    };
    assert_eq!(keep_in(&[2, 4], &[2, 3], None), ["host-2"]);
    assert_eq!(keep_in(&[2, 4], &[2, 4], Some(unclean())), ["host-2", "host-4"]);
    assert!(keep_in(&[2], &[], Some(unclean())).is_empty());
    assert!(keep_in(&[2], &[2], Some(clean())).is_empty());
}

#[test]
fn an_osd_of_no_known_domain_is_never_exempt() {
    let mut osds = osds(&[2], &[2]);
    osds.get_mut(&2).unwrap().domain = None;
    let ceph = answered(unclean(), &[(&[2, 3], true), (&[2], true)]);
    assert_eq!(
        disruptions(&osds, ceph, &Present::Open),
        is_closed(None, Because::SecondDomainDown)
    );
}

fn any_ceph() -> impl Strategy<Value = Option<CephFacts>> {
    let answers =
        proptest::collection::btree_map(proptest::collection::btree_set(0_i64..6, 1..6), any::<bool>(), 0..40);
    let facts =
        (any::<[bool; 4]>(), answers).prop_map(|([is_fresh, is_clean, has_inactive, lacks_redundancy], answers)| {
            CephFacts {
                is_fresh,
                is_clean,
                has_inactive,
                lacks_redundancy,
                safe_together: answers,
            }
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
        let present = closed(exempt.map(|index| ["a", "b", "c"][index]));
        let decision = decide(&osds, ceph.as_ref(), &present, timeout_is_over);
        let is_fresh = ceph.as_ref().is_some_and(|ceph| ceph.is_fresh);
        match decision.disruptions {
            Disruptions::Open { excluded } => {
                prop_assert!(is_fresh);
                prop_assert_eq!(&excluded, &down.iter().copied().collect::<BTreeSet<_>>());
                prop_assert!(excluded.is_empty() || ceph.unwrap().is_clean);
            }
            Disruptions::Closed { exempt: Some(domain), because: Because::DomainDown } => {
                let mut ids: BTreeSet<OsdId> = down.iter().copied().collect();
                ids.extend(osds.iter().filter(|(_, osd)| osd.domain.as_ref() == Some(&domain)).map(|(id, _)| *id));
                prop_assert!(is_fresh);
                let safe = ceph.and_then(|ceph| ceph.safe_together.get(&ids).copied());
                prop_assert_eq!(safe, Some(true));
            }
            Disruptions::Closed { exempt, .. } => prop_assert!(exempt.is_none() || down.is_empty()),
        }
    }
}
