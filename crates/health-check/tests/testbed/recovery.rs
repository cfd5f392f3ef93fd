//! Nodes that are healthy again.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::ResourceExt;
use nodeward_api::annotation::{HEALTHY_DELAY, MANUALLY_CONFIRMED_HEALTHY};
use nodeward_testkit::fleet;
use nodeward_testkit::remediator::{Behavior, Family};
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{Environment, SOON};

async fn is_delayed(env: &Environment, check: &str, node: &str) -> Result<()> {
    wait::until("the delay to be written down", SOON, || async {
        let remediation = env.remediation(Family::SelfNode, node).await?;
        ensure!(remediation.annotations().contains_key(HEALTHY_DELAY), "not annotated");
        ensure!(remediation.metadata.deletion_timestamp.is_none(), "it is being deleted");
        let entry = env.entry(check, node).await?;
        ensure!(
            entry.as_ref().is_some_and(|entry| entry.healthy_delayed == Some(true)),
            "{entry:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn healthy_delays_begin_anew_after_a_relapse() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.add_check("main", json!({ "healthyDelay": "30s" })).await?;
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    env.recover(&a).await?;
    is_delayed(&env, &check, &a).await?;
    env.until_counted(&check, 1, 2).await?;
    env.not_ready(&a).await?;
    wait::until("the delay to end", SOON, || async {
        let remediation = env.remediation(Family::SelfNode, &a).await?;
        ensure!(
            !remediation.annotations().contains_key(HEALTHY_DELAY),
            "still annotated"
        );
        ensure!(remediation.uid() == first.uid(), "another one");
        Ok(())
    })
    .await?;
    env.recover(&a).await?;
    is_delayed(&env, &check, &a).await?;
    env.until_at_rest(&check, 2).await?;
    ensure!(env.created(Family::SelfNode)? == 1);
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn confirmed_nodes_skip_their_delay() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    // Negative: until a person says so.
    let check = env.add_check("main", json!({ "healthyDelay": "-1s" })).await?;
    env.lose_heartbeats(&a).await?;
    env.remediation(Family::SelfNode, &a).await?;
    env.recover(&a).await?;
    is_delayed(&env, &check, &a).await?;
    wait::throughout("the remediation", secs(3), || is_delayed(&env, &check, &a)).await?;
    fleet::annotate(&env.client, &a, MANUALLY_CONFIRMED_HEALTHY, Some("")).await?;
    env.until_at_rest(&check, 2).await?;
    wait::until("the confirmation to be removed", SOON, || async {
        let node = env.nodes().get(&a).await?;
        ensure!(
            !node.annotations().contains_key(MANUALLY_CONFIRMED_HEALTHY),
            "still there"
        );
        Ok(())
    })
    .await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_stay_unhealthy_until_remediations_are_gone() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.add_check("main", json!({})).await?;
    let remediator = env.remediate(
        Family::SelfNode,
        Behavior::POWER_CYCLE.after(Duration::from_secs(1)).keeps_finalizer(),
    );
    env.lose_heartbeats_without_waiting(&a).await?;
    env.remediation(Family::SelfNode, &a).await?;
    env.until_ready_is(&a, "True").await?;
    wait::until("the remediation to be deleted", SOON, || async {
        let remediation = env.remediation(Family::SelfNode, &a).await?;
        ensure!(remediation.metadata.deletion_timestamp.is_some(), "it is there");
        Ok(())
    })
    .await?;
    wait::until("its lease to be released", SOON, || async {
        ensure!(env.lease_holder(&a).await?.is_none(), "it is held");
        Ok(())
    })
    .await?;
    wait::throughout("an unhealthy node", secs(3), || async {
        env.until_counted(&check, 1, 2).await
    })
    .await?;
    remediator.release();
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}
