//! Turns: one pod of a budget at a time is forced, in the whole cluster.
//!
//! The next one's turn comes when the budget has made good the last one (none of its pods terminates, and
//! `currentHealthy >= desiredHealthy`), or when `overrideSpacing` has passed since. All of it is read from the API: the
//! budget's status, the record that an override leaves on it, and the pods of draining nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::budget::{BudgetView, Room};
use nodeward_core::deadline::later;
use nodeward_core::id::{BudgetKey, PodUid};
use nodeward_core::pod::PodView;
use nodeward_core::strategy::Remedy;

use crate::snapshot::{NodePods, Snapshot};

use super::pod::Candidate;

/// Something that is not to be done yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Until when at the latest; `None`: until something changes.
    pub until: Option<Timestamp>,
    /// What it waits for.
    pub detail: String,
}

/// What one more override of a budget rests on.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// When deletes of the budget's pods that still terminate were asked for; the latest of them.
    pub last_termination: Option<Timestamp>,
    /// Pods of draining nodes that are alive, by UID.
    pub alive: Vec<PodUid>,
}

/// Whether `budget` may be overridden for the pod `candidate`.
///
/// # Errors
/// With what to wait for.
pub fn may_override(
    budget: &BudgetView,
    candidate: &PodUid,
    evidence: &Evidence,
    spacing: SignedDuration,
    now: Timestamp,
) -> Result<(), Wait> {
    let record = budget.last_override.as_ref();
    let recorded = record.map(|record| record.at);
    let evicted = budget.status.disrupted_pods.values().max().copied();
    let last = [recorded, evicted, evidence.last_termination]
        .into_iter()
        .flatten()
        .max();
    let Some(last) = last else {
        return Ok(());
    };
    // The record is written before the delete: until the pod is seen to terminate, only that pod may be acted on.
    let other_pending = record.is_some_and(|record| {
        record.uid != candidate.as_str() && evidence.alive.iter().any(|alive| alive.as_str() == record.uid)
    });
    let in_flight = evidence.last_termination.is_some() || evicted.is_some() || other_pending;
    let status = &budget.status;
    let is_healthy = status.current_healthy >= status.desired_healthy && is_status_current(budget);
    let spaced = later(last, spacing);
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
    Err(Wait {
        until: Some(spaced),
        detail,
    })
}

/// Whether the disruption controller has seen the budget's present spec.
fn is_status_current(budget: &BudgetView) -> bool {
    budget.status.observed_generation >= budget.generation
}

/// Turns of all budgets in one pass.
pub struct Turns {
    evidence: BTreeMap<BudgetKey, Evidence>,
    spacing: SignedDuration,
    /// How many pods of a budget go in this pass, or went and are not seen to yet.
    taken: BTreeMap<BudgetKey, i32>,
    now: Timestamp,
}

impl Turns {
    /// No turn taken but those of pods that were asked to go and are not seen to yet.
    pub fn new(snapshot: &Snapshot, spacing: SignedDuration, now: Timestamp) -> Self {
        let mut turns = Self {
            evidence: evidence(snapshot),
            spacing,
            taken: BTreeMap::new(),
            now,
        };
        let asked = |pod: &&Arc<PodView>| !pod.skips_budgets() && snapshot.memory.is_asked_to_go(pod, now);
        for pod in watched_pods(snapshot).filter(asked) {
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
    pub fn take(&mut self, candidate: &Candidate) -> Result<(), Wait> {
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
                return Err(Wait { until: None, detail });
            }
            if !has_room {
                let none = Evidence::default();
                let evidence = self.evidence.get(&budget.key).unwrap_or(&none);
                may_override(budget, &candidate.pod.uid, evidence, self.spacing, self.now)?;
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
    fn take_unseen(&mut self, candidate: &Candidate) -> Result<(), Wait> {
        let unseen = BudgetKey::new(Arc::clone(&candidate.pod.key.namespace), "");
        if self.taken.contains_key(&unseen) {
            return Err(Wait {
                until: None,
                detail: "a budget that is not in the cache yet".to_owned(),
            });
        }
        self.taken.insert(unseen, 1);
        Ok(())
    }
}

/// By budget, what its pods on draining nodes tell.
pub fn evidence(snapshot: &Snapshot) -> BTreeMap<BudgetKey, Evidence> {
    let mut all: BTreeMap<BudgetKey, Evidence> = BTreeMap::new();
    for pod in watched_pods(snapshot) {
        for budget in snapshot.budgets.matching(pod) {
            all.entry(budget.key.clone()).or_default().add(pod);
        }
    }
    all
}

/// What the pods on draining nodes tell of one budget as it was just read.
pub fn evidence_of(budget: &BudgetView, snapshot: &Snapshot) -> Evidence {
    let mut evidence = Evidence::default();
    for pod in watched_pods(snapshot).filter(|pod| budget.selects(pod)) {
        evidence.add(pod);
    }
    evidence
}

impl Evidence {
    fn add(&mut self, pod: &PodView) {
        match pod.deletion {
            Some(deletion) => self.last_termination = self.last_termination.max(Some(deletion.requested_at())),
            None => self.alive.push(pod.uid.clone()),
        }
    }
}

fn watched_pods(snapshot: &Snapshot) -> impl Iterator<Item = &Arc<PodView>> {
    snapshot.pods.values().flat_map(|pods| match pods {
        NodePods::Syncing => [].iter(),
        NodePods::Synced(pods) => pods.iter(),
    })
}
