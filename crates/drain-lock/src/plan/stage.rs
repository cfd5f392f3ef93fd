//! The life of a drain: where one stands.

use jiff::Timestamp;
use nodeward_api::node_drain::{Evictor, Phase};
use nodeward_core::ledger::{Claim, ClaimState};

use super::case::Case;
use super::time_limits::TimeLimits;
use super::verdict::Look;

/// The life of a drain that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its turn ended while pods were down: they come back before it queues again.
    ComingBack,
    /// It has a ticket, and its node is not cordoned.
    Uncordoned,
    /// Pods that asked for it finish first.
    Completing,
    /// The movable pods leave.
    Leaving,
    /// It asks for all units that it needs.
    Claiming,
    /// It was granted them, and makes sure.
    Confirming,
    /// The held pods leave.
    Evicting,
    /// No pod has to leave any more, and the ledger does not say so yet.
    Finishing,
    /// No pod has to leave any more.
    Drained,
    /// The node has booted anew.
    Rebooted,
    /// Its drainer vanished.
    Suspect,
    /// A later version of drain-lock has put its claim into a state that this one does not know.
    LeftAlone,
}

impl Stage {
    /// Where a drain with this claim stands, given what is left on its node. With `forced`, its fallback does not wait
    /// for what it waited for in vain.
    pub(super) fn of(claim: &Claim, case: &Case, look: &Look, forced: bool) -> Self {
        let is_cordoned = case.node.as_deref().is_some_and(|node| node.is_cordoned());
        match claim.state {
            ClaimState::Recovering => Self::ComingBack,
            ClaimState::Queued | ClaimState::Asking | ClaimState::DrainedAsking => match case.evictor() {
                _ if !is_cordoned => Self::Uncordoned,
                Evictor::Nodeward if !forced && !look.completing.is_empty() => Self::Completing,
                Evictor::Nodeward if !forced && !look.movable.is_empty() => Self::Leaving,
                Evictor::Nodeward | Evictor::Requester => Self::Claiming,
            },
            ClaimState::Granted | ClaimState::DrainedGranted => Self::Confirming,
            // A node of ours that boots anew before it was drained has crashed: what is left of its drain goes on.
            ClaimState::Confirmed if case.has_rebooted() && case.evictor() == Evictor::Requester => Self::Rebooted,
            ClaimState::Drained if case.has_rebooted() => Self::Rebooted,
            ClaimState::Confirmed | ClaimState::Drained if look.has_pods_to_leave() => Self::Evicting,
            ClaimState::Confirmed => Self::Finishing,
            ClaimState::Drained => Self::Drained,
            ClaimState::Suspect | ClaimState::DrainedSuspect => Self::Suspect,
            ClaimState::Unknown => Self::LeftAlone,
        }
    }

    /// Until when it lasts at most.
    pub(super) fn until(self, claim: &Claim, limits: &TimeLimits) -> Timestamp {
        match self {
            Self::Uncordoned | Self::Completing | Self::Leaving | Self::Claiming => limits.queue_until(claim),
            Self::Confirming | Self::Evicting | Self::Finishing => limits.drain_until(claim),
            Self::Drained | Self::Rebooted | Self::ComingBack | Self::Suspect | Self::LeftAlone => {
                limits.recover_until(claim)
            }
        }
    }

    /// The phase that people see.
    pub(super) fn phase(self) -> Phase {
        match self {
            Self::Uncordoned | Self::Completing | Self::Leaving | Self::Claiming | Self::LeftAlone => Phase::Queued,
            Self::Confirming => Phase::Granted,
            Self::Evicting | Self::Finishing => Phase::Draining,
            Self::Drained => Phase::Drained,
            Self::ComingBack | Self::Rebooted => Phase::Recovering,
            Self::Suspect => Phase::Suspect,
        }
    }
}
