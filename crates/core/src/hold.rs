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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    #[rstest]
    #[case::another_node(Holder::Node("n2".into()), None, true)]
    #[case::its_own_node(Holder::Node("n1".into()), None, false)]
    #[case::an_owner(Holder::Owner("migration".to_owned()), None, true)]
    #[case::still_held(Holder::Owner(String::new()), Some(1), true)]
    #[case::ends_now(Holder::Owner(String::new()), Some(0), false)]
    #[case::ended(Holder::Node("n2".into()), Some(-1), false)]
    fn a_hold_stands_against_all_but_its_own_node_until_it_ends(
        #[case] holder: Holder,
        #[case] seconds_left: Option<i64>,
        #[case] stands: bool,
    ) {
        let until = seconds_left.map(|seconds| Timestamp::from_second(seconds).unwrap());
        let hold = Hold {
            budget: BudgetKey::new("shop", "web"),
            holder,
            until,
        };
        assert_eq!(hold.stands_against(&"n1".into(), NOW), stands);
    }
}
