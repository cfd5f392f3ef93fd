//! How often what is for people is written: while a hundred pods leave, the status of a drain would change with each of them.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::{is_due, saturating_add};

/// When each object was written last.
#[derive(Debug)]
pub struct WritePace {
    /// The shortest time between two writes of one.
    interval: SignedDuration,
    written: BTreeMap<String, Timestamp>,
}

impl WritePace {
    pub fn new(interval: SignedDuration) -> Self {
        Self {
            interval,
            written: BTreeMap::new(),
        }
    }

    /// Notes a write that may be made now; or answers when it may.
    pub fn write(&mut self, name: &str, now: Timestamp) -> Result<(), Timestamp> {
        let interval = self.interval;
        // One of later than now is of before the wall clock stepped back.
        self.written
            .retain(|_, written| *written <= now && !is_due(saturating_add(*written, interval), now));
        if let Some(written) = self.written.get(name) {
            return Err(saturating_add(*written, interval));
        }
        self.written.insert(name.to_owned(), now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture::now;

    #[test]
    fn a_status_is_written_once_a_second() {
        let mut pace = WritePace::new(SignedDuration::from_secs(1));
        let at = |millis| saturating_add(now(), SignedDuration::from_millis(millis));
        assert_eq!(pace.write("a", at(0)), Ok(()));
        assert_eq!(pace.write("b", at(0)), Ok(()));
        assert_eq!(pace.write("a", at(999)), Err(at(1000)));
        assert_eq!(pace.write("a", at(1000)), Ok(()));
        assert_eq!(
            pace.write("a", at(1500)),
            Err(at(2000)),
            "it counts from the last write"
        );
    }

    #[test]
    fn clock_that_steps_back_delays_no_status() {
        let mut pace = WritePace::new(SignedDuration::from_secs(1));
        assert_eq!(pace.write("a", now()), Ok(()));
        let back = saturating_add(now(), -SignedDuration::from_hours(1));
        assert_eq!(pace.write("a", back), Ok(()));
    }
}
