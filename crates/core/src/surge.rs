//! Surge: a pod that no budget lets go moves by a rollout of its Deployment, which starts another one first.
//!
//! [`obstacle`] says whether a pod may move so, [`Course::of`] how far it has come, both from [`Workloads`] alone.

mod course;
mod deployment;
#[cfg(test)]
mod tests;
mod whom;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::id::NamespacedName;
use crate::pod::{OwnerView, PodSummary, controller_of};

pub use nodeward_api::surge_record::SurgeRecord;

pub use course::{Course, End};
pub use deployment::DeploymentView;
pub use whom::{Obstacle, SurgeEvidence, obstacle};

/// Objects by name.
pub type Named<V> = Arc<BTreeMap<NamespacedName, Arc<V>>>;

/// What of a namespace decides about surges in it.
#[derive(Debug, Clone, Default)]
pub struct Workloads {
    pub deployments: Named<DeploymentView>,
    pub replica_sets: Named<ReplicaSetView>,
    pub pods: Named<PodSummary>,
    pub claims: Named<ClaimView>,
}

/// A ReplicaSet, as the link between a pod and its Deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSetView {
    pub uid: Arc<str>,
    pub owner: Option<OwnerView>,
}

impl ReplicaSetView {
    pub fn project(set: &ReplicaSet) -> Self {
        Self {
            uid: set.metadata.uid.as_deref().unwrap_or_default().into(),
            owner: controller_of(&set.metadata).map(OwnerView::project),
        }
    }
}

/// A PersistentVolumeClaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimView {
    /// Whether pods of many nodes may mount it.
    pub is_shared: bool,
}

impl ClaimView {
    pub fn project(claim: &PersistentVolumeClaim) -> Self {
        let granted = claim.status.as_ref().and_then(|status| status.access_modes.as_ref());
        let is_of_many = |mode: &String| matches!(mode.as_str(), "ReadWriteMany" | "ReadOnlyMany");
        Self {
            is_shared: granted.into_iter().flatten().any(is_of_many),
        }
    }
}

impl Workloads {
    /// The Deployment that has made the pod, through its ReplicaSet.
    pub fn deployment_of(&self, pod: &PodSummary) -> Option<&Arc<DeploymentView>> {
        let owner = self.owner_of_replica_set(pod)?;
        let deployment = self.deployments.get(&deployment_name(pod, owner)?)?;
        (deployment.uid == owner.uid).then_some(deployment)
    }

    /// The name of the Deployment that has made the pod.
    pub fn deployment_name(&self, pod: &PodSummary) -> Option<NamespacedName> {
        deployment_name(pod, self.owner_of_replica_set(pod)?)
    }

    fn owner_of_replica_set(&self, pod: &PodSummary) -> Option<&OwnerView> {
        let owner = pod.owner.as_deref()?;
        let set = self.replica_sets.get(&owned(pod, owner, "ReplicaSet")?)?;
        set.owner.as_ref().filter(|_| set.uid == owner.uid)
    }
}

fn deployment_name(pod: &PodSummary, owner: &OwnerView) -> Option<NamespacedName> {
    owned(pod, owner, "Deployment")
}

/// The name of this owner of a pod, or of its ReplicaSet, if it is of this kind.
fn owned(pod: &PodSummary, owner: &OwnerView, kind: &str) -> Option<NamespacedName> {
    let is_of_kind = owner.api_version.starts_with("apps/") && &*owner.kind == kind;
    is_of_kind.then(|| NamespacedName::new(Arc::clone(&pod.key.namespace), Arc::clone(&owner.name)))
}
