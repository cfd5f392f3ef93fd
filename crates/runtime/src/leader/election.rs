//! The loop that takes, keeps and gives back the lease.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use nodeward_api::annotation;
use nodeward_api::planned_at::{self, PlannedAt};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::deadline::{ClockReading, Deadline};
use super::observation::Observation;
use super::passes::Passes;
use super::{LeaderState, Leadership};
use crate::api_error::with_sources;
use crate::metrics::Metrics;
use crate::reconcile_trigger::ReconcileTrigger;

#[derive(Clone, Copy, Debug)]
pub struct ElectionTimes {
    /// How long others leave a lease alone that is not renewed. Whole seconds.
    pub lease_duration: Duration,
    /// How long the leader goes on without a successful renewal: shorter than the lease, so that it has stopped, with
    /// its last write answered, before another one starts.
    pub renew_deadline: Duration,
    /// Between two renewals.
    pub renew_interval: Duration,
    /// Between two attempts of a standby.
    pub retry_period: Duration,
    /// The longest wait for one answer.
    pub request_timeout: Duration,
    /// Between two marks in the lease that say that passes are finished.
    pub mark_interval: Duration,
}

impl Default for ElectionTimes {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            renew_interval: Duration::from_secs(5),
            retry_period: Duration::from_secs(2),
            request_timeout: Duration::from_secs(4),
            mark_interval: Duration::from_secs(30),
        }
    }
}

/// `leaseTransitions` of a lease that the library creates.
const FIRST_TERM: i32 = 0;

/// A candidate.
pub struct Election {
    lease: LeaseLock,
    api: Api<Lease>,
    name: String,
    identity: String,
    times: ElectionTimes,
    observation: Observation,
    /// The `leaseTransitions` of the term that this very process began last. Set before the request, so that a lost answer
    /// costs no time.
    term: Option<i32>,
    /// A lease that names us at the first look is that of an earlier process of ours, which is gone.
    has_looked: bool,
    has_failed: bool,
    /// For how long the lease had not been renewed when it was found.
    unrenewed_for: Duration,
    state: watch::Sender<LeaderState>,
    deadline: Arc<Deadline>,
    passes: Arc<Passes>,
    /// The last pass that the lease says is finished; of a new term, the last one before it.
    marked: u64,
    /// When that was said in this term.
    marked_at: Option<Instant>,
    trigger: ReconcileTrigger,
    leading: Gauge,
}

/// Why an attempt to lead did not succeed.
#[derive(Debug, thiserror::Error)]
enum ElectionError {
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    #[error("{}", with_sources(.0))]
    Api(#[from] kube::Error),
    #[error("{}", with_sources(.0))]
    Library(#[from] kube_leader_election::Error),
}

impl Election {
    /// A candidate for the lease `name`. `client` must not retry by itself: a late success would be taken for a timely one.
    pub fn new(
        client: Client,
        namespace: &str,
        name: String,
        identity: String,
        times: ElectionTimes,
        trigger: ReconcileTrigger,
        metrics: &Metrics,
    ) -> Self {
        let params = LeaseLockParams {
            lease_name: name.clone(),
            holder_id: identity.clone(),
            lease_ttl: times.lease_duration,
        };
        Self {
            lease: LeaseLock::new(client.clone(), namespace, params),
            api: Api::namespaced(client, namespace),
            name,
            identity,
            times,
            observation: Observation::default(),
            term: None,
            has_looked: false,
            has_failed: false,
            unrenewed_for: Duration::ZERO,
            state: watch::Sender::new(LeaderState::Following),
            deadline: Arc::new(Deadline::passed()),
            passes: Arc::new(Passes::new(true, std::time::Instant::now())),
            marked: 0,
            marked_at: None,
            trigger,
            leading: metrics.register("leading", "1 while this process leads"),
        }
    }

    /// What the operator asks before it writes.
    pub fn leadership(&self) -> Leadership {
        Leadership {
            state: self.state.subscribe(),
            deadline: Arc::clone(&self.deadline),
            passes: Arc::clone(&self.passes),
        }
    }

    /// Takes part until `stop` is cancelled, then gives the lease back.
    pub async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let next = self.attempt_or_step_down().await;
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep_until(next) => {}
            }
        }
        self.release().await;
    }

    /// One attempt, cut short when the deadline of the current term passes: whatever a late answer says, we then follow.
    async fn attempt_or_step_down(&mut self) -> Instant {
        let began = Instant::now();
        let deadline = self.deadline.at().map(Instant::from_std);
        let attempt = self.attempt();
        let outcome = match deadline {
            Some(deadline) => match tokio::time::timeout_at(deadline, attempt).await {
                Ok(outcome) => outcome,
                Err(_) => Err(ElectionError::NoAnswer(self.times.renew_deadline)),
            },
            None => attempt.await,
        };
        self.tell(outcome.err());
        if self.is_leader() && !self.deadline.is_ahead() {
            self.follow("the lease could not be renewed in time");
        }
        let interval = if self.is_leader() {
            self.times.renew_interval
        } else {
            self.times.retry_period
        };
        let next = began + interval.mul_f64(0.9 + 0.2 * fastrand::f64());
        // Never sleep through the deadline: at that moment we must be seen to follow.
        let next = self.deadline.at().map_or(next, |at| next.min(Instant::from_std(at)));
        next.max(Instant::now() + self.times.retry_period.mul_f64(0.1))
    }

    async fn attempt(&mut self) -> Result<(), ElectionError> {
        let asked = ClockReading::now();
        let found = self.answered(self.api.get_opt(&self.name)).await?;
        let is_first_look = !std::mem::replace(&mut self.has_looked, true);
        let Some(lease) = found else {
            // Creating is atomic: of several candidates one is told that it exists already.
            return self.renew(FIRST_TERM).await;
        };
        let held = held_term(&lease, &self.identity);
        let unrenewed_for = unrenewed_for(&lease, Timestamp::now());
        let first_look = is_first_look.then_some(unrenewed_for);
        self.passes.read(&lease, asked.monotonic, first_look);
        // What we have renewed ourselves since, without learning of it, does not make the gap before it shorter.
        self.unrenewed_for = match held {
            Some(_) => self.unrenewed_for.max(unrenewed_for),
            None => unrenewed_for,
        };
        // Another process may go by the same name.
        if let Some(term) = held.filter(|term| self.term == Some(*term)) {
            return self.renew(term).await;
        }
        self.follow("another holds the lease");
        let is_left_behind = held.is_some() && is_first_look;
        if !self.observation.is_free(&lease, asked.monotonic) && !is_left_behind {
            return Ok(());
        }
        match self.claim(&lease).await? {
            Some(term) => self.renew(term).await,
            None => Ok(()),
        }
    }

    /// Begins a term on a free lease; `None` if another candidate was faster.
    ///
    /// The patch carries the resourceVersion of the lease that was found free, so of several candidates the server accepts
    /// one; and it sets every field, which mends a malformed lease.
    async fn claim(&mut self, free: &Lease) -> Result<Option<i32>, ElectionError> {
        let transitions = free.spec.as_ref().and_then(|spec| spec.lease_transitions);
        let term = transitions.unwrap_or_default().saturating_add(1);
        let before = self.term.replace(term);
        let now = format!("{:.6}", Timestamp::now());
        let patch = json!({
            "metadata": { "resourceVersion": free.metadata.resource_version },
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self.times.lease_duration.as_secs(),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": term,
            }
        });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        match self.answered(self.api.patch(&self.name, &params, &patch)).await {
            Ok(_) => Ok(Some(term)),
            Err(ElectionError::Api(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                // The faster candidate may go by our name, and its term has this number.
                self.term = before;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Creates or renews through the library, and believes it only as far as the lease itself bears it out: it must show
    /// the expected term. Any other the library took from somebody without a precondition; it is left to stand still like
    /// a stranger's.
    async fn renew(&mut self, expected: i32) -> Result<(), ElectionError> {
        let asked = ClockReading::now();
        let lease = match self.answered(self.lease.try_acquire_or_renew()).await {
            Ok(LeaseLockResult::Acquired(lease)) => lease,
            Ok(LeaseLockResult::NotAcquired(_)) => {
                self.follow("another holds the lease");
                return Ok(());
            }
            Err(ElectionError::Library(kube_leader_election::Error::CreateLease(kube::Error::Api(status))))
                if status.code == 409 =>
            {
                self.follow("another has created the lease");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if held_term(&lease, &self.identity) != Some(expected) {
            self.follow("the lease was taken without a precondition, or names another holder");
            self.term = None;
            return Ok(());
        }
        if self.is_leader() && self.term == Some(expected) {
            self.deadline.extend(asked, self.times.renew_deadline);
            self.unrenewed_for = Duration::ZERO;
            return self.mark(&lease, expected).await;
        }
        self.follow("a new term begins");
        self.term = Some(expected);
        let again = self.answered(self.api.get_opt(&self.name)).await?;
        if again.and_then(|lease| held_term(&lease, &self.identity)) == Some(expected) {
            self.lead(asked);
        }
        Ok(())
    }

    /// Says in the lease that passes of this term are finished, if any is since that was last said.
    async fn mark(&mut self, renewed: &Lease, term: i32) -> Result<(), ElectionError> {
        let (passes, now) = (self.passes.finished(), Instant::now());
        let is_soon = |at: Instant| now.duration_since(at) < self.times.mark_interval;
        if passes == self.marked || self.marked_at.is_some_and(is_soon) {
            return Ok(());
        }
        let patch = json!({ "metadata": {
            "resourceVersion": renewed.metadata.resource_version,
            "annotations": { annotation::PLANNED_AT: PlannedAt { term, passes }.to_string() },
        } });
        let params = PatchParams {
            field_manager: Some(planned_at::FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match self
            .answered(self.api.patch(&self.name, &params, &Patch::Merge(&patch)))
            .await
        {
            Ok(marked) => {
                self.passes.read(&marked, now.into_std(), None);
                (self.marked, self.marked_at) = (passes, Some(now));
                Ok(())
            }
            // Somebody has written it since: the next renewal finds out who.
            Err(ElectionError::Api(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// An error is told once, and so is its end: an API server that is away for an hour is one line, not a thousand.
    fn tell(&mut self, error: Option<ElectionError>) {
        let lease = self.name.as_str();
        let had_failed = std::mem::replace(&mut self.has_failed, error.is_some());
        match error {
            Some(error) if had_failed => {
                tracing::debug!(lease, "the lease still cannot be looked at or renewed: {error}");
            }
            Some(error) => {
                tracing::warn!(
                    lease,
                    "the lease could not be looked at or renewed, tried again: {error}"
                );
            }
            None if had_failed => tracing::info!(lease, "the lease can be looked at again"),
            None => {}
        }
    }

    fn is_leader(&self) -> bool {
        matches!(*self.state.borrow(), LeaderState::Leading { .. })
    }

    fn lead(&mut self, asked: ClockReading) {
        self.deadline.extend(asked, self.times.renew_deadline);
        if !self.deadline.is_ahead() {
            return;
        }
        self.leading.set(1);
        (self.marked, self.marked_at) = (self.passes.finished(), None);
        self.state.send_replace(LeaderState::Leading {
            since: Timestamp::now(),
            unrenewed_for: std::mem::take(&mut self.unrenewed_for),
            leaderless_for: self.passes.silent_in_all(std::time::Instant::now()),
        });
        tracing::info!(lease = self.name, identity = self.identity, "leading");
        self.trigger.notify();
    }

    fn follow(&mut self, why: &str) {
        self.deadline.expire();
        if !self.is_leader() {
            return;
        }
        self.leading.set(0);
        self.state.send_replace(LeaderState::Following);
        tracing::warn!(lease = self.name, identity = self.identity, "no longer leading: {why}");
        self.trigger.notify();
    }

    /// Gives the lease back, so that a successor need not wait for it to run out. The library checks the holder in a
    /// request of its own and then overwrites, so this is done only while no other can have taken it.
    async fn release(mut self) {
        let ours = self.is_leader() && self.deadline.is_ahead();
        self.follow("shutting down");
        if !ours {
            return;
        }
        match self.answered(self.lease.step_down()).await {
            Ok(()) => tracing::info!(lease = self.name, "the lease is released"),
            Err(error) => tracing::warn!(lease = self.name, "the lease could not be released: {error}"),
        }
    }

    async fn answered<T, E>(&self, request: impl Future<Output = Result<T, E>>) -> Result<T, ElectionError>
    where
        ElectionError: From<E>,
    {
        Ok(timeout(self.times.request_timeout, request)
            .await
            .map_err(|_| ElectionError::NoAnswer(self.times.request_timeout))??)
    }
}

/// The term in which `identity` holds the lease, by its `leaseTransitions`: renewals do not move them. `None`: another
/// holds it.
fn held_term(lease: &Lease, identity: &str) -> Option<i32> {
    let spec = lease.spec.as_ref()?;
    (spec.holder_identity.as_deref() == Some(identity)).then(|| spec.lease_transitions.unwrap_or_default())
}

/// By the wall clock; nothing for a lease that was never renewed, or by a clock that is ahead of ours.
fn unrenewed_for(lease: &Lease, now: Timestamp) -> Duration {
    let renewed = lease.spec.as_ref().and_then(|spec| Some(spec.renew_time.as_ref()?.0));
    let age = renewed.map(|renewed| now.duration_since(renewed));
    age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
