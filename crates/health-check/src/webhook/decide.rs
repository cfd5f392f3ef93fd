//! Whether a change of a NodeHealthCheck is admitted. Pure.
//!
//! What was valid when it was stored stays updatable: an update is refused for what it makes worse, never for what was there
//! before. So a pause is admitted whatever else is wrong.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use nodeward_api::NodeHealthCheck;
use nodeward_api::node_health_check::{MISSING, NodeHealthCheckSpec, Remediation};
use nodeward_core::deadline::saturating_add;

use crate::plan;
use crate::snapshot::{RemediationKind, TemplateRef, TemplateState};
use crate::template_problem::template_problem;
use nodeward_core::node_health_check::{CheckSpec, UnhealthyCondition};

/// A remediation that a NodeHealthCheck's status has as one that is not over.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenRecord {
    /// Its node.
    pub node: String,
    /// The remediation; without a UID it is intended.
    pub resource: ObjectReference,
    /// When the time of its step is over.
    pub ends: Timestamp,
}

/// What is known of the templates that a NodeHealthCheck names.
pub type Templates = BTreeMap<TemplateRef, TemplateState>;

/// What lets a change through that waits for remediations, as far as it has not been done yet.
fn advice(stored: &NodeHealthCheck) -> &'static str {
    if stored.spec.pause_requests.is_empty() {
        "add a line to spec.pauseRequests, delete the remediations, and repeat this"
    } else {
        "delete the remediations, and repeat this once their finalizers are gone"
    }
}

/// Nodes that a refusal names at most.
const NAMED_NODES: usize = 3;

/// What somebody wants to do.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// What is stored; `None`: it is to be created.
    pub old: Option<&'a NodeHealthCheck>,
    /// What is to be stored; `None`: it is to go.
    pub new: Option<&'a NodeHealthCheck>,
}

/// The answer. Without refusals it is admitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Why it is refused, a sentence each, with what to do.
    pub refusals: Vec<String>,
    /// What the caller should know although it is admitted.
    pub warnings: Vec<String>,
}

/// The templates that the answer depends on.
pub fn named_templates(change: Change<'_>) -> Vec<TemplateRef> {
    let new = change
        .new
        .filter(|new| change.old.is_none_or(|old| changes_remediations(&old.spec, &new.spec)));
    let steps = new.map(|new| CheckSpec::compile(&new.spec).steps).unwrap_or_default();
    steps.into_iter().map(|step| step.template).collect()
}

/// The records of which it matters whether they are remediations that run.
pub fn open_records(change: Change<'_>) -> Vec<OpenRecord> {
    let matters = |old: &&NodeHealthCheck| change.new.is_none_or(|new| bears_on_what_runs(&old.spec, &new.spec));
    let Some(old) = change.old.filter(matters) else {
        return Vec::new();
    };
    let spec = CheckSpec::compile(&old.spec);
    let nodes = old.status.iter().flat_map(|status| &status.unhealthy_nodes);
    let records = nodes.flat_map(|node| node.remediations.iter().map(|record| (&node.name, record)));
    let open = records.filter(|(_, record)| record.runs());
    open.map(|(node, record)| OpenRecord {
        node: node.clone(),
        resource: record.resource.clone(),
        ends: ends(record, &spec),
    })
    .collect()
}

fn ends(record: &Remediation, spec: &CheckSpec) -> Timestamp {
    let namespace = record.resource.namespace.as_deref().unwrap_or_default();
    let kind = RemediationKind::of(&record.resource);
    let step = kind.and_then(|kind| spec.step_of(&kind, namespace, record.template_name.as_deref()));
    let started = record.started.unwrap_or(Timestamp::MAX);
    saturating_add(started, plan::longest_run(step, spec))
}

/// Judges a change, while these nodes run.
pub fn decide(change: Change<'_>, templates: &Templates, running: &BTreeSet<String>) -> Decision {
    let mut decision = Decision::default();
    let old = change.old;
    let Some(new) = change.new else {
        let stored = old.zip(named(running));
        decision.refusals.extend(stored.map(|(stored, nodes)| {
            format!(
                "{nodes} being remediated, and deleting the NodeHealthCheck would end that halfway: wait until that is \
                 over, or {}",
                advice(stored)
            )
        }));
        return decision;
    };
    let before = old
        .map(|old| CheckSpec::compile(&old.spec).problems)
        .unwrap_or_default();
    let spec = CheckSpec::compile(&new.spec);
    let worse = spec.problems.iter().filter(|problem| !before.contains(problem));
    decision.refusals.extend(worse.map(|problem| format!("spec.{problem}")));
    if old.is_none_or(|old| changes_remediations(&old.spec, &new.spec)) {
        judge_templates(&spec, templates, &mut decision);
    }
    if let Some(old) = old {
        judge_running(old, &new.spec, running, &mut decision);
    }
    if old.is_none_or(|old| old.spec.selector != new.spec.selector) {
        warn_of_wide_selector(&new.spec, &mut decision);
    }
    decision
}

fn judge_templates(spec: &CheckSpec, templates: &Templates, decision: &mut Decision) {
    for step in 0..spec.steps.len() {
        let template = &spec.steps[step].template;
        match templates.get(template).unwrap_or(&TemplateState::Unknown) {
            // The operator says so in the status, if it stays so.
            TemplateState::Unknown => decision.warnings.push(format!("{template} could not be checked")),
            TemplateState::Forbidden(_) => decision.warnings.push(format!(
                "{template} may not be read by health-check: label the ClusterRole of its remediator \
                 rbac.ext-remediation/aggregate-to-ext-remediation=true"
            )),
            // It may come later, in the same apply even: the operator waits for it.
            state @ (TemplateState::NotFound | TemplateState::KindAbsent) => {
                let problem = template_problem(spec, step, state).map(|problem| problem.text);
                decision
                    .warnings
                    .extend(problem.map(|text| format!("the NodeHealthCheck is disabled until then: {text}")));
            }
            state @ TemplateState::Found(_) => {
                decision
                    .refusals
                    .extend(template_problem(spec, step, state).map(|problem| problem.text));
            }
        }
    }
}

/// Remediations that run were made by the templates, for the nodes, of now.
fn judge_running(
    old: &NodeHealthCheck,
    new: &NodeHealthCheckSpec,
    running: &BTreeSet<String>,
    decision: &mut Decision,
) {
    let Some(nodes) = named(running) else { return };
    let fields = [
        ("selector", changes_selector(&old.spec, new)),
        (
            "remediationTemplate",
            old.spec.remediation_template != new.remediation_template,
        ),
        (
            "escalatingRemediations",
            old.spec.escalating_remediations != new.escalating_remediations,
        ),
    ];
    for (field, _) in fields.iter().filter(|(_, changes)| *changes) {
        decision.refusals.push(format!(
            "spec.{field} cannot be changed: {nodes} being remediated. Wait until that is over, or {}",
            advice(old)
        ));
    }
    let dropped = dropped_conditions(&old.spec, new);
    if !dropped.is_empty() {
        // Whoever has taken a sound node for a sick one ends that by this.
        decision.warnings.push(format!(
            "{nodes} being remediated, and spec.unhealthyConditions no longer has {}: a node that none of the others makes \
             unhealthy counts as healthy, and its remediations are deleted",
            dropped.join(", ")
        ));
    }
}

fn bears_on_what_runs(old: &NodeHealthCheckSpec, new: &NodeHealthCheckSpec) -> bool {
    changes_remediations(old, new) || changes_selector(old, new) || !dropped_conditions(old, new).is_empty()
}

/// Conditions that make no node unhealthy any more, each as `Ready=False`.
fn dropped_conditions(old: &NodeHealthCheckSpec, new: &NodeHealthCheckSpec) -> Vec<String> {
    let [old, new] = [old, new].map(|spec| {
        let conditions = CheckSpec::compile(spec).conditions;
        let named = |condition: &UnhealthyCondition| {
            let status = condition.status.as_deref().unwrap_or(MISSING);
            format!("{}={status}", condition.type_)
        };
        conditions.iter().map(named).collect::<Vec<_>>()
    });
    old.into_iter().filter(|condition| !new.contains(condition)).collect()
}

/// Resolving an absent selector changes nothing.
fn changes_selector(old: &NodeHealthCheckSpec, new: &NodeHealthCheckSpec) -> bool {
    old.selector.is_some() && old.selector != new.selector
}

fn changes_remediations(old: &NodeHealthCheckSpec, new: &NodeHealthCheckSpec) -> bool {
    old.remediation_template != new.remediation_template || old.escalating_remediations != new.escalating_remediations
}

fn warn_of_wide_selector(spec: &NodeHealthCheckSpec, decision: &mut Decision) {
    let is_empty = spec.selector.as_ref().is_some_and(|selector| {
        selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
            && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
    });
    if is_empty {
        decision.warnings.push(
            "spec.selector is empty and selects control-plane nodes, too: better have one NodeHealthCheck for each role"
                .to_owned(),
        );
    }
}

/// `nodes a, b are` or `node a is`; `None`: there are none.
fn named(nodes: &BTreeSet<String>) -> Option<String> {
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    match &*nodes {
        [] => None,
        [node] => Some(format!("node {node} is")),
        nodes => {
            let named = nodes.iter().take(NAMED_NODES).copied().collect::<Vec<_>>().join(", ");
            let more = nodes.len().saturating_sub(NAMED_NODES);
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            Some(format!("nodes {named}{more} are"))
        }
    }
}

#[cfg(test)]
mod tests;
