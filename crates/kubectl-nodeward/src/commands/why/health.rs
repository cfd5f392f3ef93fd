//! The health of a node: which condition counts against it, what stops its remediation, and what comes next.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodeward_api::annotation::MANUALLY_CONFIRMED_HEALTHY;
use nodeward_api::label::CONTROL_PLANE_ROLES;
use nodeward_api::node_lease;
use nodeward_api::reason::HealthReason;

use crate::describe::prefixed;
use crate::failure::Failure;
use crate::fetch::Reader;
use crate::model::drain::Drain;
use crate::model::health::{HealthSources, NodeHealth, of_node};
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::Cell;
use crate::text::time::{moment, with_distances};

/// The health of the node; `None` where there are no NodeHealthChecks, or they cannot be read.
pub async fn fetch(
    reader: &mut Reader<'_>,
    name: &str,
    node: Option<&Node>,
    drain: Option<&Drain>,
) -> Result<Option<Vec<NodeHealth>>, Failure> {
    let Some(checks) = reader.health_checks().await? else {
        return Ok(None);
    };
    let mut sources = HealthSources {
        checks: &checks,
        node,
        drain,
        ..HealthSources::default()
    };
    let now = reader.now;
    if of_node(name, &sources, now).iter().all(is_well) {
        return Ok(Some(of_node(name, &sources, now)));
    }
    // Only what is unhealthy is worth more requests.
    let lease = reader.node_lease(&node_lease::name_of(name)).await?;
    let has_role = |node: &Node| CONTROL_PLANE_ROLES.iter().any(|role| node.labels().contains_key(*role));
    let control_plane = if node.is_some_and(has_role) {
        reader.node_lease(node_lease::CONTROL_PLANE).await?
    } else {
        None
    };
    let skipped = reader.remediation_skipped(name).await?;
    sources.lease = lease.as_ref();
    sources.control_plane = control_plane.as_ref();
    sources.skipped = &skipped;
    let mut health = of_node(name, &sources, now);
    for step in health.iter_mut().filter_map(|health| health.step.as_mut()) {
        let remediation = reader.remediation(&step.resource).await?;
        step.take_conditions(remediation.as_ref());
    }
    Ok(Some(health))
}

fn is_well(health: &NodeHealth) -> bool {
    health.condition.is_none() && health.step.is_none()
}

/// One line for NodeHealthChecks in whose eyes the node is well; the others get a section each.
pub fn print_summary(page: &mut Page, health: Option<&[NodeHealth]>) {
    let Some(health) = health else { return };
    if health.is_empty() {
        page.field("health", Cell::new(Style::Faint, "no NodeHealthCheck watches it"));
    }
    let well = health.iter().filter(|health| is_well(health));
    let told = well.map(|health| format!("{} (NodeHealthCheck {})", health.reason.explanation(), health.check));
    page.fields("health", told);
}

/// The state of the node: completes "the node …".
pub fn sentence(health: &NodeHealth) -> String {
    format!("{} [{}]", health.reason.explanation(), health.reason)
}

pub fn print(page: &mut Page, health: &NodeHealth, now: Timestamp) {
    if is_well(health) {
        return;
    }
    page.heading(format!("Health, by NodeHealthCheck {}", health.check));
    let style = match health.reason {
        HealthReason::ChainExhausted => Style::Bad,
        HealthReason::HealthyDelayed | HealthReason::RemovingRemediations => Style::Good,
        _ => Style::Warning,
    };
    let until = prefixed(", until ", health.until.map(|until| moment(until, now)));
    let (reason, explanation) = (health.reason, health.reason.explanation());
    page.field(
        "state",
        Cell::new(style, format!("the node {explanation} [{reason}{until}]")),
    );
    if let Some(condition) = &health.condition {
        let (since, expires) = (moment(condition.since, now), moment(condition.expires, now));
        let is_ahead = condition.expires > now;
        let verb = if is_ahead { "counts" } else { "has counted" };
        let (type_, status) = (&condition.type_, &condition.status);
        let text = format!("{type_} is {status} since {since}; it {verb} as unhealthy from {expires} on");
        page.field("condition", text);
    }
    let stops = health.stopped_by.iter().map(|stop| {
        let until = prefixed(", until ", stop.until.map(|until| moment(until, now)));
        let detail = with_distances(&stop.detail, now);
        Cell::new(Style::Warning, format!("{detail} [{}{until}]", stop.reason))
    });
    page.fields("stopped by", stops);
    if let Some(step) = &health.step {
        let started = prefixed(", since ", step.started.map(|started| moment(started, now)));
        let end = match (step.timed_out, step.ends) {
            (Some(timed_out), _) => format!(", timed out {}", moment(timed_out, now)),
            (None, ends) => prefixed(", until ", ends.map(|ends| format!("{} at most", moment(ends, now)))),
        };
        let (number, of, remediation) = (step.number, step.of, &step.remediation);
        page.field("step", format!("{number} of {of}: {remediation}{started}{end}"));
        page.fields("says", &step.conditions);
    }
    page.fields("next", next(health, now));
}

fn next(health: &NodeHealth, now: Timestamp) -> Vec<String> {
    let mut next = Vec::new();
    match (&health.next, health.reason) {
        (_, HealthReason::HealthyDelayed) => next.push(format!(
            "its remediations are deleted then; to end the delay now: kubectl annotate node NAME {MANUALLY_CONFIRMED_HEALTHY}="
        )),
        (_, HealthReason::WouldRemediate) => next.push("nothing: the NodeHealthCheck is a dry run".to_owned()),
        (Some(step), _) => {
            // What was to come at a time that has passed waits for something: no time is promised.
            let at = step.at.filter(|at| *at > now).map(|at| moment(at, now));
            let when = match at {
                Some(at) if health.stopped_by.is_empty() => format!(" at {at}, unless the node is healthy before"),
                _ if health.stopped_by.is_empty() => String::new(),
                _ => ", when nothing stops it any more".to_owned(),
            };
            next.push(format!("step {}, {}{when}", step.number, step.template));
        }
        (None, HealthReason::ChainExhausted) => {
            next.push("no step is left: only a backoff in the NodeHealthCheck begins anew; look at the node".to_owned());
        }
        (None, HealthReason::RemediationRunning) => next.push("no further step: it lasts until the node is healthy".to_owned()),
        (None, _) => (),
    }
    next
}
