//! Whether whoever leads finishes its passes: each replica reads it in the lease, and goes by its own clock.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use nodeward_api::planned_at::PlannedAt;
use nodeward_core::lease;
use parking_lot::Mutex;

/// The passes of whoever leads, as far as this process knows of them.
#[derive(Debug)]
pub(super) struct Passes {
    state: Mutex<State>,
    /// Whether a lease tells of them. Without election each process follows its own.
    is_elected: bool,
}

#[derive(Debug)]
struct State {
    /// How many this process has finished.
    finished: u64,
    /// What the lease said last.
    last: Option<PlannedAt>,
    /// When that came, or this process began.
    heard: Instant,
    /// For how long before that nobody had planned, by what the lease told at the first look.
    silent_before: Duration,
}

impl Passes {
    pub(super) fn new(is_elected: bool, now: Instant) -> Self {
        Self {
            is_elected,
            state: Mutex::new(State {
                finished: 0,
                last: None,
                heard: now,
                silent_before: Duration::ZERO,
            }),
        }
    }

    /// Notes that this process, which leads, has finished one.
    pub(super) fn finish(&self, now: Instant) {
        let mut state = self.state.lock();
        state.finished += 1;
        if !self.is_elected {
            state.heard = now;
        }
    }

    /// How many this process has finished.
    pub(super) fn finished(&self) -> u64 {
        self.state.lock().finished
    }

    /// Notes what the lease says, of which was `asked` then. At the first look whatever it says is new to this process, and
    /// `unrenewed_for` with what the API server knows of its writes tells how old it is.
    pub(super) fn read(&self, lease: &Lease, asked: Instant, first_look: Option<Duration>) {
        let planned = lease::planned(lease);
        let mut state = self.state.lock();
        if let Some(planned) = planned.filter(|planned| planned.is_of_present_term && state.last != Some(planned.at)) {
            state.last = Some(planned.at);
            (state.heard, state.silent_before) = (asked, Duration::ZERO);
        }
        if let Some(unrenewed_for) = first_look {
            let renewed_in_silence = planned.and_then(|planned| planned.silent_for()).unwrap_or_default();
            state.silent_before = unrenewed_for.saturating_add(renewed_in_silence);
        }
    }

    /// For how long nothing new has come, by this process's own clock.
    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.state.lock().heard)
    }

    /// The same, with what the lease told of the time before this process began.
    pub(super) fn silent_in_all(&self, now: Instant) -> Duration {
        let silent_before = self.state.lock().silent_before;
        self.silent_for(now).saturating_add(silent_before)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn lease(mark: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": { "name": "drain-lock", "annotations": { "nodeward.dev/planned-at": mark } },
            "spec": { "leaseTransitions": 3 },
        }))
        .unwrap()
    }

    fn second(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    /// A lease that is read each second says this; at the end nothing new has been heard for so long.
    #[rstest]
    #[case::new(&["3@1", "3@2"], 0)]
    #[case::standing_still(&["3@1", "3@2", "3@2", "3@2"], 2)]
    #[case::of_a_deposed_leader(&["3@1", "2@9"], 1)]
    #[case::garbage(&["planned", ""], 2)]
    #[case::of_whoever_counts_anew(&["3@9", "3@1"], 0)]
    fn leader_is_one_that_says_something_new(#[case] marks: &[&str], #[case] silent: u64) {
        let began = Instant::now();
        let passes = Passes::new(true, began);
        let mut now = began;
        for mark in marks {
            now += second(1);
            passes.read(&lease(mark), now, None);
            passes.finish(now);
        }
        assert_eq!(passes.silent_for(now), second(silent), "its own passes are not asked");
    }

    #[test]
    fn first_look_tells_of_the_time_before() {
        let began = Instant::now();
        let passes = Passes::new(true, began);
        passes.read(&lease("3@7"), began + second(1), Some(second(60)));
        let now = began + second(2);
        assert_eq!(
            (passes.silent_for(now), passes.silent_in_all(now)),
            (second(1), second(61))
        );
        passes.read(&lease("3@8"), now, None);
        assert_eq!(passes.silent_in_all(now), second(0));
    }

    #[test]
    fn without_election_own_passes_count() {
        let began = Instant::now();
        let passes = Passes::new(false, began);
        assert_eq!(passes.silent_for(began + second(5)), second(5));
        passes.finish(began + second(5));
        assert_eq!(passes.silent_for(began + second(6)), second(1));
    }
}
