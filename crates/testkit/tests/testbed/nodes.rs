//! Nodes behave as a kubelet and the real node-lifecycle controller make them.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::DeleteParams;
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

/// kwok must not take it for the old one.
#[tokio::test(flavor = "multi_thread")]
async fn replaced_node_has_a_lease_of_its_own() -> Result<()> {
    let (client, nodes, name) = ready_node().await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    wait::until("the first lease", secs(60), || async { Ok(leases.get(&name).await?) }).await?;
    nodes.delete(&name, &DeleteParams::default()).await?;
    fleet::create(&client, [NodeSpec::worker(&name)]).await?;
    let node = nodes.get(&name).await?;
    wait::until("the second lease", secs(60), || async {
        let lease = leases.get(&name).await?;
        let owners = lease.metadata.owner_references.unwrap_or_default();
        ensure!(
            owners
                .iter()
                .any(|owner| Some(&owner.uid) == node.metadata.uid.as_ref()),
            "{owners:?}"
        );
        Ok(())
    })
    .await
}

async fn tainted_not_ready(nodes: &Api<Node>, name: &str, wanted: bool) -> Result<()> {
    wait::until(
        format!("the not-ready taint of {name} to be {wanted}"),
        secs(60),
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
