//! Report: what a plan's verdicts look like from outside. All of it says what the verdicts say.

pub mod condition;
pub mod events;
mod gates;
pub mod metrics;
mod write_condition;

use jiff::Timestamp;
use nodeward_runtime::OperatorContext;

use crate::execute::PodCompletion;
use crate::plan::Plan;
use crate::settings::Settings;
use crate::snapshot::Snapshot;

use self::condition::Conditions;
use self::events::Announcer;
use self::gates::GateLog;
use self::metrics::DrainMetrics;
use self::write_condition::ConditionWriter;

/// Everything that people and monitoring see.
pub struct Reporter {
    metrics: DrainMetrics,
    gates: GateLog,
    conditions: Conditions,
    writer: ConditionWriter,
    announcer: Announcer,
}

impl Reporter {
    /// Registers the metrics; nothing is said yet.
    pub fn new(context: &OperatorContext<Settings>) -> Self {
        Self {
            metrics: DrainMetrics::register(&context.metrics),
            gates: GateLog::default(),
            conditions: Conditions::default(),
            writer: ConditionWriter::new(context),
            announcer: Announcer::new(context.events.clone()),
        }
    }

    /// Says what the plan says. Returns when to say more at the latest.
    pub fn report(&mut self, snapshot: &Snapshot, plan: &Plan, now: Timestamp) -> Option<Timestamp> {
        self.metrics.show(plan, now);
        self.gates.tell(plan);
        let written = self.writer.completed();
        self.conditions.written(written, now);
        let (changes, next) = self.conditions.changes(snapshot, plan, now);
        for change in changes {
            self.announcer.announce(&change);
            self.writer.start(change);
        }
        self.announcer.oddities(&plan.oddities);
        next
    }

    /// Says what was done to a pod, and what was not.
    pub fn acted(&mut self, done: &PodCompletion, is_first_attempt: bool) {
        self.metrics.acted(done, is_first_attempt);
        self.announcer.acted(done);
    }

    /// Only the leader speaks: takes back what this process has exported.
    pub fn stand_down(&mut self) {
        self.metrics.clear();
        self.conditions = Conditions::default();
    }

    /// Returns when a write has come to its end; never while none is under way.
    pub async fn wait(&mut self) {
        self.writer.wait().await;
    }

    /// Waits for writes under way.
    pub async fn finish(&mut self) {
        self.writer.finish().await;
    }
}
