//! One control-plane node at a time, and only while etcd keeps its quorum without it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use nodeward_api::label::ETCD_ROLE;
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::NodeName;
use nodeward_core::lease::remediation_lease;
use nodeward_core::node::NodeView;

use super::Planner;
use super::case::Standing;
use super::start::Tally;
use crate::snapshot::{EtcdGuards, NodeFacts, Nodes, Reading};

/// For how long a node that is gone counts as a member of etcd which is away. Nobody tells when its member was removed.
pub const GONE_MEMBERS_COUNT_FOR: SignedDuration = SignedDuration::from_hours(1);

/// When each member of etcd was last seen, by its node.
pub type Members = BTreeMap<NodeName, Timestamp>;

impl Planner<'_> {
    /// Whether the node is one of the control plane. One that was deleted registers again without its role, which a kubelet may
    /// not give itself, and is as much a member of etcd as before.
    pub(super) fn is_control_plane(&self, node: &NodeFacts) -> bool {
        node.view.is_control_plane() || self.plan.found.etcd_members.contains_key(&node.view.name)
    }

    /// Whether a control-plane node may be remediated; others always may.
    ///
    /// # Errors
    /// With what stops it.
    pub(super) fn check_control_plane(&self, node: &NodeFacts, tally: &Tally) -> Result<(), Standing> {
        if !self.is_control_plane(node) {
            return Ok(());
        }
        let away = |text: String| Err(Standing::new(HealthReason::ControlPlaneNodeAway, text));
        let remediated = self.index.remediated_control_plane.iter();
        if let Some((other, live)) = remediated.into_iter().find(|(name, _)| ***name != node.view.name) {
            return away(format!("{} of node {other}", live.kind.kind));
        }
        if let Some(other) = tally
            .remediated_control_plane
            .iter()
            .find(|name| **name != node.view.name)
        {
            return away(format!("a remediation of node {other}"));
        }
        let mut others = self
            .snapshot
            .nodes
            .control_plane()
            .iter()
            .filter(|other| other.view.name != node.view.name);
        if let Some(other) = others.find(|other| self.index.is_drained_away(other, self.now)) {
            return away(format!("node {} is being drained", other.view.name));
        }
        self.check_unseen_remediations(node)?;
        let at_risk = |text: String| Standing::new(HealthReason::EtcdQuorumAtRisk, text);
        let guards = match &self.snapshot.etcd {
            Reading::Known(guards) => guards.as_ref(),
            Reading::Unknown(why) => return Err(at_risk(format!("it cannot be told: {why}"))),
        };
        let nodes: Vec<&NodeView> = self
            .snapshot
            .nodes
            .control_plane()
            .iter()
            .map(|node| &node.view)
            .collect();
        let keeps_quorum_at = |at: Timestamp| keeps_quorum(&node.view.name, &nodes, &self.recent_members(at), guards);
        keeps_quorum_at(self.now).map_err(|text| {
            // Once enough of those that are gone count no more, the others are a majority.
            let mut ends: Vec<Timestamp> = self
                .plan
                .found
                .etcd_members
                .values()
                .map(|seen| counts_until(*seen))
                .collect();
            ends.sort_unstable();
            at_risk(text).until(ends.into_iter().find(|end| keeps_quorum_at(*end).is_ok()))
        })
    }

    /// The nodes that count at this time as members of etcd if they are gone.
    pub(super) fn recent_members(&self, at: Timestamp) -> BTreeSet<NodeName> {
        let members = self.plan.found.etcd_members.iter();
        let recent = members.filter(|(_, seen)| at < counts_until(**seen));
        recent.map(|(name, _)| name.clone()).collect()
    }

    /// Whether somebody may be remediating another control-plane node though no remediation of it is seen: what cannot be told
    /// counts as one that is under way.
    fn check_unseen_remediations(&self, node: &NodeFacts) -> Result<(), Standing> {
        let away = |text: String| Standing::new(HealthReason::ControlPlaneNodeAway, text);
        let others = self.snapshot.nodes.control_plane().iter().map(|other| &other.view.name);
        for other in others
            .chain(self.plan.found.etcd_members.keys())
            .filter(|other| **other != node.view.name)
        {
            // Of which kind it is, and whether it is in any status, does not matter.
            if let Some((check, until)) = remediation_lease(&self.snapshot.leases, other, self.now) {
                let text = format!("NodeHealthCheck {check} has the lease of node {other}");
                return Err(away(text).until(until));
            }
        }
        if let Some((kind, why)) = self.index.unlisted_kind() {
            return Err(away(format!("whether one has a {} cannot be told: {why}", kind.kind)));
        }
        match self.index.unattributed() {
            Some(live) => {
                let text = format!("{} {} does not say of which node it is", live.kind.kind, live.key);
                Err(away(text))
            }
            None => Ok(()),
        }
    }
}

/// Whether etcd keeps its quorum without a node. `recent` are those that have been members within `GONE_MEMBERS_COUNT_FOR`; guards
/// there are on OpenShift alone.
///
/// # Errors
/// Why it would not, or cannot be told to.
pub fn keeps_quorum(
    node: &NodeName,
    control_plane: &[&NodeView],
    recent: &BTreeSet<NodeName>,
    guards: Option<&EtcdGuards>,
) -> Result<(), String> {
    match guards {
        Some(guards) => openshift_quorum(guards, node),
        None => majority_is_ready(node, control_plane, recent),
    }
}

/// When each member of etcd was last seen. A node that is gone counts for a while: with its Node nobody has removed its member,
/// and a member that is away takes part in the majority.
pub fn see_members(nodes: &Nodes, before: &Members, now: Timestamp) -> Members {
    let recent = before.iter().filter(|(_, seen)| now < counts_until(**seen));
    let nodes: Vec<&NodeView> = nodes.control_plane().iter().map(|node| &node.view).collect();
    let present = members_of(&nodes).into_iter().map(|member| (member.name.clone(), now));
    recent
        .map(|(name, seen)| (name.clone(), *seen))
        .chain(present)
        .collect()
}

/// When those members that are gone count no more.
pub fn ends_of_gone(members: &Members, nodes: &Nodes) -> impl Iterator<Item = Timestamp> {
    let is_there = |name: &NodeName| nodes.control_plane().iter().any(|node| node.view.name == *name);
    let gone = members.iter().filter(move |(name, _)| !is_there(name));
    gone.map(|(_, seen)| counts_until(*seen))
}

/// Until when a member that was last seen then counts.
fn counts_until(seen: Timestamp) -> Timestamp {
    saturating_add(seen, GONE_MEMBERS_COUNT_FOR)
}

/// The nodes with the role etcd if any node has it, or else all.
fn members_of<'n>(nodes: &[&'n NodeView]) -> Vec<&'n NodeView> {
    let has_role = |view: &&NodeView| view.labels.get(ETCD_ROLE).is_some();
    let members: Vec<&NodeView> = nodes.iter().copied().filter(has_role).collect();
    if members.is_empty() { nodes.to_vec() } else { members }
}

/// Off OpenShift the nodes themselves tell: the other members that are Ready must be a majority of all.
fn majority_is_ready(node: &NodeName, control_plane: &[&NodeView], recent: &BTreeSet<NodeName>) -> Result<(), String> {
    let members = members_of(control_plane);
    let is_there = |views: &[&NodeView], name: &NodeName| views.iter().any(|view| view.name == *name);
    if is_there(control_plane, node) && !is_there(&members, node) {
        return Ok(());
    }
    let gone = recent.iter().filter(|name| !is_there(control_plane, name));
    let gone: Vec<&str> = gone.map(NodeName::as_str).collect();
    let all = members.len() + gone.len();
    let ready = members
        .iter()
        .filter(|member| member.ready && member.name != *node)
        .count();
    let majority = all / 2 + 1;
    if ready >= majority {
        return Ok(());
    }
    let never = if all <= 2 {
        ", which a control plane of one or two nodes never has"
    } else {
        ""
    };
    let counted = if gone.is_empty() {
        String::new()
    } else {
        format!("; gone for less than an hour: {}", gone.join(", "))
    };
    Err(format!(
        "without it etcd has {ready} of {all} members on Ready nodes, and needs {majority}{never}{counted}"
    ))
}

/// On OpenShift the budget of etcd tells, and where it has no room, whether the node's member is down already.
fn openshift_quorum(guards: &EtcdGuards, node: &NodeName) -> Result<(), String> {
    match guards.disruptions_allowed.as_slice() {
        [allowed] if *allowed >= 1 => Ok(()),
        [_] if guards.guards.get(node) == Some(&true) => {
            Err("etcd allows no disruption, and the node's member is healthy (its guard pod is Ready)".to_owned())
        }
        [_] => Ok(()),
        [] => Err("openshift-etcd has no PodDisruptionBudget to tell".to_owned()),
        several => Err(format!(
            "openshift-etcd has {} PodDisruptionBudgets, and which one counts is not known",
            several.len()
        )),
    }
}
