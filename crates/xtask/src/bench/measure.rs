//! An operator on a control plane, and what it asks for and costs there.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use kube::Client;
use nodeward_api::node_lease;
use nodeward_testkit::audit::{AuditedRequest, Mark, Requests};
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::Operator;
use nodeward_testkit::process::Usage;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::{Cluster, ControlPlane};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::figures::count;
use crate::install::{self, Installation};

const NAMESPACE: &str = nodeward_api::DEFAULT_NAMESPACE;

/// How long an operator is watched at rest.
const REST: Duration = Duration::from_mins(1);

/// What has not asked for anything for so long is at rest.
const QUIET: Duration = Duration::from_secs(20);

/// How long an operator may take to get ready.
const READY_WITHIN: Duration = Duration::from_mins(2);

/// The measured cluster and the operator on it.
pub struct Bench {
    pub plane: ControlPlane,
    pub client: Client,
    operator: &'static str,
}

/// A stretch at rest.
pub struct Rest {
    pub requests_per_min: f64,
    pub lease_requests_per_min: f64,
    pub cpu_pct: f64,
    pub rss_mib: f64,
}

/// The starts of an operator, each until it was ready.
#[derive(Default)]
pub struct Starts {
    pub seconds: Vec<f64>,
    /// Of a start, with those of the lease, and watches.
    pub most_requests: usize,
}

/// What was asked for and spent since a moment.
pub struct Stretch {
    mark: Mark,
    began: Instant,
    before: Usage,
}

impl Bench {
    pub async fn new(plane: ControlPlane, operator: &'static str) -> Result<Self> {
        Ok(Self {
            client: plane.client().await?,
            plane,
            operator,
        })
    }

    /// Installs the operator as a user does, with this configuration, and does not start it.
    pub async fn prepare(&self, binary: &Path, config: Value) -> Result<Operator> {
        let progress = Progress::begin(self.operator);
        let installation = Installation {
            release: Release::new("nodeward", NAMESPACE),
            operator: self.operator,
            binary: binary.to_owned(),
            config,
        };
        let operator = installation.prepare(&Cluster::from(&self.plane)).await?;
        progress.done("installed by helm");
        Ok(operator)
    }

    /// Starts it `times` times; it runs on after the last start.
    pub async fn time_starts(&self, operator: &Operator, times: usize) -> Result<Starts> {
        let progress = Progress::begin(format!("{} starts", self.operator));
        let mut starts = Starts::default();
        loop {
            let mark = self.plane.audit().mark()?;
            starts.seconds.push(time_to_ready(operator).await?);
            let requests = self.requests_since(mark)?.count();
            starts.most_requests = starts.most_requests.max(requests);
            let told = format!("ready after {:.2?} s", starts.seconds);
            if starts.seconds.len() >= times {
                progress.done(&told);
                return Ok(starts);
            }
            progress.step(&told);
            install::stop(operator).await?;
        }
    }

    /// Its requests since then.
    pub fn requests_since(&self, mark: Mark) -> Result<Requests> {
        let account = format!("nodeward-{}", self.operator);
        Ok(self.plane.audit().since(mark)?.of_service_account(NAMESPACE, &account))
    }

    /// From now on.
    pub fn stretch(&self, operator: &Operator) -> Result<Stretch> {
        Ok(Stretch {
            mark: self.plane.audit().mark()?,
            began: Instant::now(),
            before: operator.usage()?,
        })
    }

    /// What it asks for, and what it costs, while nothing happens but heartbeats.
    pub async fn at_rest(&self, operator: &Operator, what: &str) -> Result<Rest> {
        let progress = Progress::begin(format!("at rest: {what}"));
        self.quiet().await?;
        let stretch = self.stretch(operator)?;
        while stretch.began.elapsed() < REST {
            progress.step(&format!(
                "{} s of {} s",
                stretch.began.elapsed().as_secs(),
                REST.as_secs()
            ));
            sleep(Duration::from_secs(1)).await;
        }
        let minutes = stretch.began.elapsed().as_secs_f64() / 60.0;
        let (cpu_pct, asked) = (stretch.cpu_pct(operator)?, self.requests_since(stretch.mark)?);
        let leases = asked.clone().only(AuditedRequest::is_lease).count();
        let others = asked.without_leases().without_watches();
        let rest = Rest {
            requests_per_min: count(others.count()) / minutes,
            lease_requests_per_min: count(leases) / minutes,
            cpu_pct,
            rss_mib: operator.usage()?.rss_mib,
        };
        progress.done(&format!(
            "{:.0} requests a minute {:?}, {cpu_pct:.1} % CPU, {:.1} MiB",
            rest.requests_per_min,
            others.by_verb_and_resource(),
            rest.rss_mib
        ));
        Ok(rest)
    }

    /// Waits until it asks for nothing: what was begun before has come to its end.
    pub async fn quiet(&self) -> Result<()> {
        let began = Instant::now();
        let mut quiet_since = Instant::now();
        let mut mark = self.plane.audit().mark()?;
        // A request that never ceases is what is to be measured.
        while quiet_since.elapsed() < QUIET && began.elapsed() <= 4 * QUIET {
            sleep(Duration::from_secs(1)).await;
            let now = self.plane.audit().mark()?;
            if self.requests_since(mark)?.without_leases().without_watches().count() > 0 {
                quiet_since = Instant::now();
            }
            mark = now;
        }
        Ok(())
    }
}

impl Starts {
    pub fn slowest_s(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }
}

impl Stretch {
    /// The operator's requests, the lease's left out.
    pub fn requests(&self, bench: &Bench) -> Result<Requests> {
        Ok(bench.requests_since(self.mark)?.without_leases())
    }

    /// The operator's requests; of leases those of nodes, and not the ones that it asks for each minute, whatever nodes do.
    pub fn of_remediation(&self, bench: &Bench) -> Result<Requests> {
        let is_of_node =
            |request: &AuditedRequest| !request.is_lease() || request.namespace == node_lease::DEFAULT_NAMESPACE;
        let asked = bench.requests_since(self.mark)?.without_watches();
        Ok(asked.only(is_of_node))
    }

    /// Of one core.
    pub fn cpu_pct(&self, operator: &Operator) -> Result<f64> {
        let spent = operator.usage()?.cpu.saturating_sub(self.before.cpu);
        Ok(100.0 * spent.as_secs_f64() / self.began.elapsed().as_secs_f64())
    }
}

/// Starts it; gives the seconds from the start of the process to the first 200 of `/readyz`.
async fn time_to_ready(operator: &Operator) -> Result<f64> {
    let began = Instant::now();
    let process = operator.process();
    process.start()?;
    while !matches!(operator.get("/readyz").await, Ok((200, _))) {
        let is_waited_for = process.is_running() && began.elapsed() < READY_WITHIN;
        ensure!(
            is_waited_for,
            "{} does not get ready:\n{}",
            process.name(),
            process.log_tail(20)
        );
        sleep(Duration::from_millis(10)).await;
    }
    Ok(began.elapsed().as_secs_f64())
}
