//! Where each OSD is in CRUSH's tree, and what a failure domain is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::OsdId;
use super::answers::{OsdTree, Pool, Rule, TreeNode};

/// The types of buckets, from the lowest up, as Ceph has them.
const BUCKET_TYPES: [&str; 10] = [
    "host",
    "chassis",
    "rack",
    "row",
    "pdu",
    "pod",
    "room",
    "datacenter",
    "zone",
    "region",
];

/// A type of buckets that fail as a whole. They order from the lowest up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DomainType(usize);

impl DomainType {
    /// The lowest there is.
    pub const HOST: Self = Self(0);

    /// Its name, as CRUSH and the labels of Rook's OSDs have it.
    pub fn name(self) -> &'static str {
        BUCKET_TYPES[self.0]
    }

    /// The lowest type of buckets over which a rule of some pool spreads its copies: `.mgr`'s counts as any other's. Never
    /// below a host, for that is what drains.
    pub fn of_pools(pools: &[Pool], rules: &[Rule]) -> Self {
        let used: BTreeSet<i64> = pools.iter().map(|pool| pool.crush_rule).collect();
        let steps = rules
            .iter()
            .filter(|rule| used.contains(&rule.id))
            .flat_map(|rule| &rule.steps);
        let chosen = steps.filter(|step| step.op.starts_with("choose"));
        let kinds = chosen
            .filter_map(|step| step.kind.as_deref())
            .filter(|kind| *kind != "osd");
        // A type that somebody made may be as low as a host.
        kinds
            .map(|kind| kind.parse().unwrap_or(Self::HOST))
            .min()
            .unwrap_or(Self::HOST)
    }
}

impl fmt::Display for DomainType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not a type of buckets that may fail as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a failure domain: use one of {known}", known = BUCKET_TYPES.join(", "))]
pub struct UnknownDomainType(String);

impl FromStr for DomainType {
    type Err = UnknownDomainType;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = BUCKET_TYPES.iter().position(|known| *known == name);
        found.map(Self).ok_or_else(|| UnknownDomainType(name.to_owned()))
    }
}

/// Where an OSD is. A bucket that the tree lacks is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Its host's bucket.
    pub host: Option<Arc<str>>,
    /// Its failure domain's.
    pub domain: Option<Arc<str>>,
}

/// Where each OSD of the tree is.
pub fn places(tree: &OsdTree, domain_type: DomainType) -> BTreeMap<OsdId, Place> {
    let buckets = Buckets::new(tree);
    let osds = tree.nodes.iter().map(|node| node.id).filter(|id| *id >= 0);
    osds.map(|id| (id, buckets.place(id, domain_type))).collect()
}

/// Whether a pool stops with one host, even when all is well: so few copies has it, or so many of them does its rule allow on one host.
/// Of a rule that is not told the pool counts as one that does not.
pub fn stops_with_one_host(pool: &Pool, rules: &[Rule], tree: &OsdTree) -> bool {
    let Some(rule) = rules.iter().find(|rule| rule.id == pool.crush_rule) else {
        return false;
    };
    // Of the copies that a step spreads, so many go to each of what it chooses.
    let (mut copies, mut on_one_host) = (pool.size, 1);
    for step in rule.steps.iter().filter(|step| step.op.starts_with("choose")) {
        let chosen = if step.num > 0 { step.num } else { copies + step.num };
        on_one_host = if step.kind.as_deref() == Some("osd") {
            chosen.min(most_osds_of_a_host(tree))
        } else {
            1
        };
        copies /= chosen.max(1);
    }
    pool.size - on_one_host < pool.min_size
}

fn most_osds_of_a_host(tree: &OsdTree) -> i64 {
    let hosts = tree.nodes.iter().filter(|node| node.kind == DomainType::HOST.name());
    let most = hosts.map(|host| host.children.len()).max();
    most.map_or(1, |most| i64::try_from(most).unwrap_or(1))
}

/// The buckets of a tree, by what is in them.
pub struct Buckets<'a>(BTreeMap<i64, &'a TreeNode>);

impl<'a> Buckets<'a> {
    /// Those of this tree.
    pub fn new(tree: &'a OsdTree) -> Self {
        let nodes = tree.nodes.iter();
        Self(
            nodes
                .flat_map(|node| node.children.iter().map(move |child| (*child, node)))
                .collect(),
        )
    }

    /// The buckets that an OSD is in, from its own up.
    pub fn above(&self, osd: OsdId) -> impl Iterator<Item = &'a TreeNode> {
        let first = self.0.get(&osd).copied();
        // No tree is deeper than it has nodes. This ends even in a cycle.
        std::iter::successors(first, |bucket| self.0.get(&bucket.id).copied()).take(self.0.len())
    }

    fn place(&self, osd: OsdId, domain_type: DomainType) -> Place {
        let mut place = Place::default();
        for bucket in self.above(osd) {
            if bucket.kind == DomainType::HOST.name() {
                place.host = Some(bucket.name.as_str().into());
            }
            if bucket.kind == domain_type.name() {
                place.domain = Some(bucket.name.as_str().into());
            }
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::answers::{OsdTree, Pool, Rule, Rules, Step, TreeNode};
    use super::{DomainType, Place, places, stops_with_one_host};

    fn rule(id: i64, steps: &[(&str, Option<&str>)]) -> Rule {
        let steps = steps.iter().map(|(op, kind)| Step {
            op: (*op).to_owned(),
            kind: kind.map(str::to_owned),
            num: 0,
        });
        Rule {
            id,
            steps: steps.collect(),
        }
    }

    #[rstest]
    #[case::leaf(&[("take", None), ("chooseleaf_firstn", Some("rack")), ("emit", None)], "rack")]
    #[case::lowest_of_several(&[("choose_indep", Some("rack")), ("chooseleaf_indep", Some("host"))], "host")]
    #[case::erasure_coded(&[("set_chooseleaf_tries", None), ("choose_indep", Some("zone")), ("choose_indep", Some("osd"))], "zone")]
    #[case::multi_step(&[("choosemsr", Some("datacenter")), ("choosemsr", Some("osd"))], "datacenter")]
    #[case::osd_alone(&[("choose_firstn", Some("osd"))], "host")]
    #[case::own_type(&[("chooseleaf_firstn", Some("cage"))], "host")]
    #[case::nothing_chosen(&[("take", None), ("emit", None)], "host")]
    fn a_rule_spreads_over_its_lowest_type(#[case] steps: &[(&str, Option<&str>)], #[case] expected: &str) {
        assert_eq!(
            DomainType::of_pools(&[Pool::data(7)], &[rule(7, steps)]).name(),
            expected
        );
    }

    #[test]
    fn the_lowest_rule_that_a_pool_uses_decides() {
        let rack = rule(1, &[("chooseleaf_firstn", Some("rack"))]);
        let zone = rule(2, &[("chooseleaf_firstn", Some("zone"))]);
        let rules = [rule(0, &[("chooseleaf_firstn", Some("host"))]), rack, zone];
        assert_eq!(
            DomainType::of_pools(&[Pool::data(2), Pool::data(1)], &rules).name(),
            "rack"
        );
        assert_eq!(
            DomainType::of_pools(&[Pool::data(2), Pool::data(0)], &rules).name(),
            "host"
        );
        assert_eq!(DomainType::of_pools(&[], &rules).name(), "host");
    }

    /// Two hosts, the greater one with four OSDs.
    #[rstest]
    #[case::three_copies(3, 2, &[("host", 0)], false)]
    #[case::one_copy(1, 1, &[("host", 0)], true)]
    #[case::both_are_needed(2, 2, &[("rack", 0)], true)]
    #[case::all_are_needed(6, 6, &[("host", 0)], true)]
    #[case::chunk_a_host(6, 5, &[("rack", 3), ("host", 2)], false)]
    #[case::two_chunks_a_host(6, 5, &[("host", 3), ("osd", 2)], true)]
    #[case::two_chunks_a_host_can_be_lost(6, 4, &[("host", 3), ("osd", 2)], false)]
    #[case::rest_on_osds(6, 5, &[("host", 3), ("osd", 0)], true)]
    #[case::osds_of_any_host(3, 2, &[("osd", 0)], true)]
    fn pools_that_stop_with_a_host_are_told_from_rules(
        #[case] size: i64,
        #[case] min_size: i64,
        #[case] steps: &[(&str, i64)],
        #[case] expected: bool,
    ) {
        let steps = steps.iter().map(|(kind, num)| Step {
            op: "choose_indep".to_owned(),
            kind: Some((*kind).to_owned()),
            num: *num,
        });
        let rule = Rule {
            id: 7,
            steps: steps.collect(),
        };
        let host = |id: i64, children: &[i64]| TreeNode {
            id,
            name: format!("host{id}"),
            kind: "host".to_owned(),
            type_id: 1,
            children: children.to_vec(),
        };
        let tree = OsdTree {
            nodes: vec![host(-1, &[0, 1, 2, 3]), host(-2, &[4])],
        };
        let pool = Pool {
            size,
            min_size,
            ..Pool::data(7)
        };
        assert_eq!(stops_with_one_host(&pool, &[rule], &tree), expected);
        assert!(!stops_with_one_host(&pool, &[], &tree), "the rule is not known");
    }

    #[test]
    fn a_type_that_is_none_is_refused_with_those_there_are() {
        let error = "shelf".parse::<DomainType>().unwrap_err().to_string();
        assert!(error.contains("\"shelf\"") && error.contains("rack"), "{error}");
    }

    #[test]
    fn osds_are_found_in_a_recorded_tree() {
        let tree: OsdTree = serde_json::from_str(include_str!("../../recorded/16.2.15/healthy-osd-tree.json")).unwrap();
        let rules: Rules = serde_json::from_str(include_str!("../../recorded/16.2.15/crush-rules.json")).unwrap();
        let racks = DomainType::of_pools(&[Pool::data(1)], rules.all());
        let places = places(&tree, racks);
        let place = &places[&4];
        assert_eq!(place.host.as_deref(), Some("host-4"));
        assert_eq!(place.domain.as_deref(), Some("rack-1"));
        assert_eq!(places[&1].domain, place.domain);
        assert_eq!(places.get(&6), None);
    }

    #[test]
    fn an_osd_outside_every_bucket_has_no_domain() {
        let osd = TreeNode {
            id: 0,
            name: "osd.0".to_owned(),
            kind: "osd".to_owned(),
            type_id: 0,
            children: Vec::new(),
        };
        let places = places(&OsdTree { nodes: vec![osd] }, DomainType::HOST);
        assert_eq!(places[&0], Place::default());
    }

    #[test]
    fn a_cycle_in_the_tree_is_survived() {
        let bucket = |id: i64, child: i64| TreeNode {
            id,
            name: format!("bucket{id}"),
            kind: "rack".to_owned(),
            type_id: 3,
            children: vec![child],
        };
        let osd = TreeNode {
            children: Vec::new(),
            ..bucket(0, 0)
        };
        let tree = OsdTree {
            nodes: vec![bucket(-1, -2), bucket(-2, -1), bucket(-3, 0), osd],
        };
        assert!(places(&tree, DomainType::HOST).contains_key(&0));
    }
}
