//! The verdicts on a NodeHealthCheck and its nodes, and what concerns every remediation of it, those of nodes that are gone, too.

use std::sync::Arc;

use nodeward_api::annotation;
use nodeward_api::reason::{HealthEvent, HealthReason};
use nodeward_core::deadline::{is_due, saturating_add, to_the_second};

use super::action::{Action, RemediationChange, RemediationRef, RemediationWrite};
use super::case::{Case, Check, Standing};
use super::evidence::{NodeEvidence, RestsOn};
use super::index::Live;
use super::record::{Record, Stage};
use super::verdict::{CheckVerdict, NodeVerdict, Warning};
use super::{Planner, status};
use crate::snapshot::{Listed, RemediationKind};

impl Planner<'_> {
    /// The verdicts on a NodeHealthCheck and its nodes.
    pub(super) fn conclude(&mut self, check: Check<'_>) {
        let old_remediations = self.flag_old(&check);
        self.warn_of_unlisted(&check);
        let stuck_remediations = self.warn_of_leftovers(&check);
        self.plan.verdicts.checks.push(CheckVerdict {
            check: check.facts.reference(),
            phase: status::phase(&check, self.now).0,
            observed: check.observed,
            healthy: check.healthy,
            remediating: status::remediated(&check, self.now).count(),
            old_remediations,
            stuck_remediations,
        });
        for (node, case) in &check.cases {
            self.requeue_at.note(case.standing.until);
            let is_unhealthy = case.is_delayed() || !case.health.is_fine();
            if let Some(period) = case.unhealthy_period.as_ref().filter(|_| is_unhealthy) {
                let key = (Arc::clone(&check.facts.name), node.clone());
                self.plan.found.unhealthy_periods.insert(key, period.clone());
            }
            let lost = case.chain.records.iter().filter(|record| record.is_lost);
            self.plan
                .found
                .lost
                .extend(lost.filter_map(|record| record.uid.clone()));
        }
        let reference = check.facts.reference();
        let nodes = check.cases.into_values().map(|case| NodeVerdict {
            check: reference.clone(),
            node_uid: case.node.map(|node| node.view.uid.clone()),
            condition: case.health.unhealthy().cloned(),
            node: case.name,
            reason: case.standing.reason,
            detail: case.standing.detail,
            until: case.standing.until,
        });
        self.plan.verdicts.nodes.extend(nodes);
    }

    /// Flags remediations that are older than two days; answers with them.
    fn flag_old(&mut self, check: &Check<'_>) -> Vec<RemediationRef> {
        let mut old = Vec::new();
        let cases = check.cases.values();
        for live in cases.flat_map(|case| case.chain.all().filter_map(|record| record.live)) {
            if !self.index.may_annotate(&live.kind) {
                self.warn_of_missing_right(check, live);
            }
            let old_at = saturating_add(live.created, self.policy.old_remediation);
            if !is_due(old_at, self.now) {
                self.requeue_at.note(old_at);
                continue;
            }
            old.push(reference(live));
            let takes_flag = self.index.takes_annotation(live, annotation::OLD_REMEDIATION_FLAG);
            if !live.is_flagged_old && takes_flag && !check.only_reports() {
                self.annotate(check, live, RemediationChange::FlagOld, None);
            }
        }
        old
    }

    fn warn_of_missing_right(&mut self, check: &Check<'_>, live: Live<'_>) {
        let kind = &live.kind;
        let text = format!(
            "{kind} may not be annotated: its remediator cannot be told that its time is over, so no further step starts \
             beside it; let the role that is aggregated for it grant patch"
        );
        self.warn_of_kind(check, "annotate", kind, text);
    }

    /// Deletes remediations of nodes that are gone. Their remediators are told first that their time is over: some go on with
    /// a remediation that is being deleted, and what they do they do to the node of that *name*.
    pub(super) fn clear_gone(&mut self, check: &Check<'_>, case: &mut Case<'_>) {
        for awaited in &case.chain.awaited {
            case.standing = Standing::new(HealthReason::ReplacementExpected, "");
            self.requeue_at.note(awaited.ends());
        }
        if case.chain.orphans.is_empty() {
            return;
        }
        case.standing = Standing::new(HealthReason::RemediatedNodeGone, "");
        if check.only_reports() {
            return;
        }
        let evidence = NodeEvidence {
            name: case.name.clone(),
            rests_on: RestsOn::Gone {
                replaced_by: case.node.map(|node| node.view.uid.clone()),
            },
        };
        for orphan in &case.chain.orphans {
            self.tell_and_delete(check, orphan, &evidence);
        }
    }

    /// Deletes a remediation, unless that is under way. Whether one is there that the status names and no list shows the API
    /// server will say.
    pub(super) fn delete(&mut self, check: &Check<'_>, record: &Record<'_>, evidence: &NodeEvidence) {
        let may_stand = record.may_be_there() && !record.is_deleting();
        if let Some(remediation) = record.reference(&evidence.name).filter(|_| may_stand) {
            self.act(Action::DeleteRemediation(RemediationWrite {
                check: check.facts.reference(),
                remediation,
                seen: record.live.cloned(),
                evidence: Some(evidence.clone()),
            }));
        }
    }

    /// Deletes a remediation whose remediator is not to go on, which it would although that is being deleted: it is told first.
    pub(super) fn tell_and_delete(&mut self, check: &Check<'_>, record: &Record<'_>, evidence: &NodeEvidence) {
        let is_being_told = (record.live).is_some_and(|live| self.tell_that_time_is_over(check, live, evidence));
        if !is_being_told && !check.only_reports() {
            self.delete(check, record, evidence);
        }
    }

    /// Says of which remediations it cannot be told whether they are there.
    fn warn_of_unlisted(&mut self, check: &Check<'_>) {
        for case in check.cases.values() {
            for record in case.chain.all().filter(|record| record.is_unseen()) {
                let kind = &record.kind;
                let Some(Listed::Forbidden(why)) = self.index.kind(kind).map(|facts| &facts.listed) else {
                    continue;
                };
                let text = format!(
                    "{kind} may not be listed ({why}): which of its remediations are still there is not known; let the role \
                     that is aggregated for it grant get, list, create and delete"
                );
                self.warn_of_kind(check, "list", kind, text);
            }
        }
    }

    /// Names what nothing wants any more and is there all the same, and what keeps it; answers with it. An unhealthy node waits for
    /// that of a NodeHealthCheck that is gone, too.
    fn warn_of_leftovers(&mut self, check: &Check<'_>) -> Vec<RemediationRef> {
        let mut stuck = Vec::new();
        for case in check.cases.values() {
            let is_running = |record: &Record<'_>| record.stage() == Stage::Running && !case.health.is_fine();
            let leftovers = case.chain.records.iter().filter(|record| !is_running(record));
            let leftovers = leftovers.chain(&case.chain.orphans).chain(&case.chain.earlier);
            let of_nobody = self.index.remediations_of(&case.name).iter();
            let of_nobody = of_nobody.filter(|live| case.expired().is_some() && self.index.owner(live).is_none());
            for live in leftovers.filter_map(|record| record.live).chain(of_nobody.copied()) {
                let undeleted = self.snapshot.memory.undeleted.get(&live.uid);
                let why = match (live.deleting, undeleted) {
                    (None, Some((error, _))) => format!("cannot be deleted: {error}"),
                    (Some(deleted), _) if !live.finalizers.is_empty() => format!(
                        "is being deleted since {}, and its finalizers keep it: {}",
                        to_the_second(deleted),
                        live.finalizers.join(", ")
                    ),
                    _ => continue,
                };
                stuck.push(reference(live));
                let text = format!("{} {} of node {} {why}", live.kind.kind, live.key, case.name);
                self.plan.verdicts.warnings.push(Warning {
                    key: format!("leftover/{}", live.uid),
                    text,
                    check: check.facts.reference(),
                    node: case.node.map(|node| (case.name.clone(), node.view.uid.clone())),
                    event: HealthEvent::RemediationSkipped,
                });
            }
        }
        stuck
    }

    fn warn_of_kind(&mut self, check: &Check<'_>, verb: &str, kind: &RemediationKind, text: String) {
        self.plan.verdicts.warnings.push(Warning {
            key: format!("{verb}/{}/{kind}", check.facts.uid),
            text,
            check: check.facts.reference(),
            node: None,
            event: HealthEvent::RemediationSkipped,
        });
    }

    pub(super) fn annotate(
        &mut self,
        check: &Check<'_>,
        live: Live<'_>,
        change: RemediationChange,
        evidence: Option<NodeEvidence>,
    ) {
        let write = RemediationWrite {
            check: check.facts.reference(),
            remediation: reference(live),
            seen: Some(Arc::clone(live)),
            evidence,
        };
        self.act(Action::AnnotateRemediation(write, change));
    }
}

fn reference(live: Live<'_>) -> RemediationRef {
    RemediationRef {
        kind: live.kind.clone(),
        key: live.key.clone(),
        uid: Arc::clone(&live.uid),
        node: live.node.clone(),
    }
}
