//! One way of draining a topology's nodes, from the first command until all pods are back, or nothing goes on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nodeward_testkit::progress::Progress;
use tokio::task::JoinSet;

use super::meter::Meter;
use crate::maintenance::{Drainer, Maintenance, Step};

/// How often it is looked whether all is over.
const LOOKS_EVERY: Duration = Duration::from_millis(50);

/// How the nodes are drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Mode {
    /// `kubectl drain` for all at once.
    Naive,
    /// The same, one node after another.
    Serial,
    /// `kubectl nodeward drain` for all at once.
    Nodeward,
    /// `kubectl drain` for all at once, with drain-lock running.
    Auto,
}

impl Mode {
    /// Without drain-lock.
    pub const ALONE: [Self; 2] = [Self::Naive, Self::Serial];
    /// With drain-lock.
    pub const LOCKED: [Self; 2] = [Self::Nodeward, Self::Auto];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Serial => "serial",
            Self::Nodeward => "nodeward",
            Self::Auto => "auto",
        }
    }

    pub const fn drainer(self) -> Drainer {
        match self {
            Self::Naive | Self::Serial | Self::Auto => Drainer::Kubectl,
            Self::Nodeward => Drainer::Nodeward,
        }
    }

    /// After how long without any change a run has no end: `kubectl drain` alone has asked twice more by then; drain-lock
    /// may wait for deadlines of its own.
    const fn patience(self) -> Duration {
        match self {
            Self::Naive | Self::Serial => Duration::from_secs(12),
            Self::Nodeward | Self::Auto => Duration::from_mins(1),
        }
    }
}

/// No run takes longer than this, nor than so long for each node: one after another takes some 8 s a node.
const CAP: Duration = Duration::from_mins(4);
const CAP_OF_NODE: Duration = Duration::from_secs(12);

/// What came of a run.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// From the first command until all pods are back; `None` for a run that had no end.
    pub makespan: Option<Duration>,
    /// Nodes that were drained, rebooted and uncordoned.
    pub maintained: usize,
}

/// What all drains have in common.
#[derive(Default)]
struct Shared {
    maintained: AtomicUsize,
    rebooting: AtomicUsize,
    changed: Mutex<Option<Instant>>,
}

impl Shared {
    fn changed(&self) {
        *self.changed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn quiet_for(&self) -> Duration {
        let changed = *self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        changed.map_or(Duration::ZERO, |changed| changed.elapsed())
    }

    fn note(&self, step: &Step) {
        match step {
            Step::Begins(_) => self.changed(),
            Step::Says(_) => {}
            Step::Drained(_) => {
                self.rebooting.fetch_add(1, Ordering::Relaxed);
                self.changed();
            }
            Step::Rebooted => {
                self.rebooting.fetch_sub(1, Ordering::Relaxed);
                self.changed();
            }
            Step::Done => {
                self.maintained.fetch_add(1, Ordering::Relaxed);
                self.changed();
            }
        }
    }
}

/// Drains all these nodes.
pub async fn run(
    mode: Mode,
    nodes: &[String],
    maintenance: &Maintenance,
    meter: &Meter,
    progress: &Progress,
) -> Result<Ran> {
    let began = Instant::now();
    let cap = CAP.max(CAP_OF_NODE * u32::try_from(nodes.len())?);
    let shared = Arc::new(Shared::default());
    let mut drains = JoinSet::new();
    let groups: Vec<Vec<String>> = match mode {
        Mode::Serial => vec![nodes.to_vec()],
        Mode::Naive | Mode::Nodeward | Mode::Auto => nodes.iter().map(|node| vec![node.clone()]).collect(),
    };
    for group in groups {
        let (maintenance, shared) = (maintenance.clone(), Arc::clone(&shared));
        drains.spawn(async move {
            for node in group {
                maintenance.of(&node, |step| shared.note(&step)).await?;
            }
            anyhow::Ok(())
        });
    }
    let makespan = loop {
        tokio::time::sleep(LOOKS_EVERY).await;
        while let Some(ended) = drains.try_join_next() {
            ended.context("a drain panicked")??;
        }
        let maintained = shared.maintained.load(Ordering::Relaxed);
        progress.step(&format!(
            "{}: {maintained} of {} nodes, {} pods missing",
            mode.name(),
            nodes.len(),
            meter.missing()
        ));
        if drains.is_empty() && meter.missing() == 0 {
            break Some(began.elapsed());
        }
        let quiet = shared.quiet_for().min(meter.quiet_for());
        let is_stuck = shared.rebooting.load(Ordering::Relaxed) == 0 && quiet >= mode.patience();
        if is_stuck || began.elapsed() >= cap {
            break None;
        }
    };
    let maintained = shared.maintained.load(Ordering::Relaxed);
    if makespan.is_none() && mode == Mode::Serial {
        bail!(
            "one after another, {maintained} of {} nodes were drained: the topology cannot be",
            nodes.len()
        );
    }
    // The commands that still wait are ended here.
    Ok(Ran { makespan, maintained })
}
