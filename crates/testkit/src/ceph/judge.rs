//! Whether evictions are safe, by the placement groups: which of them would have too few copies left.
//!
//! It reckons by code of its own, and never asks `ok-to-stop`, which is wrong in some releases. Other than the operator, this sees for each placement group whether the manager knows of it what the map says: the same OSDs,
//! reported since the last of them came up.

mod copies;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rados::{Cluster, Librados};
use serde_json::{Value, json};

use self::copies::pool_of;
pub use self::copies::too_few_copies;
use super::{Ceph, CephOptions};
use crate::{lock, wait};

/// Between observations of the cluster.
const PACE: Duration = Duration::from_millis(200);

/// How many of the last observations are kept: an eviction is judged by one from before it was asked for.
const KEPT: usize = 100;

/// How long statistics may take to tell of what has happened, on a loaded machine.
const TOLD_WITHIN: Duration = Duration::from_mins(3);

/// Which OSDs there were at a moment.
#[derive(Debug)]
struct Osds {
    ended: Instant,
    /// Those that are up, each with the epoch since which it is.
    up: BTreeMap<usize, i64>,
    down: BTreeSet<usize>,
}

/// One observation of the cluster.
#[derive(Debug)]
struct Observation {
    ended: Instant,
    osds: Osds,
    groups: Vec<PlacementGroup>,
    /// OSDs that have come up since all were last whole. All that lacks is copies of theirs.
    returned: BTreeSet<usize>,
}

#[derive(Debug)]
struct PlacementGroup {
    id: String,
    state: String,
    /// Its OSDs as the manager knows them, and as the map says.
    known: Members,
    mapped: Members,
    /// The epoch of which the manager knows.
    reported: i64,
}

/// The OSDs of a placement group, in its order.
#[derive(Debug)]
struct Members {
    up: Vec<usize>,
    acting: Vec<usize>,
}

impl Members {
    /// An OSD that is missing has a number that is none.
    fn of(value: &Value, osds: &Osds) -> Result<Self> {
        let members = |set: &str| -> Result<Vec<usize>> {
            let ids = value[set].as_array().with_context(|| format!("no {set}"))?.iter();
            let ids = ids.filter_map(|osd| usize::try_from(osd.as_i64()?).ok());
            Ok(ids.filter(|osd| osds.knows(*osd)).collect())
        };
        Ok(Self {
            up: members("up")?,
            acting: members("acting")?,
        })
    }
}

impl PlacementGroup {
    fn of(ceph: &Cluster, known: &Value, osds: &Osds) -> Result<Self> {
        let id = known["pgid"].as_str().context("no pgid")?.to_owned();
        let map = mon(ceph, json!({"prefix": "pg map", "pgid": id}))?;
        Ok(Self {
            id,
            state: known["state"].as_str().context("no state")?.to_owned(),
            known: Members::of(known, osds)?,
            mapped: Members::of(&map, osds)?,
            reported: number(&known["reported_epoch"]).context("no reported_epoch")?,
        })
    }

    /// The manager knows what the map says of all but the OSDs `aside`.
    fn is_current(&self, osds: &Osds, aside: &BTreeSet<usize>) -> bool {
        let others = |members: &[usize]| -> Vec<usize> {
            let others = members.iter().filter(|osd| !aside.contains(osd));
            others.copied().collect()
        };
        let acting = others(&self.mapped.acting);
        let last_change = acting.iter().filter_map(|osd| osds.up.get(osd)).max();
        others(&self.known.up) == others(&self.mapped.up)
            && others(&self.known.acting) == acting
            && last_change.is_none_or(|since| *since <= self.reported)
    }

    fn has(&self, flag: &str) -> bool {
        self.state.split('+').any(|own| own == flag)
    }

    fn lacks_a_copy(&self) -> bool {
        !self.has("active") || self.has("degraded") || self.has("undersized")
    }
}

impl Osds {
    fn take(ceph: &Cluster) -> Result<Self> {
        let dump = mon(ceph, json!({"prefix": "osd dump"}))?;
        let (mut up, mut down) = (BTreeMap::new(), BTreeSet::new());
        for osd in dump["osds"].as_array().context("no osds")? {
            let id = usize::try_from(osd["osd"].as_i64().context("no number")?)?;
            if osd["up"] == 1 {
                up.insert(id, osd["up_from"].as_i64().context("no up_from")?);
            } else {
                down.insert(id);
            }
        }
        Ok(Self {
            ended: Instant::now(),
            up,
            down,
        })
    }

    fn knows(&self, osd: usize) -> bool {
        self.up.contains_key(&osd) || self.down.contains(&osd)
    }
}

impl Observation {
    fn take(ceph: &Cluster) -> Result<Self> {
        let osds = Osds::take(ceph)?;
        let dump = json!({"prefix": "pg dump", "dumpcontents": ["pgs"], "format": "json"});
        let dump: Value = ceph.mgr_command(&dump)?.json()?;
        let dump = dump.get("pg_map").unwrap_or(&dump);
        let known = dump["pg_stats"].as_array().context("no pg_stats")?;
        // All at once: what takes long is old when it is judged by.
        let groups = std::thread::scope(|scope| {
            let asked: Vec<_> = known
                .iter()
                .map(|known| scope.spawn(|| PlacementGroup::of(ceph, known, &osds)))
                .collect();
            let answers = asked
                .into_iter()
                .map(|asked| asked.join().ok().context("a question has panicked")?);
            answers.collect::<Result<Vec<_>>>()
        })?;
        Ok(Self {
            ended: Instant::now(),
            osds,
            groups,
            returned: BTreeSet::new(),
        })
    }

    fn is_current(&self) -> bool {
        let is_current = |group: &PlacementGroup| group.is_current(&self.osds, &BTreeSet::new());
        !self.groups.is_empty() && self.groups.iter().all(is_current)
    }

    /// The placement groups that no eviction may meet, each with what is known of it; all but the pools that are `left_out` have to
    /// serve. While all OSDs are up nothing may lack a copy, except of the OSDs `aside`: the rest has served without these, and
    /// would do so again.
    fn unsound(
        &self,
        all_are_up: bool,
        aside: &BTreeSet<usize>,
        left_out: &BTreeSet<String>,
    ) -> BTreeMap<String, String> {
        let is_unsound = |group: &&PlacementGroup| {
            let counts = !left_out.contains(pool_of(&group.id));
            !group.is_current(&self.osds, aside)
                || (counts && !group.has("active"))
                || (all_are_up && aside.is_empty() && group.lacks_a_copy())
        };
        let unsound = self.groups.iter().filter(is_unsound);
        unsound.map(|group| (group.id.clone(), format!("{group:?}"))).collect()
    }

    /// Finds which OSDs have returned since all were last `whole`.
    fn follows(&mut self, whole: &mut BTreeMap<usize, i64>) {
        if self.is_whole() {
            whole.clone_from(&self.osds.up);
        }
        let returned = self.osds.up.iter().filter(|(osd, since)| whole.get(osd) != Some(since));
        self.returned = returned.map(|(osd, _)| *osd).collect();
    }

    /// All OSDs are up, and have all copies.
    fn is_whole(&self) -> bool {
        self.osds.down.is_empty() && self.is_current() && !self.groups.iter().any(PlacementGroup::lacks_a_copy)
    }
}

/// Follows a cluster, and judges evictions.
pub struct Judge {
    ceph: Arc<Cluster>,
    options: CephOptions,
    /// Pools that cannot lose a failure domain even when all is well.
    left_out: BTreeSet<String>,
    observations: Mutex<Vec<Observation>>,
    /// The epochs since which OSDs were up when all were last whole.
    whole: Mutex<BTreeMap<usize, i64>>,
    /// Taken more often.
    osds: Mutex<Vec<Osds>>,
    /// OSDs that were evicted, each with the epoch since which it was up.
    evicted: Mutex<BTreeMap<usize, i64>>,
}

impl Judge {
    /// While all is well.
    ///
    /// # Errors
    /// When Ceph does not answer, or not all is well.
    pub async fn new(ceph: &Ceph) -> Result<Self> {
        let (admin, options) = (ceph.admin().clone(), ceph.options().clone());
        let judge = tokio::task::spawn_blocking(move || -> Result<Self> {
            let ceph = Arc::new(Cluster::connect(Librados::load()?, admin)?);
            let mut left_out = BTreeSet::new();
            for rack in 0..options.racks {
                let name = options.rack_of_host(rack);
                left_out.extend(
                    too_few_copies(&ceph, &osds_of(&options, &name))?
                        .iter()
                        .map(|group| pool_of(group).to_owned()),
                );
            }
            Ok(Self {
                ceph,
                options,
                left_out,
                observations: Mutex::default(),
                whole: Mutex::default(),
                osds: Mutex::default(),
                evicted: Mutex::default(),
            })
        });
        let judge = judge.await??;
        let (observation, all) = (judge.observe().await?, judge.options.osds());
        ensure!(
            observation.is_current() && observation.osds.up.len() == all,
            "not all is well: {observation:?}"
        );
        judge.record(observation);
        Ok(judge)
    }

    /// The numbers of the pools that no judgement counts.
    pub fn left_out(&self) -> &BTreeSet<String> {
        &self.left_out
    }

    /// Observes the cluster for as long as it is waited for.
    ///
    /// # Errors
    /// When Ceph does not answer.
    pub async fn follow(&self) -> Result<Infallible> {
        let whole = async {
            let mut pace = tokio::time::interval(PACE);
            loop {
                pace.tick().await;
                let observation = self.observe().await?;
                self.record(observation);
            }
        };
        let osds = async {
            let mut pace = tokio::time::interval(PACE);
            loop {
                pace.tick().await;
                let ceph = Arc::clone(&self.ceph);
                let osds = tokio::task::spawn_blocking(move || Osds::take(&ceph)).await??;
                keep(&mut lock(&self.osds), osds);
            }
        };
        tokio::select! {
            failed = whole => failed,
            failed = osds => failed,
        }
    }

    async fn observe(&self) -> Result<Observation> {
        let ceph = Arc::clone(&self.ceph);
        tokio::task::spawn_blocking(move || Observation::take(&ceph)).await?
    }

    /// Waits until statistics know of these OSDs' end, and of no other's, and placement groups take requests again: of those
    /// that still peer nothing can be said.
    ///
    /// # Errors
    /// They do not in time.
    pub async fn knows_down(&self, osds: &[usize]) -> Result<()> {
        wait::until(format!("statistics without {osds:?}"), TOLD_WITHIN, || async {
            let observation = self.observe().await?;
            ensure!(
                observation.is_current() && observation.osds.down.iter().eq(osds),
                "{observation:?}"
            );
            let unsound = observation.unsound(false, &BTreeSet::new(), &self.left_out);
            ensure!(unsound.is_empty(), "{unsound:?}");
            self.record(observation);
            Ok(())
        })
        .await
    }

    fn record(&self, mut observation: Observation) {
        observation.follows(&mut lock(&self.whole));
        keep(&mut lock(&self.observations), observation);
    }

    /// Judges an eviction that has just been allowed, and was asked for at `asked`: with all that was down then, and on its way.
    ///
    /// # Errors
    /// When it was not safe: why; or when Ceph does not answer.
    pub async fn judge(&self, osd: usize, asked: Instant) -> Result<()> {
        let rack = self.options.rack_of(osd);
        let (mut wrong, together, aside, unsound) = {
            let observations = lock(&self.observations);
            let before = observations.iter().rev().find(|observation| observation.ended <= asked);
            let before = before.context("the judge had not looked")?;
            let osds = lock(&self.osds);
            let osds = osds.iter().rev().find(|osds| osds.ended <= asked);
            let osds = osds
                .filter(|osds| osds.ended > before.osds.ended)
                .unwrap_or(&before.osds);
            let mut evicted = lock(&self.evicted);
            evicted.retain(|osd, since| osds.up.get(osd).is_none_or(|now| now <= since));
            let others: BTreeSet<usize> = osds.down.iter().chain(evicted.keys()).copied().collect();
            evicted.insert(osd, osds.up.get(&osd).copied().unwrap_or(i64::MAX));
            let mut wrong = Vec::new();
            if others.iter().any(|other| self.options.rack_of(*other) != rack) {
                wrong.push(format!("while {others:?} are down"));
            }
            // What is away, and what lacks copies, is this rack alone: the rest has served without it, and would again, whether
            // or not statistics tell of it yet.
            let of_rack: BTreeSet<usize> = others.union(&before.returned).copied().collect();
            let aside = if of_rack.is_subset(&osds_of(&self.options, &rack)) {
                of_rack
            } else {
                BTreeSet::new()
            };
            let unsound = before.unsound(others.is_empty(), &aside, &self.left_out);
            (
                wrong,
                others.into_iter().chain([osd]).collect::<BTreeSet<usize>>(),
                aside,
                unsound,
            )
        };
        if !unsound.is_empty() {
            // The observation may be older than what the operator knew. What was mended before the eviction still is.
            let now = self.observe().await?;
            let now = now.unsound(together.len() == 1, &aside, &self.left_out);
            let still: Vec<&String> = unsound
                .iter()
                .filter_map(|(id, why)| now.contains_key(id).then_some(why))
                .collect();
            if !still.is_empty() {
                wrong.push(format!("at {still:?}"));
            }
        }
        let (ceph, asked_about) = (Arc::clone(&self.ceph), together.clone());
        let lost = tokio::task::spawn_blocking(move || too_few_copies(&ceph, &asked_about)).await??;
        let counted: Vec<&String> = lost
            .iter()
            .filter(|group| !self.left_out.contains(pool_of(group)))
            .collect();
        if !counted.is_empty() {
            wrong.push(format!("although {counted:?} have too few copies without {together:?}"));
        }
        ensure!(wrong.is_empty(), "OSD {osd} was evicted {}", wrong.join(", and "));
        Ok(())
    }
}

/// Adds one, and drops the oldest of too many.
fn keep<T>(all: &mut Vec<T>, one: T) {
    if all.len() >= KEPT {
        all.remove(0);
    }
    all.push(one);
}

fn osds_of(options: &CephOptions, rack: &str) -> BTreeSet<usize> {
    let osds = (0..options.osds()).filter(|osd| options.rack_of(*osd) == rack);
    osds.collect()
}

fn mon(ceph: &Cluster, mut command: Value) -> Result<Value> {
    command["format"] = "json".into();
    Ok(ceph.mon_command(&command)?.json()?)
}

/// Some numbers are printed as strings.
fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three OSDs that are up since these epochs, and one placement group of which the manager has this report.
    fn observation(up: [i64; 3], state: &str, acting: &[usize], reported: i64) -> Observation {
        let members = |acting: &[usize]| Members {
            up: acting.to_vec(),
            acting: acting.to_vec(),
        };
        Observation {
            ended: Instant::now(),
            osds: Osds {
                ended: Instant::now(),
                up: up.into_iter().enumerate().collect(),
                down: BTreeSet::new(),
            },
            groups: vec![PlacementGroup {
                id: "1.0".to_owned(),
                state: state.to_owned(),
                known: members(acting),
                mapped: members(&[0, 1, 2]),
                reported,
            }],
            returned: BTreeSet::new(),
        }
    }

    #[test]
    fn osd_that_has_returned_may_go_again_and_no_other() {
        let mut whole = BTreeMap::new();
        let mut well = observation([5, 6, 7], "active+clean", &[0, 1, 2], 8);
        well.follows(&mut whole);
        assert_eq!(well.returned, [].into());
        for (state, acting, reported) in [
            // OSD 1 is up again, and the manager does not know yet.
            ("active+undersized", &[0, 2][..], 11),
            ("active+recovering+degraded", &[0, 1, 2], 13),
        ] {
            let mut after = observation([5, 12, 7], state, acting, reported);
            after.follows(&mut whole);
            assert_eq!(after.returned, [1].into(), "{state}");
            let unsound = |aside: &BTreeSet<usize>| after.unsound(true, aside, &BTreeSet::new()).len();
            assert_eq!((unsound(&[1].into()), unsound(&[].into())), (0, 1), "{state}");
        }
    }

    #[test]
    fn what_else_lacks_a_copy_counts_beside_an_osd_that_has_returned() {
        for (up, state, acting, reported) in [
            // OSD 2 has come back, too, and the manager does not know.
            ([5, 12, 14], "active+undersized", &[0, 2][..], 11),
            ([5, 12, 7], "undersized+peered", &[0], 11),
            ([5, 12, 7], "peering", &[0, 1, 2], 13),
        ] {
            let unsound = observation(up, state, acting, reported).unsound(true, &[1].into(), &BTreeSet::new());
            assert_eq!(unsound.len(), 1, "{state}");
        }
    }
}
