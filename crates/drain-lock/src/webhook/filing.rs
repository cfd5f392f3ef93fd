//! Filing: an eviction from a node that somebody empties asks for a drain of that node. The answer to the eviction never
//! waits for it: a bounded channel takes what is to be filed, and a task of its own writes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use jiff::Timestamp;
use kube::Client;
use nodeward_api::node_drain::{Deadlines, Evictor, Fallback, PURPOSE_AT_MOST};
use nodeward_core::drain_request::{DrainRequest, JoinOutcome, evicting_requester};
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_core::text::cut;
use nodeward_runtime::CancellationToken;
use tokio::sync::mpsc;

use crate::drain_request::request_drain;

use super::metrics::WebhookMetrics;

/// Filings that wait to be written. Beyond that they are dropped: the drainer asks again in seconds.
const QUEUE: usize = 256;

/// Written at once.
const AT_ONCE: usize = 8;

/// What was filed is not filed again for this long; shorter than the minute to which the last eviction is kept.
const FILED_FOR: Duration = Duration::from_secs(30);

/// What could not be filed is tried again with the drainer's next eviction after this long.
const FAILED_FOR: Duration = Duration::from_secs(2);

/// Node and user pairs that are remembered; beyond that all are forgotten, which costs a look each.
const REMEMBERED: usize = 4096;

/// A drain that an eviction asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Filing {
    /// The node.
    pub node: NodeName,
    /// That very node.
    pub node_uid: NodeUid,
    /// Who evicts.
    pub user: String,
    /// What becomes of the drain when a time of its is over.
    pub fallback: Fallback,
}

impl Filing {
    fn request(&self) -> DrainRequest {
        DrainRequest {
            node: self.node.clone(),
            node_uid: Some(self.node_uid.clone()),
            requester: evicting_requester(&self.user),
            purpose: Some(cut(format!("evictions by {}", self.user), PURPOSE_AT_MOST)),
            evict: Evictor::Requester,
            fallback: Some(self.fallback),
            deadlines: Deadlines::default(),
            dry_run: false,
            is_eviction: true,
            changes_settings: false,
        }
    }
}

/// Not before when the same is filed again.
type Recent = Arc<Mutex<HashMap<Filing, Instant>>>;

/// Takes filings, without ever waiting.
#[derive(Clone)]
pub struct FilingSender {
    queue: mpsc::Sender<Filing>,
    recent: Recent,
    metrics: WebhookMetrics,
}

/// Writes what was filed.
pub struct Filer {
    queue: mpsc::Receiver<Filing>,
    recent: Recent,
    metrics: WebhookMetrics,
}

/// A channel and its two ends.
pub fn channel(metrics: &WebhookMetrics) -> (FilingSender, Filer) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let recent = Recent::default();
    let sender = FilingSender {
        queue: sender,
        recent: Arc::clone(&recent),
        metrics: metrics.clone(),
    };
    let filer = Filer {
        queue: receiver,
        recent,
        metrics: metrics.clone(),
    };
    (sender, filer)
}

impl FilingSender {
    /// Files it, unless that was done a moment ago.
    pub fn file(&self, filing: Filing, now: Instant) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.get(&filing).is_some_and(|not_before| now < *not_before) {
            return;
        }
        if recent.len() >= REMEMBERED {
            recent.clear();
        }
        match self.queue.try_send(filing.clone()) {
            Ok(()) => {
                recent.insert(filing, now + FILED_FOR);
            }
            Err(_) => self.metrics.filed("dropped"),
        }
    }
}

impl Filer {
    /// Writes until shutdown.
    pub async fn run(self, client: Client, stop: CancellationToken) {
        let Self { queue, recent, metrics } = self;
        let filings = futures::stream::unfold(queue, async |mut queue| {
            queue.recv().await.map(|filing| (filing, queue))
        });
        let write = filings.for_each_concurrent(AT_ONCE, async |filing| {
            let outcome = request_drain(&client, &filing.request(), Timestamp::now()).await;
            if !matches!(outcome, Ok(joined) if joined.has_joined()) {
                let mut recent = recent.lock().unwrap_or_else(PoisonError::into_inner);
                recent.insert(filing.clone(), Instant::now() + FAILED_FOR);
            }
            tell(&filing, &outcome, &metrics);
        });
        tokio::select! {
            () = stop.cancelled() => {}
            () = write => stop.cancelled().await,
        }
    }
}

fn tell(filing: &Filing, outcome: &Result<JoinOutcome, nodeward_runtime::ApiError>, metrics: &WebhookMetrics) {
    let Filing { node, user, .. } = filing;
    match outcome {
        Ok(joined) => {
            metrics.filed(joined.as_label());
            match joined {
                JoinOutcome::Created | JoinOutcome::Added => {
                    tracing::info!(%node, user, "evictions from a cordoned node: its drain is asked for");
                }
                JoinOutcome::Conflicting(_) | JoinOutcome::Preview => {
                    tracing::info!(%node, user, why = joined.as_label(), "a drain cannot be asked for now");
                }
                JoinOutcome::Noted | JoinOutcome::Known => {}
            }
        }
        Err(refusal) => {
            metrics.filed("failed");
            tracing::warn!(%node, user, %refusal, "a drain could not be asked for");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filing(number: usize) -> Filing {
        Filing {
            node: format!("n{number}").into(),
            node_uid: format!("u{number}").into(),
            user: "alice".to_owned(),
            fallback: Fallback::Wait,
        }
    }

    fn ends() -> (FilingSender, Filer) {
        channel(&WebhookMetrics::unregistered())
    }

    #[test]
    fn an_eviction_a_second_files_its_drain_twice_a_minute() {
        let (sender, mut filer) = ends();
        let now = Instant::now();
        for second in 0..60 {
            sender.file(filing(1), now + Duration::from_secs(second));
        }
        let filed = std::iter::from_fn(|| filer.queue.try_recv().ok()).count();
        assert_eq!(filed, 2);
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_filed_with_the_next_eviction() {
        let (sender, mut filer) = ends();
        let now = Instant::now();
        for number in 0..=QUEUE {
            sender.file(filing(number), now);
        }
        let filed: Vec<Filing> = std::iter::from_fn(|| filer.queue.try_recv().ok()).collect();
        assert_eq!(filed.len(), QUEUE);
        sender.file(filing(QUEUE), now);
        assert_eq!(filer.queue.try_recv().unwrap(), filing(QUEUE));
    }

    #[test]
    fn no_number_of_users_makes_it_remember_more_than_its_bound() {
        let (sender, mut filer) = ends();
        for number in 0..2 * REMEMBERED {
            sender.file(filing(number), Instant::now());
            assert!(filer.queue.try_recv().is_ok());
        }
        assert!(sender.recent.lock().unwrap().len() <= REMEMBERED);
    }

    #[test]
    fn an_endless_user_name_still_makes_a_requester() {
        let endless = Filing {
            user: "ü".repeat(1000),
            ..filing(1)
        };
        assert!(endless.request().requester.len() <= nodeward_api::node_drain::REQUESTER_AT_MOST);
    }

    #[test]
    fn a_drain_that_is_filed_falls_back_as_the_configuration_says() {
        assert_eq!(filing(1).request().fallback, Some(Fallback::Wait));
    }
}
