//! `why pdb/NAME`: whether a budget allows a disruption, which of its pods are not healthy, who holds it and who waits.

use std::collections::BTreeSet;

use jiff::Timestamp;
use nodeward_api::reason::{BlockerReason, LockReason};
use nodeward_core::budget::BudgetView;
use nodeward_core::text::counted;
use serde::Serialize;

use super::next::{self, Step, ends_of_holds};
use super::{counts_of, print_counts};
use crate::cluster::Cluster;
use crate::commands::locks;
use crate::commands::printed::PrintedCommands;
use crate::describe;
use crate::failure::Failure;
use crate::fetch::Reader;
use crate::model::Unread;
use crate::model::budget_health::BudgetHealth;
use crate::model::locks::{BudgetLocks, Sources, of_budgets};
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::Cell;
use crate::text::time::moment;

/// Whether a budget allows a disruption, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WhyBudget {
    /// Its counts, and who holds or waits for it.
    pub locks: BudgetLocks,
    /// Its pods; absent where they could not be read.
    pub counts: Option<BudgetHealth>,
    /// Why drain-keeper never overrides it: `BudgetNeverForced` or `CephBudget`.
    pub never_overridden: Option<BlockerReason>,
    pub last_override: Option<Override>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

/// The last time that drain-keeper overrode the budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Override {
    pub at: Timestamp,
    pub pod: String,
}

impl WhyBudget {
    pub async fn fetch(cluster: &Cluster, namespace: &str, name: &str) -> Result<Self, Failure> {
        let mut reader = Reader::new(cluster);
        let budget = reader.budget(namespace, name).await?;
        let view = BudgetView::project(&budget);
        let pdb = format!("{namespace}/{name}");
        let ledger = reader.ledger().await?;
        let holds = reader.holds(Some(namespace)).await?.unwrap_or_default();
        let budgets = [budget];
        let sources = Sources {
            ledger: ledger.as_deref(),
            budgets: budgets.iter().collect(),
            holds: holds.iter().collect(),
            namespace: Some(namespace),
        };
        let also = BTreeSet::from([pdb.clone()]);
        let locks = of_budgets(&sources, &also, reader.now);
        let locks = locks.into_iter().find(|locks| locks.pdb == pdb).unwrap_or_default();
        let counts = counts_of(&mut reader, &[&budgets[0]]).await?;
        Ok(Self {
            locks,
            counts: counts.into_iter().next(),
            never_overridden: view.as_ref().and_then(BudgetView::forbids_force),
            last_override: view.and_then(|view| view.last_override).map(|last| Override {
                at: last.at,
                pod: format!("{namespace}/{}", last.pod),
            }),
            unread: reader.unread,
        })
    }

    pub fn print(&self, page: &mut Page, next: &[Step], now: Timestamp) {
        page.heading(format!("PDB {}", self.locks.pdb));
        describe::cannot_tell(page, &self.unread);
        if let Some(status) = self.locks.status {
            let style = if status.disruptions_allowed > 0 {
                Style::Good
            } else {
                Style::Warning
            };
            page.field(
                "allows",
                Cell::new(style, describe::disruptions(status.disruptions_allowed)),
            );
            let (healthy, all, least) = (status.current_healthy, status.expected_pods, status.desired_healthy);
            page.field(
                "counts",
                format!("{healthy} of {all} pods healthy, at least {least} required"),
            );
        }
        if let Some(reason) = self.never_overridden {
            page.field("forced", format!("never by drain-keeper [{reason}]"));
        }
        if let Some(Override { at, pod }) = &self.last_override {
            page.field("overridden", format!("last for {pod}, {}", moment(*at, now)));
        }
        next::print(page, next);
        if let Some(counts) = self.counts.as_ref().filter(|counts| !counts.is_sound()) {
            print_counts(page, counts);
        }
        let locks = &self.locks;
        if !(locks.held.is_empty() && locks.waiting.is_empty() && locks.owner_holds.is_empty()) {
            page.gap();
            page.table(0, locks::table(std::slice::from_ref(locks), now));
        }
        describe::not_installed(page, &self.unread);
    }

    pub(super) fn next(&self, commands: &PrintedCommands, now: Timestamp) -> Vec<Step> {
        let mut next = ends_of_holds(&self.locks, commands, now);
        let holders = self.locks.held.iter();
        next.extend(holders.map(|held| {
            let (disruptions, node) = (counted(held.disruptions, "disruption"), &held.node);
            let text = format!("the drain of {node} has {disruptions} of it until its pods are ready again");
            Step::with(text, commands.why(node))
        }));
        let is_healthy = self.counts.as_ref().is_some_and(BudgetHealth::is_sound);
        let exhausted = self.locks.status.filter(|status| status.disruptions_allowed < 1);
        // Ceph's operator closes a budget in the way of one that never allows a disruption, and opens it again.
        if let (Some(_), Some(reason @ BlockerReason::CephBudget)) = (exhausted, self.never_overridden) {
            next.push(Step::new(format!("{} [{reason}]", reason.remedy())));
        } else if exhausted.is_some_and(|status| is_healthy && status.expected_pods <= status.desired_healthy) {
            let reason = LockReason::BudgetNeverAllows;
            next.push(Step::new(format!("{} [{reason}]", reason.remedy())));
        } else if self.counts.as_ref().is_some_and(|counts| !counts.unhealthy.is_empty()) {
            next.push(Step::new(LockReason::BudgetUnhealthy.remedy()));
        }
        next
    }
}
