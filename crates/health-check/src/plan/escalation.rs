//! The chain of an unhealthy node: the step that runs, when it is over, and what comes next.

use jiff::Timestamp;
use nodeward_api::annotation;
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::{is_due, saturating_add};

use super::action::RemediationChange;
use super::case::{Case, Check, Standing};
use super::chain::{Next, Record, Stage};
use super::expiry::Unhealthy;
use super::start::Candidate;
use super::{Planner, lease};
use crate::snapshot::NodeFacts;
use nodeward_core::node_health_check::CheckSpec;

impl Planner<'_> {
    /// Moves the chain of an unhealthy node on; answers with the step that is to be started.
    pub(super) fn escalate(
        &mut self,
        check: &Check<'_>,
        case: &mut Case<'_>,
        node: &NodeFacts,
        unhealthy: &Unhealthy,
    ) -> Option<Candidate> {
        loop {
            match case.chain.next(check.spec) {
                // An intent beside it was made before it was seen.
                Next::Runs(_) | Next::Deletes(_) | Next::Nothing if case.chain.intent().is_some() => {
                    case.chain.withdraw_intent();
                }
                Next::Runs(at) => {
                    if !self.run_step(check, case, node, unhealthy, at) {
                        return None;
                    }
                }
                Next::Deletes(at) => {
                    let record = &case.chain.records[at];
                    case.standing = Standing::new(HealthReason::RemediationRunning, record_name(record));
                    return None;
                }
                Next::Start(step) => return start_step(case, unhealthy, step),
                Next::Nothing => {
                    if !self.exhaust(check, case, node, unhealthy) {
                        return None;
                    }
                }
            }
        }
    }

    /// The step that runs. Answers whether it is over by now.
    fn run_step(
        &mut self,
        check: &Check<'_>,
        case: &mut Case<'_>,
        node: &NodeFacts,
        unhealthy: &Unhealthy,
        at: usize,
    ) -> bool {
        let record = &case.chain.records[at];
        let ends = ends_at(record, check.spec);
        let condition_says = |status: &str| {
            let live = record.live.and_then(|live| live.succeeded.as_deref());
            live == Some(status)
        };
        let has_failed = condition_says("False");
        if !has_failed && !ends.is_some_and(|ends| is_due(ends, self.now)) {
            case.standing = Standing {
                until: ends,
                ..Standing::new(HealthReason::RemediationRunning, record_name(record))
            };
            return false;
        }
        if let Err(stopped) = self.check_any_step(check, &case.name, node) {
            case.standing = stopped;
            return false;
        }
        let succeeded = condition_says("True");
        let live = record
            .live
            .filter(|live| !succeeded && self.index.takes_annotation(live, annotation::REMEDIATION_TIMED_OUT));
        case.standing = Standing::new(HealthReason::Escalating, record_name(record));
        if check.only_reports() {
            return false;
        }
        let now = self.now_to_the_second();
        if let Some(live) = live {
            // The remediator is told first; the status and the next step follow once that is seen.
            self.annotate(
                check,
                live,
                RemediationChange::TimedOut(now),
                Some(unhealthy.evidence(node)),
            );
            return false;
        }
        case.chain.records[at].timed_out = Some(now);
        true
    }

    /// No step is left. With backoff the chain begins anew after a while, once all of its remediations are gone. Answers
    /// whether it does.
    fn exhaust(&mut self, check: &Check<'_>, case: &mut Case<'_>, node: &NodeFacts, unhealthy: &Unhealthy) -> bool {
        if let Err(stopped) = self.check_followed(check) {
            case.standing = stopped;
            return false;
        }
        case.standing = Standing::new(HealthReason::ChainExhausted, "no template is left");
        let ended = case.chain.records.iter().filter_map(|record| record.timed_out).max();
        let (Some(backoff), Some(ended)) = (&check.spec.backoff, ended) else {
            return false;
        };
        let count = self.count_chain(check, case, ended).map_or(1, |history| history.count);
        let retry_at = saturating_add(ended, backoff.delay(count));
        if !is_due(retry_at, self.now) {
            case.standing.until = Some(retry_at);
            return false;
        }
        if let Err(stopped) = self.check_any_step(check, &case.name, node) {
            case.standing = stopped;
            return false;
        }
        if check.only_reports() {
            return false;
        }
        if case.is_remediated() {
            for record in &case.chain.records {
                self.delete(check, &case.name, record, &unhealthy.evidence(node));
            }
            return false;
        }
        case.chain.records.clear();
        true
    }
}

fn start_step(case: &mut Case<'_>, unhealthy: &Unhealthy, step: usize) -> Option<Candidate> {
    let is_escalation = case.chain.is_escalation(step);
    if !case.is_selected && !is_escalation {
        case.chain.withdraw_intent();
        case.chain.records.retain(|record| record.stage() != Stage::Vanished);
        case.standing = Standing::new(
            HealthReason::ExcludedByLabel,
            "the NodeHealthCheck no longer selects the node",
        );
        return None;
    }
    Some(Candidate {
        node: case.name.clone(),
        step,
        is_escalation,
        expired: unhealthy.condition.expires,
        intended: case.chain.intent().map(|intent| intent.started),
    })
}

/// When the time of a step is over; one that is not in the specification any more has the time of its lease.
pub(super) fn ends_at(record: &Record<'_>, spec: &CheckSpec) -> Option<Timestamp> {
    let timeout = match record.step {
        Some(step) => spec.steps.get(step)?.timeout?,
        None => lease::WITHOUT_TIMEOUT,
    };
    Some(saturating_add(record.started, timeout))
}

/// A remediation, for people.
pub(super) fn record_name(record: &Record<'_>) -> String {
    let more = match record.stage() {
        Stage::NotKnown => ", whose kind is not listed",
        Stage::Deleting => ", which is being deleted",
        _ => "",
    };
    format!("{} {}{more}", record.kind.kind, record.key)
}
