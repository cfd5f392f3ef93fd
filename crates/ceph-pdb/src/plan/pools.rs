//! Pools that cannot lose a host even when all is well, and what keeps a cluster from healing.

use std::collections::BTreeSet;

use super::facts::OsdView;
use super::osd_disruptions::domains;
use crate::ceph::answers::Pool;
use crate::ceph::topology::stops_with_one_host;
use crate::snapshot::CephView;

/// Flags of the whole cluster that keep missing copies from being made anew.
const BLOCKING_FLAGS: [&str; 6] = ["norecover", "nobackfill", "norebalance", "noup", "pauserd", "pausewr"];

/// The pools that stop with one host, whatever else is up.
pub(super) fn unsurvivable(view: &CephView) -> impl Iterator<Item = &Pool> {
    let map = &view.map;
    let pools = map.dump.pools.iter();
    pools.filter(|pool| stops_with_one_host(pool, &map.rules, &map.tree))
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
