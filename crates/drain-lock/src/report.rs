//! Report: what a plan says, as people and monitoring see it. Nothing here is read for a decision.

pub mod events;
pub mod locked_by;
pub mod metrics;
pub mod status;

use jiff::Timestamp;
use nodeward_runtime::{EventSink, Metrics};

use crate::execute::{Eviction, StatusUpdate, TaskKey, TaskOutcome};
use crate::plan::Plan;
use crate::snapshot::Snapshot;

use self::events::Announcer;
use self::metrics::LockMetrics;

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
    pub fn report(&mut self, snapshot: &Snapshot, plan: &Plan, now: Timestamp) -> Vec<StatusUpdate> {
        self.metrics.show(plan, now);
        self.announcer.problems(&plan.drains);
        let mut updates: Vec<StatusUpdate> = plan
            .drains
            .iter()
            .filter_map(|verdict| status::of_drain(verdict, now))
            .collect();
        updates.extend(plan.holds.iter().filter_map(status::of_hold));
        updates.extend(locked_by::changes(snapshot));
        updates
    }

    /// Says what was done, and what was not.
    pub fn acted(&mut self, key: &TaskKey, outcome: &TaskOutcome) {
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
    pub fn on_leadership_lost(&mut self) {
        self.metrics.clear();
    }
}
