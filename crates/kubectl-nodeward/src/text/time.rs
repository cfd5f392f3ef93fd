//! Times as people read them. All moments are in UTC, as in Kubernetes' own output.

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::to_the_second;

/// A duration in its two greatest units: `45s`, `4m10s`, `3h5m`, `2d3h`. A negative one is 0.
pub fn span(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let two = |great: i64, unit: char, small: i64, small_unit: char| match small {
        0 => format!("{great}{unit}"),
        _ => format!("{great}{unit}{small}{small_unit}"),
    };
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes @ ..10) => two(minutes, 'm', seconds % 60, 's'),
        (0, 0, minutes) => format!("{minutes}m"),
        (0, hours, _) => two(hours, 'h', minutes, 'm'),
        (days, ..) => two(days, 'd', hours, 'h'),
    }
}

/// How long ago, without a word for it: the usual AGE column.
pub fn age(moment: Timestamp, now: Timestamp) -> String {
    span(now.duration_since(moment))
}

/// `4m ago`, `in 12m` or `now`.
pub fn distance(moment: Timestamp, now: Timestamp) -> String {
    let ahead = moment.duration_since(now);
    match ahead.as_secs() {
        0 => "now".to_owned(),
        1.. => format!("in {}", span(ahead)),
        _ => format!("{} ago", span(-ahead)),
    }
}

/// `10:45:00Z (4m ago)`, with the date if it is another day's.
pub fn moment(moment: Timestamp, now: Timestamp) -> String {
    let text = to_the_second(moment);
    let clock = match text.split_once('T') {
        Some((date, clock)) if to_the_second(now).starts_with(date) => clock.to_owned(),
        _ => text,
    };
    format!("{clock} ({})", distance(moment, now))
}

/// The moment, if it is still to come: of one that has passed nothing is promised.
pub fn ahead(at: Option<Timestamp>, now: Timestamp) -> Option<String> {
    at.filter(|at| *at > now).map(|at| moment(at, now))
}

/// The time of day, for a line of a log.
pub fn clock(moment: Timestamp) -> String {
    moment.strftime("%H:%M:%S").to_string()
}

/// The text with every moment in it followed by its distance. For conditions of nodes, whose message is all that the API
/// carries.
pub fn with_distances(text: &str, now: Timestamp) -> String {
    let word = |word: &str| {
        let time = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let parsed = time.parse::<Timestamp>().ok().filter(|_| time.ends_with('Z'));
        parsed.map(|found| moment(found, now) + &word[time.len()..])
    };
    let words = text
        .split(' ')
        .map(|text| word(text).unwrap_or_else(|| text.to_owned()));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[rstest]
    #[case(-5, "0s")]
    #[case(59, "59s")]
    #[case(60, "1m")]
    #[case(250, "4m10s")]
    #[case(659, "10m")]
    #[case(3_600, "1h")]
    #[case(11_100, "3h5m")]
    #[case(86_400, "1d")]
    #[case(183_600, "2d3h")]
    fn span_has_its_two_greatest_units(#[case] seconds: i64, #[case] text: &str) {
        assert_eq!(span(SignedDuration::from_secs(seconds)), text);
    }

    #[rstest]
    #[case("2026-01-01T10:00:00Z", "10:00:00Z (now)")]
    #[case("2026-01-01T10:12:00.5Z", "10:12:00Z (in 12m)")]
    #[case("2026-01-01T09:56:00Z", "09:56:00Z (4m ago)")]
    #[case("2025-12-31T10:00:00Z", "2025-12-31T10:00:00Z (1d ago)")]
    fn moment_tells_its_distance(#[case] moment_: &str, #[case] text: &str) {
        assert_eq!(moment(at(moment_), at("2026-01-01T10:00:00Z")), text);
    }

    #[rstest]
    #[case("Delete at 2026-01-01T10:12:00Z: evict it", "Delete at 10:12:00Z (in 12m): evict it")]
    #[case("2026-01-01T10:12:00Z", "10:12:00Z (in 12m)")]
    #[case("pod 2026-01-01-x, 7 of 9", "pod 2026-01-01-x, 7 of 9")]
    #[case("1234567890T12345678Z é", "1234567890T12345678Z é")]
    #[case("2026-01-01T10:12:0é", "2026-01-01T10:12:0é")]
    fn moments_within_a_text_tell_their_distance(#[case] text: &str, #[case] told: &str) {
        assert_eq!(with_distances(text, at("2026-01-01T10:00:00Z")), told);
    }
}
