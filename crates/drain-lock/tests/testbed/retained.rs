//! Pods that stay on their node through its drain: nobody reboots over them while their budget lacks the disruption.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use nodeward_api::drain_ledger::{self, ClaimState, DrainLedger};
use nodeward_api::label;
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{End, Start};
use nodeward_testkit::{bulk, fleet, reboot, workload};
use serde_json::json;

use crate::environment::{APPS, Environment, pinned};
use crate::reviewed::Reviewed;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// How long a pod that stays takes until it is Ready.
const STARTS_IN: Duration = secs(30);

/// An application whose pods stay on their nodes, and take a while to be Ready.
pub async fn add_staying(env: &Environment) -> Result<()> {
    let stays = pinned("stays", &NODES).label(label::DRAIN, "skip").tolerates_all();
    let stays = stays.start(Start::SlowReady(STARTS_IN));
    env.add_app("stays", NODES.len(), stays).await
}

/// The pod of an application on a node.
async fn pod_of(env: &Environment, app: &str, node: &str) -> Result<Pod> {
    let pods = env.pods_on(node).await?;
    let found = pods
        .into_iter()
        .find(|pod| pod.labels().get("app").is_some_and(|name| name == app));
    found.with_context(|| format!("no pod of {app} on {node}"))
}

/// Deletes a pod that stays on a node: for a while its budget has one less.
pub async fn lose_sibling(env: &Environment, node: &str) -> Result<()> {
    let pod = pod_of(env, "stays", node).await?;
    workload::delete(&env.client, APPS, &pod.name_any()).await?;
    workload::gone(&env.client, &pod, secs(60)).await?;
    env.counts_healthy("stays", NODES.len() - 1).await
}

/// The caller of `kubectl drain` reboots the node when that has ended.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_drain_around_retained_pods_awaits_claim() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    add_staying(env).await?;
    bulk::create(&env.client, [pinned("free", &["n1"]).deployment(APPS, "free", 1)?]).await?;
    workload::ready_pods(&env.client, APPS, "free", 1, secs(60)).await?;
    env.drain("n2", json!({})).await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;

    let kubectl = Kubectl::of(&env.plane)?;
    let said = kubectl.start([
        "drain",
        "n1",
        "--ignore-daemonsets",
        "--pod-selector=nodeward.dev/drain!=skip",
    ])?;
    env.status_that("n1", "to wait for the other node", secs(60), |status| {
        status
            .blocked_by
            .iter()
            .any(|blocked| blocked.reason == LockReason::WaitsForDisruptions)
    })
    .await?;
    wait::throughout("the drain waits", secs(6), || async {
        ensure!(said.ended().is_none(), "it has ended:\n{}", said.text());
        Ok(())
    })
    .await?;
    ensure!(
        pod_of(env, "free", "n1").await?.metadata.deletion_timestamp.is_none(),
        "it was evicted"
    );
    reboot::reboot(&env.client, "n2", secs(1)).await?;
    env.delete_drain("n2").await?;
    env.released("n2", secs(90)).await?;
    wait::until("the end of the drain", secs(120), || async {
        ensure!(said.ended() == Some(true), "{}", said.text());
        Ok(())
    })
    .await?;
    let claim = env.claim("n1").await?.context("no claim")?;
    let staying = pod_of(env, "stays", "n1").await?.uid().context("no UID")?;
    ensure!(
        claim.state == ClaimState::Confirmed && claim.has_disruption(&staying),
        "{claim:?}"
    );
    reviewed.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_sibling_sends_draining_node_back_to_waiting() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    add_staying(&env).await?;
    let hangs = pinned("hangs", &NODES).grace(1).end(End::Stuck);
    env.add_app("hangs", NODES.len(), hangs).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    let hanging = pod_of(&env, "hangs", "n1").await?;
    wait::until("its pod to be evicted", secs(60), || async {
        let pod = env.pods().get(&hanging.name_any()).await?;
        ensure!(pod.metadata.deletion_timestamp.is_some(), "not yet");
        Ok(())
    })
    .await?;
    lose_sibling(&env, "n2").await?;
    let at_once = DeleteParams::default().grace_period(0);
    env.pods().delete(&hanging.name_any(), &at_once).await?;
    env.status_that("n1", "to wait again", secs(60), |status| {
        status
            .blocked_by
            .iter()
            .any(|blocked| blocked.reason == LockReason::BudgetUnhealthy)
    })
    .await?;
    wait::throughout("it is not drained", secs(4), || async {
        let claim = env.claim("n1").await?.context("no claim")?;
        ensure!(claim.state == ClaimState::Waiting, "{claim:?}");
        Ok(())
    })
    .await?;
    env.phase("n1", Phase::Drained, secs(90)).await?;
    env.end([lock]).await
}

/// Its machine may reboot at any moment, and the drain is called off: that it still runs proves nothing for a while.
#[tokio::test(flavor = "multi_thread")]
async fn called_off_drain_holds_for_retained_pods() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    add_staying(&env).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.delete_drain("n1").await?;
    wait::until("the node to be uncordoned", secs(60), || async {
        ensure!(
            fleet::cordon_taint(&env.nodes().get("n1").await?).is_none(),
            "still cordoned"
        );
        Ok(())
    })
    .await?;
    wait::throughout("its disruption is held", secs(6), || async {
        let claim = env.claim("n1").await?.context("no claim")?;
        ensure!(claim.state == ClaimState::Returning && claim.may_go_down, "{claim:?}");
        ensure!(claim.held_disruptions() == 1, "{claim:?}");
        Ok(())
    })
    .await?;

    let mut spec = env.ledger().await?.context("no ledger")?.spec;
    spec.claims[0].since -= jiff::SignedDuration::from_mins(6);
    let ledgers: Api<DrainLedger> = Api::all(env.client.clone());
    let patch = Patch::Merge(json!({ "spec": { "claims": spec.claims } }));
    ledgers
        .patch(drain_ledger::NAME, &PatchParams::default(), &patch)
        .await?;
    env.released("n1", secs(90)).await?;
    env.end([lock]).await
}
