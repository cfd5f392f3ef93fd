//! The health of a node: which condition counts against it, what stops its remediation, and what comes next.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodeward_api::annotation::MANUALLY_CONFIRMED_HEALTHY;
use nodeward_api::reason::HealthReason;
use nodeward_api::{NodeHealthCheck, node_lease};
use nodeward_core::node_health_check::{CheckSpec, RemediationKind};

use crate::commands::printed::PrintedCommands;
use crate::describe::{self, prefixed};
use crate::failure::Failure;
use crate::fetch::Reader;
use crate::model::drain::Drain;
use crate::model::health::{HealthSources, KeptRemediation, NodeHealth, of_node};
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::Cell;
use crate::text::time::{ahead, moment};

/// The health of the node, which is `None` where there are no NodeHealthChecks, or they cannot be read; and the remediations of
/// it that something keeps.
pub async fn fetch(
    reader: &mut Reader<'_>,
    name: &str,
    node: Option<&Node>,
    drain: Option<&Drain>,
) -> Result<(Option<Vec<NodeHealth>>, Vec<KeptRemediation>), Failure> {
    let Some(checks) = reader.health_checks().await? else {
        return Ok((None, Vec::new()));
    };
    let mut sources = HealthSources {
        checks: &checks,
        node,
        drain,
        ..HealthSources::default()
    };
    let now = reader.now;
    let judged = of_node(name, &sources, now);
    let concerned = checks.iter().filter(|check| {
        let judges = judged.iter().any(|health| health.check == check.name_any());
        node.is_none() || (judges && !counts_all_healthy(check))
    });
    let kept = kept(reader, name, concerned, &checks).await?;
    if judged.iter().all(is_well) {
        return Ok((Some(judged), kept));
    }
    // Only what is unhealthy is worth more requests.
    let lease = reader.node_lease(&node_lease::name_of(name)).await?;
    sources.lease = lease.as_ref();
    let mut health = of_node(name, &sources, now);
    for step in health.iter_mut().filter_map(|health| health.step.as_mut()) {
        let remediation = reader.remediation(&step.resource).await?;
        step.take_conditions(remediation.as_ref());
    }
    Ok((Some(health), kept))
}

/// A node does not count as healthy for as long as a remediation of it is there.
fn counts_all_healthy(check: &NodeHealthCheck) -> bool {
    let status = check.status.as_ref();
    status.is_some_and(|status| status.healthy_nodes.is_some() && status.healthy_nodes == status.observed_nodes)
}

async fn kept(
    reader: &mut Reader<'_>,
    name: &str,
    checks: impl Iterator<Item = &NodeHealthCheck>,
    all: &[NodeHealthCheck],
) -> Result<Vec<KeptRemediation>, Failure> {
    let mut kept: Vec<KeptRemediation> = Vec::new();
    for check in checks {
        let steps = CheckSpec::compile(&check.spec).steps;
        let sources: BTreeMap<_, _> = steps
            .iter()
            .map(|step| {
                (
                    (step.template.remediation_kind(), &step.template.namespace),
                    &step.template,
                )
            })
            .collect();
        for ((RemediationKind { kind, .. }, _), template) in sources {
            let found = reader.remediations(template).await?;
            for found in found
                .iter()
                .filter_map(|found| KeptRemediation::of(&kind, found, name, check, all))
            {
                // One of a NodeHealthCheck that is gone is in the way of all.
                if !kept.iter().any(|known| known.remediation == found.remediation) {
                    kept.push(found);
                }
            }
        }
    }
    Ok(kept)
}

/// A remediation that something keeps, in the operator's words.
pub fn print_kept(page: &mut Page, kept: &[KeptRemediation], now: Timestamp) {
    let told = kept.iter().map(|kept| {
        let (remediation, deleted) = (&kept.remediation, moment(kept.deleted, now));
        let (finalizers, check) = (kept.finalizers.join(", "), &kept.check);
        let text = format!(
            "{remediation} is being deleted since {deleted}, and its finalizers keep it: {finalizers}; to do: see why its \
             remediator does not remove them (NodeHealthCheck {check})"
        );
        Cell::new(Style::Warning, text)
    });
    page.fields("kept", told);
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

pub fn print(page: &mut Page, node: &str, health: &NodeHealth, commands: &PrintedCommands, now: Timestamp) {
    if is_well(health) {
        return;
    }
    page.heading(format!("Health, by NodeHealthCheck {}", health.check));
    let style = match health.reason {
        HealthReason::ChainExhausted => Style::Bad,
        HealthReason::HealthyDelayed | HealthReason::RemovingRemediations => Style::Good,
        _ => Style::Warning,
    };
    // What was to end at a time that has passed waits for something: no time is promised.
    let until = prefixed(", until ", ahead(health.until, now));
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
    let stops = health.stopped_by.iter().map(|stop| describe::stop(stop, now));
    let stops = stops.map(|text| Cell::new(Style::Warning, text));
    page.fields("stopped by", stops);
    if let Some(step) = &health.step {
        let started = prefixed(", since ", step.started.map(|started| moment(started, now)));
        let end = match (step.timed_out, step.ends) {
            (Some(timed_out), _) => format!(", timed out {}", moment(timed_out, now)),
            (None, ends) => prefixed(", until ", ahead(ends, now).map(|ends| format!("{ends} at most"))),
        };
        let (number, of, remediation) = (step.number, step.of, &step.remediation);
        page.field("step", format!("{number} of {of}: {remediation}{started}{end}"));
        page.fields("says", &step.conditions);
    }
    page.fields("next", next(health, now));
    if health.reason == HealthReason::HealthyDelayed {
        page.command(
            "",
            commands.kubectl(&format!("annotate node {node} {MANUALLY_CONFIRMED_HEALTHY}=")),
        );
    }
}

fn next(health: &NodeHealth, now: Timestamp) -> Vec<String> {
    let mut next = Vec::new();
    match (&health.next, health.reason) {
        (_, HealthReason::HealthyDelayed) => {
            next.push("its remediations are deleted then; to end the delay now:".to_owned());
        }
        (_, HealthReason::WouldRemediate) => next.push("nothing: the NodeHealthCheck is a dry run".to_owned()),
        (Some(step), _) => {
            let when = match ahead(step.at, now) {
                Some(at) if health.stopped_by.is_empty() => format!(" at {at}, unless the node is healthy before"),
                _ if health.stopped_by.is_empty() => String::new(),
                _ => ", when nothing stops it any more".to_owned(),
            };
            next.push(format!("step {}, {}{when}", step.number, step.template));
        }
        (None, HealthReason::ChainExhausted) => {
            next.push(
                "no step is left: the chain begins anew once all of its remediations are deleted, by you or by a backoff in \
                 the NodeHealthCheck; look at the node"
                    .to_owned(),
            );
        }
        (None, HealthReason::RemediationRunning) => next.push(
            "no further step: it lasts until the node is healthy, or the remediation fails or runs out of time"
                .to_owned(),
        ),
        (None, _) => (),
    }
    next
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use clap::Parser;

    use super::*;
    use crate::args::CommandLine;
    use crate::model::health::{MatchedCondition, NextStep, Stop};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// At half past ten.
    fn told(health: &NodeHealth) -> String {
        let mut page = Page::new(1000);
        let line = CommandLine::parse_from(["kubectl-nodeward", "status"]);
        let commands = PrintedCommands::new(&line.global, None);
        print(&mut page, "n1", health, &commands, at("2026-01-01T10:30:00Z"));
        page.lines().join("\n")
    }

    /// The first step of two has been due since 10:25.
    fn due(reason: HealthReason, until: Option<&str>) -> NodeHealth {
        NodeHealth {
            check: "workers".to_owned(),
            reason,
            until: None,
            condition: Some(MatchedCondition {
                type_: "Ready".to_owned(),
                status: "Unknown".to_owned(),
                since: at("2026-01-01T10:20:00Z"),
                expires: at("2026-01-01T10:25:00Z"),
            }),
            stopped_by: vec![Stop {
                reason,
                detail: "why".to_owned(),
                until: until.map(at),
            }],
            step: None,
            next: Some(NextStep {
                number: 1,
                template: "ATemplate n/t".to_owned(),
                at: Some(at("2026-01-01T10:25:00Z")),
            }),
        }
    }

    /// However it is stopped, and whenever that was to end.
    #[rstest]
    #[case::unknown_upgrade(HealthReason::UpgradeSignalUnknown, None)]
    #[case::another_check(HealthReason::RemediatedByAnotherCheck, None)]
    #[case::refused_write(HealthReason::PermissionMissing, None)]
    #[case::earlier_node(HealthReason::EarlierRemediation, None)]
    #[case::lease(HealthReason::LeaseTaken, Some("2026-01-01T10:31:00Z"))]
    #[case::lease_that_has_run_out(HealthReason::LeaseTaken, Some("2026-01-01T10:29:00Z"))]
    fn time_that_has_passed_is_never_promised(#[case] reason: HealthReason, #[case] until: Option<&str>) {
        let told = told(&due(reason, until));
        assert!(
            told.contains("step 1, ATemplate n/t, when nothing stops it any more"),
            "{told}"
        );
        assert!(!told.contains("10:29:00Z"), "{told}");
        let is_ahead = until.is_some_and(|until| at(until) > at("2026-01-01T10:30:00Z"));
        assert_eq!(told.contains("until 10:31:00Z (in 1m)"), is_ahead, "{told}");
    }

    #[rstest]
    #[case::ahead(
        "2026-01-01T10:35:00Z",
        "step 1, ATemplate n/t at 10:35:00Z (in 5m), unless the node is healthy before"
    )]
    #[case::passed("2026-01-01T10:29:00Z", "step 1, ATemplate n/t")]
    fn next_step_has_its_time_while_that_is_ahead(#[case] step_at: &str, #[case] expected: &str) {
        let mut health = due(HealthReason::RemediationRunning, None);
        health.stopped_by.clear();
        health.next.as_mut().unwrap().at = Some(at(step_at));
        assert!(told(&health).trim_end().ends_with(expected), "{}", told(&health));
    }
}
