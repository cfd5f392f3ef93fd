//! When a budget may be overridden: for one pod at a time, in the whole cluster.
//!
//! The next one may go when the budget has made good the last one (none of its pods terminates, and
//! `currentHealthy >= desiredHealthy`), or when `overrideSpacing` has passed since. It is read from the API (the budget's
//! status, the record that an override leaves on it, the pods of draining nodes); what this process has overridden itself
//! counts on top, in case the record is lost.

use jiff::{SignedDuration, Timestamp};
use nodeward_core::budget::BudgetView;
use nodeward_core::deadline::later;
use nodeward_core::id::PodUid;
use nodeward_core::pod::PodView;

use crate::snapshot::{Overridden, Snapshot};

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
pub struct Evidence {
    /// When deletes of the budget's pods that still terminate were asked for; the latest of them.
    pub last_termination: Option<Timestamp>,
    /// Pods of draining nodes that are alive, by UID.
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
    evidence: &Evidence,
    spacing: SignedDuration,
    now: Timestamp,
) -> Result<(), NotYet> {
    let record = budget
        .last_override
        .as_ref()
        .filter(|record| record.uid != candidate.uid.as_str());
    let own = evidence.overridden.as_ref().filter(|own| own.pod != candidate.uid);
    let disrupted = &budget.status.disrupted_pods;
    let evicted = disrupted
        .iter()
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
        return Ok(());
    };
    // The record is written before the delete: until the pod is seen to terminate, only that pod may be acted on.
    let other_pending = record.is_some_and(|record| evidence.alive.iter().any(|alive| alive.as_str() == record.uid));
    let in_flight = evidence.last_termination.is_some() || evicted.is_some() || other_pending;
    let status = &budget.status;
    let is_healthy = budget.has_recovered() && budget.is_status_current();
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
    Err(NotYet {
        until: Some(spaced),
        detail,
    })
}

impl Evidence {
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
