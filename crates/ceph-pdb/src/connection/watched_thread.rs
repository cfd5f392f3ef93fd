//! A thread that calls librados, watched: one that hangs in there goes only with the process.

use std::future::pending;
use std::io;
use std::time::Duration;

use nodeward_runtime::blocking_service::ServiceState;
use nodeward_runtime::supervise::TaskGuard;
use nodeward_runtime::{BlockingService, Liveness, Progress, Supervisor};
use tokio::sync::watch;
use tokio::time::sleep;

/// A call that takes longer hangs. One to the monitors ends after seconds, and what the manager says after minutes is old.
const CALL_LIMIT: Duration = Duration::from_mins(5);

/// The thread, and the watch over it.
pub(super) struct WatchedThread<Q, A> {
    pub(super) service: BlockingService<Q, A>,
    _watch: TaskGuard,
}

impl<Q: Send + 'static, A: Send + 'static> WatchedThread<Q, A> {
    /// Starts the thread. While it hangs `/livez` fails, so that the kubelet restarts the process; but only once `answered_elsewhere`
    /// has returned, which is asked for when a call hangs: where nobody gets an answer Ceph hangs, and a restart mends nothing.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub(super) fn spawn<F>(
        supervisor: &Supervisor,
        liveness: &Liveness,
        name: &'static str,
        answer: impl FnMut(Q) -> A + Send + 'static,
        answered_elsewhere: impl Fn() -> F + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()> + Send,
    {
        let service = BlockingService::spawn(supervisor, name, answer)?;
        let (state, progress) = (service.state(), liveness.watch(name, CALL_LIMIT));
        let watch = async move { watch_calls(state, progress, answered_elsewhere).await };
        Ok(Self {
            service,
            _watch: supervisor.spawn_guarded(name, watch),
        })
    }
}

async fn watch_calls<F: Future<Output = ()>>(
    mut state: watch::Receiver<ServiceState>,
    progress: Progress,
    answered_elsewhere: impl Fn() -> F,
) {
    while let Ok(now) = state.wait_for(|now| *now != ServiceState::Idle).await.map(|now| *now) {
        let ServiceState::InCall { since } = now else { continue };
        let hangs = async {
            sleep(CALL_LIMIT).await;
            answered_elsewhere().await;
            let _hanging = progress.begin_pass_at(since);
            pending::<()>().await;
        };
        tokio::select! {
            () = hangs => {}
            _ = state.wait_for(|later| *later != now) => {}
        }
    }
    // The thread ends while this is dropped, too.
    pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use futures::FutureExt;
    use nodeward_runtime::CancellationToken;
    use rstest::rstest;
    use tokio::task::yield_now;

    use super::*;

    /// A library that does not return before it is told to.
    fn hanging(liveness: &Liveness, is_answered_elsewhere: bool) -> (WatchedThread<(), ()>, mpsc::Sender<()>) {
        let (release, released) = mpsc::channel::<()>();
        let never_returns = move |()| released.recv().unwrap_or_default();
        let elsewhere = move || async move {
            if !is_answered_elsewhere {
                pending::<()>().await;
            }
        };
        let supervisor = Supervisor::new(CancellationToken::new());
        let thread = WatchedThread::spawn(&supervisor, liveness, "ceph mon", never_returns, elsewhere);
        (thread.unwrap(), release)
    }

    /// Asks, and waits for the thread without the clock going on.
    async fn ask(thread: &WatchedThread<(), ()>) {
        let mut asked = Box::pin(thread.service.ask((), CALL_LIMIT));
        while *thread.service.state().borrow() == ServiceState::Idle {
            assert_eq!((&mut asked).now_or_never(), None);
            yield_now().await;
        }
    }

    fn stalled(liveness: &Liveness) -> Vec<&'static str> {
        let later = Instant::now() + CALL_LIMIT * 2;
        let stalled = liveness.stalled(later);
        stalled.iter().map(|stalled| stalled.name).collect()
    }

    #[rstest]
    #[case::hangs(true, CALL_LIMIT, &["ceph mon"])]
    #[case::slow(true, CALL_LIMIT / 2, &[])]
    #[case::ceph_hangs(false, CALL_LIMIT * 100, &[])]
    #[tokio::test(start_paused = true)]
    async fn thread_that_never_returns_fails_liveness_where_others_are_answered(
        #[case] is_answered_elsewhere: bool,
        #[case] time: Duration,
        #[case] expected: &[&str],
    ) {
        let liveness = Liveness::new();
        let (thread, _release) = hanging(&liveness, is_answered_elsewhere);
        ask(&thread).await;
        yield_now().await;
        sleep(time + Duration::from_secs(1)).await;
        assert_eq!(stalled(&liveness), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn thread_that_returns_after_all_lives() {
        let liveness = Liveness::new();
        let (thread, release) = hanging(&liveness, true);
        for _ in 0..2 {
            ask(&thread).await;
            yield_now().await;
            sleep(CALL_LIMIT + Duration::from_secs(1)).await;
            assert_eq!(stalled(&liveness), ["ceph mon"]);
            release.send(()).unwrap();
            while !stalled(&liveness).is_empty() {
                yield_now().await;
            }
        }
    }
}
