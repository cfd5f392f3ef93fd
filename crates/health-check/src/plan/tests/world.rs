//! A cluster for tests, which carries out what is planned as an API server would.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use nodeward_api::node_health_check::{NodeHealthCheckSpec, NodeHealthCheckStatus, UnhealthyNode};
use nodeward_api::reason::HealthReason;
use nodeward_core::drain::{NodeDrainView, NodeDrains};
use nodeward_core::id::{NamespacedName, NodeName};
use nodeward_core::labels::Labels;
use nodeward_core::lease::LeaseView;
use nodeward_core::node::NodeView;
use serde_json::{Value, json};

use crate::observations::Observations;
use crate::plan::{
    Action, CheckVerdict, LeaseChange, LeaseStep, NodeEvidence, NodeVerdict, Plan, RemediationChange, StartRemediation,
    plan,
};
use crate::policy::Policy;
use crate::snapshot::{
    CheckFacts, ConditionFacts, KindFacts, Listed, NodeFacts, RemediationFacts, RemediationKind, Snapshot,
    TemplateFacts, TemplateRef, TemplateState,
};
use nodeward_core::node_health_check::CheckSpec;

/// Moments are told in seconds after this.
const START: i64 = 1_767_225_600;

pub const API: &str = "remediation.example.org/v1alpha1";

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}

pub fn second_of(moment: Timestamp) -> i64 {
    moment.as_second() - START
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

pub fn template(name: &str) -> Value {
    json!({ "apiVersion": API, "kind": format!("{name}RemediationTemplate"), "namespace": "remediators", "name": name.to_lowercase() })
}

pub fn template_ref(name: &str) -> TemplateRef {
    TemplateRef {
        api_version: API.into(),
        kind: format!("{name}RemediationTemplate").into(),
        namespace: "remediators".into(),
        name: name.to_lowercase().into(),
    }
}

pub fn kind(name: &str) -> RemediationKind {
    template_ref(name).remediation_kind()
}

/// The specification's part that escalates: `("Reboot", "5m")` and so on.
pub fn chain(steps: &[(&str, &str)]) -> Value {
    let steps: Vec<Value> = steps
        .iter()
        .enumerate()
        .map(|(order, (name, timeout))| json!({ "order": order, "timeout": timeout, "remediationTemplate": template(name) }))
        .collect();
    json!({ "remediationTemplate": null, "escalatingRemediations": steps })
}

pub fn two_steps() -> Value {
    chain(&[("Reboot", "5m"), ("Fence", "5m")])
}

/// One moment of a cluster.
#[derive(Debug, Clone)]
pub struct World {
    pub snapshot: Snapshot,
    pub policy: Policy,
    version: u64,
}

impl World {
    /// So many workers, `w1` and on, all Ready for an hour; templates Reboot, Fence and Replace. A node with the annotation
    /// `upgrading` is being upgraded.
    pub fn workers(count: usize) -> Self {
        let mut world = Self {
            snapshot: Snapshot::default(),
            policy: Policy {
                upgrade_signal: serde_json::from_value(json!({ "node": { "annotation": "upgrading" } })).unwrap(),
                ..Policy::default()
            },
            version: 1,
        };
        world.snapshot.memory.found.overdue_stops = Some(BTreeMap::new());
        world.snapshot.memory.found.looked_at = Some(at(-1));
        for number in 1..=count {
            world.add_node(&format!("w{number}"), "worker", -3600);
        }
        for name in ["Reboot", "Fence", "Replace"] {
            world.template(name, true);
        }
        world
    }

    /// With the NodeHealthCheck `workers`, which reboots.
    pub fn watched(count: usize) -> Self {
        Self::workers(count).check("workers", json!({}))
    }

    /// Of five workers `w1` has failed at 0, and its first step runs since 300.
    pub fn remediating(check: Value) -> Self {
        let mut world = Self::workers(5).check("workers", check).failed("w1", 0);
        world.settle(300);
        assert_eq!(world.remediations(), ["Reboot of w1"]);
        world
    }

    pub fn add_node(&mut self, name: &str, role: &str, created: i64) {
        self.version += 1;
        let facts = NodeFacts {
            view: NodeView::project(
                &serde_json::from_value(json!({
                    "metadata": {
                        "name": name, "uid": format!("{name}-{}", self.version),
                        "labels": { "kubernetes.io/hostname": name, format!("node-role.kubernetes.io/{role}"): "" },
                    },
                    "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": at(created).to_string() }] },
                }))
                .unwrap(),
            )
            .unwrap(),
            created: at(created),
            conditions: [].into(),
            machine: None,
        };
        self.put_node(facts);
        self.set_condition(name, "Ready", Some("True"), created);
    }

    pub fn control_plane(mut self, count: usize) -> Self {
        for number in 1..=count {
            self.add_node(&format!("m{number}"), "control-plane", -3600);
        }
        self
    }

    pub fn template(&mut self, name: &str, supports_multiple: bool) {
        let facts = TemplateFacts {
            spec: Some(json!({ "by": name })),
            supports_multiple,
        };
        self.snapshot
            .templates
            .insert(template_ref(name), TemplateState::Found(Arc::new(facts)));
        let known = KindFacts {
            listed: Listed::Complete,
            may_annotate: true,
        };
        self.snapshot.kinds.insert(kind(name), known);
    }

    /// Templates of which a node may have one of a kind only, as most remediators have it.
    pub fn single(mut self) -> Self {
        for name in ["Reboot", "Fence", "Replace"] {
            self.template(name, false);
        }
        self
    }

    pub fn may_not_annotate(mut self) -> Self {
        for facts in self.snapshot.kinds.values_mut() {
            facts.may_annotate = false;
        }
        self
    }

    /// A NodeHealthCheck that reboots workers, with a change.
    pub fn check(mut self, name: &str, patch: Value) -> Self {
        self.set_check(name, patch);
        self
    }

    pub fn set_check(&mut self, name: &str, patch: Value) {
        self.version += 1;
        let spec = with(
            json!({
                "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/worker", "operator": "Exists" }] },
                "remediationTemplate": template("Reboot"),
            }),
            patch,
        );
        let spec: NodeHealthCheckSpec = serde_json::from_value(spec).unwrap();
        let before = self.snapshot.checks.get(name).map(|check| check.status.clone());
        let facts = CheckFacts {
            name: name.into(),
            uid: format!("uid-of-{name}").into(),
            resource_version: self.version.to_string().as_str().into(),
            generation: 1,
            deleting: false,
            spec: CheckSpec::compile(&spec),
            status: before.unwrap_or_default(),
        };
        self.snapshot.checks.insert(name.into(), Arc::new(facts));
    }

    pub fn change_check(&mut self, name: &str, change: impl FnOnce(&mut CheckFacts)) {
        let mut facts = CheckFacts::clone(&self.snapshot.checks[name]);
        change(&mut facts);
        self.snapshot.checks.insert(name.into(), Arc::new(facts));
    }

    pub fn change_node(&mut self, name: &str, change: impl FnOnce(&mut NodeFacts)) {
        let mut facts = NodeFacts::clone(&self.snapshot.nodes[name]);
        change(&mut facts);
        self.put_node(facts);
    }

    fn put_node(&mut self, facts: NodeFacts) {
        let name = facts.view.name.clone();
        self.snapshot.nodes.change(|nodes| nodes.insert(name, Arc::new(facts)));
    }

    pub fn set_condition(&mut self, node: &str, type_: &str, status: Option<&str>, since: i64) {
        let stepped_by = self.snapshot.clock_stepped_by;
        self.change_node(node, |facts| {
            let mut conditions = facts.conditions.to_vec();
            conditions.retain(|condition| *condition.type_ != *type_);
            conditions.extend(status.map(|status| ConditionFacts {
                type_: type_.into(),
                status: status.into(),
                last_transition: Some(at(since)),
                counts_since: at(since) - stepped_by,
            }));
            facts.conditions = conditions.into();
            if type_ == "Ready" {
                facts.view.ready = status == Some("True");
                facts.view.ready_since = Some(at(since));
            }
        });
    }

    /// Ready=Unknown since then.
    pub fn fail(&mut self, node: &str, since: i64) {
        self.set_condition(node, "Ready", Some("Unknown"), since);
    }

    pub fn failed(mut self, node: &str, since: i64) -> Self {
        self.fail(node, since);
        self
    }

    /// Ready=True since then.
    pub fn fail_all<const N: usize>(&mut self, nodes: [&str; N], since: i64) {
        for node in nodes {
            self.fail(node, since);
        }
    }

    pub fn heal(&mut self, node: &str, since: i64) {
        self.set_condition(node, "Ready", Some("True"), since);
    }

    pub fn heal_all<const N: usize>(&mut self, nodes: [&str; N], since: i64) {
        for node in nodes {
            self.heal(node, since);
        }
    }

    pub fn label(&mut self, node: &str, key: &str, value: Option<&str>) {
        self.change_node(node, |facts| {
            let mut labels: BTreeMap<String, String> = facts
                .view
                .labels
                .iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect();
            match value {
                Some(value) => labels.insert(key.to_owned(), value.to_owned()),
                None => labels.remove(key),
            };
            facts.view.labels = labels.into_iter().collect::<Labels>();
        });
    }

    pub fn annotate_node(&mut self, node: &str, key: &str, value: Option<&str>) {
        self.change_node(node, |facts| {
            match value {
                Some(value) => facts.view.annotations.insert(key.to_owned(), value.to_owned()),
                None => facts.view.annotations.remove(key),
            };
        });
    }

    pub fn node_annotation(&self, node: &str, key: &str) -> Option<&str> {
        self.snapshot.nodes[node].view.annotations.get(key).map(String::as_str)
    }

    pub fn remove_node(&mut self, node: &str) {
        self.snapshot.nodes.change(|nodes| nodes.remove(node));
    }

    /// A NodeDrain of the node in this phase, with this deadline.
    /// A drain whose claim has its grant while its pods leave.
    pub fn drain(&mut self, node: &str, phase: &str, deadline: i64) {
        let granted = matches!(phase, "Granted" | "Draining");
        self.drain_that_is(node, phase, granted, deadline);
    }

    pub fn drain_that_is(&mut self, node: &str, phase: &str, granted: bool, deadline: i64) {
        let granted = json!({
            "type": "Granted", "status": if granted { "True" } else { "False" }, "reason": "R", "message": "",
            "lastTransitionTime": at(0).to_string(),
        });
        let drain = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": node },
            "spec": { "nodeName": node },
            "status": { "phase": phase, "deadline": at(deadline).to_string(), "conditions": [granted] },
        });
        let view = NodeDrainView::project(&serde_json::from_value(drain).unwrap()).unwrap();
        self.snapshot.drains = NodeDrains::Known([(node.into(), Ok(Arc::new(view)))].into());
    }

    pub fn lease(&mut self, name: &str, holder: &str, renewed: i64, minutes: i64) {
        self.version += 1;
        let lease = LeaseView {
            name: name.into(),
            resource_version: self.version.to_string().as_str().into(),
            holder: Some(holder.into()),
            acquired: Some(at(renewed)),
            renewed: Some(at(renewed)),
            duration: Some(SignedDuration::from_mins(minutes)),
            transitions: 0,
        };
        self.snapshot.leases.insert(name.into(), Arc::new(lease));
    }

    pub fn holder(&self, lease: &str) -> Option<&str> {
        self.snapshot.leases.get(lease)?.holder.as_deref()
    }

    /// A remediation of a node that nobody planned: its owners are given by UID.
    pub fn add_remediation(&mut self, by: &str, node: &str, owners: &[&str], created: i64) -> Arc<RemediationFacts> {
        self.version += 1;
        let facts = Arc::new(RemediationFacts {
            kind: kind(by),
            key: NamespacedName::new("remediators", node),
            uid: format!("cr-{}", self.version).into(),
            resource_version: self.version.to_string().as_str().into(),
            created: at(created),
            deleting: None,
            finalizers: [].into(),
            node: node.into(),
            tells_node: true,
            node_uid: None,
            template: None,
            owners: owners.iter().map(|owner| Arc::from(*owner)).collect(),
            is_control_plane: false,
            timed_out: None,
            healthy_since: None,
            is_flagged_old: false,
            succeeded: None,
            node_deletion_expected: false,
        });
        self.snapshot.remediations.push(Arc::clone(&facts));
        facts
    }

    pub fn change_remediations(&mut self, change: impl Fn(&mut RemediationFacts)) {
        for remediation in &mut self.snapshot.remediations {
            change(Arc::make_mut(remediation));
        }
    }

    pub fn succeeded(&mut self, status: &str) {
        self.change_remediations(|facts| facts.succeeded = Some(status.into()));
    }

    /// What is there, as `kind of node`, sorted.
    pub fn remediations(&self) -> Vec<String> {
        let mut all: Vec<String> = self
            .snapshot
            .remediations
            .iter()
            .map(|live| format!("{} of {}", live.kind.kind.trim_end_matches("Remediation"), live.node))
            .collect();
        all.sort();
        all
    }

    pub fn status(&self, check: &str) -> &NodeHealthCheckStatus {
        &self.snapshot.checks[check].status
    }

    pub fn entry(&self, node: &str) -> Option<&UnhealthyNode> {
        let mut entries = self.status("workers").unhealthy_nodes.iter();
        entries.find(|entry| entry.name == node)
    }

    pub fn plan(&self, second: i64) -> Plan {
        plan(&self.snapshot, &self.policy, at(second))
    }

    /// What a plan leaves for the next one.
    pub fn remember(&mut self, plan: &Plan) {
        self.snapshot.memory.found.clone_from(&plan.found);
    }

    /// Another process leads, and remembers nothing, nor how the clock was stepped.
    pub fn restart_leader(&mut self) {
        self.snapshot.clock_stepped_by = SignedDuration::ZERO;
        self.snapshot.nodes.change(|nodes| {
            for condition in nodes.values_mut().flat_map(|node| &mut Arc::make_mut(node).conditions) {
                condition.counts_since = condition.last_transition.unwrap_or(condition.counts_since);
            }
        });
        self.snapshot.memory = Observations::default();
    }

    /// Carries out a plan, all of it.
    pub fn apply(&mut self, plan: Plan, second: i64) {
        self.remember(&plan);
        for action in plan.actions {
            let shown = format!("{action:?}");
            assert!(self.try_act(action, second), "what it rests on does not hold: {shown}");
        }
    }

    /// Plans and carries out until nothing is left to do at that moment.
    pub fn settle(&mut self, second: i64) -> Plan {
        for _ in 0..20 {
            let plan = self.plan(second);
            if plan.actions.is_empty() {
                self.apply(plan.clone(), second);
                return plan;
            }
            self.apply(plan, second);
        }
        panic!("never at rest: {:#?}", self.plan(second).actions);
    }

    /// Lives through a span, from deadline to deadline.
    pub fn live(&mut self, from: i64, to: i64) {
        let mut now = from;
        loop {
            let plan = self.settle(now);
            match plan.requeue_at.map(second_of) {
                Some(next) if next <= to => now = next.max(now + 1),
                _ => return,
            }
        }
    }

    /// Carries out an action if what it rests on still holds, as an API server and the executor see to.
    pub fn try_act(&mut self, action: Action, second: i64) -> bool {
        let holds = |evidence: &NodeEvidence| evidence.check(self.read_node(&evidence.name).as_ref()).is_ok();
        let is_there = |uid: &Arc<str>| self.snapshot.remediations.iter().any(|live| live.uid == *uid);
        let is_as_seen =
            |change: &LeaseChange| self.snapshot.leases.get(change.name.to_string().as_str()) == change.seen.as_ref();
        let may_be_done = match &action {
            Action::WriteStatus(write) => self.snapshot.checks[&write.check.name].resource_version == write.base,
            Action::WriteSelector(_) => true,
            Action::StartRemediation(start) => {
                let named = |live: &Arc<RemediationFacts>| live.kind == start.kind && live.key == start.key;
                self.unmet(start, second).is_none()
                    && start.leases().all(is_as_seen)
                    && !self.snapshot.remediations.iter().any(named)
            }
            Action::DeleteRemediation(write) | Action::AnnotateRemediation(write, _) => {
                is_there(&write.remediation.uid) && write.evidence.as_ref().is_none_or(holds)
            }
            Action::Lease(change) => is_as_seen(change),
            Action::AnnotateNode { node, node_uid, .. } => {
                let facts = self.snapshot.nodes.get(node);
                facts.is_some_and(|facts| facts.view.uid == *node_uid)
            }
            Action::Default { .. } => false,
        };
        if may_be_done {
            self.act(action, second);
        }
        may_be_done
    }

    pub fn read_node(&self, name: &NodeName) -> Option<Node> {
        let facts = self.snapshot.nodes.get(name)?;
        let conditions = facts.conditions.iter().map(|condition| {
            json!({
                "type": &*condition.type_, "status": &*condition.status,
                "lastTransitionTime": condition.last_transition.map(|at| at.to_string()),
            })
        });
        let node = json!({
            "metadata": { "name": name.as_str(), "uid": facts.view.uid.as_str() },
            "status": { "conditions": conditions.collect::<Vec<_>>() },
        });
        Some(serde_json::from_value(node).unwrap())
    }

    pub fn act(&mut self, action: Action, second: i64) {
        match action {
            Action::WriteStatus(write) => {
                let facts = &self.snapshot.checks[&write.check.name];
                assert_eq!(facts.resource_version, write.base);
                self.version += 1;
                let version = self.version.to_string();
                let status = write.status;
                self.change_check(&write.check.name, |facts| {
                    facts.status = status;
                    facts.resource_version = version.as_str().into();
                });
            }
            Action::WriteSelector(write) => self.change_check(&write.check.name, |facts| {
                facts.spec.selector = Some(nodeward_core::selector::Selector::parse(Some(&write.selector)).unwrap());
            }),
            Action::StartRemediation(start) => self.start(*start, second),
            Action::DeleteRemediation(write) => {
                let is_it = |live: &RemediationFacts| live.uid == write.remediation.uid;
                self.snapshot
                    .remediations
                    .retain(|live| !is_it(live) || !live.finalizers.is_empty());
                for live in self.snapshot.remediations.iter_mut().filter(|live| is_it(live)) {
                    let live = Arc::make_mut(live);
                    live.deleting = live.deleting.or(Some(at(second)));
                }
            }
            Action::AnnotateRemediation(write, change) => {
                for live in &mut self.snapshot.remediations {
                    if live.uid == write.remediation.uid {
                        let live = Arc::make_mut(live);
                        match change {
                            RemediationChange::TimedOut(at) => live.timed_out = Some(at),
                            RemediationChange::HealthySince(since) => live.healthy_since = since,
                            RemediationChange::FlagOld => live.is_flagged_old = true,
                        }
                    }
                }
            }
            Action::Lease(change) => self.change_lease(change, second),
            Action::AnnotateNode { node, change, .. } => {
                self.annotate_node(node.as_str(), change.annotation(), change.value());
            }
            Action::Default { .. } => {}
        }
    }

    fn start(&mut self, start: StartRemediation, second: i64) {
        let metadata = &start.object()["metadata"];
        for change in start.leases() {
            self.change_lease(change.clone(), second);
        }
        self.version += 1;
        let annotation = |key: &str| metadata["annotations"][key].as_str().map(Arc::<str>::from);
        let same = |live: &Arc<RemediationFacts>| live.kind == start.kind && live.key == start.key;
        assert!(!self.snapshot.remediations.iter().any(same), "{} exists", start.key);
        self.snapshot.remediations.push(Arc::new(RemediationFacts {
            kind: start.kind,
            key: start.key,
            uid: format!("cr-{}", self.version).into(),
            resource_version: self.version.to_string().as_str().into(),
            created: at(second),
            deleting: None,
            finalizers: [].into(),
            node: start.node,
            tells_node: true,
            node_uid: annotation("nodeward.dev/node-uid").map(Into::into),
            template: annotation("remediation.medik8s.io/template-name"),
            owners: metadata["ownerReferences"]
                .as_array()
                .unwrap()
                .iter()
                .map(|owner| owner["uid"].as_str().unwrap().into())
                .collect(),
            is_control_plane: metadata["labels"]["remediation.medik8s.io/isControlPlaneNode"].is_string(),
            timed_out: None,
            healthy_since: None,
            is_flagged_old: false,
            succeeded: None,
            node_deletion_expected: false,
        }));
    }

    fn change_lease(&mut self, change: LeaseChange, second: i64) {
        let name: Arc<str> = change.name.to_string().into();
        assert_eq!(self.snapshot.leases.get(&name), change.seen.as_ref());
        match change.step {
            LeaseStep::GiveBack => {
                self.snapshot.leases.remove(&name);
            }
            LeaseStep::Take(terms) => {
                self.version += 1;
                let lease = LeaseView {
                    name: Arc::clone(&name),
                    resource_version: self.version.to_string().as_str().into(),
                    holder: Some(terms.holder.into()),
                    acquired: Some(at(second)),
                    renewed: Some(at(second)),
                    duration: Some(terms.duration),
                    transitions: 0,
                };
                self.snapshot.leases.insert(name, Arc::new(lease));
            }
        }
    }
}

impl Plan {
    pub(crate) fn starts(&self) -> Vec<&StartRemediation> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::StartRemediation(start) => Some(&**start),
                _ => None,
            })
            .collect()
    }

    /// Names of nodes whose remediation is started, in order.
    pub(crate) fn started(&self) -> Vec<&str> {
        self.starts().iter().map(|start| start.node.as_str()).collect()
    }

    /// Names of nodes whose remediations are deleted, in order.
    pub(crate) fn deleted(&self) -> Vec<&str> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::DeleteRemediation(write) => Some(write.remediation.node.as_str()),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn annotations(&self) -> Vec<RemediationChange> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::AnnotateRemediation(_, change) => Some(*change),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn leases(&self) -> Vec<&LeaseChange> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::Lease(change) => Some(change),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn written(&self, check: &str) -> Option<&NodeHealthCheckStatus> {
        self.actions.iter().find_map(|action| match action {
            Action::WriteStatus(write) if *write.check.name == *check => Some(&*write.status),
            _ => None,
        })
    }

    /// Nodes for which the written status has an intent.
    pub(crate) fn intended(&self, check: &str) -> Vec<String> {
        let status = self.written(check).into_iter();
        status.flat_map(intents).collect()
    }

    pub(crate) fn check(&self, name: &str) -> &CheckVerdict {
        let mut checks = self.verdicts.checks.iter();
        checks.find(|verdict| *verdict.check.name == *name).unwrap()
    }

    /// The verdict on a node, of `workers` if there are several NodeHealthChecks.
    pub(crate) fn node(&self, node: &str) -> &NodeVerdict {
        let nodes = || {
            self.verdicts
                .nodes
                .iter()
                .filter(|verdict| verdict.node.as_str() == node)
        };
        let found = nodes()
            .find(|verdict| *verdict.check.name == *"workers")
            .or_else(|| nodes().next());
        found.unwrap_or_else(|| panic!("{:?}", self.verdicts.nodes))
    }

    pub(crate) fn reason(&self, node: &str) -> HealthReason {
        self.node(node).reason
    }

    pub(crate) fn counts(&self, check: &str) -> (usize, usize) {
        let verdict = self.check(check);
        (verdict.healthy, verdict.observed)
    }

    pub(crate) fn requeue_second(&self) -> i64 {
        second_of(self.requeue_at.unwrap())
    }
}

/// Nodes that a status has an intent for.
pub fn intents(status: &NodeHealthCheckStatus) -> Vec<String> {
    let is_intended = |entry: &&UnhealthyNode| entry.remediations.iter().any(|record| record.resource.uid.is_none());
    let entries = status.unhealthy_nodes.iter().filter(is_intended);
    entries.map(|entry| entry.name.clone()).collect()
}

pub fn name(node: &str) -> NodeName {
    node.into()
}
