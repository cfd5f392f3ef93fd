//! Remediations of a node that is gone, or that was made again under its name.

use jiff::Timestamp;
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::is_due;

use super::case::{Case, Check, Standing};
use super::chain::Record;
use super::evidence::{NodeEvidence, RestsOn};
use super::expiry::Health;
use super::{Planner, escalation};

/// Its remediator takes the Node away and brings it back.
const METAL3: &str = "Metal3Remediation";

impl Planner<'_> {
    /// Deletes remediations of nodes that are gone, but for those whose remediator is not done.
    pub(super) fn clear_gone(&mut self, check: &Check<'_>, case: &mut Case<'_>) {
        if case.chain.orphans.is_empty() {
            return;
        }
        case.standing = Standing::new(HealthReason::RemediatedNodeGone, "");
        let evidence = NodeEvidence {
            name: case.name.clone(),
            rests_on: match case.node {
                None => RestsOn::Gone,
                Some(node) => RestsOn::Replaced {
                    by: node.view.uid.clone(),
                },
            },
        };
        let orphans = std::mem::take(&mut case.chain.orphans);
        for orphan in &orphans {
            if self.is_awaited(check, case, orphan) {
                case.standing.reason = HealthReason::ReplacementExpected;
            } else if !check.only_reports() {
                self.delete(check, &case.name, orphan, &evidence);
            }
        }
        case.chain.orphans = orphans;
    }

    /// Whether its remediator has yet to finish what it does with the node.
    fn is_awaited(&mut self, check: &Check<'_>, case: &Case<'_>, orphan: &Record<'_>) -> bool {
        let Some(live) = orphan.live else {
            // What it says of itself is not known: it has the time of its step.
            let until = escalation::ends_at(orphan, check.spec).unwrap_or(Timestamp::MAX);
            self.requeue_at.note(until);
            return !is_due(until, self.now);
        };
        let has_succeeded = live.succeeded.as_deref() == Some("True");
        if live.node_deletion_expected && !has_succeeded {
            return true;
        }
        let is_back = case.health == Health::Healthy;
        if *orphan.kind.kind != *METAL3 || is_back {
            return false;
        }
        let until = escalation::ends_at(orphan, check.spec).unwrap_or(Timestamp::MAX);
        self.requeue_at.note(until);
        !is_due(until, self.now)
    }
}
