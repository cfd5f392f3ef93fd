//! Whether medik8s' own controller runs: its leader lease is read once a minute by the leader, and when one takes over.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use nodeward_core::deadline::saturating_add;
use nodeward_core::lease::LeaseView;
use nodeward_runtime::supervise::TaskGuard;
use nodeward_runtime::{ApiError, LeaderState, Leadership, OperatorContext, ReconcileTrigger};
use tokio::sync::watch;

use crate::snapshot::Reading;

/// Name of its leader lease.
const PEER_LEASE: &str = "e1f13584.medik8s.io";

/// From one look to the next.
const INTERVAL: Duration = Duration::from_mins(1);

/// After a look that failed.
const RETRY: Duration = Duration::from_secs(5);

/// An answer that is older than this is not relied on.
const RELIED_ON_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Looks for the peer, for as long as it lives.
pub(super) struct PeerLookup {
    namespaces: watch::Sender<Vec<Arc<str>>>,
    last: Arc<Mutex<Answer>>,
    leadership: Leadership,
    _task: TaskGuard,
}

/// The last answer of all namespaces.
#[derive(Debug, Clone, Default)]
struct Answer {
    /// When it was asked for; `None`: there is none for these namespaces yet.
    asked_at: Option<Timestamp>,
    /// The leader that is live, and where.
    live: Option<String>,
    /// Why the last look failed, if it did.
    failure: Option<String>,
}

struct Looker {
    client: Client,
    namespaces: watch::Receiver<Vec<Arc<str>>>,
    last: Arc<Mutex<Answer>>,
    leadership: watch::Receiver<LeaderState>,
    trigger: ReconcileTrigger,
}

impl PeerLookup {
    /// Begins to look, once. A process that is not ready has not looked yet.
    pub(super) fn open<T>(context: &OperatorContext<T>, namespaces: Vec<Arc<str>>) -> Self {
        let namespaces = watch::Sender::new(namespaces);
        let last: Arc<Mutex<Answer>> = Arc::default();
        let answer = Arc::clone(&last);
        context.readiness.require("peer", move || {
            let answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
            match (answer.asked_at, &answer.failure) {
                (Some(_), _) => Ok(()),
                (None, Some(failure)) => Err(failure.clone()),
                (None, None) => Err("its leader lease has not been looked for yet".to_owned()),
            }
        });
        let looker = Looker {
            client: context.clients.requests.clone(),
            namespaces: namespaces.subscribe(),
            last: Arc::clone(&last),
            leadership: context.leadership.subscribe(),
            trigger: context.trigger.clone(),
        };
        Self {
            _task: context.supervisor.spawn_guarded("peer", looker.run()),
            leadership: context.leadership.clone(),
            namespaces,
            last,
        }
    }

    /// Looks in these namespaces from now on.
    pub(super) fn follow(&self, namespaces: &[Arc<str>]) {
        self.namespaces.send_if_modified(|current| {
            let has_changed = *current != namespaces;
            if has_changed {
                *current = namespaces.to_vec();
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Answer::default();
            }
            has_changed
        });
    }

    /// The live leader of the peer, and where.
    ///
    /// # Errors
    /// Since this process leads it has not looked yet.
    pub(super) fn live(&self, now: Timestamp) -> Result<Reading<Option<String>>, String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let since = match self.leadership.state() {
            LeaderState::Leading { since, .. } => since,
            LeaderState::Following => Timestamp::MIN,
        };
        let relied_on = last
            .asked_at
            .filter(|at| since <= *at && now < saturating_add(*at, RELIED_ON_FOR));
        match (relied_on, &last.failure, self.leadership.state()) {
            (Some(_), _, _) | (None, _, LeaderState::Following) => Ok(Reading::Known(last.live.clone())),
            (None, Some(failure), _) => Ok(Reading::Unknown(failure.clone())),
            (None, None, _) => Err("whether medik8s' own controller runs is being looked up".to_owned()),
        }
    }
}

impl Looker {
    async fn run(mut self) {
        let mut is_first = true;
        loop {
            let leads = matches!(*self.leadership.borrow_and_update(), LeaderState::Leading { .. });
            let namespaces = self.namespaces.borrow_and_update().clone();
            let mut wait = INTERVAL;
            if std::mem::take(&mut is_first) || leads {
                let asked_at = Timestamp::now();
                let answer = self.look(&namespaces).await;
                if answer.is_err() {
                    wait = RETRY;
                }
                self.tell(asked_at, answer);
            }
            tokio::select! {
                Ok(()) = self.leadership.changed() => {}
                Ok(()) = self.namespaces.changed() => is_first = true,
                () = tokio::time::sleep(wait), if leads || wait == RETRY => is_first = wait == RETRY,
            }
        }
    }

    async fn look(&self, namespaces: &[Arc<str>]) -> Result<Option<String>, String> {
        for namespace in namespaces {
            let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
            match leases.get(PEER_LEASE).await.map_err(ApiError::from) {
                Ok(lease) => {
                    let view = LeaseView::project(&lease);
                    if let Some(holder) = view.and_then(|lease| live_holder(&lease, Timestamp::now())) {
                        return Ok(Some(format!("{holder} in namespace {namespace}")));
                    }
                }
                Err(ApiError::NotFound) => {}
                Err(error) => {
                    return Err(format!(
                        "lease {namespace}/{PEER_LEASE} of medik8s' own controller cannot be read: {error}"
                    ));
                }
            }
        }
        Ok(None)
    }

    /// A failure leaves the last answer as it is: it is relied on for some minutes.
    fn tell(&self, asked_at: Timestamp, answer: Result<Option<String>, String>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let leads_since = match *self.leadership.borrow() {
            LeaderState::Leading { since, .. } => since,
            LeaderState::Following => Timestamp::MIN,
        };
        let was_relied_on = last.asked_at.is_some_and(|at| leads_since <= at);
        let before = last.live.clone();
        match answer {
            Ok(live) => {
                *last = Answer {
                    asked_at: Some(asked_at),
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
        match (&before, &last.live) {
            (None, Some(live)) => tracing::warn!("medik8s' own controller runs ({live}): nothing is written beside it"),
            (Some(_), None) => tracing::info!("medik8s' own controller does not run any more"),
            _ => {}
        }
        // The answer of each minute is no news; that there is one, or another one, is.
        if !was_relied_on || before != last.live {
            self.trigger.notify();
        }
    }
}

/// Who holds the lease, if it is valid.
fn live_holder(lease: &LeaseView, now: Timestamp) -> Option<Arc<str>> {
    let is_valid = lease.until().is_some_and(|until| now < until);
    lease.holder.clone().filter(|_| is_valid)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::renewed_lately(json!({ "holderIdentity": "nhc-1_x", "renewTime": "2026-01-01T11:59:50.000000Z", "leaseDurationSeconds": 15 }), true)]
    #[case::run_out(json!({ "holderIdentity": "nhc-1_x", "renewTime": "2026-01-01T11:59:45.000000Z", "leaseDurationSeconds": 15 }), false)]
    #[case::released(json!({ "holderIdentity": "", "renewTime": "2026-01-01T11:59:59.000000Z", "leaseDurationSeconds": 1 }), false)]
    #[case::never_renewed(json!({ "holderIdentity": "nhc-1_x" }), false)]
    fn peer_is_live_while_its_lease_is(#[case] spec: Value, #[case] expected: bool) {
        let lease = json!({ "metadata": { "name": PEER_LEASE }, "spec": spec });
        let lease = LeaseView::project(&serde_json::from_value(lease).unwrap()).unwrap();
        assert_eq!(
            live_holder(&lease, "2026-01-01T12:00:00Z".parse().unwrap()).is_some(),
            expected
        );
    }
}
