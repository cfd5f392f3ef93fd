//! What is observed of a budget when the ledger is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodeward_api::reason::LockReason;

use super::disruptions;
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
    /// Why it never allows a disruption.
    pub misconfigured: Option<Misconfigured>,
    /// The pods of its selector that are Ready, without deletionTimestamp, and not in `disruptedPods` younger than 2 min:
    /// the rule of the disruption controller.
    pub healthy: BTreeSet<PodUid>,
    /// Pods of its selector that another budget selects as well.
    pub several: BTreeSet<PodUid>,
    /// What its owner keeps for himself.
    pub owner_disruptions: Option<OwnerDisruptions>,
}

/// What a budget's owner holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerDisruptions {
    /// No disruption at all.
    All,
    /// This many disruptions.
    Some(i32),
}

/// Why a budget never allows a disruption of one of its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misconfigured {
    /// `maxUnavailable` is 0.
    ZeroUnavailable,
    /// As many pods must be healthy as there are, as with one replica and `minAvailable: 1`.
    AllDemanded,
}

impl Misconfigured {
    /// What can be told from the numbers; `max_unavailable_zero` from the spec.
    pub fn of(max_unavailable_zero: bool, expected_pods: i32, desired_healthy: i32) -> Option<Self> {
        if max_unavailable_zero {
            return Some(Self::ZeroUnavailable);
        }
        (expected_pods > 0 && desired_healthy >= expected_pods).then_some(Self::AllDemanded)
    }

    /// The reason to show.
    pub fn reason(self) -> LockReason {
        match self {
            Self::ZeroUnavailable | Self::AllDemanded => LockReason::BudgetNeverAllows,
        }
    }
}

impl BudgetFacts {
    /// Disruptions that are there now, claims aside.
    pub(super) fn unbroken(&self) -> i32 {
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
}
