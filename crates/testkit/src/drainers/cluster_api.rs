//! Cluster API's core provider, which manages the testbed's own cluster or another one, with an infrastructure provider of a few
//! lines: a machine of it is a node in kwok's care.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Drainer, install, kubeconfig, objects_of, start};
use crate::fleet::{self, NodeSpec};
use crate::kubectl::Kubectl;
use crate::operator::granted;
use crate::process::Process;
use crate::toolchain::{self, Module};
use crate::wait::{self, secs};
use crate::{ControlPlane, bulk, pki, ports};

const NAMESPACE: &str = "capi-system";

/// What its manifests call the ServiceAccount.
const ACCOUNT: &str = "capi-manager";

const MANIFESTS: &str = "core/config";

/// Namespace and name of the Cluster, and namespace of its Machines.
const CLUSTER: (&str, &str) = ("machines", "testbed");

/// The Machine of the Cluster's control plane: without one Cluster API deletes no node.
const CONTROL_PLANE: &str = "control-plane";

/// The group of Cluster API's own kinds, and of its infrastructure providers'.
const CORE: &str = "cluster.x-k8s.io";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// How often the infrastructure provider looks for new machines.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a Machine may take to have its node.
const JOINED_WITHIN: Duration = Duration::from_mins(3);

pub(super) fn module() -> Module {
    let binaries = &[("sigs.k8s.io/cluster-api/core", "cluster-api")];
    toolchain::module("cluster-api", binaries, &[]).files(&[("sigs.k8s.io/cluster-api", MANIFESTS)])
}

/// Cluster API, running. It ends when dropped.
pub struct ClusterApi {
    process: Process,
    provider: JoinHandle<()>,
    client: Client,
}

impl Drop for ClusterApi {
    fn drop(&mut self) {
        self.provider.abort();
    }
}

impl ClusterApi {
    /// The name by which the API server knows it where it drains: that of the Cluster's kubeconfig.
    pub const USER: &str = "testbed-admin";

    /// Installs its manifests, without Deployment, webhooks and conversion, and starts it with a Cluster whose control plane
    /// has one Machine: the cluster that it runs in. Its port for webhooks, which nobody calls, is on every address of this
    /// machine: it has no flag for another.
    ///
    /// # Errors
    /// When it cannot be built, or does not start.
    pub async fn start(plane: &ControlPlane) -> Result<Self> {
        Self::manage(plane, plane).await
    }

    /// The same, where the Machines are in one cluster and their nodes in another.
    ///
    /// # Errors
    /// As [`ClusterApi::start`].
    pub async fn manage(plane: &ControlPlane, workload: &ControlPlane) -> Result<Self> {
        let built = Drainer::ClusterApi.built().await?;
        let overlay = built.join(MANIFESTS).join("default").display().to_string();
        let manifests = Kubectl::of(plane)?.run(["kustomize", &overlay], secs(60)).await?;
        install(plane, NAMESPACE, objects_of(&manifests)?).await?;
        let client = plane.client().await?;
        bulk::create(&client, [crd("TestbedMachine")?, crd("TestbedMachineTemplate")?]).await?;
        let rights = [
            ["list", CORE, "machines", ""],
            ["create", INFRASTRUCTURE, "testbedmachines", ""],
        ];
        granted(&client, NAMESPACE, ACCOUNT, &rights).await?;
        let (dir, kubeconfig) = kubeconfig(plane, Drainer::ClusterApi, NAMESPACE, ACCOUNT).await?;
        let (certificate, key) = plane.serving_certificate("cluster-api")?;
        pki::write(&dir, "tls.crt", &certificate)?;
        pki::write(&dir, "tls.key", &key)?;
        let process = Process::new("cluster-api", built.join("cluster-api"), dir.join("log")).args([
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--webhook-cert-dir={}", dir.display()),
            format!("--webhook-port={}", ports::free()?),
            format!("--health-addr=127.0.0.1:{}", ports::free()?),
            format!("--diagnostics-address=127.0.0.1:{}", ports::free()?),
            "--insecure-diagnostics".to_owned(),
        ]);
        start(&process, "Starting workers").await?;
        let provider = tokio::spawn(provide(client.clone(), workload.client().await?));
        let cluster = Self {
            process,
            provider,
            client,
        };
        plane.namespace(CLUSTER.0).await?;
        cluster.create_cluster(workload).await?;
        Ok(cluster)
    }

    /// Its process: pause, kill, log.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    async fn create_cluster(&self, workload: &ControlPlane) -> Result<()> {
        let (namespace, name) = CLUSTER;
        let admin = std::fs::read_to_string(workload.kubeconfig_of(Self::USER, "system:masters")?)?;
        let secret = json!({
            "metadata": {
                "name": format!("{name}-kubeconfig"), "namespace": namespace,
                "labels": { "cluster.x-k8s.io/cluster-name": name },
            },
            "type": "cluster.x-k8s.io/secret",
            "stringData": { "value": admin },
        });
        let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(secret)?;
        bulk::create(&self.client, [secret]).await?;
        let (host, port) = workload
            .url()
            .rsplit_once(':')
            .map_or_else(Default::default, |(host, port)| {
                (
                    host.trim_start_matches("https://").to_owned(),
                    port.parse::<u16>().unwrap_or_default(),
                )
            });
        let endpoint = json!({ "controlPlaneEndpoint": { "host": host, "port": port } });
        self.put(CORE, "Cluster", name, endpoint).await?;
        self.put(INFRASTRUCTURE, "TestbedMachine", CONTROL_PLANE, json!({}))
            .await?;
        let mut machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {
                "name": CONTROL_PLANE,
                "labels": { "cluster.x-k8s.io/cluster-name": name, "cluster.x-k8s.io/control-plane": "" },
            },
        });
        machine["spec"] = machine_spec("TestbedMachine", CONTROL_PLANE);
        self.api(CORE, "Machine")
            .patch(CONTROL_PLANE, &params(), &Patch::Apply(&machine))
            .await?;
        self.joined("cluster.x-k8s.io/control-plane", 1).await
    }

    /// A MachineDeployment of so many Machines, and their nodes, once they are Ready. `deletion` is of its Machines:
    /// `nodeDrainTimeoutSeconds`. All of them roll at once.
    ///
    /// # Errors
    /// When the nodes do not come.
    pub async fn add_machines(&self, name: &str, count: usize, deletion: Value) -> Result<()> {
        self.put_template(name).await?;
        let labels = json!({ "cluster.x-k8s.io/cluster-name": CLUSTER.1, "pool": name });
        let mut spec = machine_spec("TestbedMachineTemplate", name);
        spec["deletion"] = deletion;
        let deployment = json!({
            "clusterName": CLUSTER.1,
            "replicas": count,
            "selector": { "matchLabels": labels },
            "rollout": { "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": { "maxSurge": 0, "maxUnavailable": count },
            } },
            "template": { "metadata": { "labels": labels }, "spec": spec },
        });
        self.put(CORE, "MachineDeployment", name, deployment).await?;
        self.joined(&format!("pool={name}"), count).await
    }

    async fn put_template(&self, name: &str) -> Result<()> {
        self.put(
            INFRASTRUCTURE,
            "TestbedMachineTemplate",
            name,
            json!({ "template": { "spec": {} } }),
        )
        .await
    }

    /// Has the MachineDeployment replace all of its Machines.
    ///
    /// # Errors
    /// When there is none of this name.
    pub async fn roll(&self, name: &str) -> Result<()> {
        let next = format!("{name}-next");
        self.put_template(&next).await?;
        let patch = json!({ "spec": { "template": { "spec": { "infrastructureRef": { "name": next } } } } });
        let deployments = self.api(CORE, "MachineDeployment");
        deployments
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// A MachineDrainRule with this spec.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn drain_rule(&self, name: &str, spec: Value) -> Result<()> {
        self.put(CORE, "MachineDrainRule", name, spec).await
    }

    /// Deletes a Machine, and with it its node.
    ///
    /// # Errors
    /// When there is none of this name.
    pub async fn delete_machine(&self, name: &str) -> Result<()> {
        self.api(CORE, "Machine")
            .delete(name, &DeleteParams::background())
            .await?;
        Ok(())
    }

    /// From now on the infrastructure provider answers no more: its machines neither come nor go.
    ///
    /// # Errors
    /// When its machines cannot be written.
    pub async fn silence_provider(&self) -> Result<()> {
        self.provider.abort();
        let machines = self.api(INFRASTRUCTURE, "TestbedMachine");
        let held = json!({ "metadata": { "finalizers": ["testbed.nodeward.dev/silent"] } });
        for machine in machines.list(&ListParams::default()).await? {
            let patch = Patch::Merge(&held);
            machines
                .patch(&machine.name_any(), &PatchParams::default(), &patch)
                .await?;
        }
        Ok(())
    }

    /// The Machines that match these labels, by name.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn machines(&self, selector: &str) -> Result<Vec<DynamicObject>> {
        let params = ListParams::default().labels(selector);
        Ok(self.api(CORE, "Machine").list(&params).await?.items)
    }

    async fn joined(&self, selector: &str, count: usize) -> Result<()> {
        let joined = wait::until(format!("{count} Machines with nodes"), JOINED_WITHIN, || async {
            let machines = self.machines(selector).await?;
            let with_node = machines.iter().filter(|machine| node_of(machine).is_some());
            let with_node = with_node.count();
            ensure!(with_node == count, "{with_node} of {}", machines.len());
            Ok(())
        })
        .await;
        joined.with_context(|| format!("its log ends with:\n{}", self.process.log_tail(25)))
    }

    fn api(&self, group: &str, kind: &str) -> Api<DynamicObject> {
        api(&self.client, group, kind)
    }

    async fn put(&self, group: &str, kind: &str, name: &str, spec: Value) -> Result<()> {
        let object = json!({
            "apiVersion": format!("{group}/v1beta2"), "kind": kind, "metadata": { "name": name }, "spec": spec,
        });
        let put = self
            .api(group, kind)
            .patch(name, &params(), &Patch::Apply(&object))
            .await;
        put.map(drop).with_context(|| format!("put {kind} {name}"))
    }
}

/// The node of a Machine.
pub fn node_of(machine: &DynamicObject) -> Option<&str> {
    machine.data["status"]["nodeRef"]["name"].as_str()
}

/// Of a Machine that boots by itself, and is this machine of the infrastructure's.
fn machine_spec(kind: &str, name: &str) -> Value {
    json!({
        "clusterName": CLUSTER.1,
        "bootstrap": { "dataSecretName": "none" },
        "infrastructureRef": { "apiGroup": INFRASTRUCTURE, "kind": kind, "name": name },
    })
}

fn params() -> PatchParams {
    PatchParams::apply("nodeward-testbed").force()
}

fn api(client: &Client, group: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta2", kind));
    Api::namespaced_with(client.clone(), CLUSTER.0, &resource)
}

/// The CRD of one of the infrastructure provider's kinds, which follows the contract `v1beta2`.
fn crd(kind: &str) -> Result<CustomResourceDefinition> {
    let singular = kind.to_lowercase();
    let text = include_str!("../../objects/crd.yaml")
        .replace("{group}", INFRASTRUCTURE)
        .replace("{version}", "v1beta2")
        .replace("{scope}", "Namespaced")
        .replace("{plural}", &format!("{singular}s"))
        .replace("{singular}", &singular)
        .replace("{kind}", kind);
    let mut crd: CustomResourceDefinition = serde_yaml::from_str(&text)?;
    crd.labels_mut()
        .insert("cluster.x-k8s.io/v1beta2".to_owned(), "v1beta2".to_owned());
    Ok(crd)
}

/// The infrastructure provider: a machine that has no node gets one, in the cluster of `nodes`.
async fn provide(client: Client, nodes: Client) {
    loop {
        // What fails is tried again at the next look.
        let _ = provide_once(&client, &nodes).await;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn provide_once(client: &Client, nodes: &Client) -> Result<()> {
    let machines = api(client, INFRASTRUCTURE, "TestbedMachine");
    for machine in machines.list(&ListParams::default()).await? {
        let name = machine.name_any();
        if machine.data["status"]["initialization"]["provisioned"] == true {
            continue;
        }
        let id = format!("testbed://{name}");
        let spec = if name == CONTROL_PLANE {
            NodeSpec::control_plane(&name)
        } else {
            NodeSpec::worker(&name).cpus(4)
        };
        let mut node = spec.build()?;
        node.spec.get_or_insert_default().provider_id = Some(id.clone());
        crate::unless_refused(bulk::create_one(nodes.clone(), node).await, &[409])?;
        let spec = json!({ "spec": { "providerID": id } });
        machines
            .patch(&name, &PatchParams::default(), &Patch::Merge(spec))
            .await?;
        let status = json!({ "status": { "initialization": { "provisioned": true } } });
        machines
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        // A scheduler that tried a pod while the node came may not look again until the node changes.
        fleet::label(nodes, &name, "testbed.nodeward.dev/joined", Some("true")).await?;
    }
    Ok(())
}
