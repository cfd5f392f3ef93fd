//! The statuses of NodeDrains and DisruptionHolds: a projection for people, written only where it changes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use nodeward_api::condition;
use nodeward_api::disruption_hold::DisruptionHoldStatus;
use nodeward_api::node_drain::{BlockedBy, HeldBudget, LISTED_AT_MOST, NodeDrain, NodeDrainStatus, Phase};
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::{to_the_second, whole_second};
use nodeward_core::ledger::{Claim, ClaimState, Disruptions, Facts};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::execute::StatusUpdate;
use crate::plan::holds::{AnnotatedHoldVerdict, HoldVerdict};
use crate::plan::verdict::DrainVerdict;

/// What of a drain's status changes.
pub fn of_drain(verdict: &DrainVerdict, facts: &Facts, now: Timestamp) -> Option<StatusUpdate> {
    let drain = verdict.drain.as_deref()?;
    let before = drain.status.clone().unwrap_or_default();
    let after = status(verdict, &before, facts, now);
    if essence(&before) == essence(&after) {
        return None;
    }
    let changes = changes(&before, &after)?;
    Some(StatusUpdate::Drain {
        name: drain.metadata.name.clone()?,
        uid: drain.metadata.uid.clone()?,
        status: changes,
    })
}

/// What of a hold's status changes.
pub fn of_hold(verdict: &HoldVerdict) -> Option<StatusUpdate> {
    let before = verdict.hold.status.as_deref().cloned().unwrap_or_default();
    let after = DisruptionHoldStatus {
        phase: Some(verdict.phase),
        effective_until: Some(verdict.until),
        message: Some(verdict.message.clone()),
        observed_generation: Some(verdict.hold.generation),
    };
    let changes = changes(&before, &after)?;
    Some(StatusUpdate::Hold {
        key: verdict.hold.key.clone(),
        uid: verdict.hold.uid.to_string(),
        status: changes,
    })
}

/// What a budget says of the end of the hold that its annotation declares.
pub fn of_annotated_hold(verdict: &AnnotatedHoldVerdict) -> Option<StatusUpdate> {
    (!verdict.is_said).then(|| StatusUpdate::HoldUntil {
        key: verdict.budget.clone(),
        uid: verdict.uid.to_string(),
        until: verdict.until.map(to_the_second),
    })
}

fn status(verdict: &DrainVerdict, before: &NodeDrainStatus, facts: &Facts, now: Timestamp) -> NodeDrainStatus {
    let claim = verdict.claim.as_ref();
    let granted = claim.filter(|claim| claim.state.has_grant());
    let holds = claim.iter().flat_map(|claim| &claim.holds);
    let holds: Vec<HeldBudget> = holds
        .map(|disruptions| held(disruptions, facts))
        .take(LISTED_AT_MOST)
        .collect();
    let known_grant = |claim: &Claim| before.granted_at.filter(|_| was_granted(before, claim));
    let mut blocked_by = verdict.blocked_by.clone();
    blocked_by.dedup();
    blocked_by.truncate(LISTED_AT_MOST);
    NodeDrainStatus {
        observed_generation: verdict.drain.as_deref().and_then(|drain| drain.metadata.generation),
        phase: Some(verdict.phase),
        ticket: claim.map(|claim| claim.ticket),
        held_disruptions: Some(holds.iter().map(|held| held.disruptions).sum()),
        holds,
        plan: verdict.plan.clone().or_else(|| before.plan.clone()),
        pods: Some(verdict.counts),
        started_at: before.started_at.or(Some(now)),
        granted_at: granted.map(|claim| known_grant(claim).unwrap_or(claim.since)),
        drained_at: drained_at(verdict, before, now),
        deadline: verdict.deadline,
        leaves_out_at: verdict.leaves_out_at,
        message: Some(verdict.message.clone()),
        conditions: conditions(verdict, before, now),
        blocked_by,
    }
}

/// When no pod had to leave any more. A drain that ends, or whose node is back, was drained before or never; one whose
/// turn ended is not drained, whatever it was.
fn drained_at(verdict: &DrainVerdict, before: &NodeDrainStatus, now: Timestamp) -> Option<Timestamp> {
    let is_ending = |drain: &NodeDrain| drain.metadata.deletion_timestamp.is_some();
    let goes_on = !verdict.drain.as_deref().is_some_and(is_ending);
    let mut claim = verdict.claim.iter();
    let has_given_up = claim.any(|claim| claim.state == ClaimState::Returning);
    match verdict.phase {
        Phase::Drained => Some(before.drained_at.unwrap_or(now)),
        Phase::Recovering if goes_on && has_given_up => None,
        // Nobody goes on with the drain; the node is in service no sooner for that.
        Phase::Recovering | Phase::Released | Phase::Suspect => before.drained_at,
        Phase::Scheduled | Phase::Queued | Phase::Granted | Phase::Draining | Phase::Failed => None,
    }
}

/// Whether the status was written under the same grant.
fn was_granted(before: &NodeDrainStatus, claim: &Claim) -> bool {
    before.granted_at.is_some() && before.ticket == Some(claim.ticket)
}

fn held(disruptions: &Disruptions, facts: &Facts) -> HeldBudget {
    let namespace = &disruptions.pdb.namespace;
    let listed = disruptions.pods.iter().take(LISTED_AT_MOST);
    HeldBudget {
        pdb: disruptions.pdb.clone(),
        disruptions: disruptions.number(facts),
        pods: listed.map(|pod| format!("{namespace}/{}", pod.name)).collect(),
    }
}

fn conditions(verdict: &DrainVerdict, before: &NodeDrainStatus, now: Timestamp) -> Vec<Condition> {
    let first = |is_meant: fn(LockReason) -> bool| verdict.blocked_by.iter().find(|blocked| is_meant(blocked.reason));
    let is_given_up = matches!(verdict.phase, Phase::Suspect | Phase::Failed);
    let has_grant = |claim: &Claim| claim.state.has_grant() && !is_given_up;
    let has_disruptions = verdict.claim.as_ref().is_some_and(has_grant);
    let obstacle = verdict.blocked_by.first();
    let waiting = obstacle.map_or(LockReason::Queued, |blocked| blocked.reason);
    let either = |holds: bool, reason: LockReason, otherwise: LockReason| {
        let reason = if holds { reason } else { otherwise };
        (holds, reason, String::new())
    };
    let blocked = |blocked: Option<&BlockedBy>| match blocked {
        Some(blocked) => (true, blocked.reason, blocked.message.clone()),
        None => (false, LockReason::Granted, String::new()),
    };
    let is_drained = verdict.phase == Phase::Drained;
    let planned = either(verdict.plan.is_some(), LockReason::Queued, LockReason::NotPlanned);
    let granted = either(has_disruptions, LockReason::Granted, waiting);
    let drained = either(is_drained, LockReason::Drained, LockReason::AwaitingPods);
    let lease_lost = either(verdict.lease_lost, LockReason::LeaseLost, LockReason::Granted);
    let conditions = [
        (condition::PLANNED, planned),
        (condition::GRANTED, granted),
        (
            condition::BUDGET_BLOCKED,
            blocked(first(LockReason::waits_for_a_budget)),
        ),
        (
            condition::MISCONFIGURED_PDB,
            blocked(first(LockReason::is_misconfiguration)),
        ),
        (condition::DRAINED, drained),
        (condition::LEASE_LOST, lease_lost),
    ];
    let conditions = conditions.into_iter().map(|(kind, (holds, reason, message))| {
        let status = if holds { "True" } else { "False" };
        let mut known = before.conditions.iter();
        let known = known.find(|known| known.type_ == kind && known.status == status);
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.as_str().to_owned(),
            message,
            last_transition_time: known
                .map_or_else(|| Time(whole_second(now)), |known| known.last_transition_time.clone()),
            observed_generation: None,
        }
    });
    conditions.collect()
}

/// What of a drain's status is worth a write by itself: every write is told to everybody who watches, and texts that count
/// seconds or pods of others would make one of each pass. They are written with the next change of anything else. The deadline
/// is no such text: past it health-check takes the node for abandoned, and drain-keeper its disruptions. Nor is which pods of a
/// budget are not healthy, and why: a person looks at these.
fn essence(status: &NodeDrainStatus) -> NodeDrainStatus {
    let mut essence = NodeDrainStatus {
        message: None,
        ..status.clone()
    };
    for condition in &mut essence.conditions {
        condition.last_transition_time = Time(Timestamp::UNIX_EPOCH);
        if condition.reason != LockReason::BudgetUnhealthy.as_str() {
            condition.message.clear();
        }
    }
    let mut plan = essence.plan.as_mut();
    let problems = plan.iter_mut().flat_map(|plan| &mut plan.problems);
    for blocked in essence.blocked_by.iter_mut().chain(problems) {
        if blocked.reason != LockReason::BudgetUnhealthy {
            blocked.message.clear();
        }
    }
    if let Some(plan) = plan {
        let (held, waits_for, retained) = (&mut plan.held, &mut plan.waits_for, &mut plan.retained);
        for pod in [held, waits_for, retained, &mut plan.left_out].into_iter().flatten() {
            pod.message.take_if(|_| pod.reason != LockReason::BudgetUnhealthy);
        }
    }
    essence
}

/// The fields that differ, with null for those that go; `None` if all are the same.
fn changes<S: Serialize>(before: &S, after: &S) -> Option<Value> {
    let fields = |status: &S| match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let (before, after) = (fields(before), fields(after));
    let mut changes: Map<String, Value> = after
        .iter()
        .filter(|(key, value)| before.get(*key) != Some(*value))
        .map(|(key, value)| (key.clone(), nulls_for_absent(before.get(key), value)))
        .collect();
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    changes.extend(gone.map(|key| (key.clone(), Value::Null)));
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// A merge patch keeps what it does not name, in objects within objects too.
fn nulls_for_absent(before: Option<&Value>, after: &Value) -> Value {
    let (Some(Value::Object(before)), Value::Object(after)) = (before, after) else {
        return after.clone();
    };
    let mut merged: Map<String, Value> = after
        .iter()
        .map(|(key, value)| (key.clone(), nulls_for_absent(before.get(key), value)))
        .collect();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        merged.insert(key.clone(), Value::Null);
    }
    Value::Object(merged)
}

#[cfg(test)]
mod tests;
