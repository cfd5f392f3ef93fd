//! Until when this process may act as the leader, by clocks that nobody else can move.

use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

/// A deadline on the monotonic clock, and the same on the wall clock: the monotonic one stands still while the machine is
/// suspended, the wall clock does not.
#[derive(Debug)]
pub(super) struct Deadline(Mutex<Until>);

#[derive(Clone, Copy, Debug)]
enum Until {
    Passed,
    At { monotonic: Instant, wall: SystemTime },
    Never,
}

impl Deadline {
    pub(super) fn passed() -> Self {
        Self(Mutex::new(Until::Passed))
    }

    pub(super) fn never() -> Self {
        Self(Mutex::new(Until::Never))
    }

    /// Moves the deadline to `term` after `from`, a moment at which nothing had been asked of the server yet.
    pub(super) fn extend(&self, from: ClockReading, term: Duration) {
        self.set(Until::At {
            monotonic: from.monotonic + term,
            wall: from.wall + term,
        });
    }

    pub(super) fn expire(&self) {
        self.set(Until::Passed);
    }

    pub(super) fn is_ahead(&self) -> bool {
        self.is_ahead_of(ClockReading::now())
    }

    pub(super) fn at(&self) -> Option<Instant> {
        match self.get() {
            Until::At { monotonic, .. } => Some(monotonic),
            Until::Passed | Until::Never => None,
        }
    }

    fn is_ahead_of(&self, now: ClockReading) -> bool {
        match self.get() {
            Until::Passed => false,
            Until::Never => true,
            Until::At { monotonic, wall } => now.monotonic < monotonic && now.wall < wall,
        }
    }

    fn get(&self) -> Until {
        *self.0.lock()
    }

    fn set(&self, until: Until) {
        *self.0.lock() = until;
    }
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    pub(super) monotonic: Instant,
    wall: SystemTime,
}

impl ClockReading {
    pub(super) fn now() -> Self {
        Self {
            monotonic: Instant::now(),
            wall: SystemTime::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ClockReading, Deadline};

    const TERM: Duration = Duration::from_secs(10);

    #[test]
    fn deadline_counts_from_the_requests_start() {
        let deadline = Deadline::passed();
        let asked = ClockReading::now();
        deadline.extend(asked, TERM);
        assert_eq!(deadline.at(), Some(asked.monotonic + TERM));
        assert!(deadline.is_ahead());
    }

    #[test]
    fn it_has_passed_at_its_own_moment() {
        let deadline = Deadline::passed();
        let asked = ClockReading::now();
        deadline.extend(asked, TERM);
        assert!(!deadline.is_ahead_of(ClockReading {
            monotonic: asked.monotonic + TERM,
            ..asked
        }));
    }

    #[test]
    fn deadline_passes_while_the_machine_is_suspended() {
        let deadline = Deadline::passed();
        let asked = ClockReading::now();
        deadline.extend(asked, TERM);
        assert!(!deadline.is_ahead_of(ClockReading {
            wall: asked.wall + TERM,
            ..asked
        }));
    }

    #[test]
    fn without_election_there_is_no_deadline() {
        assert!(Deadline::never().is_ahead());
        assert!(!Deadline::passed().is_ahead());
    }
}
