//! How long each part of a drain may take, and what its fallback makes of it when that time is over.

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::{Evictor, Fallback, NodeDrain};
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::{is_due, saturating_add};
use nodeward_core::duration::ConfigDuration;
use nodeward_core::id::NodeUid;
use nodeward_core::ledger::{Claim, ClaimState, Leaderless, Ledger, TimedOut, until};
use nodeward_core::text::counted;

use crate::policy::Deadlines;

use super::drain_context::claim_of;
use super::intent::{last_eviction, last_sign_of_life};
use super::{ActiveDrain, DrainContext, Planner};

/// When a new leader plans for the second time.
const SETTLING: SignedDuration = SignedDuration::from_secs(1);

/// A pod that is evicted right after the grant is seen to leave by then.
const EVICTION_SHOWS_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// The limits of one drain, and what of them could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeLimits {
    pub limits: Deadlines,
    /// Fields that could not be read, with what is wrong; the configuration counts in their place.
    pub unreadable: Vec<String>,
    /// Times without a leader, in which they stand still.
    leaderless: Vec<Leaderless>,
    /// Whether somebody else evicts.
    by_requester: bool,
    /// When the drain was last seen to go on, if it does.
    last_sign: Option<Timestamp>,
}

impl TimeLimits {
    pub fn of(drain: Option<&NodeDrain>, defaults: Deadlines, ledger: &Ledger) -> Self {
        let mut unreadable = Vec::new();
        let mut read =
            |field: &str, given: Option<String>, default| match given.map(|text| ConfigDuration::parse(&text)) {
                None => default,
                Some(Ok(duration)) => duration.get(),
                Some(Err(error)) => {
                    unreadable.push(format!("deadlines.{field}: {error}"));
                    default
                }
            };
        let given = drain.map(|drain| drain.spec.deadlines.clone()).unwrap_or_default();
        let limits = Deadlines {
            queue: read("queue", given.queue, defaults.queue),
            drain: read("drain", given.drain, defaults.drain),
            recover: read("recover", given.recover, defaults.recover),
        };
        Self {
            limits,
            unreadable,
            leaderless: ledger.leaderless.clone(),
            by_requester: drain.is_some_and(|drain| drain.spec.evict == Evictor::Requester),
            last_sign: None,
        }
    }

    /// The same of a drain that goes on.
    pub fn of_active(context: &DrainContext, defaults: Deadlines, ledger: &Ledger) -> Self {
        Self {
            last_sign: context.last_sign,
            ..Self::of(context.drain.as_deref(), defaults, ledger)
        }
    }

    /// Until when a claim may wait.
    pub fn queue_until(&self, claim: &Claim) -> Timestamp {
        until(claim.queued_at, self.limits.queue, &self.leaderless)
    }

    /// Until when a granted claim may take to drain its node.
    pub fn drain_until(&self, claim: &Claim) -> Timestamp {
        until(claim.since, self.limits.drain, &self.leaderless)
    }

    /// Until when the node of a granted claim may take to be back with its pods: after the time that drain-lock's own evictions
    /// may take, and after the last sign that anything goes on.
    pub fn recover_until(&self, claim: &Claim) -> Timestamp {
        let parts = if claim.state.has_grant() && !self.by_requester {
            self.limits.drain.saturating_add(self.limits.recover)
        } else {
            self.limits.recover
        };
        let from_sign = self
            .last_sign
            .map(|sign| until(sign, self.limits.recover, &self.leaderless));
        until(claim.since, parts, &self.leaderless).max(from_sign.unwrap_or(Timestamp::MIN))
    }
}

impl Planner<'_> {
    /// Gives up what has taken too long, as the drain's fallback says. A drain that waits gives nothing up: no wait for other
    /// drains ends by time.
    pub(super) fn apply_timeouts(&mut self, active: &ActiveDrain<'_>) {
        let (context, uid, limits) = (active.context, active.uid(), &active.limits);
        let Some(claim) = self.write.next.claim(uid).cloned() else {
            return;
        };
        match claim.state {
            ClaimState::Returning => self.suspect_overdue(context),
            // Who evicted the pods that are down does not ask for the others.
            ClaimState::Waiting => {
                let is_gone = context.is_by_requester() && !context.unavailable.is_empty();
                if is_gone && self.is_over(limits.recover_until(&claim)) {
                    self.suspect(active);
                }
            }
            ClaimState::Granted => {
                if self.is_over(limits.drain_until(&claim)) {
                    self.fall_back(active);
                }
            }
            ClaimState::Confirmed => self.apply_timeouts_of_grant(active, &claim),
            ClaimState::Suspect => {
                // A drain of ours whose turn ended, and whose pods came back late after all.
                let is_back = !claim.may_go_down && claim.holds.is_empty() && !context.is_by_requester();
                if is_back || last_sign_of_life(active.drain).is_some_and(|sign| claim.since < sign) {
                    self.write.next.resume(uid, self.now);
                }
            }
        }
    }

    /// Tells that pods which are awaited back are not back in time: their claim is suspect, and nobody counts on what it holds.
    pub(super) fn suspect_overdue(&mut self, context: &DrainContext) {
        let Some(uid) = &context.node_uid else { return };
        let claim = claim_of(Some(uid), &self.write.next).cloned();
        let Some(claim) = claim.filter(|claim| claim.state == ClaimState::Returning && !claim.holds.is_empty()) else {
            return;
        };
        let limits = TimeLimits::of(context.drain.as_deref(), self.policy.deadlines, &self.write.next);
        if self.is_over(limits.recover_until(&claim)) && self.write.next.suspect_overdue(uid.as_str(), self.now) {
            let note =
                "its pods are not back in time; what it holds returns as they do, or by an administrator".to_owned();
            self.announce(&context.name, uid.as_str(), LockReason::Suspect, note);
        }
    }

    /// Whether this time has passed; otherwise the next plan is made then. The first plan of a new leader gives nothing up: what
    /// has happened while nobody looked is taken in before.
    fn is_over(&mut self, until: Timestamp) -> bool {
        let until = if self.memory.first_plan_at == Some(self.now) {
            until.max(saturating_add(self.now, SETTLING))
        } else {
            until
        };
        self.requeue_at.note(until);
        is_due(until, self.now)
    }

    /// A granted drain has two limits: one for the pods to leave, one for all of them to be back.
    fn apply_timeouts_of_grant(&mut self, active: &ActiveDrain<'_>, claim: &Claim) {
        let (context, by_requester) = (active.context, active.context.is_by_requester());
        let is_drain_over = self.is_over(active.limits.drain_until(claim));
        let is_recovery_over = self.is_over(active.limits.recover_until(claim));
        // Whoever evicts by himself may reboot before he says so; our own drain of a node that crashed goes on.
        let is_drained = claim.may_go_down || (by_requester && context.has_rebooted());
        if is_recovery_over && !context.unavailable.is_empty() && (is_drained || by_requester) {
            self.suspect(active);
            return;
        }
        if !is_drained && is_drain_over {
            self.fall_back(active);
        }
        if !is_drained && context.is_idle {
            let is_down = |pod: &_| context.unavailable.contains(pod);
            if self.write.next.has_unused(active.uid(), &is_down) {
                self.give_back(active, "its drainer has evicted nothing for a while");
            }
        } else if !is_drained
            && by_requester
            && claim.budgets_of_moving().next().is_none()
            && self.is_over(self.used_until(active, claim))
        {
            let is_down = |pod: &_| context.unavailable.contains(pod);
            if self.write.next.has_unused(active.uid(), &is_down) {
                self.give_back(active, "its drainer evicts, and none of its pods has gone for a while");
            }
        }
    }

    /// Until when a grant counts as used whose drainer evicts, while none of its pods is to be replaced: somebody else may refuse
    /// what he asks for, and then the evictions tell nothing.
    fn used_until(&self, active: &ActiveDrain<'_>, claim: &Claim) -> Timestamp {
        let from = self.last_use(active.context, claim);
        until(from, self.policy.auto.quiet_period, &self.write.next.leaderless)
    }

    /// When a grant was last seen to be of use to others who evict: a pod has ended, or the grace of one that leaves is over then.
    fn last_use(&self, context: &DrainContext, claim: &Claim) -> Timestamp {
        let last_end = [context.leaving.last_end, context.last_deadline(self.snapshot)];
        let last_end = last_end.into_iter().flatten();
        let last_use = last_end.chain(self.memory.first_plan_at).max();
        last_use.map_or(claim.since, |last_use| last_use.max(claim.since))
    }

    /// Whether others who evict have gone on after a grant, and no pod has gone by it.
    pub(super) fn evictions_change_nothing(&self, active: &ActiveDrain<'_>, claim: &Claim) -> bool {
        let shown_by = saturating_add(self.last_use(active.context, claim), EVICTION_SHOWS_WITHIN);
        active.context.is_by_requester()
            && claim.budgets_of_moving().next().is_none()
            && last_eviction(active.drain).is_some_and(|evicted| shown_by < evicted)
    }

    fn suspect(&mut self, active: &ActiveDrain<'_>) {
        if self.write.next.suspect(active.uid(), self.now) {
            let note = LockReason::Suspect.explanation().to_owned();
            self.announce(&active.node.name, active.uid(), LockReason::Suspect, note);
        }
    }

    /// Queues a drain again whose time is over, unless it is to wait on.
    fn fall_back(&mut self, active: &ActiveDrain<'_>) {
        let is_down = |pod: &_| active.context.unavailable.contains(pod);
        // It keeps nothing from others, and would begin anew at once: a person is told that its time is over.
        let waits_for_owners =
            !active.classes.left_to_owners.is_empty() && !self.write.next.has_unused(active.uid(), &is_down);
        if active.drain.spec.fallback == Fallback::ReleaseAndRequeue && !waits_for_owners {
            self.give_back(active, "its time (drain) is over");
        }
    }

    /// Gives back what a drain can give back, and queues it again.
    fn give_back(&mut self, active: &ActiveDrain<'_>, why: &str) {
        let uid = active.uid();
        let is_down = |pod: &_| active.context.unavailable.contains(pod);
        let what = match self.write.next.time_out(uid, &is_down, self.now) {
            TimedOut::Unchanged => return,
            TimedOut::KeepsWaiting => "it held nothing, and its turn begins anew".to_owned(),
            TimedOut::Requeued { ticket } => format!("its disruptions are returned, and its ticket is {ticket} now"),
            TimedOut::ComesBack { ticket, kept } => {
                format!(
                    "{} must come back first; its ticket is {ticket} now",
                    counted(kept, "pod")
                )
            }
            TimedOut::KeepsPlace { kept } => format!(
                "{} cannot come back under another's cordon; it keeps its ticket, and their disruptions",
                counted(kept, "pod")
            ),
        };
        let note = format!("{why}: {what}");
        self.announce(&active.node.name, uid, LockReason::Requeued, note);
    }

    /// Of drains that hold disruptions of pods which are down, and wait for each other, the youngest is queued again at once: no
    /// time would end that.
    pub(super) fn break_deadlock(&mut self, contexts: &[DrainContext]) {
        let youngest = self.write.next.gives_way(&self.snapshot.facts).map(str::to_owned);
        let is_youngest =
            |context: &&DrainContext| context.node_uid.as_ref().map(NodeUid::as_str) == youngest.as_deref();
        let Some((uid, context)) = youngest.as_deref().zip(contexts.iter().find(is_youngest)) else {
            return;
        };
        let is_down = |pod: &_| context.unavailable.contains(pod);
        self.write.next.time_out(uid, &is_down, self.now);
        let note = "gives way to a drain that waits for it and that it waits for".to_owned();
        self.announce(&context.name, uid, LockReason::Requeued, note);
    }
}
