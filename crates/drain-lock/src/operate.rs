//! drain-lock as an operator: which step does what. The loop around it is [`nodeward_runtime::control`].

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::saturating_add;
use nodeward_runtime::control::{Completed, ControlOptions, Observed, Report};
use nodeward_runtime::{
    ActionResult, Clients, Component, ConfigError, ConfigHandle, Leadership, Operator, OperatorContext, Pause,
    PauseState, WebhookArgs, control,
};

use crate::action_tracker::{ActionTracker, BACKOFF};
use crate::execute::{PassContext, Task, TaskKey};
use crate::fleet_lock;
use crate::observe::{ClusterCache, Watched};
use crate::plan::{Plan, plan};
use crate::policy::Policy;
use crate::report::Reporter;
use crate::settings::Settings;
use crate::snapshot::{LedgerFacts, Snapshot, SnapshotScope};
use crate::webhook::Webhook;

/// From one pass to the next at most.
const PASS_INTERVAL: SignedDuration = SignedDuration::from_secs(30);

/// Everything that lives as long as the process.
pub struct DrainLock {
    clients: Clients,
    config: ConfigHandle<Settings>,
    cache: Arc<ClusterCache>,
    tracker: ActionTracker,
    reporter: Reporter,
    leadership: Leadership,
    dry_run: bool,
    pause: Pause,
}

impl Operator for DrainLock {
    type Args = WebhookArgs;
    type Settings = Settings;
    type Policy = Policy;
    type Snapshot = Snapshot;
    type Verdicts = Plan;
    type Action = Task;

    const COMPONENT: Component = Component::new("drain-lock", env!("CARGO_PKG_VERSION"));
    const ABOUT: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const OPTIONS: ControlOptions = ControlOptions {
        pass_spacing: Duration::from_millis(30),
        backoff: BACKOFF,
        dry_run_silence: SignedDuration::from_mins(10),
        // The ledger holds all that a successor needs.
        standbys_observe: false,
    };

    fn crds() -> Vec<CustomResourceDefinition> {
        nodeward_api::crd::drain_lock().into_iter().collect()
    }

    fn parse(text: &str) -> Result<Settings, ConfigError> {
        Settings::parse(text)
    }

    async fn open(context: &OperatorContext<Settings>, webhook: WebhookArgs) -> anyhow::Result<Self> {
        let watched = Watched {
            medik8s_namespace: context.config.current().policy.medik8s_leases.clone(),
        };
        let cache = ClusterCache::open(context, &watched);
        // Every replica answers reviews, whoever leads.
        let reviews = Webhook::open(context, &cache);
        let address = nodeward_runtime::webhook::serve(context, &webhook, reviews.router()).await?;
        tracing::info!(%address, "the eviction webhook answers");
        fleet_lock::serve(context, &cache).await?;
        Ok(Self {
            clients: context.clients.clone(),
            config: context.config.clone(),
            cache,
            tracker: ActionTracker::nothing(),
            reporter: Reporter::new(context),
            leadership: context.leadership.clone(),
            dry_run: context.args.dry_run,
            pause: context.pause.clone(),
        })
    }

    fn effective_policy(&mut self) -> Option<Arc<Policy>> {
        Some(Arc::clone(&self.config.current().policy))
    }

    fn audits(policy: &Policy) -> bool {
        policy.audits
    }

    /// What the plan needs to see besides the nodes of drains and claims: the budgets that owners hold, in either form, and those
    /// that have annotations of ours.
    fn observe(&mut self, policy: &Policy, now: Timestamp) -> Observed<Snapshot> {
        let audits = self.dry_run || policy.audits;
        self.cache.keep_audit(audits);
        self.reporter.keep_audit(audits);
        if let Some(until) = self.cache.waits_until() {
            return Observed::Wait {
                why: "remediations are still being listed".to_owned(),
                again: Some(until),
            };
        }
        let held = self.cache.owner_holds().into_iter().map(|hold| hold.budget.clone());
        let scope = SnapshotScope {
            budgets: held.chain(self.cache.annotated_budgets()).collect(),
            ..SnapshotScope::default()
        };
        let Some(mut snapshot) = self.cache.snapshot(&scope, now) else {
            return Observed::wait("the watches are incomplete or stale");
        };
        if audits {
            // None would be taken, and what needs one would wait for ever.
            snapshot.leases = None;
        }
        match snapshot.ledger.as_ref().and_then(|facts| problem_of(facts)) {
            Some(problem) => Observed::Blocked(problem),
            None => Observed::Ready(snapshot),
        }
    }

    /// The ledger comes first: everything else waits for it.
    fn plan(&mut self, snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> control::Plan<Task, Plan> {
        self.tracker.leads(self.leadership.state(), self.pause.last(), now);
        let mut plan = plan(snapshot, self.tracker.at(now), policy, now);
        self.tracker.planned(&mut plan, now);
        match (&plan.ledger, self.pause.state()) {
            (None, PauseState::Running) => self.finished_pass(now),
            // Nothing is written, and all replicas admit every eviction for that.
            (_, PauseState::Paused(_)) => self.leadership.planned(),
            // It is finished once that is written.
            (Some(_), PauseState::Running) | (_, PauseState::Unknown(_)) => {}
        }
        let ledger = plan
            .ledger
            .take()
            .map(|write| Task::Ledger(Box::new(write)))
            .into_iter();
        let heard_by = saturating_add(now, PASS_INTERVAL);
        let actions = std::mem::take(&mut plan.actions).into_iter().map(Task::Act);
        control::Plan {
            actions: ledger.chain(actions).collect(),
            // Without a pass nobody hears that this process still plans.
            requeue_at: Some(plan.requeue_at.map_or(heard_by, |at| at.min(heard_by))),
            verdicts: plan,
        }
    }

    fn report(&mut self, snapshot: &Snapshot, plan: Plan, now: Timestamp) -> Report<Task> {
        let (updates, requeue_at) = self.reporter.report(snapshot, &plan, now);
        Report {
            actions: updates.into_iter().map(Task::StatusUpdate).collect(),
            requeue_at,
        }
    }

    fn action_context(&self, snapshot: &Arc<Snapshot>, _: &Arc<Policy>) -> PassContext {
        PassContext {
            clients: self.clients.clone(),
            cache: Arc::clone(&self.cache),
            field_manager: Self::COMPONENT.field_manager(),
            snapshot: Arc::clone(snapshot),
        }
    }

    fn started(&mut self, task: &Task, now: Timestamp) {
        self.tracker.started(&task.pods(), now);
    }

    fn completed(&mut self, completed: Completed<Task>, now: Timestamp) {
        if let Some(outcome) = &completed.outcome {
            let is_done = matches!(outcome.done, ActionResult::Acted(()) | ActionResult::AlreadyDone);
            if completed.key == TaskKey::Ledger && is_done {
                self.finished_pass(now);
            }
            self.reporter.acted(&completed.key, outcome);
            self.tracker.completed(&completed.key, outcome, now);
        }
    }

    fn on_leadership_lost(&mut self) {
        self.tracker = ActionTracker::nothing();
        self.cache.keep_audit(false);
        self.reporter.on_leadership_lost();
    }
}

impl DrainLock {
    /// The ledger is as the plan has it.
    fn finished_pass(&mut self, now: Timestamp) {
        self.leadership.planned();
        self.tracker.settled(now);
    }
}

/// The ledger as a person has to see to it first. It stops the whole pass, for its report, too, would rest on an older reading
/// of the ledger.
fn problem_of(facts: &LedgerFacts) -> Option<String> {
    let why = facts.unreadable.as_ref()?;
    let remedy = LockReason::LedgerUnreadable.remedy();
    Some(format!(
        "the DrainLedger cannot be decoded, and nothing is planned until it can: {why}; {remedy}"
    ))
}
