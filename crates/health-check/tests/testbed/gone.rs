//! Nodes that are deleted, made again, or selected no longer.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::DeleteParams;
use nodeward_testkit::fleet;
use nodeward_testkit::remediator::{self, Behavior, Family};
use nodeward_testkit::unless_refused;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{ENVIRONMENT, Environment, SOON};

#[tokio::test(flavor = "multi_thread")]
async fn remediations_of_deleted_nodes_are_removed() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.add_check("main", json!({})).await?;
    env.lose_heartbeats(&a).await?;
    env.remediation(Family::SelfNode, &a).await?;
    env.nodes().delete(&a, &DeleteParams::default()).await?;
    env.until_at_rest(&check, 1).await?;
    // What it observes may be edited again.
    env.change_check(
        &check,
        json!({ "selector": { "matchLabels": { ENVIRONMENT: env.name, "other": "" } } }),
    )
    .await?;
    env.until_counted(&check, 0, 0).await?;
    env.end([check]).await
}

/// Both gone at once: what the status says of them goes, too.
#[tokio::test(flavor = "multi_thread")]
async fn entries_go_with_node_and_remediation() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.add_check("main", json!({})).await?;
    env.lose_heartbeats(&a).await?;
    let remediation = env.remediation(Family::SelfNode, &a).await?;
    let remediations = env.remediations(Family::SelfNode);
    let now = DeleteParams::default();
    let (nodes, name) = (env.nodes(), remediation.name_any());
    let (node, remediation) = tokio::join!(nodes.delete(&a, &now), remediations.delete(&name, &now));
    node?;
    // The operator may have been faster.
    unless_refused(remediation, &[404])?;
    env.until_at_rest(&check, 1).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_made_again_begin_without_remediation() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.add_check("main", json!({})).await?;
    env.lose_heartbeats(&a).await?;
    let first = env.remediation(Family::SelfNode, &a).await?;
    env.nodes().delete(&a, &DeleteParams::default()).await?;
    env.add_nodes(["a"]).await?;
    env.until_at_rest(&check, 2).await?;
    env.lose_heartbeats(&a).await?;
    let second = env.remediation(Family::SelfNode, &a).await?;
    ensure!(
        first.name_any() != second.name_any(),
        "the name of another node's remediation"
    );
    env.recover(&a).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn expected_node_deletions_keep_their_remediation() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b, _c] = env.add_nodes(["a", "b", "c"]).await?;
    let family = Family::MachineDeletion;
    let template = env.add_template(family, "delete").await?;
    let changes = json!({ "remediationTemplate": template, "maxUnhealthy": null, "minHealthy": 1 });
    let check = env.add_check("main", changes).await?;
    let _remediator = env.remediate(family, Behavior::DELETE_NODE);
    env.lose_heartbeats(&a).await?;
    let remediation = env.remediation(family, &a).await?;
    wait::until("the node to be deleted", SOON, || async {
        ensure!(env.nodes().get_metadata_opt(&a).await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    wait::throughout("the remediation", secs(4), || async {
        let now = env.remediations(family).get(&remediation.name_any()).await?;
        ensure!(now.metadata.deletion_timestamp.is_none(), "it is being deleted");
        Ok(())
    })
    .await?;
    let done = [("PermanentNodeDeletionExpected", "True"), ("Succeeded", "True")];
    remediator::set_conditions(&env.remediations(family), &remediation.name_any(), &done).await?;
    env.until_at_rest(&check, 2).await?;
    env.end([check]).await
}

/// Not an orphan: it is looked after until the node is healthy.
#[tokio::test(flavor = "multi_thread")]
async fn relabelled_nodes_keep_their_remediation() -> Result<()> {
    let env = Environment::new().await?;
    let [a, _b] = env.add_nodes(["a", "b"]).await?;
    let check = env.add_check("main", json!({})).await?;
    env.lose_heartbeats(&a).await?;
    let before = env.remediation(Family::SelfNode, &a).await?;
    fleet::label(&env.client, &a, ENVIRONMENT, None).await?;
    env.until_counted(&check, 1, 1).await?;
    wait::throughout("the remediation", secs(4), || async {
        let now = env.remediation(Family::SelfNode, &a).await?;
        ensure!(
            now.uid() == before.uid() && now.metadata.deletion_timestamp.is_none(),
            "{now:?}"
        );
        Ok(())
    })
    .await?;
    env.recover(&a).await?;
    env.until_at_rest(&check, 1).await?;
    env.end([check]).await
}
