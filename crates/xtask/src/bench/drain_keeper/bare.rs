//! The first requests of deadlines that coincide, without drain-keeper: as fast as this API server takes them here.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;

use crate::bench::figures::Distribution;
use crate::bench::fleet::pods::{self, Part, PartPod};
use crate::bench::fleet::size::{self, Size, node_name};

/// As many as drain-keeper sends at a time.
const AT_ONCE: usize = 24;

/// As after the first deadline of each draining node: one write of a pod, and two looks at the node. From the first request on
/// until each is sent, in milliseconds.
pub async fn measure(client: &Client, size: Size) -> Result<Distribution> {
    let strays = size::draining().flat_map(|node| pods::parts(node, size));
    let strays = strays.filter(|pod| pod.part == Part::Stray);
    let requests: Vec<(PartPod, bool)> = strays
        .flat_map(|pod| [(pod.clone(), true), (pod.clone(), false), (pod, false)])
        .collect();
    let began = Instant::now();
    let send = |(pod, writes): (PartPod, bool)| async move {
        let sent = began.elapsed().as_secs_f64() * 1000.0;
        if writes {
            let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
            let patch = Patch::Merge(json!({ "metadata": { "annotations": { "example.com/touched": "true" } } }));
            let patched = pods.patch_metadata(&pod.name, &PatchParams::default(), &patch).await;
            patched.with_context(|| format!("patch {}", pod.name))?;
        } else {
            let nodes: Api<Node> = Api::all(client.clone());
            nodes.get(&node_name(pod.node)).await?;
        }
        anyhow::Ok(sent)
    };
    let sent: Vec<f64> = stream::iter(requests)
        .map(send)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(Distribution::of(&sent))
}
