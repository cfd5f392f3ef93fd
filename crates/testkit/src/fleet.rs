//! Nodes: building them, cordoning, rebooting and failing them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec as NodeSpecV1, NodeStatus, NodeSystemInfo, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::{bulk, wait};

/// The label that puts a node into kwok's care while its value is `kwok`.
pub const KUBELET_LABEL: &str = "testbed.nodeward.dev/kubelet";
/// While `false`, kwok renews the node's lease but leaves its conditions alone.
const READY_LABEL: &str = "testbed.nodeward.dev/ready";
/// The taint of a cordon.
pub const CORDON_TAINT: &str = "node.kubernetes.io/unschedulable";

/// A node to be created.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    taints: Vec<Taint>,
    boot_id: String,
    unschedulable: bool,
    kubelet: String,
    cpus: u32,
}

impl NodeSpec {
    /// A node without a role.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let labels = [
            ("kubernetes.io/hostname", name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
        ];
        Self {
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            annotations: BTreeMap::new(),
            taints: Vec::new(),
            boot_id: new_boot_id(),
            unschedulable: false,
            kubelet: "kwok".to_owned(),
            cpus: 64,
            name,
        }
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

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds a taint without `timeAdded`.
    #[must_use]
    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        self.taints.push(taint(key, value, effect, None));
        self
    }

    /// Sets the id of its present boot (else a random one).
    #[must_use]
    pub fn boot_id(mut self, boot_id: &str) -> Self {
        boot_id.clone_into(&mut self.boot_id);
        self
    }

    /// Cordoned, with a taint that was added at `since`.
    #[must_use]
    pub fn cordoned_since(mut self, since: Timestamp) -> Self {
        self.unschedulable = true;
        self.taints.push(taint(CORDON_TAINT, "", "NoSchedule", Some(since)));
        self
    }

    /// In the care of the kwok that looks after the nodes with this value of [`KUBELET_LABEL`]; else it is `kwok`.
    #[must_use]
    pub fn kubelet(self, kubelet: &str) -> Self {
        Self {
            kubelet: kubelet.to_owned(),
            ..self
        }
    }

    /// With so many CPUs: room for pods that request them (else 64).
    #[must_use]
    pub fn cpus(self, cpus: u32) -> Self {
        Self { cpus, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The API object.
    pub fn build(self) -> Node {
        let Self {
            name,
            mut labels,
            annotations,
            taints,
            boot_id,
            unschedulable,
            kubelet,
            cpus,
        } = self;
        labels.insert(KUBELET_LABEL.to_owned(), kubelet);
        let cpus = cpus.to_string();
        let capacity: BTreeMap<String, Quantity> = [
            ("cpu", cpus.as_str()),
            ("memory", "256Gi"),
            ("pods", "1000"),
            ("ephemeral-storage", "1Ti"),
        ]
        .map(|(key, value)| (key.to_owned(), Quantity(value.to_owned())))
        .into();
        Node {
            metadata: ObjectMeta {
                name: Some(name),
                labels: Some(labels),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpecV1 {
                taints: Some(taints).filter(|taints| !taints.is_empty()),
                unschedulable: unschedulable.then_some(true),
                ..NodeSpecV1::default()
            }),
            status: Some(NodeStatus {
                allocatable: Some(capacity.clone()),
                capacity: Some(capacity),
                node_info: Some(NodeSystemInfo {
                    boot_id,
                    ..NodeSystemInfo::default()
                }),
                ..NodeStatus::default()
            }),
        }
    }
}

fn taint(key: &str, value: &str, effect: &str, time_added: Option<Timestamp>) -> Taint {
    Taint {
        key: key.to_owned(),
        value: Some(value.to_owned()).filter(|value| !value.is_empty()),
        effect: effect.to_owned(),
        time_added: time_added.map(Time),
    }
}

/// A random id in the form of `/proc/sys/kernel/random/boot_id`.
pub fn new_boot_id() -> String {
    let digits: String = (0..32).map(|_| fastrand::char('0'..='9')).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..]
    )
}

/// Creates nodes, and waits until they are Ready and untainted by the node-lifecycle controller.
///
/// # Errors
/// When one is refused, or is not Ready within five minutes.
pub async fn create(client: &Client, nodes: impl IntoIterator<Item = NodeSpec>) -> Result<Vec<Node>> {
    let specs: Vec<NodeSpec> = nodes.into_iter().collect();
    let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
    let created = bulk::create(client, specs.into_iter().map(NodeSpec::build)).await?;
    all_ready(client, names).await?;
    Ok(created)
}

/// How many nodes are looked at at once.
const LOOKS: usize = 8;

/// Waits until all of these are Ready and the not-ready taint, with which every node is born, is gone.
async fn all_ready(client: &Client, names: Vec<String>) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = &nodes;
    let looks = stream::iter(names.into_iter().map(|name| async move {
        wait::until(format!("node {name} to be Ready"), Duration::from_mins(5), || async {
            let node = nodes.get(&name).await?;
            ensure!(is_ready(&node), "conditions: {}", conditions(&node));
            let not_ready = taints(&node).iter().any(|taint| tells_not_ready(&taint.key));
            ensure!(!not_ready, "tainted not-ready");
            Ok(())
        })
        .await
    }));
    looks.buffer_unordered(LOOKS).try_collect().await
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
    node.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .map(|condition| condition.status.as_str())
}

fn conditions(node: &Node) -> String {
    let all: Vec<NodeCondition> = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    all.iter()
        .map(|condition| format!("{}={}", condition.type_, condition.status))
        .collect::<Vec<_>>()
        .join(" ")
}

/// The node's taints.
pub fn taints(node: &Node) -> &[Taint] {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default()
}

/// The cordon's taint, if the node has it.
pub fn cordon_taint(node: &Node) -> Option<&Taint> {
    taints(node)
        .iter()
        .find(|taint| taint.key == CORDON_TAINT && taint.effect == "NoSchedule")
}

/// Cordons as `kubectl cordon` does, and waits until the node-lifecycle controller has added the taint.
///
/// # Errors
/// When the node is missing or the taint does not come within 20 s.
pub async fn cordon(client: &Client, name: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    merge(&nodes, name, json!({"spec": {"unschedulable": true}})).await?;
    wait::until(
        format!("the cordon's taint on {name}"),
        Duration::from_secs(20),
        || async {
            cordon_taint(&nodes.get(name).await?)
                .map(drop)
                .context("no such taint yet")
        },
    )
    .await
}

/// Cordons with a taint that says it was added at `since`. The node-lifecycle controller compares key and effect
/// only, so the time stays. Works on a cordoned node too.
///
/// # Errors
/// When the node is missing, or others keep writing it.
pub async fn cordon_since(client: &Client, name: &str, since: Timestamp) -> Result<()> {
    set_cordon_taint(client, name, Some(taint(CORDON_TAINT, "", "NoSchedule", Some(since)))).await
}

/// Cordons with a taint that has no `timeAdded`, as some tools write it.
///
/// # Errors
/// When the node is missing, or others keep writing it.
pub async fn cordon_without_time(client: &Client, name: &str) -> Result<()> {
    set_cordon_taint(client, name, Some(taint(CORDON_TAINT, "", "NoSchedule", None))).await
}

/// Uncordons, and waits until the taint is gone.
///
/// # Errors
/// When the node is missing or the taint stays for 20 s.
pub async fn uncordon(client: &Client, name: &str) -> Result<()> {
    set_cordon_taint(client, name, None).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    wait::until(
        format!("the cordon's taint to go from {name}"),
        Duration::from_secs(20),
        || async {
            ensure!(cordon_taint(&nodes.get(name).await?).is_none(), "still there");
            Ok(())
        },
    )
    .await
}

async fn set_cordon_taint(client: &Client, name: &str, wanted: Option<Taint>) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    // Others write nodes too: a conflict is read again.
    wait::until(
        format!("to write the cordon of {name}"),
        Duration::from_secs(20),
        || async {
            let mut node = nodes.get(name).await?;
            let spec = node.spec.get_or_insert_default();
            spec.unschedulable = wanted.is_some().then_some(true);
            let mut taints = spec.taints.take().unwrap_or_default();
            taints.retain(|taint| !(taint.key == CORDON_TAINT && taint.effect == "NoSchedule"));
            taints.extend(wanted.clone());
            spec.taints = Some(taints);
            nodes.replace(name, &PostParams::default(), &node).await?;
            Ok(())
        },
    )
    .await
}

/// Gives the node a new `bootID`, as a reboot does, and returns it. Nothing else happens; see [`crate::reboot`] for the rest.
///
/// # Errors
/// When the node is missing.
pub async fn reboot(client: &Client, name: &str) -> Result<String> {
    let nodes: Api<Node> = Api::all(client.clone());
    let boot_id = new_boot_id();
    let patch = json!({"status": {"nodeInfo": {"bootID": boot_id}}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .with_context(|| format!("reboot {name}"))?;
    Ok(boot_id)
}

/// Makes the Ready condition True or False, as a kubelet that is alive reports it, and keeps it so.
///
/// # Errors
/// When the node is missing.
pub async fn set_ready(client: &Client, name: &str, ready: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let label = if ready { json!(null) } else { json!("false") };
    merge(&nodes, name, json!({"metadata": {"labels": {READY_LABEL: label}}})).await?;
    let now = Time(Timestamp::now());
    let (status, reason) = if ready {
        ("True", "KubeletReady")
    } else {
        ("False", "KubeletNotReady")
    };
    let patch = json!({"status": {"conditions": [
        {"type": "Ready", "status": status, "reason": reason, "message": "set by the testbed", "lastTransitionTime": now, "lastHeartbeatTime": now},
    ]}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .with_context(|| format!("set Ready of {name}"))?;
    Ok(())
}

/// Ends the node's kubelet: no lease, no status, no pod moves, until the node-lifecycle controller marks it Unknown
/// (after [`crate::Options::node_monitor_grace`]).
///
/// # Errors
/// When the node is missing.
pub async fn stop_kubelet(client: &Client, name: &str) -> Result<()> {
    merge(
        &Api::all(client.clone()),
        name,
        json!({"metadata": {"labels": {KUBELET_LABEL: null}}}),
    )
    .await
}

/// Starts the node's kubelet again.
///
/// # Errors
/// When the node is missing.
pub async fn start_kubelet(client: &Client, name: &str) -> Result<()> {
    merge(
        &Api::all(client.clone()),
        name,
        json!({"metadata": {"labels": {KUBELET_LABEL: "kwok"}}}),
    )
    .await
}

/// Starts the node's kubelet, which says for so long that it is not ready, and then that it is.
///
/// # Errors
/// When the node is missing.
pub async fn boot_kubelet(client: &Client, name: &str, not_ready: Duration) -> Result<()> {
    let nodes = Api::all(client.clone());
    let labels =
        |ready: serde_json::Value| json!({"metadata": {"labels": {KUBELET_LABEL: "kwok", READY_LABEL: ready}}});
    if !not_ready.is_zero() {
        merge(&nodes, name, labels(json!("false"))).await?;
        tokio::time::sleep(not_ready).await;
    }
    merge(&nodes, name, labels(json!(null))).await
}

/// Sets (or, with `None`, removes) an annotation.
///
/// # Errors
/// When the node is missing.
pub async fn annotate(client: &Client, name: &str, key: &str, value: Option<&str>) -> Result<()> {
    merge(
        &Api::all(client.clone()),
        name,
        json!({"metadata": {"annotations": {key: value}}}),
    )
    .await
}

/// Sets (or, with `None`, removes) a label.
///
/// # Errors
/// When the node is missing.
pub async fn label(client: &Client, name: &str, key: &str, value: Option<&str>) -> Result<()> {
    merge(
        &Api::all(client.clone()),
        name,
        json!({"metadata": {"labels": {key: value}}}),
    )
    .await
}

async fn merge(nodes: &Api<Node>, name: &str, patch: serde_json::Value) -> Result<()> {
    nodes
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .with_context(|| format!("patch node {name}"))?;
    Ok(())
}
