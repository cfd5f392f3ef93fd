//! A fleet of which many nodes drain at once, as the watches would show it: 30 pods a node, of which 20 are under budgets on the
//! draining nodes; 50 pod templates, of which a tenth has anti-affinity and a third asks for more than any node has left.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use anyhow::{Context, Result};
use drain_lock::observe::{Kept, budget_facts, project_budget, project_node};
use drain_lock::snapshot::{BudgetEntry, LedgerFacts, NodeFacts, PodFacts, Snapshot};
use jiff::{SignedDuration, Timestamp};
use nodeward_api::budget_ref::BudgetRef;
use nodeward_api::node_drain::NodeDrain;
use nodeward_core::id::{BudgetKey, NodeName, PodKey};
use nodeward_core::labels::Labels;
use nodeward_core::ledger::{ClaimState, Disruptions, Facts, HeldPod, Ledger};
use nodeward_core::remediation::Remediations;
use nodeward_scheduling::{NodeCapacity, NodeUsage, PodProjector, SchedulingView};
use serde_json::json;

const PODS_PER_NODE: usize = 30;
const BUDGETED_PODS: usize = 20;
const BUDGETS_PER_DRAIN: usize = 4;
const BUDGETS_PER_NAMESPACE: usize = 20;
const TEMPLATES: usize = 50;
/// Pods of a budget that do not drain.
const OTHER_PODS: usize = 5;
/// A pod waits for a node per so many drains.
const DRAINS_PER_PENDING_POD: usize = 5;

/// How far the drains have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// All were asked for a moment ago, and no node is cordoned.
    Cordoning,
    /// All nodes are cordoned, and the movable pods leave.
    Leaving,
    /// The movable pods have left, and all ask for the disruptions of those that stay down.
    Claiming,
    /// All were granted theirs, and half of the pods are gone.
    Evicting,
    /// A quarter of the drains at each of these.
    Mixed,
}

impl Moment {
    pub const ALL: [Self; 5] = [
        Self::Cordoning,
        Self::Leaving,
        Self::Claiming,
        Self::Evicting,
        Self::Mixed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cordoning => "cordoning",
            Self::Leaving => "leaving",
            Self::Claiming => "claiming",
            Self::Evicting => "evicting",
            Self::Mixed => "mixed",
        }
    }

    /// Where one of the drains stands.
    fn of(self, drain: usize) -> Self {
        match (self, drain % 4) {
            (Self::Mixed, 0) => Self::Evicting,
            (Self::Mixed, 1) => Self::Claiming,
            (Self::Mixed, 2) => Self::Leaving,
            (Self::Mixed, _) => Self::Cordoning,
            (all, _) => all,
        }
    }
}

pub struct Fleet {
    pub snapshot: Snapshot,
    pub now: Timestamp,
}

impl Fleet {
    pub fn new(nodes: usize, draining: usize, moment: Moment) -> Result<Self> {
        let now = Timestamp::now();
        let mut fleet = Builder {
            now,
            moment,
            draining,
            stride: nodes / draining,
            budgets: draining * BUDGETS_PER_DRAIN,
            templates: templates(now)?,
            labels: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        };
        let snapshot = fleet.snapshot(nodes)?;
        Ok(Self { snapshot, now })
    }
}

struct Builder {
    now: Timestamp,
    moment: Moment,
    draining: usize,
    /// One node in so many drains.
    stride: usize,
    budgets: usize,
    templates: Vec<PodFacts>,
    labels: BTreeMap<(usize, Option<usize>), Arc<Labels>>,
    /// Kept once each, as the watch of the pods keeps them.
    namespaces: BTreeMap<String, Arc<str>>,
}

impl Builder {
    fn snapshot(&mut self, nodes: usize) -> Result<Snapshot> {
        let mut snapshot = empty();
        let mut bound = Vec::new();
        let mut by_budget: BTreeMap<usize, Vec<Arc<PodFacts>>> = BTreeMap::new();
        for number in 0..nodes {
            let drain =
                (number % self.stride == 0 && number / self.stride < self.draining).then(|| number / self.stride);
            let node = Arc::new(self.node(number, drain)?);
            let mut usage = NodeUsage::default();
            let mut pods = Vec::new();
            for pod in 0..PODS_PER_NODE {
                let (template, budget) = self.place_of(number, pod, drain);
                let is_gone = drain.is_some_and(|drain| self.is_gone(drain, pod));
                let facts = Arc::new(self.pod(&format!("{}-{pod:02}", node.name), template, budget, Some(&node.name)));
                usage.add(&self.templates[1]);
                if is_gone {
                    continue;
                }
                if let (Some(budget), Some(_)) = (budget, drain) {
                    by_budget.entry(budget).or_default().push(Arc::clone(&facts));
                    let key = vec![budget_key(budget)];
                    snapshot.covering.insert(facts.uid.clone(), key);
                }
                pods.push(Arc::clone(&facts));
                bound.push(facts);
            }
            if let Some(drain) = drain {
                snapshot.pods.insert(node.name.clone(), pods);
                snapshot
                    .drains
                    .insert(node.name.clone(), Arc::new(self.drain(drain, &node)?));
            }
            snapshot.nodes.insert(node.name.clone(), Arc::clone(&node));
            let usage = Arc::new(usage);
            snapshot.scheduling.nodes.push(NodeCapacity { node, usage });
        }
        for number in 0..self.draining / DRAINS_PER_PENDING_POD {
            let pod = self.pod(&format!("pending-{number:04}"), number % TEMPLATES, None, None);
            snapshot.scheduling.pending.push(Arc::new(pod));
        }
        snapshot.scheduling.neighbours = bound.into_iter().collect();
        let ledger = self.ledger(&snapshot);
        for number in 0..self.budgets {
            let mut pods = by_budget.remove(&number).unwrap_or_default();
            for other in 0..OTHER_PODS {
                pods.push(Arc::new(self.pod(
                    &format!("other-{number}-{other}"),
                    1,
                    Some(number),
                    None,
                )));
            }
            let held = pods.iter().filter(|pod| ledger.is_held(pod.uid.as_str())).count();
            let budget = budget(number, pods.len(), held.max(1))?;
            let (key, budget) = (budget_key(number), Arc::new(budget));
            let pods = pods.iter().map(|pod| (&**pod, false));
            let facts = budget_facts(&budget, pods, Kept::of(&budget, Some(&ledger)), None, self.now);
            snapshot.facts.insert(key.clone(), facts);
            snapshot.budgets.insert(key, budget);
        }
        for pod in snapshot
            .pods
            .values()
            .flatten()
            .filter(|pod| ledger.is_held(pod.uid.as_str()))
        {
            snapshot.held.insert(pod.key.clone(), Arc::clone(pod));
        }
        snapshot.ledger = Some(Arc::new(LedgerFacts {
            uid: "ledger".into(),
            resource_version: "1".into(),
            bytes: ledger.stored_bytes(),
            ledger,
            unreadable: None,
        }));
        Ok(snapshot)
    }

    /// Template and budget of a pod. Where the movable pods have left, those that no node has room for are left.
    fn place_of(&self, node: usize, pod: usize, drain: Option<usize>) -> (usize, Option<usize>) {
        let Some(drain) = drain else {
            let number = node * PODS_PER_NODE + pod;
            return (number % TEMPLATES, Some(number % self.budgets));
        };
        let budget = (pod < BUDGETED_PODS).then_some((drain * BUDGETED_PODS + pod) % self.budgets);
        let template = (drain * PODS_PER_NODE + pod) % TEMPLATES;
        match self.moment.of(drain) {
            Moment::Claiming | Moment::Evicting => (template / 3 * 3, budget),
            Moment::Cordoning | Moment::Leaving | Moment::Mixed => (template, budget),
        }
    }

    fn is_gone(&self, drain: usize, pod: usize) -> bool {
        match self.moment.of(drain) {
            Moment::Cordoning | Moment::Leaving | Moment::Mixed => false,
            Moment::Claiming => pod >= BUDGETED_PODS,
            Moment::Evicting => pod >= BUDGETED_PODS || pod.is_multiple_of(2),
        }
    }

    fn node(&self, number: usize, drain: Option<usize>) -> Result<NodeFacts> {
        let name = format!("n{number:05}");
        let is_cordoned = drain.is_some_and(|drain| self.moment.of(drain) != Moment::Cordoning);
        let by = is_cordoned.then(|| drain_uid(&name));
        let object = json!({
            "metadata": {
                "name": name, "uid": format!("uid-{name}"),
                "labels": { "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("z{}", number % 3) },
                "annotations": by.map(|by| json!({ nodeward_api::annotation::CORDONED_BY: by })),
            },
            "spec": { "unschedulable": is_cordoned },
            "status": {
                "allocatable": { "cpu": "32", "memory": "128Gi", "pods": "110" },
                "conditions": [
                    { "type": "Ready", "status": "True", "lastTransitionTime": self.now - SignedDuration::from_hours(24) },
                ],
                "nodeInfo": {
                    "bootID": "boot-1", "machineID": "", "architecture": "", "containerRuntimeVersion": "",
                    "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "operatingSystem": "", "osImage": "",
                    "systemUUID": "",
                },
            },
        });
        project_node(&serde_json::from_value(object)?).context("no node")
    }

    fn drain(&self, number: usize, node: &NodeFacts) -> Result<NodeDrain> {
        let object = json!({
            "metadata": {
                "name": node.name.as_str(), "uid": drain_uid(node.name.as_str()), "resourceVersion": "1",
                "creationTimestamp": self.now - SignedDuration::from_secs(60 + i64::try_from(number)?),
                "finalizers": [nodeward_api::finalizer::DRAIN_LOCK],
            },
            "spec": {
                "nodeName": node.name.as_str(), "nodeUID": node.uid.as_str(), "evict": "Nodeward",
                "requesters": [{ "name": "alice" }],
            },
        });
        Ok(serde_json::from_value(object)?)
    }

    fn pod(&mut self, name: &str, template: usize, budget: Option<usize>, node: Option<&NodeName>) -> PodFacts {
        let labels = self.labels.entry((template, budget)).or_insert_with(|| {
            let app = budget.map_or_else(|| "none".to_owned(), |budget| format!("app-{budget}"));
            Arc::new(
                [("app", app), ("template", format!("t{template}"))]
                    .into_iter()
                    .collect(),
            )
        });
        let mut pod = self.templates[template].clone();
        let namespace = namespace_of(budget.unwrap_or(template));
        let namespace = self
            .namespaces
            .entry(namespace)
            .or_insert_with_key(|name| name.as_str().into());
        pod.summary.labels = Arc::clone(labels);
        pod.summary.key = PodKey::new(Arc::clone(namespace), name);
        pod.summary.uid = format!("uid-{name}").into();
        pod.summary.node = node.cloned();
        if node.is_none() && budget.is_none() {
            pod.summary.phase = nodeward_core::pod::Phase::Pending;
            pod.summary.ready = false;
        }
        pod
    }

    /// Those that ask have their tickets, and those that evict their grants.
    fn ledger(&self, snapshot: &Snapshot) -> Ledger {
        let mut ledger = Ledger::default();
        let since = self.now - SignedDuration::from_secs(30);
        for (number, node) in snapshot.drains.keys().enumerate() {
            let uid = format!("uid-{node}");
            let moment = self.moment.of(number);
            if moment == Moment::Cordoning {
                continue;
            }
            ledger.enqueue(node.as_str(), &uid, false, since);
            if moment == Moment::Evicting
                && let Some(claim) = ledger.claims.last_mut()
            {
                let held = (0..BUDGETED_PODS).map(|pod| {
                    let budget = (number * BUDGETED_PODS + pod) % self.budgets;
                    let name = format!("{node}-{pod:02}");
                    Disruptions {
                        pdb: BudgetRef {
                            namespace: namespace_of(budget),
                            name: format!("app-{budget}"),
                            uid: budget_uid(budget),
                        },
                        healthy_at_grant: 0,
                        movable: false,
                        pods: vec![HeldPod {
                            uid: format!("uid-{name}"),
                            name,
                            ..HeldPod::default()
                        }],
                    }
                });
                claim.state = ClaimState::Confirmed;
                "boot-1".clone_into(&mut claim.boot_id);
                claim.holds = held.collect();
                claim.holds.sort();
            }
        }
        ledger
    }
}

/// It allows what was granted of it, or one disruption.
fn budget(number: usize, pods: usize, allowed: usize) -> Result<BudgetEntry> {
    let key = budget_key(number);
    let object = json!({
        "metadata": {
            "namespace": &*key.namespace, "name": &*key.name, "uid": budget_uid(number), "resourceVersion": "1",
            "generation": 1,
        },
        "spec": { "maxUnavailable": allowed, "selector": { "matchLabels": { "app": format!("app-{number}") } } },
        "status": {
            "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": pods,
            "desiredHealthy": pods - allowed, "expectedPods": pods,
        },
    });
    project_budget(&serde_json::from_value(object)?).context("no budget")
}

fn empty() -> Snapshot {
    Snapshot {
        nodes: BTreeMap::new(),
        drains: BTreeMap::new(),
        unreadable_drains: BTreeMap::new(),
        stale_entries: BTreeMap::new(),
        ledger: None,
        pods: BTreeMap::new(),
        deleted: Vec::new(),
        covering: HashMap::default(),
        budgets: BTreeMap::new(),
        unhealthy: BTreeMap::new(),
        facts: Facts::new(),
        down_osds: BTreeMap::<_, BTreeSet<String>>::new(),
        scheduling: SchedulingView::default(),
        held: BTreeMap::new(),
        leases: None,
        remediations: Remediations::default(),
        holds: Vec::new(),
    }
}

/// One pod of each template: every third asks for more than any node has left, every tenth keeps away from its like.
fn templates(now: Timestamp) -> Result<Vec<PodFacts>> {
    let mut projector = PodProjector::default();
    let templates = (0..TEMPLATES).map(|number| {
        let label = json!({ "template": format!("t{number}") });
        let apart = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
            { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": label } },
        ] } });
        let object = json!({
            "metadata": {
                "namespace": "n", "name": "p", "uid": "p", "labels": label,
                "creationTimestamp": now - SignedDuration::from_secs(10),
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("r{number}"), "uid": format!("r{number}"),
                    "controller": true,
                }],
            },
            "spec": {
                "nodeName": "n", "affinity": (number % 10 == 1).then_some(apart),
                "containers": [{ "name": "c", "resources": { "requests": {
                    "cpu": if number % 3 == 0 { "4" } else { "1" }, "memory": format!("{}Mi", 100 + number),
                } } }],
            },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        projector.project(&serde_json::from_value(object)?).context("no pod")
    });
    templates.collect()
}

fn namespace_of(budget: usize) -> String {
    format!("team-{}", budget / BUDGETS_PER_NAMESPACE)
}

fn budget_key(number: usize) -> BudgetKey {
    BudgetKey::new(namespace_of(number), format!("app-{number}"))
}

fn budget_uid(number: usize) -> String {
    format!("uid-budget-{number}")
}

fn drain_uid(node: &str) -> String {
    format!("uid-drain-{node}")
}
