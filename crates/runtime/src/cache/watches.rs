//! Opens caches and other indexes, and carries what a watch brings into them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::Api;
use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::failure_log::{WatchFailureLog, WatchFailureLogs};
use super::index::{Index, Previous, StoreIndex};
use super::list_watch::{self, Step};
use super::{
    Cache, KindState, STALE_AFTER, Selection, Status, Store, WatchHandle, WatchHealth, WatchShared, Watchable,
};
use crate::api_error::with_sources;
use crate::metrics::Metrics;
use crate::reconcile_trigger::ReconcileTrigger;
use crate::supervise::Supervisor;

/// Opens caches that share one trigger and are supervised together.
#[derive(Clone)]
pub struct Watches {
    trigger: ReconcileTrigger,
    supervisor: Supervisor,
    metrics: WatchMetrics,
    failure_logs: WatchFailureLogs,
}

impl Watches {
    /// Caches opened here notify `trigger`; one whose task dies takes the process with it through `supervisor`.
    pub fn new(trigger: ReconcileTrigger, supervisor: Supervisor, metrics: &Metrics) -> Self {
        Self {
            trigger,
            supervisor,
            metrics: WatchMetrics::register(metrics),
            failure_logs: WatchFailureLogs::default(),
        }
    }

    /// Caches outside of an operator, for tools and tests.
    pub fn detached() -> Self {
        Self {
            trigger: ReconcileTrigger::new(),
            supervisor: Supervisor::new(CancellationToken::new()),
            metrics: WatchMetrics::default(),
            failure_logs: WatchFailureLogs::default(),
        }
    }

    pub fn trigger(&self) -> &ReconcileTrigger {
        &self.trigger
    }

    pub(crate) fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Opens a cache. `project` reduces each object to what the operator needs; `None` leaves the object out.
    /// `name` is what probes, logs and metrics call the cache; caches of one purpose may share a name.
    ///
    /// The trigger is notified when a projected value, or the cache's state, really changed.
    pub fn cache<K: Watchable, V: PartialEq + Send + Sync + 'static>(
        &self,
        name: &'static str,
        api: Api<K>,
        selection: Selection,
        project: impl Fn(K) -> Option<V> + Send + 'static,
    ) -> Cache<V> {
        self.cache_comparing(name, api, selection, move |object, _| project(object))
    }

    /// The same where the projection also rests on what is known of the object so far: since when something has been as it
    /// is, or texts that many objects share.
    pub fn cache_comparing<K: Watchable, V: PartialEq + Send + Sync + 'static>(
        &self,
        name: &'static str,
        api: Api<K>,
        selection: Selection,
        project: impl FnMut(K, Previous<V>) -> Option<V> + Send + 'static,
    ) -> Cache<V> {
        let store = Arc::new(RwLock::new(Store::default()));
        let index = StoreIndex {
            store: Arc::clone(&store),
            project,
        };
        Cache {
            store,
            handle: self.follow(name, api, selection, index),
        }
    }

    /// Keeps a watch that feeds an index of the caller's own making, for what a map of projected values cannot answer
    /// quickly enough or in little enough memory. The trigger is notified whenever the index says that it changed.
    pub fn follow<K: Watchable>(
        &self,
        name: &'static str,
        api: Api<K>,
        selection: Selection,
        index: impl Index<K>,
    ) -> WatchHandle {
        let shared = Arc::new(WatchShared {
            name,
            objects: AtomicUsize::new(0),
            health: Mutex::new(WatchHealth::default()),
            status: Arc::new(Status::new()),
            metrics: self.metrics.clone(),
        });
        let mut handler = WatchEventHandler {
            shared: Arc::clone(&shared),
            trigger: self.trigger.clone(),
            failure_log: self.failure_logs.of(name),
            index,
        };
        let silences = notify_of_silences(Arc::clone(&shared), self.trigger.clone());
        let task = self.supervisor.spawn_guarded(name, async move {
            tokio::join!(list_watch::run(api, selection, &mut handler), silences);
        });
        WatchHandle {
            shared,
            _task: Arc::new(task),
        }
    }
}

/// Notifies the trigger when a complete content becomes stale. Else nothing might wake a quiet cluster's operator, and it
/// would go on saying what it knew.
async fn notify_of_silences(shared: Arc<WatchShared>, trigger: ReconcileTrigger) {
    let mut told = None;
    loop {
        let last_response = shared.health.lock().last_response;
        let is_news = last_response != told;
        let from = last_response.filter(|_| is_news).unwrap_or_else(Instant::now);
        sleep_until(from + STALE_AFTER).await;
        if is_news && shared.health.lock().last_response == last_response && shared.status.is_synced() {
            told = last_response;
            shared.notify(&trigger);
        }
    }
}

/// Passes each event to the index, and notifies the trigger of changes.
pub(super) struct WatchEventHandler<I> {
    shared: Arc<WatchShared>,
    trigger: ReconcileTrigger,
    failure_log: WatchFailureLog,
    index: I,
}

impl<I> WatchEventHandler<I> {
    pub(super) fn step<K>(&mut self, step: Step<K>)
    where
        I: Index<K>,
    {
        let list_ended = matches!(step, Step::ListEnded);
        let changed = match step {
            Step::ListBegan => {
                self.index.list_began();
                false
            }
            Step::Listed(object) => self.index.listed(object),
            Step::ListEnded => self.index.list_ended(),
            Step::Applied(object) => self.index.applied(object),
            Step::Deleted(object) => self.index.deleted(object),
        };
        self.shared.count(self.index.objects());
        let completed = list_ended && self.shared.complete();
        if changed || completed {
            self.notify();
        }
    }

    pub(super) fn on_response(&mut self) {
        let now = Instant::now();
        let before = self.shared.health.lock().last_response.replace(now);
        if self.failure_log.ends() {
            tracing::info!(cache = self.shared.name, "can be watched again");
        }
        if !self.shared.status.is_synced() {
            return;
        }
        let was_stale = before.is_some_and(|before| now.duration_since(before) >= STALE_AFTER);
        // Or the server lets us read again.
        if self.shared.status.enter(KindState::Synced(())) || was_stale {
            self.notify();
        }
    }

    pub(super) fn polled(&mut self, is_polled: bool) {
        let was_polled = self.shared.status.polled.swap(is_polled, Ordering::Relaxed);
        match (was_polled, is_polled) {
            (false, true) => tracing::warn!(
                cache = self.shared.name,
                "may not be watched, and is read from time to time instead: grant list and watch to be told of changes at once"
            ),
            (true, false) => tracing::info!(cache = self.shared.name, "is watched now"),
            (true, true) | (false, false) => {}
        }
    }

    pub(super) fn failed(&mut self, error: &kube::Error) {
        let name = self.shared.name;
        let text: Arc<str> = with_sources(error).into();
        self.shared.note_failure(&text);
        let is_not_served = match error {
            kube::Error::Api(status) => status.code == 404,
            other => matches!(other, kube::Error::SerdeError(_)),
        };
        if is_not_served {
            self.shared.status.not_served.send_modify(|times| *times += 1);
        }
        match error {
            kube::Error::Api(status) if matches!(status.code, 401 | 403) => {
                if self
                    .shared
                    .status
                    .enter(KindState::Forbidden(status.message.as_str().into()))
                {
                    tracing::warn!(cache = name, "cannot be read, tried again: {}", status.message);
                    self.notify();
                }
            }
            _ if self.failure_log.begins() => {
                tracing::warn!(
                    cache = name,
                    "cannot be watched, what it knows grows old; tried again: {text}"
                );
            }
            _ => tracing::debug!(cache = name, "watch failed, tried again: {text}"),
        }
    }

    fn notify(&self) {
        self.shared.notify(&self.trigger);
    }
}

impl Status {
    /// Enters a state; false if it was in it already.
    fn enter(&self, state: KindState) -> bool {
        self.state.send_if_modified(|current| {
            let changed = *current != state;
            *current = state;
            changed
        })
    }
}

impl WatchShared {
    fn notify(&self, trigger: &ReconcileTrigger) {
        self.status.revision.send_modify(|revision| *revision += 1);
        trigger.notify();
    }

    /// Tells the metrics how many objects there are now.
    fn count(&self, objects: usize) {
        let before = self.objects.swap(objects, Ordering::Relaxed);
        self.metrics.objects_changed(self.name, before, objects);
    }

    /// Notes a complete list; true for the first one: from then on absence means something.
    fn complete(&self) -> bool {
        self.metrics.lists.get_or_create(&[("cache", self.name)]).inc();
        self.health.lock().lists += 1;
        let is_first = self
            .status
            .synced
            .send_if_modified(|known| !std::mem::replace(known, true));
        self.status.enter(KindState::Synced(()));
        is_first
    }

    fn note_failure(&self, text: &Arc<str>) {
        self.metrics.failures.get_or_create(&[("cache", self.name)]).inc();
        let mut health = self.health.lock();
        health.failures += 1;
        health.last_error = Some(Arc::clone(text));
    }
}

impl Drop for WatchShared {
    fn drop(&mut self) {
        self.count(0);
    }
}

type CacheLabel = [(&'static str, &'static str); 1];

/// Metrics of all caches, by name; caches that share a name are added up.
#[derive(Clone, Default)]
pub(super) struct WatchMetrics {
    objects: Family<CacheLabel, Gauge>,
    lists: Family<CacheLabel, Counter>,
    failures: Family<CacheLabel, Counter>,
}

impl WatchMetrics {
    fn register(metrics: &Metrics) -> Self {
        Self {
            objects: metrics.register("cache_objects", "Objects held in memory, by cache"),
            lists: metrics.register("cache_lists", "Complete lists taken, by cache"),
            failures: metrics.register("watch_failures", "Failed list and watch requests, by cache"),
        }
    }

    fn objects_changed(&self, cache: &'static str, before: usize, after: usize) {
        if before != after {
            let difference = i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX);
            self.objects.get_or_create(&[("cache", cache)]).inc_by(difference);
        }
    }
}
