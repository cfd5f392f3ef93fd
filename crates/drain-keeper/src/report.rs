//! Report: what a plan's verdicts look like from outside. All of it says what the verdicts say.

pub mod condition;
pub mod events;
mod gate_transitions;
pub mod metrics;
mod surges;
mod undecided;

use jiff::Timestamp;
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_core::id::NodeUid;
use nodeward_runtime::control::Report;
use nodeward_runtime::{OperatorContext, Pause};

use crate::execute::PodResult;
use crate::execute::write_condition::ConditionWrite;
use crate::plan::{Plan, PodAction};
use crate::settings::Settings;
use crate::snapshot::Snapshot;

use self::condition::Conditions;
use self::events::Announcer;
use self::gate_transitions::GateTransitionLog;
use self::metrics::DrainMetrics;
use self::surges::Surges;
use self::undecided::Undecided;

/// Everything that people and monitoring see.
pub struct Reporter {
    metrics: DrainMetrics,
    gates: GateTransitionLog,
    conditions: Conditions,
    undecided: Undecided,
    surges: Surges,
    announcer: Announcer,
    pause: Pause,
}

impl Reporter {
    /// Registers the metrics; nothing is said yet.
    pub fn new(context: &OperatorContext<Settings>) -> Self {
        Self {
            metrics: DrainMetrics::register(&context.metrics),
            gates: GateTransitionLog::default(),
            conditions: Conditions::default(),
            undecided: Undecided::default(),
            surges: Surges::default(),
            announcer: Announcer::new(context.events.clone(), context.args.identity.as_str()),
            pause: context.pause.clone(),
        }
    }

    /// Says what the plan says. Returns the conditions to write.
    pub fn report(&mut self, snapshot: &Snapshot, plan: &Plan, now: Timestamp) -> Report<ConditionWrite> {
        self.metrics.show(plan, now);
        self.gates.log_transitions(plan);
        let (changes, requeue_at) = self.conditions.changes(snapshot, plan, now);
        let writes = changes.into_iter().map(|change| {
            self.announcer.announce(&change);
            let text = change
                .condition
                .as_ref()
                .map_or("removed", |condition| condition.message.as_str());
            tracing::info!(node = %change.node, condition = text, "{DRAIN_BLOCKED}");
            ConditionWrite {
                node: change.node,
                uid: change.uid,
                condition: change.condition,
            }
        });
        let actions = writes.collect();
        self.announcer.warnings(&plan.warnings);
        for (uid, standing, outcome) in self.surges.ended(snapshot, plan) {
            self.metrics.surge_ended(outcome);
            self.announcer.surge_ended(&uid, &standing, outcome);
        }
        let (overdue, next_overdue) = self.undecided.overdue(snapshot, plan, !self.pause.is_running(), now);
        for (uid, verdict) in overdue {
            self.announcer.undecided(&uid, verdict);
        }
        let requeue_at = [requeue_at, next_overdue].into_iter().flatten().min();
        Report { actions, requeue_at }
    }

    /// A condition is being written.
    pub fn condition_started(&mut self, node: &NodeUid) {
        self.conditions.started(node);
    }

    /// A condition was written, or not.
    pub fn condition_completed(&mut self, node: &NodeUid, succeeded: bool, now: Timestamp) {
        self.conditions.written(node, succeeded, now);
    }

    /// Says what was done to a pod, and what was not. `started` tells when the first attempt at it began.
    pub fn forced(&mut self, action: &PodAction, result: &PodResult, started: Option<Timestamp>) {
        self.metrics.forced(action, result, started);
        self.announcer.forced(action, result);
    }

    /// Only the leader speaks: takes back what this process has exported.
    pub fn on_leadership_lost(&mut self) {
        self.metrics.clear();
        self.conditions = Conditions::default();
        self.undecided = Undecided::default();
        self.surges = Surges::default();
    }
}
