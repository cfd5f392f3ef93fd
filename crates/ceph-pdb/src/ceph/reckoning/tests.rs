use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::{Value, json};

use super::PgReport;
use crate::ceph::OsdId;
use crate::ceph::answers::{DegradedPgs, NONE, OkToStop, OsdDump, OsdTree};
use crate::ceph::stop_check::{PgId, StopAnswer, Testimony};

macro_rules! recorded {
    ($name:expr) => {
        include_str!(concat!("../../../recorded/16.2.15/six-osds/", $name))
    };
}

fn read<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap()
}

fn groups(names: &[&str]) -> BTreeSet<PgId> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Six OSDs in three racks; pools of size 3, 2 and 1, and an erasure-coded one of 2 + 1.
macro_rules! answers {
    ($scenario:literal) => {
        (
            recorded!(concat!($scenario, "-pgs-brief.json")),
            recorded!(concat!($scenario, "-pg-ls-degraded.json")),
            recorded!(concat!($scenario, "-osd-dump.json")),
            recorded!(concat!($scenario, "-ok-to-stop.json")),
        )
    };
}

/// The `ok-to-stop` of 16.2 is right, but that it does not look at where a backfill ends: `stricter` names what it overlooks, by
/// the OSDs asked about.
#[rstest]
#[case::healthy(answers!("healthy"), None)]
#[case::one_down(answers!("down1"), None)]
#[case::recovering_by_log(answers!("recovering"), None)]
#[case::size_raised(answers!("raised"), None)]
#[case::remapped(answers!("remapped"), Some((&[1, 2][..], &["1.0", "2.2"][..])))]
fn reckoning_agrees_with_recorded_answers(
    #[case] (pgs, degraded, dump, verdicts): (&str, &str, &str, &str),
    #[case] stricter: Option<(&[OsdId], &[&str])>,
) {
    let report = PgReport::new(read(pgs), read(degraded));
    let (dump, tree) = (read::<OsdDump>(dump), read::<OsdTree>(recorded!("osd-tree.json")));
    let down = dump.osds.iter().filter(|osd| !osd.up).map(|osd| osd.id);
    let down: BTreeSet<OsdId> = down.collect();
    for verdict in read::<Vec<Value>>(verdicts) {
        let asked: BTreeSet<OsdId> = read(&verdict["osds"].to_string());
        let own = report.reckon(&dump, &tree, &asked.union(&down).copied().collect());
        let mut expected = Testimony::of_ceph(&serde_json::from_value::<OkToStop>(verdict).unwrap());
        let overlooked = stricter.filter(|(osds, _)| asked.iter().eq(*osds));
        expected
            .lost
            .extend(overlooked.map(|(_, names)| groups(names)).unwrap_or_default());
        assert_eq!(own, expected, "{asked:?}");
    }
}

/// OSDs 0 to 5, two in each of the hosts -10, -11 and -12, which are of type 1. The hosts -10 and -11 are in site -20, the third in -21,
/// and sites are of type 8. Placement groups of one pool.
struct Case {
    size: i64,
    min_size: i64,
    down: &'static [OsdId],
    pool: Value,
    groups: Vec<Value>,
    degraded: Vec<Value>,
}

fn case(groups: &[(&str, &[OsdId], &[OsdId])]) -> Case {
    let named = groups.iter().enumerate().map(|(number, (state, up, acting))| {
        json!({"pgid": format!("1.{number:x}"), "state": state, "up": up, "acting": acting})
    });
    Case {
        size: 3,
        min_size: 2,
        down: &[],
        pool: json!({"pg_num": groups.len()}),
        groups: named.collect(),
        degraded: Vec::new(),
    }
}

/// One placement group, which is where it is to be.
fn one(state: &str, acting: &[OsdId]) -> Case {
    case(&[(state, acting, acting)])
}

impl Case {
    fn down(self, down: &'static [OsdId]) -> Self {
        Self { down, ..self }
    }

    fn min_size(self, min_size: i64) -> Self {
        Self { min_size, ..self }
    }

    fn pool(self, fields: Value) -> Self {
        Self { pool: fields, ..self }
    }

    fn complete(mut self, osds: &[&str]) -> Self {
        self.degraded = vec![json!({"pgid": "1.0", "avail_no_missing": osds})];
        self
    }

    fn without(self, stopped: &[OsdId]) -> Testimony {
        let osds = (0..6).map(|id| json!({"osd": id, "up": !self.down.contains(&id), "in": 1}));
        let mut pool = json!({
            "pool": 1, "pool_name": "data", "crush_rule": 0, "size": self.size, "min_size": self.min_size, "pg_num": 1,
        });
        for (field, value) in self.pool.as_object().unwrap() {
            pool[field] = value.clone();
        }
        let dump = json!({"epoch": 1, "osds": osds.collect::<Vec<_>>(), "pools": [pool]});
        let bucket = |id: i64, type_id: i64, children: &[i64]| json!({"id": id, "name": "b", "type": "b", "type_id": type_id, "children": children});
        let tree = json!({"nodes": [
            bucket(-20, 8, &[-10, -11]), bucket(-21, 8, &[-12]),
            bucket(-10, 1, &[0, 1]), bucket(-11, 1, &[2, 3]), bucket(-12, 1, &[4, 5]),
        ]});
        let value = serde_json::from_value(json!({"pg_stats": self.groups}));
        let degraded = serde_json::from_value(json!({"pg_stats": self.degraded}));
        let stopped = stopped.iter().chain(self.down).copied().collect();
        PgReport::new(value.unwrap(), degraded.unwrap()).reckon(
            &serde_json::from_value(dump).unwrap(),
            &serde_json::from_value(tree).unwrap(),
            &stopped,
        )
    }
}

const CLEAN: &str = "active+clean";
const SHORT: &str = "active+undersized+degraded";

/// Of the pool in stretch mode: two sites.
fn stretched(mandatory: i64) -> Value {
    json!({
        "peering_crush_bucket_count": 2, "peering_crush_bucket_barrier": 8,
        "peering_crush_bucket_mandatory_member": mandatory,
    })
}

#[rstest]
#[case::enough_left(one(CLEAN, &[0, 2, 4]), &[0], Some(true))]
#[case::too_few_left(one(CLEAN, &[0, 2, 4]), &[0, 2], Some(false))]
#[case::not_touched(one(CLEAN, &[0, 2, 4]), &[1, 3], Some(true))]
#[case::min_size_one(one(CLEAN, &[0, 2, 4]).min_size(1), &[0, 2], Some(true))]
#[case::min_size_zero(one(CLEAN, &[0, 2, 4]).min_size(0), &[0, 2, 4], Some(false))]
#[case::unknown_member(one(CLEAN, &[0, 2, 9]), &[0], None)]
#[case::none_is_no_member(one("active+undersized", &[0, NONE, 4]), &[0], Some(false))]
#[case::twice_is_one_member(one(CLEAN, &[0, 2, 2]), &[0], Some(false))]
// Objects that lack copies.
#[case::all_left_complete(one("active+degraded", &[0, 2, 4]).complete(&["2", "4"]), &[0], Some(true))]
#[case::complete_one_stops(one("active+degraded", &[0, 2, 4]).complete(&["2", "4"]), &[2], Some(false))]
#[case::shards(one("active+degraded", &[0, 2, 4]).complete(&["2(1)", "4(2)"]), &[0], Some(true))]
#[case::complete_elsewhere(one("active+degraded", &[0, 2, 4]).complete(&["2", "5"]), &[0], Some(false))]
#[case::unreadable_shard(one("active+degraded", &[0, 2, 4]).complete(&["2", "x"]), &[0], Some(false))]
#[case::degraded_since(one("active+degraded", &[0, 2, 4]), &[0], None)]
// What serves no requests.
#[case::only_copy(one("undersized+degraded+peered", &[5]), &[5], Some(false))]
#[case::stuck_elsewhere(one("undersized+degraded+peered", &[5]), &[0], Some(true))]
#[case::down(one("down", &[0, 2]), &[0], Some(false))]
#[case::incomplete(one("remapped+incomplete", &[0, 2]), &[0], Some(false))]
#[case::peering(one("peering", &[0, 2, 4]), &[0], None)]
#[case::activating(one("activating+undersized", &[0, 2, 4]), &[0], None)]
#[case::stale(one("stale+active+clean", &[0, 2, 4]), &[0], None)]
#[case::stale_and_peered(one("stale+undersized+peered", &[0]), &[0], None)]
#[case::unknown(one("unknown", &[0, 2, 4]), &[0], None)]
// Where a backfill ends.
#[case::ends_with_enough(case(&[("active+remapped", &[0, 2, 4], &[1, 2, 4])]), &[0], Some(true))]
#[case::ends_with_too_few(case(&[("active+remapped", &[0, 2, 5], &[1, 3, 4])]), &[0, 2], Some(false))]
#[case::begins_with_too_few(case(&[("active+remapped", &[0, 2, 4], &[1, 3, 4])]), &[1, 3], Some(false))]
#[case::never_ends(case(&[("active+remapped", &[0], &[1, 3, 4])]), &[0], Some(true))]
// What is down.
#[case::down_member_is_asked_for(one(SHORT, &[2, 4]).complete(&["2", "4"]).down(&[0]), &[1], Some(true))]
#[case::second_member(one(SHORT, &[2, 4]).complete(&["2", "4"]).down(&[0]), &[2], Some(false))]
#[case::lost_by_what_is_down(one("undersized+peered", &[4]).down(&[0, 2]), &[1], Some(true))]
// Sites.
#[case::one_site_left(one(CLEAN, &[0, 2, 4, 5]).pool(stretched(NONE)), &[4, 5], Some(false))]
#[case::both_sites_left(one(CLEAN, &[0, 2, 4, 5]).pool(stretched(NONE)), &[2, 5], Some(true))]
#[case::mandatory_site_left(one(CLEAN, &[0, 2, 4, 5]).pool(stretched(-21)), &[0], Some(true))]
#[case::mandatory_site_is_another(one(CLEAN, &[0, 2, 4, 5]).pool(stretched(-22)), &[0], Some(false))]
// What is not listed.
#[case::splitting(one(CLEAN, &[0, 2, 4]).pool(json!({"pg_num": 2})), &[0], None)]
#[case::merging(one(CLEAN, &[0, 2, 4]).pool(json!({"pg_num": 0})), &[0], None)]
#[case::other_pool(one(CLEAN, &[0, 2, 4]).pool(json!({"pool": 2})), &[0], None)]
fn groups_are_reckoned(#[case] case: Case, #[case] stopped: &[OsdId], #[case] expected: Option<bool>) {
    let answer = StopAnswer {
        own: case.without(stopped),
        ..StopAnswer::default()
    };
    assert_eq!(answer.may_stop(&BTreeSet::new()), expected, "{answer:?}");
}

#[test]
fn member_that_the_map_calls_down_has_to_be_asked_for() {
    let groups_then = json!({"pg_stats": one(CLEAN, &[0, 2, 4]).groups});
    let stale = PgReport::new(serde_json::from_value(groups_then).unwrap(), DegradedPgs::default());
    let dump = json!({
        "epoch": 1, "osds": [{"osd": 0, "up": 0, "in": 1}, {"osd": 2, "up": 1, "in": 1}, {"osd": 4, "up": 1, "in": 1}],
        "pools": [{"pool": 1, "pool_name": "data", "crush_rule": 0, "size": 3, "min_size": 1, "pg_num": 1}],
    });
    let dump = serde_json::from_value(dump).unwrap();
    let without = |osds: &[OsdId]| stale.reckon(&dump, &OsdTree { nodes: Vec::new() }, &osds.iter().copied().collect());
    assert_eq!(without(&[2]).unknown, groups(&["1.0"]));
    assert_eq!(without(&[0, 2]), Testimony::default());
}

/// `osd ok-to-stop` of 20.2.4 looks at the last member of each acting set only. These are its own words, with two of three OSDs asked
/// for in a pool that needs two: the groups whose last member is another one are missing, and where all are, it says yes.
#[test]
fn faulty_release_is_overruled() {
    let verdict = |lost: &[&str]| {
        let answer = json!({"ok_to_stop": lost.is_empty(), "num_not_ok_pgs": lost.len(), "bad_become_inactive": lost});
        Testimony::of_ceph(&serde_json::from_value::<OkToStop>(answer).unwrap())
    };
    let answer = StopAnswer {
        ceph: verdict(&[]),
        own: one(CLEAN, &[0, 1, 2]).without(&[0, 1]),
    };
    assert_eq!(answer.may_stop(&BTreeSet::new()), Some(false));
    assert!(answer.is_disputed(&BTreeSet::new()));
    // With two OSDs down nothing serves, and none of them is up: nothing more is lost.
    let answer = StopAnswer {
        ceph: verdict(&[]),
        own: one("undersized+peered", &[0]).down(&[1, 2]).without(&[]),
    };
    assert_eq!(answer.may_stop(&BTreeSet::new()), Some(true));
}
