//! Timed drain strategies: what is done to a pod that keeps a drain from ending, and when.
//!
//! Source: the drain strategies of openshift/managed-upgrade-operator (`docs/design/nodekeeper.md`), with a graceful
//! first step: a pod is evicted before anything stronger is done to it.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

use crate::deadline::saturating_add;
use crate::pod::PodView;

/// The waits that strategies are timed by, for one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// `nodeDrain.timeOut`: grace for a node to drain by itself.
    pub time_out: SignedDuration,
    /// `nodeDrain.expectedNodeDrainTime`: how long a drain takes at best.
    pub expected_drain: SignedDuration,
    /// `PDBForceDrainTimeout`: how long budgets are respected on top.
    pub budget_force: SignedDuration,
    /// How long a pod that terminates is left alone beyond its grace.
    pub force_after: SignedDuration,
    /// `surge.after`: how long a pod is refused before its Deployment is told to roll.
    pub surge: SignedDuration,
}

impl Waits {
    /// How long after the drain's start a strategy with this wait falls due at the earliest.
    pub fn until(&self, wait: Wait) -> SignedDuration {
        match wait {
            Wait::TimeOut => self.time_out,
            Wait::BudgetForce => self.expected_drain.saturating_add(self.budget_force),
            Wait::Surge => self.surge,
        }
    }

    /// How long after the drain's start any strategy at all can fall due.
    pub fn first(&self) -> SignedDuration {
        self.until(Wait::TimeOut).min(self.until(Wait::BudgetForce))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Display, IntoStaticStr)]
pub enum StrategyName {
    /// The Deployment of a pod that its budget does not let go is told to roll.
    Surge,
    /// A pod without a budget is evicted.
    Delete,
    /// A terminating pod without a budget loses its finalizers.
    Finalizer,
    /// A pod without a budget that is stuck terminating is deleted without grace.
    StuckTerminating,
    /// A pod with a budget is evicted, and deleted if the budget refuses.
    PdbDelete,
    /// A terminating pod with a budget loses its finalizers.
    PdbFinalizer,
    /// A pod with a budget that is stuck terminating is deleted without grace.
    PdbStuckTerminating,
}

impl StrategyName {
    /// Its one spelling, in logs, Events and metric labels.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// What it does, for a person: completes "next: …".
    pub const fn intent(self) -> &'static str {
        match self {
            Self::Surge => "let its Deployment roll, which starts a new pod first",
            Self::Delete => "evict it",
            Self::PdbDelete => "evict it, or delete it if the budget refuses",
            Self::Finalizer | Self::PdbFinalizer => "remove its finalizers",
            Self::StuckTerminating | Self::PdbStuckTerminating => "delete it without grace",
        }
    }
}

/// Which of the [`Waits`] a strategy counts from the drain's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    TimeOut,
    /// `expectedNodeDrainTime + PDBForceDrainTimeout`.
    BudgetForce,
    /// `surge.after`.
    Surge,
}

impl Wait {
    /// The wait of a pod that a budget selects, or none.
    pub const fn of(covered: bool) -> Self {
        if covered { Self::BudgetForce } else { Self::TimeOut }
    }

    /// When it ends for the pod, whose drain began at `drain_start`.
    pub fn ends(self, pod: &PodView, drain_start: Timestamp, waits: &Waits) -> Timestamp {
        saturating_add(drain_start.max(pod.created), waits.until(self))
    }
}

/// What a strategy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Tell its Deployment to roll.
    Restart,
    /// Take that back.
    UndoRestart,
    /// Ask the eviction API, and accept its answer.
    Evict,
    /// Ask the eviction API; if the budget refuses, delete with the pod's own grace.
    EvictOrDelete,
    /// Remove the finalizers that may be removed.
    RemoveFinalizers,
    /// Delete with grace 0.
    DeleteNow,
}

impl Remedy {
    /// Whether it does nothing to the pod itself, and goes around no budget.
    pub const fn is_about_deployment(self) -> bool {
        matches!(self, Self::Restart | Self::UndoRestart)
    }
}

/// A strategy: a name, a wait, a remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strategy {
    pub name: StrategyName,
    /// Counted from the drain's start, or from the pod's creation where that is later.
    pub wait: Wait,
    /// What is done.
    pub remedy: Remedy,
}

/// The finalizers of a pod.
enum Finalizers {
    Absent,
    Removable,
    ProtectedOnly,
}

impl Finalizers {
    fn of(pod: &PodView, protected: &[String]) -> Self {
        if pod.finalizers.is_empty() {
            Self::Absent
        } else if removable_finalizers(pod, protected).is_empty() {
            Self::ProtectedOnly
        } else {
            Self::Removable
        }
    }
}

/// The finalizers of the pod that may be removed.
pub fn removable_finalizers(pod: &PodView, protected: &[String]) -> Vec<String> {
    let finalizers = pod.finalizers.iter();
    finalizers
        .filter(|finalizer| !protected.contains(finalizer))
        .cloned()
        .collect()
}

impl Strategy {
    /// The strategy for this pod as it stands, if there is one. `covered` says whether a budget selects it, as far as anyone
    /// knows: one in the cache, or one that the server refused by. `protected` are the finalizers that are never removed.
    pub fn for_pod(pod: &PodView, covered: bool, protected: &[String]) -> Option<Self> {
        let is_terminating = pod.deletion.is_some();
        let (name, remedy) = match (covered, is_terminating, Finalizers::of(pod, protected)) {
            // A finished pod keeps no drain waiting before somebody deletes it.
            (_, false, _) if pod.is_finished() => return None,
            (false, false, _) => (StrategyName::Delete, Remedy::Evict),
            (false, true, Finalizers::Removable) => (StrategyName::Finalizer, Remedy::RemoveFinalizers),
            (false, true, Finalizers::Absent) => (StrategyName::StuckTerminating, Remedy::DeleteNow),
            (true, false, _) => (StrategyName::PdbDelete, Remedy::EvictOrDelete),
            (true, true, Finalizers::Removable) => (StrategyName::PdbFinalizer, Remedy::RemoveFinalizers),
            (true, true, Finalizers::Absent) => (StrategyName::PdbStuckTerminating, Remedy::DeleteNow),
            // Neither are its finalizers removed, nor is it deleted past them.
            (_, true, Finalizers::ProtectedOnly) => return None,
        };
        let wait = Wait::of(covered);
        Some(Self { name, wait, remedy })
    }

    /// When it falls due for the pod, whose drain began at `drain_start`.
    ///
    /// A terminating pod is left alone until `force_after` beyond its `deletionTimestamp` as it reads now. At that moment
    /// the kubelet is only sending SIGKILL; and once it has ended the containers it moves the time to that moment, so the
    /// controller of a finalizer has had no time at all yet.
    pub fn due(&self, pod: &PodView, drain_start: Timestamp, waits: &Waits) -> Timestamp {
        let timed = self.wait.ends(pod, drain_start, waits);
        let Some(deletion) = &pod.deletion else {
            return timed;
        };
        timed.max(saturating_add(deletion.deadline, waits.force_after))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    /// The drain's start; every other moment below is in minutes after it.
    const START: i64 = 1_767_225_600;

    const WAITS: Waits = Waits {
        time_out: SignedDuration::from_mins(45),
        expected_drain: SignedDuration::from_mins(8),
        budget_force: SignedDuration::from_mins(60),
        force_after: SignedDuration::from_mins(5),
        surge: SignedDuration::from_mins(2),
    };

    #[rstest]
    #[case::time_out_first(45, 8, 60, 45)]
    #[case::budgets_first(45, 8, 10, 18)]
    #[case::both_at_once(18, 8, 10, 18)]
    fn the_first_wait_is_the_shorter_of_the_two(
        #[case] time_out: i64,
        #[case] expected_drain: i64,
        #[case] budget_force: i64,
        #[case] first: i64,
    ) {
        let waits = Waits {
            time_out: SignedDuration::from_mins(time_out),
            expected_drain: SignedDuration::from_mins(expected_drain),
            budget_force: SignedDuration::from_mins(budget_force),
            ..WAITS
        };
        assert_eq!(waits.first(), SignedDuration::from_mins(first));
        assert_eq!(waits.until(Wait::TimeOut), SignedDuration::from_mins(time_out));
        assert_eq!(
            waits.until(Wait::BudgetForce),
            SignedDuration::from_mins(expected_drain + budget_force)
        );
    }

    #[test]
    fn uncountable_wait_is_the_longest() {
        let endless = Waits {
            expected_drain: SignedDuration::MAX,
            ..WAITS
        };
        assert_eq!(endless.until(Wait::BudgetForce), SignedDuration::MAX);
        assert_eq!(endless.first(), WAITS.time_out);
    }

    fn minute(minutes: i64) -> Timestamp {
        Timestamp::from_second(START + minutes * 60).unwrap()
    }

    /// A running pod that was created an hour before the drain.
    fn pod(metadata: Value, phase: &str) -> PodView {
        let mut pod = json!({
            "metadata": { "namespace": "shop", "name": "web-0", "creationTimestamp": minute(-60).to_string() },
            "status": { "phase": phase },
        });
        for (key, value) in metadata.as_object().unwrap() {
            pod["metadata"][key] = value.clone();
        }
        PodView::project(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn running() -> PodView {
        pod(json!({}), "Running")
    }

    /// Terminates: its delete was asked for `grace` minutes before `deadline`.
    fn terminating(deadline: i64, grace: i64, finalizers: &[&str]) -> PodView {
        let metadata = json!({
            "deletionTimestamp": minute(deadline).to_string(),
            "deletionGracePeriodSeconds": grace * 60,
            "finalizers": finalizers,
        });
        pod(metadata, "Running")
    }

    fn protected() -> Vec<String> {
        vec!["foregroundDeletion".to_owned()]
    }

    fn of(pod: &PodView, covered: bool) -> Option<Strategy> {
        Strategy::for_pod(pod, covered, &protected())
    }

    #[rstest]
    #[case::none(&[], &[])]
    #[case::ordinary(&["a.io/x"], &["a.io/x"])]
    #[case::protected_only(&["foregroundDeletion"], &[])]
    #[case::mixed(&["foregroundDeletion", "b.io/y", "a.io/x"], &["b.io/y", "a.io/x"])]
    #[case::longer_name(&["foregroundDeletion.io"], &["foregroundDeletion.io"])]
    fn only_unprotected_finalizers_are_removable(#[case] finalizers: &[&str], #[case] removable: &[&str]) {
        let pod = pod(json!({ "finalizers": finalizers }), "Running");
        assert_eq!(removable_finalizers(&pod, &protected()), removable);
    }

    use StrategyName::{Delete, Finalizer, PdbDelete, PdbFinalizer, PdbStuckTerminating, StuckTerminating};

    #[rstest]
    #[case::running(running(), Some((Delete, Remedy::Evict)), Some((PdbDelete, Remedy::EvictOrDelete)))]
    #[case::pending(pod(json!({}), "Pending"), Some((Delete, Remedy::Evict)), Some((PdbDelete, Remedy::EvictOrDelete)))]
    #[case::unknown(pod(json!({}), "Unknown"), Some((Delete, Remedy::Evict)), Some((PdbDelete, Remedy::EvictOrDelete)))]
    // Finalizers are removed from terminating pods only.
    #[case::running_with_finalizers(
        pod(json!({ "finalizers": ["a.io/x"] }), "Running"),
        Some((Delete, Remedy::Evict)),
        Some((PdbDelete, Remedy::EvictOrDelete))
    )]
    #[case::terminating(
        terminating(0, 1, &[]),
        Some((StuckTerminating, Remedy::DeleteNow)),
        Some((PdbStuckTerminating, Remedy::DeleteNow))
    )]
    #[case::terminating_with_finalizers(
        terminating(0, 1, &["a.io/x"]),
        Some((Finalizer, Remedy::RemoveFinalizers)),
        Some((PdbFinalizer, Remedy::RemoveFinalizers))
    )]
    #[case::terminating_with_protected_ones_among_others(
        terminating(0, 1, &["foregroundDeletion", "a.io/x"]),
        Some((Finalizer, Remedy::RemoveFinalizers)),
        Some((PdbFinalizer, Remedy::RemoveFinalizers))
    )]
    // Neither is its finalizer removed, nor is it deleted past it.
    #[case::terminating_with_protected_ones_only(terminating(0, 1, &["foregroundDeletion"]), None, None)]
    // A finished pod keeps no drain waiting, and is nothing to delete.
    #[case::succeeded(pod(json!({}), "Succeeded"), None, None)]
    #[case::failed(pod(json!({}), "Failed"), None, None)]
    #[case::finished_with_finalizers(pod(json!({ "finalizers": ["a.io/x"] }), "Succeeded"), None, None)]
    // One that terminates does block a drain, finished or not.
    #[case::finished_and_terminating(
        pod(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), "Succeeded"),
        Some((StuckTerminating, Remedy::DeleteNow)),
        Some((PdbStuckTerminating, Remedy::DeleteNow))
    )]
    #[case::finished_and_terminating_with_finalizers(
        pod(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a.io/x"] }), "Failed"),
        Some((Finalizer, Remedy::RemoveFinalizers)),
        Some((PdbFinalizer, Remedy::RemoveFinalizers))
    )]
    fn pod_has_exactly_one_fitting_strategy(
        #[case] pod: PodView,
        #[case] without_budget: Option<(StrategyName, Remedy)>,
        #[case] with_budget: Option<(StrategyName, Remedy)>,
    ) {
        let found = |covered| of(&pod, covered).map(|strategy| (strategy.name, strategy.remedy));
        assert_eq!(found(false), without_budget);
        assert_eq!(found(true), with_budget);
    }

    #[rstest]
    #[case::without_budget(running(), false, 45)]
    #[case::with_budget(running(), true, 68)]
    // A pod's deadline counts from the later of the drain's start and its own creation.
    #[case::created_after_the_start(pod(json!({ "creationTimestamp": minute(10).to_string() }), "Running"), false, 55)]
    #[case::created_after_the_start_with_budget(pod(json!({ "creationTimestamp": minute(10).to_string() }), "Running"), true, 78)]
    // Within the wait its grace changes nothing.
    #[case::terminating_early(terminating(30, 1, &[]), false, 45)]
    // The kubelet has ended the containers: it moves the time to that moment, and the grace to 0.
    #[case::finalizers_of_a_pod_that_ended_promptly(terminating(50, 0, &["a.io/x"]), false, 55)]
    // Beyond the wait its grace still is its own.
    #[case::terminating_with_a_long_grace(terminating(90, 60, &[]), false, 95)]
    #[case::finalizers_early(terminating(30, 1, &["a.io/x"]), false, 45)]
    #[case::finalizers_with_a_long_grace(terminating(90, 60, &["a.io/x"]), false, 95)]
    #[case::covered_finalizers_early(terminating(30, 1, &["a.io/x"]), true, 68)]
    #[case::covered_finalizers_with_a_long_grace(terminating(90, 60, &["a.io/x"]), true, 95)]
    // `forceAfter` counts from the end of the grace, in each row.
    #[case::covered_terminating_early(terminating(30, 1, &[]), true, 68)]
    #[case::covered_deleted_at_the_deadline(terminating(69, 1, &[]), true, 74)]
    #[case::covered_with_a_grace_beyond_force_after(terminating(88, 20, &[]), true, 93)]
    #[case::uncovered_deleted_at_the_deadline(terminating(46, 1, &[]), false, 51)]
    #[case::covered_finalizers_deleted_at_the_deadline(terminating(69, 1, &["a.io/x"]), true, 74)]
    fn a_strategy_falls_due(#[case] pod: PodView, #[case] covered: bool, #[case] minutes: i64) {
        let strategy = of(&pod, covered).unwrap();
        assert_eq!(strategy.due(&pod, minute(0), &WAITS), minute(minutes));
    }

    /// `PDBForceDrainTimeout: 0` is legal, and means `expectedNodeDrainTime` alone.
    #[test]
    fn zero_budget_wait_keeps_the_expected_drain_time() {
        let pod = running();
        let strategy = of(&pod, true).unwrap();
        let waits = Waits {
            budget_force: SignedDuration::ZERO,
            ..WAITS
        };
        assert_eq!(strategy.due(&pod, minute(0), &waits), minute(8));
    }

    #[test]
    fn waits_beyond_the_calendar_never_fall_due() {
        let pod = running();
        let strategy = of(&pod, true).unwrap();
        let waits = Waits {
            expected_drain: SignedDuration::MAX,
            budget_force: SignedDuration::MAX,
            ..WAITS
        };
        assert_eq!(strategy.due(&pod, minute(0), &waits), Timestamp::MAX);
    }

    #[rstest]
    fn a_name_is_spelled_as_its_variant(
        #[values(Delete, Finalizer, StuckTerminating, PdbDelete, PdbFinalizer, PdbStuckTerminating)] name: StrategyName,
    ) {
        assert_eq!(name.to_string(), format!("{name:?}"));
        assert_eq!(serde_json::to_value(name).unwrap(), name.as_str());
    }

    proptest::proptest! {
        /// Whatever a pod is like, nothing is done to it before the drain's own wait has passed, nor while its grace lasts.
        #[test]
        fn nothing_is_due_before_wait_and_grace(
            created in -100_i64..100,
            deletion in proptest::option::of((-100_i64..200, 0_i64..120)),
            finalizer in proptest::sample::select(vec![None, Some("a.io/x"), Some("foregroundDeletion")]),
            phase in proptest::sample::select(vec!["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
            covered in proptest::bool::ANY,
        ) {
            let mut metadata = json!({ "creationTimestamp": minute(created).to_string(), "finalizers": finalizer.as_slice() });
            if let Some((deadline, grace)) = deletion {
                metadata["deletionTimestamp"] = minute(deadline).to_string().into();
                metadata["deletionGracePeriodSeconds"] = (grace * 60).into();
            }
            let pod = pod(metadata, phase);
            if let Some(strategy) = of(&pod, covered) {
                let due = strategy.due(&pod, minute(0), &WAITS);
                let wait = if covered { 68 } else { 45 };
                proptest::prop_assert!(due >= minute(created.max(0) + wait));
                proptest::prop_assert!(pod.deletion.as_ref().is_none_or(|deletion| deletion.is_beyond_grace(due)));
            }
        }
    }
}
