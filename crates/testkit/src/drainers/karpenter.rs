//! Karpenter with its kwok provider: it makes and removes nodes whose kubelets our own kwok plays.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use super::{Drainer, install, kubeconfig, read_objects, rendered, start};
use crate::process::Process;
use crate::toolchain::{self, Module};
use crate::{ControlPlane, fleet, ports, wait};

const NAMESPACE: &str = "karpenter";

/// What its chart calls the ServiceAccount.
const ACCOUNT: &str = "karpenter";

/// How long Karpenter may take to write into a NodeClaim which node it is, on a loaded machine.
const CLAIM_NAMES_NODE_WITHIN: Duration = Duration::from_mins(1);

const CHART: &str = "kwok/charts";
const CRDS: &str = "pkg/apis/crds";
const CRDS_OF_KWOK: &str = "kwok/apis/crds";

pub(super) fn module() -> Module {
    const KARPENTER: &str = "sigs.k8s.io/karpenter";
    let binaries = &[("sigs.k8s.io/karpenter/kwok", "karpenter")];
    toolchain::module("karpenter", binaries, &[]).files(&[
        (KARPENTER, CHART),
        (KARPENTER, CRDS),
        (KARPENTER, CRDS_OF_KWOK),
    ])
}

/// Karpenter, running. It ends when dropped.
pub struct Karpenter {
    process: Process,
}

impl Karpenter {
    /// The name by which the API server knows it.
    pub const USER: &str = "system:serviceaccount:karpenter:karpenter";

    /// Installs its chart, without the Deployment, and starts it. It offers instances of 2 to 16 CPUs.
    ///
    /// Its ports for metrics and probes are on every address of this machine: it has no flag for another.
    ///
    /// # Errors
    /// When it cannot be built, or does not start.
    pub async fn start(plane: &ControlPlane) -> Result<Self> {
        let built = Drainer::Karpenter.built().await?;
        let mut objects = rendered(plane, &built.join(CHART), ACCOUNT, NAMESPACE).await?;
        objects.extend(read_objects(&built.join(CRDS))?);
        objects.extend(read_objects(&built.join(CRDS_OF_KWOK))?);
        install(plane, NAMESPACE, objects).await?;
        let class = json!({
            "apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": { "name": "default" },
        });
        put(
            &plane.client().await?,
            "karpenter.kwok.sh",
            "v1alpha1",
            "KWOKNodeClass",
            class,
        )
        .await?;
        let (dir, kubeconfig) = kubeconfig(plane, Drainer::Karpenter, NAMESPACE, ACCOUNT).await?;
        let instances = dir.join("instances.json");
        std::fs::write(&instances, instance_types().to_string())?;
        let process = Process::new("karpenter", built.join("karpenter"), dir.join("log"))
            .env("KUBECONFIG", kubeconfig)
            .env("INSTANCE_TYPES_FILE_PATH", instances)
            .env("SYSTEM_NAMESPACE", NAMESPACE)
            .env("KARPENTER_SERVICE", "karpenter")
            .env("KUBERNETES_MIN_VERSION", "1.19.0-0")
            .env("DISABLE_LEADER_ELECTION", "true")
            .env("METRICS_PORT", ports::free()?.to_string())
            .env("HEALTH_PROBE_PORT", ports::free()?.to_string());
        start(&process, "Starting workers").await?;
        Ok(Self { process })
    }

    /// Its process: pause, kill, log.
    pub const fn process(&self) -> &Process {
        &self.process
    }
}

/// What it may buy: one size fits two pods of a CPU, the next ones twice as many each.
fn instance_types() -> Value {
    let of_size = |cpus: u32| {
        json!({
            "name": format!("c{cpus}"),
            "offerings": [{ "Price": f64::from(cpus) * 0.1, "Available": true, "Requirements": [
                { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
                { "key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"] },
            ]}],
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": { "cpu": cpus.to_string(), "memory": format!("{}Gi", 4 * cpus), "pods": "110" },
        })
    };
    json!([of_size(2), of_size(4), of_size(8), of_size(16)])
}

/// A NodePool. Its nodes are in our kwok's care.
#[derive(Clone, Debug)]
pub struct NodePool {
    name: String,
    spec: Value,
}

impl NodePool {
    /// Nodes of so many CPUs each, labelled `pool=NAME`, which Karpenter leaves alone: neither expired nor consolidated
    /// within an hour.
    pub fn new(name: &str, cpus: u32) -> Self {
        let is_in = |key: &str, value: &str| json!({ "key": key, "operator": "In", "values": [value] });
        let spec = json!({
            "template": {
                "metadata": { "labels": { fleet::KUBELET_LABEL: "kwok", "pool": name } },
                "spec": {
                    "requirements": [
                        is_in("karpenter.sh/capacity-type", "on-demand"),
                        is_in("node.kubernetes.io/instance-type", &format!("c{cpus}")),
                    ],
                    "nodeClassRef": { "group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default" },
                    "expireAfter": "Never",
                },
            },
            "disruption": { "consolidationPolicy": "WhenEmpty", "consolidateAfter": "1h", "budgets": [{ "nodes": "100%" }] },
        });
        Self {
            name: name.to_owned(),
            spec,
        }
    }

    /// When and which nodes it consolidates.
    #[must_use]
    pub fn consolidates(mut self, policy: &str, after: &str) -> Self {
        self.spec["disruption"]["consolidationPolicy"] = json!(policy);
        self.spec["disruption"]["consolidateAfter"] = json!(after);
        self
    }

    /// Further fields of the NodeClaims.
    #[must_use]
    pub fn claims(mut self, field: &str, value: Value) -> Self {
        self.spec["template"]["spec"][field] = value;
        self
    }

    /// A label of the nodes: another value of it on the NodePool makes the present ones drift.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.spec["template"]["metadata"]["labels"][key] = json!(value);
        self
    }

    /// Karpenter makes nodes of the pool with the greatest weight.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.spec["weight"] = json!(weight);
        self
    }

    /// Creates it, or changes the one of this name.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn put(&self, client: &Client) -> Result<()> {
        let pool = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": self.name }, "spec": self.spec,
        });
        put(client, "karpenter.sh", "v1", "NodePool", pool).await
    }
}

/// Deletes the NodeClaim of a node, as an interruption of its machine makes Karpenter do. Pods may be Ready on a node before its
/// claim names it.
///
/// # Errors
/// When it has none.
pub async fn interrupt(client: &Client, node: &str) -> Result<()> {
    let claims: Api<DynamicObject> = Api::all_with(client.clone(), &resource("karpenter.sh", "v1", "NodeClaim"));
    let name = wait::until(format!("the NodeClaim of {node}"), CLAIM_NAMES_NODE_WITHIN, || async {
        let all = claims.list(&kube::api::ListParams::default()).await?;
        let of_node = all.iter().find(|claim| claim.data["status"]["nodeName"] == node);
        of_node
            .and_then(|claim| claim.metadata.name.clone())
            .context("no claim names it")
    })
    .await?;
    claims.delete(&name, &DeleteParams::background()).await?;
    Ok(())
}

fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

async fn put(client: &Client, group: &str, version: &str, kind: &str, object: Value) -> Result<()> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(group, version, kind));
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let params = PatchParams::apply("nodeward-testbed").force();
    api.patch(name, &params, &Patch::Apply(&object)).await?;
    Ok(())
}
