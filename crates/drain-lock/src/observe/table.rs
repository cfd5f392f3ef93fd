//! The objects of a kind of which there are few enough for a plain map.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Objects by key, kept as a watch tells.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    /// With the list that named it last, or that was the last when it changed.
    entries: BTreeMap<K, (Arc<V>, u32)>,
    round: u32,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            round: 0,
        }
    }
}

impl<K: Ord + Clone, V: PartialEq> Table<K, V> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&Arc<V>>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map(|(value, _)| value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &Arc<V>)> {
        self.entries.iter().map(|(key, (value, _))| (key, value))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<V>> {
        self.entries.values().map(|(value, _)| value)
    }

    /// A list begins.
    pub(super) fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Takes an object in; whether it is different from what was known.
    pub(super) fn put(&mut self, key: K, value: V) -> bool {
        let round = self.round;
        if let Some((known, named)) = self.entries.get_mut(&key) {
            *named = round;
            if **known == value {
                return false;
            }
            *known = Arc::new(value);
            return true;
        }
        self.entries.insert(key, (Arc::new(value), round));
        true
    }

    /// Forgets an object; answers with what was known of it.
    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
    {
        self.entries.remove(key).map(|(value, _)| value)
    }

    /// Forgets what the list that ended has not named, and answers with it.
    pub(super) fn sweep(&mut self) -> Vec<(K, Arc<V>)> {
        let round = self.round;
        let gone: Vec<K> = self
            .entries
            .iter()
            .filter(|(_, (_, named))| *named != round)
            .map(|(key, _)| key.clone())
            .collect();
        gone.into_iter()
            .filter_map(|key| {
                let (value, _) = self.entries.remove(&key)?;
                Some((key, value))
            })
            .collect()
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
        table.begin_round();
        table.put("a".to_owned(), 1);
        // The list breaks off, and another begins.
        table.begin_round();
        table.put("b".to_owned(), 2);
        assert_eq!(keys(&table), ["a", "b", "c"]);
        let gone: Vec<String> = table.sweep().into_iter().map(|(key, _)| key).collect();
        assert_eq!(gone, ["a", "c"]);
        assert_eq!(keys(&table), ["b"]);
    }

    #[test]
    fn only_a_different_value_is_a_change() {
        let mut table = Table::default();
        assert!(table.put("a".to_owned(), 1));
        assert!(!table.put("a".to_owned(), 1));
        assert!(table.put("a".to_owned(), 2));
        assert_eq!(table.remove("a").as_deref(), Some(&2));
        assert_eq!(table.remove("a"), None);
    }
}
