//! Deadlines, and what the fallbacks make of them.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use nodeward_api::node_drain::{NodeDrainStatus, Phase};
use nodeward_api::reason::LockReason;
use nodeward_core::ledger::ClaimState;
use nodeward_testkit::fleet;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::End;
use serde_json::{Value, json};

use crate::environment::{APPS, Environment, Lock, pinned};
use crate::holds::{hold, holds};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// A drained node, and another whose drain waits for its disruption with this spec.
async fn waiting(spec: Value) -> Result<(Environment, Lock)> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.drain("n2", spec).await?;
    Ok((env, lock))
}

async fn counted(lock: &Lock, reason: &str) -> Result<f64> {
    let metrics = lock.metrics().await?;
    Ok(metrics.sum("nodeward_drain_lock_drain_events_total", &[("reason", reason)]))
}

#[tokio::test(flavor = "multi_thread")]
async fn overdue_wait_is_reported_and_goes_on() -> Result<()> {
    let (env, lock) = waiting(json!({ "deadlines": { "queue": "2s" } })).await?;
    let watch = env.watch_budgets();
    let is_late = |status: &NodeDrainStatus| {
        let mut reasons = status.blocked_by.iter().map(|blocked| blocked.reason);
        reasons.any(|reason| reason == LockReason::DeadlinePassed)
    };
    let late = env.status_that("n2", "to be late", secs(60), is_late).await?;
    wait::throughout("it waits on", secs(3), || async {
        let claim = env.claim("n2").await?.context("no claim")?;
        ensure!(Some(claim.ticket) == late.ticket, "another ticket: {claim:?}");
        ensure!(env.pods_on("n2").await?.len() == 1, "its pod was evicted");
        Ok(())
    })
    .await?;
    ensure!(counted(&lock, "Requeued").await? < 0.5, "it was queued again");
    env.uncordon("n1").await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    watch.none_was_violated()?;
    env.end([lock]).await
}

/// A pod that takes for ever to go.
async fn hanging(spec: Value) -> Result<(Environment, Lock)> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    env.add_app("hangs", NODES.len(), pinned("hangs", &NODES).grace(1).end(End::Stuck))
        .await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", spec).await?;
    Ok((env, lock))
}

/// Waits until the drain of `n1` is queued again, and its cordon is lifted.
async fn given_up(env: &Environment, lock: &Lock) -> Result<()> {
    wait::until("the node to be uncordoned", secs(90), || async {
        let node = env.nodes().get("n1").await?;
        ensure!(counted(lock, "Requeued").await? > 0.5, "not requeued");
        ensure!(fleet::cordon_taint(&node).is_none(), "still cordoned");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn overdue_drain_uncordons_until_pods_are_ready() -> Result<()> {
    let (env, lock) = hanging(json!({ "deadlines": { "drain": "15s" } })).await?;
    given_up(&env, &lock).await?;
    ensure!(
        env.drains().get("n1").await?.metadata.deletion_timestamp.is_none(),
        "it was called off"
    );
    wait::until("the pod that went to be back", secs(60), || async {
        ensure!(env.pods_on("n1").await?.len() == 2, "not back");
        Ok(())
    })
    .await?;
    env.end([lock]).await
}

/// An owner forbids every disruption once the node is cordoned. The node goes on serving, and its drain is queued again.
#[tokio::test(flavor = "multi_thread")]
async fn overdue_drain_beside_an_obstacle_is_queued_again() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    env.add_app("hangs", NODES.len(), pinned("hangs", &NODES).grace(1).end(End::Stuck))
        .await?;
    let lock = env.start(json!({ "deadlines": { "obstacle": "2s" } })).await?;
    env.drain("n1", json!({ "deadlines": { "drain": "15s" } })).await?;
    wait::until("the node to be cordoned", secs(60), || async {
        let node = env.nodes().get("n1").await?;
        ensure!(fleet::cordon_taint(&node).is_some(), "not cordoned");
        Ok(())
    })
    .await?;
    let budgets = Api::<PodDisruptionBudget>::namespaced(env.client.clone(), APPS);
    let none = Patch::Merge(json!({ "spec": { "maxUnavailable": 0 } }));
    budgets.patch("a", &PatchParams::default(), &none).await?;
    given_up(&env, &lock).await?;
    wait::throughout("the drain", secs(10), || async {
        let drain = env.drains().get("n1").await?;
        ensure!(drain.metadata.deletion_timestamp.is_none(), "it was called off");
        Ok(())
    })
    .await?;
    ensure!(
        counted(&lock, "Uncordoned").await? < 0.5,
        "drain-lock takes itself for somebody else"
    );
    env.end([lock]).await
}

/// Its owner holds a budget after the grant. Until he releases it, the drain goes on without its pod, which holds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn granted_drain_goes_on_without_what_is_held_since() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    let hangs = pinned("hangs", &NODES).grace(1).end(End::Stuck);
    env.add_app("hangs", NODES.len(), hangs).await?;
    env.add_pinned("z", &NODES).await?;
    let config = json!({ "deadlines": { "obstacle": "3s" }, "eviction": { "maxParallel": 1 } });
    let lock = env.start(config).await?;
    env.drain("n1", json!({})).await?;
    let holds_z = || async {
        let claim = env.claim("n1").await?.context("no claim")?;
        anyhow::Ok(claim.holds.iter().any(|held| held.pdb.name == "z"))
    };
    env.status_that("n1", "to evict", secs(60), |status| {
        status.pods.is_some_and(|pods| pods.evicting == 1)
    })
    .await?;
    ensure!(holds_z().await?, "nothing is held for the pod that goes last");
    hold(&env, "later", "z", None).await?;
    let is_left_out = |status: &NodeDrainStatus| {
        let left_out = status.plan.iter().flat_map(|plan| &plan.left_out);
        left_out.map(|pod| pod.reason).eq([LockReason::OwnerHold])
    };
    env.status_that("n1", "to go on without it", secs(60), is_left_out)
        .await?;
    ensure!(!holds_z().await?, "its disruption is held all the same");
    holds(&env).delete("later", &DeleteParams::default()).await?;
    env.status_that("n1", "to count on it again", secs(60), |status| !is_left_out(status))
        .await?;
    wait::until("the disruption to be held again", secs(60), || async {
        ensure!(holds_z().await?, "it is not");
        Ok(())
    })
    .await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn overdue_drain_under_foreign_cordon_keeps_its_place() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let hangs = pinned("hangs", &NODES).grace(1).end(End::Stuck);
    env.add_app("hangs", NODES.len(), hangs).await?;
    let lock = env.start(json!({})).await?;
    fleet::cordon(&env.client, "n1").await?;
    env.drain("n1", json!({ "deadlines": { "drain": "15s" } })).await?;
    let granted = env.phase("n1", Phase::Draining, secs(60)).await?;
    env.drain("n2", json!({})).await?;
    wait::until("its time to be over", secs(90), || async {
        ensure!(counted(&lock, "Requeued").await? > 0.5, "not yet");
        Ok(())
    })
    .await?;
    wait::throughout("it keeps what is down", secs(3), || async {
        let claim = env.claim("n1").await?.context("no claim")?;
        ensure!(Some(claim.ticket) == granted.ticket, "another ticket: {claim:?}");
        ensure!(
            claim.holds.iter().any(|disruptions| disruptions.pdb.name == "a"),
            "{claim:?}"
        );
        ensure!(
            env.pods_on("n2").await?.len() == 2,
            "the other node's pods were evicted"
        );
        let node = env.nodes().get("n1").await?;
        ensure!(fleet::cordon_taint(&node).is_some(), "another's cordon was lifted");
        Ok(())
    })
    .await?;
    env.end([lock]).await
}

/// Another's cordon keeps its pod from coming back.
#[tokio::test(flavor = "multi_thread")]
async fn overdue_recovery_of_ended_drain_is_suspect() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    fleet::cordon(&env.client, "n1").await?;
    env.drain("n1", json!({ "deadlines": { "recover": "3s" } })).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.delete_drain("n1").await?;
    env.phase("n1", Phase::Suspect, secs(60)).await?;
    wait::throughout("the disruption is held", secs(4), || async {
        let claim = env.claim("n1").await?.context("no claim")?;
        ensure!(
            claim.state == ClaimState::Suspect && !claim.holds.is_empty(),
            "{claim:?}"
        );
        Ok(())
    })
    .await?;
    ensure!(counted(&lock, "Suspect").await? > 0.5, "not announced");
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn time_never_frees_disruptions_of_down_pods() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({ "deadlines": { "drain": "15s", "recover": "2s" } }))
        .await?;
    env.phase("n1", Phase::Suspect, secs(90)).await?;
    wait::throughout("the disruption is held", secs(4), || async {
        let claim = env.claim("n1").await?;
        ensure!(
            claim.is_some_and(|claim| claim.state == ClaimState::Suspect && !claim.holds.is_empty()),
            "freed"
        );
        Ok(())
    })
    .await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}
