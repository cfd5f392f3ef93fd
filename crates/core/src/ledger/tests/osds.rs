//! The OSDs of Ceph: those of one node go by one disruption of the budget that Ceph's operator keeps.

use proptest::prelude::*;
use rstest::rstest;

use super::super::{Lost, Unusable};
use super::*;

/// Three hosts of two OSDs each, of which one may be missing: `osd-0` and `osd-1` are on the first.
fn osds() -> BudgetFacts {
    BudgetFacts {
        is_by_node: true,
        ..of_six("osd")
    }
}

fn of_six(name: &str) -> BudgetFacts {
    BudgetFacts {
        desired_healthy: 5,
        expected_pods: 6,
        healthy: pods(&std::array::from_fn::<_, 6, _>(|number| format!("{name}-{number}"))),
        ..budget(name)
    }
}

/// The same as its operator leaves it when it is closed.
fn closed() -> BudgetFacts {
    BudgetFacts {
        disruptions_allowed: 0,
        desired_healthy: 6,
        unusable: Some(Unusable::ClosedForNow),
        ..osds()
    }
}

fn hosts() -> Ledger {
    queue(&[("a", &["osd-0", "osd-1"]), ("b", &["osd-2", "osd-3"])])
}

#[test]
fn osds_of_a_node_take_one_disruption() {
    let facts = facts([osds()]);
    let mut ledger = hosts();
    let fence = grant(&mut ledger, "a", &facts);
    assert_eq!(ledger.free(&osds()), 0);
    assert!(["osd-0", "osd-1"].iter().all(|pod| ledger.may_evict("a", fence, pod)));
    let obstacles = ledger.obstacles("b", &facts);
    assert_eq!(obstacles[0].reason, LockReason::WaitsForDisruptions);
    assert_eq!((obstacles[0].needed, obstacles[0].free), (1, 0));
    assert_eq!(obstacles[0].holder.as_ref().map(crate::id::NodeName::as_str), Some("a"));
}

#[test]
fn first_osd_that_goes_takes_the_disruption() {
    let mut ledger = hosts();
    grant(&mut ledger, "a", &facts([osds()]));
    let one_down = without(osds(), "osd-0");
    assert_eq!(ledger.free(&one_down), 0, "it is taken once, not twice");
    assert_eq!(
        reasons(&ledger, "b", &facts([one_down])),
        [LockReason::WaitsForDisruptions]
    );
    // Ceph's operator leaves the rest of the host out of its budget.
    let exempt = BudgetFacts {
        healthy: pods(&["osd-2", "osd-3", "osd-4", "osd-5"].map(str::to_owned)),
        desired_healthy: 4,
        expected_pods: 4,
        ..closed()
    };
    assert_eq!(ledger.free(&exempt), 0);
    let facts = facts([exempt]);
    assert_eq!(reasons(&ledger, "b", &facts), [LockReason::WaitsForDisruptions]);
    // It is open again when Ceph is complete, which it may not be when the drain has ended.
    ledger.release_by_override("a");
    assert_eq!(reasons(&ledger, "b", &facts), [LockReason::CephClosed]);
}

#[rstest]
#[case::leaving(&["osd-0", "osd-1"], &[], None)]
#[case::one_stays(&[], &["osd-0"], None)]
#[case::one_stays_and_one_leaves(&["osd-1"], &["osd-0"], Some(2))]
#[case::both_stay(&[], &["osd-0", "osd-1"], Some(2))]
fn retained_osds_count_each(#[case] leave: &[&str], #[case] stay: &[&str], #[case] exceeds: Option<i32>) {
    let mut ledger = queue(&[("a", &[])]);
    let needs = disruptions(leave).into_iter().chain(retained(stay)).collect();
    ledger.set_needs("a", needs, NOT_DOWN, NOW);
    let obstacles = ledger.obstacles("a", &facts([osds()]));
    let needed = obstacles.first().map(|obstacle| (obstacle.reason, obstacle.needed));
    assert_eq!(needed, exceeds.map(|needed| (LockReason::NeedExceedsBudget, needed)));
}

#[test]
fn osds_under_a_persons_own_budget_count_each() {
    let ledger = queue(&[("a", &["own-0", "own-1"])]);
    let obstacles = ledger.obstacles("a", &facts([of_six("own")]));
    assert_eq!(obstacles[0].reason, LockReason::NeedExceedsBudget);
    assert_eq!((obstacles[0].needed, obstacles[0].free), (2, 1));
}

#[test]
fn closed_budget_is_waited_for_and_nothing_reserved() {
    let facts = facts([closed(), budget("web")]);
    let mut ledger = queue(&[("a", &["osd-0", "osd-1", "web-0"]), ("b", &["web-1"])]);
    assert_eq!(reasons(&ledger, "a", &facts), [LockReason::CephClosed]);
    assert_eq!(ledger.reserver(&facts), None);
    grant(&mut ledger, "b", &facts);
    assert_eq!(claim(&ledger, "a").ticket, 1, "it keeps its place");
    let foreign = admits(&ledger, None, &closed(), &facts).unwrap_err();
    assert_eq!(foreign.reason, LockReason::CephClosed);
}

#[test]
fn closing_before_confirmation_loses_the_grant() {
    let mut ledger = hosts();
    let open = facts([osds()]);
    let number = ledger.try_grant("a", "boot", &open, NOW).unwrap();
    let Err(Lost::Returned { obstacles, kept }) = ledger.confirm("a", number, &facts([closed()]), NOT_DOWN, NOW) else {
        panic!("it was confirmed");
    };
    assert_eq!(
        (obstacles[0].reason, obstacles[0].needed, kept),
        (LockReason::CephClosed, 1, 0)
    );
}

#[test]
fn unready_osd_has_taken_its_hosts_disruption() {
    let facts = facts([without(osds(), "osd-0")]);
    let mut ledger = hosts();
    assert_eq!(reasons(&ledger, "b", &facts), [LockReason::BudgetUnhealthy]);
    grant(&mut ledger, "a", &facts);
    // Should it turn ready, its host still has the one disruption that there is.
    assert_eq!(ledger.free(&osds()), 0);
}

#[test]
fn late_osd_shares_the_disruption_taken_before() {
    let mut ledger = queue(&[("a", &["osd-0"]), ("b", &["osd-2", "osd-3"])]);
    grant(&mut ledger, "a", &facts([osds()]));
    let facts = facts([without(osds(), "osd-0")]);
    let is_down = |pod: &HeldPod| pod.uid == "osd-0";
    ledger.set_needs("a", disruptions(&["osd-0", "osd-1"]), &is_down, NOW);
    assert_eq!(reasons(&ledger, "a", &facts), []);
    let number = ledger.try_grant("a", "boot", &facts, NOW).unwrap();
    ledger.confirm("a", number, &facts, &is_down, NOW).unwrap();
    assert_eq!(held(&ledger, "a"), ["osd-0", "osd-1"]);
}

#[test]
fn another_process_counts_shared_needs_as_stored() {
    let facts = facts([osds()]);
    let mut ledger = queue(&[("a", &["osd-0", "osd-1"])]);
    ledger.count_needs(&facts);
    let stored = nodeward_api::drain_ledger::DrainLedgerSpec::from(&ledger);
    assert_eq!(
        (stored.claims[0].needs[0].disruptions, stored.claims[0].needs[0].healthy),
        (1, 1)
    );
    assert_eq!(reasons(&Ledger::try_from(&stored).unwrap(), "a", &facts), []);
}

/// What a budget of `hosts` of `per_host` OSDs reads when the OSDs of these numbers are not healthy.
fn read(hosts: usize, per_host: usize, unhealthy: &BTreeSet<usize>, is_by_node: bool) -> BudgetFacts {
    let total = hosts * per_host;
    let healthy: Vec<String> = (0..total)
        .filter(|number| !unhealthy.contains(number))
        .map(|number| format!("osd-{number}"))
        .collect();
    let (expected_pods, running) = (i32::try_from(total).unwrap(), i32::try_from(healthy.len()).unwrap());
    BudgetFacts {
        expected_pods,
        desired_healthy: expected_pods - 1,
        disruptions_allowed: (running - (expected_pods - 1)).max(0),
        healthy: pods(&healthy),
        is_by_node,
        ..budget("osd")
    }
}

fn host_queue(hosts: usize, per_host: usize) -> Ledger {
    let mut ledger = Ledger::default();
    for host in 0..hosts {
        let osds: Vec<String> = (host * per_host..(host + 1) * per_host)
            .map(|osd| format!("osd-{osd}"))
            .collect();
        let osds: Vec<&str> = osds.iter().map(String::as_str).collect();
        ask(&mut ledger, &format!("n{host}"), &osds);
    }
    ledger
}

proptest! {
    /// Whatever is down, and in whatever order hosts ask: what is granted is at most what the budget has, and OSDs of two hosts
    /// are never granted at once.
    #[test]
    fn no_two_hosts_of_osds_hold_together(
        hosts in 2..5_usize,
        per_host in 1..4_usize,
        unhealthy in prop::collection::btree_set(0..12_usize, 0..3),
        order in prop::collection::vec(0..5_usize, 1..12),
        later in prop::collection::btree_set(0..12_usize, 0..3),
    ) {
        let mut ledger = host_queue(hosts, per_host);
        for (round, host) in order.into_iter().enumerate() {
            let unhealthy = if round % 2 == 0 { &unhealthy } else { &later };
            let budget = read(hosts, per_host, unhealthy, true);
            let before = ledger.free(&budget);
            let facts = facts([budget.clone()]);
            let granted = ledger.try_grant(&format!("n{}", host % hosts), "boot", &facts, NOW).is_ok();
            prop_assert!(!granted || before < 0 || ledger.free(&budget) >= 0, "{before}");
            let holding = ledger.claims().iter().filter(|claim| claim.outstanding(&budget, &[]) > 0).count();
            prop_assert!(holding <= 1, "{holding} hosts have a disruption that is still to be taken");
        }
    }

    /// With one OSD a host nothing is shared: the ledger says what it says of any other budget.
    #[test]
    fn one_osd_a_host_is_any_other_pod(
        hosts in 2..5_usize,
        unhealthy in prop::collection::btree_set(0..5_usize, 0..3),
        first in 0..5_usize,
    ) {
        let says = |is_by_node: bool| {
            let facts = facts([read(hosts, 1, &unhealthy, is_by_node)]);
            let mut ledger = host_queue(hosts, 1);
            let granted = ledger.try_grant(&format!("n{}", first % hosts), "boot", &facts, NOW);
            let waits: Vec<_> = (0..hosts).map(|host| ledger.obstacles(&format!("n{host}"), &facts)).collect();
            (granted, waits, ledger.free(&facts[&key("osd")]))
        };
        prop_assert_eq!(says(true), says(false));
    }
}
