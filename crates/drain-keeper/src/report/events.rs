//! Events: on the node, who blocks its drain; on the pod, what was done to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::ObjectReference;
use nodeward_api::reason::{ActReason, BlockerReason, DrainReason};
use nodeward_core::verdict::Blocker;
use nodeward_runtime::{ActionResult, EventSink, EventSpec, Severity, events};

use crate::execute::{Forced, PodResult, outcome_label};
use crate::plan::{PodAction, Warning};

use super::condition::Change;

/// How many pods one Event names.
const NAMED: usize = 5;

/// What drain-keeper does, as the Events' `action`.
const ACTION: &str = "Drain";

/// Emits Events.
pub struct Announcer {
    sink: EventSink,
    warned: BTreeSet<String>,
}

impl Announcer {
    /// Nothing said yet.
    pub fn new(sink: EventSink) -> Self {
        Self {
            sink,
            warned: BTreeSet::new(),
        }
    }

    /// Who newly blocks a node's drain, an Event a reason, and whether the drain has failed.
    pub fn announce(&self, change: &Change) {
        let node = || events::node_reference(change.node.as_str(), change.uid.as_str());
        let mut by_reason: BTreeMap<BlockerReason, Vec<&Blocker>> = BTreeMap::new();
        for blocker in &change.news {
            by_reason.entry(blocker.reason).or_default().push(blocker);
        }
        for (reason, blockers) in by_reason {
            let mut text = blockers
                .iter()
                .take(NAMED)
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" | ");
            if blockers.len() > NAMED {
                let _ = write!(text, " | and {} more", blockers.len() - NAMED);
            }
            self.emit(node(), reason.as_str(), text);
        }
        if let Some(condition) = change.condition.as_ref().filter(|_| change.has_failed) {
            self.emit(node(), DrainReason::DrainFailed.as_str(), condition.message.clone());
        }
    }

    /// What was done to a pod.
    pub fn forced(&self, action: &PodAction, result: &PodResult) {
        let (pod, node, strategy) = (&action.pod.key, &action.node, action.strategy.name);
        let with_loss = |text: &str| format!("{text}{}", data_is_gone(action));
        let ActionResult::Acted(forced) = result else {
            tracing::info!(%pod, %node, %strategy, outcome = outcome_label(result), detail = ?result, "not done");
            return;
        };
        let (reason, what) = match forced {
            Forced::Evicted => (
                ActReason::Evicted,
                with_loss("evicted, within its budgets, to let the node drain"),
            ),
            Forced::BudgetOverridden(_) => (
                ActReason::BudgetOverridden,
                with_loss("deleted with its own grace although its budget refused its eviction"),
            ),
            Forced::FinalizersRemoved(removed) => (
                ActReason::FinalizersRemoved,
                format!("removed finalizers {}", removed.join(", ")),
            ),
            Forced::DeletedNow => (
                ActReason::DeletedWithoutGrace,
                with_loss("deleted without grace: it was stuck terminating"),
            ),
        };
        let note = format!("{strategy}: {what} (node {node})");
        let severity = if *forced == Forced::Evicted {
            Severity::Normal
        } else {
            Severity::Warning
        };
        self.sink.emit(EventSpec {
            regarding: events::pod_reference(&pod.namespace, &pod.name, Some(action.pod.uid.as_str())),
            related: Some(events::node_reference(action.node.as_str(), action.node_uid.as_str())),
            severity,
            reason: reason.as_str(),
            action: ACTION,
            note,
        });
    }

    /// What could not be read as it is meant, each once.
    pub fn warnings(&mut self, warnings: &BTreeSet<Warning>) {
        self.warned
            .retain(|key| warnings.iter().any(|warning| warning.key == *key));
        for warning in warnings {
            if self.warned.insert(warning.key.clone()) {
                let node = events::node_reference(warning.node.as_str(), warning.node_uid.as_str());
                self.emit(node, warning.reason, warning.text.clone());
            }
        }
    }

    fn emit(&self, regarding: ObjectReference, reason: &'static str, note: String) {
        self.sink.emit(EventSpec {
            regarding,
            related: None,
            severity: Severity::Warning,
            reason,
            action: ACTION,
            note,
        });
    }
}

/// emptyDir spares no pod; whoever looks for its data is told where it went.
fn data_is_gone(action: &PodAction) -> &'static str {
    if action.pod.has_empty_dir {
        "; the data of its emptyDir volumes is gone"
    } else {
        ""
    }
}
