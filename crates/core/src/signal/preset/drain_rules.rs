//! Cluster API's MachineDrainRules: which pods of a Machine's node its drain leaves alone. Read as its Machine controller reads
//! them (v1.14): of the rules in the Machine's namespace that apply to the Machine, the first by name that applies to a pod counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::Value;

use super::super::fields::Fields;
use super::super::inputs::{SignalInputs, WatchedResource, full_name};
use super::claim;
use crate::node::NodeView;
use crate::opt_out::OptOut;
use crate::pod::PodSummary;
use crate::selector::{Selector, SelectorError};

/// What is read besides the signal's own.
pub(in crate::signal) fn kinds() -> Vec<(WatchedResource, Fields)> {
    let of = |kind: &str, fields: &[&str]| claim::in_all_versions(kind).map(|kind| (kind, Fields::of(fields)));
    let mut kinds = Vec::from(of("Machine", &["metadata.labels", "spec.clusterName"]));
    kinds.extend(of("MachineDrainRule", &["spec"]));
    kinds.extend(of("Cluster", &["metadata.labels"]));
    kinds.push((
        WatchedResource::all("v1", "Namespace"),
        Fields::of(&["metadata.labels"]),
    ));
    kinds
}

/// The rules that apply to the Machine of a node, by name; or why they are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainRules(Result<Vec<Arc<Rule>>, String>);

#[derive(Debug, PartialEq, Eq)]
struct Rule {
    /// With its namespace.
    name: String,
    /// `None`: the pod is drained.
    opt_out: Option<OptOut>,
    /// The Machines that it applies to, by any of these: their labels, and their Clusters'. Without one, to all.
    machines: Vec<(Selector, Selector)>,
    /// The pods that it applies to, by any of these: their labels, and their namespaces if not all. Without one, to all.
    pods: Vec<(Selector, Option<Named>)>,
}

/// The namespaces that a selector names; or why they are not known.
type Named = Result<BTreeSet<String>, String>;

/// All rules, by the namespace that they are in and by name; or why one of the namespace is none.
#[derive(Debug)]
pub(in crate::signal) struct AllRules(BTreeMap<String, Result<BTreeMap<String, Arc<Rule>>, String>>);

impl AllRules {
    fn read(inputs: &SignalInputs, rules: &[Arc<Value>]) -> Self {
        let mut all = BTreeMap::new();
        for rule in rules {
            let of_namespace = all.entry(text(rule, "/metadata/namespace").to_owned());
            let of_namespace = of_namespace.or_insert_with(|| Ok(BTreeMap::new()));
            match (Rule::read(inputs, rule), &mut *of_namespace) {
                (Ok(rule), Ok(rules)) => drop(rules.insert(rule.name.clone(), Arc::new(rule))),
                // Cluster API drains nothing while one of the namespace is no rule.
                (Err(error), Ok(_)) => *of_namespace = Err(format!("{} is none: {error}", full_name(rule))),
                (_, Err(_)) => {}
            }
        }
        Self(all)
    }

    /// Those of a namespace.
    fn of(&self, namespace: &str) -> Result<impl Iterator<Item = &Arc<Rule>>, String> {
        let rules = self.0.get(namespace).map(Result::as_ref).transpose()?;
        Ok(rules.into_iter().flat_map(BTreeMap::values))
    }
}

impl DrainRules {
    /// There are none.
    pub const NONE: Self = Self(Ok(Vec::new()));

    /// Those of the node's Machine, as far as they are known.
    pub(in crate::signal) fn of_node(inputs: &SignalInputs, node: &NodeView) -> Self {
        Self(rules_of(inputs, node))
    }

    /// What they ask for a pod, and which rule does; or why nobody knows.
    pub fn opt_out(&self, pod: &PodSummary) -> Option<(OptOut, String)> {
        match &self.0 {
            Ok(rules) => {
                let rule = rules.iter().find(|rule| rule.applies_to(pod))?;
                Some((rule.opt_out?, format!("MachineDrainRule {}", rule.name)))
            }
            Err(why) => Some((OptOut::Unknown, format!("MachineDrainRules are not known: {why}"))),
        }
    }
}

impl Rule {
    fn read(inputs: &SignalInputs, rule: &Value) -> Result<Self, String> {
        let spec = Spec::deserialize(&rule["spec"]).map_err(|error| error.to_string())?;
        let machines = spec.machines.iter().map(|machines| {
            let own = selector(machines.selector.as_ref())?;
            Ok((own, selector(machines.cluster_selector.as_ref())?))
        });
        let pods = spec.pods.iter().map(|pods| {
            let own = selector(pods.selector.as_ref())?;
            let namespaces = selector(pods.namespace_selector.as_ref())?;
            let named = (!namespaces.is_empty()).then(|| namespaces_by(inputs, &namespaces));
            Ok((own, named))
        });
        let no_rule = |error: SelectorError| error.to_string();
        Ok(Self {
            name: full_name(rule),
            opt_out: match spec.drain.behavior {
                Behavior::Drain => None,
                Behavior::Skip => Some(OptOut::Skip),
                Behavior::WaitCompleted => Some(OptOut::WaitCompleted),
            },
            machines: machines.collect::<Result<_, _>>().map_err(no_rule)?,
            pods: pods.collect::<Result<_, _>>().map_err(no_rule)?,
        })
    }

    /// Whether it applies to a Machine with these labels; `cluster` gives its Cluster's.
    fn applies_to_machine(
        &self,
        machine: &BTreeMap<String, String>,
        cluster: impl Fn() -> Result<BTreeMap<String, String>, String>,
    ) -> Result<bool, String> {
        for (own, of_cluster) in &self.machines {
            if own.matches_map(machine) && (of_cluster.is_empty() || of_cluster.matches_map(&cluster()?)) {
                return Ok(true);
            }
        }
        Ok(self.machines.is_empty())
    }

    fn applies_to(&self, pod: &PodSummary) -> bool {
        let is_in = |namespaces: &Named| {
            namespaces
                .as_ref()
                .is_ok_and(|namespaces| namespaces.contains(&*pod.key.namespace))
        };
        let matches = |(labels, namespaces): &(Selector, Option<Named>)| {
            labels.matches(&pod.labels) && namespaces.as_ref().is_none_or(is_in)
        };
        self.pods.is_empty() || self.pods.iter().any(matches)
    }
}

/// `spec` of a MachineDrainRule, the same in `v1beta1` and `v1beta2`.
#[derive(Deserialize)]
struct Spec {
    drain: Drain,
    #[serde(default)]
    machines: Vec<MachineSelector>,
    #[serde(default)]
    pods: Vec<PodSelector>,
}

#[derive(Deserialize)]
struct Drain {
    behavior: Behavior,
}

#[derive(Deserialize)]
enum Behavior {
    Drain,
    Skip,
    WaitCompleted,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MachineSelector {
    selector: Option<LabelSelector>,
    cluster_selector: Option<LabelSelector>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSelector {
    selector: Option<LabelSelector>,
    namespace_selector: Option<LabelSelector>,
}

fn rules_of(inputs: &SignalInputs, node: &NodeView) -> Result<Vec<Arc<Rule>>, String> {
    let Some(machine) = claim::machine_of(inputs, node).map_err(|note| note.message)? else {
        return Ok(Vec::new());
    };
    let (namespace, cluster) = (
        text(&machine, "/metadata/namespace"),
        text(&machine, "/spec/clusterName"),
    );
    let rules = listed(inputs, &claim::in_all_versions("MachineDrainRule"))?;
    let rules = inputs.drain_rules(|| AllRules::read(inputs, rules));
    let machine_labels = labels(&machine);
    let mut applying = Vec::new();
    for rule in rules.of(namespace)? {
        if rule.applies_to_machine(&machine_labels, || cluster_labels(inputs, namespace, cluster))? {
            let mut named = rule.pods.iter().filter_map(|(_, namespaces)| namespaces.as_ref());
            if let Some(unknown) = named.find_map(|named| named.as_ref().err()) {
                return Err(unknown.clone());
            }
            applying.push(Arc::clone(rule));
        }
    }
    Ok(applying)
}

fn cluster_labels(inputs: &SignalInputs, namespace: &str, name: &str) -> Result<BTreeMap<String, String>, String> {
    let clusters = listed(inputs, &claim::in_all_versions("Cluster"))?;
    let is_it = |cluster: &&Arc<Value>| {
        (text(cluster, "/metadata/namespace"), text(cluster, "/metadata/name")) == (namespace, name)
    };
    let found = clusters.iter().find(is_it);
    found
        .map(|cluster| labels(cluster))
        .ok_or_else(|| format!("there is no Cluster {namespace}/{name}"))
}

fn namespaces_by(inputs: &SignalInputs, selector: &Selector) -> Named {
    let all = listed(inputs, &[WatchedResource::all("v1", "Namespace")])?;
    let selected = all.iter().filter(|namespace| selector.matches_map(&labels(namespace)));
    Ok(selected
        .map(|namespace| text(namespace, "/metadata/name").to_owned())
        .collect())
}

/// The objects of the first of these that is served; none where none is.
fn listed<'a>(inputs: &'a SignalInputs, kinds: &[WatchedResource]) -> Result<&'a [Arc<Value>], String> {
    let Some(kind) = claim::served(inputs, kinds) else {
        return Ok(&[]);
    };
    inputs.objects(kind).map_err(|answer| {
        let note = answer.notes.into_iter().next();
        note.map_or_else(|| format!("{kind} is not known"), |note| note.message)
    })
}

/// Absent selects everything there.
fn selector(selector: Option<&LabelSelector>) -> Result<Selector, SelectorError> {
    selector.map_or_else(
        || Ok(Selector::everything()),
        |selector| Selector::parse(Some(selector)),
    )
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object.pointer("/metadata/labels").cloned();
    labels
        .and_then(|labels| serde_json::from_value(labels).ok())
        .unwrap_or_default()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
