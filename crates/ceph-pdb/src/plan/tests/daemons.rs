//! Other daemons.

use super::*;

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

/// Rook has not followed a daemon that was scaled down: its budget would refuse the last one for ever.
#[rstest]
#[case::of_fewer_gateways("rook-ceph-rgw-store", ("rgw", "store"), Some(2), |_: &mut Daemons| (), false)]
#[case::of_more_gateways("rook-ceph-rgw-store", ("rgw", "store"), Some(2), |all: &mut Daemons| all.gateways[0].1 = 3, true)]
#[case::of_gateways_that_cannot_be_listed("rook-ceph-rgw-store", ("rgw", "store"), Some(2), |all: &mut Daemons| all.unknown = vec!["CephObjectStore".to_owned()], true)]
#[case::of_fewer_servers("rook-ceph-mds-fs", ("rook_file_system", "fs"), Some(1), |_: &mut Daemons| (), false)]
#[case::of_fewer_monitors(MON_BUDGET, ("app", "rook-ceph-mon"), None, |_: &mut Daemons| (), false)]
#[case::of_managers_beside_rook(MGR_BUDGET, ("app", "rook-ceph-mgr"), None, |_: &mut Daemons| (), true)]
#[case::of_one_manager(MGR_BUDGET, ("app", "rook-ceph-mgr"), None, |all: &mut Daemons| all.mgrs = Some(1), false)]
#[case::of_somebody_else("my-gateways", ("rgw", "store"), Some(2), |_: &mut Daemons| (), true)]
fn leftover_of_rook_without_purpose_is_deleted(
    #[case] name: &str,
    #[case] (key, value): (&'static str, &str),
    #[case] min_available: Option<i32>,
    #[case] change: fn(&mut Daemons),
    #[case] is_left: bool,
) {
    let mut world = World::new();
    world.daemons.gateways = vec![("store".to_owned(), 1)];
    world.daemons.metadata_servers = vec![("fs".to_owned(), 1, false)];
    change(&mut world.daemons);
    let budget = DaemonBudget {
        name: name.to_owned(),
        selector: (key, value.to_owned()),
        limit: min_available.map_or(Limit::MaxUnavailable(1), Limit::MinAvailable),
        evicts_unready: false,
    };
    let rooks = leftover(BudgetForm::Daemon(budget));
    world.budgets.insert(name.into(), rooks);
    world.run();
    assert_eq!(world.budgets.contains_key(name), is_left);
    assert!(
        !world.budgets.get(MGR_BUDGET).is_some_and(|budget| budget.is_ours),
        "Rook keeps it"
    );
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
