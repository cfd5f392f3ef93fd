//! Whether the claim of another drain fits into the ledger.

use nodeward_api::reason::LockReason;
use nodeward_core::ledger::{Claim, Disruptions, Ledger, size};

use super::intent::Intent;
use super::pod_classes::PodClasses;
use super::{DrainContext, Planner};

/// The bytes that claims of further drains may take beside those that are there, which have yet to get what their drains need.
/// Nothing where no drain asks.
pub(super) fn bytes_left(contexts: &[DrainContext], ledger: &Ledger) -> usize {
    let drains = || contexts.iter().filter(|context| context.intent == Intent::Drain);
    if drains().all(|context| context.claim.is_some()) {
        return 0;
    }
    let awaited =
        drains().filter_map(|context| Some(awaited(context.claim.as_ref()?, &context.classes.as_ref()?.needs)));
    let expected = ledger.stored_bytes().saturating_add(size::of_pods(awaited.sum()));
    size::FOR_CLAIMS.saturating_sub(expected)
}

/// The pods that the claim has yet to get disruptions for.
fn awaited(claim: &Claim, needs: &[Disruptions]) -> usize {
    let pods = needs.iter().flat_map(|needed| &needed.pods);
    pods.filter(|pod| !claim.has_disruption(&pod.uid)).count()
}

impl Planner<'_> {
    /// Whether the drain has its claim, or may be queued. What shrinks the ledger is written whatever its size.
    pub(super) fn may_be_queued(&mut self, context: &DrainContext, classes: &PodClasses) -> bool {
        if context.claim.is_some() {
            return true;
        }
        let left = self.bytes_left.checked_sub(size::of_claim(&classes.needs));
        // Where there is none for this drain, no younger one takes what is left.
        self.bytes_left = left.unwrap_or_default();
        left.is_some()
    }

    /// A drain whose claim the ledger cannot take.
    pub(super) fn report_full(&mut self, context: &DrainContext) {
        let mut verdict = self.verdict(context);
        let reason = LockReason::LedgerFull;
        verdict.set_message(reason.explanation());
        verdict.block(reason, reason.explanation());
        self.plan.drains.push(verdict);
    }
}
