//! Whether evictions are safe, by Ceph's own word: the manager's `ok-to-stop` on statistics that know of the map.
//!
//! Other than the operator, this sees for each placement group whether the manager knows of it what the map says: the same OSDs,
//! reported since the last of them came up.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rados::{Cluster, Librados};
use serde_json::{Value, json};

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
}

#[derive(Debug)]
struct PlacementGroup {
    id: String,
    state: String,
    /// The manager knows what the map says.
    is_current: bool,
}

impl PlacementGroup {
    fn of(ceph: &Cluster, known: &Value, osds: &Osds) -> Result<Self> {
        let id = known["pgid"].as_str().context("no pgid")?.to_owned();
        let map = mon(ceph, json!({"prefix": "pg map", "pgid": id}))?;
        let members = map["acting"].as_array().context("no acting")?.iter();
        let members = members.filter_map(|osd| osds.up.get(&usize::try_from(osd.as_u64()?).ok()?));
        let last_change = members.max().copied().unwrap_or_default();
        let is_same = ["up", "acting"].iter().all(|set| known[set] == map[set]);
        Ok(Self {
            id,
            state: known["state"].as_str().context("no state")?.to_owned(),
            is_current: is_same && number(&known["reported_epoch"]) >= Some(last_change),
        })
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
        })
    }

    fn is_current(&self) -> bool {
        !self.groups.is_empty() && self.groups.iter().all(|group| group.is_current)
    }
}

/// Follows a cluster, and judges evictions.
pub struct Judge {
    ceph: Arc<Cluster>,
    options: CephOptions,
    /// Pools that cannot lose a failure domain even when all is well.
    left_out: BTreeSet<String>,
    observations: Mutex<Vec<Observation>>,
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
                let osds: BTreeSet<usize> = (0..options.osds())
                    .filter(|osd| options.rack_of(*osd) == name)
                    .collect();
                left_out.extend(lost(&ceph, &osds)?.iter().map(|group| pool_of(group).to_owned()));
            }
            Ok(Self {
                ceph,
                options,
                left_out,
                observations: Mutex::default(),
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
        lock(&judge.observations).push(observation);
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
                keep(&mut lock(&self.observations), observation);
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
    /// that still peer `ok-to-stop` says nothing.
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
            let unsound = self.unsound(&observation, false);
            ensure!(unsound.is_empty(), "{unsound:?}");
            lock(&self.observations).push(observation);
            Ok(())
        })
        .await
    }

    /// The placement groups that no eviction may meet, each with what is known of it.
    fn unsound(&self, observation: &Observation, all_are_up: bool) -> BTreeMap<String, String> {
        let is_unsound = |group: &&PlacementGroup| {
            let counts = !self.left_out.contains(pool_of(&group.id));
            !group.is_current || (counts && !group.has("active")) || (all_are_up && group.lacks_a_copy())
        };
        let unsound = observation.groups.iter().filter(is_unsound);
        unsound.map(|group| (group.id.clone(), format!("{group:?}"))).collect()
    }

    /// Judges an eviction that has just been allowed, and was asked for at `asked`: with all that was down then, and on its way.
    ///
    /// # Errors
    /// When it was not safe: why; or when Ceph does not answer.
    pub async fn judge(&self, osd: usize, asked: Instant) -> Result<()> {
        let rack = self.options.rack_of(osd);
        let (mut wrong, together, unsound) = {
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
            let unsound = self.unsound(before, others.is_empty());
            (
                wrong,
                others.into_iter().chain([osd]).collect::<BTreeSet<usize>>(),
                unsound,
            )
        };
        if !unsound.is_empty() {
            // The observation may be older than what the operator knew. What was mended before the eviction still is.
            let now = self.unsound(&self.observe().await?, together.len() == 1);
            let still: Vec<&String> = unsound
                .iter()
                .filter_map(|(id, why)| now.contains_key(id).then_some(why))
                .collect();
            if !still.is_empty() {
                wrong.push(format!("at {still:?}"));
            }
        }
        let (ceph, asked_about) = (Arc::clone(&self.ceph), together.clone());
        let lost = tokio::task::spawn_blocking(move || lost(&ceph, &asked_about)).await??;
        let counted: Vec<&String> = lost
            .iter()
            .filter(|group| !self.left_out.contains(pool_of(group)))
            .collect();
        if !counted.is_empty() {
            wrong.push(format!("although ok-to-stop of {together:?} loses {counted:?}"));
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

fn mon(ceph: &Cluster, mut command: Value) -> Result<Value> {
    command["format"] = "json".into();
    Ok(ceph.mon_command(&command)?.json()?)
}

/// Some numbers are printed as strings.
fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

/// The placement groups that take requests now, and would take none without these OSDs.
fn lost(ceph: &Cluster, osds: &BTreeSet<usize>) -> Result<BTreeSet<String>> {
    let ids: Vec<String> = osds.iter().map(ToString::to_string).collect();
    let answer = ceph.mgr_command(&json!({"prefix": "osd ok-to-stop", "ids": ids, "format": "json"}))?;
    let answer: Value = answer.json_anyway()?;
    let groups = |field: &str| {
        let groups = answer[field].as_array().into_iter().flatten();
        groups
            .filter_map(|group| Some(group.as_str()?.to_owned()))
            .collect::<BTreeSet<_>>()
    };
    ensure!(groups("unknown_pgs").is_empty(), "{answer}");
    Ok(&groups("bad_become_inactive") - &groups("bad_already_inactive"))
}

fn pool_of(group: &str) -> &str {
    group.split_once('.').map_or(group, |(pool, _)| pool)
}
