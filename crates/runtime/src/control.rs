//! The loop of every operator: observe, plan, execute, report, and sleep until something changes or falls due.
//!
//! An operator implements [`Operator`] and its actions implement [`Action`]; [`run`] does the rest. A pass never waits for
//! the API server: each action runs as a task of its own, at most one for a key, and asks [`Permits`] before each write.
//! An action that fails is not started again before the backoff of its key has passed, however often it is planned.

mod executor;
mod expectations;
pub(crate) mod permit;
mod result;

use std::fmt::{Debug, Display};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use nodeward_core::deadline::saturating_add;
use tokio::time::Instant;

use crate::api_error::ApiError;
use crate::backoff::{BackoffPolicy, Backoffs};
use crate::component::Component;
use crate::config::ConfigError;
use crate::leader::{LeaderState, Leadership};
use crate::operator::OperatorContext;
use crate::pause::{Pause, PauseState};
use crate::sleep::sleep_until;

use self::executor::{Ended, Executor};
pub use self::expectations::{EXPECTATION_TIMEOUT, Expectations};
pub use self::permit::{Permit, Permits, Stop};
pub use self::result::ActionResult;

/// A pass that takes longer than this means that the process is stuck.
const PASS_LIMIT: Duration = Duration::from_mins(1);

/// Caches that are not complete or not fresh are looked at again after this time, even if nothing notifies the loop.
const STALE_RETRY: SignedDuration = SignedDuration::from_secs(5);

/// A key that has not failed again for this long after its backoff is forgotten: its object is gone, or fine.
const BACKOFF_FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// Conflicts in a row that are not worth a warning: another writer was faster.
const ORDINARY_CONFLICTS: u32 = 2;

/// An operator: what is its own in the loop.
pub trait Operator: Sized + Send + 'static {
    /// Command-line flags beside those that every operator has.
    type Args: clap::Args + Send + 'static;
    /// The configuration file, parsed and checked.
    type Settings: Send + Sync + 'static;
    /// The rules that plans follow.
    type Policy: Send + Sync + 'static;
    /// One moment of the cluster.
    type Snapshot: Send + Sync + 'static;
    /// The plan's explanations: what is reported.
    type Verdicts: Send;
    /// Something to do.
    type Action: Action;

    /// Its name.
    const COMPONENT: Component;
    /// One sentence on it, for `--help`.
    const ABOUT: &'static str;
    /// How the loop treats it.
    const OPTIONS: ControlOptions;

    /// The CustomResourceDefinitions that it serves, for `crds`.
    fn crds() -> Vec<CustomResourceDefinition> {
        Vec::new()
    }

    /// Parses the configuration file; `""` without one.
    ///
    /// # Errors
    /// With line, field and what to write instead.
    fn parse(text: &str) -> Result<Self::Settings, ConfigError>;

    /// Opens watches and servers. Readiness gates are added before the first `await`.
    ///
    /// # Errors
    /// When a server cannot be started: the process ends.
    fn open(
        context: &OperatorContext<Self::Settings>,
        args: Self::Args,
    ) -> impl Future<Output = anyhow::Result<Self>> + Send;

    /// The policy in force; `None` while it is still being read. Actions that were planned with another one are stopped
    /// before their next write.
    fn effective_policy(&mut self) -> Option<Arc<Self::Policy>>;

    /// Takes a snapshot of the caches.
    fn observe(&mut self, policy: &Self::Policy, now: Timestamp) -> Observed<Self::Snapshot>;

    /// Whether this policy has the operator decide, and write as little as a dry run.
    fn audits(_policy: &Self::Policy) -> bool {
        false
    }

    /// Decides, by a pure function of the snapshot, this process's memory, the policy and the time.
    fn plan(
        &mut self,
        snapshot: &Self::Snapshot,
        policy: &Self::Policy,
        now: Timestamp,
    ) -> Plan<Self::Action, Self::Verdicts>;

    /// Reports the verdicts: metrics, logs and Events at once, statuses and conditions as further actions.
    fn report(&mut self, snapshot: &Self::Snapshot, verdicts: Self::Verdicts, now: Timestamp) -> Report<Self::Action>;

    /// What the actions of this pass work with.
    fn action_context(
        &self,
        snapshot: &Arc<Self::Snapshot>,
        policy: &Arc<Self::Policy>,
    ) -> <Self::Action as Action>::Context;

    /// An action is about to start.
    fn started(&mut self, _action: &Self::Action, _now: Timestamp) {}

    /// An action has ended.
    fn completed(&mut self, completed: Completed<Self::Action>, now: Timestamp);

    /// A standby has taken a snapshot: it remembers what it will need as leader, so that a failover forgets nothing.
    /// Called if [`ControlOptions::standbys_observe`].
    fn follow(&mut self, _snapshot: &Self::Snapshot, _policy: &Self::Policy, _now: Timestamp) {}

    /// Another replica leads: forgets attempts, takes back exported metrics.
    fn on_leadership_lost(&mut self);
}

/// How the loop treats an operator.
#[derive(Debug, Clone, Copy)]
pub struct ControlOptions {
    /// From one pass to the next at least, unless a deadline comes first: a drain of many nodes changes hundreds of pods a
    /// second, and one pass sees them all.
    pub pass_spacing: Duration,
    /// The backoff of a key whose action failed.
    pub backoff: BackoffPolicy,
    /// How long a dry run does not repeat an action that it would have done; zero leaves that to the plan.
    pub dry_run_silence: SignedDuration,
    /// Whether standbys take snapshots and [`Operator::follow`] them.
    pub standbys_observe: bool,
}

/// The result of [`Operator::observe`].
#[derive(Debug)]
pub enum Observed<S> {
    /// All caches that every decision rests on are complete and fresh.
    Ready(S),
    /// One of them is not: nothing is planned.
    Wait {
        /// Which, and what is wrong with it.
        why: String,
        /// When to look again at the latest; `None`: in 5 s.
        again: Option<Timestamp>,
    },
    /// A person has to act first, in the way that this says: nothing is planned until then.
    Blocked(String),
}

impl<S> Observed<S> {
    /// Nothing can be planned yet, for this reason, and nobody knows until when.
    pub fn wait(why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Wait { why, again: None }
    }
}

/// What follows from a snapshot.
#[derive(Debug)]
pub struct Plan<A, V> {
    /// To be started in this order.
    pub actions: Vec<A>,
    /// The explanations, for the report.
    pub verdicts: V,
    /// When to plan again at the latest.
    pub requeue_at: Option<Timestamp>,
}

/// What a report asks for.
#[derive(Debug)]
pub struct Report<A> {
    /// Writes for people: statuses, conditions.
    pub actions: Vec<A>,
    /// When to report again at the latest.
    pub requeue_at: Option<Timestamp>,
}

/// Something to do. It carries its own preconditions, and doing it twice does no harm.
pub trait Action: Send + 'static {
    /// What it is about: at most one action of a key runs at once.
    type Key: Ord + Clone + Debug + Display + Send + 'static;
    /// Clients, the snapshot and the policy that it was planned with.
    type Context: Clone + Send + 'static;
    /// How it ended.
    type Outcome: Outcome;

    /// What it is about.
    fn key(&self) -> Self::Key;

    /// Which requests it waits behind.
    fn lane(&self) -> Lane {
        Lane::Api
    }

    /// Whether it may take the place of an earlier plan's action of its key that still waits for its slot. Not where the
    /// operator has noted in [`Operator::started`] what that one does.
    fn replaces_queued(&self) -> bool {
        true
    }

    /// Whether it is stopped before its next write once the newest plan no longer has an action of its key. For actions of
    /// several writes whose later ones must not follow from an old plan alone.
    fn stops_when_unplanned(&self) -> bool {
        false
    }

    /// Does it. Each write is preceded by [`Permits::next_write`], each act by [`Permits::next_act`].
    fn run(self, context: Self::Context, permits: Permits) -> impl Future<Output = Self::Outcome> + Send;
}

/// How an action ended, with whatever the operator needs to know besides.
pub trait Outcome: Send + 'static {
    /// The part that decides about its retry.
    fn result(&self) -> ActionResult;
}

/// Requests that share a limit of how many are sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// What changes the cluster.
    Api,
    /// What is only for people: there may be much of it, and it delays nothing else.
    Status,
}

/// An action that has ended.
#[derive(Debug)]
pub struct Completed<A: Action> {
    /// What it was about.
    pub key: A::Key,
    /// How it ended; `None`: it panicked, and how much of it was done is not known.
    pub outcome: Option<A::Outcome>,
    /// When it was started.
    pub started_at: Timestamp,
    /// How many times in a row the key had failed before.
    pub failures_before: u32,
    /// When the key is tried again; `None` where it has not failed.
    pub retry_at: Option<Timestamp>,
}

/// Runs an operator's loop until shutdown.
///
/// # Errors
/// When the operator cannot be opened. A failure that concerns one object is reported and tried again.
pub async fn run<O: Operator>(context: OperatorContext<O::Settings>, args: O::Args) -> anyhow::Result<()> {
    let progress = context.liveness.watch("main loop", PASS_LIMIT);
    let (shutdown, trigger) = (context.shutdown.clone(), context.trigger.clone());
    let operator = O::open(&context, args).await?;
    let (leadership, pause) = (context.leadership.clone(), context.pause.clone());
    let mut control = Control::new(operator, leadership, pause, context.args.dry_run);
    loop {
        let began = Instant::now();
        let next = {
            let _pass = progress.begin_pass();
            control.pass(Timestamp::now())
        };
        let changed = async {
            tokio::select! {
                () = trigger.notified() => {}
                () = control.executor.wait() => {}
            }
            tokio::time::sleep_until(began + O::OPTIONS.pass_spacing).await;
        };
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = changed => {}
            () = until_due(next, began + O::OPTIONS.pass_spacing) => {}
        }
    }
    // Each request has its own time limit, so this ends.
    for ended in control.executor.finish().await {
        control.complete(ended, Timestamp::now());
    }
    Ok(())
}

/// Returns when the next pass is due. A deadline that had passed before the wait begins is no reason to leave out the spacing:
/// it may go on being overdue for as long as something stands in its way.
async fn until_due(deadline: Option<Timestamp>, earliest: Instant) {
    let is_overdue = deadline.is_some_and(|deadline| deadline <= Timestamp::now());
    sleep_until(deadline).await;
    if is_overdue {
        tokio::time::sleep_until(earliest).await;
    }
}

struct Control<O: Operator> {
    operator: O,
    leadership: Leadership,
    pause: Pause,
    executor: Executor<O::Action>,
    backoffs: Backoffs<<O::Action as Action>::Key>,
    policy: Option<Arc<O::Policy>>,
    led: bool,
    waits_for: Option<String>,
}

impl<O: Operator> Control<O> {
    fn new(operator: O, leadership: Leadership, pause: Pause, dry_run: bool) -> Self {
        Self {
            operator,
            executor: Executor::new(leadership.clone(), pause.clone(), dry_run),
            leadership,
            pause,
            backoffs: Backoffs::new(O::OPTIONS.backoff),
            policy: None,
            led: false,
            waits_for: None,
        }
    }

    /// One pass. Returns when the next is due at the latest.
    fn pass(&mut self, now: Timestamp) -> Option<Timestamp> {
        // First, so that the plan knows what its actions have come to, and their keys are free for it.
        for ended in self.executor.take_ended() {
            self.complete(ended, now);
        }
        let policy = self.operator.effective_policy()?;
        if !self.policy.as_ref().is_some_and(|known| Arc::ptr_eq(known, &policy)) {
            // Before anything is planned by the new one: from here on no action of the old one writes.
            let audits = O::audits(&policy);
            self.executor.policy_changed(audits);
            if self.policy.as_ref().is_some_and(|known| O::audits(known) != audits) {
                // What an audit has put off is due at once.
                self.backoffs = Backoffs::new(O::OPTIONS.backoff);
            }
            self.policy = Some(Arc::clone(&policy));
        }
        let leads = matches!(self.leadership.state(), LeaderState::Leading { .. });
        if std::mem::replace(&mut self.led, leads) && !leads {
            // Failures under an earlier leadership say nothing of what the next leader leaves behind.
            self.backoffs = Backoffs::new(O::OPTIONS.backoff);
            self.operator.on_leadership_lost();
        }
        if !leads && !O::OPTIONS.standbys_observe {
            return None;
        }
        if let (true, PauseState::Unknown(why)) = (leads, self.pause.state()) {
            // An operator that was stopped, and restarts, must not act before it knows.
            if self.waits_anew(&why) {
                tracing::info!("nothing is planned: {why}");
            }
            return Some(saturating_add(now, STALE_RETRY));
        }
        let snapshot = match self.operator.observe(&policy, now) {
            Observed::Ready(snapshot) => Arc::new(snapshot),
            Observed::Wait { why, again } => {
                if self.waits_anew(&why) {
                    tracing::info!("nothing is planned: {why}");
                }
                // Caches that go stale notify nobody, so the loop looks again by itself.
                let retry = saturating_add(now, STALE_RETRY);
                return Some(again.map_or(retry, |again| again.min(retry)));
            }
            Observed::Blocked(why) => {
                if self.waits_anew(&why) {
                    tracing::error!("nothing is planned until a person has acted: {why}");
                }
                return Some(saturating_add(now, STALE_RETRY));
            }
        };
        self.waits_for = None;
        if !leads {
            self.operator.follow(&snapshot, &policy, now);
            return None;
        }
        let plan = self.operator.plan(&snapshot, &policy, now);
        let report = self.operator.report(&snapshot, plan.verdicts, now);
        self.backoffs
            .forget_idle_since(saturating_add(now, -BACKOFF_FORGOTTEN_AFTER));
        let context = self.operator.action_context(&snapshot, &policy);
        let actions: Vec<O::Action> = plan.actions.into_iter().chain(report.actions).collect();
        // Before the new actions start, whose keys may be the same.
        self.executor.stop_unplanned(&actions.iter().map(Action::key).collect());
        if !self.pause.is_running() {
            // Planned and reported all the same, so that metrics stay true. What is due stays due: no reason to hurry.
            let next = [plan.requeue_at, report.requeue_at].into_iter().flatten().min();
            return next.map(|next| next.max(saturating_add(now, STALE_RETRY)));
        }
        let delayed = actions
            .into_iter()
            .filter_map(|action| self.start(action, &context, now).err())
            .min();
        [plan.requeue_at, report.requeue_at, delayed]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether the loop waits for this only since now, so that it is logged once.
    fn waits_anew(&mut self, why: &str) -> bool {
        let is_new = self.waits_for.as_deref() != Some(why);
        if is_new {
            self.waits_for = Some(why.to_owned());
        }
        is_new
    }

    /// Starts an action, unless its key backs off.
    ///
    /// # Errors
    /// With the end of the backoff.
    fn start(
        &mut self,
        action: O::Action,
        context: &<O::Action as Action>::Context,
        now: Timestamp,
    ) -> Result<(), Timestamp> {
        let key = action.key();
        if let Some(until) = self.backoffs.not_before(&key).filter(|until| now < *until) {
            return Err(until);
        }
        if self.executor.is_in_flight(&key) {
            // It may wait for its slot for long, and should then do what is planned by then.
            if action.replaces_queued() {
                self.executor.replace_queued(action, context, now);
            }
        } else {
            self.operator.started(&action, now);
            self.executor.start(action, context, now);
        }
        Ok(())
    }

    /// Does the book-keeping of an action that has ended.
    fn complete(&mut self, ended: Ended<O::Action>, now: Timestamp) {
        let Ended {
            key,
            started_at,
            outcome,
        } = ended;
        let failures_before = self.backoffs.attempts(&key);
        let result = outcome.as_ref().map(Outcome::result);
        let silence = O::OPTIONS.dry_run_silence;
        let retry_at = match &result {
            Some(ActionResult::Acted(()) | ActionResult::AlreadyDone) => {
                self.backoffs.succeeded(&key);
                None
            }
            // It would be planned again in each pass, for nothing has changed.
            Some(ActionResult::Stopped(Stop::DryRun)) if silence.is_positive() => {
                Some(self.backoffs.failed(key.clone(), now, Some(silence)))
            }
            Some(ActionResult::Failed(error)) => Some(self.backoffs.failed(key.clone(), now, error.retry_after())),
            // Until the caches show what has changed, or the pause can be read, the same would be planned again.
            Some(ActionResult::Outdated(_) | ActionResult::Stopped(Stop::PauseUnknown)) | None => {
                Some(self.backoffs.failed(key.clone(), now, None))
            }
            // Not its fault: a plan by the present policy, or of the present leader, may start it at once.
            Some(ActionResult::Stopped(_)) => None,
        };
        if let (Some(ActionResult::Failed(error)), Some(retry_at)) = (&result, retry_at)
            && !is_ordinary(error, failures_before)
        {
            tracing::warn!(action = %key, %error, %retry_at, "not done");
        }
        let completed = Completed {
            key,
            outcome,
            started_at,
            failures_before,
            retry_at,
        };
        self.operator.completed(completed, now);
    }
}

/// Whether a failure is part of ordinary work, and said by the report where it matters.
fn is_ordinary(error: &ApiError, failures_before: u32) -> bool {
    match error {
        ApiError::RefusedByBudget { .. } | ApiError::NamespaceTerminating => true,
        ApiError::Conflict => failures_before < ORDINARY_CONFLICTS,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
