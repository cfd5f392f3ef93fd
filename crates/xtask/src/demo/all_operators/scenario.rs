//! The fleet of the act: three nodes of databases, three of applications, and the hosts of a Ceph where one can be had.

use std::time::Duration;

use anyhow::{Context, Result};
use nodeward_testkit::fleet;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::remediator::Family;
use nodeward_testkit::workload::{Budget, PodTemplate, Start};
use serde_json::{Value, json};

use super::super::parallel_drains::scenario as databases;
use crate::demo::Binaries;
use crate::demo::app::App;
use crate::demo::environment::Environment;
use crate::install::Installation;
use crate::soak::drains::storage::Storage;
use crate::workloads::TERMINATES;

/// The node with the pods that do not leave.
pub const STUCK: &str = "app-1";

/// The one that is drained while the next is dead.
pub const ORDINARY: &str = "app-2";

/// The one that dies.
pub const DIES: &str = "app-3";

/// The remediator, its template and the namespace of both.
pub const REMEDIATOR: Family = Family::SelfNode;
const TEMPLATE: &str = "reboot";
pub const REMEDIATORS: &str = "remediators";

/// After so long without heartbeats, and the control plane's own patience, a node counts as unhealthy.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(10);

/// So many of the nodes may be unhealthy, and are remediated.
pub const MAX_UNHEALTHY_PERCENT: i32 = 40;

fn apps(env: &Environment) -> Vec<App> {
    let databases = databases::nodes(env);
    let node = |name: &str| vec![env.named(name)];
    let upgraded = |first: &str| [node(first), databases.clone()].concat();
    let least = |namespace: &str, name: &str, count: u32| Budget::min_available(&env.named(namespace), name, count);
    vec![
        App {
            namespace: "shop",
            name: "web",
            replicas: 4,
            pods: on(env, &[node(STUCK), node(ORDINARY)].concat(), false),
            budget: Some(least("shop", "web", 2)),
        },
        App {
            namespace: "finance",
            name: "ledger",
            replicas: 1,
            pods: on(env, &upgraded(STUCK), true),
            budget: Some(least("finance", "ledger", 1)),
        },
        App {
            namespace: "media",
            name: "upload",
            replicas: 1,
            pods: on(env, &upgraded(STUCK), true)
                .grace(2)
                .finalizer("media.example.com/upload"),
            budget: None,
        },
        App {
            namespace: "jobs",
            name: "batch",
            replicas: 1,
            pods: on(env, &[node(DIES), node(ORDINARY)].concat(), true),
            budget: None,
        },
    ]
}

/// Pods that run on these nodes only; rather on the first, or spread over all.
fn on(env: &Environment, nodes: &[String], rather_on_first: bool) -> PodTemplate {
    let hostname = |nodes: &[String]| json!([{ "key": "kubernetes.io/hostname", "operator": "In", "values": nodes }]);
    let preferred = if rather_on_first { &nodes[..1] } else { nodes };
    let affinity = json!({ "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchExpressions": hostname(nodes) }] },
        "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 100, "preference": { "matchExpressions": hostname(preferred) } },
        ],
    } });
    env.pods(None)
        .spec("tolerations", databases::tolerations(env))
        .start(Start::Ready(Duration::from_secs(1)))
        .end(TERMINATES)
        .spec("affinity", affinity)
}

/// Puts it all onto the cluster, but Ceph; waits until it is ready.
pub async fn create(env: &Environment, progress: &Progress) -> Result<()> {
    let client = env.client();
    progress.step("nodes");
    let nodes = [STUCK, ORDINARY, DIES].map(|name| env.node(&env.named(name)));
    fleet::create(&client, nodes).await?;
    progress.step("databases");
    databases::create(env).await?;
    for app in apps(env) {
        progress.step(app.name);
        env.create_namespace(app.namespace).await?;
        app.create(env).await?;
        app.ready(env).await?;
    }
    env.create_namespace(REMEDIATORS).await?;
    REMEDIATOR.install(&client).await?;
    REMEDIATOR.create_template(&client, REMEDIATORS, TEMPLATE).await?;
    Ok(())
}

/// All four operators, or three where there is no Ceph. Minutes are seconds here.
pub fn installations(env: &Environment, binaries: &Binaries, storage: Option<&Storage>) -> Result<Vec<Installation>> {
    let keeper = json!({
        "nodeDrain": { "timeOut": "6s", "expectedNodeDrainTime": "6s" },
        "pdbForceDrainTimeout": "3s",
        "forceAfter": "4s",
        "overrideSpacing": "30s",
        "flapTolerance": "5s",
        "upgradeSignal": "always",
        "overrideBudgets": "all",
        "countsAsDrain": "nodeDrain",
    });
    let mut all = vec![
        ("drain-lock", json!({})),
        ("drain-keeper", keeper),
        ("health-check", json!({})),
    ];
    all.extend(storage.map(|storage| ("ceph-pdb", json!({ "namespaces": [storage.namespace()] }))));
    let installation = |(operator, config)| {
        let binary = binaries.get(operator).cloned().context(operator)?;
        Ok(env.installation(operator, binary, config))
    };
    all.into_iter().map(installation).collect()
}

/// Who is remediated, when, and how many may be unhealthy.
pub fn health_check() -> Value {
    let duration = format!("{}s", UNHEALTHY_AFTER.as_secs());
    json!({
        "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck",
        "metadata": { "name": "workers" },
        "spec": {
            "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/worker", "operator": "Exists" }] },
            "unhealthyConditions": [{ "type": "Ready", "status": "Unknown", "duration": duration }],
            "maxUnhealthy": format!("{MAX_UNHEALTHY_PERCENT}%"),
            "remediationTemplate": REMEDIATOR.reference(REMEDIATORS, TEMPLATE),
        },
    })
}
