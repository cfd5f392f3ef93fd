//! How long something has lasted, whatever happens to the wall clock: one that is stepped makes nothing older or younger.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::saturating_add;

use crate::observations::Moment;

/// The clocks may drift apart by so much before that is a step: NTP slews both alike.
const STEP: SignedDuration = SignedDuration::from_secs(2);

/// Both are read within this.
const READ_WITHIN: Duration = Duration::from_millis(500);

/// Compares the wall clock with the monotonic one. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct SteadyClock(Arc<Mutex<Comparison>>);

#[derive(Debug)]
struct Comparison {
    began: (Timestamp, Instant),
    /// By how much the wall clock has been stepped since.
    stepped_by: SignedDuration,
    stepped_at: Option<Instant>,
}

impl SteadyClock {
    pub(super) fn new() -> Self {
        Self::beginning(Timestamp::now(), Instant::now())
    }

    fn beginning(wall: Timestamp, monotonic: Instant) -> Self {
        Self(Arc::new(Mutex::new(Comparison {
            began: (wall, monotonic),
            stepped_by: SignedDuration::ZERO,
            stepped_at: None,
        })))
    }

    /// Now.
    pub(super) fn now(&self) -> Moment {
        loop {
            let (monotonic, wall) = (Instant::now(), Timestamp::now());
            // Being held up between the two is no step.
            if monotonic.elapsed() < READ_WITHIN {
                return self.moment(wall, monotonic);
            }
        }
    }

    fn moment(&self, wall: Timestamp, monotonic: Instant) -> Moment {
        let mut comparison = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (wall_began, monotonic_began) = comparison.began;
        let lasted = monotonic.saturating_duration_since(monotonic_began);
        let lasted = SignedDuration::try_from(lasted).unwrap_or(SignedDuration::MAX);
        let stepped_by = wall.duration_since(saturating_add(wall_began, lasted));
        let step = stepped_by - comparison.stepped_by;
        if step.abs() >= STEP {
            tracing::warn!(
                seconds = step.as_secs(),
                "the clock was stepped: nothing is started for a while"
            );
            comparison.stepped_by = stepped_by;
            comparison.stepped_at = Some(monotonic);
        }
        Moment {
            now: wall,
            stepped_by: comparison.stepped_by,
        }
    }

    /// How long ago the wall clock was stepped, if it was.
    pub(super) fn last_step(&self) -> Option<SignedDuration> {
        let comparison = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        SignedDuration::try_from(comparison.stepped_at?.elapsed()).ok()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[rstest]
    #[case::forward(4600, 3600)]
    #[case::backward(900, -100)]
    #[case::drift(1001, 0)]
    fn step_is_the_difference_of_the_clocks(#[case] wall: i64, #[case] stepped_by: i64) {
        let began = Instant::now();
        let clock = SteadyClock::beginning(at(990), began);
        let monotonic = began + Duration::from_secs(10);
        assert_eq!(clock.moment(at(1000), monotonic).stepped_by, SignedDuration::ZERO);
        assert_eq!(clock.last_step(), None);
        let moment = clock.moment(at(wall), monotonic);
        assert_eq!(moment.stepped_by, SignedDuration::from_secs(stepped_by));
        assert_eq!(clock.last_step().is_some(), stepped_by != 0);
        let later = clock.moment(at(wall + 60), monotonic + Duration::from_mins(1));
        assert_eq!(later.stepped_by, moment.stepped_by, "it is one step");
    }
}
