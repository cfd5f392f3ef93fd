//! What stands in the way of a grant.

use std::fmt;

use nodeward_api::reason::LockReason;

use crate::id::{BudgetKey, NodeName, PodKey};

/// One thing that stands in the way of a grant, or of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Why.
    pub reason: LockReason,
    pub pdb: Option<BudgetKey>,
    /// The pod, where it is about one.
    pub pod: Option<PodKey>,
    /// The node whose claim is in the way; of several, the one with the oldest ticket.
    pub holder: Option<NodeName>,
    /// Disruptions that are needed of the budget.
    pub needed: i32,
    /// Disruptions that are there for it.
    pub free: i32,
}

impl Obstacle {
    /// An obstacle that is about no budget.
    pub(super) fn of_claim(reason: LockReason, holder: Option<NodeName>) -> Self {
        Self {
            reason,
            pdb: None,
            pod: None,
            holder,
            needed: 0,
            free: 0,
        }
    }

    /// An obstacle that is about a pod, whichever of its budgets is asked.
    pub(super) fn of_pod(reason: LockReason, pod: PodKey) -> Self {
        Self {
            pod: Some(pod),
            ..Self::of_claim(reason, None)
        }
    }

    /// A budget that has too few disruptions.
    pub(super) fn of_budget(reason: LockReason, budget: &BudgetKey, needed: i32, free: i32) -> Self {
        Self {
            pdb: Some(budget.clone()),
            needed,
            free,
            ..Self::of_claim(reason, None)
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.pdb, &self.pod) {
            (Some(budget), _) => write!(f, "budget {budget} {}", of_budget(self.reason))?,
            (None, Some(pod)) => write!(f, "pod {pod} {}", self.reason.explanation())?,
            (None, None) => f.write_str(self.reason.explanation())?,
        }
        if self.needed > 0 {
            write!(f, " ({} needed, {} free)", self.needed, self.free.max(0))?;
        }
        match &self.holder {
            Some(node) => write!(f, ": node {node}"),
            None => Ok(()),
        }
    }
}

/// The same as [`LockReason::explanation`], which is about a pod or a drain, about its budget.
const fn of_budget(reason: LockReason) -> &'static str {
    match reason {
        LockReason::BudgetUnhealthy => "has pods that are not healthy",
        LockReason::BudgetNeverAllows => "can never allow a disruption",
        LockReason::CephClosed => "is closed by Ceph's operator until its placement groups are clean again",
        LockReason::OwnerHold => "is held by its owner",
        LockReason::Reserved => "has disruptions that are kept for an older drain",
        LockReason::StatusBehind => "has a status that is behind",
        LockReason::SyncFailed => "has pods that Kubernetes cannot count",
        LockReason::WaitsForDisruptions => "has disruptions that another drain holds",
        _ => reason.explanation(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::unhealthy(
        LockReason::BudgetUnhealthy,
        "budget shop/web has pods that are not healthy (2 needed, 1 free)"
    )]
    #[case::held(LockReason::OwnerHold, "budget shop/web is held by its owner (2 needed, 1 free)")]
    #[case::in_a_circle(
        LockReason::CircularWait,
        "budget shop/web waits for pods that come back only once a node is uncordoned (2 needed, 1 free)"
    )]
    fn budget_is_the_subject(#[case] reason: LockReason, #[case] expected: &str) {
        let obstacle = Obstacle::of_budget(reason, &BudgetKey::new("shop", "web"), 2, 1);
        assert_eq!(obstacle.to_string(), expected);
    }

    #[test]
    fn pod_is_the_subject() {
        let obstacle = Obstacle::of_pod(LockReason::SeveralPDBs, PodKey::new("shop", "web-0"));
        let text = "pod shop/web-0 is selected by several budgets, which the eviction API refuses";
        assert_eq!(obstacle.to_string(), text);
    }

    #[test]
    fn holder_is_named_last() {
        let obstacle = Obstacle::of_claim(LockReason::ControlPlaneBusy, Some("n2".into()));
        let text = "waits while another node of the control plane is taken out of service: node n2";
        assert_eq!(obstacle.to_string(), text);
    }
}
