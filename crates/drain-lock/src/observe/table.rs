//! The objects of a kind of which there are few enough for a plain map.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Objects of one kind, kept as a watch tells.
pub(super) trait Store<K, V> {
    fn len(&self) -> usize;

    /// A list begins: what is there now has not been named by it.
    fn begin_generation(&mut self);

    /// Takes an object in; whether it is different from what was known.
    fn put(&mut self, key: K, value: V) -> bool;

    /// Forgets an object; whether it was there.
    fn remove(&mut self, key: &K) -> bool;

    /// What the list that ended has not named.
    fn unlisted(&self) -> Vec<K>;
}

/// Objects by key.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    /// With the list that named it last, or that was the last when it changed, by its number.
    entries: BTreeMap<K, (Arc<V>, u32)>,
    generation: u32,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            generation: 0,
        }
    }
}

impl<K: Ord, V> Table<K, V> {
    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&Arc<V>>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map(|(value, _)| value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &Arc<V>)> {
        self.entries.iter().map(|(key, (value, _))| (key, value))
    }

    pub(super) fn to_map(&self) -> BTreeMap<K, Arc<V>>
    where
        K: Clone,
    {
        self.iter()
            .map(|(key, value)| (key.clone(), Arc::clone(value)))
            .collect()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<V>> {
        self.entries.values().map(|(value, _)| value)
    }
}

impl<K: Ord + Clone, V: PartialEq> Store<K, V> for Table<K, V> {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn begin_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    fn put(&mut self, key: K, value: V) -> bool {
        let generation = self.generation;
        if let Some((known, listed_in)) = self.entries.get_mut(&key) {
            *listed_in = generation;
            if **known == value {
                return false;
            }
            *known = Arc::new(value);
            return true;
        }
        self.entries.insert(key, (Arc::new(value), generation));
        true
    }

    fn remove(&mut self, key: &K) -> bool {
        self.entries.remove(key).is_some()
    }

    fn unlisted(&self) -> Vec<K> {
        let old = self
            .entries
            .iter()
            .filter(|(_, (_, listed_in))| *listed_in != self.generation);
        old.map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(table: &Table<String, i32>) -> Vec<&str> {
        table.iter().map(|(key, _)| key.as_str()).collect()
    }

    #[test]
    fn what_a_complete_list_did_not_name_is_gone() {
        let mut table = Table::default();
        for name in ["a", "b", "c"] {
            table.put(name.to_owned(), 1);
        }
        table.begin_generation();
        table.put("a".to_owned(), 1);
        // The list breaks off, and another begins.
        table.begin_generation();
        table.put("b".to_owned(), 2);
        assert_eq!(keys(&table), ["a", "b", "c"]);
        assert_eq!(table.unlisted(), ["a", "c"]);
    }

    #[test]
    fn only_a_different_value_is_a_change() {
        let mut table = Table::default();
        assert!(table.put("a".to_owned(), 1));
        assert!(!table.put("a".to_owned(), 1));
        assert!(table.put("a".to_owned(), 2));
        assert!(table.remove(&"a".to_owned()));
        assert!(!table.remove(&"a".to_owned()));
    }
}
