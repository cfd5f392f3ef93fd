//! Timed drain strategies: what is done to a pod that keeps a drain from ending, and when.
//!
//! Source: the drain strategies of openshift/managed-upgrade-operator (`docs/design/nodekeeper.md`), with a graceful
//! first step: a pod is evicted before anything stronger is done to it.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::deadline::later;
use crate::predicate::{
    COVERED_BY_BUDGET, FINISHED, HAS_REMOVABLE_FINALIZERS, KEPT_BY_FINALIZERS, Requirement, Subject, TERMINATING,
};

/// The waits that strategies are timed by, for one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// `nodeDrain.timeOut`: grace for a node to drain by itself.
    pub time_out: SignedDuration,
    /// `nodeDrain.expectedNodeDrainTime`: how long a drain takes at best.
    pub expected_drain: SignedDuration,
    /// `PDBForceDrainTimeout`: how long budgets are respected on top.
    pub budget_force: SignedDuration,
    /// How long a covered pod that was deleted gets on top of its grace.
    pub force_after: SignedDuration,
}

/// Name of a strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StrategyName {
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
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "Delete",
            Self::Finalizer => "Finalizer",
            Self::StuckTerminating => "StuckTerminating",
            Self::PdbDelete => "PdbDelete",
            Self::PdbFinalizer => "PdbFinalizer",
            Self::PdbStuckTerminating => "PdbStuckTerminating",
        }
    }

    /// What it does, for a person: completes "next: …".
    pub const fn intent(self) -> &'static str {
        match self {
            Self::Delete => "evict it",
            Self::PdbDelete => "evict it, or delete it if the budget refuses",
            Self::Finalizer | Self::PdbFinalizer => "remove its finalizers",
            Self::StuckTerminating | Self::PdbStuckTerminating => "delete it without grace",
        }
    }
}

impl fmt::Display for StrategyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which of the [`Waits`] a strategy counts from the drain's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// `timeOut`.
    TimeOut,
    /// `expectedNodeDrainTime + PDBForceDrainTimeout`.
    BudgetForce,
}

/// What a strategy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Ask the eviction API, and accept its answer.
    Evict,
    /// Ask the eviction API; if the budget refuses, delete with the pod's own grace.
    EvictOrDelete,
    /// Remove the finalizers that may be removed.
    RemoveFinalizers,
    /// Delete with grace 0.
    DeleteNow,
}

/// A strategy: a name, a wait, predicates, a remedy.
#[derive(Debug, Clone, Copy)]
pub struct Strategy {
    /// Name.
    pub name: StrategyName,
    /// Counted from the drain's start, or from the pod's creation where that is later.
    pub wait: Wait,
    /// What must be true of the pod.
    pub requires: &'static [Requirement],
    /// What is done.
    pub remedy: Remedy,
}

use Requirement::{Is, IsNot};

/// All strategies, in the order in which they are tried. The first whose requirements are met is the pod's.
pub const STRATEGIES: [Strategy; 6] = [
    Strategy {
        name: StrategyName::Delete,
        wait: Wait::TimeOut,
        requires: &[IsNot(COVERED_BY_BUDGET), IsNot(TERMINATING), IsNot(FINISHED)],
        remedy: Remedy::Evict,
    },
    Strategy {
        name: StrategyName::Finalizer,
        wait: Wait::TimeOut,
        requires: &[IsNot(COVERED_BY_BUDGET), Is(TERMINATING), Is(HAS_REMOVABLE_FINALIZERS)],
        remedy: Remedy::RemoveFinalizers,
    },
    Strategy {
        name: StrategyName::StuckTerminating,
        wait: Wait::TimeOut,
        requires: &[IsNot(COVERED_BY_BUDGET), Is(TERMINATING), IsNot(KEPT_BY_FINALIZERS)],
        remedy: Remedy::DeleteNow,
    },
    Strategy {
        name: StrategyName::PdbDelete,
        wait: Wait::BudgetForce,
        requires: &[Is(COVERED_BY_BUDGET), IsNot(TERMINATING), IsNot(FINISHED)],
        remedy: Remedy::EvictOrDelete,
    },
    Strategy {
        name: StrategyName::PdbFinalizer,
        wait: Wait::BudgetForce,
        requires: &[Is(COVERED_BY_BUDGET), Is(TERMINATING), Is(HAS_REMOVABLE_FINALIZERS)],
        remedy: Remedy::RemoveFinalizers,
    },
    Strategy {
        name: StrategyName::PdbStuckTerminating,
        wait: Wait::BudgetForce,
        requires: &[Is(COVERED_BY_BUDGET), Is(TERMINATING), IsNot(KEPT_BY_FINALIZERS)],
        remedy: Remedy::DeleteNow,
    },
];

impl Strategy {
    /// The strategy for this pod as it stands, if there is one: a pod that only protected finalizers keep has none.
    pub fn for_subject(subject: &Subject<'_>) -> Option<&'static Self> {
        STRATEGIES.iter().find(|strategy| {
            strategy
                .requires
                .iter()
                .all(|requirement| requirement.is_met_by(subject))
        })
    }

    /// When it falls due for the pod, whose drain began at `drain_start`.
    ///
    /// A terminating pod is left alone until its own grace has passed; a covered one that is to lose its grace
    /// altogether also gets `force_after` from the moment its delete was asked for.
    pub fn due(&self, subject: &Subject<'_>, drain_start: Timestamp, waits: &Waits) -> Timestamp {
        let pod = subject.pod;
        let wait = match self.wait {
            Wait::TimeOut => waits.time_out,
            Wait::BudgetForce => waits.expected_drain.saturating_add(waits.budget_force),
        };
        let timed = later(drain_start.max(pod.created), wait);
        let Some(deletion) = pod.deletion else {
            return timed;
        };
        let beyond_grace = timed.max(deletion.deadline);
        match self.name {
            StrategyName::PdbStuckTerminating => beyond_grace.max(later(deletion.requested_at(), waits.force_after)),
            _ => beyond_grace,
        }
    }
}
