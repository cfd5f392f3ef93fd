//! What is wanted of a drain: that it goes on, that it ends, and why.

use jiff::{SignedDuration, Timestamp};
use nodeward_api::annotation;
use nodeward_api::node_drain::{Evictor, GRANT_IDLE, NodeDrain};
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::RequeueAt;
use nodeward_core::drain_request::releases_by_itself;
use nodeward_core::ledger::{Claim, ClaimState, Ledger, until};

use crate::policy::Policy;
use crate::snapshot::{LeavingPods, Memory, NodeFacts, Snapshot};

use super::drain_context::DrainRecord;
use super::node_markers::is_cordoned_for;
use super::recovery::UnavailablePods;

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// The node is to be drained.
    Drain,
    /// The same, once a maintenance window is open: at this time.
    Await(Timestamp),
    /// It is to be said what a drain would do; nothing else.
    Preview,
    /// It cannot be followed: what it names is not there, and nothing has been done for it.
    Impossible(LockReason),
    /// It is over.
    End(Ending),
    /// It is over, and an administrator says that nothing is down.
    Override,
}

/// Why a drain is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The NodeDrain is being deleted, whatever for.
    Deleted,
    /// There is no NodeDrain, only a claim or a cordon that one left.
    Left,
    /// The last requester has released it.
    NoRequester,
    NodeGone,
    /// The node was uncordoned by somebody else.
    Uncordoned,
    /// Its drainer evicts nothing any more, and nothing is down.
    Quiet,
    /// The node has booted anew, and is Ready.
    Rebooted,
}

impl Ending {
    /// The reason to show.
    pub fn reason(self) -> LockReason {
        match self {
            Self::Deleted | Self::Left | Self::NoRequester => LockReason::Cancelled,
            Self::NodeGone => LockReason::NodeGone,
            Self::Uncordoned => LockReason::Uncordoned,
            Self::Quiet => LockReason::Abandoned,
            Self::Rebooted => LockReason::Rebooted,
        }
    }
}

/// What is wanted of the drain, whose foreign drainers are silent or are not.
pub fn intent(record: &DrainRecord, unavailable: &UnavailablePods, is_silent: bool) -> Intent {
    let Some(drain) = record.drain.as_deref() else {
        return Intent::End(Ending::Left);
    };
    if annotation::released_by(&drain.metadata).is_some() {
        return Intent::Override;
    }
    if drain.metadata.deletion_timestamp.is_some() {
        return Intent::End(Ending::Deleted);
    }
    if drain.spec.dry_run {
        return Intent::Preview;
    }
    if record.is_adopted() && drain.spec.requesters.is_empty() {
        return Intent::End(Ending::NoRequester);
    }
    let Some(node) = record.node.as_deref() else {
        return match (record.is_adopted(), record.is_replaced) {
            (true, _) => Intent::End(Ending::NodeGone),
            (false, true) => Intent::Impossible(LockReason::NodeReplaced),
            (false, false) => Intent::Impossible(LockReason::NodeGone),
        };
    };
    if was_uncordoned(record) {
        return Intent::End(Ending::Uncordoned);
    }
    if !record.is_by_requester() {
        return Intent::Drain;
    }
    let claim = record.claim.as_ref();
    // Pods that stay are back with the node; others may need it uncordoned. Whoever evicts from it before drains it again, and that
    // drain takes over what they are owed: until it has a grant of its own, the boot of its claim is that of the last one.
    let has_had_its_turn = |claim: &Claim| claim.state.has_grant() || claim.state == ClaimState::Suspect;
    let is_over = |claim: &Claim| has_had_its_turn(claim) && !claim.held_pods().any(|pod| pod.retained);
    if record.has_rebooted() && node.ready && claim.is_some_and(is_over) {
        return Intent::End(Ending::Rebooted);
    }
    // Of a drained node silence says nothing while somebody wants the drain who takes that back himself: he may be away for
    // long, and so may his node.
    let is_kept = claim.is_some_and(|claim| claim.may_go_down) && is_wanted_by_another(drain);
    if is_silent && unavailable.is_empty() && !is_kept {
        return Intent::End(Ending::Quiet);
    }
    Intent::Drain
}

/// What is wanted in view of the maintenance windows: a drain of our own begins in one, and goes on outside. Notes when that may
/// come out differently.
pub fn in_windows(
    intent: Intent,
    record: &DrainRecord,
    policy: &Policy,
    now: Timestamp,
    requeue_at: &mut RequeueAt,
) -> Intent {
    let ignores = |drain: &NodeDrain| drain.spec.ignore_windows || drain.spec.evict == Evictor::Requester;
    if intent != Intent::Drain || record.drain.as_deref().is_none_or(ignores) || has_begun(record) {
        return intent;
    }
    requeue_at.note(policy.windows.changes_at(now));
    match policy.windows.first_open(now) {
        opens if now < opens => Intent::Await(opens),
        _ => intent,
    }
}

/// Whether its node was cordoned for it, or was found cordoned when it was queued, or by somebody who evicts.
fn has_begun(record: &DrainRecord) -> bool {
    let (claim, drain) = (record.claim.as_ref(), record.drain.as_deref());
    let is_begun_on = |node: &NodeFacts| {
        let is_known = claim.is_some() || drain.and_then(last_eviction).is_some();
        node.is_cordoned() && (is_known || is_cordoned_for(node, record.drain_uid()))
    };
    record.node.as_deref().is_some_and(is_begun_on)
}

/// Whether the node was cordoned for this drain and is not any more. `kubectl uncordon` leaves the annotation of a cordon
/// of ours behind; where drain-lock lifts its own, both go in one write.
fn was_uncordoned(record: &DrainRecord) -> bool {
    let Some(node) = record.node.as_deref() else {
        return false;
    };
    let claim = record.claim.as_ref();
    if node.is_cordoned() || claim.is_some_and(|claim| claim.state == ClaimState::Returning) {
        return false;
    }
    if record.evictor() == Evictor::Requester {
        return true;
    }
    let was_ours = is_cordoned_for(node, record.drain_uid());
    // Suspect without that, its turn ended, and drain-lock has lifted the cordon itself.
    let was_drained =
        |claim: &Claim| claim.state.has_grant() || claim.state == ClaimState::Suspect && claim.may_go_down;
    let was_used = |claim: &Claim| claim.foreign_cordon || was_drained(claim);
    was_ours || claim.is_some_and(was_used)
}

/// When the drain was last seen to go on: others who evict were heard of, a pod was on its way out within its grace or has
/// ended, or the node has gone or come back.
pub fn last_sign(record: &DrainRecord, leaving: &LeavingPods, snapshot: &Snapshot) -> Option<Timestamp> {
    let drain = record.drain.as_deref().filter(|_| record.is_by_requester());
    let evicted = drain.and_then(last_sign_of_life);
    let node_changed = record.node.as_deref().and_then(|node| node.ready_since);
    let signs = [evicted, node_changed, record.last_deadline(snapshot), leaving.last_end];
    signs.into_iter().flatten().max()
}

/// From when on others who evict count as silent, where their last sign counts for so long. A new leader gives them the whole
/// period: a pod that they waited for may have ended a moment before its first plan.
pub fn silent_from(
    record: &DrainRecord,
    last_sign: Option<Timestamp>,
    period: SignedDuration,
    memory: &Memory,
    ledger: &Ledger,
) -> Option<Timestamp> {
    let sign = last_sign.filter(|_| record.is_by_requester())?;
    let sign = memory.first_plan_at.map_or(sign, |first| first.max(sign));
    Some(until(sign, period, &ledger.leaderless))
}

/// From when on others may use what its drainer does not. Queued again for that, it asks for nothing before its drainer does; one
/// that waits for its grant keeps its place while its drainer pauses.
pub fn idle_from(
    record: &DrainRecord,
    last_sign: Option<Timestamp>,
    policy: &Policy,
    memory: &Memory,
    ledger: &Ledger,
) -> Option<Timestamp> {
    let quiet_period = policy.auto.quiet_period;
    let idle = silent_from(record, last_sign, quiet_period.min(GRANT_IDLE), memory, ledger)?;
    match &record.claim {
        Some(claim) if claim.state == ClaimState::Waiting && claim.queued_at < idle => {
            silent_from(record, last_sign, quiet_period, memory, ledger)
        }
        Some(_) | None => Some(idle),
    }
}

/// Whether somebody wants the drain who takes that back himself.
fn is_wanted_by_another(drain: &NodeDrain) -> bool {
    let mut requesters = drain.spec.requesters.iter();
    requesters.any(|requester| releases_by_itself(&requester.name))
}

/// When a pod of it was last refused again, while none of its node went.
pub fn refused_again(drain: &NodeDrain) -> Option<Timestamp> {
    let annotations = drain.metadata.annotations.as_ref()?;
    annotations.get(annotation::REFUSED_AGAIN)?.parse().ok()
}

/// When a foreign drainer was last heard of.
pub fn last_sign_of_life(drain: &NodeDrain) -> Option<Timestamp> {
    let asked = drain.spec.requesters.iter().filter_map(|requester| requester.since);
    let created = drain.metadata.creation_timestamp.iter().map(|time| time.0);
    last_eviction(drain).into_iter().chain(asked).chain(created).max()
}

/// When a foreign drainer has last evicted a pod of the node.
pub fn last_eviction(drain: &NodeDrain) -> Option<Timestamp> {
    let annotations = drain.metadata.annotations.as_ref()?;
    annotations.get(annotation::LAST_EVICTION)?.parse().ok()
}

/// Whether somebody has evicted from its node since it was deleted.
pub fn was_evicted_since_its_end(drain: &NodeDrain) -> bool {
    let ended = drain.metadata.deletion_timestamp.as_ref().map(|ended| ended.0);
    ended.is_some() && ended < last_eviction(drain)
}
