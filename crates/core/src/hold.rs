//! Holds: a budget that somebody else has the right to, for now.

use jiff::Timestamp;

use crate::id::{BudgetKey, NodeName};

/// A budget that is not to be overridden until its hold ends: another node's claim, or an owner's wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The budget.
    pub budget: BudgetKey,
    /// Who holds it.
    pub holder: Holder,
    /// When the hold ends by itself; `None`: only when it is released.
    pub until: Option<Timestamp>,
}

/// Who holds a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// The claim of a node that drains; it does not stand in the way of that node's own drain.
    Node(NodeName),
    /// An owner, with the reason given.
    Owner(String),
}

impl Hold {
    /// Whether this keeps a pod of `node` from being forced at `now`.
    pub fn stands_against(&self, node: &NodeName, now: Timestamp) -> bool {
        let in_force = self.until.is_none_or(|until| now < until);
        in_force && !matches!(&self.holder, Holder::Node(own) if own == node)
    }
}
