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

impl HoldVerdict {
    /// Whether its owner is to be told that an administrator has ended it.
    pub fn is_newly_overridden(&self) -> bool {
        self.phase == HoldPhase::Overridden && !is_overridden(&self.hold)
    }
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

/// Whether its status says so already: it stays so beyond the end that its owner asked for.
fn is_overridden(hold: &HoldFacts) -> bool {
    let status = hold.status.as_deref();
    status.and_then(|status| status.phase) == Some(HoldPhase::Overridden)
}

fn evaluate_hold(hold: &Arc<HoldFacts>, snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> HoldVerdict {
    let cap = saturating_add(hold.created, policy.hold_max_duration);
    let until = hold.asked_until.map_or(cap, |asked| asked.min(cap));
    let is_capped = hold.asked_until.is_none_or(|asked| cap < asked);
    let (phase, message) = if let Some(said) = hold.released_by.as_ref().filter(|_| now < until || is_overridden(hold))
    {
        (HoldPhase::Overridden, format!("released by an administrator: {said}"))
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

#[cfg(test)]
mod tests {
    use nodeward_api::annotation;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::config::Config;
    use crate::tests::fixture::{Cluster, budget, node, now, pod};

    const RUNS: &str = "2026-01-01T13:00:00Z";
    const ENDED: &str = "2026-01-01T11:00:00Z";

    /// It is noon. An owner is told once that his hold was overridden, and not of one that had ended by itself.
    #[rstest]
    #[case::in_force(None, RUNS, None, HoldPhase::Active, false)]
    #[case::ended(None, ENDED, None, HoldPhase::Expired, false)]
    #[case::overridden(Some("bob: urgent"), RUNS, None, HoldPhase::Overridden, true)]
    #[case::known_to_be_overridden(Some("bob: urgent"), RUNS, Some("Overridden"), HoldPhase::Overridden, false)]
    #[case::would_have_ended_since(Some("bob: urgent"), ENDED, Some("Overridden"), HoldPhase::Overridden, false)]
    #[case::ended_before_it_was_overridden(Some("bob: urgent"), ENDED, Some("Expired"), HoldPhase::Expired, false)]
    fn overridden_hold_is_told_of_once(
        #[case] release: Option<&str>,
        #[case] expires_at: &str,
        #[case] known: Option<&str>,
        #[case] phase: HoldPhase,
        #[case] is_told: bool,
    ) {
        let hold = json!({
            "metadata": {
                "namespace": "shop", "name": "mine", "uid": "uid-mine", "creationTimestamp": "2026-01-01T10:00:00Z",
                "annotations": release.map(|release| json!({ annotation::RELEASE: release })),
            },
            "spec": { "pdbRef": "web", "reason": "rebalancing", "expiresAt": expires_at },
            "status": known.map(|phase| json!({ "phase": phase })),
        });
        let cluster = Cluster::new([node("n1", json!({}))], [pod("a", json!({}))])
            .budgets([budget("web", json!({}))])
            .holds([hold]);
        let policy = Policy::from_config(Config::default()).unwrap();
        let snapshot = cluster.snapshot();
        let [verdict] = &evaluate_holds(&snapshot, &policy, now(), &mut RequeueAt::after(now()))[..] else {
            panic!("one hold");
        };
        assert_eq!((verdict.phase, verdict.is_newly_overridden()), (phase, is_told));
    }
}
