//! Keeps one copy of what many objects have in common.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Below this size nothing is gained by forgetting.
const SMALL: usize = 1024;

/// Values of one kind, each kept once for as long as somebody else uses it.
#[derive(Debug)]
pub struct Pool<T: ?Sized> {
    known: HashSet<Arc<T>>,
    /// At this size unused values are forgotten: twice what was in use the last time, so that the cost of looking is
    /// spread over as many additions.
    full_at: usize,
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self {
            known: HashSet::new(),
            full_at: SMALL,
        }
    }
}

impl<T: ?Sized + Eq + Hash> Pool<T> {
    /// The one copy of `value`, which `make` makes if there is none yet.
    fn shared<Q>(&mut self, value: &Q, make: impl FnOnce() -> Arc<T>) -> Arc<T>
    where
        Arc<T>: std::borrow::Borrow<Q>,
        Q: ?Sized + Eq + Hash,
    {
        if let Some(known) = self.known.get(value) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.full_at {
            self.known.retain(|value| Arc::strong_count(value) > 1);
            self.full_at = (self.known.len() * 2).max(SMALL);
            self.known.shrink_to(self.full_at);
        }
        let made = make();
        self.known.insert(Arc::clone(&made));
        made
    }
}

impl Pool<str> {
    /// The one copy of a text.
    pub fn text(&mut self, text: &str) -> Arc<str> {
        self.shared(text, || Arc::from(text))
    }
}

impl<T: Eq + Hash> Pool<T> {
    /// The one copy of a value.
    pub fn value(&mut self, value: T) -> Arc<T> {
        if let Some(known) = self.known.get(&value) {
            return Arc::clone(known);
        }
        let made = Arc::new(value);
        self.shared(&Arc::clone(&made), || made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_kept_once() {
        let mut texts = Pool::default();
        let (first, second) = (texts.text("app"), texts.text("app"));
        assert!(Arc::ptr_eq(&first, &second));
        let mut values = Pool::default();
        let (first, second) = (values.value(vec![1, 2]), values.value(vec![1, 2]));
        assert!(Arc::ptr_eq(&first, &second));
        assert!(!Arc::ptr_eq(&first, &values.value(vec![2, 1])));
    }

    #[test]
    fn what_nobody_uses_any_more_is_forgotten() {
        let mut texts = Pool::default();
        let used = texts.text("used");
        for number in 0..20 * SMALL {
            texts.text(&number.to_string());
        }
        assert!(texts.known.len() <= 2 * SMALL, "{}", texts.known.len());
        assert!(Arc::ptr_eq(&used, &texts.text("used")));
    }
}
