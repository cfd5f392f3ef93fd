//! Surge: before anything stronger is done to a pod that its budget never lets go, its Deployment is told to roll, if the pod may
//! move so. [`ahead_of`] puts that before what [`may_force`](super::may_force::may_force) says.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::annotation::SURGED;
use nodeward_api::reason::BlockerReason;
use nodeward_core::budget::{DisruptionAllowance, NoAllowance};
use nodeward_core::deadline::{is_due, to_the_second};
use nodeward_core::pod::PodView;
use nodeward_core::strategy::{Remedy, Strategy, StrategyName, Wait};
use nodeward_core::surge::{Course, End, SurgeEvidence, Workloads, obstacle};
use nodeward_core::verdict::Next;

use crate::gate::cordon_taint;
use crate::policy::SurgePolicy;

use super::may_force::{Decision, Evidence, awaited_claim, hold_against, may_begin_at};

/// What is done, said and waited for first: the surge of the pod, or `ordinary`.
///
/// Called twice: by the plan, with what the caches show, and right before the Deployment is told to roll
/// (`execute/preconditions.rs`), with what was read by quorum. `has_place` says whether another surge may begin by
/// `surge.parallel`. Returned with it is when an obstacle ends by itself.
pub fn ahead_of(
    ordinary: Decision,
    pod: &PodView,
    evidence: &Evidence<'_>,
    has_place: bool,
    now: Timestamp,
) -> (Decision, Option<Timestamp>) {
    if policy_for(pod, evidence).is_none() {
        return (ordinary, None);
    }
    let is_new = pod.surge.record.is_none() && is_refused(pod, &ordinary, evidence, now);
    let (decision, until) = if is_new {
        begin(ordinary.clone(), pod, evidence, has_place, now)
    } else {
        (goes_on(ordinary.clone(), pod, evidence, now), None)
    };
    // Where nothing comes of it, the pod goes by its own clock.
    let is_act = matches!(&decision, Decision::Due { strategy, .. } if strategy.remedy.is_about_deployment());
    if is_act && evidence.memory.failures(pod) > 0 && matches!(ordinary, Decision::Due { .. }) {
        return (ordinary, None);
    }
    (decision, until)
}

/// Follows the surge that the pod has, if it has one.
fn goes_on(ordinary: Decision, pod: &PodView, evidence: &Evidence<'_>, now: Timestamp) -> Decision {
    let record = match &pod.surge.record {
        Some(Ok(record)) if !matches!(ordinary, Decision::NoBlocker) => record,
        Some(Err(error)) => return ordinary.with_detail(&no_rollout(&format!("annotation {SURGED}: {error}"))),
        Some(Ok(_)) | None => return ordinary,
    };
    // Until it is known what has become of it.
    let unknown = || Course::Rolls(record.until);
    match course(pod, evidence, now).unwrap_or_else(unknown) {
        Course::Recorded(_) if is_kept(&ordinary) => ordinary,
        Course::Recorded(_) => due(Remedy::Restart, BlockerReason::Surging, record.at),
        Course::Rolls(_) if record.is_given_up(now) => ordinary,
        Course::Rolls(until) => rolls(&ordinary, record.at, until),
        Course::Ended(End {
            is_ours_to_undo: true, ..
        }) => due(Remedy::UndoRestart, BlockerReason::Surging, now),
        Course::Ended(End { outcome, .. }) => ordinary.with_detail(&format!("{outcome}: it {}", outcome.explanation())),
    }
}

/// Whether what becomes of the pod is decided by the workloads of its namespace, too.
pub fn needs_workloads(pod: &PodView, ordinary: &Decision, evidence: &Evidence<'_>, now: Timestamp) -> bool {
    policy_for(pod, evidence).is_some()
        && !matches!(ordinary, Decision::NoBlocker)
        && (pod.surge.record.is_some() || is_refused(pod, ordinary, evidence, now))
}

/// Whether a surge of the pod is under way, or may be: it takes a place of `surge.parallel`.
pub fn may_be_under_way(pod: &PodView, workloads: Option<&Workloads>, now: Timestamp) -> bool {
    let Some(Ok(record)) = pod.surge.record.as_ref().filter(|_| pod.deletion.is_none()) else {
        return false;
    };
    let deployment = workloads.map(|workloads| workloads.deployment_of(pod).map(|found| &**found));
    match deployment {
        Some(deployment) => Course::of(record, deployment, now).is_under_way(),
        None => !record.is_given_up(now),
    }
}

/// Where the surge of the pod stands, if it has one and that is known.
pub fn course_of(pod: &PodView, evidence: &Evidence<'_>, now: Timestamp) -> Option<Course> {
    policy_for(pod, evidence)?;
    course(pod, evidence, now)
}

/// The rules, where surges are on for the pod at all.
fn policy_for<'a>(pod: &PodView, evidence: &Evidence<'a>) -> Option<&'a SurgePolicy> {
    let is_off = evidence.policy.drain_for(evidence.node).disable_strategies;
    evidence
        .policy
        .surge
        .as_ref()
        .filter(|_| !is_off && pod.deletion.is_none())
}

fn course(pod: &PodView, evidence: &Evidence<'_>, now: Timestamp) -> Option<Course> {
    let record = pod.surge.record.as_ref()?.as_ref().ok()?;
    let deployment = evidence.workloads?.deployment_of(pod);
    Some(Course::of(record, deployment.map(|found| &**found), now))
}

/// Whether its owner, or what is not known, keeps all hands off the pod whatever its Deployment does.
fn is_kept(ordinary: &Decision) -> bool {
    matches!(
        ordinary,
        Decision::Blocked {
            reason: BlockerReason::WaitCompleted
                | BlockerReason::UnknownOptOut
                | BlockerReason::NamespaceIgnored
                | BlockerReason::BudgetHeld
                | BlockerReason::HoldsUnknown
                | BlockerReason::AwaitsClaim,
            ..
        }
    )
}

/// Whether its only budget lets it not go, and nobody holds that.
fn is_refused(pod: &PodView, ordinary: &Decision, evidence: &Evidence<'_>, now: Timestamp) -> bool {
    let (Decision::Blocked { reason, .. } | Decision::Due { reason, .. }) = ordinary else {
        return false;
    };
    let is_by_budget = matches!(
        reason,
        BlockerReason::BudgetExhausted | BlockerReason::BudgetNeverForced | BlockerReason::WaitsForWindow
    );
    let is_exhausted = |allowance| allowance == DisruptionAllowance::None(NoAllowance::Exhausted);
    let [budget] = evidence.budgets else {
        return false;
    };
    is_by_budget
        && is_exhausted(budget.allowance(pod))
        && pod.owner.as_ref().is_some_and(|owner| &*owner.kind == "ReplicaSet")
        && awaited_claim(pod, evidence).is_none()
        && hold_against(pod, evidence, now).is_none()
}

/// Begins the surge, or says when, or why not; and when an obstacle ends by itself.
fn begin(
    ordinary: Decision,
    pod: &PodView,
    evidence: &Evidence<'_>,
    has_place: bool,
    now: Timestamp,
) -> (Decision, Option<Timestamp>) {
    let Some(workloads) = evidence.workloads else {
        return (ordinary, None);
    };
    let is_left_out = |names: &BTreeSet<Arc<str>>| !names.contains(&pod.key.namespace);
    if evidence.surge_namespaces.is_some_and(is_left_out) {
        return (
            ordinary.with_detail(&no_rollout("surge.namespaces leaves its namespace out")),
            None,
        );
    }
    let surge_evidence = SurgeEvidence {
        pod,
        budgets: evidence.budgets,
        cordon: cordon_taint(evidence.node, evidence.policy),
        workloads,
        spacing: evidence.policy.override_spacing,
    };
    if let Err(obstacle) = obstacle(&surge_evidence, now) {
        return (ordinary.with_detail(&no_rollout(&obstacle.to_string())), obstacle.until);
    }
    // Without a break: it counts anew from when the budget last had room.
    let had_room = evidence.memory.had_room.get(&pod.uid).copied();
    let refused_since = had_room.map_or(evidence.clock.start, |at| at.max(evidence.clock.start));
    let at = strategy(Remedy::Restart).due(pod, refused_since, &evidence.waits);
    let opens = may_begin_at(at.max(now), pod, evidence);
    let decision = match ordinary {
        Decision::Blocked { reason, .. } | Decision::Due { reason, .. } if is_due(opens, now) => {
            if has_place {
                due(Remedy::Restart, reason, at)
            } else {
                ordinary.with_detail(&no_rollout("surge.parallel is reached"))
            }
        }
        Decision::Blocked {
            next,
            reason,
            detail,
            last_due,
        } if !next.due().is_some_and(|due| now < due && due < opens) => {
            let strategy = StrategyName::Surge;
            let (reason, next) = if is_due(at, now) {
                let until = Some(opens);
                let next = Next::HeldBack {
                    strategy,
                    due: at,
                    until,
                };
                (BlockerReason::WaitsForWindow, next)
            } else {
                (reason, Next::At { strategy, due: opens })
            };
            Decision::Blocked {
                reason,
                next,
                detail,
                last_due,
            }
        }
        ordinary => ordinary,
    };
    (decision, None)
}

fn no_rollout(why: &str) -> String {
    format!("no rollout moves it: {why}")
}

fn rolls(ordinary: &Decision, since: Timestamp, until: Timestamp) -> Decision {
    let last_due = match ordinary {
        Decision::Blocked { last_due, .. } => *last_due,
        Decision::Due { due, .. } => Some(*due),
        Decision::NoBlocker => None,
    };
    Decision::Blocked {
        reason: BlockerReason::Surging,
        next: Next::Now {
            strategy: StrategyName::Surge,
            due: since,
        },
        detail: format!("given up at {}", to_the_second(until)),
        last_due,
    }
}

fn due(remedy: Remedy, reason: BlockerReason, due: Timestamp) -> Decision {
    Decision::Due {
        reason,
        strategy: strategy(remedy),
        due,
    }
}

const fn strategy(remedy: Remedy) -> Strategy {
    Strategy {
        name: StrategyName::Surge,
        wait: Wait::Surge,
        remedy,
    }
}
