//! What the demo upgrades: twelve nodes, ordinary workloads, and one obstacle each on six of the nodes.

use std::time::Duration;

use anyhow::Result;
use nodeward_testkit::bulk;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::progress::Progress;
use nodeward_testkit::workload::{Budget, End, PodTemplate, Start};
use serde_json::json;

use super::simulated_mco::SimulatedMco;
use crate::demo::app::App;
use crate::demo::environment::Environment;

/// How many nodes are upgraded.
pub const NODES: usize = 12;

/// How long a node may take before the upgrade counts as stuck.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// The same where nobody will unblock it.
pub const PATIENCE_WITHOUT: Duration = Duration::from_secs(30);

/// How long drain-keeper may take to clean up: it remembers an interrupted drain for the flap tolerance.
pub const CLEAN_WITHIN: Duration = Duration::from_mins(1);

/// The label by which a workload is pinned to nodes.
const SLOT: &str = "demo.nodeward.dev/slot";

/// The slot of the nodes that fail: [`super::failures`].
const SPARE: &str = "spare";

/// What stands in the upgrade's way: where, and what.
pub const OBSTACLES: [(&str, &str); 5] = [
    ("node-02", "a pod whose finalizer nobody removes"),
    (
        "node-04 to 06",
        "an app whose budget has no room (minAvailable = replicas)",
    ),
    ("node-08", "a pod that hangs in Terminating"),
    (
        "node-09",
        "a pod whose budget says force-drain: never: its owner must act",
    ),
    ("node-11", "a pod of a namespace that is opted out by configuration"),
];

/// The node and the app that nobody else than drain-keeper unblocks.
pub const STUCK_WITHOUT: (&str, &str) = ("node-02", "media/transcoder-");

/// Namespace and name of the budget that must never be forced.
pub const VAULT: (&str, &str) = ("vault", "vault");

/// Namespace and name of the budget in the opted-out namespace.
pub const REPORT: (&str, &str) = ("batch-reports", "report");

/// Names of all nodes, in the order of the upgrade.
pub fn nodes(env: &Environment) -> Vec<String> {
    (1..=NODES)
        .map(|number| env.named(&format!("node-{number:02}")))
        .collect()
}

/// Puts it all onto the cluster, and waits until it is ready.
pub async fn create(env: &Environment, progress: &Progress) -> Result<()> {
    progress.step("nodes");
    let client = env.client();
    let nodes = nodes(env);
    fleet::create(&client, nodes.iter().map(|name| node(env, name))).await?;
    progress.step("the upgrade's own objects");
    SimulatedMco::of(env).begin(env).await?;
    progress.step("workloads");
    workloads(env, progress).await
}

/// A node. No workload with a budget runs on those that fail: none falls short when they do.
fn node(env: &Environment, name: &str) -> NodeSpec {
    let slot = slot(name);
    let node = env.node(name).label(SLOT, slot);
    if slot == SPARE {
        node.taint(SLOT, SPARE, "NoSchedule")
    } else {
        node
    }
}

/// Which pinned workload a node is for.
fn slot(node: &str) -> &'static str {
    match &node[node.len().saturating_sub(2)..] {
        "07" | "10" | "12" => SPARE,
        "02" => "media",
        "04" | "05" | "06" => "ledger",
        "08" => "cache",
        "09" => "vault",
        "11" => "reports",
        _ => "any",
    }
}

fn apps(env: &Environment) -> Vec<App> {
    let starting = |pods: PodTemplate| pods.start(Start::Ready(Duration::from_secs(1)));
    let ordinary = || starting(env.pods(None));
    let pinned = |slot| starting(env.pods(Some((SLOT, slot))));
    let app = |namespace, name, replicas, pods, budget| App {
        namespace,
        name,
        replicas,
        pods,
        budget,
    };
    let most = |namespace, name, count| Some(Budget::max_unavailable(&env.named(namespace), name, count));
    let least = |namespace, name, count| Budget::min_available(&env.named(namespace), name, count);
    let never_forced = least(VAULT.0, VAULT.1, json!(1)).label("nodeward.dev/force-drain", "never");
    vec![
        app("shop", "web", 24, ordinary(), Some(least("shop", "web", json!("80%")))),
        app("shop", "api", 12, ordinary(), most("shop", "api", 2)),
        app("shop", "worker", 12, ordinary().empty_dir(), None),
        app(
            "media",
            "transcoder",
            1,
            pinned("media").finalizer("media.example.com/upload"),
            None,
        ),
        app(
            "finance",
            "ledger",
            3,
            pinned("ledger"),
            Some(least("finance", "ledger", json!(3))),
        ),
        app("cache", "warm-cache", 1, pinned("cache").grace(2).end(End::Stuck), None),
        app(VAULT.0, "vault", 1, pinned("vault"), Some(never_forced)),
        app(
            REPORT.0,
            "report",
            1,
            pinned("reports"),
            Some(least(REPORT.0, REPORT.1, json!(1))),
        ),
    ]
}

async fn workloads(env: &Environment, progress: &Progress) -> Result<()> {
    const AGENTS: &str = "node-agents";
    let apps = apps(env);
    let mut namespaces: Vec<&str> = apps.iter().map(|app| app.namespace).collect();
    namespaces.push(AGENTS);
    namespaces.dedup();
    for namespace in namespaces {
        env.create_namespace(namespace).await?;
    }
    let agent = env
        .pods(None)
        .tolerates_all()
        .daemon_set(&env.named(AGENTS), "node-agent")?;
    bulk::create_one(env.client(), agent).await?;
    for app in &apps {
        app.create(env).await?;
    }
    for app in &apps {
        progress.step(&format!("{}/{}", app.namespace, app.name));
        app.ready(env).await?;
    }
    Ok(())
}
