//! What a cache holds, and how each change of a watch alters it. No I/O: a sequence of changes in, a content out.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::NamespacedName;

/// The objects of a cache, shared with whoever took a snapshot.
pub type Content<V> = Arc<BTreeMap<NamespacedName, Arc<V>>>;

/// One step of a watch, already projected. A value of `None` is an object that the projection leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<V> {
    /// A complete list begins; one that was under way is void.
    ListBegan,
    /// An object of that list.
    Listed(NamespacedName, Option<V>),
    /// The list is complete: what it did not name no longer exists.
    ListEnded,
    /// An object was added or modified.
    Applied(NamespacedName, Option<V>),
    /// An object was deleted.
    Deleted(NamespacedName),
}

/// The content of a cache, and the list that will replace it when complete.
#[derive(Debug)]
pub struct Store<V> {
    content: Content<V>,
    list: Option<BTreeMap<NamespacedName, Arc<V>>>,
    synced: bool,
}

impl<V> Default for Store<V> {
    fn default() -> Self {
        Self {
            content: Arc::default(),
            list: None,
            synced: false,
        }
    }
}

impl<V> Store<V> {
    /// What is visible now. Costs no copy; a later change copies the map if this snapshot still lives then.
    pub fn content(&self) -> Content<V> {
        Arc::clone(&self.content)
    }

    /// One visible object.
    pub fn get(&self, key: &NamespacedName) -> Option<Arc<V>> {
        self.content.get(key).cloned()
    }

    /// How many objects are visible.
    pub fn len(&self) -> usize {
        self.content.len()
    }

    /// Whether no object is visible.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty()
    }

    /// Whether a list has been complete once.
    pub fn is_synced(&self) -> bool {
        self.synced
    }
}

impl<V: PartialEq> Store<V> {
    /// Takes one change in, and tells whether what is visible changed by it. The end of the first list is such a change
    /// even when it was empty: from then on absence means something.
    pub fn apply(&mut self, change: Change<V>) -> bool {
        match change {
            Change::ListBegan => {
                self.list = Some(BTreeMap::new());
                false
            }
            Change::Listed(key, value) => {
                let value = value.map(|value| self.known_or_new(&key, value));
                let list = self.list.get_or_insert_default();
                match value {
                    Some(value) => list.insert(key, value),
                    None => list.remove(&key),
                };
                false
            }
            Change::ListEnded => self.replace_content(),
            Change::Applied(key, Some(value)) => self.put(key, value),
            Change::Applied(key, None) | Change::Deleted(key) => self.remove(&key),
        }
    }

    /// Keeps the allocation of a value that did not change, so that a relist neither doubles nor fragments memory.
    fn known_or_new(&self, key: &NamespacedName, value: V) -> Arc<V> {
        match self.content.get(key) {
            Some(known) if **known == value => Arc::clone(known),
            _ => Arc::new(value),
        }
    }

    fn replace_content(&mut self) -> bool {
        let list = self.list.take().unwrap_or_default();
        let first = !std::mem::replace(&mut self.synced, true);
        let changed = first || *self.content != list;
        if changed {
            self.content = Arc::new(list);
        }
        changed
    }

    fn put(&mut self, key: NamespacedName, value: V) -> bool {
        if self.content.get(&key).is_some_and(|known| **known == value) {
            return false;
        }
        Arc::make_mut(&mut self.content).insert(key, Arc::new(value));
        true
    }

    fn remove(&mut self, key: &NamespacedName) -> bool {
        self.content.contains_key(key) && Arc::make_mut(&mut self.content).remove(key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::{Change, Store};
    use crate::cache::NamespacedName;

    fn key(name: &str) -> NamespacedName {
        NamespacedName::cluster(name)
    }

    fn listed(name: &str, value: i32) -> Change<i32> {
        Change::Listed(key(name), Some(value))
    }

    fn applied(name: &str, value: i32) -> Change<i32> {
        Change::Applied(key(name), Some(value))
    }

    fn synced_with(objects: &[(&str, i32)]) -> Store<i32> {
        let mut store = Store::default();
        store.apply(Change::ListBegan);
        for (name, value) in objects {
            store.apply(listed(name, *value));
        }
        store.apply(Change::ListEnded);
        store
    }

    fn visible(store: &Store<i32>) -> Vec<(String, i32)> {
        store
            .content()
            .iter()
            .map(|(key, value)| (key.to_string(), **value))
            .collect()
    }

    fn pairs(objects: &[(&str, i32)]) -> Vec<(String, i32)> {
        objects
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    }

    #[rstest]
    #[case::added(&[applied("b", 2)], &[("a", 1), ("b", 2)])]
    #[case::modified(&[applied("a", 9)], &[("a", 9)])]
    #[case::deleted(&[Change::Deleted(key("a"))], &[])]
    #[case::left_out_by_the_projection(&[Change::Applied(key("a"), None)], &[])]
    #[case::relist_under_way_changes_nothing(&[Change::ListBegan, listed("b", 2)], &[("a", 1)])]
    #[case::deleted_in_a_gap(&[Change::ListBegan, listed("b", 2), Change::ListEnded], &[("b", 2)])]
    #[case::empty_relist(&[Change::ListBegan, Change::ListEnded], &[])]
    #[case::broken_list_is_void(
        &[Change::ListBegan, listed("ghost", 1), Change::ListBegan, listed("b", 2), Change::ListEnded],
        &[("b", 2)]
    )]
    #[case::changed_while_listed(&[Change::ListBegan, listed("b", 2), Change::Listed(key("b"), None), Change::ListEnded], &[])]
    #[case::delete_after_relist(
        &[Change::ListBegan, listed("a", 1), listed("b", 2), Change::ListEnded, Change::Deleted(key("b"))],
        &[("a", 1)]
    )]
    #[case::unknown_deleted(&[Change::Deleted(key("never seen"))], &[("a", 1)])]
    fn what_is_visible_follows_the_watch(#[case] changes: &[Change<i32>], #[case] expected: &[(&str, i32)]) {
        let mut store = synced_with(&[("a", 1)]);
        for change in changes {
            store.apply(change.clone());
        }
        assert_eq!(visible(&store), pairs(expected));
    }

    #[test]
    fn store_syncs_with_the_first_complete_list() {
        let mut store = Store::default();
        store.apply(Change::ListBegan);
        store.apply(listed("a", 1));
        assert!(!store.is_synced());
        assert_eq!(visible(&store), []);
        assert!(store.apply(Change::ListEnded), "becoming complete is a change");
        assert!(store.is_synced());
    }

    #[test]
    fn only_first_empty_list_is_a_change() {
        let mut store = Store::<i32>::default();
        store.apply(Change::ListBegan);
        assert!(store.apply(Change::ListEnded));
        store.apply(Change::ListBegan);
        assert!(!store.apply(Change::ListEnded));
    }

    #[rstest]
    #[case::same_value(&[applied("a", 1)], false)]
    #[case::other_value(&[applied("a", 2)], true)]
    #[case::same_list(&[Change::ListBegan, listed("a", 1), Change::ListEnded], false)]
    #[case::unknown_deleted(&[Change::Deleted(key("b"))], false)]
    #[case::unknown_left_out(&[Change::Applied(key("b"), None)], false)]
    fn only_a_change_of_the_projected_value_counts(#[case] changes: &[Change<i32>], #[case] expected: bool) {
        let mut store = synced_with(&[("a", 1)]);
        let changed = changes
            .iter()
            .fold(false, |changed, change| store.apply(change.clone()) | changed);
        assert_eq!(changed, expected);
    }

    #[test]
    fn a_snapshot_does_not_move_while_the_cache_does() {
        let mut store = synced_with(&[("a", 1)]);
        let snapshot = store.content();
        store.apply(applied("a", 2));
        assert_eq!(*snapshot[&key("a")], 1);
        assert_eq!(visible(&store), pairs(&[("a", 2)]));
    }

    #[test]
    fn relist_keeps_unchanged_allocations() {
        let mut store = synced_with(&[("a", 1), ("b", 2)]);
        let before = store.get(&key("a")).unwrap();
        for change in [Change::ListBegan, listed("a", 1), listed("b", 3), Change::ListEnded] {
            store.apply(change);
        }
        assert!(Arc::ptr_eq(&before, &store.get(&key("a")).unwrap()));
    }
}
