//! Report: what the verdicts and the actions look like from outside. Statuses are actions of the plan; this is the rest.

mod events;
mod metrics;

use jiff::Timestamp;
use nodeward_runtime::{ActionResult, OperatorContext};

use crate::definition::Fields;
use crate::execute::Executed;
use crate::plan::{Action, Verdicts};
use crate::settings::Settings;
use crate::snapshot::Snapshot;

use self::events::Announcer;
use self::metrics::HealthMetrics;

/// Everything that people and monitoring see, besides statuses.
pub struct Reporter {
    metrics: HealthMetrics,
    announcer: Announcer,
}

impl Reporter {
    /// Registers the metrics; nothing is said yet.
    pub fn new(context: &OperatorContext<Settings>) -> Self {
        Self {
            metrics: HealthMetrics::register(&context.metrics),
            announcer: Announcer::new(context.events.clone()),
        }
    }

    /// Reports how everything stands.
    pub fn report(&mut self, snapshot: &Snapshot, verdicts: &Verdicts, now: Timestamp) {
        self.metrics.show(snapshot, verdicts);
        self.announcer.warnings(verdicts);
        self.announcer.nodes(verdicts, now);
    }

    /// Reports the fields of NodeHealthChecks that the API server drops.
    pub fn dropped_fields(&mut self, snapshot: &Snapshot, fields: &Fields) {
        self.metrics.show_dropped_fields(fields);
        self.announcer.dropped_fields(snapshot, fields);
    }

    /// Reports what an action has come to.
    pub fn executed(&mut self, executed: &Executed, now: Timestamp) {
        self.metrics.executed(executed, now);
        match (&executed.action, &executed.effect.result) {
            (Action::WriteStatus(write), ActionResult::Acted(())) => self.announcer.announce(write),
            (Action::StartRemediation(start), ActionResult::Acted(())) => self.announcer.started(start),
            (Action::DeleteRemediation(write), ActionResult::Acted(())) => self.announcer.removed(write),
            _ => {}
        }
    }

    /// Only the leader speaks: takes back what this process has exported.
    pub fn on_leadership_lost(&mut self) {
        self.metrics.clear();
        self.announcer.forget();
    }
}
