//! Hosts with several OSDs of Ceph, under budgets that Ceph's operator opens and closes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{bulk, workload};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::drainers::all_end;
use crate::environment::{APPS, Environment};
use crate::reviewed::Reviewed;

const HOSTS: [&str; 3] = ["n1", "n2", "n3"];
const OSDS_PER_HOST: usize = 2;
const APP: &str = "rook-ceph-osd";
const HOST: &str = "topology-location-host";

/// How often the simulated operator looks. Rook takes longer, which only keeps the second OSD of a host waiting.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// Two OSDs on each host, and the budget of all of them.
async fn add_osds(env: &Environment) -> Result<()> {
    let osds = (0..HOSTS.len() * OSDS_PER_HOST).map(|id| osd(id, HOSTS[id / OSDS_PER_HOST]));
    bulk::create(&env.client, osds.collect::<Result<Vec<Deployment>>>()?).await?;
    let budget: PodDisruptionBudget = serde_json::from_value(default_budget())?;
    bulk::create(&env.client, [budget]).await?;
    let all = HOSTS.len() * OSDS_PER_HOST;
    workload::ready_pods(&env.client, APPS, APP, all, secs(60)).await?;
    workload::counted_budget(&env.client, APPS, APP, i32::try_from(all)?, secs(60)).await?;
    Ok(())
}

/// An OSD as Rook deploys it: it runs on its host or nowhere.
fn osd(id: usize, host: &str) -> Result<Deployment> {
    let labels = json!({ "app": APP, "ceph-osd-id": id.to_string(), HOST: host });
    Ok(serde_json::from_value(json!({
        "metadata": { "namespace": APPS, "name": format!("{APP}-{id}"), "labels": labels },
        "spec": {
            "replicas": 1,
            "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": {
                "nodeSelector": { "kubernetes.io/hostname": host },
                "containers": [{ "name": "osd", "image": "quay.io/ceph/ceph:v19" }],
                "automountServiceAccountToken": false,
            } },
        },
    }))?)
}

/// Owned by a CephCluster, whose kind nobody serves here.
fn budget(name: &str, max_unavailable: i32, selector: &Value) -> Value {
    let owner = json!({
        "apiVersion": "ceph.rook.io/v1", "kind": "CephCluster", "name": "rook-ceph", "controller": true,
        "uid": "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a09",
    });
    json!({
        "metadata": { "namespace": APPS, "name": name, "ownerReferences": [owner] },
        "spec": { "maxUnavailable": max_unavailable, "selector": selector },
    })
}

fn default_budget() -> Value {
    budget(
        APP,
        1,
        &json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": [APP] }] }),
    )
}

/// Whose way to close the budgets it is.
#[derive(Clone, Copy)]
enum Layout {
    /// A budget of its own for each other domain, then the default one is deleted; all of it made anew to open.
    Rook,
    /// The default budget is closed and leaves the domain out.
    CephPdb,
}

/// In place of Ceph's operator: once an OSD is down, its host alone may lose more of them.
struct CephOperator {
    task: JoinHandle<()>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// How many times it has closed the budgets around which host.
    closed: BTreeMap<String, usize>,
    /// Hosts that had OSDs down at once.
    at_once: BTreeSet<Vec<String>>,
}

impl CephOperator {
    fn start(client: Client, layout: Layout) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let told = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut exempt = None;
            loop {
                match look(&client, layout, &told, exempt.clone()).await {
                    Ok(now) => exempt = now,
                    Err(error) => println!("the simulated Ceph operator: {error:#}"),
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        });
        Self { task, seen }
    }

    /// That it has closed the budgets around each of these hosts, and never saw two of them with OSDs down.
    fn ends_well(self, hosts: &[&str]) -> Result<()> {
        self.task.abort();
        let seen = self.seen.lock().expect("unpoisoned");
        ensure!(
            seen.at_once.is_empty(),
            "hosts had OSDs down at once: {:?}",
            seen.at_once
        );
        let closed: Vec<&str> = seen.closed.keys().map(String::as_str).collect();
        ensure!(closed == hosts, "it has closed around {closed:?}");
        Ok(())
    }
}

/// One look at the OSDs; answers with the host that the budgets leave out.
async fn look(client: &Client, layout: Layout, seen: &Mutex<Seen>, exempt: Option<String>) -> Result<Option<String>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), APPS);
    let pods = pods.list(&ListParams::default().labels(&format!("app={APP}"))).await?;
    let is_up = |pod: &&Pod| workload::is_up(pod);
    let down: Vec<String> = HOSTS
        .iter()
        .filter(|host| {
            let on_host = |pod: &&Pod| pod.labels().get(HOST).is_some_and(|label| label == *host);
            pods.iter().filter(on_host).filter(is_up).count() < OSDS_PER_HOST
        })
        .map(ToString::to_string)
        .collect();
    if down.len() > 1 {
        seen.lock().expect("unpoisoned").at_once.insert(down.clone());
    }
    match (exempt, down.first()) {
        (None, Some(host)) => {
            close(client, layout, host).await?;
            *seen.lock().expect("unpoisoned").closed.entry(host.clone()).or_default() += 1;
            Ok(Some(host.clone()))
        }
        (Some(_), None) => {
            open(client, layout).await?;
            Ok(None)
        }
        (exempt, _) => Ok(exempt),
    }
}

fn budgets(client: &Client) -> Api<PodDisruptionBudget> {
    Api::namespaced(client.clone(), APPS)
}

async fn create(client: &Client, budget: Value) -> Result<()> {
    budgets(client)
        .create(&PostParams::default(), &serde_json::from_value(budget)?)
        .await?;
    Ok(())
}

fn of_host(host: &str) -> String {
    format!("{APP}-host-{host}")
}

async fn close(client: &Client, layout: Layout, exempt: &str) -> Result<()> {
    match layout {
        Layout::Rook => {
            for host in HOSTS.iter().filter(|host| **host != exempt) {
                create(
                    client,
                    budget(&of_host(host), 0, &json!({ "matchLabels": { HOST: host } })),
                )
                .await?;
            }
            budgets(client).delete(APP, &DeleteParams::default()).await?;
        }
        Layout::CephPdb => {
            let mut closed = default_budget();
            closed["spec"]["maxUnavailable"] = json!(0);
            let all_but = json!({ "key": HOST, "operator": "NotIn", "values": [exempt] });
            let expressions = &mut closed["spec"]["selector"]["matchExpressions"];
            expressions.as_array_mut().context("no list")?.push(all_but);
            let patch = Patch::Merge(json!({ "spec": closed["spec"] }));
            budgets(client).patch(APP, &PatchParams::default(), &patch).await?;
        }
    }
    Ok(())
}

async fn open(client: &Client, layout: Layout) -> Result<()> {
    match layout {
        Layout::Rook => {
            create(client, default_budget()).await?;
            for host in HOSTS {
                nodeward_testkit::unless_refused(
                    budgets(client).delete(&of_host(host), &DeleteParams::default()).await,
                    &[404],
                )?;
            }
        }
        Layout::CephPdb => {
            let patch = Patch::Merge(json!({ "spec": default_budget()["spec"] }));
            budgets(client).patch(APP, &PatchParams::default(), &patch).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_two_osds_drain_in_turn() -> Result<()> {
    let env = Environment::new(&HOSTS).await?;
    add_osds(&env).await?;
    let lock = env.start(json!({})).await?;
    let ceph = CephOperator::start(env.client.clone(), Layout::CephPdb);
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.drain("n2", json!({})).await?;
    let waits = env
        .status_that("n2", "to wait for Ceph", secs(60), |status| {
            status
                .blocked_by
                .iter()
                .any(|blocked| blocked.reason == LockReason::CephClosed && blocked.message.contains("down on n1"))
        })
        .await?;
    ensure!(waits.ticket.is_some() && waits.held_disruptions == Some(0), "{waits:?}");
    ensure!(env.pods_on("n2").await?.len() == OSDS_PER_HOST, "an OSD was evicted");
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    ensure!(env.pods_on("n2").await?.is_empty(), "OSDs are left");
    env.uncordon("n2").await?;
    env.released("n2", secs(60)).await?;
    workload::ready_pods(&env.client, APPS, APP, HOSTS.len() * OSDS_PER_HOST, secs(60)).await?;
    let metrics = lock.metrics().await?;
    let refused = metrics.sum(
        "nodeward_drain_lock_evictions_total",
        &[("outcome", "refused-by-budget")],
    );
    // The operator rewrites the budget while an OSD leaves; the API refuses what comes before its controller has read
    // that, which no drainer can foresee.
    ensure!(refused < 2.5, "{refused} evictions were refused, more than one a host");
    ceph.ends_well(&["n1", "n2"])?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_kubectl_drains_hosts_of_two_osds() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&HOSTS, json!({})).await?;
    let env = &reviewed.env;
    add_osds(env).await?;
    let ceph = CephOperator::start(env.client.clone(), Layout::Rook);
    let kubectl = Kubectl::of(&env.plane)?;
    let drains: Result<Vec<_>> = HOSTS
        .iter()
        .map(|host| Ok((*host, kubectl.start(["drain", host, "--ignore-daemonsets"])?)))
        .collect();
    all_end(env, drains?, secs(300)).await?;
    for host in HOSTS {
        env.released(host, secs(60)).await?;
    }
    workload::ready_pods(&env.client, APPS, APP, HOSTS.len() * OSDS_PER_HOST, secs(60)).await?;
    wait::until("the budgets to be open", secs(60), || async {
        let open = budgets(&env.client).get(APP).await?;
        ensure!(
            open.status.is_some_and(|status| status.disruptions_allowed == 1),
            "not yet"
        );
        Ok(())
    })
    .await?;
    ceph.ends_well(&HOSTS)?;
    reviewed.end([lock]).await
}
