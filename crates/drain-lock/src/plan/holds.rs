//! Owners' holds: whether each is in force, and until when.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::disruption_hold::HoldPhase;
use nodeward_core::budget::AnnotatedHold;
use nodeward_core::deadline::{RequeueAt, is_due, saturating_add, to_the_second, whole_second};
use nodeward_core::id::BudgetKey;
use nodeward_core::text::counted;

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

/// How a hold stands that a budget's owner has declared by an annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotatedHoldVerdict {
    pub budget: BudgetKey,
    /// UID of the budget.
    pub uid: Arc<str>,
    /// When it ends at the latest; `None`: the annotation is gone, and so is to be what was said of its end.
    pub until: Option<Timestamp>,
    /// Whether the budget says so.
    pub is_said: bool,
    /// Whether it has ended while the annotation stays.
    pub is_over: bool,
}

/// The holds that annotations declare. Each lasts no longer than a `DisruptionHold`, from when it was written; where the API
/// server does not tell that, from when it was seen.
pub fn evaluate_annotated_holds(
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
    requeue_at: &mut RequeueAt,
) -> Vec<AnnotatedHoldVerdict> {
    let budgets = snapshot.budgets.values().map(|budget| &budget.view);
    let annotated = budgets.filter(|view| view.hold.is_some() || view.hold_until.is_some());
    let verdicts = annotated.map(|view| {
        let ends = |hold: &AnnotatedHold| match (hold.since, hold.until) {
            (None, Some(until)) => until,
            (since, _) => saturating_add(whole_second(since.unwrap_or(now)), policy.hold_max_duration),
        };
        let until = view.hold.as_ref().map(ends);
        requeue_at.note(until);
        AnnotatedHoldVerdict {
            budget: view.key.clone(),
            uid: Arc::clone(&view.uid),
            is_said: until.map(to_the_second).as_deref() == view.hold_until.as_deref(),
            is_over: until.is_some_and(|until| is_due(until, now)),
            until,
        }
    });
    verdicts.collect()
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
            .map_or_else(|| "all disruptions".to_owned(), |number| counted(number, "disruption"));
        let text = format!("holds {disruptions} of budget {}", hold.budget);
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
    use std::collections::BTreeMap;

    use nodeward_api::annotation;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::config::Config;
    use crate::tests::fixture::{Cluster, budget, node, now, pod};

    const RUNS: &str = "2026-01-01T13:00:00Z";
    const ENDED: &str = "2026-01-01T11:00:00Z";

    /// The annotation was written at that time, by a manager of fields; it is noon.
    fn annotated(hold: Option<&str>, since: Option<&str>, until: Option<&str>) -> AnnotatedHoldVerdict {
        let annotations = [(annotation::HOLD, hold), (annotation::HOLD_UNTIL, until)];
        let annotations = annotations.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let patch = json!({ "metadata": {
            "annotations": annotations.collect::<BTreeMap<_, _>>(),
            "managedFields": since.map(|since| json!([{
                "manager": "kubectl-annotate", "time": since,
                "fieldsV1": { "f:metadata": { "f:annotations": { "f:nodeward.dev/hold": {} } } },
            }])),
        } });
        let cluster = Cluster::new([node("n1", json!({}))], [pod("a", json!({}))]).budgets([budget("web", patch)]);
        let policy = Policy::from_config(Config::default()).unwrap();
        let verdicts = evaluate_annotated_holds(&cluster.snapshot(), &policy, now(), &mut RequeueAt::after(now()));
        verdicts.into_iter().next().unwrap()
    }

    const AT_ELEVEN: Option<&str> = Some("2026-01-01T11:00:00Z");
    const AUDIT: Option<&str> = Some("audit");

    /// A hold lasts a day at most.
    #[rstest]
    #[case::not_said_yet(AUDIT, AT_ELEVEN, None, Some("2026-01-02T11:00:00Z"), false, false)]
    #[case::said(
        AUDIT,
        AT_ELEVEN,
        Some("2026-01-02T11:00:00Z"),
        Some("2026-01-02T11:00:00Z"),
        true,
        false
    )]
    #[case::said_by_somebody_else(
        AUDIT,
        AT_ELEVEN,
        Some("2099-01-01T00:00:00Z"),
        Some("2026-01-02T11:00:00Z"),
        false,
        false
    )]
    #[case::not_a_time(AUDIT, AT_ELEVEN, Some("tomorrow"), Some("2026-01-02T11:00:00Z"), false, false)]
    #[case::over(
        AUDIT,
        Some("2025-12-31T12:00:00Z"),
        Some("2026-01-01T12:00:00Z"),
        Some("2026-01-01T12:00:00Z"),
        true,
        true
    )]
    #[case::written_nobody_knows_when(AUDIT, None, None, Some("2026-01-02T12:00:00Z"), false, false)]
    #[case::seen_before(AUDIT, None, Some("2026-01-01T20:00:00Z"), Some("2026-01-01T20:00:00Z"), true, false)]
    #[case::gone(None, None, Some("2026-01-01T20:00:00Z"), None, false, false)]
    fn annotated_hold_lasts_no_longer_than_allowed(
        #[case] hold: Option<&str>,
        #[case] since: Option<&str>,
        #[case] said: Option<&str>,
        #[case] until: Option<&str>,
        #[case] is_said: bool,
        #[case] is_over: bool,
    ) {
        let verdict = annotated(hold, since, said);
        let until = until.map(|time| time.parse().unwrap());
        assert_eq!(
            (verdict.until, verdict.is_said, verdict.is_over),
            (until, is_said, is_over)
        );
    }

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
