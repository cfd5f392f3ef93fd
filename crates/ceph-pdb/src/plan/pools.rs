//! Pools that cannot lose a failure domain even when all is well, and what keeps a cluster from healing.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use nodeward_api::ceph_state::{UnsurvivablePool, UnsurvivablePools};

use super::facts::OsdView;
use super::osd_disruptions::{domains, members};
use crate::ceph::OsdId;
use crate::ceph::answers::Pool;
use crate::ceph::stop_check::{PoolId, StopAnswer};
use crate::snapshot::CephView;

/// Flags of the whole cluster that keep missing copies from being made anew.
const BLOCKING_FLAGS: [&str; 6] = ["norecover", "nobackfill", "norebalance", "noup", "pauserd", "pausewr"];

/// The pools that were judged, as far as they still are as they were.
pub(super) fn still_unsurvivable<'a>(
    judged: &'a UnsurvivablePools,
    view: Option<&'a CephView>,
) -> impl Iterator<Item = &'a UnsurvivablePool> {
    judged.pools.iter().filter(move |judged| {
        let is_as_judged =
            |pool: &Pool| (pool.id, pool.size, pool.min_size) == (judged.id, judged.size, judged.min_size);
        view.is_none_or(|view| view.map.dump.pools.iter().any(is_as_judged))
    })
}

/// Judges, on clean and fresh statistics with all OSDs up: what is asked, and the judgement once all is answered. `None`
/// where what was judged last is still the same.
pub(super) fn judge(
    osds: &OsdView,
    view: &CephView,
    judged: &UnsurvivablePools,
) -> Option<(BTreeSet<BTreeSet<OsdId>>, Option<UnsurvivablePools>)> {
    let basis = basis(osds, view);
    if judged.basis == basis {
        return None;
    }
    let questions: BTreeSet<BTreeSet<OsdId>> = domains(&osds.osds)
        .iter()
        .map(|domain| members(&osds.osds, domain))
        .collect();
    let answers: Option<Vec<_>> = questions.iter().map(|osds| view.stop_answers.get(osds)).collect();
    let judgement = answers.map(|answers| {
        let stopped: BTreeSet<PoolId> = answers.into_iter().flat_map(StopAnswer::pools_that_stop).collect();
        let pools = view.map.dump.pools.iter().filter(|pool| stopped.contains(&pool.id));
        let pools = pools.map(|pool| UnsurvivablePool {
            id: pool.id,
            name: pool.name.clone(),
            size: pool.size,
            min_size: pool.min_size,
        });
        UnsurvivablePools {
            basis,
            pools: pools.collect(),
        }
    });
    Some((questions, judgement))
}

/// Identifies what a judgement depends on: pools, and where OSDs are.
fn basis(osds: &OsdView, view: &CephView) -> String {
    let mut hasher = DefaultHasher::new();
    osds.domain_type.name().hash(&mut hasher);
    for (id, osd) in &osds.osds {
        (id, &osd.domain).hash(&mut hasher);
    }
    for pool in &view.map.dump.pools {
        (pool.id, pool.crush_rule, pool.size, pool.min_size).hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

/// Why missing copies cannot be made anew while OSDs are down: flags, or too few domains that are left.
pub(super) fn obstacles_to_healing(osds: &OsdView, view: &CephView) -> Vec<String> {
    let set = &view.map.dump.flags_set;
    let flags = BLOCKING_FLAGS.iter().filter(|flag| set.contains(**flag));
    let mut obstacles: Vec<String> = flags.map(|flag| format!("flag {flag} is set")).collect();
    let all = domains(&osds.osds).len();
    let up = osds.osds.values().filter(|osd| !osd.is_down);
    let left = up.filter_map(|osd| osd.domain.as_ref()).collect::<BTreeSet<_>>().len();
    let is_short = |size: i64| left < all.min(usize::try_from(size).unwrap_or(usize::MAX));
    let short = view.map.dump.pools.iter().filter(|pool| is_short(pool.size));
    let short: Vec<&str> = short.map(|pool| pool.name.as_str()).collect();
    if !short.is_empty() {
        let (domain_type, pools) = (osds.domain_type, short.join(", "));
        obstacles.push(format!(
            "{left} of type {domain_type} are left, too few for pools {pools}"
        ));
    }
    obstacles
}
