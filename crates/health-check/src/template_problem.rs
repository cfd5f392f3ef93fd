//! Whether the templates of a specification can be used as they are.

use nodeward_api::reason::DisabledReason;

use nodeward_core::node_health_check::CheckSpec;

use crate::snapshot::TemplateState;

/// Namespace of the Machine API: Metal3 acts in no other.
pub const MACHINE_API_NAMESPACE: &str = "openshift-machine-api";

/// Kind of Metal3's templates.
const METAL3_TEMPLATE: &str = "Metal3RemediationTemplate";

/// Why a template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateProblem {
    /// In one word.
    pub reason: DisabledReason,
    /// What is wrong, and what to do.
    pub text: String,
}

/// What keeps the template of this step from being used; `None`: nothing, as far as is known.
pub fn template_problem(spec: &CheckSpec, step: usize, state: &TemplateState) -> Option<TemplateProblem> {
    let template = &spec.steps.get(step)?.template;
    let problem = |reason, text| Some(TemplateProblem { reason, text });
    let not_found = |text| problem(DisabledReason::RemediationTemplateNotFound, text);
    let invalid = |text| problem(DisabledReason::RemediationTemplateInvalid, text);
    let found = match state {
        TemplateState::Unknown => return None,
        TemplateState::NotFound => {
            return not_found(format!(
                "{template} does not exist: create it, or correct its namespace"
            ));
        }
        TemplateState::KindAbsent => {
            return not_found(format!(
                "{} is not served: install the remediator of {template}",
                template.kind
            ));
        }
        TemplateState::Forbidden(why) => {
            return invalid(format!(
                "{template} may not be read: let its remediator's role be aggregated ({why})"
            ));
        }
        TemplateState::Found(found) => found,
    };
    if found.spec.is_none() {
        return invalid(format!("{template} has no spec.template.spec: add it"));
    }
    if *template.kind == *METAL3_TEMPLATE && *template.namespace != *MACHINE_API_NAMESPACE {
        return invalid(format!("{template} must be in namespace {MACHINE_API_NAMESPACE}"));
    }
    let kind = template.remediation_kind();
    let shares_kind = spec
        .steps
        .iter()
        .enumerate()
        .any(|(other, step_of)| other != step && step_of.template.remediation_kind().is_same(&kind));
    if shares_kind && !found.supports_multiple {
        return invalid(format!(
            "{template} is not the only template of its kind, which its remediator does not support: use one template of \
             the kind"
        ));
    }
    None
}
