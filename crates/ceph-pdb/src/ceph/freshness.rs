//! Whether the statistics of the placement groups are of now. They travel from the OSDs over the manager to the monitors, and
//! without a manager they stand still, healthy as ever.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::OsdId;
use super::answers::{OsdDump, OsdTree};
use super::stop_check::PoolId;

/// So often each OSD has to report after a change: the first report may have been on its way already.
const REPORTS: u8 = 2;

/// What statistics depend on: a change of any of these makes earlier ones stale.
#[derive(Debug, Clone, PartialEq)]
pub struct Basis {
    /// By OSD: up, and since when, in, weight.
    osds: BTreeMap<OsdId, (bool, i64, bool, f64)>,
    /// By pool: size, `min_size`, rule, number of placement groups.
    pools: BTreeMap<PoolId, (i64, i64, i64, i64)>,
    crush: OsdTree,
}

impl Basis {
    /// That of this map.
    pub fn new(dump: &OsdDump, tree: &OsdTree) -> Self {
        let osds = dump.osds.iter();
        let pools = dump.pools.iter();
        Self {
            osds: osds
                .map(|osd| (osd.id, (osd.up, osd.up_from, osd.is_in, osd.weight)))
                .collect(),
            pools: pools
                .map(|pool| (pool.id, (pool.size, pool.min_size, pool.crush_rule, pool.pg_num)))
                .collect(),
            crush: tree.clone(),
        }
    }

    /// Whether nothing has changed since but that OSDs have gone down or come up, and only such as are among these.
    pub fn differs_only_in(&self, before: &Self, osds: &BTreeSet<OsdId>) -> bool {
        let without = |basis: &Self| {
            let mut basis = basis.clone();
            for (_, (up, up_from, ..)) in basis.osds.iter_mut().filter(|(id, _)| osds.contains(id)) {
                (*up, *up_from) = (false, 0);
            }
            basis
        };
        without(self) == without(before)
    }

    /// The same for the same, in another process too. Where it is not, as after an upgrade, statistics count as doubtful until they
    /// are fresh.
    fn fingerprint(&self) -> Arc<str> {
        let mut hasher = DefaultHasher::new();
        format!("{self:?}").hash(&mut hasher);
        format!("{:016x}", hasher.finish()).into()
    }

    fn doubt_since(&self, before: &Self) -> Doubt {
        let is_raised = self.pools.iter().any(|(id, (size, min_size, ..))| {
            let before = before.pools.get(id);
            before.is_some_and(|(size_before, min_before, ..)| size > size_before || min_size > min_before)
        });
        let is_started = self.osds.iter().any(|(id, (_, up_from, ..))| {
            let before = before.osds.get(id);
            before.is_some_and(|(_, up_from_before, ..)| up_from != up_from_before)
        });
        match (is_raised, is_started) {
            (true, _) => Doubt::PoolRaised,
            (false, true) => Doubt::OsdStarted,
            (false, false) => Doubt::None,
        }
    }
}

/// Why placement groups may lack copies of which statistics do not tell yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// Nothing has happened that costs copies.
    #[default]
    None,
    /// Nobody has watched: what may have happened is not known.
    Unwatched,
    /// An OSD has started: it lacks what was written meanwhile.
    OsdStarted,
    /// A pool needs more copies than before.
    PoolRaised,
}

/// How often each OSD has reported since the last change.
#[derive(Debug, Clone, Default)]
pub struct Freshness {
    basis: Option<Basis>,
    fingerprint: Arc<str>,
    reports: BTreeMap<OsdId, Reports>,
    doubt: Doubt,
}

#[derive(Debug, Clone, Copy)]
struct Reports {
    last: u64,
    since_change: u8,
}

impl Freshness {
    /// The map as it is now. A change makes all statistics stale.
    pub fn map_seen(&mut self, dump: &OsdDump, tree: &OsdTree) {
        let basis = Basis::new(dump, tree);
        if self.basis.as_ref() == Some(&basis) {
            return;
        }
        let before = self.basis.as_ref();
        let doubt = before.map_or(Doubt::Unwatched, |before| basis.doubt_since(before));
        self.doubt = self.doubt().max(doubt);
        self.fingerprint = basis.fingerprint();
        self.basis = Some(basis);
        self.reports.clear();
    }

    /// No manager is active: what OSDs have reported so far says nothing of what comes.
    pub fn manager_lost(&mut self) {
        self.doubt = self.doubt();
        self.reports.clear();
    }

    /// The number of an OSD's newest report (`osd last-stat-seq`). The first one seen after a change may be older than it.
    pub fn report_seen(&mut self, osd: OsdId, sequence: u64) {
        let first = Reports {
            last: sequence,
            since_change: 0,
        };
        let reports = self.reports.entry(osd).or_insert(first);
        if sequence != reports.last {
            reports.last = sequence;
            reports.since_change = reports.since_change.saturating_add(1);
        }
    }

    /// The OSDs that run and have not reported often enough: they are asked again.
    pub fn outstanding(&self) -> Vec<OsdId> {
        let osds = self.basis.iter().flat_map(|basis| &basis.osds);
        let up = osds.filter(|(_, (up, ..))| *up).map(|(id, _)| *id);
        up.filter(|id| {
            self.reports
                .get(id)
                .is_none_or(|reports| reports.since_change < REPORTS)
        })
        .collect()
    }

    /// Whether the statistics are of now.
    pub fn is_fresh(&self) -> bool {
        self.basis.is_some() && self.outstanding().is_empty()
    }

    /// What the statistics depend on now.
    pub const fn basis(&self) -> Option<&Basis> {
        self.basis.as_ref()
    }

    /// Tells that from others.
    pub fn fingerprint(&self) -> Arc<str> {
        Arc::clone(&self.fingerprint)
    }

    /// What has happened since the statistics were last of now.
    pub fn doubt(&self) -> Doubt {
        if self.is_fresh() { Doubt::None } else { self.doubt }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;

    use super::super::answers::{Osd, OsdDump, OsdTree, Pool, TreeNode};
    use super::{Basis, Doubt, Freshness};

    fn dump(up: &[bool]) -> OsdDump {
        let osds = up.iter().zip(0..).map(|(up, id)| Osd {
            id,
            up: *up,
            is_in: true,
            weight: 1.0,
            up_from: 1,
            state: BTreeSet::new(),
        });
        OsdDump {
            epoch: 1,
            osds: osds.collect(),
            pools: vec![Pool::data(0)],
            flags_set: BTreeSet::new(),
            crush_node_flags: std::collections::BTreeMap::new(),
        }
    }

    fn tree(name: &str) -> OsdTree {
        let node = TreeNode {
            id: -1,
            name: name.to_owned(),
            kind: "root".to_owned(),
            type_id: 11,
            children: Vec::new(),
        };
        OsdTree { nodes: vec![node] }
    }

    fn fresh() -> Freshness {
        let mut freshness = Freshness::default();
        freshness.map_seen(&dump(&[true, true]), &tree("default"));
        for sequence in 10..13 {
            freshness.report_seen(0, sequence);
            freshness.report_seen(1, sequence);
        }
        freshness
    }

    #[test]
    fn nothing_is_fresh_before_a_map_is_seen() {
        assert!(!Freshness::default().is_fresh());
    }

    #[test]
    fn two_reports_of_each_osd_make_it_fresh() {
        let mut freshness = Freshness::default();
        freshness.map_seen(&dump(&[true, true]), &tree("default"));
        for sequence in [10, 10, 11, 11, 12] {
            freshness.report_seen(0, sequence);
        }
        for sequence in [20, 21] {
            freshness.report_seen(1, sequence);
        }
        assert_eq!(freshness.outstanding(), [1]);
        freshness.report_seen(1, 22);
        assert!(freshness.is_fresh());
    }

    #[test]
    fn a_report_that_stands_still_is_not_another_one() {
        let mut freshness = Freshness::default();
        freshness.map_seen(&dump(&[true]), &tree("default"));
        for _ in 0..100 {
            freshness.report_seen(0, 10);
        }
        assert!(!freshness.is_fresh());
    }

    #[test]
    fn an_osd_that_starts_again_counts_from_below() {
        let mut freshness = fresh();
        freshness.map_seen(&dump(&[true, false]), &tree("default"));
        freshness.map_seen(&dump(&[true, true]), &tree("default"));
        for sequence in [13, 14, 15] {
            freshness.report_seen(0, sequence);
        }
        for sequence in [12, 1, 2] {
            freshness.report_seen(1, sequence);
        }
        assert!(freshness.is_fresh());
    }

    #[test]
    fn an_osd_that_is_down_need_not_report() {
        let mut freshness = fresh();
        freshness.map_seen(&dump(&[true, false]), &tree("default"));
        assert_eq!(freshness.outstanding(), [0]);
    }

    #[rstest]
    #[case::osd_down(|dump: &mut OsdDump, _: &mut OsdTree| dump.osds[1].up = false, Doubt::None)]
    #[case::osd_out(|dump: &mut OsdDump, _: &mut OsdTree| dump.osds[1].is_in = false, Doubt::None)]
    #[case::weight(|dump: &mut OsdDump, _: &mut OsdTree| dump.osds[1].weight = 0.5, Doubt::None)]
    #[case::crush(|_: &mut OsdDump, tree: &mut OsdTree| tree.nodes[0].name = "other".to_owned(), Doubt::None)]
    #[case::rule(|dump: &mut OsdDump, _: &mut OsdTree| dump.pools[0].crush_rule = 1, Doubt::None)]
    #[case::split(|dump: &mut OsdDump, _: &mut OsdTree| dump.pools[0].pg_num = 16, Doubt::None)]
    #[case::fewer_copies(|dump: &mut OsdDump, _: &mut OsdTree| dump.pools[0].size = 2, Doubt::None)]
    #[case::new_pool(|dump: &mut OsdDump, _: &mut OsdTree| dump.pools[0].id = 2, Doubt::None)]
    #[case::new_osd(|dump: &mut OsdDump, _: &mut OsdTree| dump.osds[1].id = 7, Doubt::None)]
    #[case::started(|dump: &mut OsdDump, _: &mut OsdTree| dump.osds[1].up_from = 2, Doubt::OsdStarted)]
    #[case::more_copies(|dump: &mut OsdDump, _: &mut OsdTree| dump.pools[0].size = 4, Doubt::PoolRaised)]
    #[case::more_needed(|dump: &mut OsdDump, _: &mut OsdTree| dump.pools[0].min_size = 3, Doubt::PoolRaised)]
    fn any_change_makes_it_stale(#[case] change: fn(&mut OsdDump, &mut OsdTree), #[case] doubt: Doubt) {
        let mut freshness = fresh();
        let (mut dump, mut tree) = (dump(&[true, true]), tree("default"));
        change(&mut dump, &mut tree);
        freshness.map_seen(&dump, &tree);
        assert!(!freshness.is_fresh());
        assert_eq!(freshness.doubt(), doubt);
    }

    #[rstest]
    #[case::nothing(|_: &mut OsdDump| (), true)]
    #[case::of_these(|dump: &mut OsdDump| dump.osds[1].up = false, true)]
    #[case::another(|dump: &mut OsdDump| dump.osds[0].up = false, false)]
    #[case::out(|dump: &mut OsdDump| (dump.osds[1].up, dump.osds[1].is_in) = (false, false), false)]
    #[case::up(|dump: &mut OsdDump| (dump.osds[2].up, dump.osds[2].up_from) = (true, 2), true)]
    #[case::started(|dump: &mut OsdDump| dump.osds[1].up_from = 2, true)]
    #[case::another_started(|dump: &mut OsdDump| dump.osds[0].up_from = 2, false)]
    #[case::pool(|dump: &mut OsdDump| dump.pools[0].min_size = 3, false)]
    fn osds_that_go_down_or_come_up_are_told_from_other_changes(
        #[case] change: fn(&mut OsdDump),
        #[case] expected: bool,
    ) {
        let before = dump(&[true, true, false]);
        let mut now = before.clone();
        change(&mut now);
        let basis = |dump: &OsdDump| Basis::new(dump, &tree("default"));
        assert_eq!(
            basis(&now).differs_only_in(&basis(&before), &BTreeSet::from([1, 2])),
            expected
        );
    }

    #[test]
    fn a_doubt_ends_with_fresh_statistics() {
        let mut freshness = fresh();
        let mut dump = dump(&[true, true]);
        dump.pools[0].size = 4;
        freshness.map_seen(&dump, &tree("default"));
        dump.osds[0].up_from = 2;
        freshness.map_seen(&dump, &tree("default"));
        assert_eq!(freshness.doubt(), Doubt::PoolRaised, "the greater one stays");
        for sequence in 20..23 {
            freshness.report_seen(0, sequence);
            freshness.report_seen(1, sequence);
        }
        assert_eq!(freshness.doubt(), Doubt::None);
        dump.osds[0].weight = 0.5;
        freshness.map_seen(&dump, &tree("default"));
        assert_eq!(freshness.doubt(), Doubt::None, "it is over");
    }

    #[test]
    fn reports_begin_anew_when_the_manager_was_lost() {
        let mut freshness = fresh();
        let mut dump = dump(&[true, true]);
        dump.pools[0].size = 4;
        freshness.map_seen(&dump, &tree("default"));
        freshness.manager_lost();
        assert_eq!((freshness.is_fresh(), freshness.doubt()), (false, Doubt::PoolRaised));
        for sequence in 20..23 {
            freshness.report_seen(0, sequence);
            freshness.report_seen(1, sequence);
        }
        assert!(freshness.is_fresh());
        freshness.manager_lost();
        assert_eq!(
            (freshness.is_fresh(), freshness.doubt()),
            (false, Doubt::None),
            "that is over"
        );
    }

    /// Nobody knows what went before the first map: its fingerprint tells whether another process had fresh statistics of the same.
    #[test]
    fn first_map_is_doubted_and_told_from_others() {
        let mut freshness = Freshness::default();
        freshness.map_seen(&dump(&[true, true]), &tree("default"));
        assert_eq!(freshness.doubt(), Doubt::Unwatched);
        assert_eq!(freshness.fingerprint(), fresh().fingerprint());
        let mut started = dump(&[true, true]);
        started.osds[1].up_from = 2;
        freshness.map_seen(&started, &tree("default"));
        assert_eq!(freshness.doubt(), Doubt::OsdStarted);
        assert_ne!(freshness.fingerprint(), fresh().fingerprint());
    }

    #[test]
    fn another_epoch_of_the_same_map_leaves_it_fresh() {
        let mut freshness = fresh();
        let later = OsdDump {
            epoch: 2,
            ..dump(&[true, true])
        };
        freshness.map_seen(&later, &tree("default"));
        assert!(freshness.is_fresh());
    }
}
