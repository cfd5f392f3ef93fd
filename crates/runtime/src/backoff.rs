//! Backing off from one object without holding up the others.

use std::collections::BTreeMap;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::saturating_add;

/// How long to stay away after a failure.
#[derive(Clone, Copy, Debug)]
pub struct BackoffPolicy {
    /// After the first failure.
    pub first: SignedDuration,
    /// The longest wait; each failure doubles the wait up to this.
    pub limit: SignedDuration,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        Self {
            first: SignedDuration::from_secs(1),
            limit: SignedDuration::from_mins(5),
        }
    }
}

/// Exponential backoff for each key, with jitter so that what failed together does not come back together.
/// It knows no clock: `now` comes with each call.
#[derive(Debug)]
pub struct Backoffs<K> {
    policy: BackoffPolicy,
    waiting: BTreeMap<K, Waiting>,
    random: fastrand::Rng,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    failures: u32,
    not_before: Timestamp,
}

impl<K: Ord> Backoffs<K> {
    /// Nothing waits.
    pub fn new(policy: BackoffPolicy) -> Self {
        Self {
            policy,
            waiting: BTreeMap::new(),
            random: fastrand::Rng::new(),
        }
    }

    /// As [`Backoffs::new`], with jitter that repeats.
    #[cfg(test)]
    pub fn with_seed(policy: BackoffPolicy, seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            ..Self::new(policy)
        }
    }

    /// Notes a failure and tells when to try again: the doubled wait less up to half of it, yet never before the
    /// server's `Retry-After`.
    pub fn failed(&mut self, key: K, now: Timestamp, retry_after: Option<SignedDuration>) -> Timestamp {
        let failures = self.attempts(&key).saturating_add(1);
        let exponential = doubled(self.policy.first, failures - 1).min(self.policy.limit);
        let jittered = exponential - exponential.mul_f64(0.5 * self.random.f64());
        let wait = retry_after.map_or(jittered, |floor| jittered.max(floor));
        let not_before = saturating_add(now, wait);
        self.waiting.insert(key, Waiting { failures, not_before });
        not_before
    }

    /// Forgets the key's failures.
    pub fn succeeded(&mut self, key: &K) {
        self.waiting.remove(key);
    }

    /// When the key may be tried again, if it has failed.
    pub fn not_before(&self, key: &K) -> Option<Timestamp> {
        self.waiting.get(key).map(|waiting| waiting.not_before)
    }

    /// How often the key has failed since it last succeeded.
    pub fn attempts(&self, key: &K) -> u32 {
        self.waiting.get(key).map_or(0, |waiting| waiting.failures)
    }

    /// Forgets the keys whose wait was over before this moment and that have not been tried since, or the map grows with
    /// every object that ever failed.
    pub fn forget_idle_since(&mut self, moment: Timestamp) {
        self.waiting.retain(|_, waiting| moment <= waiting.not_before);
    }
}

/// Delays of a loop that never gives up: doubling from `first`, with jitter, so that many processes do not come back in the
/// same instant; `longest` with its jitter.
pub(crate) fn endless_backoff(first: Duration, longest: Duration) -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(first)
        .with_max_delay(longest / 2)
        .with_jitter()
        .without_max_times()
        .build()
}

fn doubled(first: SignedDuration, times: u32) -> SignedDuration {
    2_i32
        .checked_pow(times)
        .and_then(|factor| first.checked_mul(factor))
        .unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use rstest::rstest;

    use super::{BackoffPolicy, Backoffs};

    const POLICY: BackoffPolicy = BackoffPolicy {
        first: SignedDuration::from_secs(1),
        limit: SignedDuration::from_secs(60),
    };

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn seconds(seconds: i64) -> SignedDuration {
        SignedDuration::from_secs(seconds)
    }

    #[rstest]
    #[case::first(1, 1)]
    #[case::second(2, 2)]
    #[case::fifth(5, 16)]
    #[case::capped(7, 60)]
    #[case::far_beyond_any_power(100, 60)]
    fn wait_doubles_to_limit_minus_jitter(#[case] failures: u32, #[case] most: i64) {
        for seed in 0..50 {
            let mut backoffs = Backoffs::with_seed(POLICY, seed);
            let mut not_before = now();
            for _ in 0..failures {
                not_before = backoffs.failed("pod", now(), None);
            }
            let wait = not_before.duration_since(now());
            assert!(wait <= seconds(most) && wait * 2 >= seconds(most), "{wait:?}");
        }
    }

    #[test]
    fn retry_after_is_a_floor() {
        let mut backoffs = Backoffs::with_seed(POLICY, 1);
        assert_eq!(backoffs.failed("pod", now(), Some(seconds(10))), now() + seconds(10));
        assert_eq!(backoffs.not_before(&"pod"), Some(now() + seconds(10)));
    }

    #[test]
    fn one_object_that_fails_does_not_hold_up_another() {
        let mut backoffs = Backoffs::with_seed(POLICY, 1);
        backoffs.failed("stuck", now(), None);
        assert!(backoffs.not_before(&"stuck").is_some_and(|at| now() < at));
        assert_eq!(backoffs.not_before(&"fine"), None);
    }

    #[test]
    fn success_forgets_every_failure() {
        let mut backoffs = Backoffs::with_seed(POLICY, 1);
        for _ in 0..5 {
            backoffs.failed("pod", now(), None);
        }
        backoffs.succeeded(&"pod");
        assert_eq!(backoffs.attempts(&"pod"), 0);
        assert!(backoffs.failed("pod", now(), None) <= now() + seconds(1));
    }

    #[test]
    fn idle_backoff_is_forgotten() {
        let mut backoffs = Backoffs::with_seed(POLICY, 1);
        let until = backoffs.failed("gone", Timestamp::UNIX_EPOCH, None);
        backoffs.forget_idle_since(until);
        assert_eq!(backoffs.attempts(&"gone"), 1);
        backoffs.forget_idle_since(until + SignedDuration::from_nanos(1));
        assert_eq!(backoffs.attempts(&"gone"), 0);
    }
}
