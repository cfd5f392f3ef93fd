//! Fills the control plane: nodes, pods and budgets, and the objects by which OpenShift says that it upgrades.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Client;
use kube::api::{Api, ListParams};
use nodeward_testkit::foreign::{Foreign, machine_config_pool, upgrade_config};
use nodeward_testkit::progress::Progress;
use nodeward_testkit::{ControlPlane, wait, workload};
use serde_json::json;

use crate::bench::large::fill::fill;
use crate::bench::large::size::{Size, thousands};
use crate::bench::large::{load, pods};

const UPGRADE_NAMESPACE: &str = "openshift-managed-upgrade-operator";

/// Creates everything, and waits until the drained nodes' pods run and their budgets are counted.
pub async fn populate(plane: &ControlPlane, client: &Client, size: Size) -> Result<()> {
    let progress = Progress::begin(format!(
        "{} nodes, {} pods",
        thousands(size.nodes),
        thousands(size.pods)
    ));
    upgrade(client, size).await?;
    let made = fill(client, size, &progress).await?;
    settled(client, size, &progress).await?;
    let memory = plane.apiserver().usage()?.rss_mib;
    progress.done(&format!(
        "{} pods and {} budgets created, kube-apiserver has {memory:.0} MiB",
        thousands(made.pods),
        thousands(made.budgets)
    ));
    Ok(())
}

/// An upgrade is on, and concerns all workers; budgets are respected for `expectedNodeDrainTime` alone.
async fn upgrade(client: &Client, size: Size) -> Result<()> {
    for kind in [Foreign::UpgradeConfig, Foreign::MachineConfigPool] {
        kind.install(client).await?;
    }
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": UPGRADE_NAMESPACE } });
    let progress = Progress::begin("an upgrade");
    load::create(
        client,
        &progress,
        "namespaces",
        [("/api/v1/namespaces".to_owned(), namespace)].into_iter(),
    )
    .await?;
    let pool = machine_config_pool("worker", u32::try_from(size.nodes)?, 0);
    Foreign::MachineConfigPool.put(client, None, "worker", pool).await?;
    let upgrade = upgrade_config("4.99.1", "Upgrading", Timestamp::now(), 0);
    Foreign::UpgradeConfig
        .put(client, Some(UPGRADE_NAMESPACE), "managed-upgrade-config", upgrade)
        .await?;
    progress.done("of the worker pool is on");
    Ok(())
}

/// The pods that something happens to run, and their budgets know it.
async fn settled(client: &Client, size: Size, progress: &Progress) -> Result<()> {
    let namespaces: Vec<String> = pods::namespaces(size)
        .filter(|name| name.starts_with("drained-"))
        .collect();
    stream::iter(namespaces)
        .map(Ok)
        .try_for_each_concurrent(2, |namespace| async move {
            wait::until(format!("{namespace} to settle"), Duration::from_mins(5), || async {
                progress.step(&format!("waiting for {namespace} to settle"));
                let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
                let pods = pods.list(&ListParams::default()).await?.items;
                let waiting = pods.iter().filter(|pod| !workload::is_ready(pod)).count();
                ensure!(waiting == 0, "{waiting} of {} pods are not Ready", pods.len());
                let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), &namespace);
                for budget in budgets.list(&ListParams::default()).await? {
                    let status = budget.status.context("a budget has not been counted")?;
                    ensure!(
                        status.observed_generation == budget.metadata.generation
                            && status.current_healthy == status.expected_pods,
                        "{status:?}"
                    );
                }
                Ok(())
            })
            .await
        })
        .await
}
