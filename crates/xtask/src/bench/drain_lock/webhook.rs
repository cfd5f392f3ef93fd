//! What the webhook costs: how long an answer takes, and what drain-lock needs for a large cluster.

mod cluster;
mod load;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::Operator;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::{Cluster, ControlPlane};
use serde::Serialize;
use serde_json::json;

use self::load::{Answers, Endpoint};
use super::measure::{OPERATOR_NAMESPACE, SERVICE_ACCOUNT};
use crate::bench::large::fill;
use crate::bench::large::pods;
use crate::bench::large::size::Size;
use crate::drain_lock::Install;

/// Reviews a second.
const PER_SECOND: u32 = 500;

/// How long they are posted, and how long before that answers do not count.
const SPAN: Duration = Duration::from_secs(20);
const WARM_UP: Duration = Duration::from_secs(2);

/// How many different pods are asked for.
const ASKED_FOR: usize = 5_000;

/// A control plane that takes less than this share of a core, and for so long, is at rest: after it was filled its parts
/// read what it was filled with, on the same cores.
const REST: f64 = 0.25;
const REST_FOR: Duration = Duration::from_secs(5);

/// How long that may take.
const REST_WITHIN: Duration = Duration::from_mins(5);

/// How long drain-lock may take to get ready.
const READY_WITHIN: Duration = Duration::from_mins(2);

/// The webhook's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Webhook {
    pub nodes: usize,
    pub pods: usize,
    pub asked_per_s: f64,
    pub answers: usize,
    pub admitted: usize,
    pub refused: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    /// The highest since its start.
    pub rss_mib: f64,
    pub rss_mib_after_start: f64,
    pub ready_s: f64,
    /// Of one core, under this load.
    pub cpu_pct: f64,
}

/// Measures it on a control plane of its own.
pub async fn measure(size: Size, binary: &Path) -> Result<Webhook> {
    let progress = Progress::begin("control plane for the webhook");
    let plane = ControlPlane::start(fill::options()).await?;
    progress.done("runs on this machine");
    cluster::fill(&plane, size).await?;
    rest(&plane).await?;
    let client = plane.client().await?;

    let progress = Progress::begin("drain-lock");
    let install = Install {
        release: Release::new("nodeward", OPERATOR_NAMESPACE),
        service_account: SERVICE_ACCOUNT.to_owned(),
        config: json!({}),
    };
    let lock = install.prepare(&Cluster::from(&plane), binary.to_owned()).await?;
    let began = Instant::now();
    lock.process().start()?;
    let ready = ready(&lock, began).await?;
    progress.done(&format!("ready after {:.1} s", ready.as_secs_f64()));
    let after_start = lock.usage()?;

    let progress = Progress::begin(format!("{PER_SECOND} reviews a second"));
    let reviews: Vec<Vec<u8>> = asked_for(size)
        .enumerate()
        .map(|(number, (namespace, name))| load::review(number, &namespace, &name))
        .collect();
    let endpoint = Endpoint::found(&client).await?;
    let (began, before) = (Instant::now(), lock.usage()?);
    let answers = endpoint.load(reviews, PER_SECOND, SPAN, WARM_UP).await?;
    let (spent, after) = (began.elapsed(), lock.usage()?);
    ensure!(!answers.latencies.is_empty(), "no answer at all");
    let webhook = Webhook {
        nodes: size.nodes,
        pods: size.pods,
        asked_per_s: per_second(&answers),
        answers: answers.latencies.len(),
        admitted: answers.admitted,
        refused: answers.refused,
        p50_ms: quantile(&answers.latencies, 0.5),
        p99_ms: quantile(&answers.latencies, 0.99),
        max_ms: quantile(&answers.latencies, 1.0),
        rss_mib: after.peak_rss_mib,
        rss_mib_after_start: after_start.rss_mib,
        ready_s: ready.as_secs_f64(),
        cpu_pct: 100.0 * after.cpu.saturating_sub(before.cpu).as_secs_f64() / spent.as_secs_f64(),
    };
    progress.done(&format!("p99 {:.2} ms", webhook.p99_ms));
    let status = lock.stop(Duration::from_secs(20)).await?;
    ensure!(status.success(), "drain-lock ended with {status}");
    Ok(webhook)
}

/// Waits until the control plane has taken in what it was filled with.
async fn rest(plane: &ControlPlane) -> Result<()> {
    let progress = Progress::begin("the control plane takes it in");
    let spent = || -> Duration {
        let parts = plane.parts().into_iter();
        // A part that this control plane does without spends nothing.
        parts.filter_map(|part| part.usage().ok()).map(|usage| usage.cpu).sum()
    };
    let (began, mut before) = (Instant::now(), spent());
    loop {
        tokio::time::sleep(REST_FOR).await;
        let now = spent();
        let share = now.saturating_sub(before).as_secs_f64() / REST_FOR.as_secs_f64();
        before = now;
        if share < REST {
            progress.done("at rest");
            return Ok(());
        }
        progress.step(&format!("{:.0} % of a core", 100.0 * share));
        ensure!(
            began.elapsed() < REST_WITHIN,
            "the control plane still takes {:.0} % of a core",
            100.0 * share
        );
    }
}

/// Waits until it is ready; gives how long that took.
async fn ready(lock: &Operator, began: Instant) -> Result<Duration> {
    while !matches!(lock.get("/readyz").await, Ok((200, _))) {
        let log = || lock.process().log_tail(20);
        ensure!(lock.process().is_running(), "drain-lock has ended:\n{}", log());
        ensure!(
            began.elapsed() < READY_WITHIN,
            "drain-lock does not get ready:\n{}",
            log()
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(began.elapsed())
}

/// Pods from all over the cluster.
fn asked_for(size: Size) -> impl Iterator<Item = (String, String)> {
    let every = (size.pods / ASKED_FOR).max(1);
    pods::pods(size).step_by(every).map(|(namespace, pod)| {
        (
            namespace,
            pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        )
    })
}

fn per_second(answers: &Answers) -> f64 {
    // Far below 2^53.
    #[allow(clippy::cast_precision_loss)]
    let count = answers.latencies.len() as f64;
    count / SPAN.as_secs_f64()
}

/// The smallest of sorted values that at least this share (0 to 1) of all do not exceed.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    // A share of a length is between 0 and that length.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
}

impl Webhook {
    /// For a terminal.
    pub fn text(&self) -> String {
        let Self {
            nodes,
            pods,
            p50_ms,
            p99_ms,
            max_ms,
            ..
        } = self;
        format!(
            "  webhook, {nodes} nodes and {pods} pods: p50 {p50_ms:.2} ms, p99 {p99_ms:.2} ms\n    at most {max_ms:.1} ms, {} answers at {:.0} a second\n    ready after {:.1} s, {:.0} MiB, {:.0} % of a core",
            self.answers, self.asked_per_s, self.ready_s, self.rss_mib, self.cpu_pct
        )
    }
}
