//! Times without a leader. Nobody looked after the drains then, and the webhook let everybody evict: no deadline ran.

use jiff::{SignedDuration, Timestamp};

use super::{Leaderless, Ledger};
use crate::deadline::saturating_add;

/// How many are kept: more than any claim should live through.
const KEPT: usize = 16;

impl Ledger {
    /// Notes a time without a leader, and forgets those that concern no claim. Noted again, it changes nothing; two that
    /// overlap, such as a pause and an outage during it, are one, for no deadline stands still twice.
    pub fn note_leaderless(&mut self, time: Leaderless) {
        let is_known = |known: &Leaderless| known.from <= time.from && time.to.as_second() <= known.to.as_second();
        let oldest = self.claims.iter().map(|claim| claim.queued_at.min(claim.since)).min();
        let concerns = |time: &Leaderless| oldest.is_some_and(|oldest| oldest < time.to);
        if !concerns(&time) || self.leaderless.iter().any(is_known) {
            return;
        }
        self.leaderless.retain(concerns);
        let overlaps = |known: &mut Leaderless| known.from <= time.to && time.from <= known.to;
        let union = self
            .leaderless
            .extract_if(.., overlaps)
            .fold(time, |union, known| Leaderless {
                from: union.from.min(known.from),
                to: union.to.max(known.to),
            });
        self.leaderless.push(union);
        let excess = self.leaderless.len().saturating_sub(KEPT);
        self.leaderless.drain(..excess);
    }
}

/// When a time that `began` is over, if it stands still while nobody leads.
pub fn until(began: Timestamp, lasts: SignedDuration, leaderless: &[Leaderless]) -> Timestamp {
    let end = saturating_add(began, lasts);
    leaderless.iter().fold(end, |end, time| {
        if began < time.to && time.from < end {
            saturating_add(
                end,
                time.to.duration_since(time.from.max(began)).max(SignedDuration::ZERO),
            )
        } else {
            end
        }
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(1_767_261_600 + 60 * minute).unwrap()
    }

    fn time(from: i64, to: i64) -> Leaderless {
        Leaderless {
            from: at(from),
            to: at(to),
        }
    }

    #[rstest]
    #[case::none(&[], 10)]
    #[case::before(&[(-20, -10)], 10)]
    #[case::after(&[(10, 20)], 10)]
    #[case::within(&[(4, 7)], 13)]
    #[case::over_its_end(&[(8, 30)], 32)]
    #[case::over_its_begin(&[(-5, 3)], 13)]
    #[case::second_falls_into_what_the_first_added(&[(4, 8), (12, 15)], 17)]
    #[case::second_comes_too_late(&[(4, 8), (14, 20)], 14)]
    #[case::clock_that_went_back(&[(5, 3)], 10)]
    fn deadline_stands_still_without_a_leader(#[case] times: &[(i64, i64)], #[case] expected: i64) {
        let times: Vec<Leaderless> = times.iter().map(|(from, to)| time(*from, *to)).collect();
        assert_eq!(until(at(0), SignedDuration::from_mins(10), &times), at(expected));
    }

    #[test]
    fn overlapping_times_are_one() {
        let mut ledger = Ledger::default();
        ledger.enqueue("node-1", "uid-1", false, at(0));
        for (from, to) in [(10, 20), (12, 18), (15, 25), (40, 50), (5, 11)] {
            ledger.note_leaderless(time(from, to));
        }
        assert_eq!(ledger.leaderless, [time(40, 50), time(5, 25)]);
    }

    #[test]
    fn only_times_that_concern_a_claim_are_kept() {
        let mut ledger = Ledger::default();
        ledger.note_leaderless(time(0, 5));
        assert_eq!(ledger.leaderless, [], "nobody waits");
        ledger.enqueue("node-1", "uid-1", false, at(10));
        ledger.note_leaderless(time(12, 15));
        ledger.note_leaderless(time(12, 15));
        assert_eq!(ledger.leaderless, [time(12, 15)]);
        ledger.claims[0].queued_at = at(20);
        ledger.claims[0].since = at(20);
        ledger.note_leaderless(time(22, 25));
        assert_eq!(ledger.leaderless, [time(22, 25)]);
        for minute in 30..60 {
            ledger.note_leaderless(time(2 * minute, 2 * minute + 1));
        }
        assert_eq!((ledger.leaderless.len(), ledger.leaderless[0]), (KEPT, time(88, 89)));
    }
}
