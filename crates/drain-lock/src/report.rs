//! Report: what a plan says, as people and monitoring see it. Nothing here is read for a decision.

pub mod events;
pub mod locked_by;
pub mod metrics;
pub mod status;

use nodeward_core::id::{BudgetKey, NamespacedName};
use nodeward_runtime::{EventSink, Metrics};
use serde_json::Value;

use crate::execute::{Eviction, Key, Outcome};
use crate::plan::Plan;
use crate::snapshot::Snapshot;

use self::events::Announcer;
use self::metrics::LockMetrics;

use jiff::Timestamp;

/// Something that is written for people only.
#[derive(Debug, Clone, PartialEq)]
pub enum Show {
    /// The status of a NodeDrain: what of it changes.
    Drain {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
        /// The fields that change; null where one goes.
        status: Value,
    },
    /// The status of a DisruptionHold: what of it changes.
    Hold {
        /// Its namespace and name.
        key: NamespacedName,
        /// Its UID.
        uid: String,
        /// The fields that change; null where one goes.
        status: Value,
    },
    /// The nodes whose drains hold units of a budget; `None`: there is none any more.
    LockedBy {
        /// The budget.
        key: BudgetKey,
        /// Its UID.
        uid: String,
        /// The nodes.
        nodes: Option<String>,
    },
}

impl Show {
    /// What it is about: kind and name.
    pub fn about(&self) -> (&'static str, String) {
        match self {
            Self::Drain { name, .. } => ("status of NodeDrain", name.clone()),
            Self::Hold { key, .. } => ("status of DisruptionHold", key.to_string()),
            Self::LockedBy { key, .. } => ("annotation of budget", key.to_string()),
        }
    }
}

/// Everything that people and monitoring see.
pub struct Reporter {
    metrics: LockMetrics,
    announcer: Announcer,
}

impl Reporter {
    /// Registers the metrics; nothing is said yet.
    pub fn new(metrics: &Metrics, events: EventSink) -> Self {
        Self {
            metrics: LockMetrics::register(metrics),
            announcer: Announcer::new(events),
        }
    }

    /// Says what the plan says. Returns what is to be written.
    pub fn report(&mut self, snapshot: &Snapshot, plan: &Plan, now: Timestamp) -> Vec<Show> {
        self.metrics.show(plan, now);
        self.announcer.problems(&plan.drains);
        let mut shows: Vec<Show> = plan
            .drains
            .iter()
            .filter_map(|verdict| status::of_drain(verdict, now))
            .collect();
        shows.extend(plan.holds.iter().filter_map(status::of_hold));
        shows.extend(locked_by::changes(snapshot));
        shows
    }

    /// Says what was done, and what was not.
    pub fn acted(&mut self, key: &Key, outcome: &Outcome) {
        self.metrics.acted(key, outcome);
        for announcement in &outcome.announcements {
            self.metrics.announced(announcement.reason);
            self.announcer.announce(announcement);
        }
        for eviction in &outcome.evictions {
            self.evicted(eviction);
        }
    }

    fn evicted(&mut self, eviction: &Eviction) {
        self.metrics.evicted(eviction);
        self.announcer.evicted(eviction);
    }

    /// Only the leader speaks: takes back what this process has exported.
    pub fn stand_down(&mut self) {
        self.metrics.clear();
    }
}
