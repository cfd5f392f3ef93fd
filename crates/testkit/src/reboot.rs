//! A reboot as the API sees it: the node is not Ready for a while, comes back with another `bootID`, and the containers
//! of the pods that stayed on it start again.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::{bulk, fleet, unless_refused, wait, workload};

/// How long the node-lifecycle controller may take to notice that the node is back.
const NOTICED_WITHIN: Duration = Duration::from_mins(1);

/// Reboots the node: it is away for `away`. Gives its new `bootID` when it is Ready, the not-ready taint is gone and the
/// pods that stayed on it, and were Ready before, are Ready again (each after its own time to get Ready).
///
/// # Errors
/// When the node is missing, or the node-lifecycle controller keeps its taint.
pub async fn reboot(client: &Client, node: &str, away: Duration) -> Result<String> {
    let stayed = running(client, node).await?;
    fleet::set_ready(client, node, false).await?;
    let away_now = json!({ "conditions": ready_conditions(false, "NodeNotReady") });
    set_pods(client, &stayed, |_| away_now.clone()).await?;
    tokio::time::sleep(away).await;
    let boot_id = fleet::reboot(client, node).await?;
    // Who was deleted meanwhile is gone now: nobody starts it again.
    let mut stays = running(client, node).await?;
    stays.retain(|pod| stayed.iter().any(|before| before.uid() == pod.uid()));
    fleet::set_ready(client, node, true).await?;
    let started = Timestamp::now();
    tokio::try_join!(untainted(client, node), restart(client, &stays, started))?;
    Ok(boot_id)
}

/// Starts the containers of the node's pods anew, and nothing else: the kubelet of a node that was rebooted within the
/// node monitor's grace, and gave its new `bootID` before ([`fleet::reboot`]), reports its pods again. The pods were never
/// shown as not Ready.
///
/// # Errors
/// When a status cannot be written.
pub async fn restart_pods(client: &Client, node: &str) -> Result<()> {
    let pods = running(client, node).await?;
    let started = Timestamp::now();
    set_pods(client, &pods, |pod| restarted(pod, started, true)).await
}

/// Ready pods of the node that nobody has deleted.
async fn running(client: &Client, node: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::all(client.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let mut pods = pods.list(&on_node).await?.items;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none() && workload::phase(pod) == "Running");
    Ok(pods)
}

async fn restart(client: &Client, pods: &[Pod], started: Timestamp) -> Result<()> {
    set_pods(client, pods, |pod| restarted(pod, started, false)).await?;
    // Their times to get Ready run side by side.
    let ready = pods.iter().map(|pod| async move {
        tokio::time::sleep(time_to_ready(pod)).await;
        set_pod(client, pod, &restarted(pod, started, true)).await
    });
    futures::future::try_join_all(ready).await.map(drop)
}

/// The time that the pod's annotation gives it, as `1500ms`.
fn time_to_ready(pod: &Pod) -> Duration {
    let given = pod.annotations().get(workload::READY_AFTER);
    let millis = given.and_then(|text| text.strip_suffix("ms")?.parse().ok());
    Duration::from_millis(millis.unwrap_or_default())
}

async fn set_pods(client: &Client, pods: &[Pod], status: impl Fn(&Pod) -> Value) -> Result<()> {
    let patches: Vec<(Pod, Value)> = pods.iter().map(|pod| (pod.clone(), status(pod))).collect();
    let set = |(pod, status): (Pod, Value)| async move { set_pod(client, &pod, &status).await };
    bulk::each(patches, set).await.map(drop)
}

/// A pod that is gone, or is another of the same name by now, is left alone.
async fn set_pod(client: &Client, pod: &Pod, status: &Value) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let patch = json!({ "metadata": { "uid": pod.uid() }, "status": status });
    let (name, patch) = (pod.name_any(), Patch::Strategic(patch));
    let written = pods.patch_status(&name, &PatchParams::default(), &patch).await;
    unless_refused(written, &[404, 409]).with_context(|| format!("set the status of pod {name}"))
}

fn restarted(pod: &Pod, started: Timestamp, ready: bool) -> Value {
    let status = pod.status.iter();
    let statuses = status.flat_map(|status| status.container_statuses.iter().flatten());
    let containers = statuses.map(|container| {
        json!({
            "name": container.name,
            "image": container.image,
            "imageID": container.image_id,
            "containerID": format!("kwok://{}/{}/{}", pod.uid().unwrap_or_default(), container.name, container.restart_count + 1),
            "ready": ready,
            "started": true,
            "restartCount": container.restart_count + 1,
            "state": { "running": { "startedAt": second(started) } },
        })
    });
    json!({
        "containerStatuses": containers.collect::<Vec<_>>(),
        "conditions": ready_conditions(ready, if ready { "" } else { "ContainersNotReady" }),
    })
}

fn ready_conditions(ready: bool, reason: &str) -> Value {
    let status = if ready { "True" } else { "False" };
    let at = second(Timestamp::now());
    let of = |kind: &str| json!({ "type": kind, "status": status, "reason": reason, "lastTransitionTime": at });
    json!([of("Ready"), of("ContainersReady")])
}

/// As the API has times of pods: to the second.
fn second(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The scheduler uses the node again.
async fn untainted(client: &Client, node: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    wait::until(format!("{node} to be back"), NOTICED_WITHIN, || async {
        let node = nodes.get(node).await?;
        let keys: Vec<&str> = fleet::taints(&node).iter().map(|taint| taint.key.as_str()).collect();
        ensure!(!keys.iter().any(|key| fleet::tells_not_ready(key)), "tainted {keys:?}");
        ensure!(fleet::is_ready(&node), "not Ready");
        Ok(())
    })
    .await
}
