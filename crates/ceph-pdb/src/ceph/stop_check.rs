//! What `osd ok-to-stop` means. It reads the statistics of the placement groups, so it proves nothing while these are stale, and
//! it says yes to OSDs that it does not know.

use std::collections::BTreeSet;

use super::answers::OkToStop;

/// Number of a pool.
pub type PoolId = i64;

/// Whether the OSDs asked for may be down together, pools `left_out` aside; `None` where the manager does not know yet. A
/// placement group that takes no requests already loses nothing more.
pub fn may_stop(answer: &OkToStop, left_out: &BTreeSet<PoolId>) -> Option<bool> {
    if !answer.unknown_pgs.is_empty() {
        return None;
    }
    let lost = answer.bad_become_inactive.difference(&answer.bad_already_inactive);
    // A placement group whose pool cannot be told counts.
    let mut counted = lost.filter(|pg| pool_of(pg).is_none_or(|pool| !left_out.contains(&pool)));
    Some(counted.next().is_none())
}

/// The pools that cannot lose what was asked for. Of a whole failure domain while all is well: they can lose none.
pub fn pools_that_stop(answer: &OkToStop) -> BTreeSet<PoolId> {
    answer.bad_become_inactive.iter().filter_map(|pg| pool_of(pg)).collect()
}

/// The pool of a placement group such as `2.1f`.
fn pool_of(placement_group: &str) -> Option<PoolId> {
    placement_group.split_once('.')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::{may_stop, pools_that_stop};
    use crate::ceph::answers::OkToStop;

    fn answer(answer: Value) -> OkToStop {
        serde_json::from_value(answer).unwrap()
    }

    #[rstest]
    #[case::safe(json!({"ok_to_stop": true}), Some(true))]
    #[case::loses_one(json!({"bad_become_inactive": ["2.1"]}), Some(false))]
    #[case::lost_already(json!({"bad_become_inactive": ["2.1"], "bad_already_inactive": ["2.1"]}), Some(true))]
    #[case::loses_another(json!({"bad_become_inactive": ["2.1", "2.2"], "bad_already_inactive": ["2.1"]}), Some(false))]
    #[case::left_out(json!({"bad_become_inactive": ["7.0", "7.1f"]}), Some(true))]
    #[case::left_out_and_one(json!({"bad_become_inactive": ["7.0", "2.0"]}), Some(false))]
    #[case::unreadable(json!({"bad_become_inactive": ["x"]}), Some(false))]
    #[case::not_known(json!({"ok_to_stop": false, "unknown_pgs": ["2.0"]}), None)]
    fn answers_are_judged_by_placement_group(#[case] said: Value, #[case] expected: Option<bool>) {
        assert_eq!(may_stop(&answer(said), &BTreeSet::from([7])), expected);
    }

    #[test]
    fn pools_are_told_from_their_placement_groups() {
        let said = answer(json!({"bad_become_inactive": ["7.0", "7.1", "12.a", "x"]}));
        assert_eq!(pools_that_stop(&said), BTreeSet::from([7, 12]));
    }
}
