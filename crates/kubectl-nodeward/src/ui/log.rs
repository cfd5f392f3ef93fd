//! Nodeward's Events as they come: the newest of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use nodeward_runtime::cache::Index;
use parking_lot::RwLock;

use crate::model::events::LogLine;

/// How many Events are kept: an upgrade of a large fleet makes ten thousands an hour.
const KEPT: usize = 500;

/// The newest Events of one component.
#[derive(Debug, Default)]
pub struct Log {
    lines: BTreeMap<String, Arc<LogLine>>,
    /// Times and UIDs, the oldest first.
    order: BTreeSet<(Option<Timestamp>, String)>,
    /// UIDs that the list under way has named.
    listed: BTreeSet<String>,
}

impl Log {
    pub fn lines(&self) -> &BTreeMap<String, Arc<LogLine>> {
        &self.lines
    }

    fn remove(&mut self, uid: &str) -> bool {
        let line = self.lines.remove(uid);
        if let Some(line) = &line {
            self.order.remove(&(line.at, uid.to_owned()));
        }
        line.is_some()
    }

    fn put(&mut self, event: &Event) -> bool {
        let (uid, line) = (event.uid().unwrap_or_default(), LogLine::of(event));
        if self.lines.get(&uid).is_some_and(|known| **known == line) {
            return false;
        }
        self.remove(&uid);
        self.order.insert((line.at, uid.clone()));
        self.lines.insert(uid.clone(), Arc::new(line));
        if self.lines.len() > KEPT
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.lines.remove(&oldest);
            return oldest != uid;
        }
        true
    }
}

/// Feeds a [`Log`].
pub struct LogIndex(pub Arc<RwLock<Log>>);

impl Index<Event> for LogIndex {
    fn list_began(&mut self) {
        self.0.write().listed.clear();
    }

    fn listed(&mut self, event: Event) -> bool {
        let mut log = self.0.write();
        log.listed.insert(event.uid().unwrap_or_default());
        log.put(&event)
    }

    fn list_ended(&mut self) -> bool {
        let mut log = self.0.write();
        let listed = std::mem::take(&mut log.listed);
        let gone: Vec<String> = log.lines.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        gone.iter().fold(false, |changed, uid| log.remove(uid) | changed)
    }

    fn applied(&mut self, event: Event) -> bool {
        self.0.write().put(&event)
    }

    fn deleted(&mut self, event: Event) -> bool {
        self.0.write().remove(&event.uid().unwrap_or_default())
    }

    fn objects(&self) -> usize {
        self.0.read().lines.len()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(uid: &str, at: &str) -> Event {
        let event = json!({
            "metadata": { "namespace": "shop", "name": "e", "uid": uid }, "reason": "BudgetOverridden",
            "involvedObject": { "kind": "Pod", "namespace": "shop", "name": "db-0" }, "eventTime": at,
        });
        serde_json::from_value(event).unwrap()
    }

    fn at(second: usize) -> String {
        format!("2026-01-01T10:{:02}:{:02}.000000Z", second / 60, second % 60)
    }

    #[test]
    fn newest_events_stay() {
        let log = Arc::new(RwLock::new(Log::default()));
        let mut index = LogIndex(Arc::clone(&log));
        index.list_began();
        // The API lists them by name, not by time.
        for second in (0..KEPT + 20).rev() {
            index.listed(event(&second.to_string(), &at(second)));
        }
        index.list_ended();
        assert_eq!(index.objects(), KEPT);
        assert!(!log.read().lines().contains_key("19") && log.read().lines().contains_key("20"));
        assert!(!index.applied(event("old", &at(1))), "an older one changes nothing");
        assert!(index.applied(event("new", &at(900))));
        assert!(!index.applied(event("new", &at(900))), "the same again");
        assert!(!log.read().lines().contains_key("20"));
        assert!(index.deleted(event("new", &at(900))));
        index.list_began();
        index.listed(event("30", &at(30)));
        assert!(index.list_ended());
        assert_eq!(log.read().lines().keys().collect::<Vec<_>>(), ["30"]);
    }
}
