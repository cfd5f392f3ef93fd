//! What Ceph 16 to 20 answers to the commands that we ask, as far as it matters here. Fields come and go between releases:
//! what is not named is ignored, and what may be absent is.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::OsdId;
use super::stop_check::{PoolId, pool_of};

/// `status`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Status {
    /// Number of the monitors' last election.
    #[serde(default, deserialize_with = "whole")]
    pub election_epoch: i64,
    /// Map of the monitors.
    pub monmap: MapEpoch,
    /// Map of the OSDs.
    pub osdmap: MapEpoch,
    /// Placement groups.
    pub pgmap: PgMap,
    /// Managers.
    #[serde(default)]
    pub mgrmap: MgrMap,
}

/// The managers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct MgrMap {
    /// One of them is active. Without one, statistics stand still.
    #[serde(default = "MgrMap::unless_denied")]
    pub available: bool,
}

impl MgrMap {
    const fn unless_denied() -> bool {
        true
    }
}

impl Default for MgrMap {
    fn default() -> Self {
        let available = Self::unless_denied();
        Self { available }
    }
}

/// A map that rises with each change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct MapEpoch {
    /// Its number.
    #[serde(deserialize_with = "whole")]
    pub epoch: i64,
}

/// Placement groups, counted.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct PgMap {
    /// By state. Absent without placement groups.
    #[serde(default)]
    pub pgs_by_state: Vec<PgCount>,
    /// All of them.
    #[serde(deserialize_with = "whole")]
    pub num_pgs: i64,
}

/// Placement groups in one state.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PgCount {
    /// Such as `active+clean+scrubbing`.
    pub state_name: String,
    /// How many.
    #[serde(deserialize_with = "whole")]
    pub count: i64,
}

/// `osd dump`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct OsdDump {
    /// Of the map; it rises with each change.
    #[serde(deserialize_with = "whole")]
    pub epoch: i64,
    /// OSDs.
    pub osds: Vec<Osd>,
    /// Pools.
    #[serde(default)]
    pub pools: Vec<Pool>,
    /// Flags of the whole cluster, such as `norebalance`.
    #[serde(default)]
    pub flags_set: BTreeSet<String>,
    /// Flags by bucket.
    #[serde(default)]
    pub crush_node_flags: BTreeMap<String, BTreeSet<String>>,
}

/// An OSD as the map has it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Osd {
    /// Its number.
    #[serde(rename = "osd", deserialize_with = "whole")]
    pub id: OsdId,
    /// It runs, as its peers see it.
    #[serde(deserialize_with = "flag")]
    pub up: bool,
    /// It is to have data.
    #[serde(rename = "in", deserialize_with = "flag")]
    pub is_in: bool,
    /// What share of its data it is to have: 0 to 1.
    #[serde(default)]
    pub weight: f64,
    /// Epoch of the map in which it was last seen to start.
    #[serde(default, deserialize_with = "whole")]
    pub up_from: i64,
    /// Such as `exists`, `up`, `noout`.
    #[serde(default)]
    pub state: BTreeSet<String>,
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pool {
    /// Its number: what the name of each of its placement groups begins with.
    #[serde(rename = "pool", deserialize_with = "whole")]
    pub id: i64,
    /// Its name.
    #[serde(rename = "pool_name")]
    pub name: String,
    /// Number of its rule.
    #[serde(deserialize_with = "whole")]
    pub crush_rule: i64,
    /// Copies, or chunks.
    #[serde(deserialize_with = "whole")]
    pub size: i64,
    /// With fewer it takes no requests.
    #[serde(deserialize_with = "whole")]
    pub min_size: i64,
    /// Its placement groups.
    #[serde(default, deserialize_with = "whole")]
    pub pg_num: i64,
    /// In stretch mode: over so many buckets a placement group has to be spread to take requests; else 0.
    #[serde(default, deserialize_with = "whole")]
    pub peering_crush_bucket_count: i64,
    /// In stretch mode: the number of these buckets' type.
    #[serde(default, deserialize_with = "whole")]
    pub peering_crush_bucket_barrier: i64,
    /// In stretch mode: the bucket that has to be among them; [`NONE`] without one.
    #[serde(default = "none", deserialize_with = "whole")]
    pub peering_crush_bucket_mandatory_member: i64,
}

#[cfg(test)]
impl Pool {
    /// Three copies, two of them needed.
    pub fn data(crush_rule: i64) -> Self {
        Self {
            id: 1,
            name: "data".to_owned(),
            crush_rule,
            size: 3,
            min_size: 2,
            pg_num: 8,
            peering_crush_bucket_count: 0,
            peering_crush_bucket_barrier: 0,
            peering_crush_bucket_mandatory_member: NONE,
        }
    }
}

/// Stands in place of a number where there is none (`CRUSH_ITEM_NONE`).
pub const NONE: i64 = 0x7fff_ffff;

const fn none() -> i64 {
    NONE
}

/// `osd tree`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct OsdTree {
    /// Buckets and OSDs.
    pub nodes: Vec<TreeNode>,
}

/// A bucket, or an OSD.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TreeNode {
    /// Negative for a bucket.
    #[serde(deserialize_with = "whole")]
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Such as `rack`, or `osd`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The number of its type.
    #[serde(default, deserialize_with = "whole")]
    pub type_id: i64,
    /// What is in it.
    #[serde(default, deserialize_with = "wholes")]
    pub children: Vec<i64>,
}

/// A rule of `osd crush rule dump`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Rule {
    /// Its number.
    #[serde(rename = "rule_id", deserialize_with = "whole")]
    pub id: i64,
    /// What it does, in order.
    pub steps: Vec<Step>,
}

/// A step of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Step {
    /// Such as `chooseleaf_firstn`.
    pub op: String,
    /// Of the buckets chosen.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// How many are chosen; from 0 down, so many less than the pool has copies.
    #[serde(default, deserialize_with = "whole")]
    pub num: i64,
}

/// `osd crush rule dump`: all rules, or the one that was named.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Rules {
    /// All of them.
    All(Vec<Rule>),
    /// The one.
    One(Rule),
}

impl Rules {
    /// The rules.
    pub fn all(&self) -> &[Rule] {
        match self {
            Self::All(rules) => rules,
            Self::One(rule) => std::slice::from_ref(rule),
        }
    }
}

/// Of an OSD in `osd metadata`. One that never ran has its number alone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OsdMetadata {
    /// Its number.
    #[serde(deserialize_with = "whole")]
    pub id: OsdId,
    /// The node that it last ran on.
    #[serde(default)]
    pub hostname: Option<String>,
}

/// `quorum_status`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct QuorumStatus {
    /// Monitors in the quorum.
    pub quorum_names: BTreeSet<String>,
    /// All monitors.
    pub monmap: MonMap,
}

/// All monitors.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MonMap {
    /// Each.
    pub mons: Vec<Mon>,
}

/// A monitor.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Mon {
    /// Its name.
    pub name: String,
}

impl QuorumStatus {
    /// The monitors that are not in the quorum.
    pub fn out_of_quorum(&self) -> impl Iterator<Item = &str> {
        let names = self.monmap.mons.iter().map(|mon| mon.name.as_str());
        names.filter(|name| !self.quorum_names.contains(*name))
    }
}

/// `osd ok-to-stop`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OkToStop {
    /// Ceph's own verdict: also against pools that cannot lose anything even when all is well.
    pub ok_to_stop: bool,
    /// How many placement groups speak against it.
    #[serde(deserialize_with = "whole")]
    pub num_not_ok_pgs: i64,
    /// Placement groups that would take no more requests.
    #[serde(default)]
    pub bad_become_inactive: BTreeSet<String>,
    /// Those that take none now.
    #[serde(default)]
    pub bad_already_inactive: BTreeSet<String>,
    /// Those whose pool is gone.
    #[serde(default)]
    pub bad_no_pool_pgs: BTreeSet<String>,
    /// Those of which the manager knows nothing yet.
    #[serde(default)]
    pub unknown_pgs: BTreeSet<String>,
}

/// `pg dump pgs_brief`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct PgDump {
    /// All placement groups.
    pub pg_stats: Vec<PlacementGroup>,
}

/// A placement group, as the manager knows it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PlacementGroup {
    /// Its name, such as `2.1f`.
    #[serde(rename = "pgid")]
    pub id: String,
    /// Such as `active+clean`.
    pub state: String,
    /// The OSDs that are to have it.
    #[serde(deserialize_with = "wholes")]
    pub up: Vec<OsdId>,
    /// The OSDs that serve it.
    #[serde(deserialize_with = "wholes")]
    pub acting: Vec<OsdId>,
}

impl PlacementGroup {
    /// Its pool, where that can be told.
    pub fn pool(&self) -> Option<PoolId> {
        pool_of(&self.id)
    }

    /// Whether this is one of the words of its state.
    pub fn is(&self, word: &str) -> bool {
        self.state.split('+').any(|own| own == word)
    }
}

/// `pg ls degraded`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct DegradedPgs {
    /// The placement groups in which objects lack copies. Absent without one.
    #[serde(default)]
    pub pg_stats: Vec<DegradedPg>,
}

/// A placement group in which objects lack copies.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct DegradedPg {
    /// Its name.
    #[serde(rename = "pgid")]
    pub id: String,
    /// The OSDs that have all of its objects, each as `3`, or as `3(1)` with the number of its shard.
    #[serde(default)]
    pub avail_no_missing: Vec<String>,
}

/// A whole number, also where it comes as 1.0 or in quotes.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    read_whole(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn wholes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i64>, D::Error> {
    let values = Vec::<Value>::deserialize(deserializer)?;
    values
        .iter()
        .map(read_whole)
        .collect::<Result<_, _>>()
        .map_err(D::Error::custom)
}

/// A yes or no, also where it comes as a number.
fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Bool(flag) => Ok(flag),
        value => read_whole(&value).map(|number| number != 0).map_err(D::Error::custom),
    }
}

fn read_whole(value: &Value) -> Result<i64, String> {
    let number = match value {
        Value::Number(number) => number.as_i64().or_else(|| whole_of_float(number.as_f64()?)),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| format!("{value} is not a whole number"))
}

fn whole_of_float(number: f64) -> Option<i64> {
    // Beyond this a float does not hold every whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let is_whole = number.fract() == 0.0 && number.abs() <= EXACT;
    #[allow(clippy::cast_possible_truncation, reason = "it is whole, and within the range")]
    is_whole.then_some(number as i64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;
    use serde_json::json;

    use super::{OkToStop, Osd, OsdDump, OsdMetadata, OsdTree, QuorumStatus, Rules, Status};

    macro_rules! recorded {
        ($name:literal as $shape:ty) => {
            serde_json::from_str::<$shape>(include_str!(concat!("../../recorded/16.2.15/", $name, ".json"))).unwrap()
        };
    }

    #[test]
    fn recorded_answers_are_read() {
        let status = recorded!("down2-status" as Status);
        let counted: i64 = status.pgmap.pgs_by_state.iter().map(|state| state.count).sum();
        assert_eq!((counted, status.pgmap.num_pgs), (17, 17));
        assert_eq!(status.osdmap.epoch, recorded!("down2-osd-dump" as OsdDump).epoch);
        let dump = recorded!("down1-osd-dump" as OsdDump);
        let down: Vec<_> = dump.osds.iter().filter(|osd| !osd.up).map(|osd| osd.id).collect();
        assert_eq!(down, [1]);
        assert!(dump.osds.iter().all(|osd| osd.up_from > 0));
        assert_eq!(dump.crush_node_flags["host-1"], BTreeSet::from(["noout".to_owned()]));
        assert_eq!(dump.pools[1].name, "data");
        let tree = recorded!("healthy-osd-tree" as OsdTree);
        assert_eq!(tree.nodes.iter().filter(|node| node.kind == "rack").count(), 3);
        assert_eq!(recorded!("crush-rules" as Rules).all().len(), 2);
        let metadata = recorded!("osd-metadata" as Vec<OsdMetadata>);
        assert_eq!(metadata[3].hostname.as_deref(), Some("host-3"));
        assert_eq!(recorded!("quorum-status" as QuorumStatus).out_of_quorum().count(), 0);
    }

    #[rstest]
    #[case::integers(json!({"osd": 3, "up": 1, "in": 0}), true, false)]
    #[case::floats(json!({"osd": 3.0, "up": 0.0, "in": 1.0}), false, true)]
    #[case::booleans(json!({"osd": "3", "up": true, "in": false}), true, false)]
    fn numbers_are_read_in_each_form(#[case] answer: serde_json::Value, #[case] up: bool, #[case] is_in: bool) {
        let osd: Osd = serde_json::from_value(answer).unwrap();
        assert_eq!((osd.id, osd.up, osd.is_in), (3, up, is_in));
    }

    #[rstest]
    #[case::fraction(json!({"osd": 3.5, "up": 1, "in": 1}))]
    #[case::no_number(json!({"osd": [], "up": 1, "in": 1}))]
    #[case::absent(json!({"up": 1, "in": 1}))]
    fn what_is_no_number_is_refused(#[case] answer: serde_json::Value) {
        assert!(serde_json::from_value::<Osd>(answer).is_err());
    }

    #[test]
    fn a_rule_asked_for_by_name_comes_alone() {
        let rules: Rules = serde_json::from_value(json!({"rule_id": 4, "rule_name": "one", "steps": []})).unwrap();
        assert_eq!(rules.all()[0].id, 4);
    }

    #[test]
    fn an_osd_that_never_ran_has_a_number_alone() {
        let metadata: OsdMetadata = serde_json::from_value(json!({"id": 7})).unwrap();
        assert_eq!(metadata.hostname, None);
    }

    #[test]
    fn a_manager_that_just_started_names_what_it_does_not_know() {
        let answer = json!({"ok_to_stop": false, "osds": [0], "num_not_ok_pgs": 0, "unknown_pgs": ["2.0", "2.1"]});
        let answer: OkToStop = serde_json::from_value(answer).unwrap();
        assert_eq!(answer.unknown_pgs.len(), 2);
    }

    #[test]
    fn monitors_out_of_the_quorum_are_named() {
        let answer = json!({"quorum_names": ["a"], "monmap": {"mons": [{"name": "a"}, {"name": "b"}]}});
        let quorum: QuorumStatus = serde_json::from_value(answer).unwrap();
        assert_eq!(quorum.out_of_quorum().collect::<Vec<_>>(), ["b"]);
    }
}
