//! Reads that go to the API server rather than to a cache: what a forcing write rests on is read just before it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::api_error::ApiError;

/// An answer older than this, counted from its question, is asked for anew.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// Reads of one kind of object, by key. Those who ask for the same at the same time share one request. Clones share it.
pub struct QuorumReads<K, V>(Arc<Mutex<HashMap<K, Read<V>>>>);

struct Read<V> {
    asked_at: Instant,
    answer: Arc<OnceCell<Result<V, ApiError>>>,
}

impl<K, V> Clone for QuorumReads<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, V> Default for QuorumReads<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash, V: Clone> QuorumReads<K, V> {
    /// The answer to `read`, or that of somebody who asked for the same a moment ago, but not before `planned_at`: an
    /// answer from before the plan cannot tell what has changed since.
    ///
    /// # Errors
    /// With the answer's own.
    pub async fn get(
        &self,
        key: K,
        planned_at: Instant,
        read: impl Future<Output = Result<V, kube::Error>>,
    ) -> Result<V, ApiError> {
        self.ask(key, Some(planned_at), read).await
    }

    /// The same for what no plan rests on: whoever asked a moment ago asked for all.
    ///
    /// # Errors
    /// With the answer's own.
    pub async fn recent(&self, key: K, read: impl Future<Output = Result<V, kube::Error>>) -> Result<V, ApiError> {
        self.ask(key, None, read).await
    }

    async fn ask(
        &self,
        key: K,
        planned_at: Option<Instant>,
        read: impl Future<Output = Result<V, kube::Error>>,
    ) -> Result<V, ApiError> {
        let answer = {
            let mut reads = self.0.lock();
            let is_fresh = |read: &Read<V>| read.asked_at.elapsed() < FRESH_FOR;
            let is_after_plan = |read: &Read<V>| planned_at.is_none_or(|planned_at| planned_at <= read.asked_at);
            reads.retain(|asked, read| is_fresh(read) && (*asked != key || is_after_plan(read)));
            let read = reads.entry(key).or_insert_with(|| Read {
                asked_at: Instant::now(),
                answer: Arc::default(),
            });
            Arc::clone(&read.answer)
        };
        answer
            .get_or_init(async || read.await.map_err(ApiError::from))
            .await
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_shared_for_a_second() {
        let (reads, asked) = (QuorumReads::default(), AtomicU32::new(0));
        let planned_at = Instant::now();
        let get = |key: &'static str| {
            reads.get(key, planned_at, async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok(asked.fetch_add(1, Ordering::SeqCst))
            })
        };
        let (first, same, other) = tokio::join!(get("a"), get("a"), get("b"));
        assert_eq!(first, same);
        assert_ne!(first, other);
        tokio::time::advance(Duration::from_millis(899)).await;
        assert_eq!(get("a").await, first);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(get("a").await, Ok(2), "its second counts from the question");
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_plan_rests_on_is_shared_across_plans() {
        let (reads, asked) = (QuorumReads::default(), AtomicU32::new(0));
        let get = || reads.recent("a", async { Ok(asked.fetch_add(1, Ordering::SeqCst)) });
        assert_eq!(get().await, Ok(0));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert_eq!(get().await, Ok(0));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(get().await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn answer_older_than_the_plan_is_reread() {
        let (reads, asked) = (QuorumReads::default(), AtomicU32::new(0));
        let get = |planned_at| reads.get("a", planned_at, async { Ok(asked.fetch_add(1, Ordering::SeqCst)) });
        let first_plan = Instant::now();
        assert_eq!(get(first_plan).await, Ok(0));
        tokio::time::advance(Duration::from_millis(50)).await;
        let second_plan = Instant::now();
        assert_eq!(get(second_plan).await, Ok(1));
        assert_eq!(get(second_plan).await, Ok(1));
    }
}
