//! The fleet: three nodes of databases, three of applications, and the hosts of a Ceph where one can be had.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use nodeward_testkit::progress::Progress;
use nodeward_testkit::remediator::Family;
use nodeward_testkit::workload::{self, Budget, PodTemplate, Start, TERMINATES};
use nodeward_testkit::{bulk, fleet};
use serde_json::{Value, json};

use super::environment::{Environment, RUN};
use super::{Binaries, Cast};
use crate::install::Installation;
use crate::soak::drains::storage::Storage;

/// The nodes of the databases.
pub const DATABASES: [&str; 3] = ["db-1", "db-2", "db-3"];

/// The node with the pods that do not leave.
pub const STUCK: &str = "app-1";

/// The pods that do not leave it, each with its namespace.
pub const STUCK_PODS: [&str; 3] = ["finance/ledger-", "media/upload-", "store/cart-"];

/// The label of the nodes on which that pod may run.
const SELLS: &str = "demo.nodeward.dev/sells";

/// The namespace and the Deployment of the pod whose Deployment can roll.
const SINGLETON: (&str, &str) = ("store", "cart");

/// The one that is drained while the next is dead.
pub const ORDINARY: &str = "app-2";

/// The one that dies.
pub const DIES: &str = "app-3";

/// When each drain of a database's node begins, after the first: somebody types three commands in three terminals. They end by luck
/// if one node gets both budgets each time they are free; with these times and those of [`SETS`], `kubectl drain` asking every
/// 5 s, db-2 asks when kafka alone is back, and db-3 when mongo is, too.
pub const BEGIN: [Duration; 3] = [Duration::ZERO, Duration::from_millis(1500), Duration::from_millis(3600)];

/// The databases: StatefulSets with a member on each of their nodes, which can run on no other, and how long a member takes to
/// get Ready. Of each, one member may be down. Their budgets have the same names.
pub const SETS: [(&str, Duration); 2] = [
    ("kafka", Duration::from_millis(800)),
    ("mongo", Duration::from_millis(2900)),
];

/// The namespace of the databases.
const DATA: &str = "data";

/// The remediator, its template and the namespace of both.
pub const REMEDIATOR: Family = Family::SelfNode;
const TEMPLATE: &str = "reboot";
pub const REMEDIATORS: &str = "remediators";

/// After so long without heartbeats, and the control plane's own patience, a node counts as unhealthy.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(10);

/// So many of the nodes may be unhealthy, and are remediated.
pub const MAX_UNHEALTHY_PERCENT: i32 = 40;

/// How long all pods may take to be Ready.
const READY_WITHIN: Duration = Duration::from_secs(90);

/// A Deployment, and the `minAvailable` of its budget, if it has one.
struct App {
    namespace: &'static str,
    name: &'static str,
    replicas: u32,
    pods: PodTemplate,
    min_available: Option<u32>,
}

pub fn databases(env: &Environment) -> Vec<String> {
    DATABASES.map(|name| env.named(name)).to_vec()
}

/// The namespace of the databases.
pub fn data(env: &Environment) -> String {
    env.named(DATA)
}

fn apps(env: &Environment) -> Vec<App> {
    let node = |name: &str| vec![env.named(name)];
    let leaves_for_databases = || on(env, &[node(STUCK), databases(env)].concat(), true);
    let app = |namespace, name, replicas, pods, min_available| App {
        namespace,
        name,
        replicas,
        pods,
        min_available,
    };
    let probe = json!({ "httpGet": { "port": 8080 } });
    let container = json!({ "name": "main", "image": "registry.example/cart:1", "readinessProbe": probe });
    // Pods that name nodes are not moved by a rollout: it may go where the label is, and is on the stuck node at first.
    let first = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": node(STUCK) });
    let first = json!([{ "weight": 100, "preference": { "matchExpressions": [first] } }]);
    let preferred = json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": first } });
    let rolls = lasting(env)
        .spec("nodeSelector", json!({ RUN: env.run, SELLS: "true" }))
        .spec("affinity", preferred)
        .spec("containers", json!([container]));
    let upload = leaves_for_databases().grace(2).finalizer("media.example.com/upload");
    let spread = on(env, &[node(STUCK), node(ORDINARY)].concat(), false);
    let dying = on(env, &[node(DIES), node(ORDINARY)].concat(), true);
    vec![
        app("shop", "web", 4, spread, Some(2)),
        app("finance", "ledger", 1, leaves_for_databases(), Some(1)),
        app("media", "upload", 1, upload, None),
        app(SINGLETON.0, SINGLETON.1, 1, rolls, Some(1)),
        app("jobs", "batch", 1, dying, None),
    ]
}

/// Pods that run on these nodes only; rather on the first, or spread over all.
fn on(env: &Environment, nodes: &[String], rather_on_first: bool) -> PodTemplate {
    let preferred = if rather_on_first { &nodes[..1] } else { nodes };
    lasting(env).on_nodes(nodes, preferred)
}

/// Pods that are Ready after a second.
fn lasting(env: &Environment) -> PodTemplate {
    env.pods().start(Start::Ready(Duration::from_secs(1))).end(TERMINATES)
}

/// Puts it all onto the cluster, but Ceph; waits until it is ready.
pub async fn create(env: &Environment, cast: Cast, progress: &Progress) -> Result<()> {
    let client = env.client();
    progress.step("nodes");
    let nodes = DATABASES.into_iter().chain([STUCK, ORDINARY, DIES]);
    let sells = |name: &str| ![ORDINARY, DIES].contains(&name);
    let nodes = nodes.map(|name| env.node(&env.named(name)).label(SELLS, &sells(name).to_string()));
    fleet::create(&client, nodes).await?;
    env.create_namespace(DATA).await?;
    for (set, time_to_ready) in SETS {
        progress.step(set);
        let pods = env.pods().start(Start::Ready(time_to_ready)).end(TERMINATES);
        let pods = pods.pinned(set, &databases(env));
        bulk::create_one(client.clone(), pods.stateful_set(&data(env), set, 3)?).await?;
        let budget = Budget::max_unavailable(&data(env), set, 1).of(set);
        bulk::create_one(client.clone(), budget.build()?).await?;
    }
    members_ready(env).await?;
    for app in apps(env) {
        progress.step(app.name);
        env.create_namespace(app.namespace).await?;
        let (namespace, name) = (env.named(app.namespace), app.name);
        bulk::create_one(client.clone(), app.pods.deployment(&namespace, name, app.replicas)?).await?;
        let count = usize::try_from(app.replicas)?;
        workload::ready_pods(&client, &namespace, name, count, READY_WITHIN).await?;
        if let Some(least) = app.min_available {
            let budget = Budget::min_available(&namespace, name, least).of(name);
            bulk::create_one(client.clone(), budget.build()?).await?;
            let counted = i32::try_from(app.replicas)?;
            workload::counted_budget(&client, &namespace, name, counted, READY_WITHIN).await?;
        }
    }
    if cast == Cast::All {
        env.create_namespace(REMEDIATORS).await?;
        REMEDIATOR.install(&client).await?;
        REMEDIATOR.create_template(&client, REMEDIATORS, TEMPLATE).await?;
    }
    Ok(())
}

/// Whether a pod of the singleton is Ready.
pub async fn singleton_is_ready(env: &Environment) -> Result<bool> {
    let (namespace, app) = SINGLETON;
    let pods: Api<Pod> = Api::namespaced(env.client(), &env.named(namespace));
    let pods = pods.list(&ListParams::default().labels(&format!("app={app}"))).await?;
    Ok(pods.iter().any(workload::is_ready))
}

/// Waits until all members of the databases are Ready, and their budgets know it; gives the set and the node of each.
pub async fn members_ready(env: &Environment) -> Result<Vec<(Pod, &'static str)>> {
    let mut members = Vec::new();
    for (set, _) in SETS {
        let pods = workload::ready_pods(&env.client(), &data(env), set, 3, READY_WITHIN).await?;
        members.extend(pods.into_iter().map(|pod| (pod, set)));
        workload::disruptions_allowed(&env.client(), &data(env), set, 1, READY_WITHIN).await?;
    }
    Ok(members)
}

/// The operators that play; without a Ceph no ceph-pdb. Minutes are seconds here.
pub fn installations(
    env: &Environment,
    cast: Cast,
    binaries: &Binaries,
    storage: Option<&Storage>,
) -> Result<Vec<Installation>> {
    let mut keeper = json!({
        "nodeDrain": { "timeOut": "6s", "expectedNodeDrainTime": "6s" },
        "pdbForceDrainTimeout": "3s",
        "forceAfter": "4s",
        "overrideSpacing": "30s",
        "surge": { "enabled": true, "after": "1s" },
        "flapTolerance": "5s",
        "upgradeSignal": "always",
        "overrideBudgets": "all",
        "countsAsDrain": "nodeDrain",
    });
    if cast == Cast::KeeperAlone {
        // Its nodes are the demo's alone, and whatever of somebody else's tolerates their taint is none of its business.
        keeper["countsAsDrain"] = json!("all");
        keeper["nodeSelector"] = json!({ RUN: &env.run });
        let others = env.others.iter().map(|name| format!("^{name}$"));
        keeper["nodeDrain"]["ignoredNamespacePatterns"] = others.collect();
    }
    let mut all = vec![("drain-keeper", keeper)];
    if cast == Cast::All {
        all.extend([("drain-lock", json!({})), ("health-check", json!({}))]);
        all.extend(storage.map(|storage| ("ceph-pdb", json!({ "namespaces": [storage.namespace()] }))));
    }
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
