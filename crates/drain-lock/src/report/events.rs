//! Events: on the node, what became of its drain; on the pod, what was done to it.

use std::collections::{BTreeMap, BTreeSet};

use nodeward_api::reason::LockReason;
use nodeward_core::id::NodeName;
use nodeward_runtime::{EventSink, EventSpec, Severity, events};

use nodeward_runtime::ActionResult;

use crate::execute::{Eviction, result_label};
use crate::plan::verdict::{Announcement, DrainVerdict};

/// What drain-lock does, as the Events' `action`.
const ACTION: &str = "Drain";

/// Emits Events.
pub struct Announcer {
    sink: EventSink,
    told: BTreeMap<NodeName, BTreeSet<(LockReason, String)>>,
}

impl Announcer {
    /// Nothing said yet.
    pub fn new(sink: EventSink) -> Self {
        Self {
            sink,
            told: BTreeMap::new(),
        }
    }

    /// What has happened to a drain.
    pub fn announce(&self, announcement: &Announcement) {
        let (node, reason, note) = (&announcement.node, announcement.reason.as_str(), &announcement.note);
        let severity = if announcement.is_warning() {
            Severity::Warning
        } else {
            Severity::Normal
        };
        self.sink.emit(EventSpec {
            regarding: events::node_reference(node.as_str(), announcement.node_uid.as_str()),
            related: None,
            severity,
            reason,
            action: ACTION,
            note: note.clone(),
        });
    }

    /// What needs a person, once while it lasts.
    pub fn problems(&mut self, drains: &[DrainVerdict]) {
        let present: BTreeSet<&NodeName> = drains.iter().map(|verdict| &verdict.node).collect();
        self.told.retain(|node, _| present.contains(node));
        for verdict in drains {
            let problems: BTreeSet<(LockReason, String)> = verdict
                .blocked_by
                .iter()
                .filter(|blocked| blocked.reason.is_announced_while_it_lasts())
                .map(|blocked| (blocked.reason, blocked.message.clone()))
                .collect();
            let told = self.told.entry(verdict.node.clone()).or_default();
            let news: Vec<(LockReason, String)> = problems.difference(told).cloned().collect();
            *told = problems;
            for (reason, note) in news {
                self.announce(&Announcement {
                    node: verdict.node.clone(),
                    node_uid: verdict.node_uid.clone().unwrap_or_else(|| "".into()),
                    reason,
                    note,
                });
            }
        }
    }

    /// What was done to a pod.
    pub fn evicted(&self, eviction: &Eviction) {
        let (pod, node) = (&eviction.pod.key, &eviction.node);
        let (reason, severity) = match (&eviction.done, eviction.deleted) {
            (ActionResult::Acted(()), true) => (LockReason::PodDeleted, Severity::Warning),
            (ActionResult::Acted(()), false) => (LockReason::PodEvicted, Severity::Normal),
            (other, _) => {
                tracing::info!(%pod, %node, outcome = result_label(other), detail = ?other, "not evicted");
                return;
            }
        };
        self.sink.emit(EventSpec {
            regarding: events::pod_reference(&pod.namespace, &pod.name, Some(eviction.pod.uid.as_str())),
            related: None,
            severity,
            reason: reason.as_str(),
            action: ACTION,
            note: format!("{} (node {node})", reason.explanation()),
        });
    }
}
