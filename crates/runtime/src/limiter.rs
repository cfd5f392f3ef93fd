//! A shared limit on how much is done a minute.

use std::num::NonZeroU32;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::saturating_add;

/// A token bucket: at most `rate` actions a minute on average, and at most `rate` at once after a pause.
/// It knows no clock: `now` comes with each call, and a clock that steps back neither adds nor takes tokens.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: NonZeroU32,
    tokens: f64,
    filled_at: Timestamp,
}

const MINUTE_NANOS: f64 = 60e9;

impl TokenBucket {
    /// A full bucket of `rate` tokens, refilled at `rate` a minute.
    pub fn per_minute(rate: NonZeroU32, now: Timestamp) -> Self {
        Self {
            rate,
            tokens: f64::from(rate.get()),
            filled_at: now,
        }
    }

    /// Changes the rate; tokens above the new rate are lost.
    pub fn set_rate(&mut self, rate: NonZeroU32, now: Timestamp) {
        self.refill(now);
        self.rate = rate;
        self.tokens = self.tokens.min(f64::from(rate.get()));
    }

    /// Takes one token, or tells when one will be there.
    pub fn try_take(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        self.refill(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(saturating_add(now, self.time_for(1.0 - self.tokens)))
    }

    /// How many whole tokens may be taken now.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn available(&mut self, now: Timestamp) -> u32 {
        self.refill(now);
        self.tokens as u32
    }

    /// When the next token will be there; `None` if one is there now.
    pub fn next_at(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.refill(now);
        (self.tokens < 1.0).then(|| saturating_add(now, self.time_for(1.0 - self.tokens)))
    }

    /// Gives a token back that was taken for something that then did not happen.
    pub fn give_back(&mut self) {
        self.tokens = (self.tokens + 1.0).min(f64::from(self.rate.get()));
    }

    fn refill(&mut self, now: Timestamp) {
        let elapsed = now.duration_since(self.filled_at);
        self.filled_at = now;
        if elapsed.is_positive() {
            let minutes = elapsed.as_secs_f64() / 60.0;
            let capacity = f64::from(self.rate.get());
            self.tokens = minutes.mul_add(capacity, self.tokens).min(capacity);
        }
    }

    /// Rounded up to a whole nanosecond and one more, so that the token is there when the caller comes back.
    #[allow(clippy::cast_possible_truncation)]
    fn time_for(&self, tokens: f64) -> SignedDuration {
        SignedDuration::from_nanos((tokens * MINUTE_NANOS / f64::from(self.rate.get())).ceil() as i64 + 1_000)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use jiff::{SignedDuration, Timestamp};

    use super::TokenBucket;

    fn per_minute(rate: u32) -> (TokenBucket, Timestamp) {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        (TokenBucket::per_minute(NonZeroU32::new(rate).unwrap(), now), now)
    }

    fn seconds(seconds: i64) -> SignedDuration {
        SignedDuration::from_secs(seconds)
    }

    #[test]
    fn what_is_available_can_be_taken_and_no_more() {
        for rate in [1, 3, 30, 59] {
            let (mut bucket, start) = per_minute(rate);
            for second in 0..200 {
                let now = start + seconds(second);
                let available = bucket.available(now);
                assert_eq!(
                    bucket.next_at(now).is_none(),
                    available > 0,
                    "rate {rate}, second {second}"
                );
                if second % 7 == 0 {
                    assert_eq!(
                        (0..100).filter(|_| bucket.try_take(now).is_ok()).count(),
                        available as usize
                    );
                }
            }
        }
    }

    #[test]
    fn token_is_available_exactly_when_promised() {
        for rate in [1, 3, 7, 30, 59, 1000] {
            let (mut bucket, now) = per_minute(rate);
            while bucket.try_take(now).is_ok() {}
            let next = bucket.next_at(now).unwrap();
            assert_eq!(
                bucket.clone().available(next - SignedDuration::from_millis(1)),
                0,
                "rate {rate}"
            );
            assert_eq!(bucket.available(next), 1, "rate {rate}");
            assert_eq!(bucket.next_at(next), None);
        }
    }

    #[test]
    fn a_burst_is_the_rate_and_then_it_waits() {
        let (mut bucket, now) = per_minute(30);
        assert_eq!((0..100).filter(|_| bucket.try_take(now).is_ok()).count(), 30);
        let next = bucket.try_take(now).unwrap_err();
        assert!(next >= now + seconds(2) && next < now + seconds(3), "{next}");
    }

    #[test]
    fn the_promised_time_is_never_too_early() {
        for rate in [1, 3, 7, 30, 59, 1000] {
            let (mut bucket, mut now) = per_minute(rate);
            for _ in 0..5_000 {
                if let Err(next) = bucket.try_take(now) {
                    now = next;
                    assert_eq!(bucket.try_take(now), Ok(()), "rate {rate}");
                }
            }
        }
    }

    #[test]
    fn rate_never_exceeds_burst_plus_refill() {
        let (mut bucket, start) = per_minute(30);
        let taken = (0..600)
            .filter(|s| bucket.try_take(start + seconds(*s)).is_ok())
            .count();
        assert_eq!(taken, 30 + 299);
    }

    #[test]
    fn pause_saves_at_most_one_burst() {
        let (mut bucket, now) = per_minute(5);
        let later = now + seconds(86_400);
        assert_eq!((0..100).filter(|_| bucket.try_take(later).is_ok()).count(), 5);
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_away() {
        let (mut bucket, now) = per_minute(1);
        assert!(bucket.try_take(now).is_ok());
        assert!(bucket.try_take(now - seconds(3600)).is_err());
        assert!(bucket.try_take(now - seconds(3599)).is_err());
    }

    #[test]
    fn what_did_not_happen_can_be_given_back() {
        let (mut bucket, now) = per_minute(1);
        assert!(bucket.try_take(now).is_ok());
        bucket.give_back();
        assert!(bucket.try_take(now).is_ok());
        assert!(bucket.try_take(now).is_err());
    }
}
