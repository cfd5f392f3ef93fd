//! Whose turn it is: of the pods that a budget covers, which ones go in this pass, and when the budget may be overridden.
//!
//! A budget is overridden for one pod at a time, in the whole cluster. The next one may go when the budget has made good the
//! last one (none of its pods terminates, and `currentHealthy >= desiredHealthy`), or when `overrideSpacing` has passed since.
//! It is read from the API (the budget's status, the record that an override leaves on it, the pods of draining nodes); what
//! this process has overridden itself counts on top, in case the record is lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::budget::{BudgetView, DisruptionAllowance};
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::{BudgetKey, PodUid};
use nodeward_core::pod::PodView;
use nodeward_core::strategy::Remedy;

use crate::snapshot::{Overridden, Snapshot};

use super::candidates::Candidate;

/// Turns of all budgets in one pass.
pub(super) struct Turns<'a> {
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
        if candidate.strategy.remedy != Remedy::EvictOrDelete || candidate.pod.skips_budgets() {
            // Its remedy goes around no budget.
            return Ok(());
        }
        if candidate.budgets.is_empty() {
            return self.take_unseen(candidate);
        }
        let has_room = self.has_room(candidate);
        for budget in &candidate.budgets {
            if !has_room && self.taken.contains_key(&budget.key) {
                // Its status does not count that one yet, and would let a second go.
                let detail = format!("budget {}: another of its pods is on its way out", budget.key);
                return Err(NotYet { until: None, detail });
            }
            if !has_room {
                let evidence = OverrideEvidence::of(budget, self.snapshot);
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
            // The server refuses every eviction of a pod that several budgets select.
            return false;
        };
        let taken = self.taken.get(&budget.key).copied().unwrap_or(0);
        match budget.allowance(&candidate.pod) {
            DisruptionAllowance::NotAsked | DisruptionAllowance::UnreadyMayGo => true,
            DisruptionAllowance::Left(left) => taken < left,
            DisruptionAllowance::None(_) => false,
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

/// Something that is not to be done yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotYet {
    /// Until when at the latest; `None`: until something changes.
    pub until: Option<Timestamp>,
    /// What it waits for.
    pub detail: String,
}

/// What one more override of a budget rests on, besides the budget itself.
#[derive(Debug, Clone, Default)]
pub struct OverrideEvidence {
    /// When deletes of the budget's pods that still terminate were asked for; the latest of them.
    pub last_termination: Option<Timestamp>,
    /// Pods that are still there, by UID: those of draining nodes that do not terminate, and just before an override the pod
    /// of the one before.
    pub alive: Vec<PodUid>,
    /// What this process overrode last.
    pub overridden: Option<Overridden>,
}

/// Whether `budget` may be overridden for the pod `candidate`. What was begun for this very pod does not stand in its
/// way: a delete carries its UID, so doing it again does no more than doing it once.
///
/// # Errors
/// With what to wait for.
pub fn may_override(
    budget: &BudgetView,
    candidate: &PodView,
    evidence: &OverrideEvidence,
    spacing: SignedDuration,
    now: Timestamp,
) -> Result<(), NotYet> {
    let record = budget
        .last_override
        .as_ref()
        .filter(|record| record.uid != candidate.uid.as_str());
    let own = evidence.overridden.as_ref().filter(|own| own.pod != candidate.uid);
    let disrupted = budget.status.disrupted_pods.iter();
    let evicted = disrupted
        .filter(|(pod, _)| **pod != *candidate.key.name)
        .map(|(_, at)| *at)
        .max();
    let last = [
        record.map(|record| record.at),
        own.map(|own| own.at),
        evicted,
        evidence.last_termination,
    ]
    .into_iter()
    .flatten()
    .max();
    let Some(last) = last else {
        // None of its pods was disrupted by anybody, as far as is known.
        return Ok(());
    };
    // The record is written before the delete: until the pod is seen to terminate, only that pod may be acted on.
    let other_pending = record.is_some_and(|record| evidence.alive.iter().any(|alive| alive.as_str() == record.uid));
    let in_flight = evidence.last_termination.is_some() || evicted.is_some() || other_pending;
    let status = &budget.status;
    let is_healthy = budget.has_recovered() && budget.is_status_current();
    let spaced = saturating_add(last, spacing);
    // A budget that never recovers must not end the drain: then the spacing alone keeps its pods apart.
    if (is_healthy && !in_flight) || spaced <= now {
        return Ok(());
    }
    let detail = if in_flight {
        format!("budget {}: another of its pods is on its way out", budget.key)
    } else {
        format!(
            "budget {}: {} of {} healthy",
            budget.key, status.current_healthy, status.desired_healthy
        )
    };
    Err(NotYet {
        until: Some(spaced),
        detail,
    })
}

impl OverrideEvidence {
    /// What is known of one budget, as it is cached or as it was just read.
    pub fn of(budget: &BudgetView, snapshot: &Snapshot) -> Self {
        let mut evidence = Self {
            overridden: snapshot.memory.overridden.get(&budget.key).cloned(),
            ..Self::default()
        };
        for pod in snapshot.watched_pods().filter(|pod| budget.selects(pod)) {
            match &pod.deletion {
                Some(deletion) => {
                    evidence.last_termination = evidence.last_termination.max(Some(deletion.requested_at()));
                }
                None => evidence.alive.push(pod.uid.clone()),
            }
        }
        evidence
    }
}
