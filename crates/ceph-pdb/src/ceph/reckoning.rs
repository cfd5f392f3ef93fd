//! Our own reckoning of the placement groups that would take no requests without some OSDs.

use std::collections::{BTreeMap, BTreeSet};

use super::OsdId;
use super::answers::{DegradedPgs, NONE, OsdDump, OsdTree, PgDump, PlacementGroup, Pool};
use super::stop_check::{PgId, PoolId, Testimony, all_of};
use super::topology::Buckets;

/// How many placement groups of each pool are in which state.
pub type PoolStates = BTreeMap<PoolId, BTreeMap<String, i64>>;

/// What the manager knows of the placement groups, at one moment.
#[derive(Debug, Clone, Default)]
pub struct PgReport {
    groups: Vec<PlacementGroup>,
    /// The OSDs that have all objects, by degraded placement group.
    complete: BTreeMap<PgId, BTreeSet<OsdId>>,
}

impl PgReport {
    /// What `pg dump pgs_brief` and `pg ls degraded` say.
    pub fn new(dump: PgDump, degraded: DegradedPgs) -> Self {
        // A shard is told as `3(1)`. One that cannot be read has no object.
        let osd = |shard: &String| shard.split('(').next()?.parse().ok();
        let degraded = degraded.pg_stats.into_iter();
        Self {
            groups: dump.pg_stats,
            complete: degraded
                .map(|group| (group.id, group.avail_no_missing.iter().filter_map(osd).collect()))
                .collect(),
        }
    }

    /// How many placement groups of each pool are in which state.
    pub fn states(&self) -> PoolStates {
        let mut states = PoolStates::new();
        for group in &self.groups {
            let of_pool = states.entry(group.pool().unwrap_or(NONE)).or_default();
            *of_pool.entry(group.state.clone()).or_default() += 1;
        }
        states
    }

    /// Which placement groups would take no requests without the OSDs `stopped`, which have to contain all that are down. The map
    /// has to be read after this report.
    pub fn reckon(&self, dump: &OsdDump, tree: &OsdTree, stopped: &BTreeSet<OsdId>) -> Testimony {
        let up = dump.osds.iter().filter(|osd| osd.up).map(|osd| osd.id);
        let up: BTreeSet<OsdId> = up.collect();
        let reckoner = Reckoner {
            report: self,
            pools: dump.pools.iter().map(|pool| (pool.id, pool)).collect(),
            stopping: &up & stopped,
            known: &up | stopped,
            stopped,
            buckets: Buckets::new(tree),
        };
        let mut testimony = Testimony::default();
        let mut listed: BTreeMap<PoolId, i64> = BTreeMap::new();
        for group in &self.groups {
            *listed.entry(group.pool().unwrap_or(NONE)).or_default() += 1;
            let told_as = match reckoner.serves(group) {
                Some(true) => continue,
                Some(false) => &mut testimony.lost,
                None => &mut testimony.unknown,
            };
            told_as.insert(group.id.clone());
        }
        // While a pool splits or merges, or is new, not all of its placement groups are listed.
        let pools = dump.pools.iter();
        let unlisted = pools.filter(|pool| listed.get(&pool.id).copied().unwrap_or_default() != pool.pg_num);
        testimony.unknown.extend(unlisted.map(|pool| all_of(pool.id)));
        testimony
    }
}

struct Reckoner<'a> {
    report: &'a PgReport,
    pools: BTreeMap<PoolId, &'a Pool>,
    /// OSDs that are up, and those that stop: no other serves a placement group.
    known: BTreeSet<OsdId>,
    /// Those among the ones that stop that are up.
    stopping: BTreeSet<OsdId>,
    stopped: &'a BTreeSet<OsdId>,
    buckets: Buckets<'a>,
}

impl Reckoner<'_> {
    /// Whether a placement group would take requests; `None` where that is not known. One that loses nothing does not count.
    fn serves(&self, group: &PlacementGroup) -> Option<bool> {
        let pool = self.pools.get(&group.pool()?)?;
        let acting: BTreeSet<OsdId> = members(&group.acting);
        let up: BTreeSet<OsdId> = members(&group.up);
        if !acting.is_subset(&self.known) {
            // The manager does not know yet what the map says.
            return None;
        }
        if acting.is_disjoint(&self.stopping) && up.is_disjoint(&self.stopping) {
            return Some(true);
        }
        if !group.is("active") || group.is("stale") {
            let is_stuck = ["peered", "down", "incomplete"].iter().any(|state| group.is(state));
            return (is_stuck && !group.is("stale")).then_some(false);
        }
        let mut left = &acting - self.stopped;
        if group.is("degraded") {
            left = &left & self.report.complete.get(&group.id)?;
        }
        // A backfill ends with the OSDs that are to have the group in place of those that have it, whatever the map says.
        let outlasts_backfill = !is_enough(&up, pool) || is_enough(&(&up - self.stopped), pool);
        Some(is_enough(&left, pool) && outlasts_backfill && self.is_spread(&left, pool))
    }

    /// In stretch mode, whether these OSDs lie in enough buckets, and in the one that has to be among them.
    fn is_spread(&self, osds: &BTreeSet<OsdId>, pool: &Pool) -> bool {
        if pool.peering_crush_bucket_count <= 0 {
            return true;
        }
        let above = osds.iter().flat_map(|osd| self.buckets.above(*osd));
        let barriers = above.filter(|bucket| bucket.type_id == pool.peering_crush_bucket_barrier);
        let buckets: BTreeSet<i64> = barriers.map(|bucket| bucket.id).collect();
        let mandatory = pool.peering_crush_bucket_mandatory_member;
        i64::try_from(buckets.len()).is_ok_and(|buckets| pool.peering_crush_bucket_count <= buckets)
            && (mandatory == NONE || buckets.contains(&mandatory))
    }
}

fn members(osds: &[OsdId]) -> BTreeSet<OsdId> {
    osds.iter().copied().filter(|osd| *osd != NONE).collect()
}

/// Whether a placement group takes requests with these.
fn is_enough(osds: &BTreeSet<OsdId>, pool: &Pool) -> bool {
    i64::try_from(osds.len()).is_ok_and(|osds| pool.min_size.max(1) <= osds)
}

#[cfg(test)]
mod tests;
