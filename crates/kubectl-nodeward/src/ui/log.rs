//! Nodeward's Events as they come: the newest of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use nodeward_api::reason::{ActReason, LockReason};
use nodeward_runtime::cache::Index;
use parking_lot::RwLock;
use serde::Serialize;

use crate::model::health::time_of;

/// How many Events are kept: an upgrade of a large fleet makes ten thousands an hour.
const KEPT: usize = 500;

/// An Event in one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogLine {
    pub at: Option<Timestamp>,
    /// `drain-keeper`, …
    pub component: String,
    pub kind: String,
    /// `namespace/name`, or the name.
    pub name: String,
    pub node: Option<String>,
    pub reason: String,
    pub note: String,
    pub warning: bool,
    /// Whether it tells of an override, or of a forced act.
    pub forced: bool,
    pub count: Option<i32>,
}

impl LogLine {
    pub fn of(event: &Event) -> Self {
        let about = &event.involved_object;
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        let (namespace, name) = (text(&about.namespace), text(&about.name));
        let kind = text(&about.kind);
        let note = text(&event.message);
        let reason = text(&event.reason);
        let component = text(&event.reporting_component);
        let is_about_node = kind == "Node" || kind == "NodeDrain";
        let related = event
            .related
            .as_ref()
            .filter(|related| related.kind.as_deref() == Some("Node"));
        let series = event.series.as_ref().and_then(|series| series.count);
        // drain-lock names the node in the note alone.
        let noted = || {
            let (_, node) = note.rsplit_once("(node ")?;
            Some(node.strip_suffix(')')?.to_owned())
        };
        Self {
            at: time_of(event),
            component: component.strip_prefix("nodeward.dev/").unwrap_or(&component).to_owned(),
            node: if is_about_node {
                Some(name.clone())
            } else {
                related.and_then(|related| related.name.clone()).or_else(noted)
            },
            name: if namespace.is_empty() || is_about_node {
                name
            } else {
                format!("{namespace}/{name}")
            },
            kind,
            warning: event.type_.as_deref() == Some("Warning"),
            forced: is_forced(&reason),
            reason,
            note,
            count: series.or(event.count),
        }
    }
}

/// Whether it tells of an override, or of a forced act.
fn is_forced(reason: &str) -> bool {
    let acts = ActReason::ALL
        .iter()
        .filter(|act| **act != ActReason::Evicted)
        .map(|act| act.as_str());
    acts.chain([LockReason::AdminRelease.as_str()])
        .any(|forced| forced == reason)
}

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
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn event(uid: &str, at: &str, change: Value) -> Event {
        let mut event = json!({
            "metadata": { "namespace": "shop", "name": "e", "uid": uid }, "reason": "BudgetOverridden", "type": "Warning",
            "message": "PdbDelete: deleted", "reportingComponent": "nodeward.dev/drain-keeper",
            "involvedObject": { "kind": "Pod", "namespace": "shop", "name": "db-0" },
            "related": { "kind": "Node", "name": "node-1" }, "eventTime": at,
        });
        crate::fixture::merge(&mut event, change);
        serde_json::from_value(event).unwrap()
    }

    fn at(second: usize) -> String {
        format!("2026-01-01T10:{:02}:{:02}.000000Z", second / 60, second % 60)
    }

    #[rstest]
    #[case::related(json!({}), "shop/db-0", Some("node-1"), true)]
    #[case::noted(json!({ "related": null, "message": "evicted (node node-2)", "reason": "PodEvicted" }), "shop/db-0", Some("node-2"), false)]
    #[case::of_a_node(json!({ "related": null, "involvedObject": { "kind": "Node", "name": "node-3", "namespace": "default" } }), "node-3", Some("node-3"), true)]
    #[case::of_neither(json!({ "related": null, "reason": "HoldExpired" }), "shop/db-0", None, false)]
    fn line_names_its_node(
        #[case] change: Value,
        #[case] name: &str,
        #[case] node: Option<&str>,
        #[case] forced: bool,
    ) {
        let line = LogLine::of(&event("1", &at(0), change));
        assert_eq!(
            (line.name.as_str(), line.node.as_deref(), line.forced),
            (name, node, forced)
        );
        assert_eq!((line.component.as_str(), line.warning), ("drain-keeper", true));
    }

    #[test]
    fn newest_events_stay() {
        let log = Arc::new(RwLock::new(Log::default()));
        let mut index = LogIndex(Arc::clone(&log));
        index.list_began();
        // The API lists them by name, not by time.
        for second in (0..KEPT + 20).rev() {
            index.listed(event(&second.to_string(), &at(second), json!({})));
        }
        index.list_ended();
        assert_eq!(index.objects(), KEPT);
        assert!(!log.read().lines().contains_key("19") && log.read().lines().contains_key("20"));
        assert!(
            !index.applied(event("old", &at(1), json!({}))),
            "an older one changes nothing"
        );
        assert!(index.applied(event("new", &at(900), json!({}))));
        assert!(!index.applied(event("new", &at(900), json!({}))), "the same again");
        assert!(!log.read().lines().contains_key("20"));
        assert!(index.deleted(event("new", &at(900), json!({}))));
        index.list_began();
        index.listed(event("30", &at(30), json!({})));
        assert!(index.list_ended());
        assert_eq!(log.read().lines().keys().collect::<Vec<_>>(), ["30"]);
    }
}
