//! What was written and is not in the cache yet.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::ResourceVersion;

/// How long a cache may take to show a write before it is believed again.
pub const EXPECTATION_TIMEOUT: SignedDuration = SignedDuration::from_secs(10);

/// What this process wrote, by key, until the cache has left the version that it was written on.
///
/// `V` tells versions apart: the resource version where the write was conditional on it, or the value that the write
/// replaced and was conditional on.
#[derive(Debug, Clone)]
pub struct Expectations<K, W, V = ResourceVersion>(BTreeMap<K, Expectation<W, V>>);

#[derive(Debug, Clone)]
struct Expectation<W, V> {
    bases: Vec<V>,
    written: W,
    until: Timestamp,
}

impl<K, W, V> Default for Expectations<K, W, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, W, V: PartialEq> Expectations<K, W, V> {
    /// `written` has replaced what was there as `base`.
    pub fn expect(&mut self, key: K, base: V, written: W, now: Timestamp) {
        self.expect_until(key, base, written, saturating_add(now, EXPECTATION_TIMEOUT));
    }

    /// As [`Expectations::expect`], believed until this time. A dry run sets no end: nobody else writes what it would have.
    pub fn expect_until(&mut self, key: K, base: V, written: W, until: Timestamp) {
        let bases = vec![base];
        self.0.insert(key, Expectation { bases, written, until });
    }

    /// As [`Expectations::expect`], for a write onto our own last one, which the cache need not show yet: while it still
    /// shows what that one replaced, it is two versions behind.
    pub fn expect_onto(&mut self, key: K, base: V, written: W, now: Timestamp) {
        self.expect_onto_until(key, base, written, saturating_add(now, EXPECTATION_TIMEOUT), now);
    }

    /// The same, believed until this time.
    pub fn expect_onto_until(&mut self, key: K, base: V, written: W, until: Timestamp, now: Timestamp) {
        let pending = self.0.remove(&key).filter(|pending| now < pending.until);
        let mut bases = pending.map(|pending| pending.bases).unwrap_or_default();
        bases.push(base);
        self.0.insert(key, Expectation { bases, written, until });
    }

    /// What was written, if the cache still shows the version before it; otherwise the cache is right.
    pub fn effective(&mut self, key: &K, cached: &V, now: Timestamp) -> Option<&W> {
        let pending = self.0.get(key)?;
        if !pending.bases.contains(cached) || pending.until <= now {
            self.0.remove(key);
        }
        self.0.get(key).map(|pending| &pending.written)
    }

    /// What is written to these may not be in the cache yet.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    /// Forgets expectations that have ended. Nobody asks for those of objects that are gone.
    pub fn forget_expired(&mut self, now: Timestamp) {
        self.0.retain(|_, pending| now < pending.until);
    }

    /// When the next expectation ends, and the cache is believed again.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.0.values().map(|pending| pending.until).min()
    }

    /// Forgets objects that are gone.
    pub fn retain(&mut self, mut keep: impl FnMut(&K) -> bool) {
        self.0.retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_write_counts_until_the_cache_leaves_its_base() {
        let mut expectations = Expectations::<&str, &str, u32>::default();
        expectations.expect("a", 1, "written", second(0));
        assert_eq!(expectations.effective(&"a", &1, second(9)), Some(&"written"));
        assert_eq!(expectations.effective(&"b", &1, second(9)), None);
        assert_eq!(expectations.effective(&"a", &2, second(9)), None, "the cache is newer");
        assert_eq!(expectations.effective(&"a", &1, second(9)), None, "for good");
    }

    #[test]
    fn cache_two_writes_behind_is_still_behind() {
        let mut expectations = Expectations::<&str, &str, u32>::default();
        expectations.expect_onto("a", 1, "first", second(0));
        expectations.expect_onto("a", 2, "second", second(1));
        assert_eq!(expectations.effective(&"a", &1, second(2)), Some(&"second"));
        assert_eq!(expectations.effective(&"a", &2, second(2)), Some(&"second"));
        assert_eq!(expectations.effective(&"a", &3, second(2)), None);
        expectations.expect_onto("a", 3, "third", second(3));
        assert_eq!(expectations.effective(&"a", &1, second(3)), None, "none was pending");
    }

    #[test]
    fn expectation_ends_at_its_timeout() {
        let mut expectations = Expectations::<&str, &str, u32>::default();
        expectations.expect("a", 1, "written", second(0));
        expectations.expect_until("dry run", 1, "written", Timestamp::MAX);
        assert_eq!(expectations.next_expiry(), Some(second(10)));
        assert_eq!(expectations.effective(&"a", &1, second(10)), None);
        assert_eq!(expectations.effective(&"dry run", &1, second(10)), Some(&"written"));
        assert_eq!(expectations.next_expiry(), Some(Timestamp::MAX));
    }

    #[test]
    fn ended_expectation_wakes_nobody() {
        let mut expectations = Expectations::<&str, &str, u32>::default();
        expectations.expect("a", 1, "written", second(0));
        expectations.forget_expired(second(9));
        assert_eq!(expectations.next_expiry(), Some(second(10)));
        expectations.forget_expired(second(10));
        assert_eq!(expectations.next_expiry(), None);
    }

    #[test]
    fn objects_that_are_gone_are_forgotten() {
        let mut expectations = Expectations::<&str, &str, u32>::default();
        expectations.expect("a", 1, "written", second(0));
        expectations.retain(|_| false);
        assert_eq!(expectations.effective(&"a", &1, second(0)), None);
    }
}
