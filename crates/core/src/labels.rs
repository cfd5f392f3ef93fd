//! Labels of pods and nodes, kept small: a cluster repeats the same few keys and values a hundred thousand times.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Labels, sorted by key. Keys and values are shared with whoever else carries them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Labels(Box<[(Arc<str>, Arc<str>)]>);

impl Labels {
    /// Labels as an object's metadata has them; `shared` answers with the one copy of a text.
    pub fn project(labels: Option<&BTreeMap<String, String>>, mut shared: impl FnMut(&str) -> Arc<str>) -> Self {
        let labels = labels.into_iter().flatten();
        Self(labels.map(|(key, value)| (shared(key), shared(value))).collect())
    }

    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.shared(key).map(|value| &**value)
    }

    /// The value of a label, shared.
    pub fn shared(&self, key: &str) -> Option<&Arc<str>> {
        let index = self.0.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        self.0.get(index).map(|(_, value)| value)
    }

    /// All of them, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(labels: I) -> Self {
        let sorted: BTreeMap<Arc<str>, Arc<str>> = labels
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        Self(sorted.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_whatever_the_order_they_came_in() {
        let labels: Labels = [("tier", "front"), ("app", "web"), ("zone", "")].into_iter().collect();
        assert_eq!(labels.get("app"), Some("web"));
        assert_eq!(labels.get("tier"), Some("front"));
        assert_eq!(labels.get("zone"), Some(""));
        assert_eq!(labels.get("ap"), None);
        assert_eq!(
            labels.iter().map(|(key, _)| key).collect::<Vec<_>>(),
            ["app", "tier", "zone"]
        );
    }
}
