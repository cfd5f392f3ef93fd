//! May these OSDs stop? Two witnesses are asked, Ceph's `osd ok-to-stop` and our own reckoning from the placement groups, and the
//! stricter one holds: a release of Ceph may answer wrongly, and so may we.
//!
//! Both read the statistics of placement groups, so they prove nothing while these are stale.

use std::collections::BTreeSet;

use super::answers::OkToStop;

/// Number of a pool.
pub type PoolId = i64;

/// Name of a placement group, such as `2.1f`. [`all_of`] stands for all of a pool.
pub type PgId = String;

/// In place of a placement group that a refusal does not name: it belongs to no pool that could be left out.
const UNNAMED: &str = "unnamed";

/// What one witness says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Testimony {
    /// Placement groups that would take no requests.
    pub lost: BTreeSet<PgId>,
    /// Those of which nothing can be said yet.
    pub unknown: BTreeSet<PgId>,
}

impl Testimony {
    /// Whether the OSDs may stop, pools `left_out` aside; `None` where that is not known.
    fn may_stop(&self, left_out: &BTreeSet<PoolId>) -> Option<bool> {
        // A placement group whose pool cannot be told counts.
        let counts = |group: &PgId| pool_of(group).is_none_or(|pool| !left_out.contains(&pool));
        if self.lost.iter().any(counts) {
            Some(false)
        } else if self.unknown.iter().any(counts) {
            None
        } else {
            Some(true)
        }
    }

    /// What `osd ok-to-stop` says. Its parts have to agree, else nothing is known.
    pub fn of_ceph(answer: &OkToStop) -> Self {
        let lost = [
            &answer.bad_become_inactive,
            &answer.bad_already_inactive,
            &answer.bad_no_pool_pgs,
        ];
        let mut said = Self {
            lost: lost.into_iter().flatten().cloned().collect(),
            unknown: answer.unknown_pgs.clone(),
        };
        let is_safe = answer.num_not_ok_pgs == 0 && said.unknown.is_empty();
        if answer.ok_to_stop != is_safe || (is_safe && !said.lost.is_empty()) {
            said.unknown.insert(UNNAMED.to_owned());
        } else if answer.num_not_ok_pgs != 0 && said.lost.is_empty() {
            said.lost.insert(UNNAMED.to_owned());
        }
        said
    }
}

/// What both witnesses say of the same OSDs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopAnswer {
    /// Ceph.
    pub ceph: Testimony,
    /// Our own reckoning.
    pub own: Testimony,
}

impl StopAnswer {
    /// Whether the OSDs may stop together, pools `left_out` aside: only if both say so. `None` where that is not known.
    pub fn may_stop(&self, left_out: &BTreeSet<PoolId>) -> Option<bool> {
        match (self.ceph.may_stop(left_out), self.own.may_stop(left_out)) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            (None, _) | (_, None) => None,
        }
    }

    /// One says yes, and the other one no.
    pub fn is_disputed(&self, left_out: &BTreeSet<PoolId>) -> bool {
        let said = self.ceph.may_stop(left_out).zip(self.own.may_stop(left_out));
        said.is_some_and(|(ceph, own)| ceph != own)
    }

    /// The placement groups of which nothing can be said yet.
    pub fn unknown(&self) -> BTreeSet<&PgId> {
        self.ceph.unknown.union(&self.own.unknown).collect()
    }

    /// The pools that would lose placement groups, by either witness.
    pub fn pools_that_stop(&self) -> impl Iterator<Item = PoolId> {
        self.ceph.lost.union(&self.own.lost).filter_map(|group| pool_of(group))
    }
}

/// Stands for all placement groups of a pool.
pub fn all_of(pool: PoolId) -> PgId {
    format!("{pool}.*")
}

/// The pool of a placement group.
pub fn pool_of(group: &str) -> Option<PoolId> {
    group.split_once('.')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::{StopAnswer, Testimony, all_of};
    use crate::ceph::answers::OkToStop;

    fn of_ceph(answer: Value) -> Testimony {
        Testimony::of_ceph(&serde_json::from_value::<OkToStop>(answer).unwrap())
    }

    fn testimony(lost: &[&str], unknown: &[&str]) -> Testimony {
        let names = |groups: &[&str]| groups.iter().map(|group| (*group).to_owned()).collect();
        Testimony {
            lost: names(lost),
            unknown: names(unknown),
        }
    }

    #[rstest]
    #[case::safe(json!({"ok_to_stop": true, "num_not_ok_pgs": 0}), Some(true))]
    #[case::loses_one(json!({"ok_to_stop": false, "num_not_ok_pgs": 1, "bad_become_inactive": ["2.1"]}), Some(false))]
    #[case::lost_already(json!({"ok_to_stop": false, "num_not_ok_pgs": 1, "bad_become_inactive": ["2.1"], "bad_already_inactive": ["2.1"]}), Some(false))]
    #[case::no_pool(json!({"ok_to_stop": false, "num_not_ok_pgs": 1, "bad_no_pool_pgs": ["2.1"]}), Some(false))]
    #[case::refuses_without_names(json!({"ok_to_stop": false, "num_not_ok_pgs": 1}), Some(false))]
    #[case::left_out(json!({"ok_to_stop": false, "num_not_ok_pgs": 2, "bad_become_inactive": ["7.0", "7.1f"]}), Some(true))]
    #[case::left_out_and_one(json!({"ok_to_stop": false, "num_not_ok_pgs": 2, "bad_become_inactive": ["7.0", "2.0"]}), Some(false))]
    #[case::unreadable(json!({"ok_to_stop": false, "num_not_ok_pgs": 1, "bad_become_inactive": ["x"]}), Some(false))]
    #[case::not_known(json!({"ok_to_stop": false, "num_not_ok_pgs": 0, "unknown_pgs": ["2.0"]}), None)]
    #[case::yes_against_its_count(json!({"ok_to_stop": true, "num_not_ok_pgs": 1}), None)]
    #[case::no_against_its_count(json!({"ok_to_stop": false, "num_not_ok_pgs": 0}), None)]
    #[case::yes_with_unknown(json!({"ok_to_stop": true, "num_not_ok_pgs": 0, "unknown_pgs": ["2.0"]}), None)]
    #[case::yes_against_its_list(json!({"ok_to_stop": true, "num_not_ok_pgs": 0, "bad_become_inactive": ["2.0"]}), Some(false))]
    fn ceph_is_judged_by_placement_group(#[case] said: Value, #[case] expected: Option<bool>) {
        assert_eq!(of_ceph(said).may_stop(&BTreeSet::from([7])), expected);
    }

    #[rstest]
    #[case::empty(json!({}))]
    #[case::without_verdict(json!({"num_not_ok_pgs": 0}))]
    #[case::without_count(json!({"ok_to_stop": true}))]
    #[case::verdict_of_another_type(json!({"ok_to_stop": "yes", "num_not_ok_pgs": 0}))]
    #[case::list_of_another_type(json!({"ok_to_stop": true, "num_not_ok_pgs": 0, "unknown_pgs": 3}))]
    fn answer_of_another_shape_is_none(#[case] said: Value) {
        assert!(serde_json::from_value::<OkToStop>(said).is_err());
    }

    #[rstest]
    #[case::both_agree(testimony(&[], &[]), testimony(&[], &[]), Some(true), false)]
    #[case::both_refuse(testimony(&["2.0"], &[]), testimony(&["2.1"], &[]), Some(false), false)]
    #[case::ceph_refuses(testimony(&["2.0"], &[]), testimony(&[], &[]), Some(false), true)]
    #[case::own_refuses(testimony(&[], &[]), testimony(&["2.0"], &[]), Some(false), true)]
    #[case::own_refuses_beside_unknown(testimony(&[], &["2.1"]), testimony(&["2.0"], &[]), Some(false), false)]
    #[case::ceph_does_not_know(testimony(&[], &["2.1"]), testimony(&[], &[]), None, false)]
    #[case::own_does_not_know(testimony(&[], &[]), testimony(&[], &[&all_of(2)]), None, false)]
    #[case::left_out(testimony(&["7.0"], &[]), testimony(&[], &[&all_of(7)]), Some(true), false)]
    fn stricter_witness_holds(
        #[case] ceph: Testimony,
        #[case] own: Testimony,
        #[case] expected: Option<bool>,
        #[case] is_disputed: bool,
    ) {
        let (answer, left_out) = (StopAnswer { ceph, own }, BTreeSet::from([7]));
        assert_eq!(answer.may_stop(&left_out), expected);
        assert_eq!(answer.is_disputed(&left_out), is_disputed);
    }

    #[test]
    fn pools_are_told_from_their_placement_groups() {
        let answer = StopAnswer {
            ceph: testimony(&["7.0", "7.1", "x"], &[]),
            own: testimony(&["12.a"], &["3.0"]),
        };
        assert_eq!(
            answer.pools_that_stop().collect::<BTreeSet<_>>(),
            BTreeSet::from([7, 12])
        );
        assert_eq!(answer.unknown().len(), 1);
    }
}
