//! What has become of a pod that a disruption is held for: by what is observed of it and of its node.

use jiff::{SignedDuration, Timestamp};
use nodeward_api::drain_ledger::ClaimState;

use super::{Claim, HeldPod};
use crate::deadline::saturating_add;
use crate::node::NodeView;
use crate::pod::PodSummary;

/// Whoever was told that the node may go down may still act on it for so long after its drain was called off: its kubelet
/// is to be heard of once that has passed.
const CALLED_OFF_FOR: SignedDuration = SignedDuration::from_mins(5);

/// What has become of a pod that a disruption is held for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldPodState {
    /// It runs. Where a time is given, it counts as back from then on.
    Running(Option<Timestamp>),
    Down,
    Recovered,
    /// It is back because its node is taken not to go down any more, if the node's kubelet was heard of after this time.
    CalledOff(Timestamp),
}

impl Claim {
    /// What has become of a pod that is there, and neither terminates nor has finished, on the claim's node, which is there as
    /// well. `is_over`: nobody wants the drain any more.
    pub fn state_of_present(
        &self,
        held: &HeldPod,
        pod: &PodSummary,
        node: &NodeView,
        is_over: bool,
        now: Timestamp,
    ) -> HeldPodState {
        if self.is_back(held, pod, node) {
            return HeldPodState::Recovered;
        }
        // A pod that was to be evicted and still runs is not down; one that stays is, from when its node goes.
        let is_node_gone = !node.ready || self.has_rebooted(&node.boot_id);
        if held.retained && is_node_gone {
            return HeldPodState::Down;
        }
        // Its turn ended while the pod was down with its node, or was thought to leave, and it runs on after all.
        if self.state == ClaimState::Returning && !self.may_go_down && node.ready && pod.is_healthy() {
            return HeldPodState::Recovered;
        }
        let is_called_off = match self.state {
            ClaimState::Returning => self.may_go_down,
            ClaimState::Suspect => self.may_go_down && is_over,
            ClaimState::Waiting | ClaimState::Granted | ClaimState::Confirmed => false,
        };
        let is_same_boot = !node.boot_id.is_empty() && *node.boot_id == *self.boot_id;
        if !(is_called_off && held.retained && is_same_boot && node.ready && pod.is_healthy()) {
            return HeldPodState::Running(None);
        }
        // It runs on a node which was told that it may go down: it stays with the claim until that is out of date.
        let since = saturating_add(self.since, CALLED_OFF_FOR);
        if now < since {
            HeldPodState::Running(Some(since))
        } else {
            HeldPodState::CalledOff(since)
        }
    }

    /// Whether a pod that stayed on its node has come back with it: the node is Ready in another boot than at the grant, and the
    /// pod's containers are others than before.
    ///
    /// A reboot that is shorter than the node monitor's grace shows in no Ready condition, and until the kubelet reports again
    /// the pod looks as it did before: neither tells of its containers. Times do only where no hash was kept (containers
    /// without ids, a ledger of an earlier version), or where the hash was already that of the new containers when it was
    /// kept, because the pod's watch was ahead of the node's.
    pub fn is_back(&self, held: &HeldPod, pod: &PodSummary, node: &NodeView) -> bool {
        if !(node.ready && self.has_rebooted(&node.boot_id) && pod.is_healthy()) {
            return false;
        }
        let containers = pod.containers.map(|hash| hash.to_string());
        let is_known = !held.containers.is_empty() && containers.is_some();
        if is_known && containers.is_some_and(|hash| hash != held.containers) {
            return true;
        }
        let started_since = |moment| pod.started_at.is_some_and(|started| started > moment);
        let ready_since = |moment| pod.ready_since.is_some_and(|ready| ready > moment);
        let both_since = |moment| started_since(moment) && ready_since(moment);
        // A pod of the host's network may run, and be Ready, before its node is.
        let since_its_return = |returned| started_since(returned) || ready_since(returned) || both_since(self.since);
        let since = if is_known { self.since } else { self.queued_at };
        match node.ready_since {
            Some(returned) if returned > since => since_its_return(returned),
            Some(_) => !is_known && started_since(since),
            None => false,
        }
    }
}
