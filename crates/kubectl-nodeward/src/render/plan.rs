//! What draining a node would take.

use nodeward_api::node_drain::{DrainPlan, PlannedPod};

use super::obstacle;
use crate::text::line::Tone;
use crate::text::page::Page;
use crate::text::table::{Cell, Column, Table};
use crate::view::plan::Plan;

/// What draining a node would take.
pub fn page(plan: &Plan) -> Page {
    let mut page = Page::new();
    page.heading(format!("Plan for {}", plan.node));
    match plan.phase {
        Some(phase) if !plan.dry_run => page.text(Tone::Plain, format!("Of its drain, which is {phase}.")),
        _ => page.text(Tone::Faint, "Planned only: nothing was cordoned, claimed or evicted."),
    }
    counts(&mut page, &plan.plan);
    in_the_way(&mut page, plan);
    let lists = [
        (
            "Pods that need a unit of each of their budgets before they go",
            &plan.plan.held,
        ),
        ("Pods that the drain waits for until they finish", &plan.plan.waits_for),
        ("Pods that stay on the node through its reboot", &plan.plan.retained),
    ];
    for (title, pods) in lists {
        if !pods.is_empty() {
            page.heading(title);
            page.table(2, table(pods));
        }
    }
    if plan.plan.omitted > 0 {
        page.gap();
        page.text(Tone::Faint, format!("{} more are not listed.", plan.plan.omitted));
    }
    page
}

fn counts(page: &mut Page, plan: &DrainPlan) {
    let held = plan.held.len();
    page.gap();
    page.field(
        "movable",
        Tone::Plain,
        match plan.movable {
            ..=0 => "no pod".to_owned(),
            1 => "1 pod finds room elsewhere, and goes as its budget allows".to_owned(),
            count => format!("{} find room elsewhere, and go as their budgets allow", pods(count)),
        },
    );
    page.field(
        "held",
        Tone::Plain,
        match held {
            0 => "no pod: the drain needs no claim, and waits for no other drain".to_owned(),
            _ => needs(plan),
        },
    );
    if !plan.waits_for.is_empty() {
        page.field(
            "waits for",
            Tone::Plain,
            format!("{} to finish", pods(plan.waits_for.len())),
        );
    }
    if !plan.retained.is_empty() {
        page.field("stay", Tone::Plain, pods(plan.retained.len()));
    }
    if plan.ignored > 0 {
        page.field(
            "ignored",
            Tone::Faint,
            format!("{} of DaemonSets, static or finished", pods(plan.ignored)),
        );
    }
}

fn pods<N: std::fmt::Display>(count: N) -> String {
    let count = count.to_string();
    if count == "1" {
        "1 pod".to_owned()
    } else {
        format!("{count} pods")
    }
}

fn needs(plan: &DrainPlan) -> String {
    let mut names: Vec<&str> = plan.held.iter().flat_map(|pod| &pod.pdbs).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let held = pods(plan.held.len());
    let (need, units) = if plan.held.len() == 1 {
        ("needs", "a unit")
    } else {
        ("need", "units")
    };
    match names.len() {
        0 => format!("{held} without a budget: down until the node is back"),
        1..=3 => format!("{held} {need} {units} of {}", names.join(", ")),
        many => format!(
            "{held} {need} {units} of {} and {} more budgets",
            names[..2].join(", "),
            many - 2
        ),
    }
}

/// What needs a person, and what it would wait for; a problem is told once.
fn in_the_way(page: &mut Page, plan: &Plan) {
    let problems = obstacle::distinct(&plan.plan.problems);
    let all = [&plan.plan.problems[..], &plan.blocked_by].concat();
    let waits = obstacle::distinct(&all).split_off(problems.len());
    if problems.is_empty() && waits.is_empty() {
        page.field("in the way", Tone::Good, "nothing");
        return;
    }
    if !problems.is_empty() {
        page.heading("Needs somebody to look");
        for problem in problems {
            page.point(1, Tone::Bad, obstacle::clause(problem));
        }
    }
    if !waits.is_empty() {
        page.heading(if plan.dry_run { "Would wait now" } else { "Waits now" });
        for blocked in waits {
            page.point(1, Tone::Warning, obstacle::clause(blocked));
        }
    }
}

fn table(pods: &[PlannedPod]) -> Table {
    let mut table = Table::new([
        Column::flexible("POD"),
        Column::flexible("PDB"),
        Column::flexible("WHY"),
    ]);
    for pod in pods {
        let why = pod
            .message
            .as_ref()
            .filter(|message| !message.contains(pod.reason.explanation()));
        let why = match why {
            Some(message) => format!("{}: {message} [{}]", pod.reason.explanation(), pod.reason),
            None => format!("{} [{}]", pod.reason.explanation(), pod.reason),
        };
        table.row([
            Cell::new(Tone::Strong, pod.pod.clone()),
            pod.pdbs.join(", ").into(),
            why.into(),
        ]);
    }
    table
}
