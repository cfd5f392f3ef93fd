//! Moments and durations as the demo tells them: in seconds since an act began.

use std::time::Duration;

use jiff::Timestamp;

/// Moments become seconds of the demo's own clock, which began at `began`.
pub fn in_seconds(text: &str, began: Timestamp) -> String {
    let word = |word: &str| {
        let end = word.find('Z').map_or(0, |at| at + 1);
        let moment: Option<Timestamp> = word.get(..end).and_then(|text| text.parse().ok());
        // Written to the second, the rest cut off: what is announced never comes earlier than it was told.
        let since = moment.map(|moment| moment.duration_since(began).as_secs_f64().floor().max(0.0));
        since.map_or_else(|| word.to_owned(), |since| format!("{since:.0} s{}", &word[end..]))
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// A duration as the margin shows it.
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f32())
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;

    use super::*;

    #[test]
    fn moments_are_told_in_seconds_of_the_demo() {
        let began: Timestamp = "2026-11-21T11:09:00Z".parse().unwrap();
        let began = began.checked_add(500.milliseconds()).unwrap();
        assert_eq!(in_seconds("at 2026-11-21T11:09:31Z: evict", began), "at 30 s: evict");
        assert_eq!(
            in_seconds("(grace until 2026-11-21T11:09:10Z)", began),
            "(grace until 9 s)"
        );
        assert_eq!(in_seconds("(PDB Z/Zoo) Zed", began), "(PDB Z/Zoo) Zed");
    }
}
