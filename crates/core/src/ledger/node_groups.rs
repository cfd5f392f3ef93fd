//! Node groups: how many nodes of a group may be away at once, and which are.

use std::collections::BTreeSet;

use nodeward_api::reason::LockReason;

use super::{Claim, ClaimState, Ledger};
use crate::id::NodeName;
use crate::node::NodeView;

/// How a node group stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGroupVerdict {
    pub name: String,
    /// How many of its nodes may be away at once.
    pub allowed: usize,
    /// Nodes that are drained or about to be.
    pub draining: BTreeSet<NodeName>,
    /// Nodes that are away without a drain.
    pub unhealthy: BTreeSet<NodeName>,
}

/// Why a node does not get a place in one of its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupObstacle {
    pub reason: LockReason,
    pub text: String,
    pub holder: Option<NodeName>,
}

impl NodeGroupVerdict {
    /// Why the node gets no place in the group; `kept_for` is an older drain's node that waits for a place in it and in others,
    /// and for which one is kept free.
    pub fn obstacle(&self, node: &NodeName, kept_for: Option<&NodeName>) -> Option<GroupObstacle> {
        let Self {
            name,
            allowed,
            draining,
            unhealthy,
        } = self;
        // That it is not Ready itself does not keep it from being drained.
        let unhealthy: Vec<&str> = unhealthy
            .iter()
            .filter(|other| *other != node)
            .map(NodeName::as_str)
            .collect();
        let kept_for = kept_for.filter(|other| *other != node && !draining.contains(*other));
        let away = draining.len() + unhealthy.len();
        if away >= *allowed && draining.len() < *allowed {
            return Some(GroupObstacle {
                reason: LockReason::GroupUnhealthy,
                text: format!(
                    "node group {name} allows {allowed} nodes away at once, and these are not Ready or under remediation: {}",
                    unhealthy.join(", ")
                ),
                holder: unhealthy.first().map(|name| NodeName::from(*name)),
            });
        }
        if away + usize::from(kept_for.is_some()) < *allowed {
            return None;
        }
        let holder = draining.first().or(kept_for).cloned();
        let nodes: Vec<&str> = draining.iter().map(NodeName::as_str).collect();
        Some(GroupObstacle {
            reason: LockReason::WaitsForNodeGroup,
            text: if away >= *allowed {
                format!(
                    "node group {name} allows {allowed} nodes away at once: {}",
                    nodes.join(", ")
                )
            } else {
                let first = holder.as_ref().map(NodeName::as_str).unwrap_or_default();
                format!("a place in node group {name} is kept for the older drain of node {first}")
            },
            holder,
        })
    }
}

impl Claim {
    /// Whether it has a place in each of these groups.
    pub fn has_places(&self, groups: &[String]) -> bool {
        groups.iter().all(|group| self.node_groups.contains(group))
    }

    /// Whether its node counts as away in the group: it has taken its place, or was granted its disruptions, or told that it may
    /// go down, before the group was configured.
    pub fn has_place(&self, group: &str, is_member: impl FnOnce() -> bool) -> bool {
        let is_granted = self.state.has_grant() || self.state == ClaimState::Suspect || self.may_go_down;
        self.node_groups.iter().any(|name| name == group) || (is_granted && is_member())
    }

    /// Whether its node is back, whatever its pods do: Ready and uncordoned, after its drain has ended or its turn has.
    pub fn has_node_back(&self, node: &NodeView, is_over: bool) -> bool {
        // Nobody goes on with a suspect claim whose drain is over: it waits for nothing but its node and its pods.
        let waits = self.state == ClaimState::Returning || self.state == ClaimState::Suspect && is_over;
        waits && node.ready && !node.is_cordoned()
    }
}

impl Ledger {
    /// Whether others may evict from a node of a group: its claim has its place. Whatever leaves, the last pod's eviction is
    /// what its drainer waits for before it takes the node down.
    pub fn admits_in_node_group(&self, node_uid: &str) -> bool {
        let claim = self.claim(node_uid);
        claim.is_some_and(|claim| claim.state == ClaimState::Confirmed || claim.may_go_down)
    }

    /// Whether others may evict pods from a node around those that stay on it: its claim is confirmed, so that these have
    /// their disruptions. When the last eviction is through, its drainer takes the node down, and them with it.
    pub fn admits_around_retained(&self, node_uid: &str) -> bool {
        self.claim(node_uid)
            .is_some_and(|claim| claim.state == ClaimState::Confirmed)
    }
}
