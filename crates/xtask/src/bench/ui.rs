//! What `kubectl nodeward ui` costs, and how soon a browser shows what happens, on a large cluster in the middle of an
//! upgrade.

mod page;
mod pictures;
mod sample;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use nodeward_testkit::binaries::Profile;
use nodeward_testkit::browser::Browser;
use nodeward_testkit::process::Process;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, binaries};
use serde_json::json;

use self::page::Page;
use self::sample::{Sample, Size};
use super::figures::{Distribution, Figures};
use super::fleet::size::{node_name, thousands};

/// How often the page is loaded anew; the slowest counts.
const LOADS: usize = 5;

/// The window of all that is measured.
const WINDOW: (u32, u32) = (1280, 800);

/// What the page promises: until the first picture, until a change is seen, of one frame, and of the plugin's memory.
const FIRST_PICTURE_MS: f64 = 2_000.0;
const CHANGE_MS: f64 = 250.0;
const FRAME_MS: f64 = 50.0;
const RSS_MIB: f64 = 80.0;

#[derive(clap::Args)]
pub struct Args {
    /// Nodes of the cluster
    #[arg(long, default_value_t = 15_000)]
    nodes: usize,
    /// Drains under way
    #[arg(long, default_value_t = 500)]
    drains: usize,
    /// Budgets
    #[arg(long, default_value_t = 2_000)]
    budgets: usize,
    /// Changes whose way to the browser is timed
    #[arg(long, default_value_t = 100)]
    changes: usize,
    /// Write pictures of every view into this directory
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
    /// Write the small pictures of the documentation into this directory
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
}

/// The command, and its first address.
struct Served {
    process: Process,
    address: String,
}

pub async fn bench(args: &Args) -> Result<Figures> {
    let (nodes, drains) = (args.nodes, args.drains.min(args.nodes));
    ensure!(drains > 0 && args.budgets > 1, "a drain and two budgets are needed");
    let plugin = tokio::task::spawn_blocking(|| binaries::operator("kubectl-nodeward", Profile::Release)).await??;
    let size = Size {
        nodes,
        drains,
        budgets: args.budgets,
    };
    let sample = Sample::start(size).await?;
    let plane = &sample.plane;

    // The snapshot is what the cluster gives; it is shown again without one.
    let file = plane.dir().join("snapshot.json");
    let took = Process::new("ui --snapshot", &plugin, plane.dir().join("snapshot.log"))
        .env("KUBECONFIG", plane.kubeconfig())
        .args(["ui", "--snapshot"])
        .args([&file]);
    took.start()?;
    let ended = took.wait_for_exit(secs(180)).await?;
    ensure!(ended.success(), "{}", took.log_tail(20));

    let mut figures = Figures::default();
    figures.line(format!(
        "kubectl nodeward ui: {} nodes, {drains} drains, {} budgets",
        thousands(nodes),
        thousands(args.budgets)
    ));
    let mut object = json!({ "nodes": nodes, "drains": drains, "budgets": args.budgets });
    for is_live in [false, true] {
        let what = if is_live { "live" } else { "snapshot" };
        let progress = Progress::begin(format!("the page, {what}"));
        let served = serve(&plugin, plane, (!is_live).then_some(file.as_path())).await?;
        let browser = Browser::start(plane.dir(), false).await?;
        browser.resize(WINDOW.0, WINDOW.1).await?;
        let page = Page::open(&browser, &served.address, nodes).await?;
        let mut loads = Vec::new();
        for _ in 0..LOADS {
            loads.push(page.load().await?);
        }
        progress.step("scrolling");
        let frames = page.scroll().await?;
        if is_live {
            progress.step("changes");
            let changes = changes(&page, &sample, args.changes).await?;
            let p95 = changes.p95.context("no change was timed")?;
            figures.row_with_target(
                "change to picture",
                format!("p95 {p95:.0} ms, {}", changes.text("ms", 0)),
                "p95 at most 250 ms",
                p95 <= CHANGE_MS,
            );
            object["change_ms"] = json!(changes);
        }
        let usage = served.process.usage()?;
        let (slowest, longest) = (page::greatest(&loads), page::greatest(&frames));
        figures.row_with_target(
            &format!("first picture, {what}"),
            format!("{slowest:.0} ms, the slowest of {LOADS}"),
            "at most 2 s",
            slowest <= FIRST_PICTURE_MS,
        );
        figures.row_with_target(
            &format!("frames, {what}"),
            Distribution::of(&frames).text("ms", 0),
            "at most 50 ms while scrolling",
            longest <= FRAME_MS,
        );
        figures.row_with_target(
            &format!("memory, {what}"),
            format!("{:.1} MiB, {:.1} MiB at most", usage.rss_mib, usage.peak_rss_mib),
            "at most 80 MiB",
            usage.peak_rss_mib <= RSS_MIB,
        );
        object[what] = json!({
            "first_picture_ms": slowest, "frame_ms": Distribution::of(&frames), "rss_mib": usage.rss_mib, "peak_rss_mib": usage.peak_rss_mib,
        });
        progress.done("measured");
        if is_live && let Some(dir) = &args.pictures {
            pictures::all(plane, &served.address, dir).await?;
        }
        if is_live && let Some(dir) = &args.docs {
            pictures::of_docs(plane, &served.address, dir).await?;
        }
    }
    figures.add(object);
    Ok(figures)
}

/// Serves the cluster, or a snapshot of it.
async fn serve(plugin: &Path, plane: &ControlPlane, from: Option<&Path>) -> Result<Served> {
    let log = plane.dir().join(if from.is_some() { "from.log" } else { "ui.log" });
    let mut process = Process::new("kubectl nodeward ui", plugin, &log)
        .env("KUBECONFIG", plane.kubeconfig())
        .args(["ui", "--no-open"]);
    if let Some(file) = from {
        process = process.args(["--from".as_ref(), file.as_os_str()]);
    }
    process.start()?;
    let address = wait::until("the page to be served", secs(60), || async {
        let said = std::fs::read_to_string(&log)?;
        let address = said.lines().find(|line| line.starts_with("http://"));
        address.map(str::to_owned).context(said.clone())
    })
    .await?;
    Ok(Served { process, address })
}

/// Nodes are cordoned one by one; from the watch event, as another client gets it, to the picture that shows it.
async fn changes(page: &Page<'_>, sample: &Sample, count: usize) -> Result<Distribution> {
    let nodes: Api<Node> = Api::all(sample.client.clone());
    let mut events = Box::pin(watcher(nodes.clone(), watcher::Config::default()).applied_objects());
    // All that are there come first.
    let total = page.nodes();
    for _ in 0..total {
        events.next().await.context("the watch ended")??;
    }
    let first = total / 2;
    let mut latencies = Vec::new();
    for change in 0..count.min(total / 2) {
        let name = node_name(first + change);
        page.expect_change().await?;
        let cordon = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
        nodes.patch(&name, &PatchParams::default(), &cordon).await?;
        while events
            .next()
            .await
            .context("the watch ended")??
            .metadata
            .name
            .as_deref()
            != Some(&name)
        {}
        let seen = Timestamp::now();
        let shown = page.changed_at().await?;
        latencies.push(shown - seen.as_duration().as_secs_f64() * 1000.0);
        // Not in step with anything.
        tokio::time::sleep(Duration::from_millis(300 + (change as u64 * 37) % 200)).await;
    }
    Ok(Distribution::of(&latencies))
}
