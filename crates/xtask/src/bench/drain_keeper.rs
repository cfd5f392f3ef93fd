//! What drain-keeper costs a large cluster.

mod bare;
mod drain;
mod lateness;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use nodeward_testkit::binaries::Profile;
use nodeward_testkit::foreign::{Foreign, begin_openshift_upgrade};
use nodeward_testkit::operator::Operator;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::{ControlPlane, binaries, bulk};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::figures::{Distribution, Figures, count};
use super::fleet;
use super::fleet::heartbeats::Heartbeats;
use super::fleet::nodes::POOL_LABEL;
use super::fleet::pods::Part;
use super::fleet::size::{self, DRAINING, PODS_PER_NODE, RESTING, Size, node_name};
use super::measure::Bench;
use crate::install;

/// What is measured unless a size is asked for: nodes and pods.
const SIZES: [(usize, usize); 2] = [(1_000, 30_000), (5_000, 150_000)];

/// How often drain-keeper is started; the slowest start counts.
const STARTS: usize = 3;

/// `nodeDrain.timeOut`.
const TIME_OUT: SignedDuration = SignedDuration::from_secs(75);

/// `nodeDrain.expectedNodeDrainTime`; the UpgradeConfig's `PDBForceDrainTimeout` adds 0 minutes, which is legal.
const BUDGET_WAIT: SignedDuration = SignedDuration::from_secs(90);

/// `forceAfter`.
const FORCE_AFTER: SignedDuration = SignedDuration::from_secs(15);

/// `overrideSpacing`.
const OVERRIDE_SPACING: SignedDuration = SignedDuration::from_secs(20);

const UPGRADE_NAMESPACE: &str = "openshift-managed-upgrade-operator";

#[derive(clap::Args)]
pub struct Args {
    /// Measure only this many nodes
    #[arg(long)]
    nodes: Option<usize>,
    /// Measure only this many pods [default: 30 a node]
    #[arg(long)]
    pods: Option<usize>,
    /// Beside `openshift` with a signal over an object for each node, and one by a mark on the node
    #[arg(long)]
    signals: bool,
}

impl Args {
    fn sizes(&self) -> Result<Vec<Size>> {
        let size = |(nodes, pods)| Size::new(nodes, pods);
        match (self.nodes, self.pods) {
            (None, None) => SIZES.into_iter().map(size).collect(),
            (nodes, pods) => {
                let nodes = nodes.unwrap_or_else(|| pods.map_or(0, |pods| pods / PODS_PER_NODE));
                Ok(vec![size((nodes, pods.unwrap_or(nodes * PODS_PER_NODE)))?])
            }
        }
    }
}

/// Measures each size. The figures of the largest come first, those of the others are under `sizes`.
pub async fn bench(args: &Args) -> Result<Figures> {
    let sizes = args.sizes()?;
    let binary = tokio::task::spawn_blocking(|| binaries::operator("drain-keeper", Profile::Release)).await??;
    let mut others = serde_json::Map::new();
    let mut tables = String::new();
    let mut largest = Figures::default();
    for (index, size) in sizes.iter().enumerate() {
        let figures = measure(*size, &binary, args.signals).await?;
        tables.push_str(figures.table());
        if index + 1 == sizes.len() {
            largest = figures;
        } else {
            others.insert(format!("{}/{}", size.nodes, size.pods), figures.into_json());
        }
    }
    largest.add(json!({ "sizes": others }));
    Ok(largest.with_table(tables))
}

/// drain-keeper's configuration: minutes are seconds, and the limits are lifted. The pool that rests has its waits in
/// minutes, so that its pods are waited for throughout.
fn config(signals: bool) -> Value {
    let signal = if signals {
        let when = "object.metadata.name == node.metadata.name && has(object.spec.drain)";
        let plan = json!({ "apiVersion": "upgrade.cattle.io/v1", "kind": "Plan", "when": when });
        json!({ "anyOf": ["openshift", { "resource": plan }, { "node": { "annotation": "example.com/upgrading" } }] })
    } else {
        json!("openshift")
    };
    let seconds = |duration: SignedDuration| format!("{}s", duration.as_secs());
    json!({
        "upgradeSignal": signal,
        "overrideBudgets": "all",
        "nodeDrain": { "timeOut": seconds(TIME_OUT), "expectedNodeDrainTime": seconds(BUDGET_WAIT) },
        "forceAfter": seconds(FORCE_AFTER),
        "overrideSpacing": seconds(OVERRIDE_SPACING),
        "flapTolerance": "3s",
        "limits": { "forcedPerNode": 1000, "forcedPerMinute": 1_000_000 },
        "pools": [{
            "selector": { POOL_LABEL: "resting" },
            "nodeDrain": { "timeOut": 45, "expectedNodeDrainTime": 60 },
        }],
    })
}

/// An upgrade is on, and concerns all workers; budgets are respected for `expectedNodeDrainTime` alone.
async fn begin_upgrade(plane: &ControlPlane, client: &Client, size: Size) -> Result<()> {
    plane.namespace(UPGRADE_NAMESPACE).await?;
    begin_openshift_upgrade(client, UPGRADE_NAMESPACE, u32::try_from(size.nodes)?).await
}

/// An object for each node, by the name of the node.
async fn plan_each_node(client: &Client, size: Size) -> Result<()> {
    Foreign::Plan.install(client).await?;
    let plan = |node: usize| async move {
        let body = json!({ "spec": { "concurrency": 1, "version": "v1.35.0", "upgrade": { "image": "example.com/upgrade" } } });
        Foreign::Plan
            .put(client, Some(UPGRADE_NAMESPACE), &node_name(node), body)
            .await
    };
    bulk::each(0..size.nodes, plan).await.map(drop)
}

/// Measures one size, from a fresh control plane on.
async fn measure(size: Size, binary: &Path, signals: bool) -> Result<Figures> {
    let began = Instant::now();
    let bench = Bench::new(fleet::start(size).await?, "drain-keeper").await?;
    begin_upgrade(&bench.plane, &bench.client, size).await?;
    if signals {
        plan_each_node(&bench.client, size).await?;
    }
    let set_up_s = began.elapsed().as_secs_f64();
    let keeper = bench.prepare(binary, config(signals)).await?;
    let starts = bench.time_starts(&keeper, STARTS).await?;
    let heartbeats = Heartbeats::start(&bench.client, size.nodes);
    let after_start = keeper.usage()?;
    let idle = bench.at_rest(&keeper, "an upgrade is on, nothing is cordoned").await?;
    cordon_some(&bench.client, size).await?;
    let rest = bench
        .at_rest(&keeper, &format!("{RESTING} cordoned nodes, blockers wait"))
        .await?;
    let bare = bare::measure(&bench.client, size).await?;
    let drain = drain_many(&bench, &keeper, size).await?;
    let rss_mib = keeper.usage()?.peak_rss_mib;
    let heartbeats = heartbeats.text();
    install::stop(&keeper).await?;
    let measured_s = began.elapsed().as_secs_f64() - set_up_s;

    let on_time = Distribution::of(&drain.lateness.on_time);
    let held_back = Distribution::of(&drain.lateness.held_back);
    let by_strategy = drain.lateness.by_strategy.iter();
    let by_strategy: BTreeMap<_, _> = by_strategy
        .map(|(name, of)| (name.clone(), Distribution::of(of)))
        .collect();
    let requests_per_node: f64 = drain.requests_per_node.values().sum();
    let ready_s = starts.slowest_s();
    let mut figures = Figures::default();
    figures.add(json!({
        "nodes": size.nodes,
        "pods": size.pods,
        // With cordoned nodes whose blockers wait; neither the lease nor watches.
        "rest_requests_per_min": rest.requests_per_min,
        "rest_requests_per_min_nothing_cordoned": idle.requests_per_min,
        "lease_requests_per_min": rest.lease_requests_per_min,
        // From the cordon until nothing is left to do after the uncordon; all but the lease and the renewal of watches.
        "requests_per_node": requests_per_node,
        "requests_per_node_by_kind": drain.requests_per_node,
        // From a deadline to the first request that follows from it.
        "lateness_ms": on_time,
        "lateness_ms_by_strategy": by_strategy,
        // Of the first requests of as many deadlines that coincide, by a client that does nothing else.
        "bare_client_ms": bare,
        "held_back": held_back,
        "nodes_draining_at_once": DRAINING,
        "ready_s": ready_s,
        "ready_s_of_each_start": starts.seconds,
        // The highest since its start, the drain included.
        "rss_mib": rss_mib,
        "rss_mib_after_start": after_start.rss_mib,
        "rss_mib_at_rest": rest.rss_mib,
        "rss_mib_draining": drain.rss_mib,
        "cpu_pct": rest.cpu_pct,
        "cpu_pct_nothing_cordoned": idle.cpu_pct,
        "cpu_pct_draining": drain.cpu_pct,
        "heartbeats": heartbeats,
        "set_up_s": set_up_s,
        "measured_s": measured_s,
    }));
    let title = size.title();
    figures.line(format!(
        "{title} nodes/pods, set up in {set_up_s:.0} s, measured in {measured_s:.0} s"
    ));
    let requests = format!(
        "{:.0} a minute with {RESTING} cordoned nodes, {:.0} with none; lease: {:.0}",
        rest.requests_per_min, idle.requests_per_min, rest.lease_requests_per_min
    );
    let memory = format!(
        "{rss_mib:.1} MiB at most; {:.1} after the start, {:.1} at rest, {:.1} draining",
        after_start.rss_mib, rest.rss_mib, drain.rss_mib
    );
    let cpu = format!(
        "{:.1} % at rest with {RESTING} cordoned, {:.1} % with none, {:.1} % draining",
        rest.cpu_pct, idle.cpu_pct, drain.cpu_pct
    );
    let late = |of: &Distribution| format!("{} ({} acts)", of.text("ms", 0), of.count);
    let ready = format!("{ready_s:.2} s, the slowest of {STARTS}");
    let asks_nothing = rest.requests_per_min + idle.requests_per_min == 0.0;
    figures.row_with_target("requests at rest", requests, "0", asks_nothing);
    figures.row(
        "requests per node",
        format!("{requests_per_node:.1} from cordon to end"),
    );
    let limit = 1000_f64.max(bare.p99.unwrap_or_default() + 250.0);
    let lateness = format!("{}; bare client {}", late(&on_time), bare.text("ms", 0));
    let target = "p99 <= 1 s, or a bare client's + 0.25 s";
    figures.row_with_target("lateness", lateness, target, on_time.is_within(limit));
    figures.row("held back", late(&held_back));
    figures.row_with_target("ready", ready, "<= 3 s", ready_s <= 3.0);
    let most = if signals { 64.0 } else { 40.0 };
    figures.row_with_target("memory", memory, &format!("<= {most} MiB"), rss_mib <= most);
    figures.row("CPU, of a core", cpu);
    figures.row("heartbeats", heartbeats);
    for (strategy, of) in &by_strategy {
        figures.line(format!("    {strategy:20} {}", late(of)));
    }
    for (kind, count) in &drain.requests_per_node {
        figures.line(format!("    {kind:32} {count:.2} a node"));
    }
    Ok(figures)
}

/// Cordons and drains the few nodes that stay cordoned.
async fn cordon_some(client: &Client, size: Size) -> Result<()> {
    let nodes: Vec<usize> = size::resting().collect();
    drain::cordon(client, &nodes, drain::this_second()?).await?;
    drain::evict(client, size, &nodes).await?;
    drain::all_blocked(client, &nodes).await
}

/// The drain of many nodes.
struct Drain {
    requests_per_node: BTreeMap<String, f64>,
    lateness: lateness::Outcome,
    cpu_pct: f64,
    rss_mib: f64,
}

/// Drains many nodes at once, from the cordon until drain-keeper has nothing left to do with them.
async fn drain_many(bench: &Bench, keeper: &Operator, size: Size) -> Result<Drain> {
    let nodes: Vec<usize> = size::draining().collect();
    let client = &bench.client;
    let progress = Progress::begin(format!("{DRAINING} nodes drain at once"));
    let stretch = bench.stretch(keeper)?;
    let start = drain::this_second()?;
    drain::cordon(client, &nodes, start).await?;
    progress.step("cordoned, evicting");
    drain::evict(client, size, &nodes).await?;
    let evicted_within = (start + TIME_OUT).duration_since(Timestamp::now());
    let evicted_within = Duration::try_from(evicted_within).context("the evictions took longer than timeOut")?;
    let is_ordinary = |part: Part| part == Part::Ordinary;
    let left = drain::until_none(client, size, &nodes, evicted_within, |pod, _| is_ordinary(pod.part)).await?;
    let clocks = drain::clock_start(client, &nodes).await?;
    ensure!(
        clocks == start,
        "the clocks started at {clocks}, the nodes were cordoned at {start}"
    );
    let mut deadlines = lateness::after_the_drain(start, &left)?;
    progress.step(&format!("{} deadlines ahead", deadlines.len()));

    until(start + BUDGET_WAIT).await;
    let rss_mib = keeper.usage()?.rss_mib;
    let overridden = Duration::try_from(FORCE_AFTER)?;
    let left = drain::until_none(client, size, &nodes, overridden, |pod, meta| {
        pod.part == Part::TightStuck && meta.deletion_timestamp.is_none()
    })
    .await?;
    deadlines.extend(lateness::after_the_override(start, &left));
    let last = deadlines.iter().map(|deadline| deadline.due).max();
    until(last.context("no deadline")?).await;
    progress.step("waiting for the last pods");
    let rest = Duration::try_from(OVERRIDE_SPACING)? + Duration::from_mins(2);
    drain::until_none(client, size, &nodes, rest, |pod, _| pod.part != Part::DaemonSet).await?;
    let cpu_pct = stretch.cpu_pct(keeper)?;
    progress.step("uncordoned");
    drain::uncordon(client, &nodes).await?;
    drain::all_forgotten(client, &nodes).await?;
    bench.quiet().await?;

    let asked = stretch.requests(bench)?;
    let lateness = lateness::compare(&deadlines, &asked)?;
    let held_back = lateness.held_back.len();
    progress.done(&format!(
        "{} deadlines, {held_back} pods held back",
        lateness.on_time.len() + held_back
    ));
    // Of watches, those on a node's pods, which are opened for the node.
    let asked = asked.only(|request| !request.is_watch() || request.resource == "pods");
    let by_kind = asked.by_verb_and_resource().into_iter();
    Ok(Drain {
        requests_per_node: by_kind
            .map(|(kind, asked)| (kind, count(asked) / count(DRAINING)))
            .collect(),
        lateness,
        cpu_pct,
        rss_mib,
    })
}

async fn until(moment: Timestamp) {
    let left = Duration::try_from(moment.duration_since(Timestamp::now()));
    sleep_until(Instant::now() + left.unwrap_or_default()).await;
}

#[cfg(test)]
mod tests {
    use drain_keeper::settings::Settings;

    #[test]
    fn drain_keeper_accepts_the_configuration() {
        for signals in [false, true] {
            Settings::parse(&super::config(signals).to_string()).unwrap();
        }
    }
}
