//! A NodeHealthCheck's specification, compiled. What cannot be followed is kept as a problem, and the rest still serves to
//! count nodes and to clean up: the webhook may be away, and what is stored was not always valid.

mod threshold;

use std::fmt;
use std::sync::Arc;

pub use self::threshold::{Quantity, Threshold, ThresholdState};
use crate::duration::{ConfigDuration, DurationError};
use crate::id::NamespacedName;
use crate::selector::Selector;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use nodeward_api::node_health_check::{
    self as api, DEFAULT_BACKOFF_INITIAL, DEFAULT_BACKOFF_LIMIT, DEFAULT_MAX_UNHEALTHY,
    DEFAULT_MIN_HEALTHY_OF_MACHINE_DELETION, EXPONENTIAL, MACHINE_DELETION_TEMPLATE, MISSING, NodeHealthCheckSpec,
};

/// The shortest timeout of a step.
pub const SHORTEST_TIMEOUT: SignedDuration = SignedDuration::from_mins(1);

/// A specification, compiled.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckSpec {
    /// Which nodes it is about; `None`: health-check has yet to choose and write down what it means.
    pub selector: Option<Selector>,
    /// Any of these makes a node unhealthy.
    pub conditions: Arc<[UnhealthyCondition]>,
    /// How many nodes may be unhealthy.
    pub threshold: Threshold,
    /// Remediations that are tried one after another.
    pub steps: Vec<Step>,
    /// Whether the steps are escalatingRemediations, and not a single template, which never times out.
    pub escalates: bool,
    /// Who pauses it, and why.
    pub pauses: Vec<String>,
    /// How long a healthy node keeps its remediations.
    pub healthy_delay: HealthyDelay,
    /// For how long nothing is started once enough nodes are healthy again; `None`: there are no storms.
    pub storm_cooldown: Option<SignedDuration>,
    /// How long a node waits that was remediated before.
    pub backoff: Option<Backoff>,
    /// How many nodes are remediated at the same time.
    pub max_concurrent: Option<usize>,
    /// Nothing but the status is written.
    pub dry_run: bool,
    /// What cannot be followed, a sentence each, with what to write instead. With any, nothing is started.
    pub problems: Vec<String>,
}

/// A condition that makes a node unhealthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnhealthyCondition {
    pub type_: Arc<str>,
    /// Its status; `None`: the node has no condition of the type.
    pub status: Option<Arc<str>>,
    /// How long it must last. One that cannot be read never ends: its node is neither remediated nor healthy.
    pub duration: SignedDuration,
}

/// Which template a step uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TemplateRef {
    /// Group and version.
    pub api_version: Arc<str>,
    /// Kind, with `Template` at its end.
    pub kind: Arc<str>,
    /// Empty where its kind has none.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl TemplateRef {
    /// Its namespace and name.
    pub fn key(&self) -> NamespacedName {
        NamespacedName::new(Arc::clone(&self.namespace), Arc::clone(&self.name))
    }

    /// The kind of the remediations that are made from it.
    pub fn remediation_kind(&self) -> RemediationKind {
        RemediationKind {
            api_version: Arc::clone(&self.api_version),
            kind: self.kind.strip_suffix("Template").unwrap_or(&self.kind).into(),
        }
    }
}

impl fmt::Display for TemplateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.key())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemediationKind {
    /// Group and version.
    pub api_version: Arc<str>,
    pub kind: Arc<str>,
}

impl RemediationKind {
    /// The kind of what a status names; `None`: it does not say.
    pub fn of(resource: &ObjectReference) -> Option<Self> {
        Some(Self {
            api_version: resource.api_version.as_deref()?.into(),
            kind: resource.kind.as_deref()?.into(),
        })
    }

    /// API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Whether the two are one kind, in whatever version.
    pub fn is_same(&self, other: &Self) -> bool {
        self.kind == other.kind && self.group() == other.group()
    }
}

impl fmt::Display for RemediationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.api_version, self.kind)
    }
}

/// One step of a chain of remediations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub template: TemplateRef,
    /// How long the node has to become healthy; `None`: for ever.
    pub timeout: Option<SignedDuration>,
}

/// How long a healthy node keeps its remediations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthyDelay {
    /// Not at all.
    None,
    /// So long.
    For(SignedDuration),
    /// Until a person confirms that it is healthy.
    UntilConfirmed,
}

/// How long a node waits that was remediated before: twice as long each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first time.
    pub initial: SignedDuration,
    /// At most; a node that is healthy for as long begins anew.
    pub limit: SignedDuration,
}

impl Backoff {
    /// How long to wait after so many remediations.
    pub fn delay(&self, count: u32) -> SignedDuration {
        let doubled = 1_i32.checked_shl(count.saturating_sub(1)).filter(|factor| *factor > 0);
        doubled
            .and_then(|factor| self.initial.checked_mul(factor))
            .map_or(self.limit, |delay| delay.min(self.limit))
    }
}

impl CheckSpec {
    /// Compiles a specification.
    pub fn compile(spec: &NodeHealthCheckSpec) -> Self {
        let mut problems: Vec<String> = spec.unreadable.clone();
        let (steps, escalates) = steps(spec, &mut problems);
        let selector = spec.selector.as_ref().map(|selector| {
            Selector::parse(Some(selector)).unwrap_or_else(|error| {
                problems.push(format!("selector: {error}"));
                Selector::NOTHING
            })
        });
        let is_unreadable = |field: &str| spec.unreadable.iter().any(|problem| problem.starts_with(field));
        let selector = if is_unreadable("selector") {
            Some(Selector::NOTHING)
        } else {
            selector
        };
        let conditions = if is_unreadable("unhealthyConditions") {
            Arc::default()
        } else {
            conditions(spec.unhealthy_conditions.as_deref(), &mut problems)
        };
        let mut optional = |field: &str, text: Option<&str>| {
            let text = text?;
            duration(text)
                .map_err(|error| problems.push(format!("{field}: {error}")))
                .ok()
        };
        let storm_cooldown = optional("stormCooldownDuration", spec.storm_cooldown_duration.as_deref());
        let healthy_delay = healthy_delay(spec, &mut problems);
        let backoff = spec.backoff.as_ref();
        let backoff = backoff.and_then(|backoff| compile_backoff(backoff, &mut problems));
        let max_concurrent = spec.max_concurrent_remediations.map(|limit| {
            if limit < 1 {
                problems.push(format!("maxConcurrentRemediations: {limit} is not at least 1"));
            }
            usize::try_from(limit).unwrap_or_default()
        });
        Self {
            selector,
            conditions,
            threshold: threshold(spec, &steps, &mut problems),
            steps,
            escalates,
            pauses: spec.pause_requests.clone(),
            healthy_delay,
            storm_cooldown,
            backoff,
            max_concurrent,
            dry_run: spec.dry_run,
            problems,
        }
    }

    /// The step that a remediation in `namespace` belongs to; where it does not name its template, the first of its kind.
    pub fn step_of(&self, kind: &RemediationKind, namespace: &str, template: Option<&str>) -> Option<usize> {
        let is_from = |from: &TemplateRef| {
            from.remediation_kind().is_same(kind)
                && *from.namespace == *namespace
                && template.is_none_or(|name| *from.name == *name)
        };
        self.steps.iter().position(|step| is_from(&step.template))
    }
}

fn steps(spec: &NodeHealthCheckSpec, problems: &mut Vec<String>) -> (Vec<Step>, bool) {
    // Stored objects have an empty list beside a single template.
    let escalating = spec.escalating_remediations.as_deref();
    match (&spec.remediation_template, escalating.filter(|steps| !steps.is_empty())) {
        (Some(template), None) => {
            let template = template_ref(template, "remediationTemplate", problems);
            let step = template.map(|template| Step {
                template,
                timeout: None,
            });
            (step.into_iter().collect(), false)
        }
        (None, Some(remediations)) => (chain(remediations, problems), true),
        (Some(_), Some(_)) => {
            problems.push("remediationTemplate and escalatingRemediations exclude each other: remove one".to_owned());
            (Vec::new(), false)
        }
        (None, None) => {
            problems.push("there is no template: set remediationTemplate or escalatingRemediations".to_owned());
            (Vec::new(), false)
        }
    }
}

fn chain(remediations: &[api::EscalatingRemediation], problems: &mut Vec<String>) -> Vec<Step> {
    let mut ordered: Vec<&api::EscalatingRemediation> = remediations.iter().collect();
    ordered.sort_by_key(|remediation| remediation.order);
    for pair in ordered.windows(2) {
        if let [first, second] = pair
            && first.order == second.order
        {
            problems.push(format!("escalatingRemediations: order {} is there twice", first.order));
        }
    }
    let mut steps: Vec<Step> = Vec::new();
    for remediation in ordered {
        let field = format!("escalatingRemediations, order {}", remediation.order);
        let timeout = duration(&remediation.timeout).unwrap_or_else(|error| {
            problems.push(format!("{field}: timeout: {error}"));
            SignedDuration::MAX
        });
        if timeout < SHORTEST_TIMEOUT {
            problems.push(format!("{field}: timeout {} is shorter than 1m", remediation.timeout));
        }
        let Some(template) = template_ref(&remediation.remediation_template, &field, problems) else {
            continue;
        };
        if steps.iter().any(|step| step.template == template) {
            problems.push(format!("{field}: {template} is there twice"));
            continue;
        }
        steps.push(Step {
            template,
            timeout: Some(timeout),
        });
    }
    steps
}

fn template_ref(template: &ObjectReference, field: &str, problems: &mut Vec<String>) -> Option<TemplateRef> {
    let mut text = |name: &str, value: &Option<String>| {
        let value = value.as_deref().filter(|value| !value.is_empty());
        if value.is_none() {
            problems.push(format!("{field}: {name} is missing"));
        }
        value.map(Arc::<str>::from)
    };
    let found = TemplateRef {
        api_version: text("apiVersion", &template.api_version)?,
        kind: text("kind", &template.kind)?,
        namespace: template.namespace.as_deref().unwrap_or_default().into(),
        name: text("name", &template.name)?,
    };
    if found.kind.strip_suffix("Template").is_none_or(str::is_empty) {
        problems.push(format!("{field}: kind {} does not end in Template", found.kind));
        return None;
    }
    Some(found)
}

fn conditions(stored: Option<&[api::UnhealthyCondition]>, problems: &mut Vec<String>) -> Arc<[UnhealthyCondition]> {
    let conditions = stored.map_or_else(api::default_unhealthy_conditions, <[_]>::to_vec);
    if conditions.is_empty() {
        problems.push("unhealthyConditions: at least one is needed; leave the field out for the default".to_owned());
    }
    conditions
        .iter()
        .map(|condition| UnhealthyCondition {
            type_: condition.type_.as_str().into(),
            status: (condition.status != MISSING).then(|| condition.status.as_str().into()),
            duration: duration(&condition.duration).unwrap_or_else(|error| {
                let type_ = &condition.type_;
                problems.push(format!("unhealthyConditions, type {type_}: duration: {error}"));
                SignedDuration::MAX
            }),
        })
        .collect()
}

fn threshold(spec: &NodeHealthCheckSpec, steps: &[Step], problems: &mut Vec<String>) -> Threshold {
    let is_deletion = |step: &Step| *step.template.kind == *MACHINE_DELETION_TEMPLATE;
    let deletes_machines = steps.iter().any(is_deletion);
    let mut read = |field: &str, value: &IntOrString| {
        quantity(value).unwrap_or_else(|| {
            let shown = match value {
                IntOrString::Int(number) => number.to_string(),
                IntOrString::String(text) => text.clone(),
            };
            problems.push(format!(
                "{field}: {shown} is neither a number of nodes nor a percentage up to 100%"
            ));
            Quantity::Nodes(0)
        })
    };
    match (&spec.min_healthy, &spec.max_unhealthy) {
        (Some(min), None) => Threshold::MinHealthy(read("minHealthy", min)),
        (None, Some(max)) => {
            let max = read("maxUnhealthy", max);
            if deletes_machines {
                let text = format!("maxUnhealthy: not with {MACHINE_DELETION_TEMPLATE}: write minHealthy instead");
                problems.push(text);
            }
            Threshold::MaxUnhealthy(max)
        }
        (Some(min), Some(_)) => {
            let min = read("minHealthy", min);
            problems.push("minHealthy and maxUnhealthy exclude each other: remove one".to_owned());
            Threshold::MinHealthy(min)
        }
        (None, None) => {
            let text = |text: &str| IntOrString::String(text.to_owned());
            if deletes_machines {
                Threshold::MinHealthy(read("minHealthy", &text(DEFAULT_MIN_HEALTHY_OF_MACHINE_DELETION)))
            } else {
                Threshold::MaxUnhealthy(read("maxUnhealthy", &text(DEFAULT_MAX_UNHEALTHY)))
            }
        }
    }
}

/// As the schema's pattern has it: digits, or a percentage of at most two digits or 100.
fn quantity(value: &IntOrString) -> Option<Quantity> {
    let text = match value {
        IntOrString::Int(number) => return usize::try_from(*number).ok().map(Quantity::Nodes),
        IntOrString::String(text) => text,
    };
    let digits = text.strip_suffix('%').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: usize = digits.parse().ok()?;
    if digits.len() == text.len() {
        return Some(Quantity::Nodes(number));
    }
    (number <= 100 && digits.len() <= 3).then_some(Quantity::Percent(number))
}

fn healthy_delay(spec: &NodeHealthCheckSpec, problems: &mut Vec<String>) -> HealthyDelay {
    let mut unreadable = spec.unreadable.iter();
    if unreadable.any(|problem| problem.starts_with("healthyDelay")) {
        return HealthyDelay::UntilConfirmed;
    }
    let Some(text) = spec.healthy_delay.as_deref() else {
        return HealthyDelay::None;
    };
    let (is_negative, amount) = text.strip_prefix('-').map_or((false, text), |amount| (true, amount));
    match duration(amount) {
        Ok(SignedDuration::ZERO) => HealthyDelay::None,
        Ok(_) if is_negative => HealthyDelay::UntilConfirmed,
        Ok(delay) => HealthyDelay::For(delay),
        Err(error) => {
            problems.push(format!("healthyDelay: {error}"));
            HealthyDelay::UntilConfirmed
        }
    }
}

fn compile_backoff(backoff: &api::Backoff, problems: &mut Vec<String>) -> Option<Backoff> {
    if backoff.type_ != EXPONENTIAL {
        let type_ = &backoff.type_;
        problems.push(format!("backoff: type {type_:?} is not known: write {EXPONENTIAL}"));
    }
    let mut read = |field: &str, text: Option<&str>, default: &str| {
        duration(text.unwrap_or(default))
            .map_err(|error| problems.push(format!("backoff: {field}: {error}")))
            .ok()
    };
    Some(Backoff {
        initial: read("initial", backoff.initial.as_deref(), DEFAULT_BACKOFF_INITIAL)?,
        limit: read("limit", backoff.limit.as_deref(), DEFAULT_BACKOFF_LIMIT)?,
    })
}

/// A duration as the schema's pattern has it: a unit after each number, and no sign. Zero is one.
fn duration(text: &str) -> Result<SignedDuration, String> {
    let malformed = || format!("{text:?} is not a duration: write one such as \"90s\" or \"5m\"");
    if !text.starts_with(|first: char| first.is_ascii_digit())
        || !text.ends_with(|last: char| last.is_ascii_lowercase())
    {
        return Err(malformed());
    }
    match ConfigDuration::parse(text) {
        Ok(duration) => Ok(duration.get()),
        Err(DurationError::Zero) => Ok(SignedDuration::ZERO),
        Err(DurationError::TooLong(_)) => Ok(SignedDuration::MAX),
        Err(_) => Err(malformed()),
    }
}

#[cfg(test)]
mod tests;
