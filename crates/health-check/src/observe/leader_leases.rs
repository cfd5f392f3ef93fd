//! Whether other programs run: their leader leases are read once a minute by the leader, and when one takes over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::NamespacedName;
use nodeward_core::lease::LeaseView;
use nodeward_runtime::leader::Observation;
use nodeward_runtime::supervise::{Supervisor, TaskGuard};
use nodeward_runtime::{ApiError, LeaderState, Leadership, OperatorContext, ReconcileTrigger};
use tokio::sync::watch;

use crate::CLOCKS_APART;
use crate::snapshot::Reading;

/// From one look to the next.
const INTERVAL: Duration = Duration::from_mins(1);

/// After a look that failed; twice as long after each further one.
const RETRY: Duration = Duration::from_secs(5);

/// A first answer is waited for so long. After that only what rests on it is undecided, and the look goes on.
const PATIENCE: Duration = Duration::from_secs(1);

/// A look that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An answer that is older than this is not relied on.
const RELIED_ON_FOR: Duration = Duration::from_mins(5);

/// Looks at leases, for as long as it lives: each by a task of its own, so that none waits for another.
pub(super) struct LeaderLeases {
    client: Client,
    answers: Answers,
    leadership: Leadership,
    trigger: ReconcileTrigger,
    supervisor: Supervisor,
    tasks: BTreeMap<NamespacedName, TaskGuard>,
}

/// A lease that somebody holds, and may be renewing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Live {
    /// Who.
    pub(super) holder: String,
    /// It was renewed within its duration, or before our eyes. Another one may be a dead holder's, until its duration has
    /// passed since we saw it first.
    pub(super) is_renewed: bool,
}

/// The last answer of each lease.
#[derive(Clone, Default)]
pub(super) struct Answers(Arc<Mutex<BTreeMap<NamespacedName, Answer>>>);

#[derive(Debug, Clone, Default)]
struct Answer {
    /// When it was asked for, and who led then; `None`: there is none yet.
    asked: Option<(Instant, LeaderState)>,
    live: Option<Live>,
    /// Why the last look failed, if it did.
    failure: Option<String>,
}

/// Looks at one lease.
struct Looker {
    client: Client,
    lease: NamespacedName,
    answers: Answers,
    trigger: ReconcileTrigger,
    interval: Duration,
}

/// Who holds a lease, and how long it lasts.
type Look = Option<(Live, Option<Duration>)>;

/// A lease, as it was seen to change.
#[derive(Default)]
struct Followed {
    observation: Observation,
    renewed: Option<Timestamp>,
    is_live: bool,
    failures_in_a_row: u32,
}

impl LeaderLeases {
    /// Begins to look, once.
    pub(super) fn open<T>(context: &OperatorContext<T>, leases: BTreeSet<NamespacedName>) -> Self {
        let mut this = Self {
            client: context.clients.requests.clone(),
            answers: Answers::default(),
            leadership: context.leadership.clone(),
            trigger: context.trigger.clone(),
            supervisor: context.supervisor.clone(),
            tasks: BTreeMap::new(),
        };
        this.follow(leases);
        this
    }

    /// Looks at these leases from now on.
    pub(super) fn follow(&mut self, leases: BTreeSet<NamespacedName>) {
        if self.tasks.keys().eq(&leases) {
            return;
        }
        self.tasks.retain(|lease, _| leases.contains(lease));
        self.answers.keep(&leases);
        for lease in leases {
            self.tasks.entry(lease).or_insert_with_key(|lease| {
                let looker = Looker {
                    client: self.client.clone(),
                    lease: lease.clone(),
                    answers: self.answers.clone(),
                    trigger: self.trigger.clone(),
                    interval: INTERVAL,
                };
                let looking = looker.run(self.leadership.subscribe());
                self.supervisor.spawn_guarded("leader lease", looking)
            });
        }
    }

    /// The last answer of each lease.
    pub(super) const fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Whether another process leads: then nobody looks again at a lease that has answered.
    pub(super) fn is_standby(&self) -> bool {
        self.leadership.state() == LeaderState::Following
    }

    /// Who holds a lease.
    ///
    /// # Errors
    /// Since this process leads it has not been answered, and a moment ago it asked.
    pub(super) fn holder(&self, lease: &NamespacedName) -> Result<Reading<Option<Live>>, String> {
        self.answers.holder(lease, self.leadership.state())
    }
}

impl Answers {
    fn holder(&self, lease: &NamespacedName, state: LeaderState) -> Result<Reading<Option<Live>>, String> {
        let answer = self.lock().get(lease).cloned().unwrap_or_default();
        let relied_on = answer
            .asked
            .filter(|(at, asked_in)| *asked_in == state && at.elapsed() < RELIED_ON_FOR);
        match (relied_on, answer.failure, state) {
            (Some(_), _, _) | (None, _, LeaderState::Following) => Ok(Reading::Known(answer.live)),
            (None, Some(failure), _) => Ok(Reading::Unknown(failure)),
            (None, None, _) => Err(format!("lease {lease} is being read")),
        }
    }

    /// Whether a lease was read once.
    ///
    /// # Errors
    /// Why it was not.
    pub(super) fn has(&self, lease: &NamespacedName) -> Result<(), String> {
        match self.lock().get(lease) {
            Some(Answer { asked: Some(_), .. }) | None => Ok(()),
            Some(Answer {
                failure: Some(failure), ..
            }) => Err(failure.clone()),
            Some(_) => Err(format!("lease {lease} has not been looked for yet")),
        }
    }

    /// Forgets what other leases answered.
    fn keep(&self, leases: &BTreeSet<NamespacedName>) {
        let mut answers = self.lock();
        answers.retain(|lease, _| leases.contains(lease));
        for lease in leases {
            answers.entry(lease.clone()).or_default();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NamespacedName, Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Looker {
    async fn run(self, mut leadership: watch::Receiver<LeaderState>) {
        let mut known = Followed::default();
        loop {
            let state = *leadership.borrow_and_update();
            let asked = (Instant::now(), state);
            let told = tokio::select! {
                told = self.look_telling_delay(&mut known, asked) => told,
                // What was asked for before does not count.
                Ok(()) = leadership.changed() => continue,
            };
            let pause = known.wait(told.as_ref(), self.interval);
            let looks_again = leads(state) || told.is_err();
            self.tell(asked, told.map(|live| live.map(|(live, _)| live)));
            let leads_anew = leadership.wait_for(|now| *now != state && leads(*now));
            tokio::select! {
                true = async { leads_anew.await.is_ok() } => {}
                () = tokio::time::sleep(pause), if looks_again => {}
                else => std::future::pending().await,
            }
        }
    }

    /// Looks at the lease; says so when it takes long.
    async fn look_telling_delay(&self, known: &mut Followed, asked: (Instant, LeaderState)) -> Result<Look, String> {
        let lease = &self.lease;
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        let mut look = std::pin::pin!(self.look(known));
        if let Ok(told) = tokio::time::timeout(PATIENCE, &mut look).await {
            return told;
        }
        self.tell(asked, Err(format!("lease {lease} is still being read")));
        let told = tokio::time::timeout_at(deadline, look).await;
        told.unwrap_or_else(|_| {
            Err(format!(
                "lease {lease} cannot be read: no answer within {} s",
                TIMEOUT.as_secs()
            ))
        })
    }

    async fn look(&self, known: &mut Followed) -> Result<Look, String> {
        let lease = &self.lease;
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &lease.namespace);
        let found = match leases.get(&lease.name).await.map_err(ApiError::from) {
            Ok(found) => found,
            Err(ApiError::NotFound) => return Ok(None),
            Err(error) => return Err(format!("lease {lease} cannot be read: {error}")),
        };
        let (now, is_free) = (Timestamp::now(), known.observation.is_free(&found, Instant::now()));
        let Some(view) = LeaseView::project(&found) else {
            return Ok(None);
        };
        let before = std::mem::replace(&mut known.renewed, view.renewed);
        if is_free || is_leftover(&view, now) {
            return Ok(None);
        }
        let was_renewed = before.is_some() && before != view.renewed;
        let live = Live {
            holder: view.holder.as_deref().unwrap_or_default().to_owned(),
            is_renewed: was_renewed || view.until().is_some_and(|until| now < until),
        };
        let lasts = view.duration.and_then(|lasts| lasts.try_into().ok());
        Ok(Some((live, lasts)))
    }

    /// A failure leaves the last answer as it is: it is relied on for some minutes.
    fn tell(&self, asked: (Instant, LeaderState), told: Result<Option<Live>, String>) {
        let mut answers = self.answers.lock();
        let Some(last) = answers.get_mut(&self.lease) else {
            return;
        };
        let was_relied_on = last.asked.is_some_and(|(_, asked_in)| asked_in == asked.1);
        let before = last.live.clone();
        match told {
            Ok(live) => {
                *last = Answer {
                    asked: Some(asked),
                    live,
                    failure: None,
                };
            }
            Err(failure) => {
                if last.failure.is_none() {
                    tracing::warn!("{failure}");
                }
                last.failure = Some(failure);
            }
        }
        // The answer of each minute is no news; that there is one, or another one, is.
        let is_news = !was_relied_on || before != last.live;
        drop(answers);
        if is_news {
            self.trigger.notify();
        }
    }
}

impl Followed {
    /// How long to wait before the next look.
    fn wait(&mut self, answer: Result<&Look, &String>, interval: Duration) -> Duration {
        let Ok(live) = answer else {
            let wait = RETRY * 2_u32.pow(self.failures_in_a_row.min(4));
            self.failures_in_a_row += 1;
            return wait.min(INTERVAL);
        };
        self.failures_in_a_row = 0;
        let was_live = std::mem::replace(&mut self.is_live, live.is_some());
        match live {
            // Whether it is renewed at all shows within its duration.
            Some((_, lasts)) if !was_live => lasts.unwrap_or(INTERVAL).min(INTERVAL).max(RETRY),
            _ => interval,
        }
    }
}

fn leads(state: LeaderState) -> bool {
    matches!(state, LeaderState::Leading { .. })
}

/// Whether a lease ran out longer ago than clocks differ. Any other is live for its duration from when we last saw it change, as
/// leader election has it.
fn is_leftover(lease: &LeaseView, now: Timestamp) -> bool {
    let until = lease.until();
    until.is_some_and(|until| saturating_add(until, CLOCKS_APART) <= now)
}

#[cfg(test)]
mod tests;
