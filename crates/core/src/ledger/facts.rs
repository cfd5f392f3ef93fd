//! What is observed of a budget when the ledger is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::reason::LockReason;

use super::{HeldPod, disruptions};
use crate::id::{BudgetKey, PodUid};

/// The budgets of all claims in the queue. Those of the claim that asks must have been read by quorum just before; a
/// claim whose budgets are missing here reserves nothing.
pub type Facts = BTreeMap<BudgetKey, BudgetFacts>;

/// One budget, and the pods that it selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetFacts {
    /// Namespace and name.
    pub key: BudgetKey,
    /// UID: a budget that was deleted and made again is another one.
    pub uid: Arc<str>,
    /// Whether the status speaks of the present spec (`observedGeneration == generation`).
    pub current: bool,
    /// `status.disruptionsAllowed`.
    pub disruptions_allowed: i32,
    /// `status.desiredHealthy`.
    pub desired_healthy: i32,
    /// `status.expectedPods`.
    pub expected_pods: i32,
    /// Why no disruption of it can be had, however healthy its pods are.
    pub unusable: Option<Unusable>,
    /// Whether one disruption is enough for all of its pods that leave a node: once one of them is down, the operator that keeps
    /// the budget takes the others out of it (annotation `nodeward.dev/counts`).
    pub is_by_node: bool,
    /// The pods of its selector that are Ready, without deletionTimestamp, and not in `disruptedPods` younger than 2 min:
    /// the rule of the disruption controller.
    pub healthy: BTreeSet<PodUid>,
    /// Pods of its selector that another budget selects as well.
    pub several: BTreeSet<PodUid>,
    /// What its owner keeps for himself.
    pub owner_disruptions: Option<OwnerDisruptions>,
    /// What tells whether pods that went are back under other names.
    pub pods: BudgetPods,
}

/// Numbers of a budget's pods that a controller keeps up, without those that have ended or are on their way out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BudgetPods {
    /// How many there are.
    pub all: i32,
    /// How many there should be.
    pub expected: i32,
    /// Those of the first grant in force, healthy or not, and those created since that are healthy.
    pub standing: i32,
    /// When the newest was created; `None` where each comes back under its name. A second before that where another might
    /// still be created in the same second: times of creation are whole seconds.
    pub newest: Option<Timestamp>,
}

/// What a budget's owner holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerDisruptions {
    /// No disruption at all.
    All,
    /// This many disruptions.
    Some(i32),
}

/// Why a budget allows no disruption of its pods, however healthy they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// The operator that keeps it has closed it, and opens it again by itself.
    ClosedForNow,
    /// The disruption controller cannot count its pods, and allows none to go.
    SyncFailed,
    /// `maxUnavailable` is 0.
    ZeroUnavailable,
    /// As many pods must be healthy as there are, as with one replica and `minAvailable: 1`.
    AllDemanded,
}

impl Unusable {
    /// What can be told from the numbers; `max_unavailable_zero` from the spec, `opens_again` from who keeps it.
    pub fn of(max_unavailable_zero: bool, opens_again: bool, expected_pods: i32, desired_healthy: i32) -> Option<Self> {
        if max_unavailable_zero {
            return Some(if opens_again {
                Self::ClosedForNow
            } else {
                Self::ZeroUnavailable
            });
        }
        (expected_pods > 0 && desired_healthy >= expected_pods).then_some(Self::AllDemanded)
    }

    /// Whether nobody opens the budget again by himself.
    pub fn is_for_good(self) -> bool {
        self != Self::ClosedForNow
    }

    /// Whether its spec leaves no disruption, however healthy its pods are.
    pub fn never_allows(self) -> bool {
        matches!(self, Self::ZeroUnavailable | Self::AllDemanded)
    }

    /// The reason to show.
    pub fn reason(self) -> LockReason {
        match self {
            Self::ClosedForNow => LockReason::CephClosed,
            Self::SyncFailed => LockReason::SyncFailed,
            Self::ZeroUnavailable | Self::AllDemanded => LockReason::BudgetNeverAllows,
        }
    }
}

impl BudgetFacts {
    /// Disruptions that are there now, claims aside.
    pub fn unbroken(&self) -> i32 {
        let spare = disruptions::count(self.healthy.len()).saturating_sub(self.desired_healthy);
        self.disruptions_allowed.min(spare)
    }

    /// The most disruptions that the budget ever has.
    pub fn ceiling(&self) -> i32 {
        self.expected_pods.saturating_sub(self.desired_healthy)
    }

    /// What is left of `free` for others than the owner; never more than 0 while he holds all.
    pub(super) fn without_owner(&self, free: i32) -> i32 {
        match self.owner_disruptions {
            None => free,
            Some(OwnerDisruptions::All) => free.min(0),
            Some(OwnerDisruptions::Some(disruptions)) => free.saturating_sub(disruptions.max(0)),
        }
    }

    pub(super) fn is_healthy(&self, pod_uid: &str) -> bool {
        self.healthy.contains(pod_uid)
    }

    /// How many disruptions of it these pods of one node take. One that stays goes down with its node, and its failure domain
    /// is not left out of the budget before: it takes one of its own in any case.
    pub fn cost<'a>(&self, pods: impl IntoIterator<Item = &'a HeldPod>) -> i32 {
        let (mut staying, mut leaving) = (0, 0);
        for pod in pods {
            if pod.retained {
                staying += 1;
            } else {
                leaving += 1;
            }
        }
        staying + if self.is_by_node { leaving.min(1) } else { leaving }
    }

    /// How many of those disruptions have yet to be taken: those of pods that are healthy. Of pods that share one, the first
    /// that goes down has taken it.
    pub(super) fn outstanding<'a>(&self, pods: impl IntoIterator<Item = &'a HeldPod>) -> i32 {
        let is_healthy = |pod: &&HeldPod| self.is_healthy(&pod.uid);
        let (healthy, down): (Vec<_>, Vec<_>) = pods.into_iter().partition(is_healthy);
        let is_taken = self.is_by_node && down.iter().any(|pod| !pod.retained);
        self.cost(healthy.into_iter().filter(|pod| pod.retained || !is_taken))
    }
}
