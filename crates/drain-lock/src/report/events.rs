//! Events: on the node, what became of its drain; on the pod, what was done to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use nodeward_api::node_drain::BlockedBy;
use nodeward_api::reason::LockReason;
use nodeward_api::{DisruptionHold, annotation};
use nodeward_core::id::{BudgetKey, NodeName, PodUid};
use nodeward_runtime::{EventSink, EventSpec, events};

use nodeward_runtime::ActionResult;

use crate::execute::{Eviction, result_label};
use crate::plan::bypass::Bypassed;
use crate::plan::holds::{AnnotatedHoldVerdict, HoldVerdict};
use crate::plan::verdict::{Announcement, DrainVerdict};

/// What drain-lock does, as the Events' `action`.
const ACTION: &str = "Drain";

/// A reason, and what it is about: a budget, a pod or, where that is left open, the node. The text is no part of it, for numbers in it
/// change.
type Problem = (LockReason, Option<String>);

/// What something that needs a person is about. Pods that are kept can be most of a node's: one Event tells of all of them.
fn problem(blocked: &BlockedBy) -> Problem {
    let subject = blocked.pdb.as_ref().or(blocked.pod.as_ref()).or(blocked.node.as_ref());
    let subject = subject.filter(|_| !blocked.reason.lacks_consent());
    (blocked.reason, subject.cloned())
}

/// What needs a person, each once.
fn problems(blocked_by: &[BlockedBy]) -> BTreeMap<Problem, &BlockedBy> {
    let mut problems = BTreeMap::new();
    for blocked in blocked_by.iter().filter(|one| one.reason.is_announced_while_it_lasts()) {
        problems.entry(problem(blocked)).or_insert(blocked);
    }
    problems
}

/// What is told of it.
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
    told: BTreeMap<NodeName, BTreeSet<Problem>>,
    /// UIDs of holds whose statuses do not show yet that they were overridden.
    told_holds: BTreeSet<Arc<str>>,
    /// Pods that were told to have been deleted around budgets.
    told_bypasses: BTreeSet<(PodUid, BudgetKey)>,
    /// Budgets that annotations held at the last pass.
    held_by_annotation: BTreeSet<BudgetKey>,
}

impl Announcer {
    /// Nothing said yet.
    pub fn new(sink: EventSink) -> Self {
        Self {
            sink,
            told: BTreeMap::new(),
            told_holds: BTreeSet::new(),
            told_bypasses: BTreeSet::new(),
            held_by_annotation: BTreeSet::new(),
        }
    }

    /// What has happened to a drain.
    pub fn announce(&self, announcement: &Announcement) {
        let node = events::node_reference(announcement.node.as_str(), announcement.node_uid.as_str());
        self.emit(node, announcement.reason, announcement.note.clone());
    }

    fn emit(&self, regarding: ObjectReference, reason: LockReason, note: String) {
        self.sink.emit(EventSpec {
            regarding,
            related: None,
            severity: reason.severity(),
            reason: reason.as_str(),
            action: ACTION,
            note,
        });
    }

    /// What needs a person, once while it lasts.
    pub fn problems(&mut self, drains: &[DrainVerdict]) {
        let present: BTreeSet<&NodeName> = drains.iter().map(|verdict| &verdict.node).collect();
        self.told.retain(|node, _| present.contains(node));
        for verdict in drains {
            let problems = problems(&verdict.blocked_by);
            let lasting = problems.keys().cloned().collect();
            let told = self.told.insert(verdict.node.clone(), lasting).unwrap_or_default();
            for (_, blocked) in problems.iter().filter(|(problem, _)| !told.contains(*problem)) {
                self.announce(&Announcement {
                    node: verdict.node.clone(),
                    node_uid: verdict.node_uid.clone().unwrap_or_else(|| "".into()),
                    reason: blocked.reason,
                    note: note(blocked),
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
            let regarding = ObjectReference {
                api_version: Some(DisruptionHold::api_version(&()).into_owned()),
                kind: Some(DisruptionHold::kind(&()).into_owned()),
                namespace: Some(hold.key.namespace.to_string()),
                name: Some(hold.key.name.to_string()),
                uid: Some(hold.uid.to_string()),
                ..ObjectReference::default()
            };
            let (budget, what) = (&hold.budget, reason.explanation());
            let note = format!("hold of budget {budget} {what}: {}", verdict.message);
            self.emit(regarding, reason, note);
        }
        told
    }

    /// Tells of each pod once that it was deleted around a budget, on the budget and on the node. Returns of how many.
    pub fn bypassed(&mut self, bypassed: &[Bypassed]) -> usize {
        let key = |one: &Bypassed| (one.pod.uid.clone(), one.budget.view.key.clone());
        let present = bypassed.iter().map(key).collect();
        let known = std::mem::replace(&mut self.told_bypasses, present);
        let news: Vec<&Bypassed> = bypassed.iter().filter(|one| !known.contains(&key(one))).collect();
        for one in &news {
            let (budget, pod, node) = (&one.budget.view, &one.pod.key, &one.node);
            let reason = LockReason::BudgetBypassed;
            let note = format!(
                "pod {pod} on cordoned node {node} {} (budget {})",
                reason.explanation(),
                budget.key
            );
            let on_budget = events::budget_reference(&budget.key.namespace, &budget.key.name, Some(&budget.uid));
            for regarding in [on_budget, events::node_reference(node.as_str(), one.node_uid.as_str())] {
                self.emit(regarding, reason, note.clone());
            }
        }
        news.len()
    }

    /// Tells the owners of budgets that their annotations hold nothing any more. Returns how many it told.
    pub fn expired_holds(&mut self, holds: &[AnnotatedHoldVerdict]) -> usize {
        let in_force = holds
            .iter()
            .filter(|verdict| verdict.until.is_some() && !verdict.is_over);
        let in_force = in_force.map(|verdict| verdict.budget.clone()).collect();
        // Of one that ended while nobody led, the annotation itself says so.
        let before = std::mem::replace(&mut self.held_by_annotation, in_force);
        let expired = holds
            .iter()
            .filter(|verdict| verdict.is_over && before.contains(&verdict.budget));
        let mut told = 0;
        for verdict in expired {
            told += 1;
            let (budget, reason) = (&verdict.budget, LockReason::HoldExpired);
            let regarding = events::budget_reference(&budget.namespace, &budget.name, Some(&verdict.uid));
            let (by, what) = (annotation::HOLD, reason.explanation());
            self.emit(regarding, reason, format!("the hold by its annotation {by} {what}"));
        }
        told
    }

    /// What was done to a pod.
    pub fn evicted(&self, eviction: &Eviction) {
        let (pod, node) = (&eviction.pod.key, &eviction.node);
        let reason = match &eviction.done {
            ActionResult::Acted(()) => LockReason::PodEvicted,
            other => {
                tracing::info!(%pod, %node, outcome = result_label(other), detail = ?other, "not evicted");
                return;
            }
        };
        let regarding = events::pod_reference(&pod.namespace, &pod.name, Some(eviction.pod.uid.as_str()));
        self.emit(regarding, reason, format!("{} (node {node})", reason.explanation()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exceeds(budget: &str, message: &str) -> BlockedBy {
        BlockedBy {
            reason: LockReason::NeedExceedsBudget,
            pdb: Some(budget.to_owned()),
            pod: None,
            node: None,
            message: message.to_owned(),
        }
    }

    #[test]
    fn problem_of_budget_is_told_once_whatever_its_numbers() {
        let before = [
            exceeds("shop/web", "2 pods, 1 at most"),
            exceeds("shop/web", "2 needed, 0 free"),
        ];
        let after = [
            exceeds("shop/web", "3 pods, 1 at most"),
            exceeds("shop/db", "1 pod, 0 at most"),
        ];
        let (before, after) = (problems(&before), problems(&after));
        assert_eq!(before.len(), 1, "{before:?}");
        let news: Vec<_> = after.keys().filter(|problem| !before.contains_key(*problem)).collect();
        let expected = (LockReason::NeedExceedsBudget, Some("shop/db".to_owned()));
        assert_eq!(news, [&expected]);
    }
}
