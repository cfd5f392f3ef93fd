//! `locks`: the holders of budgets, and the drains that wait for them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use nodeward_api::disruption_hold::HoldPhase;
use nodeward_core::ledger::ClaimState;
use serde::Serialize;

use crate::cluster::Cluster;
use crate::describe::{self, prefixed};
use crate::failure::Failure;
use crate::fetch::Reader;
use crate::model::Unread;
use crate::model::drain::Drain;
use crate::model::locks::{BudgetLocks, Held, NodeGroups, OwnerHold, Sources, Waiting, of_budgets, unplanned};
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::{Cell, Column, Table};
use crate::text::time::{age, distance};

/// The holders of budgets, and the drains that wait for them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Locks {
    /// The budgets that somebody holds disruptions of or waits for, in the order of their names.
    pub budgets: Vec<BudgetLocks>,
    /// Nodes that are away in their node groups, and drains that wait for a place in one.
    #[serde(skip_serializing_if = "NodeGroups::is_empty")]
    pub node_groups: NodeGroups,
    /// Claims that wait and need no disruption of a budget yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unplanned: Vec<Waiting>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

impl Locks {
    /// In the namespace of `-n` or in all.
    pub async fn fetch(cluster: &Cluster) -> Result<Self, Failure> {
        let mut reader = Reader::new(cluster);
        let namespace = cluster.namespace.as_deref();
        let ledger = reader.ledger().await?;
        let budgets = reader.budgets(namespace).await?.unwrap_or_default();
        let holds = reader.holds(namespace).await?.unwrap_or_default();
        let drains: Vec<Drain> = reader.drains().await?.unwrap_or_default();
        let sources = Sources {
            ledger: ledger.as_deref(),
            budgets: budgets.iter().collect(),
            holds: holds.iter().collect(),
            namespace,
        };
        Ok(Self {
            budgets: of_budgets(&sources, &BTreeSet::new(), reader.now),
            node_groups: NodeGroups::of(ledger.as_deref(), &drains),
            unplanned: unplanned(&sources),
            unread: reader.unread,
        })
    }

    pub fn print(&self, page: &mut Page, now: Timestamp) {
        describe::cannot_tell(page, &self.unread);
        // Where something could not be read, finding nothing says little.
        match (self.budgets.is_empty(), self.unread.is_empty()) {
            (false, _) => page.table(0, table(&self.budgets, now)),
            (true, true) => page.text(Style::Plain, "No budget is held or waited for."),
            (true, false) => (),
        }
        self.node_groups.print(page, now);
        if !self.unplanned.is_empty() {
            page.gap();
            let nodes = self.unplanned.iter();
            let nodes: Vec<_> = nodes
                .map(|one| format!("{} (ticket {})", one.node, one.ticket))
                .collect();
            let text = format!("Queued without needing disruptions yet: {}.", describe::list(&nodes));
            page.text(Style::Plain, text);
        }
        describe::not_installed(page, &self.unread);
    }
}

impl NodeGroups {
    fn print(&self, page: &mut Page, now: Timestamp) {
        let mut table = Table::new([
            Column::Fixed("NODE GROUP"),
            Column::Fixed("STATE"),
            Column::Flexible("NODE"),
            Column::Number("TICKET"),
            Column::Fixed("FOR"),
            Column::Flexible("DETAIL"),
        ]);
        for away in &self.away {
            table.row([
                (&away.group).into(),
                Cell::new(Style::Good, "away"),
                (&away.node).into(),
                away.ticket.to_string().into(),
                age(away.since, now).into(),
            ]);
        }
        for waiting in &self.waiting {
            table.row([
                "".into(),
                Cell::new(Style::Warning, "waiting"),
                (&waiting.node).into(),
                prefixed("", waiting.ticket).into(),
                prefixed("", waiting.since.map(|since| age(since, now))).into(),
                (&waiting.message).into(),
            ]);
        }
        page.separate_table(table);
    }
}

/// A section for each budget, with a row for each claim and each hold.
pub fn table(budgets: &[BudgetLocks], now: Timestamp) -> Table {
    let mut table = Table::new([
        Column::Fixed("PDB"),
        Column::Flexible("BY"),
        Column::Number("DISRUPTIONS"),
        Column::Number("TICKET"),
        Column::Fixed("FOR"),
        Column::Flexible("DETAIL"),
    ]);
    for budget in budgets {
        let about = match budget.status {
            Some(status) => format!(
                "allows {} now: {} of {} pods healthy, at least {} required",
                status.disruptions_allowed, status.current_healthy, status.expected_pods, status.desired_healthy
            ),
            None => "its status could not be read".to_owned(),
        };
        table.section(Cell::new(Style::Strong, &budget.pdb), Cell::new(Style::Faint, about));
        for held in &budget.held {
            let state = match held.state {
                ClaimState::Suspect => Cell::new(Style::Bad, "suspect"),
                _ => Cell::new(Style::Good, "held"),
            };
            table.row([
                state,
                (&held.node).into(),
                held.disruptions.to_string().into(),
                held.ticket.to_string().into(),
                age(held.since, now).into(),
                pods(held).into(),
            ]);
        }
        for waiting in &budget.waiting {
            table.row([
                Cell::new(Style::Warning, "waiting"),
                (&waiting.node).into(),
                waiting.disruptions.to_string().into(),
                waiting.ticket.to_string().into(),
                age(waiting.since, now).into(),
            ]);
        }
        for hold in &budget.owner_holds {
            let by = hold.name.as_ref().map(|name| format!("hold/{name}"));
            let disruptions = hold.disruptions.map(|disruptions| disruptions.to_string());
            table.row([
                Cell::new(Style::Warning, "kept"),
                by.unwrap_or_else(|| "its owner".to_owned()).into(),
                disruptions.unwrap_or_else(|| "all".to_owned()).into(),
                "".into(),
                "".into(),
                owner_hold(hold, now).into(),
            ]);
        }
    }
    table
}

/// The pods, without the namespace, which the budget names.
fn pods(held: &Held) -> String {
    let names = held.pods.iter().map(|pod| {
        let name = pod.split_once('/').map_or(pod.as_str(), |(_, name)| name);
        let stays = if held.retained.contains(pod) { " (stays)" } else { "" };
        format!("{name}{stays}")
    });
    let shown = if held.pods.len() > 4 { 3 } else { 4 };
    describe::first(&names.collect::<Vec<_>>(), shown)
}

fn owner_hold(hold: &OwnerHold, now: Timestamp) -> String {
    let ends = prefixed("; ends ", hold.until.map(|until| distance(until, now)));
    let phase = match hold.phase {
        Some(HoldPhase::Capped) => ", sooner than requested",
        Some(HoldPhase::NoSuchBudget) => "; the budget does not exist",
        Some(HoldPhase::Active | HoldPhase::Expired | HoldPhase::Overridden) | None => "",
    };
    format!("{}{ends}{phase}", hold.reason)
}
