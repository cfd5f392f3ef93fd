//! ceph-pdb as an operator: which step does what. The loop around it is [`nodeward_runtime::control`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::saturating_add;
use nodeward_runtime::control::{Completed, ControlOptions, Observed, Report};
use nodeward_runtime::{
    BackoffPolicy, Clients, Component, ConfigError, ConfigHandle, Operator, OperatorContext, control,
};

use crate::action_tracker::ActionTracker;
use crate::connection::CephConnections;
use crate::execute::{PassContext, Task, tasks};
use crate::observe::Observer;
use crate::plan::{Verdicts, plan};
use crate::policy::Policy;
use crate::report::Reporter;
use crate::settings::Settings;
use crate::snapshot::{CephQuestions, Namespace, Snapshot};

/// A watch that goes stale notifies nobody: while a namespace cannot be told the loop looks again after this time.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(5);

/// Everything that lives as long as the process.
pub struct CephPdb {
    clients: Clients,
    config: ConfigHandle<Settings>,
    connections: CephConnections,
    observer: Observer,
    tracker: ActionTracker,
    reporter: Reporter,
}

impl Operator for CephPdb {
    type Args = ();
    type Settings = Settings;
    type Policy = Policy;
    type Snapshot = Snapshot;
    type Verdicts = Verdicts;
    type Action = Task;

    const COMPONENT: Component = Component::new("ceph-pdb", env!("CARGO_PKG_VERSION"));
    const ABOUT: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const OPTIONS: ControlOptions = ControlOptions {
        // A budget is closed within moments of the first sign, and each write's answer begins the next pass.
        pass_spacing: Duration::from_millis(20),
        backoff: BackoffPolicy {
            first: SignedDuration::from_millis(100),
            limit: SignedDuration::from_secs(30),
        },
        dry_run_silence: SignedDuration::from_mins(10),
        // One that begins to lead knows since when the OSDs are as they are.
        standbys_observe: true,
    };

    fn parse(text: &str) -> Result<Settings, ConfigError> {
        Settings::parse(text)
    }

    async fn open(context: &OperatorContext<Settings>, (): ()) -> anyhow::Result<Self> {
        Ok(Self {
            clients: context.clients.clone(),
            config: context.config.clone(),
            connections: CephConnections::new(
                &context.supervisor,
                &context.liveness,
                context.trigger.clone(),
                &context.metrics,
            ),
            observer: Observer::open(context),
            tracker: ActionTracker::default(),
            reporter: Reporter::new(context),
        })
    }

    fn effective_policy(&mut self) -> Option<Arc<Policy>> {
        Some(Arc::clone(&self.config.current().policy))
    }

    fn observe(&mut self, policy: &Policy, now: Timestamp) -> Observed<Snapshot> {
        let mut observed = self.observer.snapshot(policy, &self.connections, now);
        if let Observed::Ready(snapshot) = &mut observed {
            self.tracker.overlay(snapshot, now);
        }
        observed
    }

    fn plan(&mut self, snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> control::Plan<Task, Verdicts> {
        let mut plan = plan(snapshot, policy, now);
        self.ask(snapshot, std::mem::take(&mut plan.questions));
        let mut writes = std::mem::take(&mut plan.actions);
        self.tracker.planned(&plan.verdicts);
        writes.retain(|write| !self.tracker.is_futile(write));
        let look_again = (!snapshot.unknown.is_empty()).then(|| saturating_add(now, LOOK_AGAIN));
        let deadlines = [plan.requeue_at, self.tracker.next_expiry(), look_again];
        control::Plan {
            actions: tasks(writes, snapshot),
            requeue_at: deadlines.into_iter().flatten().min(),
            verdicts: plan.verdicts,
        }
    }

    fn report(&mut self, _: &Snapshot, verdicts: Verdicts, _: Timestamp) -> Report<Task> {
        self.reporter.report(&verdicts);
        Report {
            actions: Vec::new(),
            requeue_at: None,
        }
    }

    fn action_context(&self, snapshot: &Arc<Snapshot>, _: &Arc<Policy>) -> PassContext {
        PassContext {
            clients: self.clients.clone(),
            connections: self.connections.clone(),
            snapshot: Arc::clone(snapshot),
        }
    }

    fn completed(&mut self, completed: Completed<Task>, now: Timestamp) {
        // How much was done of a task that panicked the watches will tell.
        if let Some(executed) = &completed.outcome {
            self.tracker.completed(executed, now);
            for (planned, result) in &executed.writes {
                self.reporter.executed(planned, &result.erased());
            }
        }
    }

    fn on_leadership_lost(&mut self) {
        self.tracker = ActionTracker::default();
        self.reporter.on_leadership_lost();
        self.connections.close();
    }
}

impl CephPdb {
    /// The step beside writing: has Ceph asked what the plan wants to know. The answers come with a later snapshot.
    ///
    /// A standby connects to no Ceph: it needs no answers, and a second connection would double the load. One that begins to
    /// lead closes budgets by the watches alone, and opens them once Ceph has answered.
    fn ask(&self, snapshot: &Snapshot, questions: BTreeMap<Namespace, CephQuestions>) {
        self.connections.follow(snapshot, questions);
    }
}
