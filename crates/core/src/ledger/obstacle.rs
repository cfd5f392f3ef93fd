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
        if let Some(pdb) = &self.pdb {
            write!(f, "{pdb} ")?;
        }
        f.write_str(self.reason.explanation())?;
        if self.needed > 0 {
            write!(f, " ({} needed, {} free)", self.needed, self.free.max(0))?;
        }
        if let Some(pod) = &self.pod {
            write!(f, ": pod {pod}")?;
        }
        match &self.holder {
            Some(node) => write!(f, ": node {node}"),
            None => Ok(()),
        }
    }
}
