//! Tells people of each pause, of its end, and of what cannot be known of it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use nodeward_api::pause::{self, CONFIG_MAP};
use nodeward_api::{COMPONENTS, condition};
use nodeward_core::deadline::saturating_add;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{PastPause, Pause, PauseState, Source};
use crate::component::Component;
use crate::events::{EventSink, EventSpec, Severity};
use crate::leader::Leadership;
use crate::metrics::Metrics;

/// A pause that a read has found, or could not rule out, is read again after this time: acts that ask may be few.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// An API server that restarts answers nothing for so long: no news for people.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// Tells people of each pause and of its end.
pub(crate) struct PauseReporter {
    pub(crate) component: Component,
    pub(crate) pause: Pause,
    pub(crate) namespace: String,
    /// The operator's own Pod, which carries the condition; there is none where it runs outside of the cluster.
    pub(crate) own_pod: String,
    pub(crate) client: Client,
    pub(crate) events: EventSink,
    pub(crate) leadership: Leadership,
    pub(crate) dry_run: bool,
    pub(crate) gauges: PauseGauges,
}

/// What metrics say of a pause.
pub(crate) struct PauseGauges {
    paused: Gauge,
    unknown: Gauge,
}

/// What has been told.
struct Told {
    state: PauseState,
    /// Since when the operator may not write, or act.
    stopped_since: Option<Instant>,
}

impl PauseGauges {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        Self {
            paused: metrics.register(
                "paused",
                "1 while the ConfigMap nodeward-pause keeps this component from writing, else 0",
            ),
            unknown: metrics.register(
                "pause_unknown",
                "1 while it cannot be read whether this component is paused, which keeps it from acting, else 0",
            ),
        }
    }
}

impl Told {
    /// Tells of a state, unless something speaks against it: what was told stands until it is known to be over, and what is not
    /// known is told once it lasts. Returns the pause that is over with that.
    fn update(&mut self, state: PauseState, instant: Instant, now: Timestamp) -> Option<PastPause> {
        let since = match state {
            PauseState::Running => self.stopped_since.take(),
            _ => Some(*self.stopped_since.get_or_insert(instant)),
        };
        let stopped_for = since.map_or(Duration::ZERO, |since| instant.saturating_duration_since(since));
        let is_lasting = TOLD_AFTER <= stopped_for;
        let before = match (&self.state, &state) {
            (PauseState::Running, PauseState::Unknown(_)) if !is_lasting => return None,
            (PauseState::Paused(_) | PauseState::Unknown(_), PauseState::Unknown(_)) => return None,
            _ => std::mem::replace(&mut self.state, state),
        };
        let written = match (before, &self.state) {
            (PauseState::Paused(paused), PauseState::Running) => paused.since,
            (PauseState::Unknown(_), PauseState::Running) => None,
            _ => return None,
        };
        let stopped_for = SignedDuration::try_from(stopped_for).unwrap_or(SignedDuration::MAX);
        let seen = saturating_add(now, -stopped_for);
        let from = written.map_or(seen, |written| written.min(seen));
        Some(PastPause { from, to: now })
    }
}

impl PauseReporter {
    /// Reports until `stop` is cancelled.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let Source::Watched(watched) = &self.pause.0 else {
            return;
        };
        let mut changes = watched.cache.changes();
        let mut reads = watched.last_read.subscribe();
        let mut leadership = self.leadership.subscribe();
        let mut was_leading = false;
        let mut told = Told {
            state: PauseState::Running,
            stopped_since: None,
        };
        let mut unknown_keys = Vec::new();
        loop {
            watched.forget_overtaken_read();
            let state = watched.told();
            let is_open = watched.last_read.borrow().state != PauseState::Running
                || matches!((&told.state, &state), (PauseState::Running, PauseState::Unknown(_)));
            self.gauges
                .unknown
                .set(i64::from(matches!(state, PauseState::Unknown(_))));
            // Only the leader emits Events: what began under another leader, or under none, is told again.
            let is_leading = self.leadership.is_leading_now();
            let has_begun_to_lead = is_leading && !was_leading;
            was_leading = is_leading;
            let before = told.state.clone();
            if let Some(past) = told.update(state, Instant::now(), Timestamp::now()) {
                *watched.last.lock() = Some(past);
            }
            self.gauges
                .paused
                .set(i64::from(matches!(told.state, PauseState::Paused(_))));
            if told.state != before {
                let (reason, note) = self.announce(&told.state);
                if !self.dry_run {
                    self.write_condition(&told.state, reason, &note).await;
                }
            } else if has_begun_to_lead && told.state != PauseState::Running {
                self.announce(&told.state);
            }
            let keys = watched.unknown_keys();
            if keys != unknown_keys || has_begun_to_lead {
                unknown_keys = keys;
                self.report_unknown_keys(&unknown_keys);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = changes.changed() => if changed.is_err() { return },
                // Its sender is the pause's own.
                Ok(()) = reads.changed() => {}
                // Without election it never changes, and has no sender.
                Ok(()) = leadership.changed() => {}
                () = tokio::time::sleep(READ_AGAIN), if is_open => watched.settle_read().await,
            }
        }
    }

    /// Emits the Event, or logs where none is emitted. Returns its reason and note.
    fn announce(&self, state: &PauseState) -> (&'static str, String) {
        let component = self.component.name();
        let (severity, reason, note) = match state {
            PauseState::Paused(paused) => (
                Severity::Warning,
                "Paused",
                format!("{component} is paused and writes nothing: {}", paused.reason),
            ),
            PauseState::Unknown(why) => (
                Severity::Warning,
                "PauseUnknown",
                format!("{component} does nothing until it can read whether it is paused: {why}"),
            ),
            PauseState::Running => (Severity::Normal, "Resumed", format!("{component} works again")),
        };
        // The queue logs each Event, so only what emits none is logged here.
        if self.leadership.is_leading_now() && !self.dry_run {
            self.emit(severity, reason, note.clone());
        } else {
            tracing::warn!(reason, "{note}");
        }
        (reason, note)
    }

    fn report_unknown_keys(&self, keys: &[String]) {
        if keys.is_empty() {
            return;
        }
        let note = format!(
            "keys that name no component pause nothing: {}; there are {} and {}",
            keys.join(", "),
            COMPONENTS.join(", "),
            pause::ALL
        );
        if self.leadership.is_leading_now() && !self.dry_run {
            self.emit(Severity::Warning, "UnknownComponent", note);
        } else {
            tracing::warn!("{CONFIG_MAP}: {note}");
        }
    }

    fn emit(&self, severity: Severity, reason: &'static str, note: String) {
        self.events.emit(EventSpec {
            regarding: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("ConfigMap".to_owned()),
                namespace: Some(self.namespace.clone()),
                name: Some(CONFIG_MAP.to_owned()),
                ..ObjectReference::default()
            },
            related: None,
            severity,
            reason,
            action: "Pause",
            note,
        });
    }

    /// Best effort: the condition is for people, and the metric and the Event tell the same.
    async fn write_condition(&self, state: &PauseState, reason: &str, message: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let status = match state {
            PauseState::Paused(_) => "True",
            PauseState::Unknown(_) => "Unknown",
            PauseState::Running => "False",
        };
        let patch = json!({ "status": { "conditions": [{
            "type": condition::PAUSED,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }] } });
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        match pods.patch_status(&self.own_pod, &params, &patch).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {
                tracing::debug!(pod = self.own_pod, "no Pod of this name carries the condition");
            }
            Err(error) => tracing::warn!(%error, "the condition {} of the own Pod was not written", condition::PAUSED),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nodeward_api::pause::Paused;
    use rstest::rstest;

    use super::*;

    fn paused(reason: &str) -> PauseState {
        PauseState::Paused(Arc::new(Paused {
            reason: reason.to_owned(),
            since: Some(at(5)),
        }))
    }

    fn unknown(why: &str) -> PauseState {
        PauseState::Unknown(why.to_owned())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    const RUNNING: PauseState = PauseState::Running;

    #[rstest]
    #[case::pause_at_once(&[(10, paused("a"))], paused("a"), None)]
    #[case::another_reason(&[(10, paused("a")), (11, paused("b"))], paused("b"), None)]
    #[case::end_at_once(&[(10, paused("a")), (20, RUNNING)], RUNNING, Some((5, 20)))]
    #[case::moment_of_ignorance(&[(10, unknown("x")), (19, unknown("y"))], RUNNING, None)]
    #[case::which_passes(&[(10, unknown("x")), (19, RUNNING), (25, unknown("x"))], RUNNING, None)]
    #[case::ignorance_that_lasts(&[(10, unknown("x")), (20, unknown("y"))], unknown("y"), None)]
    #[case::whose_text_changes(&[(10, unknown("x")), (20, unknown("y")), (30, unknown("z"))], unknown("y"), None)]
    #[case::end_of_ignorance(&[(10, unknown("x")), (20, unknown("x")), (40, RUNNING)], RUNNING, Some((10, 40)))]
    #[case::known_pause_stands(&[(10, paused("a")), (20, unknown("x")), (90, unknown("x"))], paused("a"), None)]
    fn what_is_told_follows_what_is_known(
        #[case] states: &[(i64, PauseState)],
        #[case] expected: PauseState,
        #[case] past: Option<(i64, i64)>,
    ) {
        let mut told = Told {
            state: RUNNING,
            stopped_since: None,
        };
        let (began, mut last) = (Instant::now(), None);
        for (second, state) in states {
            let instant = began + Duration::from_secs(second.unsigned_abs());
            last = told.update(state.clone(), instant, at(*second));
        }
        assert_eq!(told.state, expected);
        let expected = past.map(|(from, to)| PastPause {
            from: at(from),
            to: at(to),
        });
        assert_eq!(last, expected);
    }
}
