//! The emergency stop ([`nodeward_api::pause`]): while the ConfigMap `nodeward-pause` of the operator's namespace names the
//! component, no action of it is started, and none under way gets a permit for a further write.
//!
//! It fails closed. Until the ConfigMap has been read nothing is written, and nothing once its watch is as old as any cache
//! may be. A watch that the API server cuts off looks fresh until then, so each act also reads the ConfigMap by quorum under
//! its permit ([`Permits::next_act`](crate::Permits::next_act)). The lease, Events, and the webhook's certificate go on: they
//! keep the operator itself in order, and tell people.

mod report;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use nodeward_api::pause::{self, CONFIG_MAP, Paused};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::api_error::{ApiError, no_answer};
use crate::cache::{Cache, KindState, NamespacedName, STALE_AFTER, Selection, Watches};
use crate::client::Clients;
use crate::component::Component;
use crate::quorum_reads::QuorumReads;
use crate::readiness::Readiness;
use crate::reconcile_trigger::ReconcileTrigger;

pub(crate) use self::report::{PauseGauges, PauseReporter};

/// An answer that takes longer may be as old as that: it says nothing of now.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether the operator may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PauseState {
    /// It may.
    Running,
    /// A person has stopped it.
    Paused(Arc<Paused>),
    /// It cannot be read whether a person has, for this reason: nothing is written.
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
    Watched(Arc<Watched>),
    /// From memory, and by a read where memory says that it runs.
    Fixed(Arc<Mutex<(PauseState, PauseState)>>),
}

/// The ConfigMap, by its watch and by quorum reads.
struct Watched {
    component: Component,
    key: NamespacedName,
    cache: Cache<Arc<Entry>>,
    config_maps: Api<ConfigMap>,
    reads: QuorumReads<(), PauseState>,
    last_read: watch::Sender<LastRead>,
    trigger: ReconcileTrigger,
    last: Mutex<Option<PastPause>>,
}

/// What the latest read said.
#[derive(Debug, Clone)]
struct LastRead {
    asked_at: Instant,
    state: PauseState,
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
        clients: &Clients,
        namespace: &str,
        readiness: &Readiness,
    ) -> Self {
        let watched: Api<ConfigMap> = Api::namespaced(clients.watches.clone(), namespace);
        let selection = Selection::all().named(CONFIG_MAP);
        let cache = watches.cache("pause", watched, selection, move |config_map| {
            Some(Arc::new(Entry {
                paused: pause::paused(&config_map, component.name()).map(Arc::new),
                unknown_keys: pause::unknown_keys(&config_map).map(str::to_owned).collect(),
            }))
        });
        readiness.require_watch(&cache);
        Self(Source::Watched(Arc::new(Watched {
            component,
            key: NamespacedName::new(namespace, CONFIG_MAP),
            cache,
            config_maps: Api::namespaced(clients.requests.clone(), namespace),
            reads: QuorumReads::default(),
            last_read: watch::Sender::new(LastRead {
                asked_at: Instant::now(),
                state: PauseState::Running,
            }),
            trigger: watches.trigger().clone(),
            last: Mutex::default(),
        })))
    }

    /// A state that no watch changes, for tests.
    pub fn fixed(state: PauseState) -> Self {
        Self(Source::Fixed(Arc::new(Mutex::new((state, PauseState::Running)))))
    }

    /// A watch that says that the operator runs, and reads that say this, for tests.
    pub fn read_as(state: PauseState) -> Self {
        Self(Source::Fixed(Arc::new(Mutex::new((PauseState::Running, state)))))
    }

    /// Whether the operator may write now, from memory.
    pub fn state(&self) -> PauseState {
        match &self.0 {
            Source::Fixed(fixed) => fixed.lock().0.clone(),
            Source::Watched(watched) => watched.state(),
        }
    }

    /// Whether the operator may act now, by the API server's own word unless memory already says no. Callers of one second
    /// share one request.
    pub async fn confirm(&self) -> PauseState {
        match (self.state(), &self.0) {
            (PauseState::Running, Source::Watched(watched)) => watched.read().await,
            (PauseState::Running, Source::Fixed(fixed)) => fixed.lock().1.clone(),
            (state, _) => state,
        }
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
            Source::Watched(watched) => *watched.last.lock(),
        }
    }
}

impl Watched {
    /// As the watch tells.
    fn seen(&self) -> PauseState {
        let Self { cache, key, .. } = self;
        if let KindState::Forbidden(message) = cache.state() {
            return PauseState::Unknown(format!("ConfigMap {key} may not be read: {message}"));
        }
        if !cache.is_synced() {
            return PauseState::Unknown(format!("ConfigMap {key} has not been read yet"));
        }
        if !cache.is_fresh() {
            let minutes = STALE_AFTER.as_secs() / 60;
            return PauseState::Unknown(format!(
                "the watch of ConfigMap {key} has said nothing for {minutes} min"
            ));
        }
        let entry = cache.get(key);
        state_of(entry.and_then(|entry| entry.paused.clone()))
    }

    /// As the watch tells, and as a read does that has found a pause before the watch. A read that failed stops the act that
    /// asked, and the rest of the operator goes on.
    fn state(&self) -> PauseState {
        match (self.seen(), &self.last_read.borrow().state) {
            (PauseState::Running, paused @ PauseState::Paused(_)) => paused.clone(),
            (seen, _) => seen,
        }
    }

    /// The same, but that a read that failed counts, too: what people are told.
    fn told(&self) -> PauseState {
        match self.seen() {
            PauseState::Running => self.last_read.borrow().state.clone(),
            seen => seen,
        }
    }

    /// By quorum.
    async fn read(&self) -> PauseState {
        let Self { component, key, .. } = self;
        let read = async {
            let asked_at = Instant::now();
            let found = timeout(READ_TIMEOUT, self.config_maps.get_opt(CONFIG_MAP)).await;
            let state = match found.unwrap_or_else(|_| Err(no_answer())) {
                Ok(found) => {
                    let paused = found.and_then(|found| pause::paused(&found, component.name()));
                    state_of(paused.map(Arc::new))
                }
                Err(error) => PauseState::Unknown(format!("ConfigMap {key} cannot be read: {}", ApiError::from(error))),
            };
            self.note(asked_at, &state);
            Ok(state)
        };
        let read = self.reads.recent((), read).await;
        read.unwrap_or_else(|error| PauseState::Unknown(error.to_string()))
    }

    /// Keeps what a read has said, unless a later one has been answered before it. A pause that was found lasts until a read
    /// does not find it: one that fails tells nothing.
    fn note(&self, asked_at: Instant, state: &PauseState) {
        let is_news = self.last_read.send_if_modified(|last| {
            let tells_less = matches!((&last.state, state), (PauseState::Paused(_), PauseState::Unknown(_)));
            if asked_at < last.asked_at || tells_less {
                return false;
            }
            last.asked_at = asked_at;
            let before = std::mem::replace(&mut last.state, state.clone());
            before != *state
        });
        if is_news {
            self.trigger.notify();
        }
    }

    /// Once the watch tells of a pause, it tells of its end, too.
    fn forget_overtaken_read(&self) {
        if matches!(self.seen(), PauseState::Paused(_)) {
            self.note(Instant::now(), &PauseState::Running);
        }
    }

    /// Reads again what the last read has left open.
    async fn settle_read(&self) {
        if self.last_read.borrow().state != PauseState::Running {
            self.read().await;
        }
    }

    fn unknown_keys(&self) -> Vec<String> {
        let entry = self.cache.get(&self.key);
        entry.map(|entry| entry.unknown_keys.clone()).unwrap_or_default()
    }
}

fn state_of(paused: Option<Arc<Paused>>) -> PauseState {
    paused.map_or(PauseState::Running, PauseState::Paused)
}

#[cfg(test)]
impl Pause {
    /// Changes a state that is not watched.
    pub(crate) fn set(&self, state: PauseState) {
        if let Source::Fixed(fixed) = &self.0 {
            fixed.lock().0 = state;
        }
    }
}
