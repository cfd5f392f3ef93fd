//! Nodeward's Events, and what they tell of a node.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use nodeward_api::reason::{ActReason, LockReason};
use serde::Serialize;

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

/// Something that was done to a pod in the drain of its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Act {
    /// When; absent where the Event does not say.
    pub at: Option<Timestamp>,
    pub pod: String,
    pub reason: String,
    /// By which strategy, and what.
    pub note: String,
}

impl Act {
    /// An Event that tells of an act on a pod of the node since `began`; `None` for any other.
    pub fn of(event: &Event, node: &str, began: Timestamp) -> Option<Self> {
        let LogLine {
            at,
            kind,
            name,
            node: of,
            reason,
            note,
            ..
        } = LogLine::of(event);
        let acts = ActReason::ALL.iter().map(|act| act.as_str());
        let mut acts = acts.chain([LockReason::PodEvicted.as_str()]);
        let is_act = kind == "Pod" && of.as_deref() == Some(node) && acts.any(|act| act == reason);
        (is_act && at.is_none_or(|at| at >= began)).then_some(Self {
            at,
            pod: name,
            reason,
            note,
        })
    }
}

/// When an Event was seen last.
fn time_of(event: &Event) -> Option<Timestamp> {
    let series = event.series.iter().flat_map(|series| &series.last_observed_time);
    let exact = series.chain(&event.event_time).map(|time| time.0).next();
    exact.or_else(|| event.last_timestamp.as_ref().map(|time| time.0))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn event(change: Value) -> Event {
        let mut event = json!({
            "metadata": { "namespace": "shop", "name": "e", "uid": "1" }, "reason": "BudgetOverridden", "type": "Warning",
            "message": "PdbDelete: deleted", "reportingComponent": "nodeward.dev/drain-keeper",
            "involvedObject": { "kind": "Pod", "namespace": "shop", "name": "db-0" },
            "related": { "kind": "Node", "name": "node-1" }, "eventTime": "2026-01-01T10:00:00.000000Z",
        });
        crate::fixture::merge(&mut event, change);
        serde_json::from_value(event).unwrap()
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
        let line = LogLine::of(&event(change));
        assert_eq!(
            (line.name.as_str(), line.node.as_deref(), line.forced),
            (name, node, forced)
        );
        assert_eq!((line.component.as_str(), line.warning), ("drain-keeper", true));
    }

    #[rstest]
    #[case::act("BudgetOverridden", "node-1", "Pod", "2026-01-01T10:20:00Z", true)]
    #[case::eviction_by_drain_lock("PodEvicted", "node-1", "Pod", "2026-01-01T10:20:00Z", true)]
    #[case::only_noted("PodEvicted", "", "Pod", "2026-01-01T10:20:00Z", true)]
    #[case::another_node("BudgetOverridden", "node-2", "Pod", "2026-01-01T10:20:00Z", false)]
    #[case::before_this_drain("BudgetOverridden", "node-1", "Pod", "2026-01-01T09:59:00Z", false)]
    #[case::no_act("OptOutIgnored", "node-1", "Pod", "2026-01-01T10:20:00Z", false)]
    #[case::about_a_budget("BudgetOverridden", "node-1", "PodDisruptionBudget", "2026-01-01T10:20:00Z", false)]
    fn events_of_this_drain_tell_what_was_done(
        #[case] reason: &str,
        #[case] node: &str,
        #[case] kind: &str,
        #[case] at: &str,
        #[case] told: bool,
    ) {
        let event = event(json!({
            "reason": reason, "message": if node.is_empty() { "evicted (node node-1)" } else { "evicted" },
            "involvedObject": { "kind": kind }, "related": if node.is_empty() { json!(null) } else { json!({ "name": node }) },
            "eventTime": at.replace('Z', ".000000Z"),
        }));
        let act = Act::of(&event, "node-1", "2026-01-01T10:00:00Z".parse().unwrap());
        assert_eq!(act.map(|act| act.pod), told.then(|| "shop/db-0".to_owned()));
    }
}
