//! How drains end, and what is freed then.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use nodeward_api::drain_ledger::{self, DrainLedger};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::fleet;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{Environment, pinned};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// One drained node, and another that waits for its disruption.
async fn one_drained_one_waiting() -> Result<Environment> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    Ok(env)
}

async fn waits(env: &Environment, node: &str) -> Result<()> {
    env.status_that(node, "to wait for another drain", secs(60), |status| {
        let mut reasons = status.blocked_by.iter().map(|blocked| blocked.reason);
        reasons.any(LockReason::waits_for_a_drain)
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_queued_drain_leaves_nothing() -> Result<()> {
    let env = one_drained_one_waiting().await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.drain("n2", json!({})).await?;
    waits(&env, "n2").await?;
    env.delete_drain("n2").await?;
    env.released("n2", secs(60)).await?;
    ensure!(env.pods_on("n2").await?.len() == 1, "its pod was evicted");
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_drain_uncordons_then_releases() -> Result<()> {
    let env = one_drained_one_waiting().await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.drain("n2", json!({})).await?;
    waits(&env, "n2").await?;
    let watch = env.watch_budgets();
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    watch.none_was_violated()?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_ends_with_its_last_requester() -> Result<()> {
    let env = one_drained_one_waiting().await?;
    let lock = env.start(json!({})).await?;
    let two = json!({ "requesters": [{ "name": "one" }, { "name": "two" }] });
    env.drain("n1", two).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.patch_drain("n1", json!({ "spec": { "requesters": [{ "name": "two" }] } }))
        .await?;
    wait::throughout("the drain goes on", secs(3), || async {
        ensure!(
            env.drains().get("n1").await?.metadata.deletion_timestamp.is_none(),
            "it ended"
        );
        Ok(())
    })
    .await?;
    env.patch_drain("n1", json!({ "spec": { "requesters": [] } })).await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_node_releases_once_pod_is_replaced() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    // A fourth node takes the pod once it is there.
    env.add_app("a", NODES.len(), pinned("a", &["n1", "n2", "n3", "n4"]))
        .await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.nodes().delete("n1", &DeleteParams::default()).await?;
    wait::until("the drain to be over", secs(60), || async {
        let drain = env.drains().get_opt("n1").await?;
        ensure!(
            drain.is_none_or(|drain| drain.metadata.deletion_timestamp.is_some()),
            "it goes on"
        );
        Ok(())
    })
    .await?;
    wait::throughout("the disruption is held while the pod is down", secs(3), || async {
        ensure!(
            env.claim("n1").await?.is_some_and(|claim| !claim.holds.is_empty()),
            "it is free"
        );
        Ok(())
    })
    .await?;
    env.add_worker("n4", 1).await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn recreated_node_is_not_drained() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.replace_worker(&env.client, "n1", 1).await?;
    env.released("n1", secs(60)).await?;
    let node = env.nodes().get("n1").await?;
    ensure!(
        node.spec.and_then(|spec| spec.unschedulable).is_none(),
        "it was cordoned"
    );
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_ledger_is_rebuilt_without_violation() -> Result<()> {
    let env = one_drained_one_waiting().await?;
    let lock = env.start(json!({})).await?;
    let watch = env.watch_budgets();
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.drain("n2", json!({})).await?;
    waits(&env, "n2").await?;
    let ledgers: Api<DrainLedger> = Api::all(env.client.clone());
    let before = ledgers.get(drain_ledger::NAME).await?;
    ledgers.delete(drain_ledger::NAME, &DeleteParams::default()).await?;
    wait::until("another ledger with both claims", secs(60), || async {
        let ledger = ledgers.get(drain_ledger::NAME).await?;
        ensure!(ledger.uid() != before.uid(), "the same");
        ensure!(ledger.spec.claims.len() == 2, "{:?}", ledger.spec.claims);
        Ok(())
    })
    .await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    wait::throughout("the other node keeps its pod", secs(3), || async {
        ensure!(env.pods_on("n2").await?.len() == 1, "evicted");
        Ok(())
    })
    .await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    watch.none_was_violated()?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn administrator_release_frees_and_is_recorded() -> Result<()> {
    let env = one_drained_one_waiting().await?;
    let lock = env.start(json!({})).await?;
    // A foreign cordon: its node stays cordoned, so its pod stays down and would hold its disruption for ever.
    fleet::cordon(&env.client, "n1").await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.patch_drain(
        "n1",
        json!({ "metadata": { "annotations": { "nodeward.dev/release": "alice: node is scrapped" } } }),
    )
    .await?;
    env.released("n1", secs(60)).await?;
    let metrics = lock.metrics().await?;
    let counted = metrics.sum("nodeward_drain_lock_drain_events_total", &[("reason", "AdminRelease")]);
    ensure!((counted - 1.0).abs() < 0.5, "counted {counted} times");
    ensure!(lock.log().contains("alice: node is scrapped"), "not in the log");
    wait::until("an Event", secs(60), || async {
        let events: Api<k8s_openapi::api::events::v1::Event> = Api::all(env.client.clone());
        let events = events.list(&kube::api::ListParams::default()).await?;
        let is_there = events.items.iter().any(|event| {
            event.reason.as_deref() == Some("AdminRelease")
                && event.note.as_deref().is_some_and(|note| note.contains("alice"))
        });
        ensure!(is_there, "none");
        Ok(())
    })
    .await?;
    env.end([lock]).await
}

/// While drain-lock was away somebody uncordoned the node and cordoned it again, for reasons of his own.
#[tokio::test(flavor = "multi_thread")]
async fn cordon_taken_meanwhile_is_never_lifted() -> Result<()> {
    let env = one_drained_one_waiting().await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    lock.end().await?;
    let added =
        |node: &k8s_openapi::api::core::v1::Node| fleet::cordon_taint(node).and_then(|taint| taint.time_added.clone());
    let ours = added(&env.nodes().get("n1").await?);
    ensure!(ours.is_some(), "its taint has no time");
    // The time of a taint is to the second.
    wait::until("another taint than ours", secs(60), || async {
        env.uncordon("n1").await?;
        fleet::cordon(&env.client, "n1").await?;
        let theirs = added(&env.nodes().get("n1").await?);
        ensure!(theirs.is_some() && theirs != ours, "{theirs:?}");
        Ok(())
    })
    .await?;
    env.delete_drain("n1").await?;
    let lock = env.start(json!({})).await?;
    let told = env.event("n1", LockReason::CordonTaken, secs(60)).await?;
    ensure!(told.contains("kubectl uncordon n1"), "{told}");
    let node = env.nodes().get("n1").await?;
    ensure!(
        !node.annotations().contains_key(nodeward_api::annotation::CORDONED_BY),
        "the annotation is left"
    );
    ensure!(
        node.spec.and_then(|spec| spec.unschedulable) == Some(true),
        "it was uncordoned"
    );
    let counted = lock
        .metrics()
        .await?
        .sum("nodeward_drain_lock_drain_events_total", &[("reason", "CordonTaken")]);
    ensure!((counted - 1.0).abs() < 0.5, "counted {counted} times");
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}
