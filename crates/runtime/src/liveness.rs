//! Whether the operator's loops still turn.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The loops behind `/livez`.
#[derive(Clone, Default)]
pub struct Liveness(Arc<Mutex<Vec<Weak<Loop>>>>);

struct Loop {
    name: &'static str,
    limit: Duration,
    pass_began: Mutex<Option<Instant>>,
}

/// A loop that has been in one pass for too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// Which loop.
    pub name: &'static str,
    /// For how long.
    pub since: Duration,
}

impl Liveness {
    /// Nothing is watched: alive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches a loop: a pass that takes longer than `limit` means that it hangs. Between passes it may rest for ever,
    /// for a loop with nothing to do is not dead. Dropping the handle ends the watch.
    pub fn watch(&self, name: &'static str, limit: Duration) -> Progress {
        let watched = Arc::new(Loop {
            name,
            limit,
            pass_began: Mutex::new(None),
        });
        let mut loops = self.0.lock();
        loops.retain(|known| known.strong_count() > 0);
        loops.push(Arc::downgrade(&watched));
        Progress(watched)
    }

    /// The loops that hang at `now`.
    pub fn stalled(&self, now: Instant) -> Vec<Stalled> {
        let loops = self.0.lock();
        loops
            .iter()
            .filter_map(Weak::upgrade)
            .filter_map(|watched| watched.stalled(now))
            .collect()
    }
}

impl Loop {
    fn stalled(&self, now: Instant) -> Option<Stalled> {
        let began = (*self.pass_began.lock())?;
        let since = now.saturating_duration_since(began);
        (since > self.limit).then_some(Stalled { name: self.name, since })
    }

    fn set(&self, began: Option<Instant>) {
        *self.pass_began.lock() = began;
    }
}

/// The handle of a watched loop.
pub struct Progress(Arc<Loop>);

impl Progress {
    /// Call at the top of each pass; the pass ends when the guard is dropped.
    pub fn begin_pass(&self) -> Pass<'_> {
        self.begin_pass_at(Instant::now())
    }

    /// As [`Progress::begin_pass`], for a pass that began before.
    pub fn begin_pass_at(&self, began: Instant) -> Pass<'_> {
        self.0.set(Some(began));
        Pass(&self.0)
    }
}

/// A pass under way.
#[must_use = "the pass ends when this is dropped"]
pub struct Pass<'a>(&'a Loop);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Liveness;

    const LIMIT: Duration = Duration::from_mins(1);

    #[test]
    fn a_pass_beyond_its_limit_is_a_stall() {
        let liveness = Liveness::new();
        let progress = liveness.watch("main loop", LIMIT);
        let pass = progress.begin_pass();
        assert_eq!(liveness.stalled(Instant::now()), []);
        let stalled = liveness.stalled(Instant::now() + LIMIT * 2);
        assert_eq!(
            stalled.iter().map(|stalled| stalled.name).collect::<Vec<_>>(),
            ["main loop"]
        );
        drop(pass);
        assert_eq!(liveness.stalled(Instant::now() + LIMIT * 2), []);
    }

    #[test]
    fn a_loop_at_rest_may_rest_for_ever() {
        let liveness = Liveness::new();
        let progress = liveness.watch("main loop", LIMIT);
        drop(progress.begin_pass());
        assert_eq!(liveness.stalled(Instant::now() + LIMIT * 1_000), []);
    }

    #[test]
    fn a_loop_that_is_gone_is_no_longer_watched() {
        let liveness = Liveness::new();
        let progress = liveness.watch("main loop", LIMIT);
        std::mem::forget(progress.begin_pass());
        drop(progress);
        assert_eq!(liveness.stalled(Instant::now() + LIMIT * 2), []);
    }
}
