//! A service behind calls that block their thread and may hang, such as those of a C library.
//!
//! A hung call cannot be ended from outside. Whoever asks waits only until a deadline of its own; the thread stays in its call,
//! and no other call begins before that one returns.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use crate::supervise::{Supervisor, TaskGuard};

/// Questions that wait for their turn; whoever asks beyond it waits to be let in.
const QUEUE: usize = 16;

/// A thread that answers one question after the other. Dropping this ends the thread once it is out of its call.
#[derive(Debug)]
pub struct BlockingService<Q, A> {
    questions: mpsc::Sender<(Q, oneshot::Sender<A>)>,
    state: watch::Receiver<ServiceState>,
    _supervised: TaskGuard,
}

/// What the thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceState {
    /// It waits for a question.
    Idle,
    InCall {
        /// Since when.
        since: Instant,
    },
}

/// There was no answer in time. The call may still be under way, or not have begun: then it never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer within {deadline:?}")]
pub struct Hung {
    /// How long the question had.
    pub deadline: Duration,
}

impl<Q: Send + 'static, A: Send + 'static> BlockingService<Q, A> {
    /// Starts the thread, named `name`. A panic of `answer` is as fatal as that of a supervised task.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn spawn(
        supervisor: &Supervisor,
        name: &'static str,
        mut answer: impl FnMut(Q) -> A + Send + 'static,
    ) -> io::Result<Self> {
        let (questions, mut queue) = mpsc::channel::<(Q, oneshot::Sender<A>)>(QUEUE);
        let (tell, state) = watch::channel(ServiceState::Idle);
        let (ended, end) = oneshot::channel();
        let serve = move || {
            while let Some((question, asker)) = queue.blocking_recv() {
                // Nobody waits for it any more.
                if asker.is_closed() {
                    continue;
                }
                tell.send_replace(ServiceState::InCall { since: Instant::now() });
                let answered = answer(question);
                tell.send_replace(ServiceState::Idle);
                let _ = asker.send(answered);
            }
        };
        let token = supervisor.thread_token();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _token = token;
            let _ = ended.send(catch_unwind(AssertUnwindSafe(serve)));
        })?;
        let supervised = supervisor.spawn_guarded(name, async move {
            if let Ok(Err(panic)) = end.await {
                resume_unwind(panic);
            }
            // The thread ends by itself only while the service is dropped, which ends this, too, a moment later.
            std::future::pending::<()>().await;
        });
        Ok(Self {
            questions,
            state,
            _supervised: supervised,
        })
    }

    /// Asks, and waits at most until `deadline` has passed, its turn included.
    ///
    /// # Errors
    /// There was no answer in time.
    pub async fn ask(&self, question: Q, deadline: Duration) -> Result<A, Hung> {
        let (asker, answer) = oneshot::channel();
        let asked = async {
            self.questions.send((question, asker)).await.ok()?;
            answer.await.ok()
        };
        let answered = tokio::time::timeout(deadline, asked).await;
        answered.ok().flatten().ok_or(Hung { deadline })
    }

    /// What the thread does now, and each change of it.
    pub fn state(&self) -> watch::Receiver<ServiceState> {
        self.state.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use super::{BlockingService, Hung, ServiceState};
    use crate::Supervisor;

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(20);

    fn supervisor() -> Supervisor {
        Supervisor::new(CancellationToken::new())
    }

    /// Hangs in each call until it is given a word, and tells which questions it was asked.
    struct Hanging {
        service: BlockingService<u32, u32>,
        release: mpsc::Sender<()>,
        asked: mpsc::Receiver<u32>,
    }

    fn hanging(supervisor: &Supervisor) -> Hanging {
        let (release, released) = mpsc::channel();
        let (tell, asked) = mpsc::channel();
        let service = BlockingService::spawn(supervisor, "hangs", move |question| {
            tell.send(question).unwrap();
            released.recv().unwrap();
            question * 2
        });
        Hanging {
            service: service.unwrap(),
            release,
            asked,
        }
    }

    impl Hanging {
        /// Asks, and gives up once the call has begun.
        async fn begin(&self, question: u32) {
            let mut state = self.service.state();
            let in_call = |state: &ServiceState| matches!(state, ServiceState::InCall { .. });
            tokio::select! {
                answer = self.service.ask(question, LONG) => panic!("{answer:?}"),
                began = state.wait_for(in_call) => drop(began.unwrap()),
            }
        }
    }

    #[tokio::test]
    async fn questions_are_answered_by_one_thread() {
        let mut sum = 0;
        let service = BlockingService::spawn(&supervisor(), "adds", move |addend: u32| {
            sum += addend;
            sum
        });
        let service = service.unwrap();
        assert_eq!(service.ask(2, LONG).await, Ok(2));
        assert_eq!(service.ask(3, LONG).await, Ok(5));
        assert_eq!(*service.state().borrow(), ServiceState::Idle);
    }

    #[tokio::test]
    async fn a_hung_call_costs_an_asker_its_deadline_only() {
        let hanging = hanging(&supervisor());
        hanging.begin(1).await;
        assert_eq!(hanging.service.ask(2, SHORT).await, Err(Hung { deadline: SHORT }));
        hanging.release.send(()).unwrap();
        let mut state = hanging.service.state();
        state.wait_for(|state| *state == ServiceState::Idle).await.unwrap();
        hanging.release.send(()).unwrap();
        assert_eq!(hanging.service.ask(3, LONG).await, Ok(6));
    }

    #[tokio::test]
    async fn abandoned_question_is_never_asked() {
        let hanging = hanging(&supervisor());
        hanging.begin(1).await;
        assert!(hanging.service.ask(2, SHORT).await.is_err());
        for _ in 0..2 {
            hanging.release.send(()).unwrap();
        }
        assert_eq!(hanging.service.ask(3, LONG).await, Ok(6));
        assert_eq!(hanging.asked.try_iter().collect::<Vec<_>>(), [1, 3]);
    }

    #[tokio::test]
    async fn thread_counts_until_its_call_ends() {
        let supervisor = supervisor();
        let hanging = hanging(&supervisor);
        hanging.begin(1).await;
        let Hanging {
            service,
            release,
            asked: _asked,
        } = hanging;
        drop(service);
        assert!(supervisor.has_threads());
        release.send(()).unwrap();
        while supervisor.has_threads() {
            tokio::task::yield_now().await;
        }
    }

    /// The thread is often through before whoever drops the service is: it has ended because it was asked to.
    #[tokio::test]
    async fn thread_that_ends_while_the_service_is_dropped_is_no_failure() {
        let supervisor = supervisor();
        let service = BlockingService::spawn(&supervisor, "unused", |(): ()| ());
        let BlockingService {
            questions, _supervised, ..
        } = service.unwrap();
        drop(questions);
        while supervisor.has_threads() {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        assert_eq!(supervisor.failure_now(), None);
    }

    #[tokio::test]
    async fn panic_ends_the_process_drop_does_not() {
        let supervisor = supervisor();
        let dropped = BlockingService::spawn(&supervisor, "unused", |(): ()| ());
        drop(dropped.unwrap());
        let service = BlockingService::spawn(&supervisor, "librados", |(): ()| -> () { panic!("no such pool") });
        let service = service.unwrap();
        assert!(service.ask((), LONG).await.is_err());
        let failure = supervisor.failure().await;
        assert_eq!(failure.to_string(), "task \"librados\" panicked: no such pool");
    }
}
