//! How long a feed waits before it tries again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);

/// Short enough that an operator is not blind for long after the API server has come back.
const LONGEST: Duration = Duration::from_secs(15);

/// Doubles with each use, between half and the whole of the step, so that the watches of one process, and the processes
/// of one cluster, do not all come back in the same instant.
#[derive(Debug)]
pub(super) struct Pause {
    step: Duration,
}

impl Default for Pause {
    fn default() -> Self {
        Self { step: FIRST }
    }
}

impl Pause {
    pub(super) fn next(&mut self) -> Duration {
        let step = self.step;
        self.step = (step * 2).min(LONGEST);
        step.mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    pub(super) fn reset(&mut self) {
        self.step = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{FIRST, LONGEST, Pause};

    #[test]
    fn it_grows_to_its_limit_and_starts_over_after_success() {
        let mut pause = Pause::default();
        assert!(pause.next() <= FIRST);
        let total: Duration = (0..20).map(|_| pause.next()).sum();
        assert!(total >= LONGEST * 6 && pause.next() <= LONGEST);
        pause.reset();
        assert!(pause.next() <= FIRST);
    }
}
