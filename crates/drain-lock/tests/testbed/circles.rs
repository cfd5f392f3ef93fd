//! Drains that wait for each other by pods which were evicted while drain-lock was away: no claim tells of these.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{EvictParams, ListParams};
use nodeward_api::label;
use nodeward_api::node_drain::{BlockedBy, Phase};
use nodeward_api::reason::LockReason;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate};
use nodeward_testkit::{bulk, fleet};
use serde_json::{Value, json};

use crate::environment::{APPS, Environment, Lock};
use crate::reviewed::Reviewed;

const NODES: [&str; 2] = ["n1", "n2"];

/// Two applications, each with a pod on each node, and a budget of one.
const APPLICATIONS: [&str; 2] = ["a", "b"];

async fn two_nodes() -> Result<Environment> {
    let env = Environment::new(&NODES).await?;
    for app in APPLICATIONS {
        env.add_pinned(app, &NODES).await?;
    }
    Ok(env)
}

async fn start(env: &Environment) -> Result<Lock> {
    env.start(json!({ "unschedulableAfter": "1s" })).await
}

/// Evicts the application's pod of the node, as a drainer does, and waits until its replacement finds no node.
async fn evict(env: &Environment, app: &str, node: &str) -> Result<()> {
    let mut pods = env.pods_on(node).await?.into_iter();
    let pod = pods
        .find(|pod| pod.name_any().starts_with(&format!("{app}-")))
        .context("no pod")?;
    env.pods().evict(&pod.name_any(), &EvictParams::default()).await?;
    wait::until(format!("another pod of {app} to find no node"), secs(60), || async {
        let pods = env
            .pods()
            .list(&ListParams::default().labels(&format!("app={app}")))
            .await?
            .items;
        let finds_none = |pod: &Pod| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions
                .into_iter()
                .any(|condition| condition.reason.as_deref() == Some("Unschedulable"))
        };
        ensure!(pods.iter().any(finds_none), "{} pods", pods.len());
        Ok(())
    })
    .await?;
    env.counts_healthy(app, 1).await
}

/// A drain whose requester evicts by itself, as the webhook would have filed it.
fn by_requester() -> Value {
    json!({ "evict": "Requester" })
}

#[tokio::test(flavor = "multi_thread")]
async fn circle_of_others_names_node_to_uncordon() -> Result<()> {
    let env = two_nodes().await?;
    for (node, app) in NODES.into_iter().zip(APPLICATIONS) {
        fleet::cordon(&env.client, node).await?;
        evict(&env, app, node).await?;
    }
    for node in NODES {
        env.drain(node, by_requester()).await?;
    }
    let lock = start(&env).await?;
    let mut named = None;
    for node in NODES {
        let status = env
            .status_that(node, "to wait in a circle", secs(60), |status| {
                status
                    .blocked_by
                    .iter()
                    .any(|one| one.reason == LockReason::CircularWait)
            })
            .await?;
        let told = status
            .blocked_by
            .iter()
            .find(|one| one.reason == LockReason::CircularWait);
        let told = told.context("no circle")?;
        let opener = told.node.clone().context("no node is named")?;
        ensure!(
            told.message.contains(&format!("kubectl uncordon {opener}")),
            "{}",
            told.message
        );
        ensure!(
            named.as_ref().is_none_or(|named| *named == opener),
            "{named:?} and {opener}"
        );
        named = Some(opener);
    }
    let opener = named.context("none")?;
    let other = NODES.into_iter().find(|node| *node != opener).context("none")?;
    env.event(other, LockReason::CircularWait, secs(60)).await?;
    env.uncordon(&opener).await?;
    env.released(&opener, secs(60)).await?;
    env.phase(other, Phase::Draining, secs(60)).await?;
    env.uncordon(other).await?;
    env.released(other, secs(60)).await?;
    env.end([lock]).await
}

/// drain-lock had cordoned one of the two nodes.
#[tokio::test(flavor = "multi_thread")]
async fn circle_with_our_cordon_is_opened() -> Result<()> {
    let env = two_nodes().await?;
    let load = PodTemplate::new()
        .on("n1")
        .label(label::DRAIN, "wait-completed")
        .owned_by("example.com/v1", "Load", "load", "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a01");
    bulk::create(&env.client, [load.pod(APPS, "load")?]).await?;
    let lock = start(&env).await?;
    env.drain("n1", json!({})).await?;
    env.status_that("n1", "to wait for the load", secs(60), |status| {
        status
            .blocked_by
            .iter()
            .any(|one| one.reason == LockReason::WaitCompleted)
    })
    .await?;
    lock.end().await?;
    evict(&env, "a", "n1").await?;
    fleet::cordon(&env.client, "n2").await?;
    evict(&env, "b", "n2").await?;
    env.drain("n2", by_requester()).await?;
    workload::delete(&env.client, APPS, "load").await?;
    let lock = start(&env).await?;
    workload::ready_pods(&env.client, APPS, "a", 2, secs(60)).await?;
    env.phase("n2", Phase::Draining, secs(60)).await?;
    evict(&env, "a", "n2").await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    env.uncordon("n2").await?;
    env.released("n2", secs(60)).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

/// Pods that `kubectl drain --disable-eviction` deletes are no drain's, and find no node but the one that it leaves cordoned.
#[tokio::test(flavor = "multi_thread")]
async fn node_that_was_emptied_around_evictions_is_named() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({ "unschedulableAfter": "1s" })).await?;
    let env = &reviewed.env;
    env.add_pinned("a", &NODES).await?;
    let kubectl = Kubectl::of(&env.plane)?;
    let emptied = ["drain", "n1", "--ignore-daemonsets", "--disable-eviction"];
    kubectl.run(emptied, secs(60)).await?;
    let drain = kubectl.start(["drain", "n2", "--ignore-daemonsets"])?;
    let is_named = |one: &BlockedBy| one.reason == LockReason::AwaitsUncordon && one.node.as_deref() == Some("n1");
    let names = env.status_that("n2", "to name the other node", secs(60), |status| {
        status.blocked_by.iter().any(is_named)
    });
    names.await?;
    env.uncordon("n1").await?;
    wait::until("the drain to end", secs(60), || async {
        ensure!(drain.ended() == Some(true), "{}", drain.text());
        Ok(())
    })
    .await?;
    reviewed.end([lock]).await
}
