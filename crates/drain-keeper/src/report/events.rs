//! Events: on the node, who blocks its drain; on the pod, what was done to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::ObjectReference;
use nodeward_api::reason::{ActReason, BlockerReason, DrainReason, SurgeOutcome};
use nodeward_core::id::{BudgetKey, NamespacedName, NodeUid, PodUid};
use nodeward_core::strategy::Remedy;
use nodeward_core::verdict::{Blocker, NodeVerdict};
use nodeward_runtime::{ActionResult, EventSink, EventSpec, Severity, events};

use crate::execute::{Forced, PodResult, outcome_label};
use crate::plan::{PodAction, SurgeStanding, Warning};

use super::condition::Change;

/// How many pods one Event names.
const NAMED: usize = 5;

/// What drain-keeper does, as the Events' `action`.
const ACTION: &str = "Drain";

/// Emits Events.
pub struct Announcer {
    sink: EventSink,
    replica: String,
    warned: BTreeSet<String>,
}

impl Announcer {
    /// Nothing said yet.
    pub fn new(sink: EventSink, replica: &str) -> Self {
        Self {
            sink,
            replica: replica.to_owned(),
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
            // The next attempt may find the pod gone, and says nothing of it then.
            let remedy = action.strategy.remedy;
            if result.may_have_acted() && remedy != Remedy::Evict && !remedy.is_about_deployment() {
                self.log_audit(action, result, "the answer was lost: it may have been forced");
            }
            return;
        };
        if !forced.is_gentle() {
            self.log_audit(action, result, "forced");
        }
        let (reason, what) = match forced {
            Forced::Evicted => (
                ActReason::Evicted,
                with_loss("evicted, within its budgets, to let the node drain"),
            ),
            Forced::BudgetOverridden(_) => (
                ActReason::BudgetOverridden,
                with_loss("deleted with its own grace although its budget refused its eviction"),
            ),
            Forced::Restarted { deployment, revision } => (ActReason::SurgeBegun, restarted(deployment, *revision)),
            Forced::RestartUndone(deployment) => {
                tracing::info!(%pod, %node, %deployment, "the restart of its Deployment is taken back");
                return;
            }
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
        self.sink.emit(EventSpec {
            regarding: events::pod_reference(&pod.namespace, &pod.name, Some(action.pod.uid.as_str())),
            related: Some(events::node_reference(action.node.as_str(), action.node_uid.as_str())),
            severity: reason.severity(),
            reason: reason.as_str(),
            action: ACTION,
            note,
        });
        for event in audit_events(action, forced, reason) {
            self.sink.emit(event);
        }
    }

    /// What became of the surge of a pod, told while the pod may be gone.
    pub fn surge_ended(&self, uid: &PodUid, standing: &SurgeStanding, outcome: SurgeOutcome) {
        let SurgeStanding { pod, node, .. } = standing;
        tracing::info!(%pod, %node, %outcome, "surge ended");
        self.sink.emit(EventSpec {
            regarding: events::pod_reference(&pod.namespace, &pod.name, Some(uid.as_str())),
            related: None,
            severity: outcome.severity(),
            reason: outcome.as_str(),
            action: ACTION,
            note: format!("the pod {} (node {node})", outcome.explanation()),
        });
    }

    /// What could not be read as it is meant, each once.
    pub fn warnings(&mut self, warnings: &BTreeSet<Warning>) {
        self.warned
            .retain(|key| warnings.iter().any(|warning| warning.key == *key));
        for warning in warnings {
            if self.warned.insert(warning.key.clone()) {
                let node = events::node_reference(warning.node.as_str(), warning.node_uid.as_str());
                let about = match &warning.pod {
                    None => node,
                    Some((pod, uid)) => events::pod_reference(&pod.namespace, &pod.name, Some(uid.as_str())),
                };
                self.emit(about, warning.reason, warning.text.clone());
            }
        }
    }

    /// A node that has been for long at a gate that should open or close within seconds.
    pub fn undecided(&self, uid: &NodeUid, verdict: &NodeVerdict) {
        let gate = verdict.gate;
        let mut text = format!(
            "nothing has been forced on it for 10 minutes: the node {}",
            gate.explanation()
        );
        if !verdict.gate_detail.is_empty() {
            let _ = write!(text, ": {}", verdict.gate_detail);
        }
        let node = events::node_reference(verdict.node.as_str(), uid.as_str());
        self.emit(node, gate.as_str(), text);
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

    /// One line for each act that no budget had allowed, which `audit=true` finds: Events are gone after an hour.
    fn log_audit(&self, action: &PodAction, result: &PodResult, text: &str) {
        let (budgets, removed) = match result {
            ActionResult::Acted(forced @ Forced::BudgetOverridden(_)) => (overridden(forced), &[][..]),
            ActionResult::Acted(Forced::FinalizersRemoved(removed)) => (&[][..], removed.as_slice()),
            _ => (&[][..], &[][..]),
        };
        let budgets: Vec<String> = budgets.iter().map(ToString::to_string).collect();
        tracing::warn!(
            audit = true,
            pod = %action.pod.key,
            pod_uid = %action.pod.uid.as_str(),
            node = %action.node,
            node_uid = %action.node_uid.as_str(),
            strategy = %action.strategy.name,
            outcome = outcome_label(result),
            drain_start = %action.clock.start,
            due = %action.due,
            budgets = %budgets.join(","),
            finalizers = %removed.join(","),
            replica = self.replica,
            signal = %action.signal,
            "{text}"
        );
    }
}

/// A bare `rollout undo` returns to the same release.
fn restarted(deployment: &NamespacedName, revision: Option<i64>) -> String {
    let revisions = revision.map(|before| {
        format!(
            ": revision {} restarts {before}; to roll back, name the revision",
            before + 1
        )
    });
    format!(
        "Deployment {deployment} is told to roll{}",
        revisions.unwrap_or_default()
    )
}

fn overridden(forced: &Forced) -> &[BudgetKey] {
    match forced {
        Forced::BudgetOverridden(budgets) => budgets,
        Forced::Evicted
        | Forced::FinalizersRemoved(_)
        | Forced::DeletedNow
        | Forced::Restarted { .. }
        | Forced::RestartUndone(_) => &[],
    }
}

/// What was done to the pod, told on its node and on its budgets, whose owners look there and not at a pod that is gone.
/// Nothing of an eviction, which its budgets had allowed.
fn audit_events(action: &PodAction, forced: &Forced, reason: ActReason) -> Vec<EventSpec> {
    if forced.is_gentle() {
        return Vec::new();
    }
    let (pod, node, strategy) = (&action.pod.key, &action.node, action.strategy.name);
    let known = action.budgets.iter().map(|budget| (&budget.key, Some(&*budget.uid)));
    // Read anew since the plan; the first entry of a key stands.
    let read = overridden(forced).iter().map(|key| (key, None));
    let budgets: BTreeMap<&BudgetKey, Option<&str>> = read.chain(known).collect();
    let budgets = budgets
        .into_iter()
        .map(|(key, uid)| events::budget_reference(&key.namespace, &key.name, uid));
    let about = budgets.chain([events::node_reference(node.as_str(), action.node_uid.as_str())]);
    about
        .map(|regarding| EventSpec {
            regarding,
            related: Some(events::pod_reference(
                &pod.namespace,
                &pod.name,
                Some(action.pod.uid.as_str()),
            )),
            severity: reason.severity(),
            reason: reason.as_str(),
            action: ACTION,
            note: format!("{strategy}: pod {pod} {} (node {node})", reason.explanation()),
        })
        .collect()
}

/// emptyDir spares no pod; whoever looks for its data is told where it went.
fn data_is_gone(action: &PodAction) -> &'static str {
    if action.pod.has_empty_dir {
        "; the data of its emptyDir volumes is gone"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{self, Write as _};
    use std::sync::{Arc, Mutex};

    use nodeward_runtime::{ApiError, Component, Metrics};
    use rstest::rstest;
    use tracing::field::{Field, Visit};
    use tracing::span;

    use super::*;
    use crate::plan::tests::world::{World, budget, pod};

    /// Keeps the fields of the audit lines.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<String>>);

    struct Fields<'a>(&'a mut String);

    impl Visit for Fields<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            write!(self.0, "{field}={value:?} ").unwrap();
        }
    }

    impl tracing::Subscriber for Log {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut text = String::new();
            event.record(&mut Fields(&mut text));
            if text.contains("audit=") {
                self.0.lock().unwrap().push_str(&text);
            }
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[rstest]
    #[case::override_of_budgets(Forced::BudgetOverridden(vec![BudgetKey::new("shop", "web")]), &["outcome=\"budget-overridden\"", "budgets=shop/web "])]
    #[case::finalizers(Forced::FinalizersRemoved(vec!["a/b".to_owned()]), &["outcome=\"finalizers-removed\"", "finalizers=a/b "])]
    #[case::grace_zero(Forced::DeletedNow, &["outcome=\"deleted-without-grace\""])]
    fn forced_pods_leave_an_audit_line(#[case] forced: Forced, #[case] says: &[&str]) {
        let text = logged(&forced);
        let all = [
            "audit=true ",
            "pod=shop/p ",
            "pod_uid=p ",
            "node=n1 ",
            "strategy=Delete ",
            "due=2026-01-01T00:45:00Z ",
            "replica=\"keeper-0\" ",
            "signal=always ",
        ];
        for part in all.iter().chain(says) {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn evictions_leave_no_audit_line() {
        assert_eq!(logged(&Forced::Evicted), "");
    }

    #[rstest]
    #[case::of_an_override(World::draining().budgets([budget("web", 0)]), ApiError::Timeout, true)]
    #[case::of_an_override_that_was_refused(World::draining().budgets([budget("web", 0)]), ApiError::Conflict, false)]
    #[case::of_an_eviction(World::draining(), ApiError::Timeout, false)]
    fn lost_answer_leaves_an_audit_line(#[case] world: World, #[case] error: ApiError, #[case] is_told: bool) {
        let text = logged_of(&world, &ActionResult::Failed(error));
        assert_eq!(
            text.contains("audit=true") && text.contains("outcome=\"failed\""),
            is_told,
            "{text}"
        );
    }

    #[rstest]
    #[case::within_its_budgets(Forced::Evicted, &[])]
    // One that the plan did not know was read before the override.
    #[case::override_of_budgets(
        Forced::BudgetOverridden(vec![BudgetKey::new("shop", "web"), BudgetKey::new("shop", "all")]),
        &["all", "n1", "web web"]
    )]
    #[case::finalizers(Forced::FinalizersRemoved(Vec::new()), &["n1", "web web"])]
    #[case::grace_zero(Forced::DeletedNow, &["n1", "web web"])]
    fn budgets_and_node_are_told_of_force(#[case] forced: Forced, #[case] about: &[&str]) {
        let world = World::draining().pod(pod("p")).budget(budget("web", 1));
        let action = world.at(68).acts()[0].clone();
        let events = audit_events(&action, &forced, ActReason::BudgetOverridden);
        let mut told: Vec<String> = events
            .iter()
            .map(|event| {
                let regarding = &event.regarding;
                let uid = regarding
                    .uid
                    .clone()
                    .filter(|_| regarding.kind.as_deref() != Some("Node"));
                [regarding.name.clone(), uid]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect();
        told.sort();
        assert_eq!(told, about);
        for event in events {
            assert!(event.note.starts_with("PdbDelete: pod shop/p "), "{}", event.note);
        }
    }

    fn logged(forced: &Forced) -> String {
        logged_of(&World::draining(), &ActionResult::Acted(forced.clone()))
    }

    fn logged_of(world: &World, result: &PodResult) -> String {
        let action = world.clone().pod(pod("p")).at(68).acts()[0].clone();
        let log = Log::default();
        let metrics = Metrics::new(Component::new("drain-keeper", "1.2.3"));
        let announcer = Announcer::new(EventSink::silent(&metrics), "keeper-0");
        tracing::subscriber::with_default(log.clone(), || announcer.forced(&action, result));
        log.0.lock().unwrap().clone()
    }
}
