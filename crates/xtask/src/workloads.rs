//! Workloads whose pods run on their own nodes only, as demo and bench drain them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Api, Client};
use nodeward_testkit::workload::{End, PodTemplate};
use nodeward_testkit::{wait, workload};
use serde_json::json;

/// Pods that are gone at once come back under their names before Kubernetes' own controller of budgets has seen them go: it
/// then takes the new ones for evicted, for two minutes.
pub const TERMINATES: End = End::Takes(Duration::from_secs(1));

/// The app's pods run on these nodes only, no two on one.
pub fn pinned(pods: PodTemplate, app: &str, nodes: &[String]) -> PodTemplate {
    let hostname = "kubernetes.io/hostname";
    let affinity = json!({
        "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": hostname, "operator": "In", "values": nodes }] },
        ] } },
        "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
            { "topologyKey": hostname, "labelSelector": { "matchLabels": { "app": app } } },
        ] },
    });
    pods.spec("affinity", affinity)
}

/// Whether a pod counts as healthy for its budget.
pub fn is_up(pod: &Pod) -> bool {
    workload::is_ready(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Waits until a budget allows so many disruptions.
pub async fn disruptions_allowed(
    client: Client,
    namespace: &str,
    budget: &str,
    allowed: usize,
    deadline: Duration,
) -> Result<()> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client, namespace);
    let allowed = i32::try_from(allowed)?;
    wait::until(format!("budget {budget} to allow {allowed}"), deadline, || async {
        let status = budgets.get(budget).await?.status.context("not counted")?;
        ensure!(status.disruptions_allowed == allowed, "{status:?}");
        Ok(())
    })
    .await
}
