//! One node of the control plane away at a time: the lease that whoever takes one out of service holds, drain-lock from before
//! the grant to the return of the last disruption.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::node_lease::CONTROL_PLANE;
use nodeward_api::reason::LockReason;
use nodeward_core::id::NodeName;
use nodeward_core::lease::{LeaseState, LeaseView, lease_state};
use nodeward_core::ledger::{Claim, ClaimState};

use crate::snapshot::{NodeFacts, Snapshot};

use super::lease::{HOLDER, LeaseChange, LeaseStep, leases_in_use};
use super::{Action, Planner};

/// The holder of the lease while the node is drained.
pub fn holder_for(node: &NodeName) -> String {
    format!("{HOLDER}/{node}")
}

/// The node that drain-lock holds the lease for.
fn held_for(lease: &LeaseView) -> Option<NodeName> {
    let node = lease.holder.as_deref()?.strip_prefix(HOLDER)?.strip_prefix('/')?;
    Some(node.into())
}

/// Another control-plane node that is being remediated, and how that is known.
fn other_remediated(node: &NodeFacts, snapshot: &Snapshot, now: Timestamp) -> Option<String> {
    if !node.is_control_plane() {
        return None;
    }
    let mut others = snapshot
        .nodes
        .values()
        .filter(|other| other.name != node.name && other.is_control_plane());
    others.find_map(|other| {
        let open = snapshot.remediations.of(&other.name, now).ok()??;
        Some(format!("node {}: {open}", other.name))
    })
}

/// Who has another control-plane node away.
pub fn taken_for_another(node: &NodeFacts, snapshot: &Snapshot, now: Timestamp) -> Option<String> {
    let lease = snapshot.leases.as_ref().and_then(|all| all.get(CONTROL_PLANE));
    match lease_state(lease.map(Arc::as_ref), &holder_for(&node.name), now) {
        LeaseState::Others { holder, .. } if node.is_control_plane() => Some(holder.to_string()),
        _ => other_remediated(node, snapshot, now),
    }
}

impl Planner<'_> {
    /// How the lease stands for this node; `None` where it needs none, or leases are not used.
    pub(super) fn control_plane_lease(&self, node: &NodeFacts) -> Option<LeaseState> {
        if !node.is_control_plane() {
            return None;
        }
        let leases = leases_in_use(self.snapshot, self.memory, self.policy, CONTROL_PLANE)?;
        let lease = leases.get(CONTROL_PLANE).map(Arc::as_ref);
        Some(lease_state(lease, &holder_for(&node.name), self.now))
    }

    /// Who has another control-plane node away, if somebody has.
    pub(super) fn control_plane_is_busy(&mut self, node: &NodeFacts) -> Option<String> {
        if let Some(LeaseState::Others { until, .. }) = self.control_plane_lease(node) {
            self.requeue_at.note(until);
        }
        let who = taken_for_another(node, self.snapshot, self.now)?;
        Some(format!("{} ({who})", LockReason::ControlPlaneBusy.explanation()))
    }

    /// That no majority of the control plane is left without the node, which its stacked etcd needs.
    pub(super) fn lost_quorum(&self, node: &NodeFacts) -> Option<String> {
        let members = self.snapshot.nodes.values();
        let members: Vec<&Arc<NodeFacts>> = members
            .filter(|member| member.is_control_plane() && !member.is_being_deleted)
            .collect();
        let left = members
            .iter()
            .filter(|member| member.name != node.name && member.ready)
            .count();
        let is_lost = node.is_control_plane() && left <= members.len() / 2;
        is_lost.then(|| {
            format!(
                "{}: {left} of {} nodes of the control plane stay Ready",
                LockReason::QuorumLost.explanation(),
                members.len()
            )
        })
    }

    /// Whether the node has the lease that it needs for a grant; if not, it is asked for.
    pub(super) fn has_control_plane_lease(&mut self, node: &NodeFacts) -> bool {
        match self.control_plane_lease(node) {
            None => true,
            Some(LeaseState::Ours { .. }) => {
                self.control_plane_for.insert(node.name.clone());
                true
            }
            Some(LeaseState::Free | LeaseState::Others { .. }) => {
                self.control_plane_for.insert(node.name.clone());
                false
            }
        }
    }

    /// Takes, renews or gives back the lease, as the drains of this pass need it: it stays with its node until that holds
    /// nothing, by the ledger as it is and as it is to be.
    pub(super) fn keep_control_plane_lease(&mut self) {
        let Some(leases) = leases_in_use(self.snapshot, self.memory, self.policy, CONTROL_PLANE) else {
            return;
        };
        let seen = leases.get(CONTROL_PLANE);
        let is_member = |node: &&NodeName| {
            let node = self.snapshot.nodes.get(*node);
            node.is_some_and(|node| node.is_control_plane())
        };
        let claims = self.before.claims().iter().chain(self.write.next.claims());
        let away: BTreeSet<NodeName> = claims
            .filter(|claim| is_away(claim))
            .map(|claim| NodeName::from(claim.node.as_str()))
            .collect();
        let keeper = match seen.and_then(|lease| held_for(lease)) {
            Some(node) if away.contains(&node) || self.control_plane_for.contains(&node) => Some(node),
            Some(_) => {
                self.change_control_plane_lease(HOLDER.to_owned(), LeaseStep::Release);
                return;
            }
            None => away.iter().find(is_member).or(self.control_plane_for.first()).cloned(),
        };
        let Some(keeper) = keeper else { return };
        let holder = holder_for(&keeper);
        match lease_state(seen.map(Arc::as_ref), &holder, self.now) {
            LeaseState::Free => self.change_control_plane_lease(holder, LeaseStep::Take),
            LeaseState::Ours { renew_at } if renew_at <= self.now => {
                self.change_control_plane_lease(holder, LeaseStep::Take);
            }
            LeaseState::Ours { renew_at } => self.requeue_at.note(renew_at),
            LeaseState::Others { until, .. } => self.requeue_at.note(until),
        }
    }

    fn change_control_plane_lease(&mut self, holder: String, step: LeaseStep) {
        let change = LeaseChange::of(CONTROL_PLANE.to_owned(), holder, self.snapshot, self.policy, step);
        self.plan.actions.extend(change.map(Action::Lease));
    }
}

/// Whether the claim's node may be down, or may go down.
fn is_away(claim: &Claim) -> bool {
    claim.state != ClaimState::Waiting || claim.may_go_down || !claim.holds.is_empty()
}
