//! Who holds and who waits for which budget.

use std::fmt::Write as _;

use jiff::Timestamp;
use nodeward_api::disruption_hold::HoldPhase;
use nodeward_api::drain_ledger::ClaimState;

use super::unread;
use crate::text::line::Tone;
use crate::text::page::Page;
use crate::text::table::{Cell, Column, Table};
use crate::text::time::{age, distance};
use crate::view::locks::{BudgetLocks, Held, Locks, OwnerHold};

/// Who holds and who waits for which budget.
pub fn page(locks: &Locks, now: Timestamp) -> Page {
    let mut page = Page::new();
    // Where something could not be read, that nothing was found says little.
    match (locks.budgets.is_empty(), locks.unread.is_empty()) {
        (false, _) => page.table(0, table(&locks.budgets, now)),
        (true, true) => page.text(Tone::Plain, "No budget is held or waited for."),
        (true, false) => (),
    }
    if !locks.unplanned.is_empty() {
        page.gap();
        let nodes: Vec<String> = locks
            .unplanned
            .iter()
            .map(|waiting| format!("{} (ticket {})", waiting.node, waiting.ticket))
            .collect();
        page.text(
            Tone::Plain,
            format!("In the queue without a need for units yet: {}.", unread::join(&nodes)),
        );
    }
    unread::add(&mut page, &locks.unread);
    page
}

/// A section for each budget, with a row for each claim and each hold.
pub fn table(budgets: &[BudgetLocks], now: Timestamp) -> Table {
    let mut table = Table::new([
        Column::fixed("PDB"),
        Column::flexible("BY"),
        Column::number("UNITS"),
        Column::number("TICKET"),
        Column::fixed("FOR"),
        Column::flexible("DETAIL"),
    ]);
    for budget in budgets {
        table.section(
            Cell::new(Tone::Strong, budget.pdb.clone()),
            Cell::new(Tone::Faint, numbers(budget)),
        );
        for held in &budget.held {
            let state = match held.state {
                ClaimState::Suspect => Cell::new(Tone::Bad, "suspect"),
                ClaimState::Waiting | ClaimState::Granted | ClaimState::Confirmed => Cell::new(Tone::Good, "held"),
            };
            table.row([
                state,
                held.node.clone().into(),
                held.units.to_string().into(),
                held.ticket.to_string().into(),
                age(held.since, now).into(),
                pods(held).into(),
            ]);
        }
        for waiting in &budget.waiting {
            table.row([
                Cell::new(Tone::Warning, "awaited"),
                waiting.node.clone().into(),
                waiting.units.to_string().into(),
                waiting.ticket.to_string().into(),
                age(waiting.since, now).into(),
            ]);
        }
        for hold in &budget.owner_holds {
            let by = hold
                .name
                .as_ref()
                .map_or_else(|| "its owner".to_owned(), |name| format!("hold/{name}"));
            let units = hold.units.map_or_else(|| "all".to_owned(), |units| units.to_string());
            table.row([
                Cell::new(Tone::Warning, "kept"),
                by.into(),
                units.into(),
                "".into(),
                "".into(),
                owner(hold, now).into(),
            ]);
        }
    }
    table
}

fn numbers(budget: &BudgetLocks) -> String {
    match budget.status {
        None => "its status could not be read".to_owned(),
        Some(status) => format!(
            "allows {} now: {} of {} pods healthy, {} at least",
            status.disruptions_allowed, status.current_healthy, status.expected_pods, status.desired_healthy
        ),
    }
}

/// The pods, without the namespace, which the budget names.
fn pods(held: &Held) -> String {
    let names: Vec<String> = held
        .pods
        .iter()
        .map(|pod| {
            let name = pod.split_once('/').map_or(pod.as_str(), |(_, name)| name);
            if held.retained.contains(pod) {
                format!("{name} (stays)")
            } else {
                name.to_owned()
            }
        })
        .collect();
    match names.len() {
        ..=4 => names.join(", "),
        many => format!("{}, +{}", names[..3].join(", "), many - 3),
    }
}

fn owner(hold: &OwnerHold, now: Timestamp) -> String {
    let mut text = hold.reason.clone();
    if let Some(until) = hold.until {
        let _ = write!(text, "; ends {}", distance(until, now));
    }
    match hold.phase {
        Some(HoldPhase::Capped) => text + ", sooner than asked for",
        Some(HoldPhase::NoSuchBudget) => text + "; there is no such budget",
        Some(HoldPhase::Active | HoldPhase::Expired) | None => text,
    }
}
