//! When the disruptions of pods return whose successors have other names.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use nodeward_api::node_drain::Phase;
use nodeward_testkit::bulk;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, Start};
use serde_json::json;

use crate::environment::{APPS, Environment, pinned};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// A Deployment with a pod on each node, each of which takes some seconds to be Ready, under this budget.
async fn add_slow(env: &Environment, budget: Budget) -> Result<()> {
    let deployment = pinned("a", &NODES)
        .start(Start::SlowReady(secs(8)))
        .deployment(APPS, "a", 3)?;
    bulk::create(&env.client, [deployment]).await?;
    bulk::create(&env.client, [budget.of("a").build()?]).await?;
    workload::ready_pods(&env.client, APPS, "a", 3, secs(120)).await?;
    env.counts_healthy("a", 3).await
}

async fn holds(env: &Environment, expected: usize) -> Result<()> {
    let held = env.claim("n1").await?.map(|claim| claim.held_disruptions());
    ensure!(held == Some(expected), "it holds {held:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unrelated_unhealthy_pod_keeps_no_claim() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    add_slow(&env, Budget::max_unavailable(APPS, "a", 1)).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    let sibling = env.pods_on("n2").await?.pop().context("no pod on n2")?;
    let failing = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    let (name, params) = (sibling.name_any(), PatchParams::default());
    // Its kubelet does not make it Ready again.
    let for_ever = json!({ "metadata": { "annotations": { "testbed.nodeward.dev/start": "never-ready" } } });
    env.pods().patch(&name, &params, &Patch::Merge(for_ever)).await?;
    env.pods()
        .patch_status(&name, &params, &Patch::Strategic(failing))
        .await?;
    env.counts_healthy("a", 1).await?;
    env.uncordon("n1").await?;
    wait::until("another pod to be on n1", secs(60), || async {
        ensure!(!env.pods_on("n1").await?.is_empty(), "none");
        Ok(())
    })
    .await?;
    wait::throughout("its disruption stays until that is Ready", secs(4), || async {
        if holds(&env, 1).await.is_err() {
            let pods = env.pods_on("n1").await?;
            ensure!(pods.iter().any(workload::is_ready), "it was returned before");
        }
        Ok(())
    })
    .await?;
    env.released("n1", secs(60)).await?;
    ensure!(
        env.pods().get(&name).await?.uid() == sibling.uid(),
        "the sibling was made anew"
    );
    env.counts_healthy("a", 2).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn scale_that_falls_returns_a_disruption() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    add_slow(&env, Budget::min_available(APPS, "a", 2)).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    let ledger = env.ledger().await?.context("no ledger")?;
    let row = ledger.spec.budgets.first().context("no budget in it")?;
    ensure!(row.expected_pods == Some(3), "{row:?}");
    ensure!(row.owners == ["Deployment/a"] && row.newest_pod.is_some(), "{row:?}");
    wait::throughout("it holds its disruption", secs(4), || holds(&env, 1)).await?;
    let deployments: Api<Deployment> = Api::namespaced(env.client.clone(), APPS);
    let fewer = Patch::Merge(json!({ "spec": { "replicas": 2 } }));
    deployments.patch_scale("a", &PatchParams::default(), &fewer).await?;
    wait::until("it to hold nothing", secs(60), || holds(&env, 0)).await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}
