//! drain-lock is killed again and again in the middle of drains, and started at once: how long it takes until they go on.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{Stream, StreamExt};
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use nodeward_api::drain_ledger::{DrainLedger, NAME};
use nodeward_testkit::operator::Operator;
use nodeward_testkit::progress::Progress;
use serde::Serialize;

use super::figures::Cell;
use super::measure::Bench;
use super::run::Mode;
use super::spread::Spread;
use super::stage::Stage;
use super::topology::regimes;

/// In which all pods are pinned: every drain waits for units.
const REGIME: &str = "C";

/// After how many changes of the ledger since its start it is killed: enqueued, asked, granted, confirmed, drained and
/// returned are each one, so that all of them are struck.
const CHANGES: [usize; 4] = [1, 2, 3, 5];

/// How often at most: the drains are to end.
const AT_MOST: usize = 16;

/// How long it may take to get ready after the last kill.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Kills {
    /// How often it was killed.
    #[serde(rename = "kills")]
    pub count: usize,
    /// From its start to the next change of the ledger, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub went_on_s: Option<Spread>,
    /// The drains, by `kubectl nodeward drain`.
    pub drains: Cell,
}

/// Drains so many nodes.
pub async fn measure(bench: &Bench, lock: &Operator, nodes: usize) -> Result<Kills> {
    let progress = Progress::begin(format!(
        "{REGIME} with {nodes} nodes at once, while drain-lock is killed"
    ));
    let regime = regimes()?.into_iter().find(|regime| regime.letter == REGIME);
    let topology = regime.context("no regime whose pods are pinned")?.of(nodes)?;
    let stage = Stage::set(&bench.client, &topology).await?;
    let struck = Struck::default();
    let killing = keep_killing(lock, &bench.client, &struck);
    let drains = bench.disturbed(&stage, Mode::Nodeward, &progress, killing).await?;
    lock.ready(READY_WITHIN).await?;
    stage.strike().await?;
    let (count, waits) = struck.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    let kills = Kills {
        count,
        went_on_s: Spread::of(&waits),
        drains,
    };
    progress.done(&kills.text());
    Ok(kills)
}

/// How often it was killed, and how long each time until the ledger changed.
#[derive(Default)]
struct Struck(Mutex<(usize, Vec<f64>)>);

async fn keep_killing(lock: &Operator, client: &Client, struck: &Struck) -> Result<Infallible> {
    let ledgers: Api<DrainLedger> = Api::all(client.clone());
    let mut changes = watcher(ledgers.clone(), watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    for after in CHANGES.iter().cycle().take(AT_MOST) {
        for _ in 0..*after {
            changed_after(&mut changes, 0).await?;
        }
        // At once, for nothing is left in the middle when the drains are over.
        lock.process().kill();
        lock.process().start()?;
        let began = Instant::now();
        struck.0.lock().unwrap_or_else(PoisonError::into_inner).0 += 1;
        // It has not come to writing anything yet.
        let last = ledgers.get_opt(NAME).await?.as_ref().map_or(0, version);
        changed_after(&mut changes, last).await?;
        let wait = began.elapsed().as_secs_f64();
        struck.0.lock().unwrap_or_else(PoisonError::into_inner).1.push(wait);
    }
    std::future::pending().await
}

/// Waits until the ledger has a later version.
async fn changed_after(
    changes: &mut (impl Stream<Item = Result<DrainLedger, watcher::Error>> + Unpin),
    last: u64,
) -> Result<()> {
    loop {
        match changes.next().await.context("the watch has ended")? {
            Ok(ledger) if version(&ledger) > last => return Ok(()),
            Ok(_) => {}
            // The watch goes on by itself.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Versions of one kind's objects are numbers that grow (KEP-5504).
fn version(ledger: &DrainLedger) -> u64 {
    let version = ledger.resource_version().unwrap_or_default();
    version.parse().unwrap_or_default()
}

impl Kills {
    /// For a terminal.
    pub fn text(&self) -> String {
        let ended = 100.0 * self.drains.finished_share;
        let went_on = self.went_on_s.map_or_else(String::new, |spread| {
            format!(", went on {:.1} to {:.1} s after each start", spread.min, spread.max)
        });
        format!("killed {} times{went_on}; {ended:.0}% of the drains ended", self.count)
    }
}
