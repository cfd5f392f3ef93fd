//! When a failing watch is worth a line in the log.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// One failure is an API server that restarts behind its load balancer; so many in a row are an outage.
const FAILURES: u32 = 3;

/// The names of the caches that are cut off. A hundred caches of one name are one line, not a hundred.
#[derive(Clone, Debug, Default)]
pub(super) struct WatchFailureLogs(Arc<Mutex<BTreeSet<&'static str>>>);

/// What one watch goes through.
#[derive(Debug)]
pub(super) struct WatchFailureLog {
    all: WatchFailureLogs,
    cache: &'static str,
    in_a_row: u32,
}

impl WatchFailureLogs {
    pub(super) fn of(&self, cache: &'static str) -> WatchFailureLog {
        WatchFailureLog {
            all: self.clone(),
            cache,
            in_a_row: 0,
        }
    }
}

impl WatchFailureLog {
    /// Whether this failure begins an outage that nobody has told of.
    pub(super) fn begins(&mut self) -> bool {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.in_a_row == FAILURES && self.all.0.lock().insert(self.cache)
    }

    /// The server answered: whether that ends an outage that was told of.
    pub(super) fn ends(&mut self) -> bool {
        let in_a_row = std::mem::take(&mut self.in_a_row);
        in_a_row >= FAILURES && self.all.0.lock().remove(self.cache)
    }
}

#[cfg(test)]
mod tests {
    use super::WatchFailureLogs;

    #[test]
    fn outage_and_its_end_are_logged_once_per_name() {
        let outages = WatchFailureLogs::default();
        let (mut one, mut two, mut other) = (outages.of("pods"), outages.of("pods"), outages.of("nodes"));
        assert!(!one.begins() && !one.begins() && one.begins() && !one.begins());
        assert!(!(0..9).any(|_| two.begins()), "told already");
        assert_eq!((0..9).filter(|_| other.begins()).count(), 1);
        assert!(one.ends() && !two.ends());
        assert!(!one.ends());
    }

    #[test]
    fn a_failure_that_passes_is_not_worth_a_line() {
        let mut outage = WatchFailureLogs::default().of("nodes");
        for _ in 0..9 {
            assert!(!outage.begins() && !outage.begins());
            assert!(!outage.ends());
        }
    }
}
