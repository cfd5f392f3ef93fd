//! Who goes first, and what is kept for whom.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use nodeward_api::node_drain::{BlockedBy, Phase};
use nodeward_api::reason::LockReason;
use nodeward_testkit::bulk;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use serde_json::json;

use crate::environment::{APPS, Environment};

async fn is_blocked(env: &Environment, node: &str, reason: LockReason) -> Result<()> {
    env.status_that(node, &format!("to be blocked: {reason}"), secs(60), |status| {
        status.blocked_by.iter().any(|blocked| blocked.reason == reason)
    })
    .await?;
    ensure!(!env.pods_on(node).await?.is_empty(), "a pod of {node} was evicted");
    Ok(())
}

/// Three pods that an unknown controller keeps on a node each, and a budget that counts those that exist.
async fn add_foreign_pods(env: &Environment, nodes: &[&str]) -> Result<()> {
    let pods: Result<Vec<Pod>> = nodes.iter().map(|node| foreign_pod(node)).collect();
    bulk::create(&env.client, pods?).await?;
    bulk::create(
        &env.client,
        [Budget::min_available(APPS, "load", 2).of("load").build()?],
    )
    .await?;
    workload::ready_pods(&env.client, APPS, "load", nodes.len(), secs(60)).await?;
    workload::counted_budget(&env.client, APPS, "load", i32::try_from(nodes.len())?, secs(60)).await?;
    Ok(())
}

fn foreign_pod(node: &str) -> Result<Pod> {
    let template = PodTemplate::new()
        .label("app", "load")
        .node_selector("kubernetes.io/hostname", node)
        .owned_by("example.com/v1", "Load", "load", "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a02");
    template.pod(APPS, &format!("load-{node}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn down_pod_of_integer_minimum_keeps_its_disruption() -> Result<()> {
    let nodes = ["n1", "n2", "n3"];
    let env = Environment::new(&nodes).await?;
    add_foreign_pods(&env, &nodes).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.drain("n2", json!({})).await?;
    is_blocked(&env, "n2", LockReason::WaitsForDisruptions).await?;
    wait::throughout("n1 holds its disruption, and n2 says so", secs(20), || async {
        let holds = env.claim("n1").await?.map_or(0, |claim| claim.held_disruptions());
        ensure!(holds == 1, "n1 holds {holds}");
        let status = env.drains().get("n2").await?.status.context("no status")?;
        let names = |blocked: &BlockedBy| blocked.node.as_deref() == Some("n1");
        ensure!(status.blocked_by.iter().any(names), "{:?}", status.blocked_by);
        ensure!(
            status
                .blocked_by
                .iter()
                .all(|blocked| blocked.reason == LockReason::WaitsForDisruptions),
            "{:?}",
            status.blocked_by
        );
        Ok(())
    })
    .await?;
    env.uncordon("n1").await?;
    bulk::create(&env.client, [foreign_pod("n1")?]).await?;
    env.released("n1", secs(60)).await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn oldest_drain_keeps_its_budgets_while_others_overtake() -> Result<()> {
    let env = Environment::new(&["n1", "n2", "n3", "n4"]).await?;
    env.add_fixed("a", &["n1", "n2"]).await?;
    env.add_fixed("b", &["n2", "n3"]).await?;
    env.add_fixed("c", &["n3", "n4"]).await?;
    let lock = env.start(json!({})).await?;
    let watch = env.watch_budgets();
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.drain("n2", json!({})).await?;
    is_blocked(&env, "n2", LockReason::WaitsForDisruptions).await?;
    // It waits for an older one that holds nothing, and it has no reservation of its own.
    env.drain("n3", json!({})).await?;
    is_blocked(&env, "n3", LockReason::Reserved).await?;
    env.drain("n4", json!({})).await?;
    env.phase("n4", Phase::Drained, secs(60)).await?;
    is_blocked(&env, "n2", LockReason::WaitsForDisruptions).await?;
    env.uncordon("n1").await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    env.uncordon("n4").await?;
    is_blocked(&env, "n3", LockReason::WaitsForDisruptions).await?;
    env.uncordon("n2").await?;
    env.phase("n3", Phase::Drained, secs(60)).await?;
    watch.none_was_violated()?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn mutually_dependent_nodes_are_cordoned_in_turn() -> Result<()> {
    let env = Environment::new(&["n1", "n2"]).await?;
    env.add_app("web", 2, PodTemplate::new()).await?;
    let lock = env.start(json!({})).await?;
    let watch = env.watch_budgets();
    for node in ["n1", "n2"] {
        env.drain(node, json!({ "fallback": "Wait" })).await?;
        env.queued(node).await?;
    }
    env.phase("n1", Phase::Drained, secs(60)).await?;
    // Had both been cordoned at once, its pods would have had nowhere to go.
    workload::ready_pods(&env.client, APPS, "web", 2, secs(60)).await?;
    ensure!(env.pods_on("n2").await?.len() == 2, "not on the other node");
    env.uncordon("n1").await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    workload::ready_pods(&env.client, APPS, "web", 2, secs(60)).await?;
    watch.none_was_violated()?;
    let spec = env.nodes().get("n1").await?.spec.context("no spec")?;
    ensure!(spec.unschedulable.is_none(), "the first is cordoned again");
    env.end([lock]).await
}
