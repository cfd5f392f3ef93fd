//! The Machine Config Operator: which pool a node belongs to, and when it drains a node.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::Value;

use super::answer::Answer;
use super::fields::Fields;
use super::inputs::{WatchedResource, full_name};
use crate::labels::Labels;
use crate::node::NodeView;
use crate::selector::Selector;

/// `drain-<hash>` or `uncordon-<hash>`: what the machine config daemon asks of the controller.
const DESIRED_DRAIN: &str = "machineconfiguration.openshift.io/desiredDrain";
/// The last of those that the controller has completed.
const LAST_APPLIED_DRAIN: &str = "machineconfiguration.openshift.io/lastAppliedDrain";
/// State of the machine config daemon.
const STATE: &str = "machineconfiguration.openshift.io/state";

/// The rendered configurations that the node has, and is to have.
pub(super) const CONFIGS: [&str; 2] = [
    "machineconfiguration.openshift.io/currentConfig",
    "machineconfiguration.openshift.io/desiredConfig",
];

/// MachineConfigPools, which are cluster-scoped.
pub(super) fn pool_kind() -> WatchedResource {
    WatchedResource::all("machineconfiguration.openshift.io/v1", "MachineConfigPool")
}

/// What is read of them.
pub(super) fn pool_fields() -> Fields {
    Fields::of(&[
        "spec.nodeSelector",
        "spec.paused",
        "status.machineCount",
        "status.updatedMachineCount",
        "status.conditions",
    ])
}

/// The pool that a node belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NodePool {
    /// This one.
    Member(Pool),
    /// The Machine Config Operator does not manage the node.
    Unmanaged,
    /// Which one cannot be told.
    Undecided(PoolProblem),
}

/// Why a node's pool cannot be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PoolProblem {
    /// The Machine Config Operator refuses nodes of several custom pools, masters too.
    SeveralCustomPools(Vec<String>),
    /// A pool cannot be read.
    Malformed(String),
}

/// All pools, or what one of them cannot be read for.
pub(super) type Pools = Result<Vec<Pool>, String>;

/// What is read of a MachineConfigPool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pool {
    pub name: String,
    selector: Selector,
    machines: Option<i64>,
    updated: Option<i64>,
    paused: bool,
    /// Its condition `Updating`, where that is `True` or `False`.
    updating: Option<bool>,
}

#[derive(Deserialize)]
struct WrittenPool {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_selector: Option<LabelSelector>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    machine_count: Option<i64>,
    updated_machine_count: Option<i64>,
}

impl Pool {
    /// Reads all of them.
    pub fn read_all(objects: &[Arc<Value>]) -> Pools {
        objects.iter().map(|object| Self::read(object)).collect()
    }

    fn read(object: &Value) -> Result<Self, String> {
        let name = full_name(object);
        let pool = WrittenPool::deserialize(object).map_err(|error| format!("MachineConfigPool {name}: {error}"))?;
        let selector = Selector::parse(pool.spec.node_selector.as_ref())
            .map_err(|error| format!("MachineConfigPool {name}: spec.nodeSelector: {error}"))?;
        Ok(Self {
            name: pool.metadata.name,
            selector,
            machines: pool.status.machine_count,
            updated: pool.status.updated_machine_count,
            paused: object.pointer("/spec/paused") == Some(&Value::Bool(true)),
            updating: condition(object, "Updating"),
        })
    }

    /// Whether the Machine Config Operator is at work on its nodes; of a pool that is paused it begins no further one.
    pub fn is_updating(&self) -> Result<bool, String> {
        match self.updating {
            _ if self.paused => Ok(false),
            Some(updating) => Ok(updating),
            None => Err(format!(
                "MachineConfigPool {} has no condition Updating that is True or False",
                self.name
            )),
        }
    }

    /// Whether some of its machines are still to be updated.
    pub fn has_outdated_machines(&self) -> Result<bool, String> {
        match (self.machines, self.updated) {
            (Some(machines), Some(updated)) => Ok(machines != updated),
            _ => Err(format!(
                "MachineConfigPool {} has no status.machineCount and status.updatedMachineCount",
                self.name
            )),
        }
    }

    /// A pool without a selector, or with an empty one, has no nodes.
    fn selects(&self, labels: &Labels) -> bool {
        !self.selector.is_empty() && self.selector.matches(labels)
    }
}

/// Whether the condition is `True`; none where it is neither that nor `False`.
fn condition(object: &Value, kind: &str) -> Option<bool> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
    match condition["status"].as_str()? {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

/// The node's pool, chosen as the Machine Config Operator chooses it (`pkg/helpers`, `GetPoolsForNode`): Windows nodes
/// have none; several custom pools are refused, even for a master; then master, then arbiter, then the custom
/// pool, then worker. One
/// pool that cannot be read leaves all undecided, as it does there.
pub(super) fn pool_of(node: &NodeView, pools: &Pools) -> NodePool {
    if node.labels.get("kubernetes.io/os").is_some_and(|os| os == "windows") {
        return NodePool::Unmanaged;
    }
    let pools = match pools {
        Ok(pools) => pools,
        Err(problem) => return NodePool::Undecided(PoolProblem::Malformed(problem.clone())),
    };
    let (mut master, mut arbiter, mut worker, mut custom) = (None, None, None, Vec::new());
    for pool in pools.iter().filter(|pool| pool.selects(&node.labels)) {
        match pool.name.as_str() {
            "master" => master = Some(pool),
            "arbiter" => arbiter = Some(pool),
            "worker" => worker = Some(pool),
            _ => custom.push(pool),
        }
    }
    if custom.len() > 1 {
        let mut names: Vec<String> = custom.into_iter().map(|pool| pool.name.clone()).collect();
        names.sort();
        return NodePool::Undecided(PoolProblem::SeveralCustomPools(names));
    }
    master
        .or(arbiter)
        .or_else(|| custom.pop())
        .or(worker)
        .map_or(NodePool::Unmanaged, |pool| NodePool::Member(pool.clone()))
}

/// Whether the node is to get another configuration than it has: it will be drained and rebooted for that. A node that lacks
/// either is not managed, or joins for the first time.
pub(super) fn is_changing(node: &NodeView) -> Answer {
    let [current, desired] = CONFIGS.map(|key| node.annotations.get(key));
    match current.zip(desired) {
        Some((current, desired)) if current != desired => Answer::yes(None),
        _ => Answer::no(),
    }
}

/// Whether the Machine Config Operator is draining the node, and what says so: it has been asked for a drain that is not
/// complete; on versions that do not ask by annotation, the daemon is `Working`, or `Degraded`, which it becomes after an
/// hour of failed drain.
pub(super) fn is_draining(node: &NodeView) -> (bool, String) {
    let annotation = |key: &str| node.annotations.get(key).map(String::as_str);
    match (
        annotation(DESIRED_DRAIN),
        annotation(LAST_APPLIED_DRAIN),
        annotation(STATE),
    ) {
        (Some(desired), last, _) => {
            let draining = desired.starts_with("drain-") && last != Some(desired);
            (
                draining,
                format!(
                    "{DESIRED_DRAIN} is {desired}, lastAppliedDrain is {}",
                    last.unwrap_or("not set")
                ),
            )
        }
        (None, _, Some(state)) => (matches!(state, "Working" | "Degraded"), format!("{STATE} is {state}")),
        (None, _, None) => (false, format!("neither {DESIRED_DRAIN} nor {STATE} is set")),
    }
}
