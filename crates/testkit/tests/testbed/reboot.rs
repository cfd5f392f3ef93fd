//! A reboot is what the API would show of one.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate, Start};
use nodeward_testkit::{ControlPlane, bulk, names, reboot};

fn boot_id(node: &Node) -> Option<String> {
    Some(node.status.as_ref()?.node_info.as_ref()?.boot_id.clone())
}

/// Restarts and the latest start of the pod's container.
fn container(pod: &Pod) -> Option<(i32, Timestamp)> {
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let started = container.state.as_ref()?.running.as_ref()?.started_at.as_ref()?;
    Some((container.restart_count, started.0))
}

#[tokio::test(flavor = "multi_thread")]
async fn reboot_changes_boot_id_and_restarts_pods() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let (ns, node) = (names::unique("reboot"), names::unique("node"));
    plane.namespace(&ns).await?;
    fleet::create(&client, [NodeSpec::worker(&node)]).await?;
    let template = PodTemplate::new()
        .on(&node)
        .start(Start::Ready(Duration::from_millis(500)));
    bulk::create(&client, [template.pod(&ns, "stays")?]).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &ns);
    let nodes: Api<Node> = Api::all(client.clone());
    let before = wait::until("the pod to be Ready", secs(60), || async {
        let pod = pods.get("stays").await?;
        ensure!(workload::is_ready(&pod), "not Ready");
        Ok(pod)
    })
    .await?;
    let boot_before = boot_id(&nodes.get(&node).await?);

    let (rebooted, away) = tokio::join!(
        // Away for so long that nobody misses it.
        reboot::reboot(&client, &node, secs(15)),
        wait::until("node and pod to be away", secs(60), || async {
            let (node, pod) = (nodes.get(&node).await?, pods.get("stays").await?);
            ensure!(
                fleet::ready_status(&node) == Some("False") && !workload::is_ready(&pod),
                "both are there"
            );
            ensure!(
                boot_id(&node) == boot_before,
                "the old boot ends before the new one begins"
            );
            Ok(())
        })
    );
    away?;
    let (node_after, after) = (nodes.get(&node).await?, pods.get("stays").await?);
    ensure!(boot_id(&node_after) == Some(rebooted?) && boot_id(&node_after) != boot_before);
    ensure!(fleet::is_ready(&node_after) && fleet::taints(&node_after).is_empty());
    ensure!(workload::is_ready(&after) && after.uid() == before.uid());
    let ((restarts, started), (restarts_before, started_before)) = (
        container(&after).context("after")?,
        container(&before).context("before")?,
    );
    ensure!(
        restarts == restarts_before + 1 && started > started_before,
        "{started} after {started_before}"
    );
    Ok(())
}
