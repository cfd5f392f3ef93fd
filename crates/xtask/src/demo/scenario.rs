//! What the demo upgrades: twelve nodes, ordinary workloads, and one obstacle each on six of the nodes.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use kube::Client;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::foreign::{Foreign, machine_config_pool, upgrade_config};
use nodeward_testkit::progress::Progress;
use nodeward_testkit::workload::{self, Budget, End, PodTemplate, Start};
use nodeward_testkit::{ControlPlane, bulk};

/// How many nodes are upgraded.
pub const NODES: usize = 12;

/// How long a node may take before the upgrade counts as stuck.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// The same where nobody will unblock it.
pub const PATIENCE_WITHOUT: Duration = Duration::from_secs(30);

/// How long drain-keeper may take to clean up: it remembers an interrupted drain for the flap tolerance.
pub const CLEAN_WITHIN: Duration = Duration::from_secs(20);

/// Where the UpgradeConfig lives, as in managed-upgrade-operator's clusters.
pub const UPGRADE_NAMESPACE: &str = "openshift-managed-upgrade-operator";

/// The version that is upgraded to.
pub const VERSION: &str = "4.99.1";

/// The label by which a workload is pinned to nodes.
const SLOT: &str = "demo.nodeward.dev/slot";

/// drain-keeper's configuration: minutes are seconds here, so that the demo is short. The UpgradeConfig's
/// `PDBForceDrainTimeout` is 0 minutes, which is legal: budgets are respected for `expectedNodeDrainTime`.
pub const CONFIG: &str = r#"
nodeDrain:
  timeOut: "6s"
  expectedNodeDrainTime: "9s"
  ignoredNamespacePatterns: ["^batch-"]
forceAfter: "4s"
overrideSpacing: "30s"
flapTolerance: "5s"
upgradeSignal: openshift
"#;

/// An obstacle, as the demo announces it.
pub struct Obstacle {
    pub node: &'static str,
    pub text: &'static str,
}

pub const OBSTACLES: &[Obstacle] = &[
    Obstacle { node: "node-02", text: "runs a pod whose finalizer nobody removes" },
    Obstacle { node: "node-04", text: "and node-05, node-06 run an app whose budget has no room (minAvailable = replicas)" },
    Obstacle { node: "node-08", text: "runs a pod that hangs in Terminating" },
    Obstacle { node: "node-09", text: "runs a pod whose budget says force-drain: never (its owner has to act)" },
    Obstacle { node: "node-11", text: "runs a pod of a namespace that is opted out by configuration" },
];

/// Namespace and name of the budget that must never be forced.
pub const VAULT: (&str, &str) = ("vault", "vault");

/// Namespace and name of the budget in the opted-out namespace.
pub const REPORT: (&str, &str) = ("batch-reports", "report");

/// Names of all nodes, in the order of the upgrade.
pub fn nodes() -> Vec<String> {
    (1..=NODES).map(|number| format!("node-{number:02}")).collect()
}

/// Puts it all onto the control plane, and waits until it is ready.
pub async fn create(plane: &ControlPlane, client: &Client, progress: &Progress) -> Result<()> {
    progress.step("nodes");
    fleet::create(client, nodes().into_iter().map(|name| {
        let slot = slot(&name);
        NodeSpec::worker(name).label(SLOT, slot)
    }))
    .await?;
    progress.step("the upgrade's own objects");
    for kind in [Foreign::UpgradeConfig, Foreign::MachineConfigPool] {
        kind.install(client).await?;
    }
    plane.namespace(UPGRADE_NAMESPACE).await?;
    set_pool(client, 0).await?;
    let config = upgrade_config(VERSION, "Upgrading", Timestamp::now(), 0);
    Foreign::UpgradeConfig.put(client, Some(UPGRADE_NAMESPACE), "managed-upgrade-config", config).await?;
    progress.step("workloads");
    workloads(plane, client).await
}

/// Sets how many machines of the worker pool are updated.
pub async fn set_pool(client: &Client, updated: usize) -> Result<()> {
    let pool = machine_config_pool("worker", u32::try_from(NODES)?, u32::try_from(updated)?);
    Foreign::MachineConfigPool.put(client, None, "worker", pool).await?;
    Ok(())
}

/// Which pinned workload a node is for.
fn slot(node: &str) -> &'static str {
    match node {
        "node-02" => "media",
        "node-04" | "node-05" | "node-06" => "ledger",
        "node-08" => "cache",
        "node-09" => "vault",
        "node-11" => "reports",
        _ => "any",
    }
}

struct App {
    namespace: &'static str,
    name: &'static str,
    replicas: u32,
    pods: PodTemplate,
    budget: Option<Budget>,
}

fn apps() -> Vec<App> {
    let ordinary = || PodTemplate::new().start(Start::Ready(Duration::from_secs(1)));
    let pinned = |slot| ordinary().node_selector(SLOT, slot);
    vec![
        App {
            namespace: "shop",
            name: "web",
            replicas: 24,
            pods: ordinary(),
            budget: Some(Budget::min_available("shop", "web", "80%").of("web")),
        },
        App {
            namespace: "shop",
            name: "api",
            replicas: 12,
            pods: ordinary(),
            budget: Some(Budget::max_unavailable("shop", "api", 2).of("api")),
        },
        App { namespace: "shop", name: "worker", replicas: 12, pods: ordinary().empty_dir(), budget: None },
        App {
            namespace: "media",
            name: "transcoder",
            replicas: 1,
            pods: pinned("media").finalizer("media.example.com/upload"),
            budget: None,
        },
        App {
            namespace: "finance",
            name: "ledger",
            replicas: 3,
            pods: pinned("ledger"),
            budget: Some(Budget::min_available("finance", "ledger", 3).of("ledger")),
        },
        App { namespace: "cache", name: "warm-cache", replicas: 1, pods: pinned("cache").grace(2).end(End::Stuck), budget: None },
        App {
            namespace: VAULT.0,
            name: "vault",
            replicas: 1,
            pods: pinned("vault"),
            budget: Some(
                Budget::min_available(VAULT.0, VAULT.1, 1).of("vault").label("nodeward.dev/force-drain", "never"),
            ),
        },
        App {
            namespace: REPORT.0,
            name: "report",
            replicas: 1,
            pods: pinned("reports"),
            budget: Some(Budget::min_available(REPORT.0, REPORT.1, 1).of("report")),
        },
    ]
}

async fn workloads(plane: &ControlPlane, client: &Client) -> Result<()> {
    const READY_WITHIN: Duration = Duration::from_secs(90);
    let apps = apps();
    let mut namespaces: Vec<&str> = apps.iter().map(|app| app.namespace).collect();
    namespaces.push("node-agents");
    namespaces.dedup();
    for namespace in namespaces {
        plane.namespace(namespace).await?;
    }
    bulk::create(client, [PodTemplate::new().tolerates_all().daemon_set("node-agents", "node-agent")?]).await?;
    for app in &apps {
        bulk::create(client, [app.pods.deployment(app.namespace, app.name, app.replicas)?]).await?;
        if let Some(budget) = &app.budget {
            bulk::create(client, [budget.build()?]).await?;
        }
    }
    for app in &apps {
        workload::ready_pods(client, app.namespace, app.name, app.replicas as usize, READY_WITHIN).await?;
        if app.budget.is_some() {
            let expected = i32::try_from(app.replicas)?;
            workload::counted_budget(client, app.namespace, app.name, expected, READY_WITHIN).await?;
        }
    }
    Ok(())
}
