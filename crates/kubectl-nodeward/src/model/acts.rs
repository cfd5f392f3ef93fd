//! What was done to the pods of a node in its drain, as Events tell.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use nodeward_api::reason::{ActReason, LockReason};
use serde::Serialize;

use super::health::time_of;

/// Something that was done to a pod.
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
        let related = event.related.as_ref().and_then(|related| related.name.as_deref());
        let about = &event.involved_object;
        let reason = event.reason.clone()?;
        let acts = ActReason::ALL.iter().map(|act| act.as_str());
        let mut acts = acts.chain([LockReason::PodEvicted.as_str()]);
        // drain-lock names it in the note alone.
        let noted = format!("(node {node})");
        let is_noted = event.message.as_ref().is_some_and(|note| note.ends_with(&noted));
        if !(related == Some(node) || is_noted)
            || about.kind.as_deref() != Some("Pod")
            || !acts.any(|act| act == reason)
        {
            return None;
        }
        let at = time_of(event);
        if at.is_some_and(|at| at < began) {
            return None;
        }
        let (namespace, name) = (about.namespace.as_deref()?, about.name.as_deref()?);
        Some(Self {
            at,
            pod: format!("{namespace}/{name}"),
            reason,
            note: event.message.clone().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

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
        let event = json!({
            "metadata": { "namespace": "shop", "name": "e" }, "reason": reason, "message": if node.is_empty() { "evicted (node node-1)" } else { "evicted" },
            "involvedObject": { "kind": kind, "namespace": "shop", "name": "db-0" }, "related": { "kind": "Node", "name": node },
            "eventTime": at.replace('Z', ".000000Z"),
        });
        let act = Act::of(
            &serde_json::from_value(event).unwrap(),
            "node-1",
            "2026-01-01T10:00:00Z".parse().unwrap(),
        );
        assert_eq!(act.map(|act| act.pod), told.then(|| "shop/db-0".to_owned()));
    }
}
