//! Kinds of other systems that the operators read: their CRDs, cut down to what is read, and objects of them.
//!
//! Nothing is installed unless a test asks for it, so that "the kind is absent" and "it appears later" can be tried;
//! and the schemas type nothing, so that nonsense can be stored.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use crate::remediator::Family;
use crate::{unless_refused, wait};

/// A kind of another system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Foreign {
    /// Of managed-upgrade-operator.
    UpgradeConfig,
    /// Of machine-config-operator.
    MachineConfigPool,
    /// Of cluster-version-operator.
    ClusterVersion,
    /// Of OpenShift: what it runs on.
    Infrastructure,
    /// Of OpenShift's machine-api-operator.
    Machine,
    /// Of OpenShift's machine-api-operator.
    MachineHealthCheck,
    /// Of node-maintenance-operator.
    NodeMaintenance,
    /// Of Cluster API.
    ClusterApiMachine,
    /// Of Karpenter.
    NodeClaim,
    /// Of system-upgrade-controller.
    Plan,
    /// What a remediator is told by.
    Remediation(Family),
    RemediationTemplate(Family),
    /// Of Rook.
    Ceph(CephKind),
}

/// A kind of Rook's, without its `Ceph`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs)]
pub enum CephKind {
    Cluster,
    BlockPool,
    Filesystem,
    ObjectStore,
    RBDMirror,
    NFS,
    Client,
}

impl CephKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Cluster,
        Self::BlockPool,
        Self::Filesystem,
        Self::ObjectStore,
        Self::RBDMirror,
        Self::NFS,
        Self::Client,
    ];
}

const SERVED_WITHIN: Duration = Duration::from_mins(1);

impl Foreign {
    /// Group, version and kind.
    fn identity(self) -> (&'static str, &'static str, String) {
        let (group, version, kind) = match self {
            Self::UpgradeConfig => ("upgrade.managed.openshift.io", "v1alpha1", "UpgradeConfig"),
            Self::MachineConfigPool => ("machineconfiguration.openshift.io", "v1", "MachineConfigPool"),
            Self::ClusterVersion => ("config.openshift.io", "v1", "ClusterVersion"),
            Self::Infrastructure => ("config.openshift.io", "v1", "Infrastructure"),
            Self::Machine => ("machine.openshift.io", "v1beta1", "Machine"),
            Self::MachineHealthCheck => ("machine.openshift.io", "v1beta1", "MachineHealthCheck"),
            Self::NodeMaintenance => ("nodemaintenance.medik8s.io", "v1beta1", "NodeMaintenance"),
            Self::ClusterApiMachine => ("cluster.x-k8s.io", "v1beta2", "Machine"),
            Self::NodeClaim => ("karpenter.sh", "v1", "NodeClaim"),
            Self::Plan => ("upgrade.cattle.io", "v1", "Plan"),
            Self::Remediation(family) | Self::RemediationTemplate(family) => family.identity(),
            Self::Ceph(kind) => return ("ceph.rook.io", "v1", format!("Ceph{kind:?}")),
        };
        let is_template = matches!(self, Self::RemediationTemplate(_));
        let suffix = if is_template { "Template" } else { "" };
        (group, version, format!("{kind}{suffix}"))
    }

    const fn is_namespaced(self) -> bool {
        !matches!(
            self,
            Self::MachineConfigPool
                | Self::ClusterVersion
                | Self::Infrastructure
                | Self::NodeMaintenance
                | Self::NodeClaim
                | Self::Remediation(Family::ClusterScoped)
                | Self::RemediationTemplate(Family::ClusterScoped)
        )
    }

    /// Group, version, kind and plural.
    pub fn resource(self) -> ApiResource {
        let (group, version, kind) = self.identity();
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind))
    }

    /// A stand-in for the CRD of the same name: everything is kept, and nothing is typed.
    fn crd(self) -> Result<CustomResourceDefinition> {
        let resource = self.resource();
        let scope = if self.is_namespaced() { "Namespaced" } else { "Cluster" };
        let text = include_str!("../objects/crd.yaml")
            .replace("{group}", &resource.group)
            .replace("{version}", &resource.version)
            .replace("{scope}", scope)
            .replace("{plural}", &resource.plural)
            .replace("{singular}", &resource.kind.to_lowercase())
            .replace("{kind}", &resource.kind);
        Ok(serde_yaml::from_str(&text)?)
    }

    /// The API of this kind; `namespace` is `None` for a cluster-scoped one.
    pub fn api(self, client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource()),
            None => Api::all_with(client.clone(), &self.resource()),
        }
    }

    /// Installs its CRD, unless it is there, and waits until its objects can be listed.
    ///
    /// # Errors
    /// When the server refuses it, or does not serve it in time.
    pub async fn install(self, client: &Client) -> Result<()> {
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let created = crds.create(&PostParams::default(), &self.crd()?).await;
        unless_refused(created, &[409]).with_context(|| format!("install the CRD of {self:?}"))?;
        wait::until(format!("{self:?} to be served"), SERVED_WITHIN, || async {
            self.api(client, None).list(&ListParams::default()).await?;
            Ok(())
        })
        .await
    }

    /// Removes its CRD with all objects, and waits until it is gone.
    ///
    /// # Errors
    /// When it stays.
    pub async fn remove(self, client: &Client) -> Result<()> {
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let resource = self.resource();
        let name = format!("{}.{}", resource.plural, resource.group);
        let deleted = crds.delete(&name, &DeleteParams::default()).await;
        deleted.with_context(|| format!("delete {name}"))?;
        wait::until(format!("{name} to be gone"), SERVED_WITHIN, || async {
            ensure!(crds.get_opt(&name).await?.is_none(), "still there");
            Ok(())
        })
        .await
    }

    /// Creates an object, or replaces what `body` holds of an existing one: `spec`, `status`, or any nonsense.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn put(self, client: &Client, namespace: Option<&str>, name: &str, body: Value) -> Result<DynamicObject> {
        let api = self.api(client, namespace);
        let params = PatchParams::apply("nodeward-testbed").force();
        let resource = self.resource();
        let mut object = body.clone();
        object["apiVersion"] = json!(resource.api_version);
        object["kind"] = json!(resource.kind);
        object["metadata"]["name"] = json!(name);
        let status = object.as_object_mut().and_then(|object| object.remove("status"));
        let stored = api.patch(name, &params, &Patch::Apply(&object)).await;
        let stored = stored.with_context(|| format!("put {self:?} {name}"))?;
        let Some(status) = status else { return Ok(stored) };
        // A merge would keep the keys of an earlier status.
        let patch = serde_json::from_value(json!([{"op": "add", "path": "/status", "value": status}]))?;
        api.patch_status(name, &PatchParams::default(), &Patch::<Value>::Json(patch))
            .await
            .with_context(|| format!("put the status of {self:?} {name}"))
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// When it is missing.
    pub async fn delete(self, client: &Client, namespace: Option<&str>, name: &str) -> Result<()> {
        let deleted = self.api(client, namespace).delete(name, &DeleteParams::default()).await;
        deleted.map(drop).with_context(|| format!("delete {self:?} {name}"))
    }
}

/// An UpgradeConfig's body that wants `version` and whose history has one entry for it, in `phase` (`Upgrading`,
/// `Upgraded`, ...) since `start`. `force` is `PDBForceDrainTimeout`, in minutes.
pub fn upgrade_config(version: &str, phase: &str, start: Timestamp, force: impl Into<Value>) -> Value {
    json!({
        "spec": {
            "type": "OSD",
            "upgradeAt": start,
            "PDBForceDrainTimeout": force.into(),
            "capacityReservation": false,
            "desired": {"version": version, "channel": "stable"},
        },
        "status": {"history": [{"version": version, "phase": phase, "startTime": start}]},
    })
}

/// A MachineConfigPool's body: the role whose nodes it holds, how many there are and how many are updated.
pub fn machine_config_pool(role: &str, machines: u32, updated: u32) -> Value {
    let status = |is_so: bool| if is_so { "True" } else { "False" };
    let is_done = machines == updated;
    json!({
        "spec": {
            "nodeSelector": {"matchLabels": {format!("node-role.kubernetes.io/{role}"): ""}},
            "machineConfigSelector": {"matchLabels": {"machineconfiguration.openshift.io/role": role}},
            "paused": false,
        },
        "status": {
            "machineCount": machines,
            "updatedMachineCount": updated,
            "readyMachineCount": updated,
            "unavailableMachineCount": u32::from(!is_done),
            "degradedMachineCount": 0,
            "conditions": [{"type": "Updated", "status": status(is_done)}, {"type": "Updating", "status": status(!is_done)}],
        },
    })
}

/// A ClusterVersion's body whose Progressing condition is `progressing` since `since`. Its name is `version`.
pub fn cluster_version(progressing: bool, since: Timestamp) -> Value {
    let status = if progressing { "True" } else { "False" };
    json!({
        "spec": {"clusterID": "00000000-0000-0000-0000-000000000000"},
        "status": {"conditions": [{"type": "Progressing", "status": status, "lastTransitionTime": since}]},
    })
}

/// Installs the kinds, and announces an upgrade that concerns all `machines` workers and has upgraded none. The namespace of
/// the UpgradeConfig exists. Its `PDBForceDrainTimeout` is 0 minutes, which is legal: budgets are respected for
/// `expectedNodeDrainTime` alone.
///
/// # Errors
/// When the server refuses something.
pub async fn begin_openshift_upgrade(client: &Client, namespace: &str, machines: u32) -> Result<()> {
    for kind in [Foreign::UpgradeConfig, Foreign::MachineConfigPool] {
        kind.install(client).await?;
    }
    let pool = machine_config_pool("worker", machines, 0);
    Foreign::MachineConfigPool.put(client, None, "worker", pool).await?;
    let upgrade = upgrade_config("4.99.1", "Upgrading", Timestamp::now(), 0);
    Foreign::UpgradeConfig
        .put(client, Some(namespace), "managed-upgrade-config", upgrade)
        .await?;
    Ok(())
}
