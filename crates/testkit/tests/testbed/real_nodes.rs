//! A real node does what a kubelet, containerd and runc do. Each of these tests has a twin on simulated nodes.

mod cleanup;
mod twins;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use nodeward_testkit::real_nodes::{self, RealNode};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate};
use nodeward_testkit::{ControlPlane, bulk, names};

/// A pod on the node.
fn app(node: &RealNode) -> PodTemplate {
    PodTemplate::new().on(node.name()).grace(30)
}

/// Creates a pod, and waits until it is Ready.
async fn ready(client: &Client, pod: &Pod) -> Result<Pod> {
    bulk::create_one(client.clone(), pod.clone()).await?;
    ready_again(client, pod).await
}

async fn ready_again(client: &Client, pod: &Pod) -> Result<Pod> {
    let (name, namespace) = (pod.name_any(), pod.namespace().context("a namespace")?);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    wait::until(format!("{name} to be Ready"), secs(60), || async {
        let pod = pods.get(&name).await?;
        ensure!(workload::is_ready(&pod), "{:?}", pod.status);
        Ok(pod)
    })
    .await
}

/// Prints what nodes take:
/// `cargo xtask test -p nodeward-testkit --test testbed --only pods_run_on_three_real_nodes -- --nocapture`.
#[tokio::test(flavor = "multi_thread")]
async fn pods_run_on_three_real_nodes() -> Result<()> {
    if real_nodes::are_missing()? {
        return Ok(());
    }
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let ns = names::unique("real");
    plane.namespace(&ns).await?;
    let began = Instant::now();
    let nodes = real_nodes::start(plane, 3).await?;
    let memory = || nodes.iter().map(RealNode::memory_mib).collect::<Vec<_>>();
    println!(
        "three nodes are Ready after {:.1?}, with {:?} MiB",
        began.elapsed(),
        memory()
    );
    for node in &nodes {
        let here = PodTemplate::new().node_selector("kubernetes.io/hostname", node.name());
        bulk::create_one(client.clone(), here.deployment(&ns, node.name(), 2)?).await?;
    }
    for node in &nodes {
        workload::ready_pods(&client, &ns, node.name(), 2, secs(60)).await?;
    }
    println!(
        "two pods run on each after {:.1?}, with {:?} MiB",
        began.elapsed(),
        memory()
    );
    Ok(())
}
