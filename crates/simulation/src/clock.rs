//! Virtual time: milliseconds since the start of a run.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::saturating_add;

/// Milliseconds since the start of a run.
pub type Millis = i64;

pub const SECOND: Millis = 1_000;
pub const MINUTE: Millis = 60 * SECOND;

/// 2026-01-01T12:00:00Z.
const START: Timestamp = Timestamp::constant(1_767_268_800, 0);

/// Where the monotonic clock begins: only differences of it are ever read.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// By the wall clock.
pub fn timestamp(at: Millis) -> Timestamp {
    saturating_add(START, SignedDuration::from_millis(at))
}

/// As the API server stores times: in whole seconds.
pub fn stored(at: Millis) -> Timestamp {
    timestamp(at - at.rem_euclid(SECOND))
}

/// By the monotonic clock.
pub fn instant(at: Millis) -> Instant {
    *ORIGIN + Duration::from_millis(at.unsigned_abs())
}

/// The first moment of a run that is not before `at`.
pub fn millis(at: Timestamp) -> Millis {
    let since = at.duration_since(START);
    let part = i64::from(since.subsec_nanos() % 1_000_000 > 0);
    Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX / 2) + part
}
