//! Owners' holds: whether each is in force, and until when.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::disruption_hold::HoldPhase;
use nodeward_core::deadline::{RequeueAt, saturating_add};

use crate::policy::Policy;
use crate::snapshot::{HoldFacts, Snapshot};

/// How an owner's hold stands.
#[derive(Debug, Clone, PartialEq)]
pub struct HoldVerdict {
    /// The hold.
    pub hold: Arc<HoldFacts>,
    /// Whether it is in force.
    pub phase: HoldPhase,
    /// Until when.
    pub until: Option<Timestamp>,
    /// The same for a person.
    pub message: String,
}

/// Judges all holds.
pub fn judge(snapshot: &Snapshot, policy: &Policy, now: Timestamp, requeue_at: &mut RequeueAt) -> Vec<HoldVerdict> {
    let judge_one = |hold: &Arc<HoldFacts>| {
        let (phase, until, message) = stand(hold, snapshot, policy, now);
        if let Some(until) = until {
            requeue_at.note(until);
        }
        HoldVerdict {
            hold: Arc::clone(hold),
            phase,
            until,
            message,
        }
    };
    snapshot.holds.iter().map(judge_one).collect()
}

fn stand(
    hold: &HoldFacts,
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
) -> (HoldPhase, Option<Timestamp>, String) {
    let cap = saturating_add(hold.created, policy.hold_max_duration);
    let until = hold.asked_until.map_or(cap, |asked| asked.min(cap));
    let is_capped = hold.asked_until.is_none_or(|asked| cap < asked);
    if let Some(said) = &hold.released_by {
        let text = format!("released by an administrator: {said}");
        return (HoldPhase::Expired, Some(until), text);
    }
    if until <= now {
        let text = if is_capped {
            "has lasted as long as the configuration allows"
        } else {
            "has ended as asked for"
        };
        return (HoldPhase::Expired, Some(until), text.to_owned());
    }
    if !snapshot.budgets.contains_key(&hold.budget) {
        let text = format!("there is no budget {}", hold.budget);
        return (HoldPhase::NoSuchBudget, Some(until), text);
    }
    let units = hold.units.map_or_else(|| "all".to_owned(), |units| units.to_string());
    let text = format!("{units} units of budget {} are held", hold.budget);
    if is_capped {
        (
            HoldPhase::Capped,
            Some(until),
            format!("{text}, for as long as the configuration allows"),
        )
    } else {
        (HoldPhase::Active, Some(until), text)
    }
}
