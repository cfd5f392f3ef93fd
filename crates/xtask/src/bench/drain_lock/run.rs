//! One way of draining a topology's nodes, from the first command until all pods are back, or nothing goes on.

use std::sync::{Arc, Mutex};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nodeward_testkit::audit::AuditedRequest;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::process::machine_cpu;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::{ControlPlane, lock};
use serde::Serialize;
use tokio::task::JoinSet;

use super::figures::{CpuShares, Run};
use super::meter::Meter;
use super::queue::{self, QueueWatch};
use super::stage::{NAMESPACE, Stage};
use crate::bench::figures::{Distribution, count};
use crate::bench::measure::Bench;
use crate::budget_watch::BudgetWatch;
use crate::maintenance::{Drainer, Maintenance, Step};

/// Who runs kubectl.
pub const DRAINER: &str = "bench-drainer";

/// How often it is looked whether all is over.
const LOOKS_EVERY: Duration = Duration::from_millis(50);

/// No run takes longer than this, nor than so long for each node: one after another takes some 8 s a node.
const CAP: Duration = Duration::from_mins(4);
const CAP_OF_NODE: Duration = Duration::from_secs(12);

/// How the nodes are drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// `kubectl drain` for all at once.
    Naive,
    /// The same, one node after another.
    Serial,
    /// `kubectl nodeward drain` for all at once.
    Nodeward,
    /// `kubectl drain` for all at once, with drain-lock running.
    Auto,
    /// The same by a drainer that asks for the pods of StatefulSets first.
    Ordered,
}

impl Mode {
    /// As on the command line.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Whether drain-lock runs.
    pub const fn is_locked(self) -> bool {
        matches!(self, Self::Nodeward | Self::Auto | Self::Ordered)
    }

    const fn drainer(self) -> Drainer {
        match self {
            Self::Naive | Self::Serial | Self::Auto => Drainer::Kubectl,
            Self::Nodeward => Drainer::Nodeward,
            Self::Ordered => Drainer::StatefulSetsFirst,
        }
    }

    /// After how long without any change a run has no end: `kubectl drain` alone has asked twice more by then; drain-lock
    /// may wait for deadlines of its own.
    const fn stalled_after(self) -> Duration {
        match self {
            Self::Naive | Self::Serial => Duration::from_secs(12),
            Self::Nodeward | Self::Auto | Self::Ordered => Duration::from_mins(1),
        }
    }
}

/// Drains the nodes of a stage.
pub struct Runner<'a> {
    pub bench: &'a Bench,
    pub kubectl: &'a Kubectl,
    pub stage: &'a Stage<'a>,
    pub progress: &'a Progress,
}

/// How far the drains of a run have come.
#[derive(Clone, Copy, Default)]
struct Drained {
    /// Nodes that were drained, rebooted and uncordoned.
    maintained: usize,
    rebooting: usize,
    changed: Option<Instant>,
}

impl Drained {
    fn note(&mut self, step: &Step) {
        match step {
            Step::Says(_) => return,
            Step::Begins(_) => {}
            Step::Drained(_) => self.rebooting += 1,
            Step::Rebooted => self.rebooting -= 1,
            Step::Done => self.maintained += 1,
        }
        self.changed = Some(Instant::now());
    }
}

/// The CPU time that is spent from a moment on.
struct CpuStretch<'a> {
    plane: &'a ControlPlane,
    began: Instant,
    control_plane: Duration,
    machine: Duration,
}

impl<'a> CpuStretch<'a> {
    fn begin(plane: &'a ControlPlane) -> Result<Self> {
        Ok(Self {
            plane,
            began: Instant::now(),
            control_plane: plane.cpu(),
            machine: machine_cpu()?,
        })
    }

    fn end(&self) -> Result<CpuShares> {
        let all = self.began.elapsed() * u32::try_from(available_parallelism()?.get())?;
        let share = |now: Duration, before: Duration| 100.0 * now.saturating_sub(before).div_duration_f64(all);
        Ok(CpuShares {
            control_plane_pct: share(self.plane.cpu(), self.control_plane),
            machine_pct: share(machine_cpu()?, self.machine),
        })
    }
}

impl Runner<'_> {
    /// Puts the topology back as it was at first, and drains its nodes once.
    pub async fn run(&self, mode: Mode) -> Result<Run> {
        let (bench, topology) = (self.bench, self.stage.topology);
        self.progress.step(&format!("{}: setting up", mode.name()));
        if mode.is_locked() {
            queue::forget(&bench.client).await?;
        }
        self.stage.put_back().await?;
        let nodes = topology.drained();
        let meter = Meter::start(bench.client.clone(), topology.replicas());
        let budgets = BudgetWatch::start(bench.client.clone(), |namespace| namespace == NAMESPACE);
        let queue = mode.is_locked().then(|| QueueWatch::start(bench.client.clone()));
        let audit = bench.plane.audit();
        let mark = audit.mark()?;
        let cpu = CpuStretch::begin(&bench.plane)?;
        let (makespan, maintained) = self.drain(mode, &nodes, &meter).await?;
        let cpu = cpu.end()?;
        if mode.is_locked() && makespan.is_none() {
            eprintln!("{} has no end:\n{}", mode.name(), queue::state(&bench.client).await?);
        }
        let unready_pod_s = meter.unready_pod_seconds();
        let asked = audit.since(mark)?.only(|request| request.user == DRAINER);
        let own = bench.requests_since(mark)?;
        let all = || asked.0.iter().chain(&own.0);
        let evictions = |code: u16| {
            let is_one = |request: &AuditedRequest| request.resource == "pods/eviction" && request.verb == "create";
            all().filter(|request| is_one(request) && request.code == code).count()
        };
        let is_counted = |request: &&AuditedRequest| !request.is_lease() && !request.is_watch();
        let waits = queue.map(|queue| queue.waits()).unwrap_or_default();
        Ok(Run {
            makespan_s: makespan.map(|makespan| makespan.as_secs_f64()),
            finished_share: count(maintained) / count(nodes.len().max(1)),
            refused: evictions(429),
            requests: all().filter(is_counted).count(),
            wasted: evictions(201).saturating_sub(topology.pods()),
            unready_pod_s,
            queue_wait_s: Distribution::of(&waits),
            violations: budgets.violations().len(),
            cpu,
            ..Run::default()
        })
    }

    /// Drains all these nodes; gives the time until all pods were back, if they were, and how many nodes were maintained.
    async fn drain(&self, mode: Mode, nodes: &[String], meter: &Meter) -> Result<(Option<Duration>, usize)> {
        let began = Instant::now();
        let cap = CAP.max(CAP_OF_NODE * u32::try_from(nodes.len())?);
        let drained = Arc::new(Mutex::new(Drained::default()));
        let maintenance = Maintenance {
            client: self.bench.client.clone(),
            kubectl: self.kubectl.clone(),
            drainer: mode.drainer(),
            away: self.stage.topology.away,
        };
        let mut drains = JoinSet::new();
        // One after another, or all at once.
        let at_once = if mode == Mode::Serial { nodes.len() } else { 1 };
        for group in nodes.chunks(at_once).map(<[String]>::to_vec) {
            let (maintenance, drained) = (maintenance.clone(), Arc::clone(&drained));
            drains.spawn(async move {
                for node in group {
                    maintenance.of(&node, |step| lock(&drained).note(&step)).await?;
                }
                anyhow::Ok(())
            });
        }
        // The commands that still wait at the end are ended with the set.
        loop {
            tokio::time::sleep(LOOKS_EVERY).await;
            while let Some(ended) = drains.try_join_next() {
                ended.context("a drain panicked")??;
            }
            let (now, missing) = (*lock(&drained), meter.missing());
            let (mode_name, maintained, of) = (mode.name(), now.maintained, nodes.len());
            let step = format!("{mode_name}: {maintained} of {of} nodes, {missing} pods missing");
            self.progress.step(&step);
            if drains.is_empty() && missing == 0 {
                return Ok((Some(began.elapsed()), maintained));
            }
            let changed = now.changed.map_or(Duration::ZERO, |changed| changed.elapsed());
            let is_stalled = now.rebooting == 0 && changed.min(meter.quiet_for()) >= mode.stalled_after();
            if is_stalled || began.elapsed() >= cap {
                ensure!(
                    mode != Mode::Serial,
                    "one after another, {maintained} of {of} nodes were drained: the topology cannot be"
                );
                return Ok((None, maintained));
            }
        }
    }
}
