//! A real node does what a kubelet, containerd and runc do. Each of these tests has a twin on simulated nodes.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};
use nodeward_testkit::real_nodes::{self, RealNode};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate};
use nodeward_testkit::{ControlPlane, bulk, names};

/// Prints what a node takes: `cargo xtask test -p nodeward-testkit --test testbed --only real_nodes::pod_runs -- --nocapture`.
#[tokio::test(flavor = "multi_thread")]
async fn pod_runs_on_a_real_node() -> Result<()> {
    if real_nodes::are_missing()? {
        return Ok(());
    }
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let began = std::time::Instant::now();
    let nodes = real_nodes::start(plane, 1).await?;
    let [node] = nodes.as_slice() else { unreachable!() };
    println!("Ready after {:?}, {} MiB", began.elapsed(), node.memory_mib());
    let ns = names::unique("real");
    plane.namespace(&ns).await?;
    let deployment = PodTemplate::new()
        .node_selector("kubernetes.io/hostname", node.name())
        .deployment(&ns, "app", 2)?;
    bulk::create_one(client.clone(), deployment).await?;
    let pods = workload::ready_pods(&client, &ns, "app", 2, secs(60)).await?;
    println!("two pods run after {:?}, {} MiB", began.elapsed(), node.memory_mib());
    Ok(())
}
