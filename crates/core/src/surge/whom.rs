//! Which pods may move by a rollout of their Deployment.

use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::reason::SurgeObstacle;

use crate::budget::BudgetView;
use crate::deadline::{is_due, saturating_add, to_the_second};
use crate::id::{NamespacedName, PodKey};
use crate::node::Taint;
use crate::pod::PodView;

use super::{DeploymentView, Workloads};

/// What the decision about a pod rests on.
#[derive(Clone, Copy)]
pub struct SurgeEvidence<'a> {
    pub pod: &'a PodView,
    /// The budgets that select it.
    pub budgets: &'a [Arc<BudgetView>],
    /// Of the pod's node.
    pub cordon: Option<&'a Taint>,
    /// Of the pod's namespace.
    pub workloads: &'a Workloads,
    /// How long a Deployment that was restarted is left alone.
    pub spacing: SignedDuration,
}

/// Why a pod may not move by a rollout of its Deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    pub reason: SurgeObstacle,
    /// More on it; empty if there is no more to say.
    pub detail: String,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: it {}", self.reason, self.reason.explanation())?;
        if self.detail.is_empty() {
            return Ok(());
        }
        write!(f, " ({})", self.detail)
    }
}

impl From<SurgeObstacle> for Obstacle {
    fn from(reason: SurgeObstacle) -> Self {
        Self {
            reason,
            detail: String::new(),
            until: None,
        }
    }
}

/// The Deployment by whose rollout the pod may move.
///
/// # Errors
/// With the first condition that does not hold.
pub fn obstacle<'a>(evidence: &SurgeEvidence<'a>, now: Timestamp) -> Result<&'a Arc<DeploymentView>, Obstacle> {
    let SurgeEvidence {
        pod,
        budgets,
        workloads,
        ..
    } = *evidence;
    let named = |reason, detail: String| Obstacle {
        detail,
        ..Obstacle::from(reason)
    };
    let [budget] = budgets else {
        return Err(SurgeObstacle::NotOneBudget.into());
    };
    if budget.ceph {
        return Err(SurgeObstacle::CephBudget.into());
    }
    let deployment = workloads.deployment_of(pod).ok_or(SurgeObstacle::NoDeployment)?;
    if pod.surge.is_refused || deployment.is_refused {
        return Err(SurgeObstacle::SurgeOptedOut.into());
    }
    // Two available pods open the budget, and a drain may take any pod that it selects.
    if let Some(other) = other_pod(budget, deployment, workloads) {
        return Err(named(SurgeObstacle::SharedBudget, other.to_string()));
    }
    if deployment.replicas != 1 {
        return Err(named(SurgeObstacle::NotOneReplica, deployment.replicas.to_string()));
    }
    if deployment.is_managed {
        return Err(SurgeObstacle::ManagedDeployment.into());
    }
    if deployment.is_being_deleted {
        return Err(SurgeObstacle::DeploymentDeleting.into());
    }
    if deployment.is_paused {
        return Err(SurgeObstacle::RolloutPaused.into());
    }
    if !deployment.is_new_first {
        return Err(SurgeObstacle::NotNewFirst.into());
    }
    if !deployment.awaits_readiness {
        return Err(SurgeObstacle::NoReadiness.into());
    }
    let tolerates = |cordon: &Taint| cordon.tolerated_by(&deployment.tolerations).is_some();
    if evidence.cordon.is_some_and(tolerates) {
        return Err(SurgeObstacle::ToleratesCordon.into());
    }
    if deployment.names_node {
        return Err(SurgeObstacle::NamesNode.into());
    }
    if let Some(volume) = unshared_volume(deployment, workloads) {
        return Err(named(SurgeObstacle::UnsharedVolume, volume.to_string()));
    }
    if !deployment.is_complete {
        return Err(SurgeObstacle::RolloutIncomplete.into());
    }
    let restarted = deployment.restarted_at.as_ref().and_then(|text| text.parse().ok());
    let until = restarted.map(|at: Timestamp| saturating_add(at, evidence.spacing));
    if let Some(until) = until.filter(|until| !is_due(*until, now)) {
        return Err(Obstacle {
            until: Some(until),
            ..named(
                SurgeObstacle::RestartedLately,
                format!("until {}", to_the_second(until)),
            )
        });
    }
    Ok(deployment)
}

fn other_pod<'a>(budget: &BudgetView, of: &DeploymentView, workloads: &'a Workloads) -> Option<&'a PodKey> {
    let mut pods = workloads.pods.values();
    let other = pods.find(|pod| {
        let is_of = workloads
            .deployment_of(pod)
            .is_some_and(|deployment| deployment.uid == of.uid);
        budget.selector.matches(&pod.labels) && !pod.is_finished() && !is_of
    });
    other.map(|pod| &pod.key)
}

fn unshared_volume<'a>(deployment: &'a DeploymentView, workloads: &Workloads) -> Option<&'a Arc<str>> {
    let is_unshared = |claim: &&Arc<str>| {
        let key = NamespacedName::new(Arc::clone(&deployment.key.namespace), Arc::clone(claim));
        !workloads.claims.get(&key).is_some_and(|claim| claim.is_shared)
    };
    deployment
        .unshared_volume
        .as_ref()
        .or_else(|| deployment.claims.iter().find(is_unshared))
}
