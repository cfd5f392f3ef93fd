//! Whether other programs run: their leader leases are read once a minute by the leader, and when one takes over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::NamespacedName;
use nodeward_core::lease::LeaseView;
use nodeward_runtime::leader::Observation;
use nodeward_runtime::supervise::TaskGuard;
use nodeward_runtime::{ApiError, LeaderState, Leadership, OperatorContext, ReconcileTrigger};
use tokio::sync::watch;

use crate::snapshot::Reading;

/// From one look to the next.
const INTERVAL: Duration = Duration::from_mins(1);

/// After a look that failed; twice as long after each further one.
const RETRY: Duration = Duration::from_secs(5);

/// An answer that is older than this is not relied on.
const RELIED_ON_FOR: Duration = Duration::from_mins(5);

/// A lease that ran out so long ago is a leftover, whatever the clocks show: no two of them are that far apart. Any other is
/// live for its duration from when we last saw it change, as leader election has it.
const LEFTOVER_AFTER: SignedDuration = SignedDuration::from_hours(1);

/// Looks at leases, for as long as it lives.
pub(super) struct LeaderLeases {
    wanted: watch::Sender<BTreeSet<NamespacedName>>,
    answers: Answers,
    leadership: Leadership,
    _task: TaskGuard,
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

struct Looker {
    client: Client,
    wanted: watch::Receiver<BTreeSet<NamespacedName>>,
    answers: Answers,
    leadership: watch::Receiver<LeaderState>,
    trigger: ReconcileTrigger,
    interval: Duration,
}

/// What one look at a lease has told.
struct LeaseAnswer {
    lease: NamespacedName,
    asked: (Instant, LeaderState),
    told: Result<Option<Live>, String>,
}

/// A lease, as it was seen to change.
#[derive(Default)]
struct Followed {
    observation: Observation,
    renewed: Option<Timestamp>,
    is_live: bool,
    failures_in_a_row: u32,
    /// When to look again; `None`: not while another process leads.
    due: Option<Instant>,
}

impl LeaderLeases {
    /// Begins to look, once.
    pub(super) fn open<T>(context: &OperatorContext<T>, leases: BTreeSet<NamespacedName>) -> Self {
        let answers = Answers::default();
        answers.keep(&leases);
        let wanted = watch::Sender::new(leases);
        let looker = Looker {
            client: context.clients.requests.clone(),
            wanted: wanted.subscribe(),
            answers: answers.clone(),
            leadership: context.leadership.subscribe(),
            trigger: context.trigger.clone(),
            interval: INTERVAL,
        };
        Self {
            _task: context.supervisor.spawn_guarded("leader leases", looker.run()),
            leadership: context.leadership.clone(),
            wanted,
            answers,
        }
    }

    /// Looks at these leases from now on.
    pub(super) fn follow(&self, leases: BTreeSet<NamespacedName>) {
        self.wanted.send_if_modified(|current| {
            let has_changed = *current != leases;
            if has_changed {
                self.answers.keep(&leases);
                *current = leases;
            }
            has_changed
        });
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
    /// Since this process leads it has not looked yet.
    pub(super) fn holder(&self, lease: &NamespacedName) -> Result<Reading<Option<Live>>, String> {
        let answer = self.answers.lock().get(lease).cloned().unwrap_or_default();
        let state = self.leadership.state();
        let relied_on = answer
            .asked
            .filter(|(at, asked_in)| *asked_in == state && at.elapsed() < RELIED_ON_FOR);
        match (relied_on, answer.failure, state) {
            (Some(_), _, _) | (None, _, LeaderState::Following) => Ok(Reading::Known(answer.live)),
            (None, Some(failure), _) => Ok(Reading::Unknown(failure)),
            (None, None, _) => Err(format!("lease {lease} is being read")),
        }
    }
}

impl Answers {
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
    async fn run(mut self) {
        let mut followed: BTreeMap<NamespacedName, Followed> = BTreeMap::new();
        let mut asked_in = None;
        loop {
            let state = *self.leadership.borrow_and_update();
            let leads = matches!(state, LeaderState::Leading { .. });
            let wanted = self.wanted.borrow_and_update().clone();
            followed.retain(|lease, _| wanted.contains(lease));
            let begins_to_lead = asked_in.replace(state) != Some(state) && leads;
            for lease in wanted {
                let is_new = !followed.contains_key(&lease);
                let known = followed.entry(lease).or_default();
                if is_new || begins_to_lead {
                    known.due = Some(Instant::now());
                }
            }
            let mut round = Vec::new();
            for (lease, known) in &mut followed {
                let asked_at = Instant::now();
                if known.due.is_none_or(|due| asked_at < due) {
                    continue;
                }
                let answer = self.look(lease, known).await;
                let wait = known.wait(answer.as_ref(), self.interval);
                known.due = (leads || answer.is_err()).then(|| Instant::now() + wait);
                round.push(LeaseAnswer {
                    lease: lease.clone(),
                    asked: (asked_at, state),
                    told: answer.map(|live| live.map(|(live, _)| live)),
                });
            }
            self.tell(round);
            let due = followed.values().filter_map(|known| known.due).min();
            let pause = due.map(|due| due.saturating_duration_since(Instant::now()));
            tokio::select! {
                Ok(()) = self.leadership.changed() => {}
                Ok(()) = self.wanted.changed() => {}
                () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
    }

    /// Who holds the lease, and how long it lasts.
    async fn look(
        &self,
        lease: &NamespacedName,
        known: &mut Followed,
    ) -> Result<Option<(Live, Option<Duration>)>, String> {
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
    fn tell(&self, round: Vec<LeaseAnswer>) {
        let mut answers = self.answers.lock();
        let mut is_news = false;
        for LeaseAnswer { lease, asked, told } in round {
            let Some(last) = answers.get_mut(&lease) else {
                continue;
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
            is_news |= !was_relied_on || before != last.live;
        }
        drop(answers);
        if is_news {
            self.trigger.notify();
        }
    }
}

impl Followed {
    /// How long to wait before the next look.
    fn wait(&mut self, answer: Result<&Option<(Live, Option<Duration>)>, &String>, interval: Duration) -> Duration {
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

/// Whether a lease ran out longer ago than clocks differ.
fn is_leftover(lease: &LeaseView, now: Timestamp) -> bool {
    let until = lease.until();
    until.is_some_and(|until| saturating_add(until, LEFTOVER_AFTER) <= now)
}

#[cfg(test)]
mod tests;
