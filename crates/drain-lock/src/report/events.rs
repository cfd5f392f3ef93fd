//! Events: on the node, what became of its drain; on the pod, what was done to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use nodeward_api::DisruptionHold;
use nodeward_api::node_drain::BlockedBy;
use nodeward_api::reason::LockReason;
use nodeward_core::id::NodeName;
use nodeward_runtime::{EventSink, EventSpec, Severity, events};

use nodeward_runtime::ActionResult;

use crate::execute::{Eviction, result_label};
use crate::plan::holds::HoldVerdict;
use crate::plan::verdict::{Announcement, DrainVerdict};

/// What drain-lock does, as the Events' `action`.
const ACTION: &str = "Drain";

/// What is told of something that needs a person. Pods that are kept can be most of a node's: one Event tells of all of them.
fn note(blocked: &BlockedBy) -> String {
    if blocked.reason.lacks_consent() {
        let (reason, remedy) = (blocked.reason, blocked.reason.remedy());
        return format!(
            "a pod {}: {remedy}; blockedBy of the NodeDrain names it, and others like it",
            reason.explanation()
        );
    }
    blocked.message.clone()
}

/// Emits Events.
pub struct Announcer {
    sink: EventSink,
    told: BTreeMap<NodeName, BTreeSet<(LockReason, String)>>,
    /// UIDs of holds whose statuses do not show yet that they were overridden.
    told_holds: BTreeSet<Arc<str>>,
}

impl Announcer {
    /// Nothing said yet.
    pub fn new(sink: EventSink) -> Self {
        Self {
            sink,
            told: BTreeMap::new(),
            told_holds: BTreeSet::new(),
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
                .map(|blocked| (blocked.reason, note(blocked)))
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

    /// Tells owners once that their holds were overridden. Returns how many it told.
    pub fn overridden_holds(&mut self, holds: &[HoldVerdict]) -> usize {
        let overridden = holds.iter().filter(|verdict| verdict.is_newly_overridden());
        let overridden: BTreeMap<Arc<str>, &HoldVerdict> = overridden
            .map(|verdict| (Arc::clone(&verdict.hold.uid), verdict))
            .collect();
        let known = std::mem::replace(&mut self.told_holds, overridden.keys().cloned().collect());
        let news = overridden.into_iter().filter(|(uid, _)| !known.contains(uid));
        let mut told = 0;
        for (_, verdict) in news {
            told += 1;
            let (hold, reason) = (&verdict.hold, LockReason::HoldOverridden);
            self.sink.emit(EventSpec {
                regarding: ObjectReference {
                    api_version: Some(DisruptionHold::api_version(&()).into_owned()),
                    kind: Some(DisruptionHold::kind(&()).into_owned()),
                    namespace: Some(hold.key.namespace.to_string()),
                    name: Some(hold.key.name.to_string()),
                    uid: Some(hold.uid.to_string()),
                    ..ObjectReference::default()
                },
                related: None,
                severity: Severity::Warning,
                reason: reason.as_str(),
                action: ACTION,
                note: format!(
                    "hold of budget {} {}: {}",
                    hold.budget,
                    reason.explanation(),
                    verdict.message
                ),
            });
        }
        told
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
