//! Which Events merely repeat what was just said.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;

use super::{EventSpec, Severity};

/// The same said again within this time is an echo. Later it is worth another count in its series.
const WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// Remembers what was said lately. Knows no clock: `now` comes with each call.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    said: BTreeMap<Saying, Timestamp>,
    swept: Option<Timestamp>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Saying {
    regarding: Object,
    related: Option<Object>,
    severity: Severity,
    reason: &'static str,
    action: &'static str,
    note: String,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Object {
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
}

impl Object {
    pub(super) fn of(reference: &ObjectReference) -> Self {
        let ObjectReference {
            kind,
            namespace,
            name,
            uid,
            ..
        } = reference.clone();
        Self {
            kind,
            namespace,
            name,
            uid,
        }
    }
}

impl Echoes {
    /// Whether the very same was said within the window; if not, it counts as said now.
    pub(super) fn is_echo(&mut self, event: &EventSpec, now: Timestamp) -> bool {
        self.forget_old(now);
        let saying = Saying {
            regarding: Object::of(&event.regarding),
            related: event.related.as_ref().map(Object::of),
            severity: event.severity,
            reason: event.reason,
            action: event.action,
            note: event.note.clone(),
        };
        match self.said.get(&saying) {
            Some(at) if is_recent(*at, now) => true,
            _ => {
                self.said.insert(saying, now);
                false
            }
        }
    }

    fn forget_old(&mut self, now: Timestamp) {
        if self.swept.is_none_or(|swept| !is_recent(swept, now)) {
            self.said.retain(|_, at| is_recent(*at, now));
            self.swept = Some(now);
        }
    }
}

fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at).abs() < WINDOW
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use rstest::rstest;

    use super::{Echoes, WINDOW};
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

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[rstest]
    #[case::at_once(SignedDuration::ZERO, true)]
    #[case::within_the_window(SignedDuration::from_secs(59), true)]
    #[case::after_it(WINDOW, false)]
    #[case::clock_stepped_back(SignedDuration::from_hours(-1), false)]
    fn the_same_again_is_an_echo_for_a_while(#[case] later: SignedDuration, #[case] expected: bool) {
        let mut echoes = Echoes::default();
        assert!(!echoes.is_echo(&event(), now()));
        assert_eq!(echoes.is_echo(&event(), now() + later), expected);
    }

    #[rstest]
    #[case::other_note(EventSpec { note: "other".to_owned(), ..event() })]
    #[case::other_reason(EventSpec { reason: "DrainDone", ..event() })]
    #[case::other_node(EventSpec { regarding: node_reference("worker-2", "u2"), ..event() })]
    #[case::same_name_other_node(EventSpec { regarding: node_reference("worker-1", "u9"), ..event() })]
    #[case::other_related(EventSpec { related: Some(node_reference("worker-3", "u3")), ..event() })]
    fn anything_new_is_no_echo(#[case] other: EventSpec) {
        let mut echoes = Echoes::default();
        assert!(!echoes.is_echo(&event(), now()));
        assert!(!echoes.is_echo(&other, now()));
    }

    #[test]
    fn what_was_said_long_ago_is_forgotten() {
        let mut echoes = Echoes::default();
        for second in 0..1_000 {
            let event = EventSpec {
                note: second.to_string(),
                ..event()
            };
            echoes.is_echo(&event, now() + SignedDuration::from_secs(second));
        }
        assert!(echoes.said.len() <= 121, "{}", echoes.said.len());
    }
}
