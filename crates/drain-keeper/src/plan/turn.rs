//! Turns: of the pods that a budget covers, which ones go in this pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::budget::Room;
use nodeward_core::id::BudgetKey;
use nodeward_core::pod::PodView;
use nodeward_core::strategy::Remedy;

use crate::snapshot::Snapshot;

use super::override_rule::{Evidence, NotYet, may_override};
use super::pod::Candidate;

/// Turns of all budgets in one pass.
pub struct Turns<'a> {
    snapshot: &'a Snapshot,
    spacing: SignedDuration,
    /// How many pods of a budget go in this pass, or went and are not seen to yet.
    taken: BTreeMap<BudgetKey, i32>,
    now: Timestamp,
}

impl<'a> Turns<'a> {
    /// No turn taken but those of pods that were asked to go and are not seen to yet.
    pub fn new(snapshot: &'a Snapshot, spacing: SignedDuration, now: Timestamp) -> Self {
        let mut turns = Self {
            snapshot,
            spacing,
            taken: BTreeMap::new(),
            now,
        };
        let asked = |pod: &&Arc<PodView>| !pod.skips_budgets() && snapshot.memory.is_asked_to_go(pod, now);
        for pod in snapshot.watched_pods().filter(asked) {
            for budget in snapshot.budgets.matching(pod) {
                turns.count(&budget.key);
            }
        }
        turns
    }

    /// Takes the turn of all budgets of the candidate, if it is due to each.
    ///
    /// # Errors
    /// With what to wait for.
    pub fn take(&mut self, candidate: &Candidate) -> Result<(), NotYet> {
        if candidate.remedy != Remedy::EvictOrDelete || candidate.pod.skips_budgets() {
            return Ok(());
        }
        if candidate.budgets.is_empty() {
            return self.take_unseen(candidate);
        }
        let has_room = self.has_room(candidate);
        for budget in &candidate.budgets {
            if !has_room && self.taken.contains_key(&budget.key) {
                let detail = format!("budget {}: another of its pods is on its way out", budget.key);
                return Err(NotYet { until: None, detail });
            }
            if !has_room {
                let evidence = Evidence::of(budget, self.snapshot);
                may_override(budget, &candidate.pod, &evidence, self.spacing, self.now)?;
            }
        }
        for budget in &candidate.budgets {
            self.count(&budget.key);
        }
        Ok(())
    }

    fn count(&mut self, budget: &BudgetKey) {
        *self.taken.entry(budget.clone()).or_insert(0) += 1;
    }

    /// Whether the eviction would pass within the budget.
    fn has_room(&self, candidate: &Candidate) -> bool {
        let [budget] = candidate.budgets.as_slice() else {
            return false;
        };
        let taken = self.taken.get(&budget.key).copied().unwrap_or(0);
        match budget.room(&candidate.pod) {
            Room::NotAsked | Room::UnreadyMayGo => true,
            Room::Left(left) => taken < left,
            Room::None(_) => false,
        }
    }

    /// A budget that only the server knows of: one pod of its namespace a pass.
    fn take_unseen(&mut self, candidate: &Candidate) -> Result<(), NotYet> {
        let unseen = BudgetKey::new(Arc::clone(&candidate.pod.key.namespace), "");
        if self.taken.contains_key(&unseen) {
            return Err(NotYet {
                until: None,
                detail: "a budget that is not in the cache yet".to_owned(),
            });
        }
        self.taken.insert(unseen, 1);
        Ok(())
    }
}
