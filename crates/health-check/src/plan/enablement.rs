//! Whether a NodeHealthCheck can be followed at all.

use nodeward_api::reason::DisabledReason;
use nodeward_core::id::NamespacedName;

use super::index::{Index, is_same_kind};
use crate::check_spec::CheckSpec;
use crate::snapshot::{Listed, MachineApi, Snapshot, TemplateState};

/// The one MachineHealthCheck beside which a NodeHealthCheck may act.
const TERMINATION_HANDLER: &str = "machine-api-termination-handler";

/// Namespace of the Machine API: Metal3 acts in no other.
const MACHINE_API_NAMESPACE: &str = "openshift-machine-api";

/// Kind of Metal3's templates.
const METAL3_TEMPLATE: &str = "Metal3RemediationTemplate";

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
    let conflict = snapshot.machine_api.as_ref().and_then(conflicting_check);
    if let Some(conflict) = conflict {
        let text = format!("MachineHealthCheck {conflict} would act on the same nodes: delete it, or this one");
        return Enablement::Disabled(DisabledReason::ConflictingMachineHealthCheckDetected, text);
    }
    let steps = (0..spec.steps.len()).map(|step| step_enablement(spec, step, snapshot, index));
    let states: Vec<Enablement> = steps.filter(|state| *state != Enablement::Enabled).collect();
    let disabled = states.iter().find(|state| matches!(state, Enablement::Disabled(..)));
    disabled.or(states.first()).cloned().unwrap_or(Enablement::Enabled)
}

/// Whether the one MachineHealthCheck that terminates machines is there.
pub fn has_termination_handler(snapshot: &Snapshot) -> bool {
    let machine_api = snapshot.machine_api.as_ref();
    machine_api.is_some_and(|api| api.health_checks.iter().any(is_termination_handler))
}

fn conflicting_check(api: &MachineApi) -> Option<&NamespacedName> {
    api.health_checks.iter().find(|check| !is_termination_handler(check))
}

fn is_termination_handler(check: &NamespacedName) -> bool {
    *check.name == *TERMINATION_HANDLER && *check.namespace == *MACHINE_API_NAMESPACE
}

fn step_enablement(spec: &CheckSpec, step: usize, snapshot: &Snapshot, index: &Index<'_>) -> Enablement {
    let template = &spec.steps[step].template;
    let kind = template.remediation_kind();
    let not_found = |text| Enablement::Disabled(DisabledReason::RemediationTemplateNotFound, text);
    let invalid = |text| Enablement::Disabled(DisabledReason::RemediationTemplateInvalid, text);
    let found = match snapshot.templates.get(template).unwrap_or(&TemplateState::Unknown) {
        TemplateState::Unknown => return Enablement::NotKnown(format!("{template} has not been read yet")),
        TemplateState::NotFound => return not_found(format!("{template} does not exist: create it")),
        TemplateState::KindAbsent => {
            let text = format!("{} is not served: install the remediator of {template}", template.kind);
            return not_found(text);
        }
        TemplateState::Forbidden(why) => {
            let text = format!("{template} may not be read: let its remediator's role be aggregated ({why})");
            return invalid(text);
        }
        TemplateState::Found(found) => found,
    };
    if found.spec.is_none() {
        return invalid(format!("{template} has no spec.template.spec"));
    }
    if *template.kind == *METAL3_TEMPLATE && *template.namespace != *MACHINE_API_NAMESPACE {
        return invalid(format!("{template} must be in namespace {MACHINE_API_NAMESPACE}"));
    }
    let shares_kind = spec
        .steps
        .iter()
        .enumerate()
        .any(|(other, step_of)| other != step && is_same_kind(&step_of.template.remediation_kind(), &kind));
    if shares_kind && !found.supports_multiple {
        return invalid(format!(
            "{template} is not the only template of its kind, which its remediator does not support"
        ));
    }
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
