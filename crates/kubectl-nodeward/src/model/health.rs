//! The health of nodes, as NodeHealthChecks judge it: made of their specs and statuses, and of what stands in the way of a
//! remediation. What only the operator knows (an upgrade, a backoff, etcd's quorum) comes from its word in the status.

use std::borrow::Cow;
use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::core::DynamicObject;
use nodeward_api::condition::{DISABLED, STORM_COOLDOWN_ACTIVE};
use nodeward_api::label::{EXCLUDE_FROM_REMEDIATION, EXCLUDE_FROM_REMEDIATION_TRUE, WORKER_ROLE};
use nodeward_api::node_health_check::{
    KIND_NOT_SERVED, MISSING, NodeHealthCheck, NodeHealthCheckStatus, Phase, Remediation, StoppedBy, UnhealthyNode,
};
use nodeward_api::node_lease::holder_of;
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::saturating_add;
use nodeward_core::drain::is_maintenance;
use nodeward_core::labels::Labels;
use nodeward_core::lease::{LeaseState, LeaseView, lease_state};
use nodeward_core::node_health_check::{CheckSpec, HealthyDelay, RemediationKind, ThresholdState};
use nodeward_core::remediation::node_of;
use serde::{Deserialize, Serialize};

use super::drain::Drain;
use super::node::condition;
use crate::describe::prefixed;

/// So long after its condition has lasted for long enough the status names a node at the latest.
const LISTED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// A NodeHealthCheck, as its status tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    pub name: String,
    /// Absent until the operator has answered.
    pub phase: Option<Phase>,
    pub healthy: Option<i32>,
    /// Selected nodes.
    pub observed: Option<i32>,
    /// Nodes with a remediation of it that is not over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remediating: Vec<String>,
    /// Why its phase is as it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What stops remediations that are due, and of which nodes; not what stops all of them, which is told by the phase.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<StoppedNodes>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// What stops the remediation of some nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoppedNodes {
    #[serde(flatten)]
    pub stop: Stop,
    pub nodes: Vec<String>,
}

/// How a node stands in the eyes of a NodeHealthCheck.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeHealth {
    pub check: String,
    pub reason: HealthReason,
    /// When that ends by itself.
    pub until: Option<Timestamp>,
    /// The unhealthy condition that the node has; of several the one that counts first.
    pub condition: Option<MatchedCondition>,
    /// All that keeps a remediation from starting, or from going on to its next step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stopped_by: Vec<Stop>,
    pub step: Option<Step>,
    pub next: Option<NextStep>,
}

/// A condition that counts as unhealthy once it has lasted for long enough.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MatchedCondition {
    #[serde(rename = "type")]
    pub type_: String,
    /// `Missing` where the node has no such condition.
    pub status: String,
    pub since: Timestamp,
    /// When it has lasted for long enough.
    pub expires: Timestamp,
}

/// Something that stops a remediation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stop {
    pub reason: HealthReason,
    pub detail: String,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
}

/// The latest remediation of a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Which step of the chain it is, from 1.
    pub number: usize,
    pub of: usize,
    /// The remediation, as `KIND NAMESPACE/NAME`.
    pub remediation: String,
    pub started: Option<Timestamp>,
    /// When it times out; absent where it never does.
    pub ends: Option<Timestamp>,
    /// When it did.
    pub timed_out: Option<Timestamp>,
    /// It went with the definition of its kind.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kind_not_served: bool,
    /// What its remediator says of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<String>,
    /// By which it is read.
    #[serde(skip)]
    pub resource: ObjectReference,
}

/// A remediation that is being deleted, and what keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptRemediation {
    pub check: String,
    /// As `KIND NAMESPACE/NAME`.
    pub remediation: String,
    pub deleted: Timestamp,
    pub finalizers: Vec<String>,
}

/// The step after the present one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NextStep {
    /// Which step of the chain it is, from 1.
    pub number: usize,
    /// Its template, as `KIND NAMESPACE/NAME`.
    pub template: String,
    pub at: Option<Timestamp>,
}

/// What [`of_node`] is made of; each part is absent where it does not exist or could not be read.
#[derive(Debug, Clone, Copy, Default)]
pub struct HealthSources<'a> {
    pub checks: &'a [NodeHealthCheck],
    pub node: Option<&'a Node>,
    pub drain: Option<&'a Drain>,
    /// The lease of whoever has taken the node.
    pub lease: Option<&'a LeaseView>,
}

impl HealthCheck {
    pub fn of(check: &NodeHealthCheck) -> Self {
        let status = check.status.clone().unwrap_or_default();
        Self {
            name: check.name_any(),
            phase: status.phase,
            healthy: status.healthy_nodes,
            observed: status.observed_nodes,
            remediating: running(&status),
            stopped: stopped(&status),
            reason: status.reason,
            dry_run: check.spec.dry_run,
        }
    }
}

impl KeptRemediation {
    /// Of the node, and of this one of all NodeHealthChecks, or of one that is gone; `None` for any other, and for one that
    /// nothing keeps.
    pub fn of(
        kind: &str,
        remediation: &DynamicObject,
        node: &str,
        check: &NodeHealthCheck,
        all: &[NodeHealthCheck],
    ) -> Option<Self> {
        let deleted = remediation.metadata.deletion_timestamp.as_ref()?.0;
        let owners = remediation.owner_references();
        let is_of = |check: &NodeHealthCheck| {
            owners
                .iter()
                .any(|owner| Some(&owner.uid) == check.metadata.uid.as_ref())
        };
        let is_kept = !remediation.finalizers().is_empty()
            && node_of(&remediation.name_any(), remediation.annotations()).as_str() == node
            && (is_of(check) || !all.iter().any(is_of));
        is_kept.then(|| Self {
            check: check.name_any(),
            remediation: named(&ObjectReference {
                kind: Some(kind.to_owned()),
                namespace: remediation.namespace(),
                name: remediation.metadata.name.clone(),
                ..ObjectReference::default()
            }),
            deleted,
            finalizers: remediation.finalizers().to_vec(),
        })
    }
}

/// The node in the eyes of each NodeHealthCheck that selects it, or has a remediation of it.
pub fn of_node(name: &str, sources: &HealthSources<'_>, now: Timestamp) -> Vec<NodeHealth> {
    let checks = sources.checks.iter().map(Judge::of);
    checks.filter_map(|check| check.judge(name, sources, now)).collect()
}

/// A NodeHealthCheck that judges many nodes.
pub struct Judge<'a> {
    check: &'a NodeHealthCheck,
    spec: CheckSpec,
    status: Cow<'a, NodeHealthCheckStatus>,
    /// Places in the status.
    entries: HashMap<&'a str, usize>,
}

impl<'a> Judge<'a> {
    pub fn of(check: &'a NodeHealthCheck) -> Self {
        let entries = check.status.iter().flat_map(|status| &status.unhealthy_nodes);
        Self {
            check,
            spec: CheckSpec::compile(&check.spec),
            status: check.status.as_ref().map(Cow::Borrowed).unwrap_or_default(),
            entries: entries
                .enumerate()
                .map(|(index, node)| (node.name.as_str(), index))
                .collect(),
        }
    }

    fn entry(&self, name: &str) -> Option<&UnhealthyNode> {
        self.status.unhealthy_nodes.get(*self.entries.get(name)?)
    }

    /// Whether its status names the node, or may yet do so: health-check begins by that.
    fn is_listed_in_time(&self, name: &str, condition: Option<&MatchedCondition>, now: Timestamp) -> bool {
        let is_late = |condition: &MatchedCondition| saturating_add(condition.expires, LISTED_WITHIN) <= now;
        self.names_node(name) || self.spec.dry_run || !condition.is_some_and(is_late)
    }

    /// The nodes that its status names.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.entries.keys().copied()
    }

    /// Whether its status names the node.
    pub fn names_node(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Whether there is more to tell of a node than that it is healthy.
    pub fn concerns(&self, name: &str, node: &Node, now: Timestamp) -> bool {
        let has_condition = || MatchedCondition::of(&self.spec, node, false, now).is_some();
        self.names_node(name) || (has_condition() && selects(&self.spec, node))
    }

    /// The node in its eyes; `None` for one that it neither selects nor remediates.
    pub fn judge(&self, name: &str, sources: &HealthSources<'_>, now: Timestamp) -> Option<NodeHealth> {
        let Self {
            check, spec, status, ..
        } = self;
        let entry = self.entry(name);
        if entry.is_none() && !sources.node.is_some_and(|node| selects(spec, node)) {
            return None;
        }
        let told = entry.and_then(|entry| entry.stopped_by.as_ref());
        let condition = sources
            .node
            .and_then(|node| MatchedCondition::of(spec, node, entry.is_some(), now));
        let entry = entry.filter(|entry| is_remediated(entry));
        let has_expired = condition.as_ref().is_some_and(|condition| condition.expires <= now);
        let step = entry.and_then(|entry| Step::of(entry, spec));
        let mut stopped_by = Vec::new();
        if condition.is_some() {
            stopped_by = stops_of_every_step(name, check, spec, status, sources, now);
            let told = told.filter(|told| stopped_by.iter().all(|stop| stop.reason != told.reason));
            stopped_by.extend(told.map(Stop::told));
            if stopped_by.is_empty() && !self.is_listed_in_time(name, condition.as_ref(), now) {
                stopped_by.push(Stop::unlisted());
            }
        }
        let reason = match (entry, &step) {
            (Some(_), _) if sources.node.is_none() => HealthReason::RemediatedNodeGone,
            (Some(entry), _) if condition.is_none() && entry.healthy_delayed == Some(true) => {
                HealthReason::HealthyDelayed
            }
            (Some(_), _) if condition.is_none() => HealthReason::RemovingRemediations,
            (_, Some(step)) if step.timed_out.is_some() && step.number < step.of => HealthReason::Escalating,
            (_, Some(step)) if step.timed_out.is_some() => HealthReason::ChainExhausted,
            (_, Some(step)) if step.resource.uid.is_none() => HealthReason::StartingRemediation,
            (_, Some(_)) => HealthReason::RemediationRunning,
            _ if condition.is_none() && !sources.node.is_some_and(has_ready) => HealthReason::ReadyUnknown,
            _ if condition.is_none() => HealthReason::Healthy,
            _ if !has_expired => HealthReason::NotExpired,
            _ => match stopped_by.first() {
                Some(stop) => stop.reason,
                None if spec.dry_run => HealthReason::WouldRemediate,
                None => HealthReason::StartingRemediation,
            },
        };
        let until = match reason {
            HealthReason::NotExpired => condition.as_ref().map(|condition| condition.expires),
            HealthReason::HealthyDelayed => entry.and_then(|entry| end_of_delay(spec, entry)),
            _ => None,
        };
        let next = next_step(spec, step.as_ref(), condition.as_ref());
        Some(NodeHealth {
            check: check.name_any(),
            reason,
            until,
            condition,
            stopped_by,
            step,
            next,
        })
    }
}

fn is_remediated(node: &UnhealthyNode) -> bool {
    !node.remediations.iter().all(Remediation::is_gone)
}

/// The nodes with a remediation that runs.
fn running(status: &NodeHealthCheckStatus) -> Vec<String> {
    let is_running = |node: &&UnhealthyNode| node.remediations.iter().any(Remediation::runs);
    let nodes = status.unhealthy_nodes.iter().filter(is_running);
    nodes.map(|node| node.name.clone()).collect()
}

/// Nodes by what stops their remediations.
fn stopped(status: &NodeHealthCheckStatus) -> Vec<StoppedNodes> {
    let mut stopped: Vec<StoppedNodes> = Vec::new();
    for node in &status.unhealthy_nodes {
        let told = node.stopped_by.as_ref();
        let is_of_all =
            |told: &&StoppedBy| matches!(told.reason, HealthReason::CheckDisabled | HealthReason::CheckPaused);
        let Some(stop) = told.filter(|told| !is_of_all(told)).map(Stop::told) else {
            continue;
        };
        match stopped.iter_mut().find(|known| known.stop == stop) {
            Some(known) => known.nodes.push(node.name.clone()),
            None => stopped.push(StoppedNodes {
                stop,
                nodes: vec![node.name.clone()],
            }),
        }
    }
    stopped
}

fn has_ready(node: &Node) -> bool {
    condition(node, "Ready").is_some()
}

/// The operator writes the selector into a spec that has none; until then it means the workers.
fn selects(spec: &CheckSpec, node: &Node) -> bool {
    let labels: Labels = node.labels().iter().map(|(key, value)| (&**key, &**value)).collect();
    match &spec.selector {
        None => labels.get(WORKER_ROLE).is_some(),
        Some(selector) => selector.matches(&labels),
    }
}

fn named(reference: &ObjectReference) -> String {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    let namespace = reference.namespace.as_ref().map(|namespace| format!("{namespace}/"));
    let (kind, name) = (text(&reference.kind), text(&reference.name));
    format!("{kind} {}{name}", namespace.unwrap_or_default())
}

fn next_step(spec: &CheckSpec, step: Option<&Step>, condition: Option<&MatchedCondition>) -> Option<NextStep> {
    let number = step.map_or(1, |step| step.number + 1);
    Some(NextStep {
        number,
        template: spec.steps.get(number - 1)?.template.to_string(),
        at: match step {
            Some(step) => step.ends,
            None => condition.map(|condition| condition.expires),
        },
    })
    // Without an unhealthy condition nothing comes.
    .filter(|_| condition.is_some())
}

/// When healthyDelay ends; `None` where only a person ends it.
fn end_of_delay(spec: &CheckSpec, node: &UnhealthyNode) -> Option<Timestamp> {
    let HealthyDelay::For(delay) = spec.healthy_delay else {
        return None;
    };
    Some(saturating_add(node.conditions_healthy_timestamp?, delay))
}

impl Stop {
    /// The status does not have what health-check would begin with.
    fn unlisted() -> Self {
        Self {
            reason: HealthReason::RemediationRejected,
            detail: "health-check has not listed the node in the status of the NodeHealthCheck: see the Events of both, and \
                     health-check's log"
                .to_owned(),
            until: None,
        }
    }

    /// In health-check's own words.
    fn told(told: &StoppedBy) -> Self {
        let StoppedBy { reason, message, until } = told;
        let meaning = match reason.explanation().trim_start_matches("is unhealthy, but ") {
            was if was.starts_with("was ") => format!("it {was}"),
            meaning => meaning.to_owned(),
        };
        let is_its_end = until.is_some() && message.starts_with("until ");
        let more = Some(message).filter(|message| !message.is_empty() && !is_its_end);
        Self {
            reason: *reason,
            detail: meaning + &prefixed(": ", more),
            until: *until,
        }
    }

    /// Whether it ends without a person.
    pub fn ends_by_itself(&self, now: Timestamp) -> bool {
        let has_end = !self.reason.is_only_tried_again();
        self.reason.ends_by_itself() || (has_end && self.until.is_some_and(|until| now < until))
    }
}

impl MatchedCondition {
    /// A stamp in the future is of a clock that is wrong: health-check counts such a condition from when it first saw it, and has
    /// counted it where its status lists the node. Else that is now at the latest.
    fn of(spec: &CheckSpec, node: &Node, is_listed: bool, now: Timestamp) -> Option<Self> {
        let matched = spec.conditions.iter().filter_map(|unhealthy| {
            let since = match (condition(node, &unhealthy.type_), &unhealthy.status) {
                (Some(found), Some(status)) if *found.status == **status => found.last_transition_time.as_ref(),
                (None, None) => node.metadata.creation_timestamp.as_ref(),
                _ => return None,
            }?;
            let has_counted = now < since.0 && is_listed;
            let since = since.0.min(now);
            let expires = saturating_add(since, unhealthy.duration);
            Some(Self {
                since,
                expires: if has_counted { now } else { expires },
                type_: unhealthy.type_.to_string(),
                status: unhealthy.status.as_deref().unwrap_or(MISSING).to_owned(),
            })
        });
        matched.min_by_key(|matched| matched.expires)
    }
}

impl Step {
    /// What the remediator says of the remediation, which may be gone by now.
    pub fn take_conditions(&mut self, remediation: Option<&DynamicObject>) {
        let Some(remediation) = remediation else {
            let absent = if self.kind_not_served {
                "its kind is not served any more, and nobody can tell whether its remediator still works"
            } else {
                "the remediation does not exist, or its kind is not served"
            };
            self.conditions = vec![absent.to_owned()];
            return;
        };
        let conditions = &remediation.data["status"]["conditions"];
        let conditions = Vec::<Condition>::deserialize(conditions).unwrap_or_default();
        let told = conditions.iter().map(|condition| {
            let Condition {
                type_,
                status,
                reason,
                message,
                ..
            } = condition;
            let message = Some(message).filter(|message| !message.is_empty());
            format!("{type_}={status} [{reason}]{}", prefixed(": ", message))
        });
        self.conditions = told.collect();
        if remediation.metadata.deletion_timestamp.is_some() {
            self.conditions.push("it is being deleted".to_owned());
        }
    }

    fn of(node: &UnhealthyNode, spec: &CheckSpec) -> Option<Self> {
        let remediation = node.remediations.iter().rfind(|step| !step.is_gone())?;
        let resource = remediation.resource.clone();
        let kind = RemediationKind {
            api_version: resource.api_version.as_deref()?.into(),
            kind: resource.kind.as_deref()?.into(),
        };
        let template = remediation.template_name.as_deref().filter(|name| !name.is_empty());
        let index = spec.step_of(&kind, resource.namespace.as_deref().unwrap_or_default(), template);
        let timeout = index.and_then(|index| spec.steps[index].timeout);
        Some(Self {
            number: index.map_or(node.remediations.len(), |index| index + 1),
            of: spec.steps.len().max(node.remediations.len()),
            remediation: named(&resource),
            started: remediation.started,
            ends: remediation
                .started
                .zip(timeout)
                .map(|(at, timeout)| saturating_add(at, timeout)),
            timed_out: remediation.timed_out,
            kind_not_served: remediation.absence.as_deref() == Some(KIND_NOT_SERVED),
            conditions: Vec::new(),
            resource,
        })
    }
}

/// What stops any step, the first as well as an escalation.
fn stops_of_every_step(
    name: &str,
    check: &NodeHealthCheck,
    spec: &CheckSpec,
    status: &NodeHealthCheckStatus,
    sources: &HealthSources<'_>,
    now: Timestamp,
) -> Vec<Stop> {
    let mut stops = Vec::new();
    let mut stop = |reason, detail: String, until| stops.push(Stop { reason, detail, until });
    if let Some(disabled) = is_true(&status.conditions, DISABLED) {
        let detail = format!("{}: {}", disabled.reason, disabled.message);
        stop(HealthReason::CheckDisabled, detail, None);
    }
    if !check.spec.pause_requests.is_empty() {
        stop(HealthReason::CheckPaused, check.spec.pause_requests.join(", "), None);
    }
    let label = sources
        .node
        .and_then(|node| node.labels().get(EXCLUDE_FROM_REMEDIATION));
    if label.is_some_and(|value| value == EXCLUDE_FROM_REMEDIATION_TRUE) {
        let detail = format!("its label {EXCLUDE_FROM_REMEDIATION}");
        stop(HealthReason::ExcludedByLabel, detail, None);
    }
    let maintained = sources
        .drain
        .filter(|drain| !drain.dry_run && is_maintenance(drain.phase, drain.granted, drain.deadline, now));
    if let Some((drain, phase)) = maintained.and_then(|drain| Some((drain, drain.phase?))) {
        let detail = format!("its drain is {phase}");
        stop(HealthReason::UnderMaintenance, detail, drain.deadline);
    }
    if let LeaseState::Others { holder, until } = lease_state(sources.lease, &holder_of(&check.name_any()), now) {
        let detail = format!("{holder} holds the lease of {name}");
        stop(HealthReason::LeaseTaken, detail, Some(until));
    }
    let count = |nodes: Option<i32>| usize::try_from(nodes?).ok();
    if let (Some(healthy), Some(observed)) = (count(status.healthy_nodes), count(status.observed_nodes))
        && let ThresholdState::TooFewHealthy(text) | ThresholdState::Unusable(text) =
            spec.threshold.judge(observed, healthy.min(observed))
    {
        let unhealthy: Vec<&str> = status.unhealthy_nodes.iter().map(|node| node.name.as_str()).collect();
        let named = prefixed(": ", Some(unhealthy.join(", ")).filter(|names| !names.is_empty()));
        stop(HealthReason::TooFewHealthy, format!("{text}{named}"), None);
    }
    if let Some(cooldown) = is_true(&status.conditions, STORM_COOLDOWN_ACTIVE) {
        let began = cooldown.last_transition_time.0;
        let until = spec.storm_cooldown.map(|lasts| saturating_add(began, lasts));
        stop(HealthReason::StormCooldown, cooldown.message.clone(), until);
    }
    stops
}

fn is_true<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == "True")
}

#[cfg(test)]
mod tests;
