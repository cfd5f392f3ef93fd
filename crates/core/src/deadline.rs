//! Deadlines: a decision names the next moment at which it could come out differently, and the shell sleeps until then.

use jiff::{SignedDuration, Timestamp};

/// The earliest of the moments noted so far that lie in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequeueAt {
    now: Timestamp,
    at: Option<Timestamp>,
}

impl RequeueAt {
    /// Nothing noted yet.
    pub fn after(now: Timestamp) -> Self {
        Self { now, at: None }
    }

    /// Notes a moment; one that has passed needs no wake-up.
    pub fn note(&mut self, moment: impl Into<Option<Timestamp>>) {
        let later = moment.into().filter(|moment| self.now < *moment);
        self.at = self.at.into_iter().chain(later).min();
    }

    /// When to decide again; `None`: only when something changes.
    pub fn at(self) -> Option<Timestamp> {
        self.at
    }
}

/// `moment + wait`; a sum beyond the calendar is its end, so a wait that long never falls due.
pub fn saturating_add(moment: Timestamp, wait: SignedDuration) -> Timestamp {
    moment.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// Whether a deadline has come: due when `<= now`.
pub fn is_due(deadline: Timestamp, now: Timestamp) -> bool {
    deadline <= now
}

/// The moment without its fraction of a second, as the API server stores most times.
pub fn whole_second(moment: Timestamp) -> Timestamp {
    Timestamp::from_second(moment.as_second()).unwrap_or(moment)
}

/// A moment to the second in UTC, as Kubernetes writes its times and people read them (RFC 3339 without fractions).
pub fn to_the_second(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn requeue_keeps_the_earliest_future_moment() {
        let mut requeue_at = RequeueAt::after(at(100));
        for second in [50, 100, 300, 200, 250] {
            requeue_at.note(at(second));
        }
        assert_eq!(requeue_at.at(), Some(at(200)));
    }

    #[test]
    fn without_a_future_moment_there_is_no_wake_up() {
        let mut requeue_at = RequeueAt::after(at(100));
        requeue_at.note(at(100));
        assert_eq!(requeue_at.at(), None);
    }

    #[test]
    fn a_deadline_is_due_at_its_very_moment() {
        assert!(is_due(at(100), at(100)));
        assert!(!is_due(at(101), at(100)));
    }

    #[test]
    fn a_wait_beyond_the_calendar_never_falls_due() {
        assert_eq!(saturating_add(at(0), SignedDuration::MAX), Timestamp::MAX);
    }

    #[test]
    fn rounded_moment_is_never_in_the_future() {
        let moment: Timestamp = "2026-01-02T03:04:05.999999999Z".parse().unwrap();
        assert_eq!(to_the_second(moment), "2026-01-02T03:04:05Z");
    }
}
