//! What is written straight into etcd is an object like any other.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams};
use nodeward_testkit::store::{self, Stored};
use nodeward_testkit::{ControlPlane, names, wait};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn object_written_to_etcd_behaves_as_any_other() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let (ns, node) = (names::unique("stored"), names::unique("node"));
    plane.namespace(&ns).await?;
    let metadata = |name: &str| json!({ "name": name, "uid": format!("uid-of-{name}"), "creationTimestamp": "2026-01-01T00:00:00Z" });
    let pods = (0..300).map(|n| {
        let name = format!("pod-{n}");
        let mut metadata = metadata(&name);
        metadata["namespace"] = json!(ns);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "registry.example/app:1" }] },
            "status": { "phase": "Running" },
        });
        Stored::namespaced("pods", &ns, &name, pod)
    });
    let stored = Stored::cluster(
        "minions",
        &node,
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata(&node), "spec": {}, "status": {} }),
    );
    let mut told = 0;
    let written = store::put(plane, pods.chain([stored]), |count| told = count).await?;
    ensure!((written, told) == (301, 301), "{written}, {told}");

    let pods: Api<Pod> = Api::namespaced(client.clone(), &ns);
    let nodes: Api<Node> = Api::all(client);
    wait::until("the watch cache to have them", wait::secs(60), || async {
        let listed = pods.list(&ListParams::default()).await?.items.len();
        ensure!(listed == 300, "{listed}");
        Ok(nodes.get(&node).await?)
    })
    .await?;
    let pod = pods.get("pod-7").await?;
    let policy = pod.spec.and_then(|spec| spec.restart_policy);
    ensure!(policy.as_deref() == Some("Always"), "{policy:?}");
    nodes.delete(&node, &DeleteParams::default()).await?;
    pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default())
        .await?;
    Ok(())
}
