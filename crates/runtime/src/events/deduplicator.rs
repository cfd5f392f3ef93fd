//! Which Events repeat what was just told, and which ones kube's recorder would hide.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;

use super::EventSpec;

/// The same told again within this time is dropped. Later it is worth another count in its series.
const WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// So many series are counted at once; beyond it both start anew. kube's recorder keeps two kilobytes of each for six minutes:
/// when hundreds of nodes fail at once, thousands would take more memory than all nodes do.
const CAPACITY: usize = 256;

/// Kind, namespace, name and UID.
const fn identity(object: &ObjectReference) -> [&Option<String>; 4] {
    [&object.kind, &object.namespace, &object.name, &object.uid]
}

/// What makes Events one series for kube's recorder: everything but the note. Hashes in place of texts, for thousands may be
/// told within the window.
fn series_of(event: &EventSpec) -> u64 {
    let EventSpec {
        regarding,
        related,
        severity,
        reason,
        action,
        note: _,
    } = event;
    let related = related.as_ref().map(identity);
    hash_of((identity(regarding), related, severity, reason, action))
}

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Remembers what was told lately. Knows no clock: `now` comes with each call.
#[derive(Debug, Default)]
pub(super) struct EventDeduplicator {
    told: BTreeMap<(u64, u64), Timestamp>,
    swept: Option<Timestamp>,
}

impl EventDeduplicator {
    /// Whether the very same was told within the window; if not, it counts as told now.
    pub(super) fn is_repeated(&mut self, event: &EventSpec, now: Timestamp) -> bool {
        let is_recent = |at: Timestamp| now.duration_since(at).abs() < WINDOW;
        if !self.swept.is_some_and(is_recent) {
            self.told.retain(|_, at| is_recent(*at));
            self.swept = Some(now);
        }
        let told = (series_of(event), hash_of(&event.note));
        if self.told.get(&told).is_some_and(|at| is_recent(*at)) {
            return true;
        }
        self.told.insert(told, now);
        false
    }
}

/// The note of each series. Forgotten together with the recorder that it is about.
///
/// kube's recorder takes every Event of a key for a repetition of the first, for six minutes, and keeps the first one's
/// note: a second pod that blocks the same node would never be named.
#[derive(Debug, Default)]
pub(super) struct SeriesNotes(BTreeMap<u64, u64>);

impl SeriesNotes {
    /// Whether a recorder that has told all of this so far would tell this Event with another note than its own.
    pub(super) fn would_hide(&mut self, event: &EventSpec) -> bool {
        let (series, told) = (series_of(event), hash_of(&event.note));
        let hides = self.0.len() >= CAPACITY || self.0.get(&series).is_some_and(|note| *note != told);
        if hides {
            self.0.clear();
        }
        self.0.insert(series, told);
        hides
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use rstest::rstest;

    use super::{CAPACITY, EventDeduplicator, SeriesNotes, WINDOW};
    use crate::events::{EventSpec, Severity, node_reference};

    fn event() -> EventSpec {
        EventSpec {
            regarding: node_reference("worker-1", "u1"),
            related: None,
            severity: Severity::Normal,
            reason: "DrainBlocked",
            action: "Waiting",
            note: "blocked".to_owned(),
        }
    }

    fn note(note: &str) -> EventSpec {
        EventSpec {
            note: note.to_owned(),
            ..event()
        }
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[rstest]
    #[case::at_once(SignedDuration::ZERO, true)]
    #[case::within_the_window(SignedDuration::from_secs(59), true)]
    #[case::after_it(WINDOW, false)]
    #[case::clock_stepped_back(SignedDuration::from_hours(-1), false)]
    fn same_event_is_repeated_within_window(#[case] later: SignedDuration, #[case] expected: bool) {
        let mut deduplicator = EventDeduplicator::default();
        assert!(!deduplicator.is_repeated(&event(), now()));
        assert_eq!(deduplicator.is_repeated(&event(), now() + later), expected);
    }

    #[rstest]
    #[case::other_note(note("other"))]
    #[case::other_reason(EventSpec { reason: "DrainDone", ..event() })]
    #[case::other_action(EventSpec { action: "Evicting", ..event() })]
    #[case::other_severity(EventSpec { severity: Severity::Warning, ..event() })]
    #[case::other_node(EventSpec { regarding: node_reference("worker-2", "u2"), ..event() })]
    #[case::same_name_other_node(EventSpec { regarding: node_reference("worker-1", "u9"), ..event() })]
    #[case::other_related(EventSpec { related: Some(node_reference("worker-3", "u3")), ..event() })]
    fn different_event_is_not_repeated(#[case] other: EventSpec) {
        let mut deduplicator = EventDeduplicator::default();
        assert!(!deduplicator.is_repeated(&event(), now()));
        assert!(!deduplicator.is_repeated(&other, now()));
    }

    #[test]
    fn old_events_are_forgotten() {
        let mut deduplicator = EventDeduplicator::default();
        for second in 0..1_000 {
            deduplicator.is_repeated(&note(&second.to_string()), now() + SignedDuration::from_secs(second));
        }
        assert!(deduplicator.told.len() <= 121, "{}", deduplicator.told.len());
    }

    /// The recorder goes with them, and with it what it keeps of each.
    #[test]
    fn many_series_are_begun_anew() {
        let mut notes = SeriesNotes::default();
        let begun_anew = (0..3 * CAPACITY).filter(|number| {
            let node = node_reference(&format!("worker-{number}"), "u1");
            let is_begun_anew = notes.would_hide(&EventSpec {
                regarding: node,
                ..event()
            });
            assert!(notes.0.len() <= CAPACITY);
            is_begun_anew
        });
        assert_eq!(begun_anew.count(), 2);
    }

    #[rstest]
    #[case::same_again(event(), false)]
    #[case::other_note(note("b"), true)]
    #[case::other_note_for_other_reason(EventSpec { reason: "Retrying", ..note("b") }, false)]
    #[case::other_note_for_other_action(EventSpec { action: "Evicting", ..note("b") }, false)]
    #[case::other_note_on_other_node(EventSpec { regarding: node_reference("worker-2", "u2"), ..note("b") }, false)]
    fn only_changed_note_of_one_series_is_hidden(#[case] next: EventSpec, #[case] hidden: bool) {
        let mut notes = SeriesNotes::default();
        assert!(!notes.would_hide(&event()));
        assert_eq!(notes.would_hide(&next), hidden);
        assert!(!notes.would_hide(&next), "the new note is that of the series now");
    }
}
