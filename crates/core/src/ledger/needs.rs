//! What a claim asks for, and what becomes of a need that changes.

use jiff::Timestamp;
use nodeward_api::drain_ledger::{Claim, ClaimState, HeldPod, Units};

use super::{Ledger, units};

/// What a new need made of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeedChange {
    /// The node has no claim.
    NoClaim,
    /// Nothing changed: it is the same need, or all of it is held.
    Unchanged,
    /// The claim waits, or is suspect, and asks for this from now on.
    Planned,
    /// The claim drains and needs less: the units of running pods that are no longer needed are returned.
    Shrunk {
        /// How many.
        returned: usize,
    },
    /// The claim drained and needs more: the units of running pods are returned, and the whole need is queued under the
    /// same ticket.
    Requeued {
        /// Units that were returned.
        returned: usize,
        /// Units that stay with the claim, for their pods are down.
        kept: usize,
    },
    /// The claim waits for its own pods, and asks for nothing until they are back.
    ComesBack,
}

impl Ledger {
    /// Says what the claim needs; nothing: it has its place in the queue, and asks and reserves nothing. A claim never
    /// grows while it holds.
    ///
    /// A pod is down when its unit cannot be given back by a write: it is gone, terminating, evicted, or was retained
    /// and its node has gone down since.
    pub fn set_needs(
        &mut self,
        node_uid: &str,
        needs: Vec<Units>,
        is_down: &dyn Fn(&HeldPod) -> bool,
        now: Timestamp,
    ) -> NeedChange {
        let Some(claim) = self.claim_mut(node_uid) else {
            return NeedChange::NoClaim;
        };
        if Self::comes_back(claim) {
            return NeedChange::ComesBack;
        }
        let mut needs = units::normal(needs);
        for need in &mut needs {
            need.healthy_at_grant = 0;
        }
        match claim.state {
            ClaimState::Waiting | ClaimState::Suspect => claim.plan(needs),
            ClaimState::Granted | ClaimState::Confirmed if units::missing(&needs, &claim.holds).is_empty() => {
                units::retain_pods(&mut claim.holds, &needs);
                claim.shrink(needs, is_down)
            }
            ClaimState::Granted | ClaimState::Confirmed => {
                let before = units::len(&claim.holds);
                claim.needs = needs;
                let kept = claim.requeue(is_down, now);
                NeedChange::Requeued {
                    returned: before - kept,
                    kept,
                }
            }
        }
    }
}

impl Ledger {
    /// Whether the claim holds less than these needs ask for, as far as they are about pods of which `counts` holds: a unit
    /// of that very budget is missing, or a pod is to stay that was to leave.
    pub fn lacks(claim: &Claim, needs: &[Units], counts: impl Fn(&str) -> bool) -> bool {
        let stays = |pod: &HeldPod| {
            let held = claim.holds.iter().flat_map(|u| &u.pods);
            pod.retained && held.into_iter().any(|held| held.uid == pod.uid && !held.retained)
        };
        units::missing(needs, &claim.holds)
            .iter()
            .any(|u| u.pods.iter().any(|pod| counts(&pod.uid)))
            || needs
                .iter()
                .any(|u| u.pods.iter().any(|pod| counts(&pod.uid) && stays(pod)))
    }
}

/// What happens to one claim, whatever the others do.
pub(super) trait Turn {
    /// Whether a write can give the pod's unit back: it runs, and its node will not take it down at any moment.
    fn can_return(&self, pod: &HeldPod, is_down: &dyn Fn(&HeldPod) -> bool) -> bool;
    /// Returns the units of running pods and queues the whole need under the same ticket; answers how many units stay.
    fn requeue(&mut self, is_down: &dyn Fn(&HeldPod) -> bool, now: Timestamp) -> usize;
    /// Asks for this; what is held is part of the whole need.
    fn plan(&mut self, needs: Vec<Units>) -> NeedChange;
    /// Returns the units of running pods that are no longer needed.
    fn shrink(&mut self, needs: Vec<Units>, is_down: &dyn Fn(&HeldPod) -> bool) -> NeedChange;
}

impl Turn for Claim {
    fn can_return(&self, pod: &HeldPod, is_down: &dyn Fn(&HeldPod) -> bool) -> bool {
        !(is_down(pod) || self.drained && pod.retained)
    }

    fn requeue(&mut self, is_down: &dyn Fn(&HeldPod) -> bool, now: Timestamp) -> usize {
        let mut holds = std::mem::take(&mut self.holds);
        units::retain(&mut holds, |_, pod| !self.can_return(pod, is_down));
        self.holds = holds;
        let needs = std::mem::take(&mut self.needs);
        self.plan(needs);
        self.state = ClaimState::Waiting;
        self.by_fallback = false;
        self.since = now;
        self.queued_at = now;
        units::len(&self.holds)
    }

    fn plan(&mut self, needs: Vec<Units>) -> NeedChange {
        let mut held = self.holds.clone();
        for unit in &mut held {
            unit.healthy_at_grant = 0;
        }
        let whole = units::normal(needs.into_iter().chain(held));
        if self.needs == whole {
            return NeedChange::Unchanged;
        }
        self.needs = whole;
        NeedChange::Planned
    }

    fn shrink(&mut self, needs: Vec<Units>, is_down: &dyn Fn(&HeldPod) -> bool) -> NeedChange {
        let mut holds = std::mem::take(&mut self.holds);
        let returned = units::retain(&mut holds, |_, pod| {
            units::holds_pod(&needs, &pod.uid) || !self.can_return(pod, is_down)
        });
        self.holds = holds;
        self.plan(needs);
        if returned == 0 {
            NeedChange::Unchanged
        } else {
            NeedChange::Shrunk { returned }
        }
    }
}
