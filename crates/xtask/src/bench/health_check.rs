//! What health-check costs a large cluster, and how late it is.

mod bare;
mod figures;
mod meter;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use kube::Client;
use kube::api::{Patch, PatchParams};
use nodeward_api::NodeHealthCheck;
use nodeward_testkit::binaries::Profile;
use nodeward_testkit::operator::Operator;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::remediator::Family;
use nodeward_testkit::{binaries, bulk};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use self::figures::{AtOnce, Measured, Remediated};
use self::meter::Meter;
pub use self::meter::{create_health_check, health_checks};
use super::figures::{Distribution, Figures};
use super::fleet;
use super::fleet::heartbeats::Heartbeats;
use super::measure::Bench;
use crate::install;

/// How often it is started; the slowest start counts.
const STARTS: usize = 3;

/// How many nodes expire one by one.
const SINGLES: usize = 200;

/// How many are remediated at once.
const AT_ONCE: [usize; 2] = [50, 500];

/// Between two that expire one by one.
const APART: Duration = Duration::from_millis(400);

/// `duration` of the unhealthy condition.
const DURATION: Duration = Duration::from_secs(4);

/// How long a node stays under remediation before it is healthy again.
const REMEDIATION: Duration = Duration::from_millis(300);

/// The namespace of the template and the remediations.
const NAMESPACE: &str = "self-node-remediation";

/// The NodeHealthCheck's name.
const NAME: &str = "bench";

#[derive(clap::Args)]
pub struct Args {
    /// Nodes of the cluster
    #[arg(long, default_value_t = 5_000)]
    nodes: usize,
}

pub async fn bench(args: &Args) -> Result<Figures> {
    let nodes = args.nodes;
    ensure!(nodes >= 20, "{nodes} nodes: at least 20 are needed");
    let binary = tokio::task::spawn_blocking(|| binaries::operator("health-check", Profile::Release)).await??;
    let bench = Bench::new(fleet::start_nodes(nodes).await?, "health-check").await?;
    Family::SelfNode.install(&bench.client).await?;
    bench.plane.namespace(NAMESPACE).await?;
    let template = Family::SelfNode
        .create_template(&bench.client, NAMESPACE, "reboot")
        .await?;
    let operator = bench.prepare(&binary, json!({})).await?;
    create_health_check(&bench.client, &health_check(&template)?).await?;
    let starts = bench.time_starts(&operator, STARTS).await?;

    let heartbeats = Heartbeats::start(&bench.client, nodes);
    let rest = bench
        .at_rest(&operator, &format!("{nodes} nodes with heartbeats"))
        .await?;
    let meter = Arc::new(Meter::start(&bench.client, heartbeats).await?);
    let (singles, counts) = (SINGLES.min(nodes / 4), AT_ONCE.map(|count| count.min(nodes / 4)));
    let mut remediated = vec![one_by_one(&meter, singles).await?];
    let mut at_once = Vec::new();
    // Each has nodes of its own: one that fails again a minute later is remediated later.
    let mut first = singles;
    for count in counts {
        let (of_all, taken) = all_at_once(&bench, &operator, &meter, first..first + count).await?;
        first += count;
        remediated.push(of_all);
        at_once.push(taken);
    }
    let rss_mib = operator.usage()?.peak_rss_mib;
    let heartbeats = meter.heartbeats().text();
    install::stop(&operator).await?;

    let progress = Progress::begin("the same requests by a bare client");
    let bare = bare::measure(&bench.client, &template, singles, &counts).await?;
    progress.done("measured");
    Ok(Measured {
        nodes,
        starts,
        rest,
        remediated,
        at_once,
        bare,
        rss_mib,
        heartbeats,
    }
    .figures())
}

fn health_check(template: &Value) -> Result<NodeHealthCheck> {
    let check = json!({
        "apiVersion": "remediation.medik8s.io/v1alpha1",
        "kind": "NodeHealthCheck",
        "metadata": { "name": NAME },
        "spec": {
            "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/worker", "operator": "Exists" }] },
            "unhealthyConditions": [{ "type": "Ready", "status": "Unknown", "duration": format!("{}s", DURATION.as_secs()) }],
            "maxUnhealthy": "100%",
            "remediationTemplate": template,
        },
    });
    Ok(serde_json::from_value(check)?)
}

/// Pauses the NodeHealthCheck, or lifts its pause; gives when the request was sent.
async fn pause(client: &Client, requests: &[&str]) -> Result<Instant> {
    let sent = Instant::now();
    let patch = Patch::Merge(json!({ "spec": { "pauseRequests": requests } }));
    health_checks(client)
        .patch(NAME, &PatchParams::default(), &patch)
        .await?;
    Ok(sent)
}

/// Nodes expire one after the other, each alone, and recover under remediation.
async fn one_by_one(meter: &Arc<Meter>, count: usize) -> Result<Remediated> {
    let progress = Progress::begin(format!("{count} nodes expire one by one"));
    let began = Instant::now();
    let mut under_way = JoinSet::new();
    for node in 0..count {
        sleep_until(began + APART * u32::try_from(node)?).await;
        let meter = Arc::clone(meter);
        under_way.spawn(async move {
            let expires = meter.fail(node).await? + DURATION;
            let created = meter.created(node).await?;
            sleep(REMEDIATION).await;
            let healthy = meter.recover(node).await?;
            let deleted = meter.deleted(node).await?;
            anyhow::Ok((meter::millis(expires, created), meter::millis(healthy, deleted)))
        });
        progress.step(&format!("{node} of {count}"));
    }
    let (mut created, mut deleted) = (Vec::new(), Vec::new());
    while let Some(ended) = under_way.join_next().await {
        let (to_cr, to_deleted) = ended??;
        created.push(to_cr);
        deleted.push(to_deleted);
    }
    let remediated = Remediated {
        count: 1,
        expiry_to_cr: Distribution::of(&created),
        healthy_to_deleted: Distribution::of(&deleted),
    };
    progress.done(&remediated.text());
    Ok(remediated)
}

/// So many nodes have expired under a pause that is lifted, and recover at once. It takes seconds to make hundreds unhealthy:
/// without the pause they would not be remediated at once.
async fn all_at_once(
    bench: &Bench,
    operator: &Operator,
    meter: &Meter,
    nodes: Range<usize>,
) -> Result<(Remediated, AtOnce)> {
    let count = nodes.len();
    let progress = Progress::begin(format!("{count} nodes that have expired at once"));
    pause(&bench.client, &["bench"]).await?;
    let failed = bulk::each(nodes.clone(), |node| meter.fail(node)).await?;
    let last = failed.iter().max().copied().unwrap_or_else(Instant::now) + DURATION;
    sleep_until(last).await;
    bench.quiet().await?;
    let stretch = bench.stretch(operator)?;
    let lifted = pause(&bench.client, &[]).await?;
    let mut created = Vec::new();
    for node in nodes.clone() {
        created.push(meter::millis(lifted, meter.created(node).await?));
    }
    let requests = stretch.of_remediation(bench)?;
    progress.step("remediated");
    // With their Events.
    bench.quiet().await?;
    let with_events = stretch.of_remediation(bench)?;
    let recover = |node| async move { Ok((node, meter.recover(node).await?)) };
    let healthy = bulk::each(nodes, recover).await?;
    let mut deleted = Vec::new();
    for (node, healthy) in healthy {
        deleted.push(meter::millis(healthy, meter.deleted(node).await?));
    }
    let cpu_pct = stretch.cpu_pct(operator)?;
    let remediated = Remediated {
        count,
        expiry_to_cr: Distribution::of(&created),
        healthy_to_deleted: Distribution::of(&deleted),
    };
    progress.done(&remediated.text());
    let taken = AtOnce {
        count,
        requests: requests.by_verb_and_resource(),
        events: with_events.only(|request| request.resource == "events").count(),
        cpu_pct,
    };
    Ok((remediated, taken))
}
