//! Remediations of a node that is gone, or that was made again under its name.

use nodeward_api::reason::HealthReason;

use super::Planner;
use super::case::{Case, Check, Standing};
use super::evidence::{NodeEvidence, RestsOn};

impl Planner<'_> {
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
}
