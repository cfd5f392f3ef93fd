//! From lost heartbeats to a node that is back.

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use nodeward_api::annotation::{REMEDIATION_NODE_NAME, REMEDIATION_NODE_UID, REMEDIATION_TEMPLATE_NAME};
use nodeward_api::label::{PART_OF, PART_OF_NODE_HEALTH_CHECK};
use nodeward_api::node_health_check::Phase;
use nodeward_testkit::fleet::NodeSpec;
use nodeward_testkit::remediator::{Behavior, Family};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{bulk, fleet};
use serde_json::json;

use crate::environment::{Environment, SOON};

#[tokio::test(flavor = "multi_thread")]
async fn lost_heartbeats_lead_to_one_reboot() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.add_check("main", json!({})).await?;
    env.until_at_rest(&check, 2).await?;
    let uid = env.nodes().get(&a).await?.uid().context("a uid")?;
    env.lose_heartbeats(&a).await?;

    let remediation = env.remediation(Family::SelfNode, &a).await?;
    let annotation = |key: &str| remediation.annotations().get(key).map(String::as_str);
    ensure!(annotation(REMEDIATION_NODE_NAME) == Some(&a), "{remediation:?}");
    ensure!(annotation(REMEDIATION_NODE_UID) == Some(&uid), "{remediation:?}");
    ensure!(
        annotation(REMEDIATION_TEMPLATE_NAME) == Some("reboot"),
        "{remediation:?}"
    );
    let part_of = remediation.labels().get(PART_OF).map(String::as_str);
    ensure!(part_of == Some(PART_OF_NODE_HEALTH_CHECK), "{remediation:?}");
    ensure!(
        remediation.data["spec"] == json!({ "strategy": "reboot" }),
        "{remediation:?}"
    );
    let [owner] = remediation.owner_references() else {
        anyhow::bail!("{:?}", remediation.owner_references());
    };
    let check_uid = env.checks().get(&check).await?.uid();
    ensure!(
        owner.kind == "NodeHealthCheck" && Some(&owner.uid) == check_uid.as_ref(),
        "{owner:?}"
    );
    ensure!(owner.controller != Some(true), "{owner:?}");

    let status = env
        .until_status(&check, "the remediation's uid", |status| {
            let remediations = status.unhealthy_nodes.iter().flat_map(|node| &node.remediations);
            remediations
                .into_iter()
                .any(|started| started.resource.uid == remediation.uid())
        })
        .await?;
    ensure!(status.phase == Some(Phase::Remediating), "{status:?}");
    ensure!(
        (status.healthy_nodes, status.observed_nodes) == (Some(1), Some(2)),
        "{status:?}"
    );
    ensure!(env.lease_holder(&a).await? == Some(format!("NodeHealthCheck-{check}")));
    wait::until("the remediation to be counted", SOON, || async {
        let metrics = env.shared_metrics().await?;
        let ongoing = metrics.sum("nodehealthcheck_ongoing_remediation", &[("name", &a)]);
        ensure!(ongoing >= 1.0, "nodehealthcheck_ongoing_remediation is {ongoing}");
        Ok(())
    })
    .await?;

    let _remediator = env.remediate(Family::SelfNode, Behavior::POWER_CYCLE);
    env.until_ready_is(&a, "True").await?;
    env.until_at_rest(&check, 2).await?;
    ensure!(
        env.created(Family::SelfNode)? == 1,
        "{} were created",
        env.created(Family::SelfNode)?
    );
    for reason in ["DetectedUnhealthy", "RemediationCreated", "RemediationRemoved"] {
        env.event(&check, reason).await?;
    }
    env.end([check]).await
}

/// A node that boots is Unknown, then not ready, then Ready: that its condition changes is no second failure.
#[tokio::test(flavor = "multi_thread")]
async fn changing_conditions_keep_the_remediation() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let condition = |status: &str, duration: &str| json!({ "type": "Ready", "status": status, "duration": duration });
    let steps = [Family::SelfNode, Family::FenceAgents].map(|family| (family, "reboot"));
    let mut chain = Vec::new();
    for (order, (family, name)) in steps.into_iter().enumerate() {
        let template = env.add_template(family, name).await?;
        chain.push(json!({ "remediationTemplate": template, "order": order, "timeout": "5m" }));
    }
    let changes = json!({
        "unhealthyConditions": [condition("Unknown", "1s"), condition("False", "1h")],
        "remediationTemplate": null,
        "escalatingRemediations": chain,
    });
    let check = env.add_check("main", changes).await?;
    env.lose_heartbeats(&a).await?;
    let before = env.remediation(Family::SelfNode, &a).await?;
    let _remediator = env.remediate(Family::SelfNode, Behavior::slow_boot(secs(20)));
    env.until_ready_is(&a, "False").await?;
    // The remediator says Succeeded only when the node is up, so nothing else keeps the remediation.
    wait::throughout("the same remediation", secs(3), || async {
        let now = env.remediation(Family::SelfNode, &a).await?;
        ensure!(
            now.uid() == before.uid() && now.metadata.deletion_timestamp.is_none(),
            "{now:?}"
        );
        Ok(())
    })
    .await?;
    env.until_ready_is(&a, "True").await?;
    env.until_at_rest(&check, 2).await?;
    let created = (env.created(Family::SelfNode)?, env.created(Family::FenceAgents)?);
    ensure!(created == (1, 0), "{created:?}");
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_conditions_are_remediated_after_their_duration() -> Result<()> {
    let env = Environment::new().await?;
    let [a, b] = env.add_nodes(["a", "b"]).await?;
    let report = |node: String| {
        let nodes = env.nodes();
        async move {
            let condition = json!([{ "type": "AgentHealthy", "status": "True", "reason": "Test", "message": "" }]);
            let patch = Patch::Strategic(json!({ "status": { "conditions": condition } }));
            nodes.patch_status(&node, &PatchParams::default(), &patch).await
        }
    };
    report(b.clone()).await?;
    let missing = json!([{ "type": "AgentHealthy", "status": "Missing", "duration": "2s" }]);
    let check = env.add_check("main", json!({ "unhealthyConditions": missing })).await?;
    env.remediation(Family::SelfNode, &a).await?;
    ensure!(env.remediations_of(Family::SelfNode, &b).await?.is_empty());
    report(a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

/// A node that has not yet reported is neither unhealthy nor healthy.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_without_ready_condition_are_not_healthy() -> Result<()> {
    let env = Environment::new().await?;
    let [_a] = env.add_nodes(["a"]).await?;
    let check = env.add_check("main", json!({})).await?;
    env.until_at_rest(&check, 1).await?;
    let silent: NodeSpec = env.worker("new").kubelet("nobody");
    let new = silent.name().to_owned();
    bulk::create(&env.client, [silent.build()?]).await?;
    env.until_counted(&check, 1, 2).await?;
    fleet::start_kubelet(&env.client, &new).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}
