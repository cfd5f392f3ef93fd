//! Where a series of Events ends because its note changes.
//!
//! kube's recorder takes every Event with the same objects, reason and action for a repetition of the first, for six
//! minutes, and keeps the first one's note: a second pod that blocks the same node would never be named.

use std::collections::BTreeMap;

use super::echo::Object;
use super::{EventSpec, Severity};

/// The note of each series. Forgotten together with the recorder that it is about.
#[derive(Debug, Default)]
pub(super) struct Notes {
    of_series: BTreeMap<Series, String>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    regarding: Object,
    related: Option<Object>,
    severity: Severity,
    reason: &'static str,
    action: &'static str,
}

/// More than are told in the time for which a recorder remembers; beyond it both start anew.
const CAPACITY: usize = 2048;

impl Notes {
    /// Whether a recorder that has told all of this so far would tell this Event with another note than its own.
    pub(super) fn would_hide(&mut self, event: &EventSpec) -> bool {
        let series = Series {
            regarding: Object::of(&event.regarding),
            related: event.related.as_ref().map(Object::of),
            severity: event.severity,
            reason: event.reason,
            action: event.action,
        };
        let is_full = self.of_series.len() >= CAPACITY;
        let hidden = is_full || self.of_series.get(&series).is_some_and(|note| *note != event.note);
        if hidden {
            self.of_series.clear();
        }
        self.of_series.insert(series, event.note.clone());
        hidden
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Notes;
    use crate::events::{EventSpec, Severity, node_reference};

    fn event(note: &str) -> EventSpec {
        EventSpec {
            regarding: node_reference("worker-1", "u1"),
            related: None,
            severity: Severity::Warning,
            reason: "BudgetExhausted",
            action: "Drain",
            note: note.to_owned(),
        }
    }

    #[rstest]
    #[case::the_same_again(event("a"), false)]
    #[case::another_note(event("b"), true)]
    #[case::another_note_for_another_reason(EventSpec { reason: "Retrying", ..event("b") }, false)]
    #[case::another_note_on_another_node(EventSpec { regarding: node_reference("worker-2", "u2"), ..event("b") }, false)]
    fn only_another_note_in_the_same_series_would_be_hidden(#[case] next: EventSpec, #[case] hidden: bool) {
        let mut notes = Notes::default();
        assert!(!notes.would_hide(&event("a")));
        assert_eq!(notes.would_hide(&next), hidden);
        assert!(!notes.would_hide(&next), "the new note is that of the series now");
    }
}
