//! Whether a NodeHealthCheck can be followed at all.

use std::collections::BTreeMap;

use nodeward_api::reason::DisabledReason;
use nodeward_core::id::NamespacedName;

use super::index::Index;
use crate::snapshot::{Listed, Reading, Snapshot, TemplateState};
use crate::template_problem::template_problem;
use nodeward_core::node_health_check::CheckSpec;

/// Values of OpenShift's `Infrastructure.status.controlPlaneTopology` with which NodeHealthChecks are followed.
const SERVED_TOPOLOGIES: [&str; 4] = ["HighlyAvailable", "SingleReplica", "HighlyAvailableArbiter", "External"];

/// Whether a NodeHealthCheck can be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enablement {
    /// It can.
    Enabled,
    /// It cannot.
    Disabled(DisabledReason, String),
    /// It is not known yet.
    NotKnown(String),
}

/// Looks for what disables a NodeHealthCheck.
pub fn look(spec: &CheckSpec, snapshot: &Snapshot, index: &Index<'_>) -> Enablement {
    if let Some(problem) = spec.problems.first() {
        return Enablement::Disabled(DisabledReason::InvalidConfiguration, problem.clone());
    }
    let health_checks = &snapshot.machine_health_checks;
    let conflict = health_checks.known().and_then(conflicting_check);
    if let Some(conflict) = conflict {
        let text = format!("MachineHealthCheck {conflict} would act on the same nodes: delete it, or this one");
        return Enablement::Disabled(DisabledReason::ConflictingMachineHealthCheckDetected, text);
    }
    let topology = match &snapshot.control_plane_topology {
        Reading::Known(topology) => topology.as_deref(),
        Reading::Unknown(why) => return Enablement::NotKnown(why.clone()),
    };
    if let Some(problem) = topology_problem(topology) {
        return Enablement::Disabled(DisabledReason::UnsupportedControlPlaneTopology, problem);
    }
    let steps = (0..spec.steps.len()).map(|step| step_enablement(spec, step, snapshot, index));
    let states: Vec<Enablement> = steps.filter(|state| *state != Enablement::Enabled).collect();
    let disabled = states.iter().find(|state| matches!(state, Enablement::Disabled(..)));
    match (disabled, health_checks) {
        (None, Reading::Unknown(why)) => Enablement::NotKnown(why.clone()),
        _ => disabled.or(states.first()).cloned().unwrap_or(Enablement::Enabled),
    }
}

/// What keeps all NodeHealthChecks from a cluster with this control plane, workers included: what fences its nodes otherwise
/// would work against them, as pacemaker does with `DualReplica`.
pub fn topology_problem(topology: Option<&str>) -> Option<String> {
    let other = topology.filter(|topology| !SERVED_TOPOLOGIES.contains(topology))?;
    Some(format!(
        "the cluster's controlPlaneTopology is {other}, which NodeHealthChecks do not serve: delete this one"
    ))
}

/// Whether a MachineHealthCheck sees to machines that are being terminated.
pub fn has_termination_handler(snapshot: &Snapshot) -> bool {
    let health_checks = snapshot.machine_health_checks.known();
    health_checks.is_some_and(|checks| checks.values().any(|handles_termination| *handles_termination))
}

fn conflicting_check(checks: &BTreeMap<NamespacedName, bool>) -> Option<&NamespacedName> {
    let mut others = checks.iter().filter(|(_, handles_termination)| !**handles_termination);
    others.next().map(|(check, _)| check)
}

fn step_enablement(spec: &CheckSpec, step: usize, snapshot: &Snapshot, index: &Index<'_>) -> Enablement {
    let template = &spec.steps[step].template;
    let kind = template.remediation_kind();
    let state = snapshot.templates.get(template).unwrap_or(&TemplateState::Unknown);
    if *state == TemplateState::Unknown {
        return Enablement::NotKnown(format!("{template} has not been read yet"));
    }
    if let Some(problem) = template_problem(spec, step, state) {
        return Enablement::Disabled(problem.reason, problem.text);
    }
    let invalid = |text| Enablement::Disabled(DisabledReason::RemediationTemplateInvalid, text);
    match index.kind(&kind).map(|facts| &facts.listed) {
        Some(Listed::Complete) => Enablement::Enabled,
        Some(Listed::NotYet) | None => Enablement::NotKnown(format!("{kind} is still being listed")),
        Some(Listed::NotServed) => invalid(format!("{kind} is not served: install its remediator in full")),
        Some(Listed::Forbidden(why)) => {
            let text = format!("{kind} may not be listed: let its remediator's role be aggregated ({why})");
            invalid(text)
        }
    }
}
