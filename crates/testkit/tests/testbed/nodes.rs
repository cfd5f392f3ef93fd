//! Nodes behave as a kubelet and the real node-lifecycle controller make them.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, names};

async fn ready_node() -> Result<(Client, Api<Node>, String)> {
    let client = ControlPlane::shared().await.client().await?;
    let name = names::unique("node");
    fleet::create(&client, [NodeSpec::worker(&name)]).await?;
    let nodes = Api::all(client.clone());
    Ok((client, nodes, name))
}

#[tokio::test(flavor = "multi_thread")]
async fn backdated_cordon_keeps_its_time() -> Result<()> {
    let (client, nodes, name) = ready_node().await?;
    let since: Timestamp = "2024-02-29T12:00:00Z".parse()?;
    fleet::cordon_since(&client, &name, since).await?;
    // Going down and up makes the controller write the node's taints.
    fleet::set_ready(&client, &name, false).await?;
    tainted_not_ready(&nodes, &name, true).await?;
    fleet::set_ready(&client, &name, true).await?;
    tainted_not_ready(&nodes, &name, false).await?;
    let node = nodes.get(&name).await?;
    ensure!(fleet::taints(&node).len() == 1, "{:?}", fleet::taints(&node));
    ensure!(
        fleet::cordon_taint(&node)
            .and_then(|taint| taint.time_added.clone())
            .is_some_and(|time| time.0 == since),
        "{:?}",
        fleet::taints(&node)
    );
    Ok(())
}

async fn tainted_not_ready(nodes: &Api<Node>, name: &str, wanted: bool) -> Result<()> {
    wait::until(
        format!("the not-ready taint of {name} to be {wanted}"),
        secs(20),
        || async {
            let node = nodes.get(name).await?;
            let tainted = fleet::taints(&node)
                .iter()
                .any(|taint| taint.key == "node.kubernetes.io/not-ready");
            ensure!(tainted == wanted, "{:?}", fleet::taints(&node));
            Ok(())
        },
    )
    .await
}
