//! The budgets of all daemons but OSDs: they follow the numbers in Rook's objects, and Ceph's quorum.

/// Name of the monitors' budget.
pub const MON_BUDGET: &str = "rook-ceph-mon-pdb";

/// Name of the managers' budget.
pub const MGR_BUDGET: &str = "rook-ceph-mgr-pdb";

/// Name of the RBD mirrors' budget.
pub const MIRROR_BUDGET: &str = "rook-ceph-rbd-mirror-pdb";

/// What there is of each kind of daemon in a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Daemons {
    /// Monitors that the CephCluster asks for.
    pub mons: i32,
    /// Monitors that are not in the quorum.
    pub mons_out_of_quorum: i32,
    /// Managers; `None` while a Rook operator runs: it keeps their budget itself, whatever the switch says.
    pub mgrs: Option<i32>,
    /// Gateways by object store.
    pub gateways: Vec<(String, i32)>,
    /// Active metadata servers by file system, each counted twice with `activeStandby`.
    pub metadata_servers: Vec<(String, i32, bool)>,
    /// Mirroring daemons of block devices, by CephRBDMirror.
    pub block_mirrors: Vec<(String, i32)>,
    /// NFS servers, by CephNFS.
    pub nfs_servers: Vec<(String, i32)>,
    /// Kinds whose objects cannot be told now, with the reason: no budget of a daemon is deleted meanwhile.
    pub unknown: Vec<String>,
}

/// A budget under Rook's name and selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonBudget {
    /// Its name.
    pub name: String,
    /// The label that it selects by: key and value.
    pub selector: (&'static str, String),
    /// What it allows.
    pub limit: Limit,
    /// Evict daemons that are not Ready: a broken one holds nothing that another does not.
    pub evicts_unready: bool,
}

/// What a budget allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `maxUnavailable`.
    MaxUnavailable(i32),
    /// `minAvailable`.
    MinAvailable(i32),
}

/// The budgets that are to be there.
pub fn daemon_budgets(daemons: &Daemons) -> Vec<DaemonBudget> {
    let mut budgets = Vec::new();
    budgets.extend(mons(daemons));
    budgets.extend(one_at_a_time(
        MGR_BUDGET.to_owned(),
        ("app", "rook-ceph-mgr".to_owned()),
        daemons.mgrs.unwrap_or_default(),
    ));
    for (store, instances) in &daemons.gateways {
        budgets.extend(all_but_one(
            format!("rook-ceph-rgw-{store}"),
            ("rgw", store.clone()),
            *instances,
        ));
    }
    for (filesystem, active, has_standby) in &daemons.metadata_servers {
        let servers = active + i32::from(*has_standby);
        let selector = ("rook_file_system", filesystem.clone());
        budgets.extend(all_but_one(format!("rook-ceph-mds-{filesystem}"), selector, servers));
    }
    // Rook makes one Deployment, whose pods have no label with the CephRBDMirror's name that no other daemon has.
    let mirrors = daemons.block_mirrors.iter().map(|(_, count)| *count).max();
    budgets.extend(one_at_a_time(
        MIRROR_BUDGET.to_owned(),
        ("app", "rook-ceph-rbd-mirror".to_owned()),
        mirrors.unwrap_or_default(),
    ));
    for (server, count) in &daemons.nfs_servers {
        budgets.extend(one_at_a_time(
            format!("rook-ceph-nfs-{server}"),
            ("ceph_nfs", server.clone()),
            *count,
        ));
    }
    budgets
}

/// Up to two monitors have no majority to lose without losing the quorum. Evicting one that is not Ready would cost a majority
/// that it may be about to join again.
fn mons(daemons: &Daemons) -> Option<DaemonBudget> {
    let spare = if daemons.mons >= 5 { 2 } else { 1 };
    (daemons.mons > 2).then(|| DaemonBudget {
        name: MON_BUDGET.to_owned(),
        selector: ("app", "rook-ceph-mon".to_owned()),
        limit: Limit::MaxUnavailable((spare - daemons.mons_out_of_quorum).max(0)),
        evicts_unready: false,
    })
}

fn one_at_a_time(name: String, selector: (&'static str, String), count: i32) -> Option<DaemonBudget> {
    (count > 1).then_some(DaemonBudget {
        name,
        selector,
        limit: Limit::MaxUnavailable(1),
        evicts_unready: true,
    })
}

fn all_but_one(name: String, selector: (&'static str, String), count: i32) -> Option<DaemonBudget> {
    (count > 1).then_some(DaemonBudget {
        name,
        selector,
        limit: Limit::MinAvailable(count - 1),
        evicts_unready: true,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Daemons, Limit, daemon_budgets};

    fn limit_of(daemons: &Daemons, name: &str) -> Option<Limit> {
        let budgets = daemon_budgets(daemons);
        budgets
            .iter()
            .find(|budget| budget.name == name)
            .map(|budget| budget.limit)
    }

    #[rstest]
    #[case::one(1, 0, None)]
    #[case::two(2, 0, None)]
    #[case::three(3, 0, Some(1))]
    #[case::one_of_three_away(3, 1, Some(0))]
    #[case::two_of_three_away(3, 2, Some(0))]
    #[case::four(4, 0, Some(1))]
    #[case::five(5, 0, Some(2))]
    #[case::one_of_five_away(5, 1, Some(1))]
    #[case::three_of_five_away(5, 3, Some(0))]
    fn monitors_keep_their_quorum(#[case] mons: i32, #[case] mons_out_of_quorum: i32, #[case] expected: Option<i32>) {
        let daemons = Daemons {
            mons,
            mons_out_of_quorum,
            ..Daemons::default()
        };
        assert_eq!(
            limit_of(&daemons, "rook-ceph-mon-pdb"),
            expected.map(Limit::MaxUnavailable)
        );
    }

    #[rstest]
    #[case::one(1, None)]
    #[case::three(3, Some(2))]
    fn gateways_keep_all_but_one(#[case] instances: i32, #[case] expected: Option<i32>) {
        let daemons = Daemons {
            gateways: vec![("store".to_owned(), instances)],
            ..Daemons::default()
        };
        assert_eq!(
            limit_of(&daemons, "rook-ceph-rgw-store"),
            expected.map(Limit::MinAvailable)
        );
    }

    #[rstest]
    #[case::one(1, false, None)]
    #[case::one_with_standby(1, true, Some(1))]
    #[case::two(2, false, Some(1))]
    #[case::two_with_standby(2, true, Some(2))]
    fn metadata_servers_count_their_standby(#[case] active: i32, #[case] standby: bool, #[case] expected: Option<i32>) {
        let daemons = Daemons {
            metadata_servers: vec![("fs".to_owned(), active, standby)],
            ..Daemons::default()
        };
        assert_eq!(
            limit_of(&daemons, "rook-ceph-mds-fs"),
            expected.map(Limit::MinAvailable)
        );
    }

    #[test]
    fn other_daemons_go_one_at_a_time() {
        let daemons = Daemons {
            mgrs: Some(2),
            block_mirrors: vec![("mirror".to_owned(), 2), ("single".to_owned(), 1)],
            nfs_servers: vec![("nfs".to_owned(), 3)],
            ..Daemons::default()
        };
        let budgets = daemon_budgets(&daemons);
        let names: Vec<&str> = budgets.iter().map(|budget| budget.name.as_str()).collect();
        assert_eq!(
            names,
            ["rook-ceph-mgr-pdb", "rook-ceph-rbd-mirror-pdb", "rook-ceph-nfs-nfs"]
        );
        assert!(budgets.iter().all(|budget| budget.evicts_unready));
    }

    #[test]
    fn monitors_that_are_not_ready_stay() {
        let daemons = Daemons {
            mons: 3,
            ..Daemons::default()
        };
        assert!(!daemon_budgets(&daemons)[0].evicts_unready);
    }
}
