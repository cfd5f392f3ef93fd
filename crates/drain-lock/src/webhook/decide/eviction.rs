//! An eviction, and what the watches show of its pod.

use jiff::Timestamp;
use nodeward_core::id::{NodeName, NodeUid, PodKey, PodUid};
use nodeward_core::ledger::BudgetFacts;
use nodeward_core::opt_out::OptOut;

/// Who asks for an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// drain-lock itself: its ServiceAccount.
    Ourselves,
    /// Anybody else.
    Another(Drainer),
}

/// Whether a user's evictions from a cordoned node are the drain of that node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drainer {
    /// The user may change nodes, or the configuration says so.
    Yes,
    /// The user may not, or the configuration says so, or it is one of our own operators.
    No,
    /// The API server has not been asked, or not answered yet.
    Unanswered,
    /// The API server does not say.
    Unknown,
}

impl Caller {
    pub(super) fn is_another(self) -> bool {
        matches!(self, Self::Another(_))
    }

    /// Whether the eviction waits for the drain that it may ask for.
    pub(super) fn may_drain(self) -> bool {
        matches!(self, Self::Another(Drainer::Yes | Drainer::Unanswered))
    }
}

/// An eviction, as far as it is judged by.
#[derive(Debug, Clone, Copy)]
pub struct EvictionRequest<'a> {
    /// Who asks.
    pub caller: Caller,
    /// Whether nothing is to happen.
    pub dry_run: bool,
    /// Whether nobody has led and planned for too long: what waits would wait for ever.
    pub leaderless: bool,
    /// Whether a person has paused drain-lock, with the same consequence.
    pub paused: bool,
    /// The grant that it says it rests on.
    pub ticket: Option<&'a str>,
    pub pod: &'a PodKey,
}

/// What the watches show of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookupResult {
    /// The watches are not complete yet, or have been silent: nothing may be concluded.
    Unsynced,
    /// There is no such pod, or another of its name.
    UnknownPod,
    Found(Box<EvictionContext>),
}

impl LookupResult {
    pub fn context(&self) -> Option<&EvictionContext> {
        match self {
            Self::Unsynced | Self::UnknownPod => None,
            Self::Found(context) => Some(context),
        }
    }

    /// The same of a node that nothing stays on.
    pub(super) fn without_retained(&self) -> Self {
        let mut found = self.clone();
        if let Self::Found(context) = &mut found
            && let Some(node) = &mut context.node
        {
            node.retains = None;
        }
        found
    }

    /// The pod's budget, if it has just one, and the pod's UID.
    pub fn one_budget(&mut self) -> Option<(&mut BudgetFacts, &PodUid)> {
        match self {
            Self::Found(context) => match &mut context.budgets {
                MatchingBudgets::One(budget) => Some((budget, &context.uid)),
                MatchingBudgets::None | MatchingBudgets::Several => None,
            },
            Self::Unsynced | Self::UnknownPod => None,
        }
    }
}

/// The pod, its node and its budgets.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictionContext {
    pub uid: PodUid,
    /// How the eviction API treats it.
    pub state: PodState,
    /// What its owner asked of drains: to leave it, or to wait for it.
    pub opted_out: Option<OptOut>,
    /// The rollout by which it or another pod of its budgets moves.
    pub surge: Option<Surge>,
    /// Its node, where that is known.
    pub node: Option<NodeContext>,
    /// The budgets that select it.
    pub budgets: MatchingBudgets,
    /// Whether it is movable in the drain of its node; false where that is not known. It only matters while that drain's
    /// claim has no disruption for it.
    pub is_movable: bool,
    /// Whether another pod of its node leaves under the claim alone, so that no drainer is done with the node before.
    pub another_goes_last: bool,
    /// Whether it is not Ready, and its budget lets such pods go whatever else it says (`AlwaysAllow`).
    pub always_allowed: bool,
    /// Whether other drainers' evictions of opted-out pods are refused.
    pub refuse_opt_out: bool,
}

/// A rollout by which a pod moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surge {
    pub pod: PodKey,
    /// When it is given up.
    pub until: Timestamp,
}

/// How the eviction API treats a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodState {
    /// The API's copy of a static pod: its eviction does nothing.
    Mirror,
    /// Finished or terminating: no budget is asked.
    SkipsBudgets,
    /// Bound to a node, and not running yet: no budget is asked.
    Pending,
    /// Not Ready: the API applies `unhealthyPodEvictionPolicy`.
    Unready,
    /// Its budget is asked for a disruption.
    Counts,
}

impl PodState {
    /// Whether it is on its way to being Ready, or to failing at that.
    pub fn is_starting(self) -> bool {
        matches!(self, Self::Pending | Self::Unready)
    }
}

/// A node, and whether it is being emptied.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeContext {
    pub name: NodeName,
    pub uid: NodeUid,
    /// Whether it is cordoned, by whoever.
    pub cordoned: bool,
    /// Whether a drainer's eviction from it, while cordoned, asks for a drain of it by itself: auto mode is on, and it is selected.
    pub auto: bool,
    /// Whether somebody has asked for its drain.
    pub has_drain: bool,
    /// Whether it is in a node group, so that nobody empties it before it has its place there.
    pub in_node_group: bool,
    /// One of its pods that stays on it through its drain and that a budget guards: the node is not to be emptied around it
    /// before its drain has a disruption for it. `None` where nobody would give it one, or for an eviction that no drainer
    /// waits for.
    pub retains: Option<PodKey>,
    /// Whether it has been waited for a plan of its drain for longer than any plan takes.
    pub planning_timed_out: bool,
    /// Whether somebody takes it away for good: its pods go as their budgets allow, less what other drains are to have.
    pub is_being_removed: bool,
}

impl NodeContext {
    /// Whether the evictions of a drainer ask for its drain.
    pub fn takes_drainers(&self) -> bool {
        self.cordoned && self.auto
    }
}

/// The budgets that select a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatchingBudgets {
    None,
    /// One.
    One(BudgetFacts),
    /// Several: the API answers 500.
    Several,
}

impl EvictionContext {
    /// Whether its eviction takes nothing from anybody.
    pub(super) fn is_on_its_way_out(&self) -> bool {
        matches!(
            self.state,
            PodState::Mirror | PodState::SkipsBudgets | PodState::Pending
        )
    }
}
