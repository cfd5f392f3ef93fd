//! A node with a real kubelet, containerd and runc. Skipped with a line where it cannot run.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use nodeward_testkit::bulk;
use nodeward_testkit::real_nodes;
use nodeward_testkit::remediator::Family;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate};
use serde_json::json;

use crate::environment::Environment;

/// Its machine dies, and is switched on again for its remediation; then it stands still for a while, and comes back by itself.
#[tokio::test(flavor = "multi_thread")]
async fn real_node_has_one_remediation_for_each_outage() -> Result<()> {
    if real_nodes::are_missing()? {
        return Ok(());
    }
    let env = Environment::new().await?;
    let [_healthy] = env.add_nodes(["b"]).await?;
    let mut node = real_nodes::start(env.plane, 1).await?.pop().context("a node")?;
    let name = node.name().to_owned();
    let labels = Patch::Merge(json!({ "metadata": { "labels": env.labels() } }));
    env.nodes().patch(&name, &PatchParams::default(), &labels).await?;
    let soon = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "tolerationSeconds": 1}]);
    let member = PodTemplate::new()
        .node_selector("kubernetes.io/hostname", &name)
        .spec("tolerations", soon);
    bulk::create(&env.client, [member.stateful_set(&env.name, "db", 1)?]).await?;
    let before = workload::ready_pods(&env.client, &env.name, "db", 1, secs(60))
        .await?
        .remove(0);
    let check = env.add_check("main", json!({})).await?;
    env.until_at_rest(&check, 2).await?;

    node.power_off()?;
    env.until_ready_is(&name, "Unknown").await?;
    env.remediation(Family::SelfNode, &name).await?;
    let pods: Api<Pod> = Api::namespaced(env.client.clone(), &env.name);
    wait::until("its pod to be evicted", secs(60), || async {
        let pod = pods.get(&before.name_any()).await?;
        ensure!(pod.metadata.deletion_timestamp.is_some(), "not yet");
        Ok(())
    })
    .await?;
    node.power_on().await?;
    env.until_at_rest(&check, 2).await?;
    let after = workload::ready_pods(&env.client, &env.name, "db", 1, secs(90))
        .await?
        .remove(0);
    ensure!(after.uid() != before.uid(), "the pod of the dead node runs on");

    node.freeze()?;
    env.until_ready_is(&name, "Unknown").await?;
    env.remediation(Family::SelfNode, &name).await?;
    node.thaw()?;
    env.until_at_rest(&check, 2).await?;
    let created = env.created(Family::SelfNode)?;
    ensure!(created == 2, "{created} remediations");
    drop(node);
    env.end([check]).await
}
