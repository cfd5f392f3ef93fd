//! One control-plane node at a time, and only while etcd keeps its quorum without it.

use nodeward_api::label::ETCD_ROLE;
use nodeward_api::reason::HealthReason;
use nodeward_core::id::NodeName;
use nodeward_core::lease::remediation_lease;
use nodeward_core::node::NodeView;

use super::Planner;
use super::case::Standing;
use super::start::Tally;
use crate::snapshot::{EtcdGuards, NodeFacts, Reading};

impl Planner<'_> {
    /// Whether a control-plane node may be remediated; others always may.
    ///
    /// # Errors
    /// With what stops it.
    pub(super) fn check_control_plane(&self, node: &NodeFacts, tally: &Tally<'_>) -> Result<(), Standing> {
        if !node.view.is_control_plane() {
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
            .index
            .control_plane
            .iter()
            .filter(|other| other.view.name != node.view.name);
        if let Some(other) = others.find(|other| self.index.is_drained_away(other, self.now)) {
            return away(format!("node {} is being drained", other.view.name));
        }
        self.check_unseen_remediations(node)?;
        let quorum = match &self.snapshot.etcd {
            Reading::Known(guards) => {
                let views: Vec<&NodeView> = self.index.control_plane.iter().map(|node| &node.view).collect();
                keeps_quorum(&node.view.name, &views, guards.as_ref())
            }
            Reading::Unknown(why) => Err(format!("it cannot be told: {why}")),
        };
        quorum.map_err(|text| Standing::new(HealthReason::EtcdQuorumAtRisk, text))
    }

    /// Whether somebody may be remediating another control-plane node though no remediation of it is seen: what cannot be told
    /// counts as one that is under way.
    fn check_unseen_remediations(&self, node: &NodeFacts) -> Result<(), Standing> {
        let away = |text: String| Standing::new(HealthReason::ControlPlaneNodeAway, text);
        let others = self.index.control_plane.iter().map(|other| &other.view.name);
        for other in others.filter(|other| **other != node.view.name) {
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

/// Whether etcd keeps its quorum without a node: `nodes` are all control-plane nodes, `guards` those of OpenShift.
///
/// # Errors
/// Why it would not, or cannot be told to.
pub fn keeps_quorum(node: &NodeName, nodes: &[&NodeView], guards: Option<&EtcdGuards>) -> Result<(), String> {
    match guards {
        Some(guards) => openshift_quorum(guards, node),
        None => majority_is_ready(node, nodes),
    }
}

/// Off OpenShift the nodes themselves tell: the other members that are Ready must be a majority of all. Members are the nodes
/// with the role etcd if any node has it, or else all.
fn majority_is_ready(node: &NodeName, nodes: &[&NodeView]) -> Result<(), String> {
    let has_role = |view: &&NodeView| view.labels.get(ETCD_ROLE).is_some();
    let mut members: Vec<&NodeView> = nodes.iter().copied().filter(has_role).collect();
    if members.is_empty() {
        members = nodes.to_vec();
    } else if members.iter().all(|member| member.name != *node) {
        return Ok(());
    }
    let all = members.len();
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
    Err(format!(
        "{ready} other members of etcd are on Ready nodes, and {majority} of {all} are needed{never}"
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
