//! What the webhook says to an eviction: pure.
//!
//! An eviction belongs to the claim of its pod's node. Pods that the claim has a disruption for go once it is confirmed, movable
//! ones by the disruption that it has for these, or by one that is free after grants, reservations and owners' holds. So does
//! every other eviction. Whatever the eviction API itself decides without counting disruptions is admitted, so that its own answer shows.

mod answer;
mod eviction;
mod judge;
#[cfg(test)]
mod tests;

use nodeward_api::reason::LockReason;
use nodeward_core::ledger::{Facts, Ledger, Reservations};

pub use self::answer::{Admission, Decision, RefusalKind, Refused, Verdict};
pub use self::eviction::{
    Caller, Drainer, EvictionContext, EvictionRequest, LookupResult, MatchingBudgets, NodeContext, PodState, Surge,
};
pub(super) use self::judge::is_left;
use self::judge::{Judge, refuse, wait};

/// Judges one eviction while the ledger is there and cannot be read. What a budget guards on a cordoned node is refused, for the
/// ledger may hold it; all else goes by the API's own rules.
pub fn decide_unreadable(request: &EvictionRequest<'_>, found: &LookupResult) -> Verdict {
    let (ledger, facts) = (Ledger::default(), Facts::new());
    // Nobody plans, so that no claim would ever be confirmed.
    let found = &found.without_retained();
    let reservations = Reservations::new(&ledger, &facts);
    let verdict = decide(request, found, &ledger, &facts, &reservations);
    let is_judged = request.ticket.is_none() && !request.dry_run && !request.leaderless && !request.paused;
    let (Some(context), true) = (found.context(), is_judged) else {
        return verdict;
    };
    let MatchingBudgets::One(budget) = &context.budgets else {
        return verdict;
    };
    let is_cordoned = context.node.as_ref().is_some_and(|node| node.cordoned);
    if is_cordoned && context.refuse_opt_out && context.opted_out.is_some() {
        return verdict;
    }
    let decision = match context.state {
        PodState::Counts if is_cordoned => wait(
            LockReason::LedgerUnreadable,
            &format!(
                "budget {} {}, and the ledger that says so cannot be read",
                budget.key,
                LockReason::LedgerUnreadable.explanation()
            ),
        ),
        PodState::Counts => Decision::Admit(Admission::FreeDisruption),
        PodState::Pending => Decision::Admit(Admission::SkipsBudgets),
        PodState::Unready => Decision::Admit(Admission::Unready),
        PodState::Mirror | PodState::SkipsBudgets => return verdict,
    };
    Verdict { decision, ..verdict }
}

/// Judges one eviction. `facts` are those of all budgets that claims in the ledger need, `reservations` those of all claims.
pub fn decide(
    request: &EvictionRequest<'_>,
    found: &LookupResult,
    ledger: &Ledger,
    facts: &Facts,
    reservations: &Reservations,
) -> Verdict {
    let judge = Judge {
        request,
        ledger,
        facts,
        reservations,
    };
    let decision = match (request.caller, request.ticket) {
        (Caller::Another(_), Some(_)) => refuse(
            RefusalKind::Forbidden,
            LockReason::ForgedTicket,
            "the annotation nodeward.dev/ticket is drain-lock's own, and not for others to set",
        ),
        _ if request.dry_run => Decision::Admit(Admission::DryRun),
        (Caller::Another(_), None) if request.paused => Decision::Admit(Admission::Paused),
        (Caller::Another(_), None) if request.leaderless => Decision::Admit(Admission::NoLeader),
        (Caller::Ourselves, Some(ticket)) => judge.under_ticket(ticket, found.context()),
        _ => match found {
            LookupResult::Unsynced => Decision::Admit(Admission::Unsynced),
            LookupResult::UnknownPod => Decision::Admit(Admission::UnknownPod),
            LookupResult::Found(context) => judge.without_ticket(context),
        },
    };
    let is_anothers = request.caller.is_another() && request.ticket.is_none() && !request.dry_run;
    let Some(context) = found.context().filter(|_| is_anothers) else {
        return decision.into();
    };
    let takes_drainers = context.node.as_ref().is_some_and(NodeContext::takes_drainers);
    let may_be_one = request.caller != Caller::Another(Drainer::No);
    let admits = matches!(decision, Decision::Admit(_));
    Verdict {
        requests_drain: context.state != PodState::Mirror && takes_drainers && may_be_one && !request.paused,
        ignores_opt_out: admits
            && context.opted_out.is_some()
            && !context.is_on_its_way_out()
            && judge.is_emptied(context),
        decision,
        audited: None,
    }
}
