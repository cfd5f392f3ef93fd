//! health-check as an operator: which step does what. The loop around it is [`nodeward_runtime::control`].

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use nodeward_runtime::control::{Completed, ControlOptions, Observed, Report};
use nodeward_runtime::{
    BackoffPolicy, Clients, Component, ConfigError, ConfigHandle, Operator, OperatorContext, Pause, WebhookArgs,
    control,
};
use tokio::time::Instant;

use crate::action_tracker::ActionTracker;
use crate::default::next_step;
use crate::definition::Definition;
use crate::execute::{CheckReads, NodeReads, PassContext};
use crate::observe::Observer;
use crate::plan::{Action, Verdicts, plan};
use crate::policy::Policy;
use crate::report::Reporter;
use crate::settings::Settings;
use crate::snapshot::{Reading, Snapshot};
use crate::webhook::Webhook;

/// Everything that lives as long as the process.
pub struct HealthCheck {
    clients: Clients,
    own_namespace: Arc<str>,
    config: ConfigHandle<Settings>,
    reads: NodeReads,
    check_reads: CheckReads,
    observer: Observer,
    definition: Definition,
    tracker: ActionTracker,
    pause: Pause,
    reporter: Reporter,
}

impl Operator for HealthCheck {
    type Args = WebhookArgs;
    type Settings = Settings;
    type Policy = Policy;
    type Snapshot = Snapshot;
    type Verdicts = Verdicts;
    type Action = Action;

    const COMPONENT: Component = Component::new("health-check", env!("CARGO_PKG_VERSION"));
    const ABOUT: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const OPTIONS: ControlOptions = ControlOptions {
        // A write's answer begins the next pass: the remediation follows its intent by as much.
        pass_spacing: Duration::from_millis(20),
        backoff: BackoffPolicy {
            first: SignedDuration::from_secs(1),
            limit: SignedDuration::from_secs(60),
        },
        dry_run_silence: SignedDuration::from_mins(10),
        standbys_observe: true,
    };

    fn crds() -> Vec<CustomResourceDefinition> {
        nodeward_api::crd::health_check()
    }

    fn parse(text: &str) -> Result<Settings, ConfigError> {
        Settings::parse(text)
    }

    async fn open(context: &OperatorContext<Settings>, webhook: WebhookArgs) -> anyhow::Result<Self> {
        let observer = Observer::open(context);
        // Every replica answers reviews, whoever leads.
        let reviews = Webhook::new(&context.metrics, observer.kinds().clone());
        let address = nodeward_runtime::webhook::serve(context, &webhook, reviews.router()).await?;
        tracing::info!(%address, "the webhook for NodeHealthChecks answers");
        Ok(Self {
            clients: context.clients.clone(),
            own_namespace: context.args.namespace.as_str().into(),
            config: context.config.clone(),
            reads: NodeReads::default(),
            check_reads: CheckReads::default(),
            observer,
            definition: Definition::open(&context.watches, context.clients.watches.clone()),
            tracker: ActionTracker::default(),
            pause: context.pause.clone(),
            reporter: Reporter::new(context),
        })
    }

    fn effective_policy(&mut self) -> Option<Arc<Policy>> {
        Some(Arc::clone(&self.config.current().policy))
    }

    fn observe(&mut self, policy: &Policy, now: Timestamp) -> Observed<Snapshot> {
        let mut observed = self.observer.snapshot(policy, self.tracker.observations(now), now);
        if let Observed::Ready(snapshot) = &mut observed {
            self.tracker.leases_are_in(&policy.lease_namespace);
            self.tracker.definition_drops(self.definition.dropped_fields());
            self.tracker.overlay(snapshot, now);
        }
        observed
    }

    fn plan(&mut self, snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> control::Plan<Action, Verdicts> {
        let mut plan = plan(snapshot, policy, now);
        self.tracker.planned(&plan, self.pause.is_running());
        let planned = std::mem::take(&mut plan.actions).into_iter();
        let useful = planned.filter(|action| !self.tracker.is_futile(action));
        let mut actions: Vec<Action> = useful.collect();
        actions.extend(self.default_step(snapshot, policy));
        let deadlines = [plan.requeue_at, self.tracker.next_expiry()];
        control::Plan {
            actions,
            requeue_at: deadlines.into_iter().flatten().min(),
            verdicts: plan.verdicts,
        }
    }

    fn report(&mut self, snapshot: &Snapshot, verdicts: Verdicts, now: Timestamp) -> Report<Action> {
        self.reporter.report(snapshot, &verdicts, now);
        if let Some(fields) = self.definition.dropped_fields() {
            self.reporter.dropped_fields(snapshot, &fields);
        }
        Report {
            actions: Vec::new(),
            requeue_at: None,
        }
    }

    fn action_context(&self, snapshot: &Arc<Snapshot>, policy: &Arc<Policy>) -> PassContext {
        PassContext {
            clients: self.clients.clone(),
            reads: self.reads.clone(),
            check_reads: self.check_reads.clone(),
            resources: Arc::new(self.observer.resources()),
            polled_templates: Arc::new(self.observer.polled_templates()),
            own_versions: self.tracker.own_versions(),
            has_etcd_guards: matches!(snapshot.etcd, Reading::Known(Some(_))),
            lease_namespace: Arc::clone(&policy.lease_namespace),
            own_namespace: Arc::clone(&self.own_namespace),
            planned_at: Instant::now(),
        }
    }

    fn started(&mut self, action: &Action, _: Timestamp) {
        self.tracker.started(action);
    }

    fn completed(&mut self, completed: Completed<Action>, now: Timestamp) {
        self.tracker.ended(&completed.key);
        // How much was done of an action that panicked the watches will tell.
        if let Some(executed) = &completed.outcome {
            self.tracker.completed(executed, completed.failures_before, now);
            self.reporter.executed(executed, now);
        }
    }

    /// Since when a node lacks a condition, and since when its upgrade is unknown, a failover does not forget.
    fn follow(&mut self, snapshot: &Snapshot, policy: &Policy, now: Timestamp) {
        let is_running = self.pause.is_running();
        self.tracker.planned(&plan(snapshot, policy, now), is_running);
    }

    fn on_leadership_lost(&mut self) {
        self.tracker.on_leadership_lost();
        self.reporter.on_leadership_lost();
    }
}

impl HealthCheck {
    fn default_step(&self, snapshot: &Snapshot, policy: &Policy) -> Option<Action> {
        let template = policy.default_template.as_ref()?;
        let step = next_step(self.observer.default_record()?, snapshot)?;
        Some(Action::Default {
            step,
            template: template.clone(),
        })
    }
}
