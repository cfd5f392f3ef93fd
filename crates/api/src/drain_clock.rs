//! When a node's drain began, kept on the Node, so that a restart or a second leader goes on from the API alone.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::annotation::DRAIN_CLOCK;

/// Value of the Node annotation [`crate::annotation::DRAIN_CLOCK`]: when the node's drain began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainClock {
    /// When the drain began: every deadline counts from here.
    pub start: Timestamp,
    /// What `start` was read from.
    pub from: ClockSource,
    /// The node's boot when the clock started; another boot means that the drain did its work.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// `timeAdded` of the cordon that this clock covers, where it has one; another means that the node was uncordoned and
    /// cordoned again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordoned_at: Option<Timestamp>,
    /// When the node was uncordoned; a cordon within the flap tolerance continues this clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncordoned_at: Option<Timestamp>,
    /// Since when the drain waits for its turn in drain-lock. Once it goes on, `start` moves forward by as much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_at: Option<Timestamp>,
    /// The drain has ended (the node booted anew while cordoned): the next cordon is a new drain however soon it comes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// The drain-keeper that wrote it, by the namespace and name of its lease; absent in clocks of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<String>,
}

impl DrainClock {
    /// The same clock once the drain goes on at `now`: it was suspended from when it waited and would have run.
    #[must_use]
    pub fn resumed(&self, now: Timestamp) -> Self {
        let Some(since) = self.suspended_at else {
            return self.clone();
        };
        let suspended = now.duration_since(since.max(self.start));
        let running = Self {
            suspended_at: None,
            ..self.clone()
        };
        match self.start.checked_add(suspended) {
            Ok(start) if suspended.is_positive() => Self {
                start,
                from: ClockSource::Gate,
                ..running
            },
            _ => running,
        }
    }

    /// The clock among a Node's annotations; `None` where no drain of it is timed.
    ///
    /// # Errors
    /// When the annotation is there and not the JSON that [`DrainClock`]'s `Display` writes.
    pub fn of(annotations: &BTreeMap<String, String>) -> Option<Result<Self, serde_json::Error>> {
        annotations.get(DRAIN_CLOCK).map(|value| Self::parse(value))
    }

    /// Reads the annotation's value.
    ///
    /// # Errors
    /// When it is not the JSON that [`DrainClock`]'s `Display` writes.
    pub fn parse(value: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(value)
    }
}

impl fmt::Display for DrainClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// What the start of a drain's clock was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClockSource {
    /// `timeAdded` of the cordon's taint.
    Taint,
    /// The taint has no `timeAdded`: when drain-keeper first saw the cordon.
    FirstSeen,
    /// The upgrade began after the cordon.
    Upgrade,
    /// The node was cordoned before, and only then became part of an upgrade or a drain; or the drain had to wait for its turn
    /// meanwhile.
    Gate,
    /// The node booted anew while cordoned.
    Reboot,
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[rstest]
    #[case(
        DrainClock { start: at("2026-01-01T00:00:00Z"), from: ClockSource::Taint, boot_id: "b".to_owned(), cordoned_at: None, uncordoned_at: None, suspended_at: None, ended: false, writer: None },
        r#"{"start":"2026-01-01T00:00:00Z","from":"Taint","bootID":"b"}"#
    )]
    #[case(
        DrainClock {
            start: at("2026-01-01T00:00:00Z"), from: ClockSource::Reboot, boot_id: String::new(),
            cordoned_at: Some(at("2026-01-01T00:30:00Z")), uncordoned_at: Some(at("2026-01-01T01:00:00Z")),
            suspended_at: Some(at("2026-01-01T00:50:00Z")), ended: true, writer: Some("nodeward-system/drain-keeper".to_owned()),
        },
        r#"{"start":"2026-01-01T00:00:00Z","from":"Reboot","bootID":"","cordonedAt":"2026-01-01T00:30:00Z","uncordonedAt":"2026-01-01T01:00:00Z","suspendedAt":"2026-01-01T00:50:00Z","ended":true,"writer":"nodeward-system/drain-keeper"}"#
    )]
    fn a_drain_clock_is_the_json_that_other_versions_read(#[case] clock: DrainClock, #[case] text: &str) {
        assert_eq!(clock.to_string(), text);
        assert_eq!(DrainClock::parse(text).unwrap(), clock);
    }

    #[rstest]
    #[case("")]
    #[case("{}")]
    #[case(r#"{"start":"yesterday","from":"Taint","bootID":"b"}"#)]
    #[case(r#"{"start":"2026-01-01T00:00:00Z","from":"Guess","bootID":"b"}"#)]
    #[case(r#"{"start":1,"from":"Taint","bootID":"b"}"#)]
    #[case("null")]
    fn nonsense_in_the_annotation_is_an_error(#[case] text: &str) {
        assert!(DrainClock::parse(text).is_err());
    }

    #[test]
    fn the_clock_is_read_from_its_own_annotation_alone() {
        let text = r#"{"start":"2026-01-01T00:00:00Z","from":"Taint","bootID":"b"}"#;
        let of = |key: &str, value: &str| DrainClock::of(&BTreeMap::from([(key.to_owned(), value.to_owned())]));
        assert!(DrainClock::of(&BTreeMap::new()).is_none());
        assert!(of("nodeward.dev/last-override", text).is_none());
        assert_eq!(
            of("nodeward.dev/drain-clock", text).unwrap().unwrap(),
            DrainClock::parse(text).unwrap()
        );
        assert!(of("nodeward.dev/drain-clock", "").unwrap().is_err());
    }

    /// The clocks of two machines may differ: what is no time cannot have been waited for.
    #[rstest]
    #[case::from_when_it_waited(0, Some(10), 40, 30)]
    #[case::from_when_it_would_have_run(20, Some(10), 40, 40)]
    #[case::that_would_yet_have_to_run(50, Some(10), 40, 50)]
    #[case::that_waits_from_later_on(0, Some(50), 40, 0)]
    #[case::that_does_not_wait(0, None, 40, 0)]
    fn clock_moves_forward_by_time_suspended(
        #[case] start: i64,
        #[case] suspended: Option<i64>,
        #[case] now: i64,
        #[case] moved_to: i64,
    ) {
        let second = |second| Timestamp::from_second(second).unwrap();
        let clock = DrainClock {
            start: second(start),
            suspended_at: suspended.map(second),
            ..DrainClock::parse(r#"{"start":"2026-01-01T00:00:00Z","from":"Taint","bootID":"b"}"#).unwrap()
        };
        let resumed = clock.resumed(second(now));
        assert_eq!((resumed.start, resumed.suspended_at), (second(moved_to), None));
        let is_moved = resumed.start != clock.start;
        assert_eq!(
            resumed.from == ClockSource::Gate,
            is_moved,
            "the taint tells it no more"
        );
    }
}
