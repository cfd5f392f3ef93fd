//! drain-keeper as an operator: which step does what. The loop around it is [`nodeward_runtime::control`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::saturating_add;
use nodeward_runtime::control::{Completed, ControlOptions, Observed, Report};
use nodeward_runtime::{
    ActionResult, BackoffPolicy, Clients, Component, ConfigError, Operator, OperatorContext, Stop, control,
};
use tokio::time::Instant;

use crate::action_tracker::ActionTracker;
use crate::effective_policy::EffectivePolicy;
use crate::execute::{PassContext, Reads, Task, TaskKey, TaskOutcome};
use crate::observe::Observer;
use crate::plan::{Action, Plan, plan};
use crate::policy::Policy;
use crate::report::Reporter;
use crate::settings::Settings;
use crate::snapshot::Snapshot;

/// How soon after a signal's watch went silent a drain that rests on it is looked at again.
const STALE_SIGNAL: SignedDuration = SignedDuration::from_mins(1);

/// How soon further watches are opened, if no list that comes to its end wakes the loop before.
const OPEN_AGAIN: SignedDuration = SignedDuration::from_secs(5);

/// Everything that lives as long as the process.
pub struct DrainKeeper {
    clients: Clients,
    reads: Reads,
    replica: Arc<str>,
    policy: EffectivePolicy,
    observer: Observer,
    tracker: ActionTracker,
    reporter: Reporter,
}

impl Operator for DrainKeeper {
    type Args = ();
    type Settings = Settings;
    type Policy = Policy;
    type Snapshot = Snapshot;
    type Verdicts = Plan;
    type Action = Task;

    const COMPONENT: Component = Component::new("drain-keeper", env!("CARGO_PKG_VERSION"));
    const ABOUT: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const OPTIONS: ControlOptions = ControlOptions {
        pass_spacing: Duration::from_millis(50),
        backoff: BackoffPolicy {
            first: SignedDuration::from_secs(1),
            limit: SignedDuration::from_secs(60),
        },
        // The plan knows which pods have changed since it was said.
        dry_run_silence: SignedDuration::ZERO,
        standbys_observe: true,
    };

    fn parse(text: &str) -> Result<Settings, ConfigError> {
        Settings::parse(text)
    }

    async fn open(context: &OperatorContext<Settings>, (): ()) -> anyhow::Result<Self> {
        let rate = context.config.current().policy.forced_per_minute;
        Ok(Self {
            clients: context.clients.clone(),
            reads: Reads::default(),
            replica: context.args.identity.as_str().into(),
            policy: EffectivePolicy::new(context.config.clone()),
            observer: Observer::open(context),
            tracker: ActionTracker::nothing(rate, context.args.dry_run, Timestamp::now()),
            reporter: Reporter::new(context),
        })
    }

    fn effective_policy(&mut self) -> Option<Arc<Policy>> {
        self.policy.current(&mut self.observer)
    }

    fn observe(&mut self, policy: &Policy, now: Timestamp) -> Observed<Snapshot> {
        self.observer.follow_signal(&policy.signal);
        self.observer.follow_remediations(policy);
        self.observer.follow_opt_outs(policy);
        self.observer.follow_surges(policy);
        let mut observed = self.observer.snapshot(self.tracker.at(policy.forced_per_minute, now));
        if let Observed::Ready(snapshot) = &mut observed {
            self.tracker.compare(snapshot, now);
        }
        observed
    }

    fn plan(&mut self, snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> control::Plan<Task, Plan> {
        let mut plan = plan(snapshot, policy, now);
        self.observer.follow_workloads_of(&plan.watch_workloads);
        let are_pods_followed = self.observer.follow_pods_of(&plan.watch_pods);
        self.tracker.planned(&plan);
        let actions = std::mem::take(&mut plan.actions)
            .into_iter()
            .map(|action| match action {
                Action::WriteClock(action) => Task::Clock(action),
                Action::Act(action) => Task::Pod(action),
            });
        let expires_at = self.tracker.next_expiry();
        // No watch tells that another one has gone silent.
        let signal_may_be_stale = (!plan.watch_pods.is_empty() && !policy.signal.kinds().is_empty())
            .then(|| saturating_add(now, STALE_SIGNAL));
        let watches_to_open = (!are_pods_followed).then(|| saturating_add(now, OPEN_AGAIN));
        control::Plan {
            actions: actions.collect(),
            requeue_at: [plan.requeue_at, expires_at, signal_may_be_stale, watches_to_open]
                .into_iter()
                .flatten()
                .min(),
            verdicts: plan,
        }
    }

    fn report(&mut self, snapshot: &Snapshot, plan: Plan, now: Timestamp) -> Report<Task> {
        let report = self.reporter.report(snapshot, &plan, now);
        Report {
            actions: report.actions.into_iter().map(Task::Condition).collect(),
            requeue_at: report.requeue_at,
        }
    }

    fn action_context(&self, snapshot: &Arc<Snapshot>, policy: &Arc<Policy>) -> PassContext {
        PassContext {
            clients: self.clients.clone(),
            reads: self.reads.clone(),
            snapshot: Arc::clone(snapshot),
            policy: Arc::clone(policy),
            replica: Arc::clone(&self.replica),
            planned_at: Instant::now(),
        }
    }

    fn started(&mut self, task: &Task, now: Timestamp) {
        match task {
            Task::Clock(_) => {}
            Task::Pod(action) => self.tracker.started(action, now),
            Task::Condition(write) => self.reporter.condition_started(&write.uid),
        }
    }

    fn completed(&mut self, completed: Completed<Task>, now: Timestamp) {
        match (&completed.key, &completed.outcome) {
            (TaskKey::Condition(node), outcome) => {
                // A dry run has said in the log what it would have written, and says it again as a real run would.
                let is_done = |result: &ActionResult| {
                    matches!(
                        result,
                        ActionResult::Acted(()) | ActionResult::AlreadyDone | ActionResult::Stopped(Stop::DryRun)
                    )
                };
                let succeeded = matches!(outcome, Some(TaskOutcome::Condition(result)) if is_done(result));
                self.reporter.condition_completed(node, succeeded, now);
            }
            (_, Some(TaskOutcome::Clock(action, result))) => self.tracker.clock_completed(action, result, now),
            (_, Some(TaskOutcome::Pod(action, result))) => {
                let started = (completed.failures_before == 0).then_some(completed.started_at);
                self.reporter.forced(action, result, started);
                let failures = completed.retry_at.map_or(0, |_| completed.failures_before + 1);
                self.tracker
                    .pod_completed(action, result, completed.retry_at.unwrap_or(now), failures, now);
            }
            // How much of it was done the watches will tell.
            (_, Some(TaskOutcome::Condition(_)) | None) => {}
        }
    }

    /// Gates that a standby has seen closed stay known: a failover forgets no parked node.
    fn follow(&mut self, snapshot: &Snapshot, policy: &Policy, now: Timestamp) {
        self.tracker.followed(plan(snapshot, policy, now).node_history);
    }

    fn on_leadership_lost(&mut self) {
        self.observer.follow_pods_of(&BTreeSet::new());
        self.observer.follow_workloads_of(&BTreeSet::new());
        self.tracker.on_leadership_lost(Timestamp::now());
        self.reporter.on_leadership_lost();
    }
}
