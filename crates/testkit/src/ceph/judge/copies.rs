//! How many copies placement groups have left without some OSDs, from the full `pg dump`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use rados::Cluster;
use serde_json::{Value, json};

use super::mon;

/// The placement groups that take requests now, and would take none without these OSDs: counted from the full dump, never by
/// `ok-to-stop`.
///
/// # Errors
/// Ceph does not answer.
pub fn too_few_copies(ceph: &Cluster, osds: &BTreeSet<usize>) -> Result<BTreeSet<String>> {
    let groups = json!({"prefix": "pg dump", "dumpcontents": ["pgs"], "format": "json"});
    let groups: Value = ceph.mgr_command(&groups)?.json()?;
    too_few(&groups, &mon(ceph, json!({"prefix": "osd dump"}))?, osds)
}

/// The active ones among `groups` that have fewer copies without these OSDs than their pool needs.
fn too_few(groups: &Value, osd_dump: &Value, osds: &BTreeSet<usize>) -> Result<BTreeSet<String>> {
    let pools = osd_dump["pools"].as_array().context("no pools")?.iter();
    let needed: BTreeMap<String, usize> = pools
        .filter_map(|pool| {
            Some((
                pool["pool"].to_string(),
                usize::try_from(pool["min_size"].as_u64()?).ok()?,
            ))
        })
        .collect();
    let groups = groups.get("pg_map").unwrap_or(groups)["pg_stats"].as_array();
    let mut lost = BTreeSet::new();
    for group in groups.context("no pg_stats")? {
        let (id, state) = (group["pgid"].as_str(), group["state"].as_str());
        let (id, state) = (id.context("no pgid")?, state.context("no state")?);
        let has = |flag: &str| state.split('+').any(|own| own == flag);
        let acting = group["acting"].as_array().context("no acting")?.iter();
        // A number that is none stands for a copy that is missing.
        let acting = acting.filter_map(|osd| i32::try_from(osd.as_i64()?).ok().filter(|osd| *osd < i32::MAX));
        let acting: BTreeSet<usize> = acting.filter_map(|osd| usize::try_from(osd).ok()).collect();
        let complete = group["avail_no_missing"].as_array().into_iter().flatten();
        let complete: BTreeSet<usize> = complete
            .filter_map(|shard| shard.as_str()?.split('(').next()?.parse().ok())
            .collect();
        let left = acting.iter().filter(|osd| !osds.contains(osd));
        let left = left.filter(|osd| !has("degraded") || complete.contains(osd)).count();
        let needed = needed.get(pool_of(id)).with_context(|| format!("no pool of {id}"))?;
        if has("active") && !acting.is_disjoint(osds) && left < *needed {
            lost.insert(id.to_owned());
        }
    }
    Ok(lost)
}

pub(super) fn pool_of(group: &str) -> &str {
    group.split_once('.').map_or(group, |(pool, _)| pool)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::too_few;

    #[rstest]
    #[case::enough("active+clean", &[0, 1, 2], &[], &[0], false)]
    #[case::too_few("active+clean", &[0, 1, 2], &[], &[0, 1], true)]
    #[case::missing_shard("active+undersized", &[0, 2_147_483_647, 2], &[], &[0], true)]
    #[case::incomplete_copy("active+degraded", &[0, 1, 2], &["0", "1(1)"], &[0], true)]
    #[case::complete_copies("active+degraded", &[0, 1, 2], &["0", "1(1)"], &[2], false)]
    #[case::elsewhere("active+undersized", &[0], &[], &[1], false)]
    #[case::without_service("undersized+peered", &[0], &[], &[0], false)]
    fn copies_are_counted(
        #[case] state: &str,
        #[case] acting: &[i64],
        #[case] complete: &[&str],
        #[case] without: &[usize],
        #[case] is_lost: bool,
    ) {
        let groups = json!({"pg_stats": [
            {"pgid": "3.1a", "state": state, "acting": acting, "avail_no_missing": complete},
        ]});
        let dump = json!({"pools": [{"pool": 3, "min_size": 2}]});
        let lost = too_few(&groups, &dump, &without.iter().copied().collect()).unwrap();
        assert_eq!(!lost.is_empty(), is_lost);
    }
}
