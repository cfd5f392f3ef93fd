//! Sleeping until a wall-clock deadline.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// How long to sleep at most before looking at the wall clock again: it may be stepped while we sleep.
const LONGEST_NAP: Duration = Duration::from_secs(30);

/// Returns once the wall clock shows `deadline` or later; never returns for `None`.
/// Safe to drop and call again, so it fits `tokio::select!`.
pub async fn sleep_until(deadline: Option<Timestamp>) {
    let Some(deadline) = deadline else {
        return std::future::pending().await;
    };
    loop {
        let left = deadline.duration_since(Timestamp::now());
        if left <= SignedDuration::ZERO {
            return;
        }
        tokio::time::sleep(left.unsigned_abs().min(LONGEST_NAP)).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use jiff::{SignedDuration, Timestamp};

    use super::sleep_until;

    #[tokio::test]
    async fn a_deadline_in_the_past_is_due_at_once() {
        let past = Timestamp::now() - SignedDuration::from_secs(5);
        assert!(sleep_until(Some(past)).now_or_never().is_some());
    }

    #[tokio::test]
    async fn without_a_deadline_there_is_nothing_to_wake_for() {
        assert!(sleep_until(None).now_or_never().is_none());
    }

    #[tokio::test]
    async fn it_never_returns_before_the_deadline() {
        let deadline = Timestamp::now() + SignedDuration::from_millis(20);
        sleep_until(Some(deadline)).await;
        assert!(Timestamp::now() >= deadline);
    }
}
