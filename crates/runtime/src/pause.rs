//! The emergency stop ([`nodeward_api::pause`]): while the ConfigMap `nodeward-pause` of the operator's namespace names the
//! component, no action of it is started, and none under way gets a permit for a further write.
//!
//! Until the ConfigMap has been read nothing is written either: an operator that restarts must not act before it knows. The
//! lease, Events, and the webhook's certificate go on: they keep the operator itself in order, and tell people.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use nodeward_api::pause::{self, CONFIG_MAP, Paused};
use nodeward_api::{COMPONENTS, condition};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, KindState, NamespacedName, Selection, Watches};
use crate::component::Component;
use crate::events::{EventSink, EventSpec, Severity};
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// Whether the operator may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PauseState {
    /// It may.
    Running,
    /// A person has stopped it.
    Paused(Arc<Paused>),
    /// The ConfigMap has not been read, for this reason.
    Unknown(String),
}

/// The stretch of the last pause, once it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastPause {
    pub from: Timestamp,
    pub to: Timestamp,
}

/// Knows whether the operator is paused. Clones share the watch.
#[derive(Clone)]
pub struct Pause(Source);

#[derive(Clone)]
enum Source {
    Watched {
        cache: Cache<Arc<Entry>>,
        key: NamespacedName,
        last: Arc<Mutex<Option<PastPause>>>,
    },
    Fixed(Arc<Mutex<PauseState>>),
}

/// The ConfigMap, as far as it concerns the component.
#[derive(Debug, PartialEq)]
struct Entry {
    paused: Option<Arc<Paused>>,
    unknown_keys: Vec<String>,
}

impl Pause {
    /// Watches the ConfigMap in `namespace`. The process is ready once it has been read.
    pub(crate) fn watch(
        component: Component,
        watches: &Watches,
        client: Client,
        namespace: &str,
        readiness: &Readiness,
    ) -> Self {
        let api: Api<ConfigMap> = Api::namespaced(client, namespace);
        let cache = watches.cache("pause", api, Selection::all().named(CONFIG_MAP), move |config_map| {
            Some(Arc::new(Entry {
                paused: pause::paused(&config_map, component.name()).map(Arc::new),
                unknown_keys: pause::unknown_keys(&config_map).map(str::to_owned).collect(),
            }))
        });
        readiness.require_watch(&cache);
        Self(Source::Watched {
            cache,
            key: NamespacedName::new(namespace, CONFIG_MAP),
            last: Arc::default(),
        })
    }

    /// A state that no watch changes, for tests.
    pub fn fixed(state: PauseState) -> Self {
        Self(Source::Fixed(Arc::new(Mutex::new(state))))
    }

    /// Whether the operator may write now. Asked before each write, so it reads memory only.
    pub fn state(&self) -> PauseState {
        let (cache, key) = match &self.0 {
            Source::Fixed(state) => return state.lock().clone(),
            Source::Watched { cache, key, .. } => (cache, key),
        };
        if let KindState::Forbidden(message) = cache.state() {
            return PauseState::Unknown(format!("ConfigMap {key} may not be read: {message}"));
        }
        if !cache.is_synced() {
            return PauseState::Unknown(format!("ConfigMap {key} has not been read yet"));
        }
        let entry = cache.get(key);
        let paused = entry.and_then(|entry| entry.paused.clone());
        paused.map_or(PauseState::Running, PauseState::Paused)
    }

    /// Whether the operator may write now.
    pub fn is_running(&self) -> bool {
        self.state() == PauseState::Running
    }

    /// What a person has stopped the operator for, if one has.
    pub fn paused(&self) -> Option<Arc<Paused>> {
        match self.state() {
            PauseState::Paused(paused) => Some(paused),
            PauseState::Running | PauseState::Unknown(_) => None,
        }
    }

    /// The last pause that this process has seen end: times that deadlines of others' drains do not count.
    pub fn last(&self) -> Option<PastPause> {
        match &self.0 {
            Source::Fixed(_) => None,
            Source::Watched { last, .. } => *last.lock(),
        }
    }

    fn unknown_keys(&self) -> Vec<String> {
        match &self.0 {
            Source::Fixed(_) => Vec::new(),
            Source::Watched { cache, key, .. } => {
                let entry = cache.get(key);
                entry.map(|entry| entry.unknown_keys.clone()).unwrap_or_default()
            }
        }
    }
}

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
    pub(crate) gauge: Gauge,
}

impl PauseReporter {
    /// The metric that says whether the component is paused.
    pub(crate) fn gauge(metrics: &Metrics) -> Gauge {
        metrics.register(
            "paused",
            "1 while the ConfigMap nodeward-pause keeps this component from writing, else 0",
        )
    }

    /// Reports until `stop` is cancelled.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let Source::Watched { cache, last, .. } = &self.pause.0 else {
            return;
        };
        let mut changes = cache.changes();
        let mut leadership = self.leadership.subscribe();
        let mut was_leading = false;
        let mut reported: Option<Arc<Paused>> = None;
        let mut seen_at = Timestamp::now();
        let mut unknown_keys = Vec::new();
        loop {
            let state = self.pause.state();
            // Only the leader emits Events: what began under another leader, or under none, is told again.
            let is_leading = self.leadership.is_leading_now();
            let has_begun_to_lead = is_leading && !was_leading;
            was_leading = is_leading;
            let now = match &state {
                PauseState::Paused(paused) => Some(Arc::clone(paused)),
                PauseState::Running => None,
                // What was reported stands until it is known to be over.
                PauseState::Unknown(_) => reported.clone(),
            };
            if now != reported {
                if let (Some(before), None) = (&reported, &now) {
                    let from = before.since.unwrap_or(seen_at).min(Timestamp::now());
                    *last.lock() = Some(PastPause {
                        from,
                        to: Timestamp::now(),
                    });
                }
                if reported.is_none() {
                    seen_at = Timestamp::now();
                }
                reported.clone_from(&now);
                self.gauge.set(i64::from(now.is_some()));
                let (reason, note) = self.announce(now.as_deref());
                if !self.dry_run {
                    self.write_condition(now.is_some(), reason, &note).await;
                }
            } else if has_begun_to_lead && now.is_some() {
                self.announce(now.as_deref());
            }
            let keys = self.pause.unknown_keys();
            if keys != unknown_keys || has_begun_to_lead {
                unknown_keys = keys;
                self.report_unknown_keys(&unknown_keys);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = changes.changed() => if changed.is_err() { return },
                // Without election it never changes, and has no sender.
                Ok(()) = leadership.changed() => {}
            }
        }
    }

    /// Emits the Event, or logs where none is emitted. Returns its reason and note.
    fn announce(&self, paused: Option<&Paused>) -> (&'static str, String) {
        let component = self.component.name();
        let (severity, reason, note) = match paused {
            Some(paused) => (
                Severity::Warning,
                "Paused",
                format!("{component} is paused and writes nothing: {}", paused.reason),
            ),
            None => (Severity::Normal, "Resumed", format!("{component} works again")),
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
    async fn write_condition(&self, is_paused: bool, reason: &str, message: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let status = if is_paused { "True" } else { "False" };
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
impl Pause {
    /// Changes a state that is not watched.
    pub(crate) fn set(&self, state: PauseState) {
        if let Source::Fixed(fixed) = &self.0 {
            *fixed.lock() = state;
        }
    }
}
