//! Whether medik8s' own controller runs: its leader lease is read once a minute by the leader, and when one takes over.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use nodeward_core::deadline::saturating_add;
use nodeward_core::lease::LeaseView;
use nodeward_runtime::leader::Observation;
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
const RELIED_ON_FOR: Duration = Duration::from_mins(5);

/// A lease that ran out so long ago is a leftover, whatever the clocks show: no two of them are that far apart. Any other is
/// live for its duration from when we last saw it change, as leader election has it.
const LEFTOVER_AFTER: SignedDuration = SignedDuration::from_hours(1);

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
    /// When it was asked for, and who led then; `None`: there is none for these namespaces yet.
    asked: Option<(Instant, LeaderState)>,
    /// The leader that is live, and where.
    live: Option<String>,
    /// Why the last look failed, if it did.
    failure: Option<String>,
}

/// A leader that is live.
struct Live {
    /// Who, and where.
    leader: String,
    /// For how long, unless it renews its lease.
    lasts: Duration,
}

struct Looker {
    client: Client,
    namespaces: watch::Receiver<Vec<Arc<str>>>,
    last: Arc<Mutex<Answer>>,
    leadership: watch::Receiver<LeaderState>,
    trigger: ReconcileTrigger,
    interval: Duration,
    /// The lease of each namespace, as it was seen to change.
    observations: BTreeMap<Arc<str>, Observation>,
}

impl PeerLookup {
    /// Begins to look, once. A process that is not ready has not looked yet.
    pub(super) fn open<T>(context: &OperatorContext<T>, namespaces: Vec<Arc<str>>) -> Self {
        let namespaces = watch::Sender::new(namespaces);
        let last: Arc<Mutex<Answer>> = Arc::default();
        let answer = Arc::clone(&last);
        context.readiness.require("peer", move || {
            let answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
            match (answer.asked, &answer.failure) {
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
            interval: INTERVAL,
            observations: BTreeMap::new(),
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
    pub(super) fn live(&self) -> Result<Reading<Option<String>>, String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.leadership.state();
        let relied_on = last
            .asked
            .filter(|(at, asked_in)| *asked_in == state && at.elapsed() < RELIED_ON_FOR);
        match (relied_on, &last.failure, state) {
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
            let state = *self.leadership.borrow_and_update();
            let leads = matches!(state, LeaderState::Leading { .. });
            let namespaces = self.namespaces.borrow_and_update().clone();
            let (mut wait, mut has_failed) = (self.interval, false);
            if std::mem::take(&mut is_first) || leads {
                let asked_at = Instant::now();
                let was_live = self.last.lock().unwrap_or_else(PoisonError::into_inner).live.is_some();
                let answer = match self.look(&namespaces).await {
                    Ok(Some(live)) => {
                        // Whether it is renewed at all shows within its duration.
                        if !was_live {
                            wait = INTERVAL.min(live.lasts).max(RETRY);
                        }
                        Ok(Some(live.leader))
                    }
                    Ok(None) => Ok(None),
                    Err(failure) => {
                        wait = RETRY;
                        Err(failure)
                    }
                };
                has_failed = answer.is_err();
                self.tell((asked_at, state), answer);
            }
            tokio::select! {
                Ok(()) = self.leadership.changed() => {}
                Ok(()) = self.namespaces.changed() => is_first = true,
                () = tokio::time::sleep(wait), if leads || has_failed => is_first = has_failed,
            }
        }
    }

    async fn look(&mut self, namespaces: &[Arc<str>]) -> Result<Option<Live>, String> {
        self.observations.retain(|namespace, _| namespaces.contains(namespace));
        for namespace in namespaces {
            let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
            match leases.get(PEER_LEASE).await.map_err(ApiError::from) {
                Ok(lease) => {
                    let observation = self.observations.entry(Arc::clone(namespace)).or_default();
                    let is_free = observation.is_free(&lease, Instant::now());
                    let lease = LeaseView::project(&lease).filter(|_| !is_free);
                    if let Some(lease) = lease.filter(|lease| !is_leftover(lease, Timestamp::now())) {
                        let holder = lease.holder.as_deref().unwrap_or_default();
                        return Ok(Some(Live {
                            leader: format!("{holder} in namespace {namespace}"),
                            lasts: lease
                                .duration
                                .and_then(|lasts| lasts.try_into().ok())
                                .unwrap_or(INTERVAL),
                        }));
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
    fn tell(&self, asked: (Instant, LeaderState), answer: Result<Option<String>, String>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let was_relied_on = last.asked.is_some_and(|(_, asked_in)| asked_in == asked.1);
        let before = last.live.clone();
        match answer {
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

/// Whether a lease ran out longer ago than clocks differ.
fn is_leftover(lease: &LeaseView, now: Timestamp) -> bool {
    let until = lease.until();
    until.is_some_and(|until| saturating_add(until, LEFTOVER_AFTER) <= now)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    /// Its lease appears while this process leads, and nothing else changes.
    #[tokio::test]
    async fn peer_that_begins_to_lead_is_seen_with_the_next_look() {
        let lease: Arc<Mutex<Option<Value>>> = Arc::default();
        let stored = Arc::clone(&lease);
        let service = tower::service_fn(move |_: Request<Body>| {
            let found = stored.lock().unwrap().clone();
            let code = if found.is_some() { 200 } else { 404 };
            let absent =
                json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "" });
            let body = Body::from(found.unwrap_or(absent).to_string().into_bytes());
            std::future::ready(Ok::<_, Infallible>(
                Response::builder().status(code).body(body).unwrap(),
            ))
        });
        let (last, trigger) = (Arc::<Mutex<Answer>>::default(), ReconcileTrigger::new());
        let namespaces = watch::Sender::new(vec!["medik8s".into()]);
        let looker = Looker {
            client: Client::new(service, "default"),
            namespaces: namespaces.subscribe(),
            last: Arc::clone(&last),
            leadership: Leadership::fixed(true).subscribe(),
            trigger: trigger.clone(),
            interval: Duration::from_millis(1),
            observations: BTreeMap::new(),
        };
        let looks = tokio::spawn(looker.run());
        trigger.notified().await;
        assert_eq!(last.lock().unwrap().live, None);
        *lease.lock().unwrap() = Some(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": PEER_LEASE },
            "spec": { "holderIdentity": "nhc-1", "renewTime": micros(Timestamp::now()), "leaseDurationSeconds": 15 },
        }));
        trigger.notified().await;
        assert_eq!(last.lock().unwrap().live.as_deref(), Some("nhc-1 in namespace medik8s"));
        looks.abort();
    }

    fn micros(at: Timestamp) -> String {
        at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
    }

    #[rstest]
    #[case::renewed_lately("2026-01-01T11:59:50.000000Z", false)]
    #[case::run_out_by_a_clock_that_may_be_wrong("2026-01-01T11:00:00.000000Z", false)]
    #[case::of_a_clock_ahead("2026-01-01T17:00:00.000000Z", false)]
    #[case::run_out_for_an_hour("2026-01-01T10:59:45.000000Z", true)]
    fn leftover_lease_ran_out_long_ago(#[case] renewed: &str, #[case] expected: bool) {
        let lease = json!({
            "metadata": { "name": PEER_LEASE },
            "spec": { "holderIdentity": "nhc-1_x", "renewTime": renewed, "leaseDurationSeconds": 15 },
        });
        let lease = LeaseView::project(&serde_json::from_value(lease).unwrap()).unwrap();
        assert_eq!(is_leftover(&lease, "2026-01-01T12:00:00Z".parse().unwrap()), expected);
    }
}
