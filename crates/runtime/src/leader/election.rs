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
use super::term::{self, Term};
use super::{LeaderState, Leadership};
use crate::metrics::Metrics;
use crate::refusal::with_sources;
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
    term: Option<Term>,
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
        if let Err(setback) = outcome {
            tracing::warn!(
                lease = self.name,
                "the lease could not be looked at or renewed: {setback}"
            );
        }
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
        match found {
            // Creating is atomic: of several candidates one is told that it exists already.
            None => {}
            Some(lease) if Term::of(&lease, &self.identity).is_some() => {}
            Some(lease) => {
                if self.term.is_some() {
                    self.follow("another holds the lease");
                }
                if !self.observation.is_free(&lease, asked.monotonic) {
                    return Ok(());
                }
                if !self.claim(&lease).await? {
                    return Ok(());
                }
            }
        }
        self.keep().await
    }

    /// Begins a term on a free lease; false if another candidate was faster.
    async fn claim(&self, free: &Lease) -> Result<bool, Setback> {
        let patch = term::claim(free, &self.identity, self.times.lease.as_secs(), Timestamp::now());
        match self
            .answered(
                self.api
                    .patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)),
            )
            .await
        {
            Ok(_) => Ok(true),
            Err(Setback::Api(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(false),
            Err(setback) => Err(setback),
        }
    }

    /// Creates or renews through the library, and believes it only as far as the lease itself bears it out.
    async fn keep(&mut self) -> Result<(), Setback> {
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
                return Ok(());
            }
            Err(setback) => return Err(setback),
        };
        let Some(term) = Term::of(&lease, &self.identity) else {
            self.follow("the lease that was renewed names another holder");
            return Ok(());
        };
        if self.term.as_ref() == Some(&term) {
            self.deadline.extend(asked, self.times.lead);
            return Ok(());
        }
        self.follow("a new term begins");
        let again = self.answered(self.api.get_opt(&self.name)).await?;
        if again
            .as_ref()
            .and_then(|lease| Term::of(lease, &self.identity))
            .as_ref()
            == Some(&term)
        {
            self.lead(term, asked);
        }
        Ok(())
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
