//! A claim: a drain's place in the queue, what it needs and what it holds.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use jiff::Timestamp;
use nodeward_api::budget_ref::BudgetRef;
use nodeward_api::drain_ledger::{ClaimState, StoredClaim};
use serde::{Deserialize, Serialize};

use super::{BudgetFacts, Facts, disruptions};
use crate::id::{BudgetKey, PodKey, PodUid};

/// A drain's place in the queue, what it needs and what it holds.
///
/// One that returns, or has a grant, needs nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Its place in the queue: the lowest is the oldest.
    pub ticket: i64,
    /// Name of the node.
    pub node: String,
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    pub state: ClaimState,
    /// Whether the node may go down at any moment: somebody was told so. Its retained pods count as down from then on.
    #[serde(default)]
    pub may_go_down: bool,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// When its present turn in the queue began.
    pub queued_at: Timestamp,
    /// The number of its last grant: the first follows from the time at which it was queued, so that none is given twice.
    #[serde(default)]
    pub grant: i64,
    /// The node's boot at the grant, and from when it was drained at that moment; empty before the first grant.
    #[serde(rename = "bootID", default)]
    pub boot_id: String,
    /// Whether somebody else cordoned the node.
    #[serde(default)]
    pub foreign_cordon: bool,
    /// Since when a pod of it has an obstacle that no other drain's end lifts; `None`: none has.
    #[serde(default)]
    pub obstructed_since: Option<Timestamp>,
    /// Whether it waits for other drains, and keeps what it needs from those behind it.
    #[serde(default)]
    pub reserves: bool,
    /// The node groups of which it counts as a node that is away.
    #[serde(default)]
    pub node_groups: Vec<String>,
    /// What it waits for, beyond what it holds; sorted by budget.
    #[serde(default)]
    pub needs: Vec<Need>,
    /// What it holds; sorted by budget.
    #[serde(default)]
    pub holds: Vec<Disruptions>,
    /// Movable pods of the node that have left without a disruption of the claim, and that nothing replaces yet; sorted by budget.
    #[serde(default)]
    pub moving: Vec<Disruptions>,
}

/// Disruptions of one budget that a claim waits for. The ledger stores how many; whoever asks for the grant knows the pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Need {
    pub pdb: BudgetRef,
    /// How many disruptions, beyond those held of the budget of this name.
    #[serde(default)]
    pub disruptions: i32,
    /// How many of them the grant takes from what is free: those of healthy pods.
    #[serde(default)]
    pub healthy: i32,
    /// Name of a pod that must leave and that several budgets select, so that no eviction of it is accepted.
    #[serde(default)]
    pub several: Option<String>,
    /// The pods, where this process has planned the need.
    #[serde(default)]
    pub pods: Unstored<Vec<HeldPod>>,
    /// Whether one more is for the movable pods, where this process has planned the need.
    #[serde(default)]
    pub movable: Unstored<bool>,
}

/// A part of the ledger that is not stored: two ledgers that differ in nothing else are the same.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Unstored<T>(pub T);

impl<T> PartialEq for Unstored<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Unstored<T> {}

impl<T> Hash for Unstored<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Disruptions of one budget, and the pods that they are for.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Disruptions {
    pub pdb: BudgetRef,
    /// How many of its pods were healthy at the grant; an evicted pod's disruption is back when as many are again.
    #[serde(default)]
    pub healthy_at_grant: i32,
    /// Whether one more is for the movable pods of the node: they follow one another on it.
    #[serde(default)]
    pub movable: bool,
    #[serde(default)]
    pub pods: Vec<HeldPod>,
}

/// A pod that a disruption is needed or held for. Its namespace is its budget's.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldPod {
    pub name: String,
    pub uid: String,
    /// Whether it stays on the node through its reboot.
    #[serde(default)]
    pub retained: bool,
    /// The hash of its containers before the reboot that it stays for; empty while it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub containers: String,
}

impl HeldPod {
    /// A pod before anything is held for it.
    pub fn new(pod: &PodKey, uid: &PodUid, retained: bool) -> Self {
        Self {
            name: pod.name.to_string(),
            uid: uid.to_string(),
            retained,
            containers: String::new(),
        }
    }
}

impl Disruptions {
    /// How many disruptions of their budget these are, by what is known of it; one a pod where nothing is.
    pub fn number(&self, facts: &Facts) -> i32 {
        let facts = facts.get(&BudgetKey::from(&self.pdb));
        let for_pods = facts.map_or_else(|| disruptions::count(self.pods.len()), |facts| facts.cost(&self.pods));
        for_pods + i32::from(self.movable)
    }

    /// Whether nothing is needed or held of the budget.
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty() && !self.movable
    }
}

impl Claim {
    /// Whether it holds a disruption for this pod.
    pub fn has_disruption(&self, pod_uid: &str) -> bool {
        disruptions::holds_pod(&self.holds, pod_uid)
    }

    /// The same without what it holds for these pods.
    #[must_use]
    pub fn without_pods(&self, uids: &BTreeSet<String>) -> Self {
        let mut without = self.clone();
        for disruptions in &mut without.holds {
            disruptions.pods.retain(|pod| !uids.contains(&pod.uid));
        }
        without.holds.retain(|held| held.movable || !held.pods.is_empty());
        without
    }

    /// How many pods it holds disruptions for.
    pub fn held_disruptions(&self) -> usize {
        disruptions::len(&self.holds)
    }

    /// How many disruptions of budgets these are.
    pub fn disruptions(&self, facts: &Facts) -> i32 {
        self.holds.iter().map(|held| held.number(facts)).sum()
    }

    /// The pods that it holds disruptions for.
    pub fn held_pods(&self) -> impl Iterator<Item = &HeldPod> {
        self.holds.iter().flat_map(|disruptions| &disruptions.pods)
    }

    /// Whether it holds a disruption of the budget of this name for the movable pods of its node.
    pub fn has_movable_disruption(&self, budget: &BudgetKey) -> bool {
        let mut of_budget = self.holds.iter().filter(|held| disruptions::is_of(&held.pdb, budget));
        of_budget.any(|held| held.movable)
    }

    /// Whether a movable pod of its node may go by the disruption of this very budget that it holds for these.
    pub(super) fn gives_movable(&self, budget: &BudgetFacts) -> bool {
        self.state == ClaimState::Confirmed && self.has_unused_for_movable(budget)
    }

    /// Whether the disruption that it holds for movable pods is there: the one that left last has it until it is replaced.
    pub(super) fn has_unused_for_movable(&self, budget: &BudgetFacts) -> bool {
        let is_of = |held: &Disruptions| disruptions::is_of(&held.pdb, &budget.key) && *held.pdb.uid == *budget.uid;
        self.holds.iter().any(|held| is_of(held) && held.movable) && self.moving_of(budget) == 0
    }

    /// The budgets that it needs or holds disruptions of; one that it needs and holds comes twice.
    pub fn budgets(&self) -> impl Iterator<Item = BudgetKey> {
        let needed = self.needs.iter().map(|need| &need.pdb);
        let held = self.holds.iter().map(|disruptions| &disruptions.pdb);
        needed.chain(held).map(BudgetKey::from)
    }

    /// The budgets that its moving pods are of.
    pub fn budgets_of_moving(&self) -> impl Iterator<Item = BudgetKey> {
        self.moving.iter().map(|moving| BudgetKey::from(&moving.pdb))
    }

    /// How many disruptions of a budget it holds.
    pub fn disruptions_of(&self, budget: &BudgetFacts) -> i32 {
        let of_budget = || {
            self.holds
                .iter()
                .filter(|held| disruptions::is_of(&held.pdb, &budget.key))
        };
        let for_pods = budget.cost(of_budget().flat_map(|held| &held.pods));
        for_pods + i32::from(self.has_unused_for_movable(budget))
    }

    /// Whether the node runs in another boot than when the claim was granted; false while either is unknown.
    pub fn has_rebooted(&self, boot_id: &str) -> bool {
        !self.boot_id.is_empty() && !boot_id.is_empty() && self.boot_id != boot_id
    }

    /// Whether it holds less than these needs ask for, as far as they are about movable pods or pods of which `counts` holds: a
    /// disruption of that very budget is missing, or a pod is to stay that was to leave.
    pub fn lacks(&self, needs: &[Disruptions], counts: impl Fn(&str) -> bool) -> bool {
        let is_to_leave = |pod: &HeldPod| self.held_pods().any(|held| held.uid == pod.uid && !held.retained);
        let asked = needs.iter().flat_map(|disruptions| &disruptions.pods);
        let missing = disruptions::missing(needs, &self.holds);
        let is_missing = |needed: &Disruptions| needed.movable || needed.pods.iter().any(|pod| counts(&pod.uid));
        let mut to_stay = asked.filter(|pod| pod.retained && counts(&pod.uid));
        missing.iter().any(is_missing) || to_stay.any(is_to_leave)
    }

    /// Whether a pod that stays on its node may go down with it at any moment: somebody was told that it may, or somebody
    /// else drains it, who evicts his last pod under the confirmed claim and takes it down without a word.
    pub(super) fn takes_retained_down(&self) -> bool {
        self.may_go_down || self.foreign_cordon && self.state == ClaimState::Confirmed
    }

    /// Whether it waits for disruptions, or holds some while it waits. One that does neither has its place alone.
    pub fn asks(&self) -> bool {
        self.state == ClaimState::Waiting && !(self.needs.is_empty() && self.holds.is_empty())
    }

    /// Puts it into a state. Its node may go down after that if it may before, as far as that matters to it.
    pub(super) fn enter(&mut self, state: ClaimState) {
        self.may_go_down |= self.takes_retained_down() && self.held_pods().any(|pod| pod.retained);
        self.state = state;
    }

    /// A claim that has its pods and its node back waits for its next turn. One that waits stays as it is until its next grant:
    /// whoever was told that its node may go down may rely on it, though the pods that were down are back.
    pub(super) fn settle(&mut self) {
        if self.state == ClaimState::Returning && self.holds.is_empty() && self.node_groups.is_empty() {
            (self.state, self.may_go_down) = (ClaimState::Waiting, false);
        }
    }
}

impl Claim {
    /// A claim as it is stored, with the budgets that its numbers mean; `Err` names what means none.
    pub(super) fn restore(
        stored: &StoredClaim,
        budget: impl Fn(u32) -> Result<(BudgetRef, i32), String>,
    ) -> Result<Self, String> {
        let mut holds: Vec<Disruptions> = Vec::new();
        for (place, hold) in stored.holds.iter().enumerate() {
            let (pdb, healthy_at_grant) = budget(hold.budget).map_err(|why| format!("holds[{place}]: {why}"))?;
            let pod = HeldPod {
                name: hold.name.clone(),
                uid: hold.uid.clone(),
                retained: hold.retained,
                containers: hold.containers.clone(),
            };
            match holds.iter_mut().find(|disruptions| disruptions.pdb == pdb) {
                Some(disruptions) => disruptions.pods.push(pod),
                None => holds.push(Disruptions {
                    pdb,
                    healthy_at_grant,
                    movable: false,
                    pods: vec![pod],
                }),
            }
        }
        let mut moving: Vec<Disruptions> = Vec::new();
        for (place, hold) in stored.moving.iter().enumerate() {
            let (pdb, _) = budget(hold.budget).map_err(|why| format!("moving[{place}]: {why}"))?;
            moving.push(Disruptions {
                pdb,
                pods: vec![HeldPod {
                    name: hold.name.clone(),
                    uid: hold.uid.clone(),
                    ..HeldPod::default()
                }],
                ..Disruptions::default()
            });
        }
        for (place, number) in stored.movable.iter().enumerate() {
            let (pdb, healthy_at_grant) = budget(*number).map_err(|why| format!("movable[{place}]: {why}"))?;
            holds.push(Disruptions {
                pdb,
                healthy_at_grant,
                movable: true,
                pods: Vec::new(),
            });
        }
        let needs = stored.needs.iter().enumerate().map(|(place, need)| {
            let (pdb, _) = budget(need.budget).map_err(|why| format!("needs[{place}]: {why}"))?;
            Ok(Need {
                pdb,
                disruptions: need.disruptions,
                healthy: need.healthy,
                several: need.several.clone(),
                pods: Unstored::default(),
                movable: Unstored::default(),
            })
        });
        Ok(Self {
            ticket: stored.ticket,
            node: stored.node.clone(),
            node_uid: stored.node_uid.clone(),
            state: stored.state,
            may_go_down: stored.may_go_down,
            since: stored.since,
            queued_at: stored.queued_at,
            grant: stored.grant,
            boot_id: stored.boot_id.clone(),
            foreign_cordon: stored.foreign_cordon,
            obstructed_since: stored.obstructed_since,
            reserves: stored.reserves,
            node_groups: stored.node_groups.clone(),
            needs: needs.collect::<Result<_, String>>()?,
            holds: disruptions::normal(holds),
            moving: disruptions::normal(moving),
        })
    }
}
