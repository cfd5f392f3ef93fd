//! How many nodes may be unhealthy before nothing is started any more.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use kube::ResourceExt;
use nodeward_api::label::EXCLUDE_FROM_REMEDIATION;
use nodeward_api::node_health_check::NodeHealthCheckStatus;
use nodeward_testkit::fleet;
use nodeward_testkit::remediator::Family;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{Environment, SOON, WHILE};

#[tokio::test(flavor = "multi_thread")]
async fn one_more_than_max_unhealthy_stops_remediation() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, c, _d] = env.add_nodes(["a", "b", "c", "d"]).await?;
    let check = env.add_check("main", json!({ "maxUnhealthy": 2 })).await?;
    for node in [&a, &b] {
        env.lose_heartbeats(node).await?;
        env.remediation(Family::SelfNode, node).await?;
    }
    env.not_ready(&c).await?;
    env.until_counted(&check, 1, 4).await?;
    env.gets_none(Family::SelfNode, &c).await?;
    env.event(&check, "RemediationSkipped").await?;
    wait::until("its entry without a remediation", SOON, || async {
        let entry = env.entry(&check, &c).await?;
        ensure!(
            entry.as_ref().is_some_and(|entry| entry.remediations.is_empty()),
            "{entry:?}"
        );
        Ok(())
    })
    .await?;
    // One healthy node more, and there is room again.
    env.recover(&a).await?;
    env.remediation(Family::SelfNode, &c).await?;
    for node in [&b, &c] {
        env.recover(node).await?;
    }
    env.until_at_rest(&check, 4).await?;
    env.end([check]).await
}

/// Nodes that are not yet unhealthy for long enough count: half a cluster is not fenced node by node.
#[tokio::test(flavor = "multi_thread")]
async fn mass_failures_are_refused_at_first_expiry() -> Result<()> {
    let env = Environment::new().await?;
    let nodes = env.add_nodes(["a", "b", "c", "d"]).await?;
    // Longer than it takes until all three are seen to be silent.
    let lost = json!([{ "type": "Ready", "status": "Unknown", "duration": "20s" }]);
    let changes = json!({ "maxUnhealthy": "49%", "unhealthyConditions": lost });
    let check = env.add_check("main", changes).await?;
    env.until_at_rest(&check, 4).await?;
    for node in &nodes[..3] {
        fleet::stop_kubelet(&env.client, node).await?;
    }
    env.until_counted(&check, 1, 4).await?;
    env.event(&check, "RemediationSkipped").await?;
    wait::throughout("no remediation", WHILE, || async {
        let created = env.created(Family::SelfNode)?;
        ensure!(created == 0, "{created} were created");
        Ok(())
    })
    .await?;
    for node in &nodes[..3] {
        env.recover(node).await?;
    }
    env.until_at_rest(&check, 4).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn escalation_waits_below_min_healthy() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, _c] = env.add_nodes(["a", "b", "c"]).await?;
    let mut chain = Vec::new();
    for (order, family) in [Family::SelfNode, Family::FenceAgents].into_iter().enumerate() {
        let template = env.add_template(family, "reboot").await?;
        chain.push(json!({ "remediationTemplate": template, "order": order, "timeout": "5m" }));
    }
    let changes = json!({
        "minHealthy": 2, "maxUnhealthy": null, "remediationTemplate": null, "escalatingRemediations": chain,
    });
    let check = env.add_check("main", changes).await?;
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    env.not_ready(&b).await?;
    env.until_counted(&check, 1, 3).await?;
    env.say_failed(Family::SelfNode, &first).await?;
    env.gets_none(Family::FenceAgents, &a).await?;
    env.gets_none(Family::SelfNode, &b).await?;
    env.recover(&b).await?;
    env.remediation(Family::FenceAgents, &a).await?;
    env.recover(&a).await?;
    env.until_at_rest(&check, 3).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn storms_end_after_their_cooldown_each_time() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, c] = env.add_nodes(["a", "b", "c"]).await?;
    let changes = json!({ "maxUnhealthy": 1, "stormCooldownDuration": "6s" });
    let check = env.add_check("main", changes).await?;
    env.until_at_rest(&check, 3).await?;
    let is = |kind: &'static str, wanted: &'static str| {
        move |status: &NodeHealthCheckStatus| {
            let mut conditions = status.conditions.iter();
            conditions.any(|condition| condition.type_ == kind && condition.status == wanted)
        }
    };
    for _ in 0..2 {
        env.lose_heartbeats(&a).await?;
        env.remediation(Family::SelfNode, &a).await?;
        env.not_ready(&b).await?;
        env.until_status(&check, "a storm", is("StormActive", "True")).await?;
        let before = Timestamp::now();
        env.recover(&a).await?;
        let second = env.remediation(Family::SelfNode, &b).await?;
        // There was room for it, but not yet. Times are whole seconds, here and in the condition.
        let waited = second.creation_timestamp().context("no time")?.0.duration_since(before);
        ensure!(waited.as_secs() >= 4, "{waited:#} after the storm");
        env.event(&check, "StormRecoveryCooldownStarted").await?;
        env.until_status(&check, "no cooldown", is("StormCooldownActive", "False"))
            .await?;
        env.until_status(&check, "no storm", is("StormActive", "False")).await?;
        env.recover(&b).await?;
        env.until_at_rest(&check, 3).await?;
    }
    // A storm that is over with all nodes healthy at once ends, too.
    for node in [&a, &b, &c] {
        env.not_ready(node).await?;
    }
    env.until_status(&check, "a storm", is("StormActive", "True")).await?;
    for node in [&a, &b, &c] {
        env.recover(node).await?;
    }
    env.until_status(&check, "no storm", is("StormActive", "False")).await?;
    env.until_at_rest(&check, 3).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_remediations_are_capped() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, _c] = env.add_nodes(["a", "b", "c"]).await?;
    let check = env.add_check("main", json!({ "maxConcurrentRemediations": 1 })).await?;
    env.lose_heartbeats(&a).await?;
    env.remediation(Family::SelfNode, &a).await?;
    env.not_ready(&b).await?;
    env.until_counted(&check, 1, 3).await?;
    env.gets_none(Family::SelfNode, &b).await?;
    env.recover(&a).await?;
    env.remediation(Family::SelfNode, &b).await?;
    env.recover(&b).await?;
    env.until_at_rest(&check, 3).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn thresholds_above_the_node_count_start_nothing() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.add_check("main", json!({ "maxUnhealthy": 7 })).await?;
    env.not_ready(&a).await?;
    env.until_counted(&check, 1, 2).await?;
    env.gets_none(Family::SelfNode, &a).await?;
    env.until_status(&check, "the reason", |status| status.reason.contains("maxUnhealthy"))
        .await?;
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_without_nodes_count_none() -> Result<()> {
    let env = Environment::new().await?;
    let check = env.add_check("main", json!({})).await?;
    env.until_counted(&check, 0, 0).await?;
    wait::throughout("nothing to do", secs(1), || async {
        ensure!(env.created(Family::SelfNode)? == 0);
        Ok(())
    })
    .await?;
    env.end([check]).await
}

/// Five of six nodes work, though three of them are kept out of remediation.
#[tokio::test(flavor = "multi_thread")]
async fn excluded_nodes_that_work_count_as_healthy() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b, c, d, _e, _f] = env.add_nodes(["a", "b", "c", "d", "e", "f"]).await?;
    for node in [&b, &c, &d] {
        fleet::label(&env.client, node, EXCLUDE_FROM_REMEDIATION, Some("true")).await?;
    }
    let check = env.add_check("main", json!({ "maxUnhealthy": "49%" })).await?;
    env.lose_heartbeats(&a).await?;
    env.remediation(Family::SelfNode, &a).await?;
    env.until_counted(&check, 5, 6).await?;
    env.recover(&a).await?;
    env.until_at_rest(&check, 6).await?;
    env.end([check]).await
}
