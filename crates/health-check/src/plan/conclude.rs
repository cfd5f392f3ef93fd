//! The verdicts on a NodeHealthCheck and its nodes, and what concerns every remediation of it.

use std::sync::Arc;

use nodeward_api::annotation;
use nodeward_api::reason::DisabledReason;
use nodeward_core::deadline::{is_due, saturating_add};
use nodeward_core::id::NodeName;

use super::action::{Action, RemediationChange, RemediationRef};
use super::case::{Case, Check};
use super::chain::Record;
use super::enablement::Enablement;
use super::evidence::NodeEvidence;
use super::expiry::Health;
use super::index::Live;
use super::verdict::{CheckVerdict, ConditionVerdict, NodeVerdict, Warning};
use super::{Planner, status};
use crate::snapshot::{Listed, RemediationKind};

impl Planner<'_> {
    /// The verdicts on a NodeHealthCheck and its nodes.
    pub(super) fn conclude(&mut self, check: Check<'_>) {
        let old_remediations = self.flag_old(&check);
        self.warn_of_unlisted(&check);
        let (phase, reason) = status::phase(&check);
        self.plan.verdicts.checks.push(CheckVerdict {
            check: check.reference(),
            phase,
            reason,
            disabled: match &check.enablement {
                Enablement::Disabled(reason, _) => *reason,
                Enablement::Enabled | Enablement::NotKnown(_) => DisabledReason::NodeHealthCheckEnabled,
            },
            observed: check.observed,
            healthy: check.healthy,
            remediating: status::remediated(&check).count(),
            old_remediations,
        });
        for case in check.cases.values() {
            self.requeue_at.note(case.standing.until);
        }
        let name = &check.facts.name;
        let nodes = check.cases.into_values().map(|case| NodeVerdict {
            check: Arc::clone(name),
            node_uid: case.node.map(|node| node.view.uid.clone()),
            condition: condition_of(&case),
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
        for live in check.cases.values().flat_map(|case| {
            let all = case.chain.records.iter().chain(&case.chain.orphans);
            all.filter_map(|record| record.live)
        }) {
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
            "{kind} may not be annotated: its remediator is not told of timeouts, and the status alone keeps them; let the \
             role that is aggregated for it grant patch"
        );
        self.warn_of_kind(check, "annotate", kind, text);
    }

    /// Deletes a remediation, unless that is under way. Whether one is there that the status names and no list shows the API
    /// server will say.
    pub(super) fn delete(&mut self, check: &Check<'_>, node: &NodeName, record: &Record<'_>, evidence: &NodeEvidence) {
        let may_stand = record.live.map_or(record.is_unseen(), |live| !live.deleting);
        if let Some(remediation) = record.reference(node).filter(|_| may_stand) {
            self.act(Action::DeleteRemediation {
                check: check.reference(),
                remediation,
                seen: record.live.cloned(),
                evidence: evidence.clone(),
            });
        }
    }

    /// Says of which remediations it cannot be told whether they are there.
    fn warn_of_unlisted(&mut self, check: &Check<'_>) {
        for case in check.cases.values() {
            let all = case.chain.records.iter().chain(&case.chain.orphans);
            for record in all.filter(|record| record.is_unseen()) {
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

    fn warn_of_kind(&mut self, check: &Check<'_>, verb: &str, kind: &RemediationKind, text: String) {
        self.plan.verdicts.warnings.push(Warning {
            key: format!("{verb}/{}/{kind}", check.facts.uid),
            text,
            check: Arc::clone(&check.facts.name),
            node: None,
            is_invalid_label: false,
        });
    }

    pub(super) fn annotate(
        &mut self,
        check: &Check<'_>,
        live: Live<'_>,
        change: RemediationChange,
        evidence: Option<NodeEvidence>,
    ) {
        self.act(Action::AnnotateRemediation {
            check: check.reference(),
            remediation: reference(live),
            seen: Arc::clone(live),
            change,
            evidence,
        });
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

fn condition_of(case: &Case<'_>) -> Option<ConditionVerdict> {
    match &case.health {
        Health::NotExpired(unhealthy) | Health::Expired(unhealthy) => Some(unhealthy.condition.clone()),
        Health::Healthy | Health::LeftToTerminationHandler | Health::ReadyUnknown | Health::NotJudged => None,
    }
}
