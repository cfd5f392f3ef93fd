//! What health-check costs a large cluster, and how late it is.

mod bare;
mod figures;
mod meter;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use nodeward_testkit::binaries;
use nodeward_testkit::operator::Operator;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::remediator::Family;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use self::figures::{AtOnce, Measured, Remediated};
use self::meter::Meter;
pub use self::meter::{create_health_check, health_checks};
use super::figures::Figures;
use super::fleet;
use super::fleet::heartbeats::Heartbeats;
use super::measure::Bench;
use crate::install;

/// How often it is started; the slowest start counts.
const STARTS: usize = 3;

/// How many nodes expire one by one.
const SINGLES: usize = 200;

/// How many expire at once.
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
    let binary = tokio::task::spawn_blocking(|| binaries::operator("health-check")).await??;
    let bench = Bench::new(fleet::start_nodes(nodes).await?, "health-check").await?;
    Family::SelfNode.install(&bench.client).await?;
    bench.plane.namespace(NAMESPACE).await?;
    let template = Family::SelfNode
        .create_template(&bench.client, NAMESPACE, "reboot")
        .await?;
    let operator = bench.prepare(&binary, json!({})).await?;
    create_health_check(&bench.client, &health_check(&template)).await?;
    let starts = bench.time_starts(&operator, STARTS).await?;

    let heartbeats = Heartbeats::start(&bench.client, nodes);
    let rest = bench
        .at_rest(&operator, &format!("{nodes} nodes with heartbeats"))
        .await?;
    let meter = Arc::new(Meter::start(&bench.client, heartbeats).await?);
    let singles = one_by_one(&meter, nodes).await?;
    let mut at_once = Vec::new();
    for count in AT_ONCE {
        at_once.push(all_at_once(&bench, &operator, &meter, count.min(nodes / 2)).await?);
    }
    let rss_mib = operator.usage()?.peak_rss_mib;
    let heartbeats = meter.heartbeats().text();
    install::stop(&operator).await?;

    let progress = Progress::begin("the same requests by a bare client");
    let bare = bare::measure(&bench.client, &template, nodes, SINGLES, &AT_ONCE).await?;
    progress.done("measured");
    Ok(Measured {
        nodes,
        starts,
        rest,
        singles,
        at_once,
        bare,
        rss_mib,
        heartbeats,
    }
    .figures())
}

fn health_check(template: &Value) -> Value {
    json!({
        "apiVersion": "remediation.medik8s.io/v1alpha1",
        "kind": "NodeHealthCheck",
        "metadata": { "name": NAME },
        "spec": {
            "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/worker", "operator": "Exists" }] },
            "unhealthyConditions": [{ "type": "Ready", "status": "Unknown", "duration": format!("{}s", DURATION.as_secs()) }],
            "maxUnhealthy": "100%",
            "remediationTemplate": template,
        },
    })
}

/// Nodes expire one after the other, each alone, and recover under remediation.
async fn one_by_one(meter: &Arc<Meter>, nodes: usize) -> Result<Remediated> {
    let count = SINGLES.min(nodes / 2);
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
    let mut remediated = Remediated::default();
    while let Some(ended) = under_way.join_next().await {
        let (to_cr, to_deleted) = ended??;
        remediated.expiry_to_cr.push(to_cr);
        remediated.healthy_to_deleted.push(to_deleted);
    }
    progress.done(&remediated.text());
    Ok(remediated)
}

/// So many nodes expire at once, and recover at once.
async fn all_at_once(bench: &Bench, operator: &Operator, meter: &Arc<Meter>, count: usize) -> Result<AtOnce> {
    let progress = Progress::begin(format!("{count} nodes expire at once"));
    bench.quiet().await?;
    let stretch = bench.stretch(operator)?;
    let failed = meter
        .for_each(count, |meter, node| async move { meter.fail(node).await })
        .await?;
    let last = failed.iter().max().copied().unwrap_or_else(Instant::now) + DURATION;
    let mut created = Vec::new();
    for node in 0..count {
        created.push(meter::millis(last, meter.created(node).await?));
    }
    let requests = stretch.of_remediation(bench)?;
    progress.step("remediated");
    // With their Events.
    bench.quiet().await?;
    let with_events = stretch.of_remediation(bench)?;
    let healthy = meter
        .for_each(count, |meter, node| async move { meter.recover(node).await })
        .await?;
    let mut deleted = Vec::new();
    for (node, healthy) in healthy.into_iter().enumerate() {
        deleted.push(meter::millis(healthy, meter.deleted(node).await?));
    }
    let cpu_pct = stretch.cpu_pct(operator)?;
    let remediated = Remediated {
        expiry_to_cr: created,
        healthy_to_deleted: deleted,
    };
    progress.done(&remediated.text());
    Ok(AtOnce {
        count,
        remediated,
        requests: requests.by_verb_and_resource(),
        events: with_events.only(|request| request.resource == "events").count(),
        cpu_pct,
    })
}
