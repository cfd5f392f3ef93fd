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
    pub hold: Arc<HoldFacts>,
    /// Whether it is in force.
    pub phase: HoldPhase,
    /// Until when.
    pub until: Timestamp,
    /// The same for a person.
    pub message: String,
}

pub fn evaluate_holds(
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
    requeue_at: &mut RequeueAt,
) -> Vec<HoldVerdict> {
    let verdicts = snapshot.holds.iter().map(|hold| {
        let verdict = evaluate_hold(hold, snapshot, policy, now);
        requeue_at.note(verdict.until);
        verdict
    });
    verdicts.collect()
}

fn evaluate_hold(hold: &Arc<HoldFacts>, snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> HoldVerdict {
    let cap = saturating_add(hold.created, policy.hold_max_duration);
    let until = hold.asked_until.map_or(cap, |asked| asked.min(cap));
    let is_capped = hold.asked_until.is_none_or(|asked| cap < asked);
    let (phase, message) = if let Some(said) = &hold.released_by {
        (HoldPhase::Expired, format!("released by an administrator: {said}"))
    } else if until <= now && is_capped {
        let text = "has lasted as long as the configuration allows";
        (HoldPhase::Expired, text.to_owned())
    } else if until <= now {
        (HoldPhase::Expired, "has ended as asked for".to_owned())
    } else if !snapshot.budgets.contains_key(&hold.budget) {
        (HoldPhase::NoSuchBudget, format!("there is no budget {}", hold.budget))
    } else {
        let disruptions = hold
            .disruptions
            .map_or_else(|| "all".to_owned(), |disruptions| disruptions.to_string());
        let text = format!("{disruptions} disruptions of budget {} are held", hold.budget);
        if is_capped {
            let text = format!("{text}, for as long as the configuration allows");
            (HoldPhase::Capped, text)
        } else {
            (HoldPhase::Active, text)
        }
    };
    HoldVerdict {
        hold: Arc::clone(hold),
        phase,
        until,
        message,
    }
}
