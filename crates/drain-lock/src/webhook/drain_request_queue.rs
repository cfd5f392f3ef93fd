//! A drainer's eviction from a cordoned node asks for a drain of that node. A bounded channel takes the requests, and a task of its
//! own finds out whether who evicts is a drainer, and writes them; the eviction waits a moment for what comes of it, and no longer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use nodeward_api::node_drain::{Evictor, Fallback, PURPOSE_AT_MOST};
use nodeward_api::reason::LockReason;
use nodeward_core::drain_request::{DrainRequest, EvictionSign, JoinOutcome, evicting_requester};
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_core::text::cut;
use nodeward_runtime::events::node_reference;
use nodeward_runtime::{CancellationToken, EventSink, EventSpec, Pause, PauseState};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};

use crate::drain_request::request_drain;

use super::decide::Drainer;
use super::drainers::Drainers;
use super::metrics::WebhookMetrics;
use super::review::User;

/// Requests that wait to be written. Beyond that they are dropped: the drainer asks again in seconds.
const QUEUE: usize = 256;

/// Written at once.
const AT_ONCE: usize = 8;

/// What could not be written is tried again with the drainer's next eviction after this long; and what was, once the watches
/// show no drain of the node: it is over, and the node is being drained again.
const FAILED_FOR: Duration = Duration::from_secs(2);

/// Node and user pairs that are remembered; beyond that all are forgotten, which costs a look each.
const REMEMBERED: usize = 4096;

/// A drain that an eviction asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueuedRequest {
    pub node: NodeName,
    /// That very node.
    pub node_uid: NodeUid,
    /// Who evicts.
    pub user: User,
    /// What becomes of the drain when a time of its is over.
    pub fallback: Fallback,
    /// What the eviction tells of its drainer.
    pub eviction: EvictionSign,
    /// How precisely signs of life are kept.
    pub sign_precision: SignedDuration,
    /// Whether only the user is reviewed, and nothing written, as in an audit.
    pub only_reviews: bool,
}

impl QueuedRequest {
    pub fn request(&self) -> DrainRequest {
        DrainRequest {
            purpose: Some(cut(format!("evictions by {}", self.user.name), PURPOSE_AT_MOST)),
            evict: Evictor::Requester,
            fallback: Some(self.fallback),
            eviction: Some(self.eviction),
            sign_precision: self.sign_precision,
            ..DrainRequest::new(
                self.node.clone(),
                Some(self.node_uid.clone()),
                evicting_requester(&self.user.name),
            )
        }
    }
}

/// What was requested a moment ago.
type Recent = Arc<Mutex<HashMap<QueuedRequest, Requested>>>;

/// That something was requested.
#[derive(Debug, Clone, Copy)]
struct Requested {
    at: Instant,
    /// Not before then is the same requested again, while that drain is there.
    not_before: Instant,
}

impl Requested {
    fn serves(self, has_drain: bool, now: Instant) -> bool {
        now < self.not_before && (has_drain || now < self.at + FAILED_FOR)
    }
}

/// Takes requests, without ever waiting.
#[derive(Clone)]
pub struct DrainRequestQueue {
    queue: mpsc::Sender<QueuedRequest>,
    recent: Recent,
    drainers: Arc<Drainers>,
    metrics: WebhookMetrics,
}

/// Writes them.
pub struct DrainRequestWriter {
    queue: mpsc::Receiver<QueuedRequest>,
    recent: Recent,
    drainers: Arc<Drainers>,
    metrics: WebhookMetrics,
}

/// A channel and its two ends.
pub fn channel(drainers: &Arc<Drainers>, metrics: &WebhookMetrics) -> (DrainRequestQueue, DrainRequestWriter) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let (recent, metrics) = (Recent::default(), metrics.clone());
    let sender = DrainRequestQueue {
        queue: sender,
        recent: Arc::clone(&recent),
        drainers: Arc::clone(drainers),
        metrics: metrics.clone(),
    };
    let writer = DrainRequestWriter {
        queue: receiver,
        recent,
        drainers: Arc::clone(drainers),
        metrics,
    };
    (sender, writer)
}

impl DrainRequestQueue {
    /// Takes a request, unless that was done a moment ago. `has_drain` is whether the watches show a drain of the node.
    pub fn push(&self, request: QueuedRequest, has_drain: bool, now: Instant) {
        self.drainers.await_review(&request.user, now);
        let mut recent = self.recent.lock();
        if recent
            .get(&request)
            .is_some_and(|requested| requested.serves(has_drain, now))
        {
            return;
        }
        if recent.len() >= REMEMBERED {
            recent.clear();
        }
        match self.queue.try_send(request.clone()) {
            Ok(()) => {
                let requested = Requested {
                    at: now,
                    // No sign is written again before twice that time.
                    not_before: now + request.sign_precision.unsigned_abs() / 2,
                };
                recent.insert(request, requested);
            }
            Err(_) => self.metrics.drain_requested("dropped"),
        }
    }
}

impl DrainRequestWriter {
    /// Writes until shutdown.
    pub async fn run(self, client: Client, pause: Pause, events: EventSink, stop: CancellationToken) {
        let Self {
            queue,
            recent,
            drainers,
            metrics,
        } = self;
        let requests = futures::stream::unfold(queue, async |mut queue| {
            queue.recv().await.map(|request| (request, queue))
        });
        let writes = Semaphore::new(AT_ONCE);
        // A user of whom nobody says anything keeps no other's drain waiting.
        let write = requests.for_each_concurrent(QUEUE, async |request| {
            let drainer = drainers.review(&client, &request.user).await;
            let _turn = writes.acquire().await;
            if pause.confirm().await != PauseState::Running {
                // The drainer's next eviction asks again, once there is somebody to ask.
                recent.lock().remove(&request);
                return;
            }
            let joined = if drainer == Drainer::Yes && !request.only_reviews {
                let outcome = request_drain(&client, &request.request(), Timestamp::now()).await;
                report(&request, &outcome, &metrics, &events);
                outcome.is_ok_and(JoinOutcome::has_joined)
            } else {
                false
            };
            if !joined {
                let at = Instant::now();
                let failed = Requested {
                    at,
                    not_before: at + FAILED_FOR,
                };
                recent.lock().insert(request, failed);
            }
        });
        tokio::select! {
            () = stop.cancelled() => {}
            () = write => stop.cancelled().await,
        }
    }
}

/// Tells who is taken to drain the node, and how to stop a drain that nobody meant.
fn announce(request: &QueuedRequest, events: &EventSink) {
    let QueuedRequest {
        node, node_uid, user, ..
    } = request;
    let reason = LockReason::DrainRequested;
    events.emit(EventSpec {
        regarding: node_reference(node.as_str(), node_uid.as_str()),
        related: None,
        severity: reason.severity(),
        reason: reason.as_str(),
        action: "Drain",
        note: format!(
            "The node {}: {user} evicts. If nobody means to drain it: kubectl uncordon {node}. To end the drain alone, until the next \
             eviction: kubectl delete nodedrain {node}",
            reason.explanation()
        ),
    });
}

fn report(
    request: &QueuedRequest,
    outcome: &Result<JoinOutcome, nodeward_runtime::ApiError>,
    metrics: &WebhookMetrics,
    events: &EventSink,
) {
    let QueuedRequest { node, user, .. } = request;
    match outcome {
        Ok(joined) => {
            metrics.drain_requested(joined.as_label());
            if *joined == JoinOutcome::Created {
                announce(request, events);
            }
            match joined {
                JoinOutcome::Created | JoinOutcome::Added => {
                    tracing::info!(%node, user = user.name, "evictions from a cordoned node: its drain is asked for");
                }
                JoinOutcome::Conflicting(_) | JoinOutcome::Preview => {
                    tracing::info!(%node, user = user.name, why = joined.as_label(), "a drain cannot be asked for now");
                }
                JoinOutcome::Noted | JoinOutcome::Known => {}
            }
        }
        Err(refusal) => {
            metrics.drain_requested("failed");
            tracing::warn!(%node, user = user.name, %refusal, "a drain could not be asked for");
        }
    }
}

#[cfg(test)]
mod tests {
    use nodeward_runtime::{Component, ConfigHandle, Metrics, ReconcileTrigger};

    use crate::settings::Settings;
    use crate::webhook::identity::OwnUser;

    use super::*;

    fn request(number: usize) -> QueuedRequest {
        QueuedRequest {
            node: format!("n{number}").into(),
            node_uid: format!("u{number}").into(),
            user: user("alice".to_owned()),
            fallback: Fallback::Wait,
            eviction: EvictionSign::Seen,
            sign_precision: SignedDuration::from_mins(1),
            only_reviews: false,
        }
    }

    fn user(name: String) -> User {
        User {
            name,
            ..User::default()
        }
    }

    fn ends() -> (DrainRequestQueue, DrainRequestWriter) {
        let metrics = Metrics::new(Component::new("drain-lock", "0"));
        let config = ConfigHandle::first(
            Settings::parse,
            String::new(),
            "f.yaml",
            ReconcileTrigger::new(),
            &metrics,
        );
        let metrics = WebhookMetrics::register(&metrics);
        let drainers = Drainers::new(config.unwrap(), OwnUser::default(), metrics.clone());
        channel(&Arc::new(drainers), &metrics)
    }

    #[test]
    fn frequent_evictions_request_a_drain_twice_a_minute() {
        let (sender, mut writer) = ends();
        let now = Instant::now();
        for second in 0..60 {
            sender.push(request(1), true, now + Duration::from_secs(second));
        }
        let filed = std::iter::from_fn(|| writer.queue.try_recv().ok()).count();
        assert_eq!(filed, 2);
    }

    #[test]
    fn node_drained_again_is_requested_at_once() {
        let (sender, mut writer) = ends();
        let now = Instant::now();
        let filed = [
            (0, false, 1),
            (1, false, 0),
            (5, true, 0),
            (9, false, 1),
            (10, false, 0),
            (15, true, 0),
        ];
        for (second, has_drain, expected) in filed {
            sender.push(request(1), has_drain, now + Duration::from_secs(second));
            let filed = std::iter::from_fn(|| writer.queue.try_recv().ok()).count();
            assert_eq!(filed, expected, "after {second} s");
        }
    }

    #[test]
    fn overflowing_request_is_queued_by_next_eviction() {
        let (sender, mut writer) = ends();
        let now = Instant::now();
        for number in 0..=QUEUE {
            sender.push(request(number), false, now);
        }
        let filed: Vec<QueuedRequest> = std::iter::from_fn(|| writer.queue.try_recv().ok()).collect();
        assert_eq!(filed.len(), QUEUE);
        sender.push(request(QUEUE), false, now);
        assert_eq!(writer.queue.try_recv().unwrap(), request(QUEUE));
    }

    #[test]
    fn memory_stays_bounded_for_any_number_of_users() {
        let (sender, mut writer) = ends();
        for number in 0..2 * REMEMBERED {
            sender.push(request(number), false, Instant::now());
            assert!(writer.queue.try_recv().is_ok());
        }
        assert!(sender.recent.lock().len() <= REMEMBERED);
    }

    #[test]
    fn an_endless_user_name_still_makes_a_requester() {
        let endless = QueuedRequest {
            user: user("ü".repeat(1000)),
            ..request(1)
        };
        assert!(endless.request().requester.len() <= nodeward_api::node_drain::REQUESTER_AT_MOST);
    }

    #[test]
    fn requested_drain_has_the_configured_fallback() {
        assert_eq!(request(1).request().fallback, Some(Fallback::Wait));
    }
}
