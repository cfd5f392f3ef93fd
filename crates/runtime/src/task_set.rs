//! Work beside the loop: tasks that come to an end by themselves, one for a key, and what came of each.
//!
//! The loop that plans never waits for the API server. It starts an action here under the key of what it is about, goes on,
//! and takes the outcome once there is one. For tasks that must run as long as the process there is
//! [`crate::Supervisor`].

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::future::Future;

use tokio::task::{Id, JoinError, JoinSet};

/// Tasks under way, at most one for a key. Dropping the set cuts them off.
#[derive(Debug)]
pub struct TaskSet<K, T> {
    running: JoinSet<T>,
    keys: HashMap<Id, K>,
    under_way: BTreeSet<K>,
    ended: Vec<Ended<K, T>>,
}

/// A task that has come to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended<K, T> {
    /// What it was about.
    pub key: K,
    /// What came of it; `None`: it panicked, which has been logged, and how much of it was done is not known.
    pub outcome: Option<T>,
}

impl<K, T> Default for TaskSet<K, T> {
    fn default() -> Self {
        Self {
            running: JoinSet::new(),
            keys: HashMap::new(),
            under_way: BTreeSet::new(),
            ended: Vec::new(),
        }
    }
}

impl<K, T> TaskSet<K, T>
where
    K: Ord + Clone + Debug,
    T: Send + 'static,
{
    /// Nothing under way.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts `work`, unless a task of this key is under way; returns whether it did.
    pub fn start(&mut self, key: K, work: impl Future<Output = T> + Send + 'static) -> bool {
        if !self.under_way.insert(key.clone()) {
            return false;
        }
        let task = self.running.spawn(work);
        self.keys.insert(task.id(), key);
        true
    }

    /// Whether a task of this key was started whose outcome has not been taken.
    pub fn is_under_way(&self, key: &K) -> bool {
        self.under_way.contains(key)
    }

    /// How many tasks were started whose outcome has not been taken.
    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Whether every outcome has been taken.
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns when a task has come to its end; never while nothing is under way. May be dropped and called again.
    pub async fn wait(&mut self) {
        match self.running.join_next_with_id().await {
            Some(joined) => self.note(joined),
            None => std::future::pending().await,
        }
    }

    /// Takes the outcomes of all tasks that have come to their end. From then on their keys are free.
    pub fn take_ended(&mut self) -> Vec<Ended<K, T>> {
        while let Some(joined) = self.running.try_join_next_with_id() {
            self.note(joined);
        }
        let ended = std::mem::take(&mut self.ended);
        for task in &ended {
            self.under_way.remove(&task.key);
        }
        ended
    }

    /// Waits for everything under way, and takes what came of it. How long that takes is for the tasks to bound.
    pub async fn finish(&mut self) -> Vec<Ended<K, T>> {
        while let Some(joined) = self.running.join_next_with_id().await {
            self.note(joined);
        }
        self.take_ended()
    }

    fn note(&mut self, joined: Result<(Id, T), JoinError>) {
        let (id, outcome) = match joined {
            Ok((id, outcome)) => (id, Ok(outcome)),
            Err(error) => (error.id(), Err(error)),
        };
        let Some(key) = self.keys.remove(&id) else {
            return;
        };
        if let Err(error) = &outcome {
            tracing::error!(task = ?key, %error, "a task ended without an outcome");
        }
        self.ended.push(Ended {
            key,
            outcome: outcome.ok(),
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::sync::oneshot;

    use super::{Ended, TaskSet};

    fn ended<T>(key: &'static str, outcome: Option<T>) -> Ended<&'static str, T> {
        Ended { key, outcome }
    }

    #[tokio::test]
    async fn a_key_is_taken_until_its_outcome_is() {
        let mut tasks = TaskSet::new();
        let (finish, told) = oneshot::channel();
        assert!(tasks.start("n1", async move { told.await.unwrap_or(0) }));
        assert!(!tasks.start("n1", async { 2 }));
        assert!(tasks.start("n2", async { 3 }));
        tasks.wait().await;
        assert_eq!(tasks.take_ended(), [ended("n2", Some(3))]);
        assert!(!tasks.is_under_way(&"n2") && tasks.is_under_way(&"n1"));
        finish.send(1).unwrap();
        tasks.wait().await;
        assert!(!tasks.start("n1", async { 2 }), "its outcome is still to be taken");
        assert_eq!(tasks.take_ended(), [ended("n1", Some(1))]);
        assert!(tasks.is_empty() && tasks.start("n1", async { 4 }));
    }

    #[tokio::test]
    async fn nothing_under_way_is_waited_for_in_vain() {
        let mut tasks = TaskSet::<&str, ()>::new();
        assert!(tasks.wait().now_or_never().is_none());
        assert!(tasks.take_ended().is_empty());
    }

    #[tokio::test]
    async fn a_task_that_panics_frees_its_own_key_and_no_other() {
        let mut tasks = TaskSet::new();
        tasks.start("bad", async { panic!("boom") });
        tasks.start("good", std::future::pending::<()>());
        tasks.wait().await;
        assert_eq!(tasks.take_ended(), [ended("bad", None)]);
        assert_eq!((tasks.is_under_way(&"bad"), tasks.is_under_way(&"good")), (false, true));
    }

    #[tokio::test]
    async fn the_end_waits_for_all_and_loses_no_outcome_that_was_there_before() {
        let mut tasks = TaskSet::new();
        tasks.start("first", async { 1 });
        tasks.wait().await;
        tasks.start("second", async {
            tokio::task::yield_now().await;
            2
        });
        assert_eq!(
            tasks.finish().await,
            [ended("first", Some(1)), ended("second", Some(2))]
        );
    }

    #[tokio::test]
    async fn dropping_the_set_cuts_its_tasks_off() {
        let (sender, dropped) = oneshot::channel::<()>();
        let mut tasks = TaskSet::new();
        tasks.start("n1", async move {
            let _owned = sender;
            std::future::pending::<()>().await;
        });
        drop(tasks);
        assert!(dropped.await.is_err());
    }
}
