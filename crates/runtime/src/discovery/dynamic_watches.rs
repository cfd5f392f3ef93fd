//! Watches of kinds that are only known at run time: a configuration names them, or the objects of users do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::core::DynamicObject;
use nodeward_core::deadline::saturating_add;
use nodeward_core::signal::WatchedResource;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{DynamicCache, KindRegistry};
use crate::cache::{KindState, Watches};
use crate::readiness::Readiness;

/// How long decisions wait for the first list of a kind.
pub const LIST_PATIENCE: Duration = Duration::from_secs(30);

type Projection<V> = dyn Fn(&WatchedResource, DynamicObject) -> Option<V> + Send + Sync;

/// A set of watches that follows what is wanted of it.
pub struct DynamicWatches<V> {
    name: &'static str,
    watches: Watches,
    kinds: KindRegistry,
    project: Arc<Projection<V>>,
    poll_interval: Option<Duration>,
    open: BTreeMap<WatchedResource, DynamicWatch<V>>,
    /// What is not known yet, for the readiness probe.
    unsettled: Arc<Mutex<Vec<String>>>,
}

/// Until when the first list of a watch that was opened at `opened` is waited for; `None` once that has passed.
pub fn end_of_patience(opened: Instant) -> Option<Timestamp> {
    let left = (opened + LIST_PATIENCE).checked_duration_since(Instant::now())?;
    let left = SignedDuration::try_from(left).ok()?;
    left.is_positive().then(|| saturating_add(Timestamp::now(), left))
}

/// The watch of one kind.
struct DynamicWatch<V> {
    cache: DynamicCache<V>,
    opened: Instant,
}

impl<V> DynamicWatch<V> {
    fn is_syncing(&self) -> bool {
        self.cache.state() == KindState::Syncing
    }

    /// Until when its first list is waited for, if it is still to come. After that it counts as unknown, so that one kind
    /// that cannot be listed does not stop the others.
    fn waits_until(&self) -> Option<Timestamp> {
        let until = end_of_patience(self.opened);
        until.filter(|_| self.is_syncing())
    }
}

impl<V: PartialEq + Send + Sync + 'static> DynamicWatches<V> {
    /// Nothing watched yet. `name` is what logs and metrics call the watches; `project` works as in [`Watches::cache`].
    pub fn new(
        name: &'static str,
        watches: &Watches,
        kinds: &KindRegistry,
        project: impl Fn(&WatchedResource, DynamicObject) -> Option<V> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            watches: watches.clone(),
            kinds: kinds.clone(),
            project: Arc::new(project),
            poll_interval: None,
            open: BTreeMap::new(),
            unsettled: Arc::default(),
        }
    }

    /// What may not be watched is read as often as this.
    #[must_use]
    pub fn or_polled(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval);
        self
    }

    /// From now on `/readyz` is 503 while a wanted kind has neither been listed, nor is known to be absent or forbidden.
    #[must_use]
    pub fn required_by(self, readiness: &Readiness) -> Self {
        let unsettled = Arc::clone(&self.unsettled);
        readiness.require(self.name, move || {
            let unsettled = unsettled.lock();
            if unsettled.is_empty() {
                Ok(())
            } else {
                Err(format!("not listed yet: {}", unsettled.join(", ")))
            }
        });
        self
    }

    /// Watches these, and nothing else. Cheap where nothing has changed: call it in every pass, which also keeps the probe
    /// true.
    pub fn follow(&mut self, wanted: BTreeSet<WatchedResource>) {
        self.open.retain(|resource, _| wanted.contains(resource));
        for resource in wanted {
            if !self.open.contains_key(&resource) {
                let cache = self.open(&resource);
                let opened = Instant::now();
                self.open.insert(resource, DynamicWatch { cache, opened });
            }
        }
        let syncing = self.open.iter().filter(|(_, watch)| watch.is_syncing());
        *self.unsettled.lock() = syncing.map(|(resource, _)| resource.to_string()).collect();
    }

    fn open(&self, resource: &WatchedResource) -> DynamicCache<V> {
        let (project, watched) = (Arc::clone(&self.project), resource.clone());
        let poll_interval = self.poll_interval;
        self.watches.dynamic_selecting(
            self.name,
            &self.kinds,
            resource.clone(),
            move |selection| match poll_interval {
                Some(interval) => selection.or_polled(interval),
                None => selection,
            },
            move |object| project(&watched, object),
        )
    }

    /// Until when to wait for the first list of a kind, if one is still to come and worth waiting for.
    pub fn waits_until(&self) -> Option<Timestamp> {
        self.open.values().filter_map(DynamicWatch::waits_until).min()
    }

    /// What is known of each.
    pub fn iter(&self) -> impl Iterator<Item = (&WatchedResource, &DynamicCache<V>)> {
        self.open.iter().map(|(resource, watch)| (resource, &watch.cache))
    }

    /// What is known of one that is followed.
    pub fn get(&self, resource: &WatchedResource) -> Option<&DynamicCache<V>> {
        self.open.get(resource).map(|watch| &watch.cache)
    }
}
