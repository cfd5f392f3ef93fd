//! When a drain counts as failed: everything that could be done has been, and its time has passed.

use jiff::Timestamp;
use nodeward_api::drain_clock::DrainClock;
use nodeward_api::reason::BlockerReason;
use nodeward_core::deadline::saturating_add;
use nodeward_core::strategy::Waits;
use nodeward_core::verdict::{Blocker, Next};

/// When the drain fails, or failed, if its blockers stay as they are; `None` without blockers, and while something is still to come
/// by itself: a strategy's time, a budget's turn, the next minute of a limit, the end of a hold, a window.
///
/// That is the last wait that applied to a blocker plus `expectedNodeDrainTime`, and at the earliest `timeOut` after the start.
pub fn failed_at(blockers: &[Blocker], clock: &DrainClock, waits: &Waits) -> Option<Timestamp> {
    // Whoever is alerted should find that nothing more happens by itself. A turn comes by itself, and so does the end that a hold
    // or a limit tells; other holds need not end, nor do pods that use up a node's limit.
    let is_pending = |blocker: &Blocker| match blocker.reason {
        BlockerReason::BudgetInUse | BlockerReason::Surging | BlockerReason::WaitsForWindow => true,
        BlockerReason::BudgetHeld | BlockerReason::LimitReached => {
            matches!(blocker.next, Next::At { .. } | Next::HeldBack { until: Some(_), .. })
        }
        _ => blocker.next.is_pending(),
    };
    if blockers.is_empty() || blockers.iter().any(is_pending) {
        return None;
    }
    let patience_ends = saturating_add(clock.start, waits.time_out);
    let last_due = blockers.iter().filter_map(|blocker| blocker.last_due).max();
    Some(last_due.map_or(patience_ends, |due| {
        saturating_add(due, waits.expected_drain).max(patience_ends)
    }))
}
