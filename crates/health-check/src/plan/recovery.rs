//! A node that is healthy again: its remediations are deleted, at once or after `healthyDelay`.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::annotation;
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::{is_due, saturating_add, to_the_second};

use super::Planner;
use super::action::RemediationChange;
use super::case::{Case, Check, Standing};
use super::evidence::{NodeEvidence, RestsOn};
use super::expiry::Health;
use crate::snapshot::NodeFacts;
use nodeward_core::node_health_check::{CheckSpec, HealthyDelay};

impl Planner<'_> {
    /// Ends the remediations of a healthy node.
    pub(super) fn recover(&mut self, check: &Check<'_>, case: &mut Case<'_>, node: &NodeFacts, reason: HealthReason) {
        case.chain.withdraw_intent();
        case.standing = Standing::new(reason, "");
        if !case.chain.is_there() {
            // Whoever deleted them, their remediators have been at work.
            if self.count_outage(check, node, &case.chain.records, self.now) {
                self.tidy_healthy_node(node, check);
                case.chain.records.clear();
            }
            return;
        }
        let since = self.healthy_since(check, case, node);
        case.healthy_since = Some(since);
        let is_confirmed = node
            .view
            .annotations
            .contains_key(annotation::MANUALLY_CONFIRMED_HEALTHY);
        let delayed_until = match check.spec.healthy_delay {
            HealthyDelay::None => None,
            _ if is_confirmed => None,
            HealthyDelay::For(delay) => Some(saturating_add(since, delay)).filter(|until| !is_due(*until, self.now)),
            HealthyDelay::UntilConfirmed => Some(Timestamp::MAX),
        };
        if let Some(until) = delayed_until {
            self.delay_recovery(check, case, since, until);
            return;
        }
        case.standing = Standing::new(HealthReason::RemovingRemediations, "");
        if check.only_reports() {
            return;
        }
        self.count_outage(check, node, &case.chain.records, since);
        // Where a termination handler sees to the node, its conditions may be what they like.
        let conditions = match case.health {
            Health::LeftToTerminationHandler => [].into(),
            _ => Arc::clone(&check.spec.conditions),
        };
        let uid = node.view.uid.clone();
        let evidence = NodeEvidence {
            name: case.name.clone(),
            rests_on: RestsOn::Healthy { uid, conditions },
        };
        for record in case.chain.records.iter().chain(&case.chain.earlier) {
            self.delete(check, record, &evidence);
            // What keeps one must not keep its remediator at work: another NodeHealthCheck may find the node unhealthy.
            if let Some(live) = record.live.filter(|_| record.is_deleting()) {
                self.requeue_at.note(record.ends());
                if is_due(record.ends(), self.now) {
                    self.tell_that_time_is_over(check, live, &evidence);
                }
            }
        }
    }

    fn delay_recovery(&mut self, check: &Check<'_>, case: &mut Case<'_>, since: Timestamp, until: Timestamp) {
        case.standing = if until == Timestamp::MAX {
            let text = format!("until the node is annotated {}", annotation::MANUALLY_CONFIRMED_HEALTHY);
            Standing::new(HealthReason::HealthyDelayed, text)
        } else {
            let text = format!("since {}", to_the_second(since));
            Standing::new(HealthReason::HealthyDelayed, text).until(until)
        };
        self.note_healthy_since(check, case, Some(since));
    }

    /// Notes on its remediations since when a node is healthy, unless they say that already, or that it is not.
    fn note_healthy_since(&mut self, check: &Check<'_>, case: &Case<'_>, since: Option<Timestamp>) {
        for live in case.chain.live() {
            let is_noted = live.healthy_since.is_some() == since.is_some();
            if !is_noted && !check.only_reports() && self.index.takes_annotation(live, annotation::HEALTHY_DELAY) {
                self.annotate(check, live, RemediationChange::HealthySince(since), None);
            }
        }
    }

    /// Since when the node is healthy: as its remediations say, or the status where they cannot be annotated, unless that is
    /// still to come; but not from before the last change of its conditions, should a relapse have gone unnoticed.
    fn healthy_since(&self, check: &Check<'_>, case: &Case<'_>, node: &NodeFacts) -> Timestamp {
        let annotated = case.chain.live().filter_map(|live| live.healthy_since);
        let stored = case.entry.and_then(|entry| entry.conditions_healthy_timestamp);
        let has_come = |at: &Timestamp| *at <= self.now;
        let known = annotated.filter(has_come).max().or(stored.filter(has_come));
        let known = known.unwrap_or_else(|| self.now_to_the_second());
        let changed = self.healthy_at_most_since(node, check.spec);
        changed.map_or(known, |changed| known.max(changed))
    }

    /// Since when no unhealthy condition holds, as far as the node's conditions tell.
    pub(super) fn healthy_at_most_since(&self, node: &NodeFacts, spec: &CheckSpec) -> Option<Timestamp> {
        let conditions = spec.conditions.iter();
        let named = conditions.filter_map(|unhealthy| node.condition(&unhealthy.type_));
        let changed = named.map(|condition| condition.counts_since).max()?;
        Some(saturating_add(changed, self.snapshot.clock_stepped_by))
    }

    /// A node that is not healthy after all: the delay counts anew when it is again.
    pub(super) fn relapse(&mut self, check: &Check<'_>, case: &Case<'_>) {
        self.note_healthy_since(check, case, None);
    }
}
