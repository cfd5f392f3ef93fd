//! The remediator does to nodes what one would, and leaves their Ready to the kubelet and the node-lifecycle controller.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, DynamicObject};
use kube::{Client, ResourceExt};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::remediator::{Behavior, Family, Remediator};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::PodTemplate;
use nodeward_testkit::{ControlPlane, bulk, names};
use serde_json::json;

/// A namespace with CRs of one kind, each for the node of its name.
struct Remediations {
    client: Client,
    namespace: String,
    family: Family,
}

impl Remediations {
    async fn new(family: Family) -> Result<Self> {
        let plane = ControlPlane::shared().await;
        let (client, namespace) = (plane.client().await?, names::unique("remediator"));
        plane.namespace(&namespace).await?;
        family.install(&client).await?;
        Ok(Self {
            client,
            namespace,
            family,
        })
    }

    fn api(&self) -> Api<DynamicObject> {
        self.family.remediation().api(&self.client, Some(&self.namespace))
    }

    async fn create(&self, node: &str) -> Result<()> {
        let body = json!({ "spec": {} });
        let kind = self.family.remediation();
        kind.put(&self.client, Some(&self.namespace), node, body).await?;
        Ok(())
    }

    async fn condition_is(&self, node: &str, condition: (&str, &str)) -> Result<()> {
        let what = format!("{} of {node} to be {}", condition.0, condition.1);
        wait::until(what, secs(60), || async {
            let remediation = self.api().get(node).await?;
            let mut conditions = remediation.data["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten();
            let is_so = conditions.any(|found| found["type"] == condition.0 && found["status"] == condition.1);
            ensure!(is_so, "{}", remediation.data);
            Ok(())
        })
        .await
    }
}

async fn ready_becomes(nodes: &Api<Node>, node: &str, status: &str) -> Result<Node> {
    wait::until(format!("Ready of {node} to be {status}"), secs(60), || async {
        let node = nodes.get(node).await?;
        ensure!(
            fleet::ready_status(&node) == Some(status),
            "{:?}",
            fleet::ready_status(&node)
        );
        Ok(node)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn power_cycled_nodes_boot_without_their_pods() -> Result<()> {
    let site = Remediations::new(Family::SelfNode).await?;
    let node = names::unique("node");
    let made = fleet::create(&site.client, [NodeSpec::worker(&node)]).await?;
    bulk::create(
        &site.client,
        [PodTemplate::new().on(&node).pod(&site.namespace, "web")?],
    )
    .await?;
    let nodes: Api<Node> = Api::all(site.client.clone());
    fleet::stop_kubelet(&site.client, &node).await?;
    ready_becomes(&nodes, &node, "Unknown").await?;

    // Not Ready for so long that nobody misses it.
    let slow = |_: &str| Behavior::slow_boot(Duration::from_secs(15));
    let _remediator = Remediator::start(&site.client, site.family, &site.namespace, slow);
    site.create(&node).await?;
    ready_becomes(&nodes, &node, "False").await?;
    let back = ready_becomes(&nodes, &node, "True").await?;
    let boot_id = |node: &Node| {
        node.status
            .as_ref()?
            .node_info
            .as_ref()
            .map(|info| info.boot_id.clone())
    };
    ensure!(boot_id(&back) != boot_id(&made[0]), "the same boot");
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), &site.namespace);
    ensure!(pods.get_opt("web").await?.is_none(), "the pod is still there");
    site.condition_is(&node, ("Succeeded", "True")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_deleted_and_said_to_be() -> Result<()> {
    let site = Remediations::new(Family::MachineDeletion).await?;
    let node = names::unique("node");
    fleet::create(&site.client, [NodeSpec::worker(&node)]).await?;
    let deletes = |_: &str| Behavior::DELETE_NODE;
    let _remediator = Remediator::start(&site.client, site.family, &site.namespace, deletes);
    site.create(&node).await?;
    site.condition_is(&node, ("PermanentNodeDeletionExpected", "True"))
        .await?;
    let nodes: Api<Node> = Api::all(site.client.clone());
    wait::until("the node to be gone", secs(60), || async {
        ensure!(nodes.get_metadata_opt(&node).await?.is_none(), "still there");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_remediations_keep_their_finalizer_until_released() -> Result<()> {
    let site = Remediations::new(Family::FenceAgents).await?;
    let fails = |_: &str| Behavior::FAILURE.keeps_finalizer();
    let remediator = Remediator::start(&site.client, site.family, &site.namespace, fails);
    site.create("any-node").await?;
    site.condition_is("any-node", ("Succeeded", "False")).await?;
    site.api().delete("any-node", &DeleteParams::default()).await?;
    let kept = site.api().get("any-node").await.context("gone at once")?;
    ensure!(kept.finalizers().len() == 1, "{:?}", kept.finalizers());
    remediator.release();
    wait::until("the CR to be gone", secs(60), || async {
        ensure!(site.api().get_metadata_opt("any-node").await?.is_none(), "still there");
        Ok(())
    })
    .await
}
