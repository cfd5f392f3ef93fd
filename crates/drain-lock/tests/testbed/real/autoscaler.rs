//! The cluster autoscaler, which no module serves: played, by an account that may do what its chart lets it do.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ListParams, PostParams};
use nodeward_api::node_drain::Phase;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{Budget, PodTemplate};
use nodeward_testkit::{bulk, workload};
use serde_json::{Value, json};

use crate::environment::{APPS, Environment};
use crate::reviewed::{Eviction, Reviewed};

const USER: &str = "system:serviceaccount:kube-system:cluster-autoscaler";

/// As its chart's ClusterRole has it, of what concerns nodes and evictions.
fn rights() -> Value {
    json!([
        { "apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"] },
        { "apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "update"] },
    ])
}

/// Replaces the node's taints, as the autoscaler does: it may not patch.
async fn taint(nodes: &Api<Node>, name: &str, taints: Value) -> Result<()> {
    wait::until("to taint", secs(30), || async {
        let mut node = nodes.get(name).await?;
        let spec = node.spec.get_or_insert_default();
        spec.taints = serde_json::from_value(taints.clone())?;
        nodes.replace(name, &PostParams::default(), &node).await?;
        Ok(())
    })
    .await
}

async fn an_application(env: &Environment, nodes: usize) -> Result<()> {
    env.add_deployment("a", nodes, PodTemplate::new()).await
}

/// It removes a node, meets a budget that lets nothing go, and gives up.
#[tokio::test(flavor = "multi_thread")]
async fn removal_that_autoscaler_gives_up_leaves_nothing_behind() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1"], json!({})).await?;
    let env = &reviewed.env;
    an_application(env, 2).await?;
    env.add_worker("n2", 0).await?;
    let stuck = Budget::max_unavailable(APPS, "stuck", 0).of("stuck").build()?;
    bulk::create(&env.client, [stuck]).await?;
    let on_first = PodTemplate::new().node_selector("kubernetes.io/hostname", "n1");
    bulk::create(&env.client, [on_first.deployment(APPS, "stuck", 1)?]).await?;
    workload::ready_pods(&env.client, APPS, "stuck", 1, secs(60)).await?;
    reviewed.permit(USER, rights()).await?;
    let client = reviewed.client_of(USER).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let removed = json!([{ "key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule" }]);
    taint(&nodes, "n1", removed).await?;
    wait::until("all but one pod to leave", secs(120), || async {
        let pods = reviewed.pods_on("n1").await?;
        for pod in &pods {
            let evicted = Eviction::of(pod).by(&client).await?;
            ensure!(matches!(evicted.status, 201 | 404 | 429), "{evicted:?}");
        }
        ensure!(pods.len() == 1, "{pods:?}");
        Ok(())
    })
    .await?;
    // It is filed after the eviction's answer.
    let drain = wait::until("the drain to be filed", secs(60), || async {
        Ok(env.drains().get("n1").await?)
    })
    .await?;
    let requester = drain.spec.requesters.first().context("no requester")?;
    ensure!(requester.name.contains("cluster-autoscaler"), "{requester:?}");
    taint(&nodes, "n1", json!([])).await?;
    env.released("n1", secs(10)).await?;
    // What it had asked for is held for nobody: the same pods may leave their other node.
    workload::ready_pods(&env.client, APPS, "a", 2, secs(60)).await?;
    env.drain("n2", json!({})).await?;
    env.phase("n2", Phase::Drained, secs(120)).await?;
    reviewed.end([lock]).await
}

/// It looks for ten minutes whether the node stays idle: not one pod leaves for it.
#[tokio::test(flavor = "multi_thread")]
async fn autoscalers_candidate_is_not_cordoned() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1"], json!({})).await?;
    let env = &reviewed.env;
    an_application(env, 2).await?;
    reviewed.permit(USER, rights()).await?;
    let client = reviewed.client_of(USER).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let candidate =
        json!([{ "key": "DeletionCandidateOfClusterAutoscaler", "value": "1", "effect": "PreferNoSchedule" }]);
    taint(&nodes, "n1", candidate).await?;
    let pods = reviewed.pods_on("n1").await?;
    let evicted = Eviction::of(&pods[0]).by(&client).await?;
    ensure!(evicted.is_admitted(), "{evicted:?}");
    // The drain that follows is of the plan after this one: had the eviction filed another, it would be there.
    env.add_worker("n2", 0).await?;
    env.drain("n2", json!({})).await?;
    env.phase("n2", Phase::Drained, secs(120)).await?;
    let drains = env.drains().list(&ListParams::default()).await?.items;
    let of_candidate = drains.iter().any(|drain| drain.spec.node_name == "n1");
    ensure!(!of_candidate, "{drains:?}");
    reviewed.end([lock]).await
}
