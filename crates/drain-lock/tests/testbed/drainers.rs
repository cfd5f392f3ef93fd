//! Programs that cordon and evict as they always have, and know nothing of drain-lock: each waits its turn, and ends.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use nodeward_testkit::kubectl::{Kubectl, Said};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::Start;
use nodeward_testkit::{reboot, workload};
use serde_json::{Value, json};

use crate::environment::{APPS, Environment, pinned};
use crate::reviewed::{Eviction, Reviewed};

/// Waits until every `kubectl drain` has ended well; a node is back as soon as its own has.
pub async fn all_end(env: &Environment, drains: Vec<(&str, Said)>, deadline: Duration) -> Result<()> {
    let ends = drains.into_iter().map(|(node, said)| async move {
        let what = format!("the end of {}", said.command());
        let ended = wait::until(what, deadline, || async { said.ended().with_context(|| said.text()) }).await?;
        ensure!(ended, "{} failed:\n{}", said.command(), said.text());
        env.uncordon(node).await
    });
    futures::future::try_join_all(ends).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_plain_kubectl_drains_at_once_all_end() -> Result<()> {
    let nodes = ["n1", "n2", "n3"];
    let (reviewed, lock) = Reviewed::with(&nodes, json!({})).await?;
    let env = &reviewed.env;
    for app in APPLICATIONS {
        env.add_pinned(app, &nodes).await?;
    }
    let kubectl = Kubectl::of(&env.plane)?;
    let budgets = env.watch_budgets();
    let drains: Result<Vec<_>> = nodes
        .iter()
        .map(|node| Ok((*node, kubectl.start(["drain", node, "--ignore-daemonsets"])?)))
        .collect();
    all_end(env, drains?, secs(300)).await?;
    for node in nodes {
        env.released(node, secs(60)).await?;
    }
    for app in APPLICATIONS {
        workload::ready_pods(&env.client, APPS, app, nodes.len(), secs(60)).await?;
    }
    budgets.none_was_violated()?;
    reviewed.end([lock]).await
}

/// On each node another application's pod is bound and not Ready: evicted without a disruption, each would be missing to
/// the other node's drain.
#[tokio::test(flavor = "multi_thread")]
async fn drains_of_starting_pods_do_not_wedge() -> Result<()> {
    let nodes = ["n1", "n2"];
    let (reviewed, lock) = Reviewed::with(&nodes, json!({})).await?;
    let env = &reviewed.env;
    for app in APPLICATIONS {
        env.add_app(app, nodes.len(), pinned(app, &nodes).start(Start::SlowReady(secs(6))))
            .await?;
    }
    let kubectl = Kubectl::of(&env.plane)?;
    for (node, app) in nodes.into_iter().zip(APPLICATIONS) {
        let mut pods = env.pods_on(node).await?.into_iter();
        let of_app = |pod: &Pod| pod.name_any().starts_with(&format!("{app}-"));
        let pod = pods.find(of_app).context("no pod")?;
        workload::delete(&env.client, APPS, &pod.name_any()).await?;
        wait::until("its successor", secs(60), || async {
            let present = env.pods().get(&pod.name_any()).await?;
            let is_bound = present.spec.is_some_and(|spec| spec.node_name.is_some());
            ensure!(present.metadata.uid != pod.metadata.uid && is_bound, "not there");
            Ok(())
        })
        .await?;
    }
    let drains: Result<Vec<_>> = nodes
        .iter()
        .map(|node| Ok((*node, kubectl.start(["drain", node, "--ignore-daemonsets"])?)))
        .collect();
    all_end(env, drains?, secs(180)).await?;
    reviewed.end([lock]).await
}

/// Each has a pod on every node.
const APPLICATIONS: [&str; 2] = ["a", "b"];

/// A program that empties nodes.
struct Drainer {
    user: &'static str,
    node: &'static str,
    /// What it changes of the node before it evicts.
    mark: Value,
    /// Whether it insists on the pod that it has seen.
    names_uid: bool,
    end: End,
}

/// What it does to an empty node.
enum End {
    /// Reboots and uncordons it.
    Reboot,
    /// Deletes it; another one comes in its place.
    Replace,
}

fn tainted(key: &str) -> Value {
    json!({ "spec": { "taints": [{ "key": key, "effect": "NoSchedule" }] } })
}

/// Four that act as those of that name do: what they write on a node, how they ask, and what they do when it is empty.
fn drainers() -> [Drainer; 4] {
    [
        Drainer {
            user: "system:serviceaccount:openshift-machine-config-operator:machine-config-controller",
            node: "n1",
            mark: json!({
                "metadata": { "annotations": {
                    "machineconfiguration.openshift.io/desiredDrain": "drain-rendered-worker-2",
                    "machineconfiguration.openshift.io/state": "Working",
                } },
                "spec": { "unschedulable": true },
            }),
            names_uid: false,
            end: End::Reboot,
        },
        Drainer {
            user: "system:serviceaccount:capi-system:capi-manager",
            node: "n2",
            mark: json!({
                "metadata": { "annotations": { "cluster.x-k8s.io/machine": "worker-2" } },
                "spec": { "unschedulable": true },
            }),
            names_uid: false,
            end: End::Replace,
        },
        Drainer {
            user: "system:serviceaccount:kube-system:karpenter",
            node: "n3",
            mark: tainted("karpenter.sh/disrupted"),
            names_uid: true,
            end: End::Replace,
        },
        Drainer {
            user: "system:serviceaccount:kube-system:cluster-autoscaler",
            node: "n4",
            mark: tainted("ToBeDeletedByClusterAutoscaler"),
            names_uid: false,
            end: End::Replace,
        },
    ]
}

impl Drainer {
    /// Empties its node, and sees to what follows.
    async fn run(&self, reviewed: &Reviewed) -> Result<()> {
        let (env, client) = (&reviewed.env, reviewed.client_as(self.user).await?);
        let nodes: Api<Node> = Api::all(client.clone());
        let mark = Patch::Merge(&self.mark);
        nodes.patch(self.node, &PatchParams::default(), &mark).await?;
        wait::until(format!("{} to be empty", self.node), secs(300), || async {
            self.evict_all(env, &client).await
        })
        .await?;
        match self.end {
            End::Reboot => {
                reboot::reboot(&env.client, self.node, secs(1)).await?;
                env.uncordon(self.node).await
            }
            End::Replace => env.replace_worker(&client, self.node, 0).await,
        }
    }

    /// One round of evictions; fails until no pod is left.
    async fn evict_all(&self, env: &Environment, client: &Client) -> Result<()> {
        let pods = env.pods_on(self.node).await?;
        let staying = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        for pod in staying {
            let name = pod.metadata.name.as_deref().context("no name")?;
            let uid = json!({ "preconditions": { "uid": pod.metadata.uid } });
            let options = if self.names_uid { uid } else { json!({}) };
            let evicted = Eviction::of(name).options(options).by(client).await?;
            // With any other refusal it would give the pod up.
            ensure!(matches!(evicted.status, 201 | 404 | 429), "{evicted:?}");
        }
        ensure!(pods.is_empty(), "{} pods are left", pods.len());
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_kinds_of_drainers_take_turns() -> Result<()> {
    let (nodes, launched) = (["n1", "n2", "n3", "n4"], ["n5", "n6"]);
    let (reviewed, lock) = Reviewed::with(&nodes, json!({})).await?;
    let env = &reviewed.env;
    for app in APPLICATIONS {
        let template = pinned(app, &[&nodes[..], &launched[..]].concat());
        env.add_deployment(app, nodes.len(), template).await?;
    }
    // Who takes nodes away for good makes room for their pods before.
    for node in launched {
        env.add_worker(node, 0).await?;
    }
    let budgets = env.watch_budgets();
    let drainers = drainers();
    let all = drainers.iter().map(async |drainer| {
        drainer.run(&reviewed).await.with_context(|| drainer.user)?;
        env.released(drainer.node, secs(120)).await
    });
    futures::future::try_join_all(all).await?;
    for app in APPLICATIONS {
        workload::ready_pods(&env.client, APPS, app, nodes.len(), secs(60)).await?;
    }
    budgets.none_was_violated()?;
    ensure!(
        env.drains().list(&ListParams::default()).await?.items.is_empty(),
        "drains are left"
    );
    let log = lock.log();
    for drainer in &drainers {
        let filed = format!("user=\"{}\"", drainer.user);
        ensure!(log.contains(&filed), "no drain was asked for by {}", drainer.user);
    }
    reviewed.end([lock]).await
}
