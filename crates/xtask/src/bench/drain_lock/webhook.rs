//! What the webhook costs: how long an answer takes, and what drain-lock needs for a large cluster.

mod load;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use nodeward_testkit::progress::Progress;
use serde_json::json;

use self::load::Endpoint;
use crate::bench::figures::{Distribution, Figures, count};
use crate::bench::fleet::size::Size;
use crate::bench::fleet::{self, pods};
use crate::bench::measure::Bench;
use crate::install;

/// Reviews a second.
const PER_SECOND: u32 = 500;

/// How long they are posted, and how long before that answers do not count.
const SPAN: Duration = Duration::from_secs(20);
const WARM_UP: Duration = Duration::from_secs(2);

/// How many different pods are asked for.
const ASKED_FOR: usize = 5_000;

/// Measures it on a control plane of its own.
pub async fn measure(size: Size, binary: &Path, figures: &mut Figures) -> Result<()> {
    let bench = Bench::new(fleet::start(size).await?, "drain-lock").await?;
    let lock = bench.prepare(binary, json!({})).await?;
    let starts = bench.time_starts(&lock, 1).await?;
    let after_start = lock.usage()?;
    let progress = Progress::begin(format!("{PER_SECOND} reviews a second"));
    let asked_for = pods::pods(size).step_by((size.pods / ASKED_FOR).max(1)).enumerate();
    let reviews: Vec<Vec<u8>> = asked_for
        .map(|(number, (namespace, pod))| {
            load::review(number, &namespace, pod["metadata"]["name"].as_str().unwrap_or_default())
        })
        .collect();
    let endpoint = Endpoint::found(&bench.client).await?;
    let stretch = bench.stretch(&lock)?;
    let answers = endpoint.load(reviews, PER_SECOND, SPAN, WARM_UP).await?;
    let (cpu_pct, after) = (stretch.cpu_pct(&lock)?, lock.usage()?);
    let latency = Distribution::of(&answers.latencies);
    ensure!(latency.count > 0, "no answer at all");
    progress.done(&latency.text("ms", 2));
    install::stop(&lock).await?;

    let ready_s = starts.slowest_s();
    let asked_per_s = count(latency.count) / SPAN.as_secs_f64();
    figures.add(json!({
        "webhook_ms": latency,
        "rss_mib": after.peak_rss_mib,
        "ready_s": ready_s,
        "webhook": {
            "nodes": size.nodes,
            "pods": size.pods,
            "asked_per_s": asked_per_s,
            "answers": latency.count,
            "admitted": answers.admitted,
            "refused": answers.refused,
            "p50_ms": latency.p50,
            "p99_ms": latency.p99,
            "max_ms": latency.max,
            "rss_mib": after.peak_rss_mib,
            "rss_mib_after_start": after_start.rss_mib,
            "ready_s": ready_s,
            "cpu_pct": cpu_pct,
        },
    }));
    figures.line(format!("\n{} nodes/pods", size.title()));
    let is_prompt = latency.is_within(10.0);
    figures.row_with_target("webhook", latency.text("ms", 2), "p99 <= 10 ms", is_prompt);
    figures.row("answers", format!("{} at {asked_per_s:.0} a second", latency.count));
    figures.row_with_target("ready", format!("{ready_s:.1} s"), "<= 15 s", ready_s <= 15.0);
    let memory = format!(
        "{:.0} MiB at most; {:.0} after the start",
        after.peak_rss_mib, after_start.rss_mib
    );
    figures.row_with_target("memory", memory, "<= 250 MB", after.peak_rss_mib * 1.048_576 <= 250.0);
    figures.row("CPU, of a core", format!("{cpu_pct:.0} %"));
    Ok(())
}
