//! The loop that takes, keeps and gives back the lease.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::deadline::{Deadline, Moment};
use super::observation::Observation;
use super::term::{Claim, Term};
use super::{LeaderState, Leadership};
use crate::api_error::with_sources;
use crate::metrics::Metrics;
use crate::wake::Wake;

/// The times of an election. Each must be well below the one before it.
#[derive(Clone, Copy, Debug)]
pub struct ElectionTimes {
    /// How long others leave a lease alone that is not renewed. Whole seconds.
    pub lease: Duration,
    /// How long the leader goes on without a successful renewal: shorter than the lease, so that it has stopped, with
    /// its last write answered, before another one starts.
    pub lead: Duration,
    /// Between two renewals.
    pub renew: Duration,
    /// Between two looks of a standby.
    pub look: Duration,
    /// The longest wait for one answer.
    pub answer: Duration,
}

impl Default for ElectionTimes {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            lead: Duration::from_secs(10),
            renew: Duration::from_secs(5),
            look: Duration::from_secs(2),
            answer: Duration::from_secs(4),
        }
    }
}

/// A candidate.
pub struct Election {
    lease: LeaseLock,
    api: Api<Lease>,
    name: String,
    identity: String,
    times: ElectionTimes,
    observation: Observation,
    /// The term in which we lead.
    term: Option<Term>,
    /// The term that we began last, with a precondition. Known before the answer, so that a lost answer costs no time.
    begun: Option<Term>,
    /// A lease that names us at the first look is that of an earlier process of ours, which is gone.
    has_looked: bool,
    has_setback: bool,
    state: watch::Sender<LeaderState>,
    deadline: Arc<Deadline>,
    wake: Wake,
    leading: Gauge,
}

/// Why an attempt to lead did not succeed.
#[derive(Debug, thiserror::Error)]
enum Setback {
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
        wake: Wake,
        metrics: &Metrics,
    ) -> Self {
        let params = LeaseLockParams {
            lease_name: name.clone(),
            holder_id: identity.clone(),
            lease_ttl: times.lease,
        };
        let leading = Gauge::default();
        metrics.own(|registry| registry.register("leading", "1 while this process leads", leading.clone()));
        Self {
            lease: LeaseLock::new(client.clone(), namespace, params),
            api: Api::namespaced(client, namespace),
            name,
            identity,
            times,
            observation: Observation::default(),
            term: None,
            begun: None,
            has_looked: false,
            has_setback: false,
            state: watch::Sender::new(LeaderState::Following),
            deadline: Arc::new(Deadline::passed()),
            wake,
            leading,
        }
    }

    /// What the operator asks before it writes.
    pub fn leadership(&self) -> Leadership {
        Leadership {
            state: self.state.subscribe(),
            deadline: Arc::clone(&self.deadline),
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
                Err(_) => Err(Setback::NoAnswer(self.times.lead)),
            },
            None => attempt.await,
        };
        self.tell(outcome.err());
        if self.term.is_some() && !self.deadline.is_ahead() {
            self.follow("the lease could not be renewed in time");
        }
        let interval = if self.term.is_some() {
            self.times.renew
        } else {
            self.times.look
        };
        let next = began + interval.mul_f64(0.9 + 0.2 * fastrand::f64());
        // Never sleep through the deadline: at that moment we must be seen to follow.
        let next = self.deadline.at().map_or(next, |at| next.min(Instant::from_std(at)));
        next.max(Instant::now() + self.times.look.mul_f64(0.1))
    }

    async fn attempt(&mut self) -> Result<(), Setback> {
        let asked = Moment::now();
        let found = self.answered(self.api.get_opt(&self.name)).await?;
        let is_first_look = !std::mem::replace(&mut self.has_looked, true);
        let Some(lease) = found else {
            // Creating is atomic: of several candidates one is told that it exists already.
            return self.keep(None).await;
        };
        let held = Term::of(&lease, &self.identity);
        if let Some(term) = held.clone().filter(|term| self.is_ours(term)) {
            return self.keep(Some(term)).await;
        }
        self.follow("another holds the lease");
        let is_left_behind = held.is_some() && is_first_look;
        if !self.observation.is_free(&lease, asked.monotonic) && !is_left_behind {
            return Ok(());
        }
        match self.claim(&lease).await? {
            Some(term) => self.keep(Some(term)).await,
            None => Ok(()),
        }
    }

    /// Whether this very process began the term: another one may go by the same name.
    fn is_ours(&self, term: &Term) -> bool {
        [&self.term, &self.begun].into_iter().flatten().any(|ours| ours == term)
    }

    /// Begins a term on a free lease; `None` if another candidate was faster.
    async fn claim(&mut self, free: &Lease) -> Result<Option<Term>, Setback> {
        let claim = Claim::new(free, &self.identity, self.times.lease.as_secs(), Timestamp::now());
        self.begun = Some(claim.term.clone());
        let (params, patch) = (PatchParams::default(), Patch::Merge(&claim.patch));
        match self.answered(self.api.patch(&self.name, &params, &patch)).await {
            Ok(_) => Ok(Some(claim.term)),
            Err(Setback::Api(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(None),
            Err(setback) => Err(setback),
        }
    }

    /// Creates or renews through the library, and believes it only as far as the lease itself bears it out: it must show
    /// the term that we expect, or, where there was no lease, the first term of all. Any other term the library took from
    /// somebody without a precondition; it is left to stand still like a stranger's.
    async fn keep(&mut self, expected: Option<Term>) -> Result<(), Setback> {
        let asked = Moment::now();
        let lease = match self.answered(self.lease.try_acquire_or_renew()).await {
            Ok(LeaseLockResult::Acquired(lease)) => lease,
            Ok(LeaseLockResult::NotAcquired(_)) => {
                self.follow("another holds the lease");
                return Ok(());
            }
            Err(Setback::Library(kube_leader_election::Error::CreateLease(kube::Error::Api(status))))
                if status.code == 409 =>
            {
                self.follow("another has created the lease");
                return Ok(());
            }
            Err(setback) => return Err(setback),
        };
        let Some(term) = Term::of(&lease, &self.identity) else {
            self.follow("the lease that was renewed names another holder");
            return Ok(());
        };
        let is_expected = expected.map_or_else(|| term.is_first(), |expected| expected == term);
        if !is_expected {
            self.follow("the lease was taken without a precondition");
            return Ok(());
        }
        if self.term.as_ref() == Some(&term) {
            self.deadline.extend(asked, self.times.lead);
            return Ok(());
        }
        self.follow("a new term begins");
        self.begun = Some(term.clone());
        let again = self.answered(self.api.get_opt(&self.name)).await?;
        if again.and_then(|lease| Term::of(&lease, &self.identity)).as_ref() == Some(&term) {
            self.lead(term, asked);
        }
        Ok(())
    }

    /// A setback is told once, and so is its end: an API server that is away for an hour is one line, not a thousand.
    fn tell(&mut self, setback: Option<Setback>) {
        let lease = self.name.as_str();
        let had_setback = std::mem::replace(&mut self.has_setback, setback.is_some());
        match setback {
            Some(setback) if had_setback => {
                tracing::debug!(lease, "the lease still cannot be looked at or renewed: {setback}");
            }
            Some(setback) => {
                tracing::warn!(
                    lease,
                    "the lease could not be looked at or renewed, tried again: {setback}"
                );
            }
            None if had_setback => tracing::info!(lease, "the lease can be looked at again"),
            None => {}
        }
    }

    fn lead(&mut self, term: Term, asked: Moment) {
        self.deadline.extend(asked, self.times.lead);
        if !self.deadline.is_ahead() {
            return;
        }
        self.term = Some(term);
        self.leading.set(1);
        self.state.send_replace(LeaderState::Leading {
            since: Timestamp::now(),
        });
        tracing::info!(lease = self.name, identity = self.identity, "leading");
        self.wake.wake();
    }

    fn follow(&mut self, why: &str) {
        self.deadline.expire();
        if self.term.take().is_none() {
            return;
        }
        self.leading.set(0);
        self.state.send_replace(LeaderState::Following);
        tracing::warn!(lease = self.name, identity = self.identity, "no longer leading: {why}");
        self.wake.wake();
    }

    /// Gives the lease back, so that a successor need not wait for it to run out. The library checks the holder in a
    /// request of its own and then overwrites, so this is done only while no other can have taken it.
    async fn release(mut self) {
        let ours = self.term.is_some() && self.deadline.is_ahead();
        self.follow("shutting down");
        if !ours {
            return;
        }
        match self.answered(self.lease.step_down()).await {
            Ok(()) => tracing::info!(lease = self.name, "the lease is released"),
            Err(setback) => tracing::warn!(lease = self.name, "the lease could not be released: {setback}"),
        }
    }

    async fn answered<T, E>(&self, request: impl Future<Output = Result<T, E>>) -> Result<T, Setback>
    where
        Setback: From<E>,
    {
        Ok(timeout(self.times.answer, request)
            .await
            .map_err(|_| Setback::NoAnswer(self.times.answer))??)
    }
}

#[cfg(test)]
mod tests;
