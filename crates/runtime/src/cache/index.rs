//! What a watch feeds.

use std::sync::Arc;

use kube::Resource;
use parking_lot::RwLock;

use super::{Change, NamespacedName, Store};

/// Takes in what a watch tells, and keeps of it what its owner needs, in a shape of the owner's own.
///
/// The calls come from one task, in the order of the watch; readers must be served from behind a lock of the index's own.
/// Whatever a list did not name between [`Index::list_began`] and [`Index::list_ended`] no longer exists. A list that
/// breaks off begins again.
///
/// Each method but the first returns whether what readers see has changed in a way that the loop should look at.
pub trait Index<K>: Send + 'static {
    /// A complete list begins; one that was under way is void.
    fn list_began(&mut self);

    fn listed(&mut self, object: K) -> bool;

    /// The list is complete.
    fn list_ended(&mut self) -> bool;

    /// An object was added or modified.
    fn applied(&mut self, object: K) -> bool;

    /// An object was deleted; this is its last state.
    fn deleted(&mut self, object: K) -> bool;

    /// How many objects it holds, for the metrics.
    fn objects(&self) -> usize;
}

/// What a cache knows of an object when the watch tells of it anew.
#[derive(Debug)]
pub struct Previous<V> {
    /// Its value; `None` for an object that is new to the cache.
    pub value: Option<Arc<V>>,
    /// No list has been complete yet: how long the object has been as it is, nobody saw.
    pub is_first_list: bool,
}

/// The index of a cache: projects, and stores.
pub(super) struct StoreIndex<V, P> {
    pub(super) store: Arc<RwLock<Store<V>>>,
    pub(super) project: P,
}

impl<K, V, P> Index<K> for StoreIndex<V, P>
where
    K: Resource,
    V: PartialEq + Send + Sync + 'static,
    P: FnMut(K, Previous<V>) -> Option<V> + Send + 'static,
{
    fn list_began(&mut self) {
        self.apply(Change::ListBegan);
    }

    fn listed(&mut self, object: K) -> bool {
        self.put(object, Change::Listed)
    }

    fn list_ended(&mut self) -> bool {
        self.apply(Change::ListEnded)
    }

    fn applied(&mut self, object: K) -> bool {
        self.put(object, Change::Applied)
    }

    fn deleted(&mut self, object: K) -> bool {
        NamespacedName::of(object.meta()).is_some_and(|key| self.apply(Change::Deleted(key)))
    }

    fn objects(&self) -> usize {
        self.store.read().len()
    }
}

impl<V: PartialEq, P> StoreIndex<V, P> {
    fn put<K>(&mut self, object: K, change: impl Fn(NamespacedName, Option<V>) -> Change<V>) -> bool
    where
        K: Resource,
        P: FnMut(K, Previous<V>) -> Option<V>,
    {
        let Some(key) = NamespacedName::of(object.meta()) else {
            return false;
        };
        let known = {
            let store = self.store.read();
            Previous {
                value: store.get(&key),
                is_first_list: !store.is_synced(),
            }
        };
        let value = (self.project)(object, known);
        self.apply(change(key, value))
    }

    fn apply(&self, change: Change<V>) -> bool {
        self.store.write().apply(change)
    }
}
