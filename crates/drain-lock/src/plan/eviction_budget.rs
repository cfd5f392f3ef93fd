//! Which pods may be evicted now: as many as their budgets allow, and none that the server would refuse.

use std::collections::BTreeSet;

use jiff::Timestamp;
use nodeward_api::reason::LockReason;
use nodeward_core::id::{BudgetKey, NodeName, PodUid};
use nodeward_core::ledger::{Facts, Ledger, Obstacle, Reservations};

use crate::snapshot::{Memory, PodFacts, Snapshot};

/// What all budgets allow, less what this pass has given away.
pub struct EvictionBudget<'a> {
    snapshot: &'a Snapshot,
    memory: &'a Memory,
    facts: Facts,
    now: Timestamp,
}

/// What of each budget is whose.
#[derive(Debug, Clone, Copy)]
pub struct Ledgers<'a> {
    /// As it is written.
    pub written: &'a Ledger,
    /// As this pass makes it.
    pub next: &'a Ledger,
    /// What claims in the latter keep from others, as far as the pod's node's.
    pub reservations: &'a Reservations,
}

/// Why a pod is not evicted now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotEvictable {
    /// Why.
    pub reason: LockReason,
    /// The budget that it is about.
    pub pdb: Option<BudgetKey>,
    /// The node whose claim has the budget.
    pub holder: Option<NodeName>,
    /// When to look again, where no watch would tell.
    pub until: Option<Timestamp>,
}

impl NotEvictable {
    /// For this reason, and nothing else is known.
    pub fn because(reason: LockReason) -> Self {
        Self {
            reason,
            pdb: None,
            holder: None,
            until: None,
        }
    }

    fn by_budget(reason: LockReason, budget: &BudgetKey) -> Self {
        Self {
            pdb: Some(budget.clone()),
            ..Self::because(reason)
        }
    }
}

impl From<Obstacle> for NotEvictable {
    fn from(obstacle: Obstacle) -> Self {
        Self {
            pdb: obstacle.pdb,
            holder: obstacle.holder,
            ..Self::because(obstacle.reason)
        }
    }
}

impl<'a> EvictionBudget<'a> {
    /// What the budgets allow, less the pods whose eviction was asked for and is not seen yet: whether the budget's status
    /// counts them already cannot be told, so they count twice until the pods are seen to terminate.
    pub fn new(snapshot: &'a Snapshot, memory: &'a Memory, now: Timestamp) -> Self {
        let mut facts = snapshot.facts.clone();
        take_out(&mut facts, &memory.asked_to_go(now).cloned().collect());
        Self {
            snapshot,
            memory,
            facts,
            now,
        }
    }

    /// Lets a pod leave that its node's claim has no disruption for by name, if there is one for it, and takes that one.
    pub fn take_free_disruption(
        &mut self,
        ledgers: Ledgers<'_>,
        node_uid: &str,
        pod: &PodFacts,
    ) -> Result<(), NotEvictable> {
        if let Some(key) = self.free_disruption(ledgers, node_uid, pod)?
            && let Some(facts) = self.facts.get_mut(key)
        {
            facts.healthy.remove(&pod.uid);
            facts.disruptions_allowed -= 1;
        }
        Ok(())
    }

    /// The budget that such a pod would take a disruption of; `None`: it needs none.
    ///
    /// The disruption has to be there in the ledger as it is written, and in what this pass makes of it: one that is about to be
    /// returned may still be in use, and the write may fail.
    pub fn free_disruption(
        &self,
        ledgers: Ledgers<'_>,
        node_uid: &str,
        pod: &PodFacts,
    ) -> Result<Option<&'a BudgetKey>, NotEvictable> {
        self.check_last_attempt(pod)?;
        if pod.skips_budgets() {
            return Ok(None);
        }
        let key = match self.snapshot.budgets_of(pod) {
            [] => return Ok(None),
            [key] => key,
            several @ [key, ..] => {
                let closed = several.iter().find(|key| self.is_closed_by_ceph(key));
                let reason = closed.map_or(LockReason::SeveralPDBs, |_| LockReason::CephClosed);
                return Err(NotEvictable::by_budget(reason, closed.unwrap_or(key)));
            }
        };
        let Some(budget) = self.snapshot.budgets.get(key).map(|entry| &entry.view) else {
            return Ok(None);
        };
        if !pod.ready && budget.lets_unready_go() {
            return Ok(None);
        }
        let Some(facts) = self.facts.get(key).filter(|facts| facts.current) else {
            return Err(NotEvictable::by_budget(LockReason::StatusBehind, key));
        };
        if let Some(unusable) = facts.unusable {
            return Err(NotEvictable::by_budget(unusable.reason(), key));
        }
        ledgers.written.spares(Some(node_uid), facts)?;
        ledgers.next.admits(Some(node_uid), facts, ledgers.reservations)?;
        Ok(Some(key))
    }

    fn is_closed_by_ceph(&self, budget: &BudgetKey) -> bool {
        let budget = self.snapshot.budgets.get(budget);
        budget.is_some_and(|budget| budget.is_closed_by_ceph())
    }

    /// Lets a pod leave that shares its disruption with others of its node. The first of them takes it; the others go once
    /// Ceph's operator has left them out of their budget, or the budget has room again.
    pub fn take_shared_disruption(&mut self, pod: &PodFacts) -> Result<(), NotEvictable> {
        if pod.skips_budgets() {
            return Ok(());
        }
        for key in self.snapshot.budgets_of(pod) {
            if self.lets_go_unready(key, pod) {
                continue;
            }
            let Some(facts) = self.facts.get_mut(key).filter(|facts| facts.is_by_node) else {
                continue;
            };
            if !facts.current || facts.unbroken() < 1 {
                return Err(NotEvictable::by_budget(LockReason::CephClosed, key));
            }
            facts.healthy.remove(&pod.uid);
            facts.disruptions_allowed -= 1;
        }
        Ok(())
    }

    /// The budget that refuses the pod now, though its node's claim has a disruption for it: pods of it have become unhealthy since
    /// that was granted.
    pub fn refusing(&self, pod: &PodFacts) -> Option<Obstacle> {
        let [key] = self.snapshot.budgets_of(pod) else {
            return None;
        };
        // As they are: what was asked to go a moment ago must not count twice here.
        let facts = self.snapshot.facts.get(key)?;
        // Ceph's OSDs share a disruption: the others of a node wait for the first of them.
        let is_counted = facts.current && facts.unusable.is_none() && !facts.is_by_node;
        let is_refused = is_counted && facts.unbroken() < 1;
        if !is_refused || pod.skips_budgets() || self.lets_go_unready(key, pod) {
            return None;
        }
        Some(Obstacle {
            reason: LockReason::BudgetUnhealthy,
            pdb: Some(key.clone()),
            pod: None,
            holder: None,
            needed: 1,
            free: 0,
        })
    }

    fn lets_go_unready(&self, budget: &BudgetKey, pod: &PodFacts) -> bool {
        let budget = self.snapshot.budgets.get(budget);
        !pod.ready && budget.is_some_and(|budget| budget.view.lets_unready_go())
    }

    /// Whether the pod's last attempt stands in the way of another one.
    pub fn check_last_attempt(&self, pod: &PodFacts) -> Result<(), NotEvictable> {
        match self.memory.not_before(&pod.uid, self.now) {
            None => Ok(()),
            Some(until) => Err(NotEvictable {
                until: Some(until),
                ..NotEvictable::because(LockReason::EvictionFailed)
            }),
        }
    }
}

/// Takes pods that are about to leave out of their budgets.
pub fn take_out(facts: &mut Facts, leaving: &BTreeSet<PodUid>) {
    for budget in facts.values_mut() {
        let before = budget.healthy.len();
        budget.healthy.retain(|pod| !leaving.contains(pod));
        let taken = before - budget.healthy.len();
        budget.disruptions_allowed -= i32::try_from(taken).unwrap_or(i32::MAX);
    }
}
