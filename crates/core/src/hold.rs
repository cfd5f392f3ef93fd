//! Holds: budgets that somebody else has the right to, for now.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use crate::deadline::to_the_second;
use crate::id::{BudgetKey, NodeName, NodeUid, PodUid};

pub use self::source::{DRAIN_LASTS, RECOVERY_LASTS, of_annotation, of_claim, of_owner};

/// Budgets that are not to be overridden until their hold ends: another node's claim, or an owner's wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub held: Held,
    /// Who holds it.
    pub holder: Holder,
    /// When the hold ends by itself; `None`: only when it is released.
    pub until: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    Budget(BudgetKey),
    /// Every budget of a namespace.
    Namespace(Arc<str>),
    /// Every budget.
    Everything,
}

/// Who holds a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// The claim of a node that drains; it does not stand in the way of that node's own drain.
    Node {
        name: NodeName,
        uid: NodeUid,
        /// The pods that it was granted disruptions for.
        pods: BTreeSet<PodUid>,
        /// Whether it was granted one for the movable pods of the node.
        movable: bool,
    },
    /// The claim of a node that waits for disruptions of other drains, which the ledger keeps for it.
    Reserved { name: NodeName, uid: NodeUid },
    /// An owner, with the reason given.
    Owner(String),
    /// It cannot be told whether anybody does, for this reason: nobody may take it until that is known.
    Unknown(String),
}

impl Hold {
    /// A hold on everything, because it cannot be told what is held.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self {
            held: Held::Everything,
            holder: Holder::Unknown(why.into()),
            until: None,
        }
    }

    fn is_in_force(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    fn is_of_node(&self, node: &NodeUid) -> bool {
        matches!(&self.holder, Holder::Node { uid, .. } | Holder::Reserved { uid, .. } if uid == node)
    }

    /// Whether the ledger granted this node a disruption for its movable pods.
    fn grants_movable(&self, node: &NodeUid) -> bool {
        matches!(&self.holder, Holder::Node { uid, movable: true, .. } if uid == node)
    }

    /// Whether the ledger granted this node a disruption for this pod.
    fn grants(&self, node: &NodeUid, pod: &PodUid) -> bool {
        matches!(&self.holder, Holder::Node { uid, pods, .. } if uid == node && pods.contains(pod))
    }
}

/// Who holds it and until when, for people.
impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.holder {
            Holder::Node { name, .. } => write!(f, "held by the claim of node {name}")?,
            Holder::Reserved { name, .. } => write!(f, "reserved for the claim of node {name}")?,
            Holder::Owner(_) => f.write_str("held by its owner")?,
            Holder::Unknown(why) => return f.write_str(why),
        }
        if let Some(until) = self.until {
            write!(f, " until {}", to_the_second(until))?;
        }
        match &self.holder {
            Holder::Owner(reason) if !reason.is_empty() => write!(f, ": {reason}"),
            _ => Ok(()),
        }
    }
}

/// All holds, by what they are on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holds(BTreeMap<Held, Vec<Hold>>);

impl Holds {
    pub fn add(&mut self, hold: Hold) {
        self.0.entry(hold.held.clone()).or_default().push(hold);
    }

    /// The holds that keep this pod of this node from being forced against `budget` at `now`.
    ///
    /// A claim stands neither against its own node, nor against a pod for which the ledger granted that node a disruption of its
    /// own, or one for its movable pods: it granted both, so both have their right.
    pub fn against(
        &self,
        budget: &BudgetKey,
        node: &NodeUid,
        pod: &PodUid,
        now: Timestamp,
    ) -> impl Iterator<Item = &Hold> {
        let is_granted = self.is_granted(budget, node, pod) || self.on(budget).any(|hold| hold.grants_movable(node));
        self.on(budget)
            .filter(move |hold| hold.is_in_force(now))
            .filter(move |hold| match &hold.holder {
                Holder::Node { .. } | Holder::Reserved { .. } => !is_granted && !hold.is_of_node(node),
                Holder::Owner(_) | Holder::Unknown(_) => true,
            })
    }

    /// Whether the ledger granted this node a disruption of the budget for this pod.
    pub fn is_granted(&self, budget: &BudgetKey, node: &NodeUid, pod: &PodUid) -> bool {
        self.on(budget).any(|hold| hold.grants(node, pod))
    }

    /// Whether the claim of another node is on the budget beyond its own limit. drain-lock goes on refusing evictions for it
    /// whatever room the budget has, so room is then no sign that the next one would pass.
    pub fn is_outlasted(&self, budget: &BudgetKey, node: &NodeUid, now: Timestamp) -> bool {
        self.on(budget)
            .filter(|hold| matches!(hold.holder, Holder::Node { .. }))
            .any(|hold| !hold.is_of_node(node) && !hold.is_in_force(now))
    }

    fn on(&self, budget: &BudgetKey) -> impl Iterator<Item = &Hold> {
        let scopes = [
            Held::Budget(budget.clone()),
            Held::Namespace(Arc::clone(&budget.namespace)),
            Held::Everything,
        ];
        scopes.into_iter().filter_map(|held| self.0.get(&held)).flatten()
    }
}

impl FromIterator<Hold> for Holds {
    fn from_iter<T: IntoIterator<Item = Hold>>(holds: T) -> Self {
        let mut all = Self::default();
        all.extend(holds);
        all
    }
}

impl Extend<Hold> for Holds {
    fn extend<T: IntoIterator<Item = Hold>>(&mut self, holds: T) {
        for hold in holds {
            self.add(hold);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn web() -> BudgetKey {
        BudgetKey::new("shop", "web")
    }

    /// The claim of a node with disruptions for these pods; `*` is the one for movable pods.
    fn node(name: &str, pods: &[&str]) -> Holder {
        Holder::Node {
            name: name.into(),
            uid: name.into(),
            pods: pods.iter().filter(|pod| **pod != "*").map(|&pod| pod.into()).collect(),
            movable: pods.contains(&"*"),
        }
    }

    fn reserved(node: &str) -> Holder {
        Holder::Reserved {
            name: node.into(),
            uid: node.into(),
        }
    }

    fn owner(reason: &str) -> Holder {
        Holder::Owner(reason.to_owned())
    }

    fn hold(holder: Holder, until: Option<i64>) -> Hold {
        Hold {
            held: Held::Budget(web()),
            holder,
            until: until.map(second),
        }
    }

    fn against(holds: impl IntoIterator<Item = Hold>) -> Option<Hold> {
        let holds: Holds = holds.into_iter().collect();
        holds
            .against(&web(), &"n1".into(), &"p".into(), NOW)
            .max_by_key(|hold| hold.until.unwrap_or(Timestamp::MAX))
            .cloned()
    }

    #[rstest]
    #[case::another_node(node("n2", &[]), None, true)]
    #[case::its_own_node(node("n1", &[]), None, false)]
    #[case::reserved_for_another_node(reserved("n2"), None, true)]
    #[case::reserved_for_its_own_node(reserved("n1"), None, false)]
    #[case::an_owner(owner("migration"), None, true)]
    #[case::unknown(Holder::Unknown("not listed".to_owned()), None, true)]
    #[case::still_held(owner(""), Some(1), true)]
    #[case::ends_now(owner(""), Some(0), false)]
    #[case::ended(node("n2", &[]), Some(-1), false)]
    fn hold_binds_all_other_nodes_until_its_end(
        #[case] holder: Holder,
        #[case] until: Option<i64>,
        #[case] stands: bool,
    ) {
        assert_eq!(against([hold(holder, until)]).is_some(), stands);
    }

    #[rstest]
    #[case::granted_both([node("n1", &["p"]), node("n2", &["q"])], false)]
    #[case::granted_for_movable_pods([node("n1", &["*"]), node("n2", &["q"])], false)]
    #[case::granted_to_others_for_movable_pods([node("n1", &["o"]), node("n2", &["*"])], true)]
    #[case::granted_what_is_reserved_too([node("n1", &["p"]), reserved("n2")], false)]
    #[case::granted_for_another_pod([node("n1", &["o"]), node("n2", &["q"])], true)]
    #[case::a_node_of_the_same_name(
        [Holder::Node { name: "n1".into(), uid: "older".into(), pods: BTreeSet::new(), movable: true }, node("n3", &[])], true
    )]
    #[case::granted_but_held_by_the_owner([node("n1", &["p"]), owner("")], true)]
    fn both_grantees_may_use_a_shared_budget(#[case] holders: [Holder; 2], #[case] stands: bool) {
        assert_eq!(against(holders.map(|holder| hold(holder, None))).is_some(), stands);
    }

    #[rstest]
    #[case(Held::Budget(web()), true)]
    #[case(Held::Budget(BudgetKey::new("shop", "db")), false)]
    #[case(Held::Budget(BudgetKey::new("other", "web")), false)]
    #[case(Held::Namespace("shop".into()), true)]
    #[case(Held::Namespace("other".into()), false)]
    #[case(Held::Everything, true)]
    fn hold_covers_budget_namespace_or_cluster(#[case] held: Held, #[case] stands: bool) {
        let hold = Hold {
            held,
            ..hold(owner(""), None)
        };
        assert_eq!(against([hold]).is_some(), stands);
    }

    #[rstest]
    #[case(&[Some(5), Some(9), Some(7)], Some(9))]
    #[case(&[Some(5), None], None)]
    fn of_several_holds_the_last_to_end_is_named(#[case] untils: &[Option<i64>], #[case] named: Option<i64>) {
        let found = against(untils.iter().map(|until| hold(owner(""), *until)));
        assert_eq!(found.unwrap().until, named.map(second));
    }

    #[rstest]
    #[case::in_force(node("n2", &[]), Some(1), false)]
    #[case::beyond_its_limit(node("n2", &[]), Some(0), true)]
    #[case::its_own(node("n1", &[]), Some(0), false)]
    #[case::an_owners(owner(""), Some(0), false)]
    fn a_claim_beyond_its_limit_still_keeps_evictions_away(
        #[case] holder: Holder,
        #[case] until: Option<i64>,
        #[case] outlasted: bool,
    ) {
        let holds = Holds::from_iter([hold(holder, until)]);
        assert_eq!(holds.is_outlasted(&web(), &"n1".into(), NOW), outlasted);
    }

    #[rstest]
    #[case(hold(node("n2", &[]), Some(60)), "held by the claim of node n2 until 1970-01-01T00:01:00Z")]
    #[case(hold(node("n2", &[]), None), "held by the claim of node n2")]
    #[case(hold(reserved("n2"), None), "reserved for the claim of node n2")]
    #[case(
        hold(owner("migration"), Some(60)),
        "held by its owner until 1970-01-01T00:01:00Z: migration"
    )]
    #[case(hold(owner(""), None), "held by its owner")]
    #[case(Hold::unknown("DrainLedger is not listed yet"), "DrainLedger is not listed yet")]
    fn a_hold_says_who_and_until_when(#[case] hold: Hold, #[case] text: &str) {
        assert_eq!(hold.to_string(), text);
    }
}
