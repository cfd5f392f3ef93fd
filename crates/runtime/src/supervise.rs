//! Tasks that must not be lost: one that panics or ends before it was told to takes the process with it.
//!
//! A pod that exits is restarted and seen; a task that died silently leaves an operator that looks well and does nothing.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Why the process has to end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task \"{task}\" {problem}")]
pub struct TaskFailure {
    /// The task's name.
    pub task: &'static str,
    /// What happened to it.
    pub problem: String,
}

/// Starts tasks and notices their end.
#[derive(Clone, Debug)]
pub struct Supervisor {
    shutdown: CancellationToken,
    tracker: TaskTracker,
    threads: TaskTracker,
    failure: watch::Sender<Option<TaskFailure>>,
}

impl Supervisor {
    /// Tasks may end once `shutdown` is cancelled, and not before.
    pub fn new(shutdown: CancellationToken) -> Self {
        Self {
            shutdown,
            tracker: TaskTracker::new(),
            threads: TaskTracker::new(),
            failure: watch::Sender::new(None),
        }
    }

    /// Runs a task that ends only after shutdown has begun; [`Supervisor::finished`] waits for it.
    pub fn spawn(&self, task: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let supervised = self.clone().supervise(task, work);
        self.tracker.spawn(supervised);
    }

    /// Runs a task that lives as long as the guard: dropping the guard ends it at its next await.
    /// Its end by itself is as fatal as that of any other task.
    pub fn spawn_guarded(&self, task: &'static str, work: impl Future<Output = ()> + Send + 'static) -> TaskGuard {
        let supervised = self.clone().supervise(task, work);
        TaskGuard(tokio::spawn(supervised).abort_handle())
    }

    /// Cancelled when tasks may end.
    pub fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// What a thread holds on to for as long as it runs.
    pub(crate) fn thread_token(&self) -> TaskTrackerToken {
        self.threads.token()
    }

    /// Whether a thread of a [`BlockingService`](crate::BlockingService) still runs: nothing can end it from outside.
    pub fn has_threads(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Resolves when a task has died; stays pending as long as all is well.
    pub async fn failure(&self) -> TaskFailure {
        let mut changes = self.failure.subscribe();
        let died = changes
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|died| died.clone());
        match died {
            Some(failure) => failure,
            // The sender lives in what `self` holds.
            None => std::future::pending().await,
        }
    }

    /// The task that has died, if one has.
    pub fn failure_now(&self) -> Option<TaskFailure> {
        self.failure.borrow().clone()
    }

    /// Waits until every task of [`Supervisor::spawn`] has ended.
    pub async fn finished(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    async fn supervise(self, task: &'static str, work: impl Future<Output = ()> + Send) {
        let problem = match AssertUnwindSafe(work).catch_unwind().await {
            Ok(()) if self.shutdown.is_cancelled() => return,
            Ok(()) => "ended although nothing asked it to".to_owned(),
            Err(panic) => format!("panicked: {}", panic_message(panic.as_ref())),
        };
        tracing::error!(task, "{problem}");
        self.failure.send_if_modified(|first| {
            let is_first = first.is_none();
            if is_first {
                *first = Some(TaskFailure { task, problem });
            }
            is_first
        });
    }
}

/// Ends its task when dropped.
#[derive(Debug)]
pub struct TaskGuard(AbortHandle);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned())
}

/// An `Arc` of a guard ends the task with its last clone.
pub(crate) type SharedTask = Arc<TaskGuard>;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::FutureExt;
    use tokio_util::sync::CancellationToken;

    use super::Supervisor;

    #[tokio::test]
    async fn a_panic_is_fatal_and_names_the_task() {
        let supervisor = Supervisor::new(CancellationToken::new());
        supervisor.spawn("reporter", async { panic!("no such node") });
        let failure = supervisor.failure().await;
        assert_eq!(failure.to_string(), "task \"reporter\" panicked: no such node");
    }

    #[tokio::test]
    async fn a_task_that_ends_early_is_fatal() {
        let supervisor = Supervisor::new(CancellationToken::new());
        supervisor.spawn("reporter", async {});
        assert_eq!(supervisor.failure().await.task, "reporter");
    }

    #[tokio::test]
    async fn the_first_death_is_the_one_that_is_told() {
        let supervisor = Supervisor::new(CancellationToken::new());
        supervisor.spawn("first", async {});
        supervisor.failure().await;
        supervisor.spawn("second", async {});
        supervisor.finished().await;
        assert_eq!(supervisor.failure().await.task, "first");
    }

    #[tokio::test]
    async fn tasks_may_end_during_shutdown() {
        let shutdown = CancellationToken::new();
        let supervisor = Supervisor::new(shutdown.clone());
        let finished = Arc::new(AtomicU32::new(0));
        let (token, count) = (shutdown.clone(), Arc::clone(&finished));
        supervisor.spawn("writer", async move {
            token.cancelled().await;
            count.fetch_add(1, Ordering::SeqCst);
        });
        shutdown.cancel();
        supervisor.finished().await;
        assert_eq!(finished.load(Ordering::SeqCst), 1);
        assert!(supervisor.failure().now_or_never().is_none());
    }

    #[tokio::test]
    async fn dropping_the_guard_ends_the_task() {
        struct TellsWhenDropped(Option<tokio::sync::oneshot::Sender<Infallible>>);
        let supervisor = Supervisor::new(CancellationToken::new());
        let (sender, dropped) = tokio::sync::oneshot::channel();
        let owned = TellsWhenDropped(Some(sender));
        let guard = supervisor.spawn_guarded("watch", async move {
            let _owned = owned.0;
            std::future::pending::<()>().await;
        });
        drop(guard);
        assert!(dropped.await.is_err());
        assert!(supervisor.failure_now().is_none());
    }
}
