//! Work that takes long, done beside the threads that answer: one piece at a time, so that however many ask for it, the
//! eviction webhook still answers in time.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::protocol::{Kind, Problem};

/// One piece of work at a time.
#[derive(Debug, Clone, Default)]
pub struct SingleFlight(Arc<Mutex<()>>);

impl SingleFlight {
    /// Does this piece of work, unless another is under way.
    ///
    /// # Errors
    /// Another is under way, or this one has failed: ask again.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
        let Ok(turn) = Arc::clone(&self.0).try_lock_owned() else {
            let busy = "another answer of this kind is being worked out: ask again in a moment";
            return Err(Problem::new(Kind::NotReady, busy));
        };
        // The turn goes with the work, which ends by itself: a client that hangs up does not make room for the next.
        let work = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        work.await.map_err(|error| {
            tracing::error!(%error, "an answer could not be worked out");
            Problem::new(
                Kind::NotReady,
                "the answer could not be worked out; the server's log says why",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn concurrent_request_is_told_to_ask_again() {
        let flight = SingleFlight::default();
        let (begun, has_begun) = mpsc::channel();
        let (finish, is_to_finish) = mpsc::channel::<()>();
        let (other, first) = (flight.clone(), flight.clone());
        let first = tokio::spawn(async move {
            let work = move || {
                begun.send(()).unwrap();
                is_to_finish.recv().is_ok()
            };
            first.run(work).await
        });
        // The one thread of this test is free meanwhile.
        while has_begun.try_recv().is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let told = other.run(|| ()).await.unwrap_err();
        assert_eq!(told.kind, Kind::NotReady);
        assert!(told.value.contains("ask again"), "{}", told.value);
        finish.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Ok(true));
        assert_eq!(other.run(|| 7).await, Ok(7));
    }

    #[tokio::test]
    async fn hung_up_client_keeps_its_flight() {
        let flight = SingleFlight::default();
        let (begun, has_begun) = mpsc::channel();
        let (finish, is_to_finish) = mpsc::channel::<()>();
        let first = flight.clone();
        let hangs_up = tokio::spawn(async move {
            let work = move || {
                begun.send(()).unwrap();
                let _ = is_to_finish.recv();
            };
            first.run(work).await
        });
        while has_begun.try_recv().is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        hangs_up.abort();
        let _ = hangs_up.await;
        assert_eq!(flight.run(|| ()).await.unwrap_err().kind, Kind::NotReady);
        finish.send(()).unwrap();
        while flight.run(|| ()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn failed_work_is_told_and_isolated() {
        let flight = SingleFlight::default();
        let told: Result<(), Problem> = flight.run(|| panic!("a fault of this test's own")).await;
        assert_eq!(told.unwrap_err().kind, Kind::NotReady);
        assert_eq!(flight.run(|| 7).await, Ok(7));
    }
}
