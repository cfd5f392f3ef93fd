//! Report: what the verdicts and the writes look like from outside. The published state is a write of the plan; this is the rest.

mod events;
mod metrics;

use nodeward_runtime::{ActionResult, OperatorContext};

use crate::plan::{PlannedWrite, Verdicts};
use crate::settings::Settings;

use self::events::Announcer;
use self::metrics::BudgetMetrics;

/// Everything that people and monitoring see, besides the published state.
pub struct Reporter {
    metrics: BudgetMetrics,
    announcer: Announcer,
}

impl Reporter {
    /// Registers the metrics; nothing is said yet.
    pub fn new(context: &OperatorContext<Settings>) -> Self {
        Self {
            metrics: BudgetMetrics::register(&context.metrics),
            announcer: Announcer::new(context.events.clone()),
        }
    }

    /// Reports how all clusters stand.
    pub fn report(&mut self, verdicts: &Verdicts) {
        self.metrics.show(verdicts);
        self.announcer.announce(verdicts);
    }

    /// Reports what a write has come to.
    pub fn executed(&mut self, planned: &PlannedWrite, result: &ActionResult) {
        self.metrics.executed(planned, result);
        let (namespace, write) = (&*planned.owner.namespace, planned.write.label());
        match result {
            ActionResult::Acted(()) => tracing::info!(namespace, write, "written: {:?}", planned.write),
            other => tracing::info!(namespace, write, detail = ?other, "not written"),
        }
    }

    /// Only the leader speaks: takes back what this process has exported.
    pub fn on_leadership_lost(&mut self) {
        self.metrics.show(&Verdicts::default());
        self.announcer.forget();
    }
}
