//! Projected watches: what an operator knows about the cluster.
//!
//! Objects are projected to small values of the operator's own as they arrive, before they are stored: an ordinary pod
//! costs 75 KB in a store of whole objects and well below 1 KB as a projection. kube's own store is not used; shared
//! between consumers it drops deletes (kube issue 1590).

mod failure_log;
mod index;
mod list_watch;
mod selection;
mod store;
#[cfg(test)]
mod tests;
mod watches;

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kube::Resource;
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;

pub use index::{Index, Previous};
pub use nodeward_core::id::NamespacedName;
pub use nodeward_core::signal::KindState;
pub use selection::Selection;
pub use store::{Change, Content, Store};
pub use watches::Watches;

use crate::supervise::SharedTask;
use watches::WatchMetrics;

/// What can be listed and watched.
pub trait Watchable: Resource + Clone + DeserializeOwned + Debug + Send + 'static {}

impl<K: Resource + Clone + DeserializeOwned + Debug + Send + 'static> Watchable for K {}

/// A view of the cluster that one watch keeps current. Clones share it; dropping the last one closes the watch.
pub struct Cache<V> {
    store: Arc<RwLock<Store<V>>>,
    handle: WatchHandle,
}

/// A watch that feeds an [`Index`]. Clones share it; dropping the last one closes the watch.
#[derive(Clone)]
pub struct WatchHandle {
    shared: Arc<WatchShared>,
    _task: SharedTask,
}

/// Bookmarks come about once a minute: a watch without a response for so long is cut off.
pub const STALE_AFTER: Duration = Duration::from_mins(5);

/// How a cache's watch fares.
#[derive(Clone, Debug, Default)]
pub struct WatchHealth {
    /// When the server last gave a sign of life. A quiet watch brings a bookmark about once a minute.
    pub last_response: Option<Instant>,
    /// Complete lists so far; 1 after a quiet start.
    pub lists: u64,
    /// Failed requests so far.
    pub failures: u64,
    /// The last failure.
    pub last_error: Option<Arc<str>>,
}

struct WatchShared {
    name: &'static str,
    objects: AtomicUsize,
    health: Mutex<WatchHealth>,
    status: Arc<Status>,
    metrics: WatchMetrics,
}

/// The part of a cache that does not depend on what it holds.
pub(crate) struct Status {
    state: watch::Sender<KindState>,
    synced: watch::Sender<bool>,
    revision: watch::Sender<u64>,
    not_served: watch::Sender<u64>,
    polled: AtomicBool,
}

impl Status {
    fn new() -> Self {
        Self {
            state: watch::Sender::new(KindState::Syncing),
            synced: watch::Sender::new(false),
            revision: watch::Sender::new(0),
            not_served: watch::Sender::new(0),
            polled: AtomicBool::new(false),
        }
    }

    pub(crate) fn state(&self) -> KindState {
        self.state.borrow().clone()
    }

    pub(crate) fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// How often the server has answered as if it did not serve the resource: with a 404, or, where it knows nothing of the
    /// whole API group, with a plain text that is no event.
    pub(crate) fn not_served(&self) -> watch::Receiver<u64> {
        self.not_served.subscribe()
    }
}

impl WatchHandle {
    /// The name that probes, logs and metrics use.
    pub fn name(&self) -> &'static str {
        self.shared.name
    }

    /// How far the content can be trusted.
    pub fn state(&self) -> KindState {
        self.shared.status.state()
    }

    /// Whether the content has been complete once. It stays so while a relist is in progress: the old content remains
    /// visible until the new one replaces it as a whole.
    pub fn is_synced(&self) -> bool {
        self.shared.status.is_synced()
    }

    /// Whether decisions may rest on the content: it is complete, and the server has answered lately. A server that restarts
    /// answers 403 for a moment, which changes nothing; one that goes on doing so sends no bookmarks.
    pub fn is_fresh(&self) -> bool {
        let last_response = self.health().last_response;
        self.is_synced() && last_response.is_some_and(|at| at.elapsed() < STALE_AFTER)
    }

    /// Whether the content is only read from time to time ([`Selection::or_polled`]), and may be as old as that.
    pub fn is_polled(&self) -> bool {
        self.shared.status.polled.load(Ordering::Relaxed)
    }

    /// Returns when the content has been complete once.
    pub async fn wait_synced(&self) {
        let mut synced = self.shared.status.synced.subscribe();
        // The sender lives in what `self` holds, so waiting cannot fail.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// A number that grows with every change of content, state or freshness, to be waited on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.status.revision.subscribe()
    }

    /// How the watch fares.
    pub fn health(&self) -> WatchHealth {
        self.shared.health.lock().clone()
    }

    pub(crate) fn status_view(&self) -> Arc<Status> {
        Arc::clone(&self.shared.status)
    }
}

impl<V> Cache<V> {
    /// One object.
    pub fn get(&self, key: &NamespacedName) -> Option<Arc<V>> {
        self.store.read().get(key)
    }

    /// All objects at one moment. Costs no copy, and does not move while the cache does; drop it soon, for as long as it
    /// lives the next change has to copy the map (not the values).
    pub fn snapshot(&self) -> Content<V> {
        self.store.read().content()
    }

    /// How many objects are visible.
    pub fn len(&self) -> usize {
        self.store.read().len()
    }

    /// Whether no object is visible.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A cache is a watch whose index is the map of projected values.
impl<V> Deref for Cache<V> {
    type Target = WatchHandle;

    fn deref(&self) -> &WatchHandle {
        &self.handle
    }
}

impl<V> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            handle: self.handle.clone(),
        }
    }
}
