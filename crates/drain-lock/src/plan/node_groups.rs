//! Node groups: a node takes its place in its groups before it is cordoned, or, cordoned by somebody else, with its grant, and
//! keeps it until it is back. Whoever holds disruptions of a budget never waits for a group, so no two wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::NodeName;
use nodeward_core::ledger::{Claim, GroupObstacle, NodeGroupVerdict};

use crate::node_group::{NodeGroup, groups_of};
use crate::policy::Policy;
use crate::snapshot::{NodeFacts, Snapshot};

use super::drain_context::DrainContext;
use super::node_markers::Cordon;
use super::verdict::DrainVerdict;
use super::{ActiveDrain, Planner};

/// A node that becomes not Ready sooner after its creation has not joined the cluster yet.
const JOINS_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// Whether the node is away without a drain: it was Ready before and is not, or it is being remediated. Nodes that are being
/// deleted do not come back.
fn is_away(node: &NodeFacts, snapshot: &Snapshot, now: Timestamp) -> bool {
    if node.is_being_deleted {
        return false;
    }
    let had_joined = node
        .ready_since
        .is_some_and(|since| since > saturating_add(node.created, JOINS_WITHIN));
    (!node.ready && had_joined) || matches!(snapshot.remediations.of(&node.name, now), Ok(Some(_)))
}

/// The names of the groups that the node is in.
pub fn names_of(policy: &Policy, node: &NodeFacts) -> Vec<String> {
    let groups = groups_of(&policy.node_groups, node);
    groups.into_iter().map(|group| group.name.clone()).collect()
}

/// Whether the claim has a place in each of the node's groups.
pub fn has_places(claim: Option<&Claim>, policy: &Policy, node: &NodeFacts) -> bool {
    let groups = names_of(policy, node);
    groups.is_empty() || claim.is_some_and(|claim| claim.has_places(&groups))
}

/// What a pass knows of the groups.
#[derive(Debug, Default)]
pub(super) struct NodeGroups {
    /// Looked at when the first drain asks.
    members: BTreeMap<String, Members>,
    /// Places that this pass has promised to drains that are granted with their disruptions.
    promised: BTreeMap<String, BTreeSet<NodeName>>,
    /// The oldest drain that waits for other drains, and its groups.
    reserved: Option<(NodeName, Vec<String>)>,
}

#[derive(Debug)]
struct Members {
    /// But for those that are being deleted.
    count: usize,
    /// Not Ready, or under remediation.
    unhealthy: BTreeSet<NodeName>,
}

impl Members {
    fn of(group: &NodeGroup, snapshot: &Snapshot, now: Timestamp) -> Self {
        let members = snapshot.nodes.values().filter(|node| group.contains(node));
        let (mut count, mut unhealthy) = (0, BTreeSet::new());
        for node in members.filter(|node| !node.is_being_deleted) {
            count += 1;
            if is_away(node, snapshot, now) {
                unhealthy.insert(node.name.clone());
            }
        }
        Self { count, unhealthy }
    }
}

impl Planner<'_> {
    /// What keeps the node from a place in each of its groups. Drains are asked in the order of their tickets; the oldest one
    /// that waits for other drains alone keeps a place of each of its groups from the younger ones.
    pub(super) fn node_group_obstacle(&mut self, active: &ActiveDrain<'_>) -> Option<GroupObstacle> {
        let node = active.node;
        let held = self
            .write
            .next
            .claim(active.uid())
            .map(|claim| claim.node_groups.clone());
        let held = held.unwrap_or_default();
        let groups = groups_of(&self.policy.node_groups, node);
        let mut found: Option<GroupObstacle> = None;
        for group in groups.iter().filter(|group| !held.contains(&group.name)) {
            let obstacle = self.lack_of_places(node, group);
            // Another node's failure is what a person has to see to, and it reserves nothing.
            let is_worse = |before: &GroupObstacle| before.reason != LockReason::GroupUnhealthy;
            if let Some(obstacle) = obstacle
                && found.as_ref().is_none_or(is_worse)
            {
                found = Some(obstacle);
            }
        }
        let waits = found
            .as_ref()
            .is_some_and(|found| found.reason == LockReason::WaitsForNodeGroup);
        if waits && self.places.reserved.is_none() {
            let names = groups.iter().map(|group| group.name.clone()).collect();
            self.places.reserved = Some((node.name.clone(), names));
        }
        found
    }

    /// How each group stands.
    pub(super) fn node_group_verdicts(&mut self) -> Vec<NodeGroupVerdict> {
        let policy = self.policy;
        policy.node_groups.iter().map(|group| self.look_at(group)).collect()
    }

    fn look_at(&mut self, group: &NodeGroup) -> NodeGroupVerdict {
        let (snapshot, now) = (self.snapshot, self.now);
        let members = self.places.members.entry(group.name.clone());
        let members = members.or_insert_with(|| Members::of(group, snapshot, now));
        let promised = self.places.promised.get(&group.name);
        // A place that this pass frees is free once that is written: what its return rests on may turn out not to be so.
        let claims = self.write.next.claims().iter().chain(self.before.claims());
        let draining: BTreeSet<NodeName> = claims
            .filter(|claim| {
                let node = snapshot.nodes.get(claim.node.as_str());
                let is_its_node = |node: &&Arc<NodeFacts>| node.uid.as_str() == claim.node_uid;
                claim.has_place(&group.name, || {
                    node.filter(is_its_node).is_some_and(|node| group.contains(node))
                })
            })
            .map(|claim| NodeName::from(claim.node.as_str()))
            .chain(promised.into_iter().flatten().cloned())
            .collect();
        NodeGroupVerdict {
            name: group.name.clone(),
            allowed: group.max_unavailable(members.count),
            unhealthy: members.unhealthy.difference(&draining).cloned().collect(),
            draining,
        }
    }

    fn lack_of_places(&mut self, node: &NodeFacts, group: &NodeGroup) -> Option<GroupObstacle> {
        let verdict = self.look_at(group);
        let reserved = self.places.reserved.as_ref();
        let kept_for = reserved.filter(|(_, groups)| groups.contains(&group.name));
        verdict.obstacle(&node.name, kept_for.map(|(name, _)| name))
    }

    /// Takes the node's places in its groups, before it is cordoned. The cordon follows once the ledger says so. With its places,
    /// a drain that something else stops would keep others from theirs.
    pub(super) fn take_node_groups(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) {
        self.set_needs(active, Vec::new());
        // Whoever has the node, or another of the control plane, is named first: as members of a group they may count, too.
        let blocked = if let Some((reason, text)) = self.taken_by_other(active) {
            Some((reason, text, None))
        } else {
            let obstacle = self.node_group_obstacle(active);
            obstacle.map(|obstacle| (obstacle.reason, obstacle.text, obstacle.holder))
        };
        if let Some((reason, text, holder)) = blocked {
            verdict.message.clone_from(&text);
            verdict.block_by_node(reason, text, holder.as_ref());
        } else if !self.is_held_up(active, verdict) && !self.waits_for_room(active, verdict) {
            let groups = names_of(self.policy, active.node);
            self.write.next.take_node_groups(active.uid(), &groups);
            verdict.set_message("takes its place in its node groups");
        }
        self.write_node_markers(active.node, Cordon::Keep, true, None);
    }

    /// Notes that a drain asks for its places with its disruptions, in one write.
    pub(super) fn promise_node_groups(&mut self, node: &NodeFacts) -> Vec<String> {
        let groups = names_of(self.policy, node);
        for group in &groups {
            let promised = self.places.promised.entry(group.clone()).or_default();
            promised.insert(node.name.clone());
        }
        groups
    }

    /// Gives the places back once the node is back, whatever its pods do: Ready and uncordoned, after its drain has ended or
    /// its turn has. One that is gone never comes back, and a group that is gone from the configuration has no places.
    pub(super) fn return_node_groups(&mut self, context: &DrainContext) {
        let Some(claim) = &context.claim else { return };
        let groups: BTreeSet<&str> = self
            .policy
            .node_groups
            .iter()
            .map(|group| group.name.as_str())
            .collect();
        let is_back = match &context.node {
            Some(node) => claim.has_node_back(node, context.is_over()),
            None => true,
        };
        self.write
            .next
            .return_node_groups(&claim.node_uid, |group| !is_back && groups.contains(group));
    }
}
