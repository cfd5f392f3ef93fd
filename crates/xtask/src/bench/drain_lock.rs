//! How long parallel drains take with drain-lock and without it, and what its webhook costs: each regime at each size, drained
//! in each way, on one control plane, first without drain-lock, then with it; the webhook on another one.

mod bound;
mod figures;
mod meter;
mod queue;
mod run;
mod stage;
mod topology;
mod webhook;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use nodeward_testkit::binaries::Profile;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::{AuditScope, ControlPlane, Options, binaries};
use serde_json::json;

use self::bound::{Times, lower_bound, lower_bound_of_nodes};
use self::figures::{Regimes, Run};
use self::run::{DRAINER, Mode, Runner};
use self::stage::Stage;
use self::topology::{Regime, Topology, regimes};
use super::figures::Figures;
use super::fleet::size::{PODS_PER_NODE, Size};
use super::measure::Bench;
use crate::install;

/// What many nodes at once are by option.
const MANY: usize = 50;

/// How often the least times are measured; the shortest counts.
const CALIBRATIONS: usize = 2;

/// How often three nodes are drained without drain-lock at most: enough to see them wedge.
const ALONE_AT_MOST: usize = 8;

#[derive(clap::Args)]
pub struct Args {
    /// How many nodes are drained at once; each of these in turn
    #[arg(long, value_delimiter = ',', default_values_t = [2, 6, 12])]
    nodes_at_once: Vec<usize>,
    /// 50 nodes at once, too
    #[arg(long)]
    with_50: bool,
    /// Only these regimes, of A (room), B (no room), C (pinned), D (some apps pinned), E (some pods of each)
    #[arg(long, value_delimiter = ',', value_name = "LETTER", value_parser = ["A", "B", "C", "D", "E"], ignore_case = true)]
    regimes: Vec<String>,
    /// Only these ways of draining
    #[arg(long, value_delimiter = ',', value_enum)]
    modes: Vec<Mode>,
    /// How often each way of draining is measured; the middle run counts. Who is first in the queue is chance, and how
    /// long all take depends on it
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=50))]
    runs: u8,
    /// Nodes of the cluster for which the webhook answers; 0 leaves its measurement out
    #[arg(long, default_value_t = 5_000)]
    webhook_nodes: usize,
    /// Pods there [default: 30 a node]
    #[arg(long)]
    webhook_pods: Option<usize>,
    /// Only the case that wedges: three nodes, two StatefulSets, drained at once by plain `kubectl drain`, so many times with
    /// drain-lock, and some times without
    #[arg(long, default_value_t = 0, value_name = "N", conflicts_with_all = ["nodes_at_once", "with_50", "regimes"])]
    wedge_runs: usize,
}

impl Args {
    fn sizes(&self) -> Vec<usize> {
        let mut sizes = self.nodes_at_once.clone();
        sizes.extend(self.with_50.then_some(MANY));
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The regimes asked for; all if none is.
    fn regimes(&self) -> Result<Vec<Regime>> {
        let is_asked = |regime: &Regime| {
            self.regimes
                .iter()
                .any(|letter| regime.letter.eq_ignore_ascii_case(letter))
        };
        let mut all = regimes()?;
        all.retain(|regime| self.regimes.is_empty() || is_asked(regime));
        Ok(all)
    }

    fn modes(&self) -> Vec<Mode> {
        match (self.modes.is_empty(), self.wedge_runs > 0) {
            (true, true) => vec![Mode::Naive, Mode::Auto],
            (true, false) => Mode::value_variants().to_vec(),
            (false, _) => self.modes.clone(),
        }
    }

    /// The cluster under the webhook, if that is measured.
    fn webhook(&self) -> Result<Option<Size>> {
        if self.webhook_nodes == 0 || self.wedge_runs > 0 {
            return Ok(None);
        }
        let pods = self.webhook_pods.unwrap_or(self.webhook_nodes * PODS_PER_NODE);
        Size::new(self.webhook_nodes, pods).map(Some)
    }
}

/// Measures all that is asked for.
pub async fn bench(args: &Args) -> Result<Figures> {
    let (regimes, webhook) = (args.regimes()?, args.webhook()?);
    let (alone, locked): (Vec<Mode>, Vec<Mode>) = args.modes().into_iter().partition(|mode| !mode.is_locked());
    let mut found = Vec::new();
    for name in ["drain-lock", "kubectl-nodeward"] {
        if !locked.is_empty() {
            found.push(tokio::task::spawn_blocking(move || binaries::operator(name, Profile::Release)).await??);
        }
    }
    let mut figures = Figures::default();
    let drains = Drains::start(found.get(1)).await?;
    let mut measured = Regimes::default();
    if args.wedge_runs == 0 {
        measured.times = Some(drains.calibrate().await?);
    }
    drains.measure(args, &regimes, &alone, &mut measured).await?;
    if let Some(binary) = found.first() {
        let lock = drains.bench.prepare(binary, json!({})).await?;
        drains.bench.time_starts(&lock, 1).await?;
        let outcome = drains.measure(args, &regimes, &locked, &mut measured).await;
        outcome.with_context(|| format!("drain-lock's log ends with:\n{}", lock.process().log_tail(30)))?;
        install::stop(&lock).await?;
    }
    drop(drains);
    measured.report(&mut figures);
    if let (Some(binary), Some(size)) = (found.first(), webhook) {
        webhook::measure(size, binary, &mut figures).await?;
    }
    Ok(figures)
}

/// The control plane of all drains.
struct Drains {
    bench: Bench,
    kubectl: Kubectl,
}

impl Drains {
    async fn start(plugin: Option<&PathBuf>) -> Result<Self> {
        let progress = Progress::begin("control plane");
        let plane = ControlPlane::start(Options {
            // Fewer renewals of leases: no node is to be found silent here.
            node_monitor_grace: Duration::from_secs(40),
            audit: AuditScope::Everything,
            ..Options::default()
        })
        .await?;
        plane.namespace(stage::NAMESPACE).await?;
        progress.done("runs on this machine");
        // An administrator of its own name: the audit log tells its requests from the bench's own.
        let mut kubectl = Kubectl::of(&plane)?.kubeconfig(plane.kubeconfig_of(DRAINER, "system:masters")?);
        if let Some(plugin) = plugin {
            kubectl = kubectl.plugins(plugin.parent().context("the plugin's directory")?);
        }
        let bench = Bench::new(plane, "drain-lock").await?;
        Ok(Self { bench, kubectl })
    }

    const fn runner<'a>(&'a self, stage: &'a Stage<'a>, progress: &'a Progress) -> Runner<'a> {
        Runner {
            bench: &self.bench,
            kubectl: &self.kubectl,
            stage,
            progress,
        }
    }

    /// One node alone, with one pod that waits for it, and with one that finds room elsewhere.
    async fn calibrate(&self) -> Result<Times> {
        let progress = Progress::begin("the least times");
        let mut least = Times::MAX;
        for is_pinned in [true, false].repeat(CALIBRATIONS) {
            let topology = Topology::of_one_pod(is_pinned);
            let stage = Stage::set(&self.bench.client, &topology).await?;
            let run = self.runner(&stage, &progress).run(Mode::Serial).await?;
            stage.strike().await?;
            let (away, drain) = if is_pinned {
                (&mut least.held, &mut least.one_drain)
            } else {
                (&mut least.moved, &mut least.moved_drain)
            };
            *away = away.min(run.unready_pod_s);
            *drain = drain.min(run.makespan_s.unwrap_or(f64::MAX));
        }
        progress.done(&format!(
            "a held pod is away for {:.1} s, a moved one for {:.1} s, one drain takes {:.1} s",
            least.held, least.moved, least.one_drain
        ));
        Ok(least)
    }

    /// Drains in these ways: three nodes many times, or each regime at each size.
    async fn measure(&self, args: &Args, regimes: &[Regime], modes: &[Mode], measured: &mut Regimes) -> Result<()> {
        if args.wedge_runs > 0 {
            for mode in modes {
                let most = if mode.is_locked() { usize::MAX } else { ALONE_AT_MOST };
                let runs = args.wedge_runs.min(most);
                let run = self.drain(&Topology::of_three_nodes(), &[*mode], runs).await?;
                measured.three_nodes.extend(run);
            }
            return Ok(());
        }
        let times = measured.times.context("the least times have not been measured")?;
        for size in args.sizes() {
            for regime in regimes {
                let topology = regime.of(size)?;
                let runs = self.drain(&topology, modes, usize::from(args.runs)).await?;
                let of_size = measured.sizes.entry(size).or_default();
                let figures = of_size.entry(regime.letter.clone()).or_default();
                figures.bound_s = lower_bound(&topology, times);
                figures.bound_of_nodes_s = lower_bound_of_nodes(&topology, times);
                figures.bound_of_own_times_s = lower_bound(&topology, Times::of(&topology));
                figures.modes.extend(runs);
            }
        }
        Ok(())
    }

    /// Drains a topology in each of these ways, so many times each.
    async fn drain(&self, topology: &Topology, modes: &[Mode], runs: usize) -> Result<Vec<(Mode, Run)>> {
        let mut measured = Vec::new();
        if modes.is_empty() {
            return Ok(measured);
        }
        let title = format!("{} with {} nodes at once", topology.regime, topology.drained().len());
        let progress = Progress::begin(&title);
        let stage = Stage::set(&self.bench.client, topology).await?;
        for mode in modes {
            let mut all = Vec::new();
            for number in 1..=runs {
                let run = self.runner(&stage, &progress).run(*mode).await;
                all.push(run.with_context(|| format!("{title}, {}, run {number} of {runs}", mode.name()))?);
            }
            measured.push((*mode, Run::of_runs(all).context("no run")?));
        }
        stage.strike().await?;
        let told = measured
            .iter()
            .map(|(mode, run)| format!("{} {}", mode.name(), run.end()));
        progress.done(&told.collect::<Vec<_>>().join(", "));
        Ok(measured)
    }
}
