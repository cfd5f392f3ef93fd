//! A budget's pods as they are: which are not healthy and why, and what of the budget's own counts is not true now.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, NodeSelectorRequirement, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use nodeward_core::budget::BudgetView;
use nodeward_core::deadline::saturating_add;
use nodeward_core::pod::{Phase, PodView};
use nodeward_core::text::counted;
use serde::Serialize;

use super::node::NodeSummary;
use crate::describe::{list, prefixed};
use crate::text::time::moment;

/// For how long the disruption controller counts an evicted pod as gone without having seen it go
/// (`DeletionTimeout` in kube-controller-manager).
const COUNTED_AS_GONE: SignedDuration = SignedDuration::from_mins(2);

/// For how long pods must have been Ready before another count of them is called wrong.
const COUNT_SETTLES: SignedDuration = SignedDuration::from_secs(10);

const HOSTNAME: &str = "kubernetes.io/hostname";

/// A budget's pods as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetHealth {
    pub pdb: String,
    /// Pods of it that are Ready and stay.
    pub healthy: usize,
    /// The others, each with its cause, in the order of their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unhealthy: Vec<UnhealthyPod>,
    /// What the budget's status counts differently, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_true: Vec<String>,
}

/// A pod that its budget does not count as healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyPod {
    pub pod: String,
    pub node: Option<String>,
    /// Completes "the pod …".
    pub cause: String,
}

/// The nodes that say why a pod is not healthy: its own, or the only ones that it fits.
pub fn nodes_of_interest(pod: &Pod) -> Vec<String> {
    match pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
        Some(node) => vec![node],
        None => hostnames(pod),
    }
}

impl BudgetHealth {
    /// Of the pods of its namespace that it selects; others are left out. `nodes` are those of [`nodes_of_interest`].
    pub fn of(
        budget: &PodDisruptionBudget,
        pods: &[Pod],
        nodes: &BTreeMap<String, NodeSummary>,
        now: Timestamp,
    ) -> Option<Self> {
        let view = BudgetView::project(budget)?;
        let pods: Vec<(&Pod, PodView)> = pods
            .iter()
            .filter_map(|pod| Some((pod, PodView::project(pod)?)))
            .filter(|(_, seen)| view.selects(seen) && seen.phase != Phase::Succeeded)
            .collect();
        let is_healthy = |(_, pod): &&(&Pod, PodView)| pod.ready && pod.deletion.is_none() && !pod.is_finished();
        let (healthy, others): (Vec<_>, Vec<_>) = pods.iter().partition(is_healthy);
        let mut unhealthy: Vec<UnhealthyPod> = others
            .into_iter()
            .map(|(pod, seen)| UnhealthyPod {
                pod: seen.key.to_string(),
                node: seen.node.as_ref().map(ToString::to_string),
                cause: cause(pod, seen, nodes, now),
            })
            .collect();
        unhealthy.sort_by(|a, b| a.pod.cmp(&b.pod));
        let healthy: Vec<&PodView> = healthy.into_iter().map(|(_, seen)| seen).collect();
        Some(Self {
            pdb: view.key.to_string(),
            healthy: healthy.len(),
            unhealthy,
            not_true: not_true(&view, budget, &pods, &healthy, now),
        })
    }

    /// Whether there is anything to tell of it.
    pub fn is_sound(&self) -> bool {
        self.unhealthy.is_empty() && self.not_true.is_empty()
    }
}

fn cause(pod: &Pod, seen: &PodView, nodes: &BTreeMap<String, NodeSummary>, now: Timestamp) -> String {
    let node = seen.node.as_ref().map(ToString::to_string);
    let on = prefixed(" on ", node.as_ref());
    if let Some(deletion) = &seen.deletion {
        return format!("terminates{on}; its grace ends at {}", moment(deletion.deadline, now));
    }
    if seen.phase == Phase::Failed {
        let status = pod.status.as_ref();
        let why = status.and_then(|status| status.reason.as_deref().or(status.message.as_deref()));
        return format!("has failed{on}{}", prefixed(": ", why));
    }
    let Some(node) = node else {
        return format!("is Pending: {}", why_unbound(pod, nodes));
    };
    if nodes.get(&node).is_some_and(|node| !node.ready) {
        return format!("is not Ready on {node}, which is not Ready");
    }
    let verb = if seen.phase == Phase::Pending {
        "is starting"
    } else {
        "is not Ready"
    };
    format!("{verb} on {node}{}", prefixed(": ", why_unready(pod)))
}

/// Why it has no node: the only nodes that it fits, if they take none, and the scheduler's own words.
fn why_unbound(pod: &Pod, nodes: &BTreeMap<String, NodeSummary>) -> String {
    let only = hostnames(pod);
    let takes_none = |name: &String| {
        let why = match nodes.get(name) {
            None => "does not exist",
            Some(node) if node.cordoned => "is cordoned",
            Some(node) if !node.ready => "is not Ready",
            Some(_) => return None,
        };
        Some(format!("{name}, which {why}"))
    };
    let closed: Vec<String> = only.iter().filter_map(takes_none).collect();
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut scheduled = conditions.filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    let said = scheduled.find_map(|condition| condition.message.clone());
    if !only.is_empty() && closed.len() == only.len() {
        return format!("it fits only {}", list(&closed));
    }
    said.unwrap_or_else(|| "the scheduler has not said why".to_owned())
}

/// The nodes that its selector or its required affinity names; none where it may go to others.
fn hostnames(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    if let Some(name) = spec.node_selector.iter().flatten().find(|(key, _)| *key == HOSTNAME) {
        return vec![name.1.clone()];
    }
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    let mut names = Vec::new();
    for term in required.iter().flat_map(|required| &required.node_selector_terms) {
        let names_nodes = |rule: &&NodeSelectorRequirement| {
            rule.operator == "In" && (rule.key == HOSTNAME || rule.key == "metadata.name")
        };
        let mut rules = term.match_expressions.iter().chain(&term.match_fields).flatten();
        // Terms are alternatives: one that names no node lets it go elsewhere.
        let Some(rule) = rules.find(names_nodes) else {
            return Vec::new();
        };
        names.extend(rule.values.iter().flatten().cloned());
    }
    names
}

/// What its containers wait for, else what its condition says.
fn why_unready(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let mut containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten();
    let waits = |container: &ContainerStatus| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?.reason.clone()?;
        let restarts = match container.restart_count {
            0 => String::new(),
            count => format!(" after {}", counted(count, "restart")),
        };
        Some(format!("container {} waits: {waiting}{restarts}", container.name))
    };
    let mut conditions = status.conditions.iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready");
    let said = ready
        .and_then(|ready| ready.message.clone())
        .filter(|said| !said.is_empty());
    containers.find_map(waits).or(said)
}

/// Where the budget's status says something else than its pods.
fn not_true(
    view: &BudgetView,
    budget: &PodDisruptionBudget,
    pods: &[(&Pod, PodView)],
    healthy: &[&PodView],
    now: Timestamp,
) -> Vec<String> {
    let mut told = Vec::new();
    if !view.is_status_current() {
        told.push("its counts are of an older spec: Kubernetes has not counted since it was changed".to_owned());
    }
    if view.status.sync_failed {
        let conditions = budget
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        let mut failed = conditions.filter(|one| one.reason == "SyncFailed");
        let said = failed.next().map(|one| one.message.clone()).unwrap_or_default();
        told.push(format!("Kubernetes cannot count its pods (SyncFailed): {said}"));
    }
    for (name, &evicted) in &view.status.disrupted_pods {
        let until = saturating_add(evicted, COUNTED_AS_GONE);
        if until <= now {
            continue;
        }
        let pod = pods
            .iter()
            .map(|(_, seen)| seen)
            .find(|seen| &*seen.key.name == name.as_str());
        let although = match pod {
            Some(pod) if pod.created > evicted => "its successor is here",
            Some(pod) if pod.deletion.is_some() => continue,
            Some(_) => "the pod is still here",
            None => "the pod is gone",
        };
        let until = moment(until, now);
        told.push(format!(
            "it counts {name} as evicted until {until}, although {although}"
        ));
    }
    let counted_as_gone = |pod: &&&PodView| {
        let evicted = view.status.disrupted_pods.get(&*pod.key.name);
        evicted.is_none_or(|&evicted| saturating_add(evicted, COUNTED_AS_GONE) <= now)
    };
    let ready = healthy.iter().filter(counted_as_gone).count();
    let settled = |pod: &&PodView| {
        pod.ready_since
            .is_some_and(|since| saturating_add(since, COUNT_SETTLES) <= now)
    };
    let current = usize::try_from(view.status.current_healthy).unwrap_or_default();
    if told.is_empty() && ready != current && healthy.iter().all(settled) {
        told.push(format!(
            "it counts {current} healthy pods, and {ready} are: if that lasts, check kube-controller-manager"
        ));
    }
    told
}

#[cfg(test)]
mod tests;
