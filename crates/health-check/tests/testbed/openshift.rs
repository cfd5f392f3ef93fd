//! What is particular to OpenShift: MachineHealthChecks, upgrades, Machines, the guards of etcd.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use nodeward_api::node_health_check::Phase;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::foreign::{Foreign, cluster_version};
use nodeward_testkit::remediator::{self, Family};
use nodeward_testkit::wait;
use nodeward_testkit::workload::PodTemplate;
use nodeward_testkit::{ControlPlane, Options, bulk, names};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::environment::{OwnEnvironment, SOON, WHILE, prepare};

const ETCD: &str = "openshift-etcd";

const MACHINE_API: &str = "openshift-machine-api";

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
            Foreign::Infrastructure,
            Foreign::MachineConfigPool,
            Foreign::Machine,
            Foreign::MachineHealthCheck,
        ];
        for kind in kinds {
            kind.install(&client).await?;
        }
        plane.namespace(ETCD).await?;
        plane.namespace(MACHINE_API).await?;
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

/// Two nodes that pacemaker fences.
#[tokio::test(flavor = "multi_thread")]
async fn control_plane_topology_disables_all() -> Result<()> {
    let (plane, _turn) = openshift().await?;
    let (own, operator) = OwnEnvironment::reviewed_on(plane).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let topology = |told: &'static str| {
        let body = json!({ "spec": {}, "status": { "controlPlaneTopology": told } });
        Foreign::Infrastructure.put(&own.client, None, "cluster", body)
    };
    let check = own.add_check("main", json!({})).await?;
    topology("DualReplica").await?;
    own.until_status(&check, "a topology that is not served", |status| {
        let told = status.conditions.iter().find(|told| told.type_ == "Disabled");
        told.is_some_and(|told| told.reason == "UnsupportedControlPlaneTopology" && told.status == "True")
    })
    .await?;
    let refused = own.add_check("another", json!({})).await;
    let told = refused.err().context("another is admitted")?;
    ensure!(format!("{told:#}").contains("DualReplica"), "{told:#}");
    own.lose_heartbeats(&a).await?;
    own.until_counted(&check, 1, 2).await?;
    own.gets_none(Family::SelfNode, &a).await?;
    topology("HighlyAvailable").await?;
    own.remediation(Family::SelfNode, &a).await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    Foreign::Infrastructure.delete(&own.client, None, "cluster").await?;
    own.unregister_webhook().await?;
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

/// The termination handler's MachineHealthCheck disables nothing, and its nodes are left to it.
#[tokio::test(flavor = "multi_thread")]
async fn terminating_nodes_are_left_to_their_handler() -> Result<()> {
    let (plane, _turn) = openshift().await?;
    let own = environment(plane).await?;
    let [a, b, _c] = own.add_nodes(["a", "b", "c"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let handler = "machine-api-termination-handler";
    let body = json!({ "spec": { "selector": {}, "unhealthyConditions": [{ "type": "Terminating", "status": "True", "timeout": "0s" }] } });
    Foreign::MachineHealthCheck
        .put(&own.client, Some(MACHINE_API), handler, body)
        .await?;
    let terminating = json!({ "status": { "conditions": [{ "type": "Terminating", "status": "True" }] } });
    own.nodes()
        .patch_status(&a, &PatchParams::default(), &Patch::Strategic(terminating))
        .await?;
    let operator = own.start(json!({})).await?;
    for node in [&a, &b] {
        own.lose_heartbeats(node).await?;
    }
    own.remediation(Family::SelfNode, &b).await?;
    own.gets_none(Family::SelfNode, &a).await?;
    own.until_counted(&check, 2, 3).await?;
    // Without its handler it is a node like any other.
    Foreign::MachineHealthCheck
        .delete(&own.client, Some(MACHINE_API), handler)
        .await?;
    own.remediation(Family::SelfNode, &a).await?;
    for node in [&a, &b] {
        own.recover(node).await?;
    }
    own.until_at_rest(&check, 3).await?;
    own.end([operator]).await
}

/// Metal3 deletes the Node and makes it again: meanwhile the remediation stays.
#[tokio::test(flavor = "multi_thread")]
async fn remediations_of_metal3_outlast_their_node() -> Result<()> {
    let (plane, _turn) = openshift().await?;
    let own = environment(plane).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let family = Family::Metal3;
    let elsewhere = own.add_template(family, "reboot").await?;
    let check = own
        .add_check("main", json!({ "remediationTemplate": elsewhere }))
        .await?;
    let operator = own.start(json!({})).await?;
    own.until_status(&check, "a template in the wrong namespace", |status| {
        let told = status.conditions.iter().find(|told| told.type_ == "Disabled");
        told.is_some_and(|told| told.reason == "RemediationTemplateInvalid" && told.status == "True")
    })
    .await?;
    let template = family.create_template(&own.client, MACHINE_API, &own.name).await?;
    own.change_check(&check, json!({ "remediationTemplate": template }))
        .await?;
    own.lose_heartbeats(&a).await?;
    let remediations = family.remediation().api(&own.client, Some(MACHINE_API));
    let of_node = || async {
        let all = remediations.list(&ListParams::default()).await?.items;
        let found = all.into_iter().find(|object| remediator::node_of(object) == a);
        anyhow::Ok(found.filter(|found| found.metadata.deletion_timestamp.is_none()))
    };
    wait::until("its remediation", SOON, || async { of_node().await?.context("none") }).await?;
    own.nodes().delete(&a, &DeleteParams::default()).await?;
    own.until_counted(&check, 1, 1).await?;
    wait::throughout("its remediation", WHILE, || async {
        ensure!(of_node().await?.is_some(), "it is deleted with its node");
        Ok(())
    })
    .await?;
    own.add_nodes(["a"]).await?;
    wait::until("no remediation", SOON, || async {
        ensure!(of_node().await?.is_none());
        Ok(())
    })
    .await?;
    own.until_counted(&check, 2, 2).await?;
    own.end([operator]).await
}
