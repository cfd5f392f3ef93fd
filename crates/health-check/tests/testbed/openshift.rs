//! What is particular to OpenShift: MachineHealthChecks, upgrades, Machines, the guards of etcd.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use nodeward_api::node_health_check::Phase;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::foreign::{Foreign, cluster_version};
use nodeward_testkit::remediator::Family;
use nodeward_testkit::workload::PodTemplate;
use nodeward_testkit::{ControlPlane, Options, bulk, names};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::environment::{OwnEnvironment, prepare};

const ETCD: &str = "openshift-etcd";

/// An OpenShift cluster, as far as its kinds go, for one test at a time.
async fn openshift() -> Result<(&'static ControlPlane, MutexGuard<'static, ()>)> {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let start = || async {
        let plane = ControlPlane::start(Options::default()).await?;
        let client = plane.client().await?;
        let kinds = [
            Foreign::ClusterVersion,
            Foreign::MachineConfigPool,
            Foreign::Machine,
            Foreign::MachineHealthCheck,
        ];
        for kind in kinds {
            kind.install(&client).await?;
        }
        plane.namespace(ETCD).await?;
        prepare(&plane).await?;
        anyhow::Ok(plane)
    };
    Ok((PLANE.get_or_try_init(start).await?, turn))
}

async fn environment(plane: &'static ControlPlane) -> Result<OwnEnvironment> {
    OwnEnvironment::on(plane, names::unique("own"), json!({})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn machine_health_checks_disable_others() -> Result<()> {
    let (plane, _turn) = openshift().await?;
    let own = environment(plane).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let body = json!({ "spec": { "selector": {}, "unhealthyConditions": [] } });
    Foreign::MachineHealthCheck
        .put(&own.client, Some(&own.name), "workers", body)
        .await?;
    let operator = own.start(json!({})).await?;
    own.until_status(&check, "a conflict", |status| {
        let told = status.conditions.iter().find(|told| told.type_ == "Disabled");
        told.is_some_and(|told| told.reason == "ConflictingMachineHealthCheckDetected" && told.status == "True")
    })
    .await?;
    own.lose_heartbeats(&a).await?;
    own.until_counted(&check, 1, 2).await?;
    own.gets_none(Family::SelfNode, &a).await?;
    Foreign::MachineHealthCheck
        .delete(&own.client, Some(&own.name), "workers")
        .await?;
    own.remediation(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_upgrades_postpone_remediations() -> Result<()> {
    let (plane, _turn) = openshift().await?;
    let own = environment(plane).await?;
    let [a, b, _c] = own.add_nodes(["a", "b", "c"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    let upgrading =
        |on: bool| Foreign::ClusterVersion.put(&own.client, None, "version", cluster_version(on, Timestamp::now()));
    upgrading(true).await?;
    own.lose_heartbeats(&a).await?;
    own.until_counted(&check, 2, 3).await?;
    own.gets_none(Family::SelfNode, &a).await?;
    upgrading(false).await?;
    own.remediation(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    // A node whose machine configuration changes is stopped alone.
    let key = |which: &str| format!("machineconfiguration.openshift.io/{which}Config");
    fleet::annotate(&own.client, &b, &key("current"), Some("rendered-worker-1")).await?;
    fleet::annotate(&own.client, &b, &key("desired"), Some("rendered-worker-2")).await?;
    own.lose_heartbeats(&b).await?;
    own.until_counted(&check, 2, 3).await?;
    own.gets_none(Family::SelfNode, &b).await?;
    fleet::annotate(&own.client, &b, &key("current"), Some("rendered-worker-2")).await?;
    own.remediation(Family::SelfNode, &b).await?;
    own.recover(&b).await?;
    own.until_at_rest(&check, 3).await?;
    Foreign::ClusterVersion.delete(&own.client, None, "version").await?;
    own.end([operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_own_their_nodes_remediations() -> Result<()> {
    let (plane, _turn) = openshift().await?;
    let own = environment(plane).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let machine = Foreign::Machine
        .put(&own.client, Some(&own.name), "machine-a", json!({ "spec": {} }))
        .await?;
    let named = format!("{}/machine-a", own.name);
    fleet::annotate(&own.client, &a, "machine.openshift.io/machine", Some(&named)).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    own.lose_heartbeats(&a).await?;
    let remediation = own.remediation(Family::SelfNode, &a).await?;
    let owners = remediation.owner_references();
    let of_machine = owners
        .iter()
        .find(|owner| owner.kind == "Machine")
        .context("no Machine")?;
    ensure!(
        Some(&of_machine.uid) == machine.uid().as_ref() && owners.len() == 2,
        "{owners:?}"
    );
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_budgets_guard_control_plane_nodes() -> Result<()> {
    let (plane, _turn) = openshift().await?;
    let own = environment(plane).await?;
    let members = ["a", "b", "c"].map(|member| own.labelled(NodeSpec::control_plane(own.node_name(member))));
    fleet::create(&own.client, members).await?;
    let [a, b, c] = ["a", "b", "c"].map(|member| own.node_name(member));
    let check = own.add_check("main", json!({})).await?;
    let operator = own.start(json!({})).await?;
    own.lose_heartbeats(&a).await?;
    own.until_counted(&check, 2, 3).await?;
    // Nobody says whether etcd can do without it.
    own.gets_none(Family::SelfNode, &a).await?;
    let guards = [&b, &c].map(|node| {
        PodTemplate::new()
            .on(node)
            .label("app", "guard")
            .pod(ETCD, &format!("guard-{node}"))
    });
    bulk::create(&own.client, guards.into_iter().collect::<Result<Vec<_>>>()?).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(own.client.clone(), ETCD);
    let budget = json!({
        "metadata": { "name": "etcd-guard-pdb" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "guard" } } },
    });
    budgets
        .create(&PostParams::default(), &serde_json::from_value(budget)?)
        .await?;
    own.remediation(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 3).await?;
    budgets.delete("etcd-guard-pdb", &DeleteParams::default()).await?;
    for node in [a, b, c] {
        own.nodes().delete(&node, &DeleteParams::default()).await?;
    }
    own.until_status(&check, "phase Enabled", |status| status.phase == Some(Phase::Enabled))
        .await?;
    own.end([operator]).await
}
