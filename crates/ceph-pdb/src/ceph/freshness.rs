//! Whether the statistics of the placement groups are of now. They travel from the OSDs over the manager to the monitors, and
//! without a manager they stand still, healthy as ever.

use std::collections::BTreeMap;

use super::OsdId;
use super::answers::{OsdDump, OsdTree};

/// So often each OSD has to report after a change: the first report may have been on its way already.
const REPORTS: u8 = 2;

/// What statistics depend on: a change of any of these makes earlier ones stale.
#[derive(Debug, Clone, PartialEq)]
struct Basis {
    /// By OSD: up, and since when, in, weight.
    osds: BTreeMap<OsdId, (bool, i64, bool, f64)>,
    crush: OsdTree,
}

/// How often each OSD has reported since the last change.
#[derive(Debug, Clone, Default)]
pub struct Freshness {
    basis: Option<Basis>,
    reports: BTreeMap<OsdId, Reports>,
}

#[derive(Debug, Clone, Copy)]
struct Reports {
    last: u64,
    since_change: u8,
}

impl Freshness {
    /// The map as it is now. A change makes all statistics stale.
    pub fn map_seen(&mut self, dump: &OsdDump, tree: &OsdTree) {
        let osds = dump
            .osds
            .iter()
            .map(|osd| (osd.id, (osd.up, osd.up_from, osd.is_in, osd.weight)));
        let basis = Basis {
            osds: osds.collect(),
            crush: tree.clone(),
        };
        if self.basis.as_ref() != Some(&basis) {
            self.basis = Some(basis);
            self.reports.clear();
        }
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
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::answers::{Osd, OsdDump, OsdTree, TreeNode};
    use super::Freshness;

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
            pools: Vec::new(),
            flags_set: BTreeSet::new(),
            crush_node_flags: std::collections::BTreeMap::new(),
        }
    }

    fn tree(name: &str) -> OsdTree {
        let node = TreeNode {
            id: -1,
            name: name.to_owned(),
            kind: "root".to_owned(),
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

    #[test]
    fn any_change_makes_it_stale() {
        let mut weight = dump(&[true, true]);
        weight.osds[1].weight = 0.5;
        let mut started_again = dump(&[true, true]);
        started_again.osds[1].up_from = 2;
        let mut out = dump(&[true, true]);
        out.osds[1].is_in = false;
        for (dump, tree) in [
            (dump(&[true, false]), tree("default")),
            (dump(&[true, true]), tree("other")),
            (weight, tree("default")),
            (out, tree("default")),
            (started_again, tree("default")),
        ] {
            let mut freshness = fresh();
            assert!(freshness.is_fresh());
            freshness.map_seen(&dump, &tree);
            assert!(!freshness.is_fresh());
        }
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
