//! Nodes: building them, cordoning, rebooting and failing them.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::{bulk, wait};

/// The label that puts a node into kwok's care while its value is `kwok`.
pub const KUBELET_LABEL: &str = "testbed.nodeward.dev/kubelet";
/// While `false`, kwok renews the node's lease but leaves its conditions alone.
const READY_LABEL: &str = "testbed.nodeward.dev/ready";
pub const CORDON_TAINT: &str = "node.kubernetes.io/unschedulable";

/// A node to be created.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    name: String,
    metadata: Value,
    spec: Value,
    status: Value,
}

impl NodeSpec {
    /// A node without a role, with 64 CPUs and a random `bootID`, in kwok's care.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let capacity = json!({"memory": "256Gi", "pods": "1000", "ephemeral-storage": "1Ti"});
        let labels = json!({
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            KUBELET_LABEL: "kwok",
        });
        let spec = Self {
            metadata: json!({"name": name, "labels": labels}),
            spec: json!({"taints": []}),
            status: json!({"allocatable": capacity, "capacity": capacity, "nodeInfo": {"bootID": new_boot_id()}}),
            name,
        };
        spec.cpus(64)
    }

    /// A node with the worker role's label.
    pub fn worker(name: impl Into<String>) -> Self {
        Self::new(name).label("node-role.kubernetes.io/worker", "")
    }

    /// A node with the control-plane role's label, and its taint.
    pub fn control_plane(name: impl Into<String>) -> Self {
        let role = "node-role.kubernetes.io/control-plane";
        Self::new(name).label(role, "").taint(role, "", "NoSchedule")
    }

    /// `count` workers, `PREFIX-0` and on.
    pub fn workers(prefix: &str, count: usize) -> Vec<Self> {
        (0..count).map(|n| Self::worker(format!("{prefix}-{n}"))).collect()
    }

    metadata_builders! {
        /// Adds a label.
        label => "labels",
        /// Adds an annotation.
        annotation => "annotations",
    }

    /// Adds a taint without `timeAdded`.
    #[must_use]
    pub fn taint(self, key: &str, value: &str, effect: &str) -> Self {
        self.add_taint(&json!({"key": key, "value": value, "effect": effect}))
    }

    fn add_taint(mut self, taint: &Value) -> Self {
        if let Some(taints) = self.spec["taints"].as_array_mut() {
            taints.push(taint.clone());
        }
        self
    }

    /// Cordoned, with a taint that was added at `since`.
    #[must_use]
    pub fn cordoned_since(mut self, since: Timestamp) -> Self {
        self.spec["unschedulable"] = json!(true);
        self.add_taint(&json!({"key": CORDON_TAINT, "effect": "NoSchedule", "timeAdded": since}))
    }

    /// In the care of the kwok that looks after the nodes with this value of [`KUBELET_LABEL`]; else it is `kwok`.
    #[must_use]
    pub fn kubelet(self, kubelet: &str) -> Self {
        self.label(KUBELET_LABEL, kubelet)
    }

    /// With so many CPUs: room for pods that request them (else 64).
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        for list in ["allocatable", "capacity"] {
            self.status[list]["cpu"] = json!(cpus.to_string());
        }
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The API object.
    ///
    /// # Errors
    /// Never in practice: every field has its place in a Node.
    pub fn build(self) -> Result<Node> {
        let node = json!({"metadata": self.metadata, "spec": self.spec, "status": self.status});
        Ok(serde_json::from_value(node)?)
    }
}

/// A random id in the form of `/proc/sys/kernel/random/boot_id`.
pub fn new_boot_id() -> String {
    let id = format!("{:032x}", fastrand::u128(..));
    [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]].join("-")
}

/// Creates nodes, and waits until they are Ready and untainted by the node-lifecycle controller. A node that replaces one of
/// its name is created once the Lease of that one is gone.
///
/// # Errors
/// When one is refused, or is not Ready within five minutes.
pub async fn create(client: &Client, nodes: impl IntoIterator<Item = NodeSpec>) -> Result<Vec<Node>> {
    let specs: Vec<NodeSpec> = nodes.into_iter().collect();
    let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
    let nodes = specs.into_iter().map(NodeSpec::build).collect::<Result<Vec<_>>>()?;
    leases_gone(client, &names).await?;
    let created = bulk::create(client, nodes).await?;
    all_ready(client, names).await?;
    Ok(created)
}

/// Waits until no Lease of an earlier node has one of these names. kwok may mistake a node that is deleted and created within
/// milliseconds for the old one, and run nothing on it; the garbage collector removes the Lease after the node. No cloud
/// replaces a machine that fast.
async fn leases_gone(client: &Client, names: &[String]) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    wait::until("the Leases of earlier nodes to be gone", REPLACED_WITHIN, || async {
        let leases = leases.list_metadata(&ListParams::default()).await?.items;
        let left = leases.iter().filter_map(|lease| lease.metadata.name.as_deref());
        let left: Vec<&str> = left.filter(|name| names.contains(name)).collect();
        ensure!(left.is_empty(), "there: {left:?}");
        Ok(())
    })
    .await
}

/// How long the Lease of a deleted node may stay.
const REPLACED_WITHIN: Duration = Duration::from_mins(2);

/// How long kwok may take to notice that a kubelet runs again.
const REPORTED_WITHIN: Duration = Duration::from_secs(30);

/// How long a cordon's taint may take to come or to go.
const TAINTED_WITHIN: Duration = Duration::from_mins(1);

/// Waits until all of these are Ready and the not-ready taint, with which every node is born, is gone.
async fn all_ready(client: &Client, names: Vec<String>) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = &nodes;
    let wait_for = |name: String| async move {
        wait::until(format!("node {name} to be Ready"), Duration::from_mins(5), || async {
            let node = nodes.get(&name).await?;
            let conditions: Vec<_> = conditions(&node).collect();
            ensure!(is_ready(&node), "conditions: {conditions:?}");
            let not_ready = taints(&node).iter().any(|taint| tells_not_ready(&taint.key));
            ensure!(!not_ready, "tainted not-ready");
            Ok(())
        })
        .await
    };
    bulk::each(names, wait_for).await.map(drop)
}

/// Whether the taint is one that the node-lifecycle controller puts on nodes that are not Ready.
pub(crate) fn tells_not_ready(key: &str) -> bool {
    matches!(key, "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable")
}

/// Whether the Ready condition is True.
pub fn is_ready(node: &Node) -> bool {
    ready_status(node) == Some("True")
}

/// The status of the Ready condition: `True`, `False` or `Unknown`.
pub fn ready_status(node: &Node) -> Option<&str> {
    condition(node, "Ready").map(|condition| condition.status.as_str())
}

pub fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    conditions(node).find(|condition| condition.type_ == type_)
}

fn conditions(node: &Node) -> impl Iterator<Item = &NodeCondition> {
    node.status.iter().flat_map(|status| status.conditions.iter().flatten())
}

pub fn taints(node: &Node) -> &[Taint] {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

/// The cordon's taint, if the node has it.
pub fn cordon_taint(node: &Node) -> Option<&Taint> {
    let is_cordon = |taint: &&Taint| taint.key == CORDON_TAINT && taint.effect == "NoSchedule";
    taints(node).iter().find(is_cordon)
}

/// Cordons as `kubectl cordon` does, and waits until the node-lifecycle controller has added the taint.
///
/// # Errors
/// When the node is missing or the taint does not come within a minute.
pub async fn cordon(client: &Client, name: &str) -> Result<()> {
    patch(client, name, json!({"spec": {"unschedulable": true}})).await?;
    has_cordon_taint(client, name, true).await
}

async fn has_cordon_taint(client: &Client, name: &str, expected: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let what = format!("the cordon's taint on {name} to be there: {expected}");
    wait::until(what, TAINTED_WITHIN, || async {
        let is_there = cordon_taint(&nodes.get(name).await?).is_some();
        ensure!(is_there == expected, "it is there: {is_there}");
        Ok(())
    })
    .await
}

/// Cordons with a taint that says it was added at `since`. The node-lifecycle controller compares key and effect
/// only, so the time stays. Works on a cordoned node too.
///
/// # Errors
/// When the node is missing, or others keep writing it.
pub async fn cordon_since(client: &Client, name: &str, since: Timestamp) -> Result<()> {
    set_cordon_taint(client, name, Some(new_cordon_taint(Some(since)))).await
}

fn new_cordon_taint(time_added: Option<Timestamp>) -> Taint {
    Taint {
        key: CORDON_TAINT.to_owned(),
        effect: "NoSchedule".to_owned(),
        value: None,
        time_added: time_added.map(Time),
    }
}

/// Cordons with a taint that has no `timeAdded`, as some tools write it.
///
/// # Errors
/// When the node is missing, or others keep writing it.
pub async fn cordon_without_time(client: &Client, name: &str) -> Result<()> {
    set_cordon_taint(client, name, Some(new_cordon_taint(None))).await
}

/// Uncordons, and waits until the taint is gone.
///
/// # Errors
/// When the node is missing or the taint stays for a minute.
pub async fn uncordon(client: &Client, name: &str) -> Result<()> {
    set_cordon_taint(client, name, None).await?;
    has_cordon_taint(client, name, false).await
}

async fn set_cordon_taint(client: &Client, name: &str, wanted: Option<Taint>) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    // Others write nodes too: a conflict is read again.
    wait::until(format!("to write the cordon of {name}"), TAINTED_WITHIN, || async {
        let mut node = nodes.get(name).await?;
        let spec = node.spec.get_or_insert_default();
        spec.unschedulable = wanted.is_some().then_some(true);
        let taints = spec.taints.get_or_insert_default();
        taints.retain(|taint| !(taint.key == CORDON_TAINT && taint.effect == "NoSchedule"));
        taints.extend(wanted.clone());
        nodes.replace(name, &PostParams::default(), &node).await?;
        Ok(())
    })
    .await
}

/// Gives the node a new `bootID`, as a reboot does, and returns it. Nothing else happens; see [`crate::reboot`] for the rest.
///
/// # Errors
/// When the node is missing.
pub async fn reboot(client: &Client, name: &str) -> Result<String> {
    let boot_id = new_boot_id();
    patch_status(client, name, json!({"nodeInfo": {"bootID": boot_id}})).await?;
    Ok(boot_id)
}

/// Makes the Ready condition True or False, as a kubelet that is alive reports it, and keeps it so.
///
/// # Errors
/// When the node is missing.
pub async fn set_ready(client: &Client, name: &str, ready: bool) -> Result<()> {
    label(client, name, READY_LABEL, if ready { None } else { Some("false") }).await?;
    let status = if ready { "True" } else { "False" };
    let reason = if ready { "KubeletReady" } else { "KubeletNotReady" };
    let now = Time(Timestamp::now());
    let condition = json!({
        "type": "Ready", "status": status, "reason": reason, "message": "set by the testbed",
        "lastTransitionTime": now, "lastHeartbeatTime": now,
    });
    patch_status(client, name, json!({"conditions": [condition]})).await
}

/// Ends the node's kubelet: no lease, no status, no pod moves, until the node-lifecycle controller marks it Unknown
/// (after [`crate::Options::node_monitor_grace`]).
///
/// # Errors
/// When the node is missing.
pub async fn stop_kubelet(client: &Client, name: &str) -> Result<()> {
    label(client, name, KUBELET_LABEL, None).await
}

/// Makes the Ready condition Unknown since `since`, as that of a node whose kubelet has been stopped for so long.
///
/// # Errors
/// When the node is missing.
pub async fn not_ready_since(client: &Client, name: &str, since: Timestamp) -> Result<()> {
    let condition = json!({
        "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "set by the testbed",
        "lastTransitionTime": Time(since), "lastHeartbeatTime": Time(since),
    });
    patch_status(client, name, json!({"conditions": [condition]})).await
}

/// Starts the node's kubelet again.
///
/// # Errors
/// When the node is missing.
pub async fn start_kubelet(client: &Client, name: &str) -> Result<()> {
    label(client, name, KUBELET_LABEL, Some("kwok")).await
}

/// Starts the node's kubelet, which says for so long that it is not ready, and then that it is.
///
/// # Errors
/// When the node is missing.
pub async fn boot_kubelet(client: &Client, name: &str, not_ready: Duration) -> Result<()> {
    if !not_ready.is_zero() {
        label(client, name, READY_LABEL, Some("false")).await?;
        start_kubelet(client, name).await?;
        // Whoever stops or deletes it meanwhile has the last word.
        let _ = has_reported(client, name).await;
        tokio::time::sleep(not_ready).await;
    }
    let labels = json!({KUBELET_LABEL: "kwok", READY_LABEL: null});
    patch(client, name, json!({"metadata": {"labels": labels}})).await
}

/// Waits until Ready is not Unknown any more.
async fn has_reported(client: &Client, name: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    wait::until(format!("{name} to be heard of"), REPORTED_WITHIN, || async {
        let node = nodes.get_opt(name).await?;
        ensure!(
            node.is_none_or(|node| ready_status(&node) != Some("Unknown")),
            "not yet"
        );
        Ok(())
    })
    .await
}

/// Sets (or, with `None`, removes) an annotation.
///
/// # Errors
/// When the node is missing.
pub async fn annotate(client: &Client, name: &str, key: &str, value: Option<&str>) -> Result<()> {
    patch(client, name, json!({"metadata": {"annotations": {key: value}}})).await
}

/// Sets (or, with `None`, removes) a label.
///
/// # Errors
/// When the node is missing.
pub async fn label(client: &Client, name: &str, key: &str, value: Option<&str>) -> Result<()> {
    patch(client, name, json!({"metadata": {"labels": {key: value}}})).await
}

async fn patch(client: &Client, name: &str, patch: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patched = nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map(drop).with_context(|| format!("patch node {name}"))
}

async fn patch_status(client: &Client, name: &str, status: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Strategic(json!({"status": status}));
    let patched = nodes.patch_status(name, &PatchParams::default(), &patch).await;
    patched
        .map(drop)
        .with_context(|| format!("patch the status of node {name}"))
}
