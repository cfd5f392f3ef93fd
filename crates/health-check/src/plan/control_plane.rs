//! One control-plane node at a time, and only while etcd keeps its quorum without it.

use nodeward_api::reason::HealthReason;

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
        let quorum = match &self.snapshot.etcd {
            Reading::Known(Some(guards)) => openshift_quorum(guards, node),
            Reading::Known(None) => self.quorum(node),
            Reading::Unknown(why) => Err(format!("it cannot be told: {why}")),
        };
        quorum.map_err(|text| Standing::new(HealthReason::EtcdQuorumAtRisk, text))
    }

    /// Off OpenShift the nodes themselves tell: the other Ready ones must be a majority of all.
    fn quorum(&self, node: &NodeFacts) -> Result<(), String> {
        let all = self.index.control_plane.len();
        let others = self
            .index
            .control_plane
            .iter()
            .filter(|other| other.view.name != node.view.name);
        let ready = others.filter(|other| other.view.ready).count();
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
            "{ready} other control-plane nodes are Ready and {majority} of {all} are needed{never}"
        ))
    }
}

/// On OpenShift the budget of etcd tells, and where it has no room, whether the node's member is down already.
fn openshift_quorum(guards: &EtcdGuards, node: &NodeFacts) -> Result<(), String> {
    match guards.disruptions_allowed.as_slice() {
        [allowed] if *allowed >= 1 => Ok(()),
        [_] if guards.guards.get(&node.view.name) == Some(&true) => {
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
