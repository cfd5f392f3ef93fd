use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{Permits, Stop};
use crate::client::REQUESTS_AT_ONCE;
use crate::control::executor::Executor;
use crate::control::{Action, ActionResult};
use crate::leader::Leadership;
use crate::pause::{Pause, PauseState};

fn running() -> Pause {
    Pause::fixed(PauseState::Running)
}

const READ: Duration = Duration::from_millis(20);
const WRITE: Duration = Duration::from_millis(100);

/// What the API server receives.
#[derive(Default)]
struct Server {
    reads: Vec<Instant>,
    writes: Vec<Instant>,
    under_way: usize,
    most_under_way: usize,
}

impl Server {
    fn begin(&mut self) -> Instant {
        self.under_way += 1;
        self.most_under_way = self.most_under_way.max(self.under_way);
        Instant::now()
    }
}

/// Reads ahead, and then writes.
struct Forced(u32);

impl Action for Forced {
    type Key = u32;
    type Context = Arc<Mutex<Server>>;
    type Outcome = ActionResult;

    fn key(&self) -> u32 {
        self.0
    }

    async fn run(self, server: Self::Context, permits: Permits) -> ActionResult {
        let read = async {
            let began = server.lock().begin();
            server.lock().reads.push(began);
            sleep(READ).await;
            server.lock().under_way -= 1;
        };
        if let Err(stop) = permits.read_ahead(read).await {
            return stop.into();
        }
        let _permit = match permits.next_write().await {
            Ok(permit) => permit,
            Err(stop) => return stop.into(),
        };
        let began = server.lock().begin();
        server.lock().writes.push(began);
        sleep(WRITE).await;
        server.lock().under_way -= 1;
        ActionResult::Acted(())
    }
}

#[tokio::test(start_paused = true)]
async fn all_actions_read_before_any_writes() {
    let server = Arc::<Mutex<Server>>::default();
    let mut executor = Executor::new(Leadership::fixed(true), running(), false);
    let began = Instant::now();
    for key in 0..300 {
        executor.start(Forced(key), &server, Timestamp::UNIX_EPOCH);
    }
    assert_eq!(executor.finish().await.len(), 300);
    let server = server.lock();
    assert_eq!((server.reads.len(), server.writes.len()), (300, 300));
    assert!(server.reads.iter().max() <= server.writes.iter().min());
    // The last of 300 reads begins after as many full rounds as come before its own.
    let rounds = u32::try_from(299 / REQUESTS_AT_ONCE).unwrap();
    assert_eq!(server.reads.iter().max(), Some(&(began + READ * rounds)));
    assert_eq!(server.most_under_way, REQUESTS_AT_ONCE);
}

#[tokio::test]
async fn reads_ahead_need_permission_to_write() {
    let server = Arc::<Mutex<Server>>::default();
    let mut executor = Executor::new(Leadership::fixed(false), running(), false);
    executor.start(Forced(1), &server, Timestamp::UNIX_EPOCH);
    let ended = executor.finish().await;
    assert_eq!(ended[0].outcome, Some(ActionResult::Stopped(Stop::NotLeading)));
    assert_eq!(server.lock().reads.len(), 0);
}

/// As many as may at once read while the others wait for their slot.
#[tokio::test(start_paused = true)]
async fn lost_leadership_stops_queued_and_later_requests() {
    let server = Arc::<Mutex<Server>>::default();
    let (leadership, revoke) = Leadership::revocable();
    let mut executor = Executor::new(leadership, running(), false);
    for key in 0..30 {
        executor.start(Forced(key), &server, Timestamp::UNIX_EPOCH);
    }
    sleep(READ / 2).await;
    revoke();
    let ended = executor.finish().await;
    let stopped = |outcome: &Option<ActionResult>| *outcome == Some(ActionResult::Stopped(Stop::NotLeading));
    assert!(ended.iter().all(|ended| stopped(&ended.outcome)));
    let server = server.lock();
    assert_eq!((server.reads.len(), server.writes.len()), (REQUESTS_AT_ONCE, 0));
}
