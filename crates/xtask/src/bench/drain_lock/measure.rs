//! Each regime at each size, drained in each way, on one control plane: first without drain-lock, then with it.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use kube::Client;
use nodeward_testkit::audit::Requests;
use nodeward_testkit::helm::Release;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::operator::Operator;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::{AuditScope, Cluster, ControlPlane, Options};
use serde_json::json;

use super::bound::{self, lower_bound, lower_bound_of_nodes};
use super::figures::{Cell, Figures, QueueWait, RegimeFigures, Times};
use super::kills;
use super::meter::Meter;
use super::queue::{self, QueueWatch};
use super::run::{self, Mode};
use super::stage::{self, NAMESPACE, Stage};
use super::three_nodes;
use super::topology::{Regime, Topology, regimes};
use super::webhook;
use crate::bench::large::size::Size;
use crate::budget_watch::BudgetWatch;
use crate::drain_lock::Install;
use crate::maintenance::Maintenance;

/// Who runs kubectl: the audit log tells its requests from the bench's own.
const DRAINER: &str = "bench-drainer";

/// Where drain-lock runs, and as whom.
pub const OPERATOR_NAMESPACE: &str = "nodeward-system";
pub const SERVICE_ACCOUNT: &str = "nodeward-drain-lock";

/// How often the least times are measured; the shortest counts.
const CALIBRATIONS: usize = 2;

/// What is measured.
pub struct Wanted {
    pub sizes: Vec<usize>,
    pub regimes: Vec<String>,
    pub modes: Vec<Mode>,
    /// The binaries of drain-lock and of the kubectl plugin, where they are measured.
    pub binaries: Option<(PathBuf, PathBuf)>,
    /// The cluster under the webhook, if that is measured.
    pub webhook: Option<Size>,
    /// How many nodes are drained while drain-lock is killed again and again; 0 for none.
    pub killed_nodes: usize,
    /// How often each way of draining is measured.
    pub runs: usize,
    /// How often the case of three nodes is drained; if at all, nothing else is measured.
    pub wedge_runs: usize,
}

/// The control plane of all runs.
pub struct Bench {
    plane: ControlPlane,
    pub client: Client,
    kubectl: Kubectl,
}

/// Measures all that is wanted.
pub async fn measure(wanted: &Wanted) -> Result<Figures> {
    let bench = Bench::start(wanted).await?;
    let mut figures = Figures::default();
    if wanted.wedge_runs > 0 {
        let alone = three_nodes::alone(&bench, wanted).await?;
        figures.three_nodes.extend(alone);
    } else {
        let times = bench.calibrate().await?;
        figures.times = Some(times);
        bench.all(wanted, &Mode::ALONE, times, &mut figures).await?;
    }
    if let Some((binary, _)) = &wanted.binaries {
        let lock = bench.install(binary).await?;
        let measured = bench.with_lock(wanted, &lock, &mut figures).await;
        measured.with_context(|| format!("drain-lock's log ends with:\n{}", lock.process().log_tail(30)))?;
        let status = lock.stop(Duration::from_secs(20)).await?;
        ensure!(status.success(), "drain-lock ended with {status}");
        drop(bench);
        if let Some(size) = wanted.webhook {
            figures.webhook = Some(webhook::measure(size, binary).await?);
        }
    }
    Ok(figures)
}

impl Bench {
    async fn start(wanted: &Wanted) -> Result<Self> {
        let progress = Progress::begin("control plane");
        let plane = ControlPlane::start(Options {
            // Fewer renewals of leases: no node is to be found silent here.
            node_monitor_grace: Duration::from_secs(40),
            ..Options::default().audit(AuditScope::Everything)
        })
        .await?;
        Stage::prepare(&plane).await?;
        progress.done("runs on this machine");
        let mut kubectl = Kubectl::of(&plane)?.kubeconfig(drainers_kubeconfig(&plane)?);
        if let Some((_, plugin)) = &wanted.binaries {
            kubectl = kubectl.plugins(plugin.parent().context("the plugin's directory")?);
        }
        Ok(Self {
            client: plane.client().await?,
            plane,
            kubectl,
        })
    }

    /// Installs the chart as a user does; the binary runs here.
    async fn install(&self, binary: &Path) -> Result<Operator> {
        let progress = Progress::begin("drain-lock");
        let install = Install {
            release: Release::new("nodeward", OPERATOR_NAMESPACE),
            service_account: SERVICE_ACCOUNT.to_owned(),
            config: json!({}),
        };
        let lock = install.start(&Cluster::from(&self.plane), binary.to_owned()).await?;
        lock.ready(Duration::from_secs(30)).await?;
        progress.done("installed by helm, runs under its own ServiceAccount");
        Ok(lock)
    }

    /// One node alone, with one pod that waits for it, and with one that finds room elsewhere.
    async fn calibrate(&self) -> Result<Times> {
        let progress = Progress::begin("the least times");
        let mut least = Times {
            held: f64::MAX,
            moved: f64::MAX,
            one_drain: f64::MAX,
            moved_drain: f64::MAX,
        };
        for _ in 0..CALIBRATIONS {
            for is_pinned in [true, false] {
                let topology = Topology::of_one_pod(is_pinned);
                let stage = Stage::set(&self.client, &topology).await?;
                let cell = self.cell(&stage, Mode::Serial, &progress).await?;
                stage.strike().await?;
                let (away, drain) = if is_pinned {
                    (&mut least.held, &mut least.one_drain)
                } else {
                    (&mut least.moved, &mut least.moved_drain)
                };
                *away = away.min(cell.unready_pod_s);
                *drain = drain.min(cell.makespan_s.unwrap_or(f64::MAX));
            }
        }
        progress.done(&format!(
            "a held pod is away for {:.1} s, a moved one for {:.1} s, one drain takes {:.1} s",
            least.held, least.moved, least.one_drain
        ));
        Ok(least)
    }

    async fn with_lock(&self, wanted: &Wanted, lock: &Operator, figures: &mut Figures) -> Result<()> {
        if wanted.wedge_runs > 0 {
            figures
                .three_nodes
                .push(three_nodes::locked(self, wanted.wedge_runs).await?);
            return Ok(());
        }
        if let Some(times) = figures.times {
            self.all(wanted, &Mode::LOCKED, times, figures).await?;
        }
        if wanted.killed_nodes > 0 {
            figures.kills = Some(kills::measure(self, lock, wanted.killed_nodes).await?);
        }
        Ok(())
    }

    async fn all(&self, wanted: &Wanted, modes: &[Mode], times: Times, figures: &mut Figures) -> Result<()> {
        for size in &wanted.sizes {
            for regime in regimes()?
                .iter()
                .filter(|regime| wanted.regimes.contains(&regime.letter))
            {
                let modes: Vec<Mode> = modes
                    .iter()
                    .filter(|mode| wanted.modes.contains(mode))
                    .copied()
                    .collect();
                let of_regime = figures
                    .sizes
                    .entry(*size)
                    .or_default()
                    .entry(regime.letter.clone())
                    .or_default();
                self.regime(regime, *size, &modes, wanted.runs, times, of_regime)
                    .await?;
            }
        }
        Ok(())
    }

    async fn regime(
        &self,
        regime: &Regime,
        size: usize,
        modes: &[Mode],
        runs: usize,
        times: Times,
        figures: &mut RegimeFigures,
    ) -> Result<()> {
        let topology = regime.of(size)?;
        figures.bound_s = lower_bound(&topology, least(times));
        figures.bound_of_nodes_s = lower_bound_of_nodes(&topology, least(times));
        figures.bound_of_own_times_s = lower_bound(&topology, own(&topology));
        if modes.is_empty() {
            return Ok(());
        }
        let progress = Progress::begin(format!("{} with {size} nodes at once", regime.letter));
        let stage = Stage::set(&self.client, &topology).await?;
        let mut told = Vec::new();
        for mode in modes {
            let mut cells = Vec::new();
            for _ in 0..runs {
                let cell = self.cell(&stage, *mode, &progress).await;
                let what = || format!("{} with {size} nodes, {}", regime.letter, mode.name());
                cells.push(cell.with_context(what)?);
            }
            let cell = Cell::of_runs(cells).context("no run")?;
            let makespan = cell
                .makespan_s
                .map_or_else(|| "no end".to_owned(), |s| format!("{s:.1} s"));
            told.push(format!("{} {makespan}", mode.name()));
            figures.modes.insert(*mode, cell);
        }
        stage.strike().await?;
        progress.done(&format!("at least {:.1} s; {}", figures.bound_s, told.join(", ")));
        Ok(())
    }

    /// One run.
    pub async fn cell(&self, stage: &Stage<'_>, mode: Mode, progress: &Progress) -> Result<Cell> {
        self.disturbed(stage, mode, progress, std::future::pending()).await
    }

    /// One run while something else goes on, whose failure ends it.
    pub async fn disturbed(
        &self,
        stage: &Stage<'_>,
        mode: Mode,
        progress: &Progress,
        disturbance: impl Future<Output = Result<Infallible>>,
    ) -> Result<Cell> {
        let is_locked = Mode::LOCKED.contains(&mode);
        progress.step(&format!("{}: setting up", mode.name()));
        if is_locked {
            queue::forget(&self.client).await?;
        }
        stage.put_back().await?;
        let maintenance = Maintenance {
            client: self.client.clone(),
            kubectl: self.kubectl.clone(),
            drainer: mode.drainer(),
            away: stage.topology.away,
        };
        let nodes = stage.topology.drained();
        let meter = Meter::start(self.client.clone(), stage::replicas(stage.topology));
        let budgets = BudgetWatch::start(self.client.clone(), NAMESPACE);
        let queue = is_locked.then(|| QueueWatch::start(self.client.clone()));
        let mark = self.plane.audit().mark()?;
        let ran = tokio::select! {
            ran = run::run(mode, &nodes, &maintenance, &meter, progress) => ran?,
            failed = disturbance => match failed? {},
        };
        if is_locked && ran.makespan.is_none() {
            let state = queue::state(&self.client).await?;
            eprintln!("{} has no end:\n{state}", mode.name());
        }
        let unready_pod_s = meter.unready_pod_seconds();
        let asked = self.plane.audit().since(mark)?;
        let users = [
            DRAINER.to_owned(),
            format!("system:serviceaccount:{OPERATOR_NAMESPACE}:{SERVICE_ACCOUNT}"),
        ];
        let asked = asked.only(|request| users.contains(&request.user));
        let evictions = |code: u16| {
            let of = |request: &nodeward_testkit::audit::AuditedRequest| {
                request.resource == "pods/eviction" && request.verb == "create" && request.code == code
            };
            asked.0.iter().filter(|request| of(request)).count()
        };
        Ok(Cell {
            makespan_s: ran.makespan.map(|makespan| makespan.as_secs_f64()),
            finished_share: share(ran.maintained, nodes.len()),
            refused: evictions(429),
            requests: Requests::clone(&asked).without_leases().without_watches().count(),
            wasted: evictions(201).saturating_sub(stage.topology.pods()),
            unready_pod_s,
            queue_wait_s: queue.and_then(|queue| QueueWait::of(&queue.waits())),
            violations: budgets.violations().len(),
            makespans_s: Vec::new(),
        })
    }
}

const fn least(times: Times) -> bound::Times {
    bound::Times {
        held: times.held,
        moved: times.moved,
        one_drain: times.one_drain,
        moved_drain: times.moved_drain,
    }
}

/// As if nothing took time but reboots and the starts of pods.
fn own(topology: &Topology) -> bound::Times {
    let away = topology.away.as_secs_f64();
    let starts = topology.apps.iter().map(|app| app.time_to_ready.as_secs_f64());
    let ready = starts.fold(f64::MAX, f64::min);
    let ready = if ready < f64::MAX { ready } else { 0.0 };
    bound::Times {
        held: away + ready,
        moved: ready,
        one_drain: away,
        moved_drain: away,
    }
}

fn share(part: usize, of: usize) -> f64 {
    // Counts of nodes are far below 2^53.
    #[allow(clippy::cast_precision_loss)]
    let share = part as f64 / of.max(1) as f64;
    share
}

/// An administrator of its own name.
fn drainers_kubeconfig(plane: &ControlPlane) -> Result<PathBuf> {
    let (certificate, key) = plane.client_certificate(DRAINER, "system:masters")?;
    let base64 = |text: &str| serde_json::to_value(ByteString(text.as_bytes().to_vec()));
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "contexts": [{ "name": "bench", "context": { "cluster": "bench", "user": DRAINER } }],
        "clusters": [{ "name": "bench", "cluster": {
            "server": plane.url(), "certificate-authority-data": base64(plane.ca())?,
        } }],
        "users": [{ "name": DRAINER, "user": {
            "client-certificate-data": base64(&certificate)?, "client-key-data": base64(&key)?,
        } }],
    });
    let file = plane.dir().join("bench-drainer.kubeconfig");
    // JSON is YAML.
    std::fs::write(&file, kubeconfig.to_string()).with_context(|| format!("write {}", file.display()))?;
    Ok(file)
}

/// The names of all regimes.
pub fn regime_names() -> Result<Vec<String>> {
    Ok(regimes()?.into_iter().map(|regime| regime.letter).collect())
}
