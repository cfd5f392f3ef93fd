//! One size, measured from a fresh control plane on.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use nodeward_testkit::ControlPlane;
use nodeward_testkit::audit::{AuditedRequest, Mark, Requests};
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::{Operator, OperatorSpec};
use nodeward_testkit::process::Usage;
use nodeward_testkit::progress::Progress;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use super::config::{self, BUDGET_WAIT, FORCE_AFTER, OVERRIDE_SPACING, TIME_OUT};
use super::figures::{Figures, Lateness, RequestsPerNode};
use super::heartbeats::Heartbeats;
use super::populate;
use super::{drain, lateness};
use crate::bench::large::fill;
use crate::bench::large::pods::Part;
use crate::bench::large::size::{self, DRAINING, RESTING, Size};

const NAMESPACE: &str = "nodeward-system";
const SERVICE_ACCOUNT: &str = "nodeward-drain-keeper";

/// How often drain-keeper is started; the slowest start counts.
const STARTS: usize = 3;

/// How long it is watched at rest, each time.
const REST: Duration = Duration::from_mins(1);

/// What has not been asked for so long is at rest.
const QUIET: Duration = Duration::from_secs(20);

/// The measured cluster.
struct Bench<'a> {
    binary: &'a Path,
    plane: ControlPlane,
    client: Client,
    size: Size,
}

/// Measures one size.
pub async fn measure(size: Size, binary: &Path) -> Result<Figures> {
    let began = Instant::now();
    let plane = ControlPlane::start(fill::options()).await?;
    let client = plane.client().await?;
    populate::populate(&plane, &client, size).await?;
    let set_up = began.elapsed();
    let bench = Bench {
        binary,
        plane,
        client,
        size,
    };
    bench.install().await?;
    let heartbeats = Heartbeats::start(&bench.client, size.nodes);

    let (keeper, starts) = bench.start_often().await?;
    let after_start = keeper.usage()?;
    let idle = bench.rest(&keeper, "an upgrade is on, nothing is cordoned").await?;
    bench.cordon_some().await?;
    let rest = bench
        .rest(&keeper, &format!("{RESTING} cordoned nodes, blockers wait"))
        .await?;
    let drain = bench.drain(&keeper).await?;
    let end = keeper.usage()?;
    let heartbeats = heartbeats.told();
    let status = keeper.stop(Duration::from_secs(20)).await?;
    ensure!(status.success(), "drain-keeper ended with {status}");

    Ok(Figures {
        nodes: size.nodes,
        pods: size.pods,
        rest_requests_per_min: rest.requests_per_minute,
        rest_requests_per_min_nothing_cordoned: idle.requests_per_minute,
        lease_requests_per_min: rest.lease_requests_per_minute,
        requests_per_node: drain.requests.all(),
        requests_per_node_by_kind: drain.requests,
        lateness_ms: Lateness::of(&drain.lateness.on_time),
        lateness_ms_by_strategy: drain
            .lateness
            .by_strategy
            .iter()
            .map(|(name, of)| (*name, Lateness::of(of)))
            .collect(),
        held_back: Lateness::of(&drain.lateness.held_back),
        nodes_draining_at_once: DRAINING,
        ready_s: starts.iter().map(Duration::as_secs_f64).fold(0.0, f64::max),
        ready_s_of_each_start: starts.iter().map(Duration::as_secs_f64).collect(),
        rss_mib: end.peak_rss_mib,
        rss_mib_after_start: after_start.rss_mib,
        rss_mib_at_rest: rest.rss_mib,
        rss_mib_draining: drain.rss_mib,
        cpu_pct: rest.cpu_percent,
        cpu_pct_nothing_cordoned: idle.cpu_percent,
        cpu_pct_draining: drain.cpu_percent,
        heartbeats,
        set_up_s: set_up.as_secs_f64(),
        measured_s: began.elapsed().as_secs_f64() - set_up.as_secs_f64(),
    })
}

/// A stretch at rest.
struct Rest {
    requests_per_minute: f64,
    lease_requests_per_minute: f64,
    cpu_percent: f64,
    rss_mib: f64,
}

/// The drain of many nodes.
struct Drain {
    requests: RequestsPerNode,
    lateness: lateness::Outcome,
    cpu_percent: f64,
    rss_mib: f64,
}

impl Bench<'_> {
    /// Installs the chart as a user does; the binary runs here.
    async fn install(&self) -> Result<()> {
        let config: Value = serde_yaml::from_str(&config::text())?;
        let values = json!({ "drainKeeper": { "config": config, "deployment": { "enabled": false } } });
        Release::new("nodeward", NAMESPACE)
            .values(values)
            .install(&self.plane)
            .await
    }

    /// Starts it a few times. Gives the last one, and how long each took until it was ready.
    async fn start_often(&self) -> Result<(Operator, Vec<Duration>)> {
        let progress = Progress::begin("drain-keeper starts");
        let mut starts = Vec::new();
        loop {
            let spec = OperatorSpec::new("drain-keeper", NAMESPACE, SERVICE_ACCOUNT)
                .config(&config::text())
                .binary(self.binary);
            let keeper = spec.prepare(&self.plane).await?;
            let began = Instant::now();
            keeper.process().start()?;
            while !matches!(keeper.get("/readyz").await, Ok((200, _))) {
                let log = || keeper.process().log_tail(20);
                ensure!(keeper.process().is_running(), "drain-keeper has ended:\n{}", log());
                ensure!(
                    began.elapsed() < Duration::from_mins(1),
                    "drain-keeper does not get ready:\n{}",
                    log()
                );
                sleep(Duration::from_millis(10)).await;
            }
            starts.push(began.elapsed());
            progress.step(&format!("ready after {:?}", began.elapsed()));
            if starts.len() == STARTS {
                progress.done(&format!("ready after {starts:.2?}"));
                return Ok((keeper, starts));
            }
            keeper.stop(Duration::from_secs(20)).await?;
        }
    }

    fn asked_since(&self, mark: Mark) -> Result<Requests> {
        Ok(self
            .plane
            .audit()
            .since(mark)?
            .of_service_account(NAMESPACE, SERVICE_ACCOUNT))
    }

    /// What it asks for, and what it costs, while nothing happens but heartbeats.
    async fn rest(&self, keeper: &Operator, what: &str) -> Result<Rest> {
        let progress = Progress::begin(format!("at rest: {what}"));
        self.quiet().await?;
        let (mark, began, before) = (self.plane.audit().mark()?, Instant::now(), keeper.usage()?);
        while began.elapsed() < REST {
            progress.step(&format!("{} s of {} s", began.elapsed().as_secs(), REST.as_secs()));
            sleep(Duration::from_secs(1)).await;
        }
        let (after, span) = (keeper.usage()?, began.elapsed());
        let asked = self.asked_since(mark)?;
        let leases = asked.clone().only(AuditedRequest::is_lease).count();
        let others = asked.without_leases().without_watches();
        let rest = Rest {
            requests_per_minute: per_minute(others.count(), span),
            lease_requests_per_minute: per_minute(leases, span),
            cpu_percent: cpu_percent(before, after, span),
            rss_mib: after.rss_mib,
        };
        progress.done(&format!(
            "{:.0} requests a minute {:?}, {:.1} % CPU, {:.1} MiB",
            rest.requests_per_minute,
            others.by_verb_and_resource(),
            rest.cpu_percent,
            rest.rss_mib
        ));
        Ok(rest)
    }

    /// Waits until it asks for nothing: what was begun before has come to its end.
    async fn quiet(&self) -> Result<()> {
        let began = Instant::now();
        let mut quiet_since = Instant::now();
        let mut mark = self.plane.audit().mark()?;
        while quiet_since.elapsed() < QUIET {
            // A request that never ceases is what is to be measured.
            if began.elapsed() > 4 * QUIET {
                return Ok(());
            }
            sleep(Duration::from_secs(1)).await;
            let now = self.plane.audit().mark()?;
            if self.asked_since(mark)?.without_leases().without_watches().count() > 0 {
                quiet_since = Instant::now();
            }
            mark = now;
        }
        Ok(())
    }

    /// Cordons and drains the few nodes that stay cordoned.
    async fn cordon_some(&self) -> Result<()> {
        let nodes: Vec<usize> = size::resting().collect();
        drain::cordon(&self.client, &nodes, drain::this_second()?).await?;
        drain::evict(&self.client, self.size, &nodes).await?;
        drain::told_blocked(&self.client, &nodes, Duration::from_mins(1)).await
    }

    /// Drains many nodes at once, from the cordon until drain-keeper has nothing left to do with them.
    async fn drain(&self, keeper: &Operator) -> Result<Drain> {
        let nodes: Vec<usize> = size::draining().collect();
        let (client, size) = (&self.client, self.size);
        let progress = Progress::begin(format!("{DRAINING} nodes drain at once"));
        let (mark, began, before) = (self.plane.audit().mark()?, Instant::now(), keeper.usage()?);
        let cordoned = drain::this_second()?;
        drain::cordon(client, &nodes, cordoned).await?;
        progress.step("cordoned, evicting");
        drain::evict(client, size, &nodes).await?;
        let evicted_within = (cordoned + TIME_OUT).duration_since(Timestamp::now());
        let evicted_within = Duration::try_from(evicted_within).context("the evictions took longer than timeOut")?;
        let left = drain::until_none(client, size, &nodes, evicted_within, |pod, _| {
            pod.part == Part::Ordinary
        })
        .await?;
        let start = drain::clock_start(client, &nodes).await?;
        ensure!(
            start == cordoned,
            "the clocks started at {start}, the nodes were cordoned at {cordoned}"
        );
        let mut deadlines = lateness::after_the_drain(start, &left)?;
        progress.step(&format!("{} deadlines ahead", deadlines.len()));

        until(start + BUDGET_WAIT).await;
        let rss_mib = keeper.usage()?.rss_mib;
        let overridden = Duration::try_from(FORCE_AFTER)?;
        let is_untouched = |part: Part| part == Part::TightStuck;
        let left = drain::until_none(client, size, &nodes, overridden, |pod, meta| {
            is_untouched(pod.part) && meta.deletion_timestamp.is_none()
        })
        .await?;
        deadlines.extend(lateness::after_the_override(start, &left));
        until(lateness::last(&deadlines).context("no deadline")?).await;
        progress.step("waiting for the last pods");
        let rest = Duration::try_from(OVERRIDE_SPACING)? + Duration::from_mins(2);
        drain::until_none(client, size, &nodes, rest, |pod, _| pod.part != Part::DaemonSet).await?;
        let (after, span) = (keeper.usage()?, began.elapsed());
        progress.step("uncordoned");
        drain::uncordon(client, &nodes).await?;
        drain::forgotten(client, &nodes, Duration::from_mins(1)).await?;
        self.quiet().await?;

        let asked = self.asked_since(mark)?.without_leases();
        let lateness = lateness::compare(&deadlines, &asked)?;
        progress.done(&format!(
            "{} deadlines, {} pods held back",
            lateness.on_time.count() + lateness.held_back.count(),
            lateness.held_back.count()
        ));
        Ok(Drain {
            requests: RequestsPerNode::of(&asked, DRAINING),
            lateness,
            cpu_percent: cpu_percent(before, after, span),
            rss_mib,
        })
    }
}

async fn until(moment: Timestamp) {
    let left: SignedDuration = moment.duration_since(Timestamp::now());
    sleep_until(Instant::now() + Duration::try_from(left).unwrap_or_default()).await;
}

// Counts of requests are far below 2^53.
#[allow(clippy::cast_precision_loss)]
fn per_minute(count: usize, span: Duration) -> f64 {
    count as f64 * 60.0 / span.as_secs_f64()
}

/// Of one core.
fn cpu_percent(before: Usage, after: Usage, span: Duration) -> f64 {
    100.0 * (after.cpu.saturating_sub(before.cpu)).as_secs_f64() / span.as_secs_f64()
}
