//! A cluster for tests, written as the objects that the API would send.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::annotation;
use nodeward_api::drain_clock::DrainClock;
use nodeward_api::reason::{BlockerReason, GateReason};
use nodeward_core::budget::{BudgetView, Budgets};
use nodeward_core::drain::NodeDrains;
use nodeward_core::hold::{Held, Hold, Holder, Holds};
use nodeward_core::id::{BudgetKey, NodeName};
use nodeward_core::node::NodeView;
use nodeward_core::pod::PodView;
use nodeward_core::remediation::{RemediatedNodes, Remediations};
use nodeward_core::signal::{KindObjects, KindState, SignalInputs, WatchedResource, pdb_force_drain_timeout};
use nodeward_core::strategy::StrategyName;
use nodeward_core::surge::Workloads;
use nodeward_core::verdict::{Blocker, Next, NodeVerdict};
use serde_json::{Value, json};

use crate::clock::ClockWrite;
use crate::plan::{Action, Plan, PodAction, plan};
use crate::planned_pods::{PlannedDrain, PlannedPods};
use crate::policy::Policy;
use crate::settings::Settings;
use crate::snapshot::{Attempt, LockKinds, Memory, NodePods, Outcome, Snapshot};

/// The drain's start in all tables; every moment is told in minutes or seconds after it.
const START: i64 = 1_767_225_600;

pub fn minute(minutes: i64) -> Timestamp {
    second(minutes * 60)
}

pub fn second(seconds: i64) -> Timestamp {
    Timestamp::from_second(START + seconds).unwrap()
}

/// A NodeHealthCheck that has a remediation of the node.
pub fn remediated(node: &str) -> Remediations {
    let check = json!({ "metadata": { "name": "workers" }, "spec": {}, "status": { "unhealthyNodes": [
        { "name": node, "remediations": [{ "resource": { "kind": "Fence" } }] },
    ] } });
    let check = serde_json::from_value(check).unwrap();
    let mut remediations = Remediations::default();
    remediations.add_check(&RemediatedNodes::project(&check).unwrap());
    remediations
}

/// Merges `patch` into `object` as a JSON merge patch does: null removes.
pub fn with(mut object: Value, patch: Value) -> Value {
    match (&mut object, patch) {
        (Value::Object(fields), Value::Object(patch)) => {
            for (key, change) in patch {
                if change.is_null() {
                    fields.remove(&key);
                } else {
                    let before = fields.remove(&key).unwrap_or(Value::Null);
                    fields.insert(key, with(before, change));
                }
            }
            object
        }
        (_, Value::Object(patch)) => with(json!({}), Value::Object(patch)),
        (_, patch) => patch,
    }
}

/// A Ready worker that has been cordoned at the start, with its clock running since.
pub fn node(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": name, "labels": { "kubernetes.io/hostname": name },
            "annotations": { annotation::DRAIN_CLOCK: clock(0) },
        },
        "spec": { "unschedulable": true, "taints": [cordon(0)] },
        "status": {
            "conditions": [{ "type": "Ready", "status": "True" }],
            "nodeInfo": {
                "bootID": "boot-1", "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                "systemUUID": "",
            },
        },
    })
}

/// The taint of a cordon, added so many minutes after the start.
pub fn cordon(minutes: i64) -> Value {
    json!({ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": minute(minutes).to_string() })
}

/// The annotation of a clock that runs since so many minutes after the start.
pub fn clock(minutes: i64) -> String {
    let at = minute(minutes);
    format!(r#"{{"start":"{at}","from":"Taint","bootID":"boot-1","cordonedAt":"{at}"}}"#)
}

/// A ready pod of a ReplicaSet on `n1`, an hour older than the drain, with the label `app: web`.
pub fn pod(name: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": name, "resourceVersion": "1", "labels": { "app": "web" },
            "creationTimestamp": minute(-60).to_string(), "ownerReferences": [owner("apps/v1", "ReplicaSet")],
        },
        "spec": { "nodeName": "n1", "containers": [] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

pub fn owner(api_version: &str, kind: &str) -> Value {
    json!({ "apiVersion": api_version, "kind": kind, "name": "o", "uid": "o", "controller": true })
}

/// What makes a pod terminate: its delete was asked for `grace` minutes before `deadline`.
pub fn terminating(deadline: i64, grace: i64) -> Value {
    json!({ "metadata": { "deletionTimestamp": minute(deadline).to_string(), "deletionGracePeriodSeconds": grace * 60 } })
}

pub fn finalizers(names: &[&str]) -> Value {
    json!({ "metadata": { "finalizers": names } })
}

pub fn not_ready() -> Value {
    json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } })
}

/// A budget for `app: web` in `shop`, all of whose pods are healthy, with this much room.
pub fn budget(name: &str, room: i32) -> Value {
    json!({
        "metadata": { "namespace": "shop", "name": name, "uid": name, "resourceVersion": "1", "generation": 1 },
        "spec": { "selector": { "matchLabels": { "app": "web" } } },
        "status": {
            "observedGeneration": 1, "disruptionsAllowed": room, "currentHealthy": 3, "desiredHealthy": 3,
            "expectedPods": 3,
        },
    })
}

/// The claim of a node, which has disruptions for these pods.
pub fn claim_of(node: &str, pods: &[&str]) -> Holder {
    Holder::Node {
        name: node.into(),
        uid: node.into(),
        pods: pods.iter().map(|&pod| pod.into()).collect(),
        movable: false,
    }
}

/// The claim of a node, which has a disruption for its movable pods.
pub fn movable_claim_of(node: &str) -> Holder {
    Holder::Node {
        name: node.into(),
        uid: node.into(),
        pods: BTreeSet::new(),
        movable: true,
    }
}

/// The claim of a node, which the ledger keeps disruptions for.
pub fn reserved_for(node: &str) -> Holder {
    Holder::Reserved {
        name: node.into(),
        uid: node.into(),
    }
}

/// One moment of a cluster, the configuration, and what the process remembers.
#[derive(Clone)]
pub struct World {
    config: String,
    nodes: Vec<Value>,
    pods: Vec<Value>,
    budgets: Vec<Value>,
    syncing: BTreeSet<NodeName>,
    signals: SignalInputs,
    pub drains: NodeDrains,
    pub planned_pods: BTreeMap<NodeName, Arc<PlannedPods>>,
    pub holds: Holds,
    pub remediations: Remediations,
    pub without_opt_outs: BTreeSet<Arc<str>>,
    pub surge_namespaces: Option<BTreeSet<Arc<str>>>,
    workloads: Option<Workloads>,
    pub memory: Memory,
}

impl World {
    /// Without a node, where every cordoned node counts as being drained for an upgrade.
    pub fn empty() -> Self {
        let memory = Memory {
            acts_left: 1000,
            ..Memory::default()
        };
        Self {
            config: "{upgradeSignal: always, countsAsDrain: all, overrideBudgets: all}".to_owned(),
            nodes: Vec::new(),
            pods: Vec::new(),
            budgets: Vec::new(),
            syncing: BTreeSet::new(),
            signals: SignalInputs::default(),
            drains: NodeDrains::default(),
            planned_pods: BTreeMap::new(),
            holds: Holds::default(),
            remediations: Remediations::default(),
            without_opt_outs: BTreeSet::new(),
            surge_namespaces: None,
            workloads: None,
            memory,
        }
    }

    /// With the draining node `n1`.
    pub fn draining() -> Self {
        Self::empty().node(node("n1"))
    }

    /// An OpenShift cluster in an upgrade that began at the start, with the draining worker `n1`.
    pub fn openshift() -> Self {
        let worker = json!({ "metadata": {
            "labels": { "node-role.kubernetes.io/worker": "" },
            "annotations": { "machineconfiguration.openshift.io/desiredDrain": "drain-abc" },
        } });
        Self::empty()
            .config("{}")
            .node(with(node("n1"), worker))
            .upgrade_configs([upgrade_config(json!({}))])
            .pools([machine_config_pool("worker", 3, 1)])
    }

    pub fn config(mut self, yaml: &str) -> Self {
        yaml.clone_into(&mut self.config);
        self
    }

    /// The ordinary configuration with more fields.
    pub fn also(self, fields: &str) -> Self {
        self.config(&format!(
            "{{upgradeSignal: always, countsAsDrain: all, overrideBudgets: all, {fields}}}"
        ))
    }

    pub fn node(mut self, node: Value) -> Self {
        self.nodes.push(node);
        self
    }

    /// Changes the first node.
    pub fn node_with(mut self, patch: Value) -> Self {
        self.nodes[0] = with(self.nodes[0].take(), patch);
        self
    }

    pub fn pod(mut self, pod: Value) -> Self {
        self.pods.push(pod);
        self
    }

    pub fn pods(mut self, pods: impl IntoIterator<Item = Value>) -> Self {
        self.pods.extend(pods);
        self
    }

    pub fn budget(mut self, budget: Value) -> Self {
        self.budgets.push(budget);
        self
    }

    pub fn budgets(mut self, budgets: impl IntoIterator<Item = Value>) -> Self {
        self.budgets.extend(budgets);
        self
    }

    /// What is known of the workloads of the namespace `shop`.
    pub fn workloads(mut self, workloads: Workloads) -> Self {
        self.workloads = Some(workloads);
        self
    }

    pub fn syncing(mut self, node: &str) -> Self {
        self.syncing.insert(node.into());
        self
    }

    pub fn signal(mut self, api_version: &str, kind: &str, state: KindObjects) -> Self {
        self.signals.insert(WatchedResource::all(api_version, kind), state);
        self
    }

    pub fn upgrade_configs(self, configs: impl IntoIterator<Item = Value>) -> Self {
        self.signal(
            "upgrade.managed.openshift.io/v1alpha1",
            "UpgradeConfig",
            objects(configs),
        )
    }

    pub fn pools(self, pools: impl IntoIterator<Item = Value>) -> Self {
        self.signal(
            "machineconfiguration.openshift.io/v1",
            "MachineConfigPool",
            objects(pools),
        )
    }

    pub fn held(mut self, budget: &str, holder: Holder, until: Option<Timestamp>) -> Self {
        let held = Held::Budget(BudgetKey::new("shop", budget));
        self.holds.add(Hold { held, holder, until });
        self
    }

    /// With a NodeDrain of `n1` in this phase.
    pub fn node_drain(self, phase: &str) -> Self {
        self.node_drain_with(phase, json!({}))
    }

    pub fn node_drain_with(mut self, phase: &str, changes: Value) -> Self {
        let drain = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": "n1" },
            "spec": { "nodeName": "n1" }, "status": { "phase": phase },
        });
        let drain = with(drain, changes);
        let drain = PlannedDrain::project(&serde_json::from_value(drain).unwrap()).unwrap();
        self.drains = NodeDrains::Known([("n1".into(), Ok(drain.view))].into());
        self.planned_pods = [("n1".into(), drain.pods)].into();
        self
    }

    /// An attempt at the pod, as it stands, that still says something for 10 s after `now`.
    pub fn attempted(mut self, pod: &str, outcome: Outcome, now: Timestamp) -> Self {
        let attempt = Attempt {
            resource_version: "1".into(),
            was_refused_by_budget: outcome == Outcome::RefusedByBudget,
            outcome,
            retry_at: now + SignedDuration::from_secs(10),
            failures: 0,
            asked_at: None,
        };
        self.memory.attempts.insert(pod.into(), attempt);
        self
    }

    pub fn policy(&self) -> Policy {
        Settings::parse(&self.config).unwrap().policy
    }

    pub fn snapshot(&self) -> Snapshot {
        let nodes: Vec<Arc<NodeView>> = self
            .nodes
            .iter()
            .map(|node| Arc::new(NodeView::project(&serde_json::from_value(node.clone()).unwrap()).unwrap()))
            .collect();
        let mut pods: BTreeMap<NodeName, Vec<Arc<PodView>>> =
            nodes.iter().map(|node| (node.name.clone(), Vec::new())).collect();
        for pod in &self.pods {
            let pod = PodView::project(&serde_json::from_value(pod.clone()).unwrap()).unwrap();
            let node = pod.node.clone().unwrap();
            pods.entry(node).or_default().push(Arc::new(pod));
        }
        let pods = pods
            .into_iter()
            .map(|(node, pods)| {
                let pods = if self.syncing.contains(&node) {
                    NodePods::Syncing
                } else {
                    NodePods::Synced(pods)
                };
                (node, pods)
            })
            .collect();
        let budgets = self
            .budgets
            .iter()
            .map(|budget| Arc::new(BudgetView::project(&serde_json::from_value(budget.clone()).unwrap()).unwrap()));
        Snapshot {
            nodes,
            pods,
            budgets: Arc::new(Budgets::new(budgets)),
            pdb_force_drain_timeout: pdb_force_drain_timeout(&self.signals),
            signals: self.signals.clone(),
            drains: self.drains.clone(),
            planned_pods: self.planned_pods.clone(),
            holds: self.holds.clone(),
            lock_kinds: LockKinds::default(),
            remediations: self.remediations.clone(),
            without_opt_outs: self.without_opt_outs.clone(),
            surge_namespaces: self.surge_namespaces.clone(),
            workloads: self
                .workloads
                .iter()
                .map(|known| ("shop".into(), Arc::new(known.clone())))
                .collect(),
            installation: Some("nodeward-system/drain-keeper".into()),
            memory: self.memory.clone(),
        }
    }

    pub fn plan(&self, now: Timestamp) -> Plan {
        plan(&self.snapshot(), &self.policy(), now)
    }

    pub fn at(&self, minutes: i64) -> Plan {
        self.plan(minute(minutes))
    }
}

pub fn objects(objects: impl IntoIterator<Item = Value>) -> KindObjects {
    KindState::Synced(objects.into_iter().map(Arc::new).collect())
}

pub fn upgrade_config(patch: Value) -> Value {
    let config = json!({
        "metadata": { "namespace": "openshift-managed-upgrade-operator", "name": "managed-upgrade-config" },
        "spec": { "desired": { "version": "4.20.1" }, "PDBForceDrainTimeout": 60 },
        "status": { "history": [{ "version": "4.20.1", "phase": "Upgrading", "startTime": minute(0).to_string() }] },
    });
    with(config, patch)
}

pub fn machine_config_pool(role: &str, machines: i64, updated: i64) -> Value {
    json!({
        "metadata": { "name": role },
        "spec": { "nodeSelector": { "matchLabels": { format!("node-role.kubernetes.io/{role}"): "" } } },
        "status": { "machineCount": machines, "updatedMachineCount": updated },
    })
}

impl Plan {
    /// What is done to pods, in order.
    pub(crate) fn acts(&self) -> Vec<&PodAction> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::Act(act) => Some(&**act),
                Action::WriteClock(_) => None,
            })
            .collect()
    }

    /// Names of the pods that something is done to, in order.
    pub(crate) fn acted(&self) -> Vec<&str> {
        self.acts().iter().map(|act| &*act.pod.key.name).collect()
    }

    /// The one strategy that is carried out, or none.
    pub(crate) fn strategy(&self) -> Option<StrategyName> {
        let acts = self.acts();
        assert!(acts.len() <= 1, "{acts:?}");
        acts.first().map(|act| act.strategy.name)
    }

    /// Clock writes, in order.
    pub(crate) fn clock_writes(&self) -> Vec<&ClockWrite> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::WriteClock(action) => Some(&action.write),
                Action::Act(_) => None,
            })
            .collect()
    }

    pub(crate) fn clock_set(&self) -> &DrainClock {
        match self.clock_writes().as_slice() {
            [ClockWrite::Set(clock)] => clock,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn verdict(&self, node: &str) -> &NodeVerdict {
        let verdict = self.verdicts.iter().find(|verdict| verdict.node.as_str() == node);
        verdict.unwrap_or_else(|| panic!("{:?}", self.verdicts))
    }

    pub(crate) fn gate(&self) -> GateReason {
        self.verdict("n1").gate
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.verdict("n1").drain_failed
    }

    pub(crate) fn blocker(&self, pod: &str) -> Option<&Blocker> {
        let mut all = self.verdicts.iter().flat_map(|verdict| &verdict.blockers);
        all.find(|blocker| &*blocker.pod.name == pod)
    }

    pub(crate) fn reason(&self, pod: &str) -> Option<BlockerReason> {
        self.blocker(pod).map(|blocker| blocker.reason)
    }

    pub(crate) fn next(&self, pod: &str) -> Next {
        self.blocker(pod).unwrap_or_else(|| panic!("{:?}", self.verdicts)).next
    }
}
