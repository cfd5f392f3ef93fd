//! How one pod stands in its node's drain.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::drain_clock::DrainClock;
use nodeward_api::opt_out::{OptOut, OptOutSource};
use nodeward_api::reason::BlockerReason;
use nodeward_core::budget::BudgetView;
use nodeward_core::deadline::{is_due, later};
use nodeward_core::hold::{Hold, Holder};
use nodeward_core::id::BudgetKey;
use nodeward_core::node::NodeView;
use nodeward_core::pod::PodView;
use nodeward_core::predicate::{Subject, belongs_to_node};
use nodeward_core::strategy::{Remedy, Strategy, StrategyName, Waits};
use nodeward_core::verdict::{Blocker, Next};

use crate::gate::cordon_taint;
use crate::policy::{Policy, UnmanagedPods};
use crate::snapshot::{Outcome, Snapshot};

use super::unreachable::could_run_twice;

/// How a pod stands in its node's drain.
#[derive(Debug)]
pub enum Standing {
    /// No drain waits for it.
    NoBlocker,
    /// The drain waits for it, and nothing is done to it now.
    Blocker(Blocker),
    /// The drain waits for it, and its strategy is due.
    Candidate(Candidate),
}

/// A pod whose strategy is due.
#[derive(Debug)]
pub struct Candidate {
    /// The pod.
    pub pod: Arc<PodView>,
    /// Budgets that select it.
    pub budgets: Vec<Arc<BudgetView>>,
    /// Why it is still there.
    pub reason: BlockerReason,
    /// The strategy.
    pub strategy: StrategyName,
    /// What the strategy does.
    pub remedy: Remedy,
    /// When it fell due.
    pub due: Timestamp,
}

impl Candidate {
    /// The verdict on it.
    pub fn blocker(&self, reason: BlockerReason, next: Next, detail: String) -> Blocker {
        describe(&self.pod, &self.budgets, reason, next, detail)
    }
}

/// One node's drain, as its pods are judged by it.
pub struct DrainOfNode<'a> {
    node: &'a NodeView,
    clock: &'a DrainClock,
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    waits: Waits,
    now: Timestamp,
}

impl<'a> DrainOfNode<'a> {
    /// Gathers it.
    pub fn new(
        node: &'a NodeView,
        clock: &'a DrainClock,
        snapshot: &'a Snapshot,
        policy: &'a Policy,
        now: Timestamp,
    ) -> Self {
        let waits = policy.waits_for(node, &snapshot.signals);
        Self {
            node,
            clock,
            snapshot,
            policy,
            waits,
            now,
        }
    }

    /// Judges a pod.
    pub fn standing(&self, pod: &Arc<PodView>) -> Standing {
        if is_no_blocker(pod) {
            return Standing::NoBlocker;
        }
        let budgets: Vec<Arc<BudgetView>> = self.snapshot.budgets.matching(pod).into_iter().cloned().collect();
        let blocked = |reason, next, detail| Standing::Blocker(describe(pod, &budgets, reason, next, detail));
        if let Some((reason, detail)) = self.is_left_alone(pod, &budgets) {
            return blocked(reason, Next::Nothing, detail);
        }
        let subject = Subject {
            pod,
            covered_by_budget: !budgets.is_empty() || self.snapshot.memory.was_refused_by_budget(pod),
            protected_finalizers: &self.policy.protected_finalizers,
        };
        let reason = self.natural_reason(&subject, &budgets);
        let strategy = Strategy::for_subject(&subject);
        if self.policy.drain_for(self.node).disable_strategies {
            return blocked(reason, Next::Nothing, "drain strategies are disabled".to_owned());
        }
        let Some(strategy) = strategy else {
            return blocked(reason, Next::Nothing, String::new());
        };
        let mut due = strategy.due(&subject, self.clock.start, &self.waits);
        if let (Some(asked), Some(deletion)) = (self.snapshot.memory.asked_at(pod), &pod.deletion) {
            due = due.max(later(asked, deletion.grace));
        }
        let name = strategy.name;
        if let Some(hold) = self.hold_against(pod, &budgets) {
            let next = Next::HeldBack {
                strategy: name,
                due,
                until: hold.until.map(|until| until.max(due)),
            };
            let reason = match hold.holder {
                Holder::Node { .. } | Holder::Owner(_) => BlockerReason::BudgetHeld,
                Holder::Unknown(_) => BlockerReason::HoldsUnknown,
            };
            return blocked(reason, next, hold.to_string());
        }
        if !is_due(due, self.now) {
            return blocked(reason, Next::At { strategy: name, due }, String::new());
        }
        if could_run_twice(self.node, pod, strategy.remedy, self.policy) {
            let detail = "the node is not Ready; taint it node.kubernetes.io/out-of-service once it is surely off";
            return blocked(BlockerReason::NodeUnreachable, Next::Nothing, detail.to_owned());
        }
        if let Some(attempt) = self.snapshot.memory.attempt(pod, self.now) {
            let until = Some(attempt.retry_at);
            let held_back = Next::HeldBack {
                strategy: name,
                due,
                until,
            };
            return match &attempt.outcome {
                Outcome::Sent | Outcome::NotSent => blocked(reason, Next::Now { strategy: name, due }, String::new()),
                Outcome::RefusedByBudget => blocked(reason, held_back, String::new()),
                Outcome::NamespaceTerminating => blocked(BlockerReason::NamespaceTerminating, held_back, String::new()),
                Outcome::Failed(error) => blocked(BlockerReason::Retrying, held_back, error.clone()),
            };
        }
        Standing::Candidate(Candidate {
            pod: Arc::clone(pod),
            budgets,
            reason,
            strategy: name,
            remedy: strategy.remedy,
            due,
        })
    }

    /// Pods that a drain waits for, and that no strategy ever touches.
    fn is_left_alone(&self, pod: &PodView, budgets: &[Arc<BudgetView>]) -> Option<(BlockerReason, String)> {
        match pod.opt_out {
            Some((OptOut::WaitCompleted, source)) => return Some((BlockerReason::OptedOut, asked_by(source))),
            Some((OptOut::Unknown, _)) => {
                return Some((BlockerReason::UnknownOptOut, "use skip or wait-completed".to_owned()));
            }
            Some((OptOut::Skip, _)) | None => {}
        }
        if let Some(pattern) = self
            .policy
            .drain_for(self.node)
            .ignored_namespaces
            .first_match(&pod.key.namespace)
        {
            return Some((BlockerReason::NamespaceIgnored, format!("pattern {pattern}")));
        }
        if self.clock.start < pod.created
            && cordon_taint(self.node, self.policy).is_some_and(|taint| pod.tolerates(taint))
        {
            return Some((BlockerReason::ToleratesCordon, String::new()));
        }
        if let Some(reason) = budgets.iter().filter_map(|budget| budget.forbids_force()).min() {
            return Some((reason, String::new()));
        }
        if pod.owner.is_none() && pod.deletion.is_none() && self.policy.unmanaged_pods == UnmanagedPods::Keep {
            return Some((
                BlockerReason::Unmanaged,
                "delete it by hand, or set unmanagedPods: delete".to_owned(),
            ));
        }
        None
    }

    /// Why it is still there, whatever is done about it.
    fn natural_reason(&self, subject: &Subject<'_>, budgets: &[Arc<BudgetView>]) -> BlockerReason {
        let pod = subject.pod;
        match &pod.deletion {
            Some(deletion) if !deletion.is_beyond_grace(self.now) => BlockerReason::Terminating,
            Some(_) if pod.finalizers.is_empty() => BlockerReason::StuckTerminating,
            Some(_) if subject.removable_finalizers().is_empty() => BlockerReason::ProtectedFinalizer,
            Some(_) => BlockerReason::FinalizerStuck,
            None if pod.skips_budgets() => BlockerReason::AwaitingEviction,
            None => match budgets {
                [] if subject.covered_by_budget => BlockerReason::BudgetExhausted,
                [] => BlockerReason::AwaitingEviction,
                [budget] if budget.room(pod).is_there() => BlockerReason::AwaitingEviction,
                [_] => BlockerReason::BudgetExhausted,
                _ => BlockerReason::MisconfiguredPDB,
            },
        }
    }

    /// The hold that keeps the pod from being forced: the last to end of those on its budgets.
    fn hold_against(&self, pod: &PodView, budgets: &[Arc<BudgetView>]) -> Option<&'a Hold> {
        let holds = &self.snapshot.holds;
        budgets
            .iter()
            .filter_map(|budget| holds.against(&budget.key, &self.node.uid, &pod.uid, self.now))
            .max_by_key(|hold| hold.until.unwrap_or(Timestamp::MAX))
    }
}

/// Pods that no drain waits for: those of the node itself, those that asked to stay, and those that have ended.
fn is_no_blocker(pod: &PodView) -> bool {
    let has_ended = pod.is_finished() && pod.deletion.is_none();
    belongs_to_node(pod) || has_ended || pod.stays()
}

/// What asked for it, where that is not Nodeward's own mark, which the reason names.
fn asked_by(source: OptOutSource) -> String {
    match source {
        OptOutSource::Label | OptOutSource::Annotation => String::new(),
        OptOutSource::ClusterApi | OptOutSource::Karpenter => source.key().to_owned(),
    }
}

fn describe(pod: &PodView, budgets: &[Arc<BudgetView>], reason: BlockerReason, next: Next, detail: String) -> Blocker {
    Blocker {
        pod: pod.key.clone(),
        uid: pod.uid.clone(),
        reason,
        budgets: budgets
            .iter()
            .map(|budget| budget.key.clone())
            .collect::<Vec<BudgetKey>>(),
        finalizers: if pod.deletion.is_some() {
            pod.finalizers.clone()
        } else {
            Vec::new()
        },
        grace_ends: pod.deletion.as_ref().map(|deletion| deletion.deadline),
        detail,
        next,
    }
}
