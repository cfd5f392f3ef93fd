//! Whether a pod that its budget keeps on a cordoned node would move by a rollout of its Deployment: what drain-keeper does with
//! `surge.enabled`, and a person with kubectl.

use std::fmt::Debug;
use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use nodeward_core::budget::{BudgetView, DisruptionAllowance, NoAllowance};
use nodeward_core::id::NamespacedName;
use nodeward_core::node::{NodeView, UNSCHEDULABLE_TAINT, UNSCHEDULABLE_TAINT_EFFECT};
use nodeward_core::pod::{PodProjector, PodView};
use nodeward_core::surge::{ClaimView, DeploymentView, Named, ReplicaSetView, SurgeEvidence, Workloads, obstacle};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::fetch::Reader;

/// What a rollout would do for a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Rollout {
    /// One of this Deployment would move it.
    Moves(String),
    /// None would, for this reason.
    MovesNot(String),
}

impl Rollout {
    /// What one would do for a pod that no eviction moves; `None` where that is no question, or cannot be told.
    pub async fn of(
        reader: &mut Reader<'_>,
        pod: &PodView,
        budgets: &[&Arc<BudgetView>],
        node: Option<&Node>,
    ) -> Result<Option<Self>, Failure> {
        let is_refused =
            |budget: &&Arc<BudgetView>| budget.allowance(pod) == DisruptionAllowance::None(NoAllowance::Exhausted);
        let is_of_replica_set = pod.owner.as_ref().is_some_and(|owner| &*owner.kind == "ReplicaSet");
        let node = node.and_then(NodeView::project).filter(|node| node.unschedulable);
        let ([budget], Some(node), true, true) = (budgets, node, is_of_replica_set, pod.surge.record.is_none()) else {
            return Ok(None);
        };
        if !is_refused(budget) {
            return Ok(None);
        }
        let Some(workloads) = workloads(reader, &pod.key.namespace).await? else {
            return Ok(None);
        };
        let evidence = SurgeEvidence {
            pod,
            budgets: &[Arc::clone(budget)],
            cordon: node.taint(UNSCHEDULABLE_TAINT, Some(UNSCHEDULABLE_TAINT_EFFECT)),
            workloads: &workloads,
            spacing: SignedDuration::ZERO,
        };
        Ok(Some(match obstacle(&evidence, reader.now) {
            Ok(deployment) => Self::Moves(deployment.key.name.to_string()),
            Err(obstacle) => Self::MovesNot(obstacle.to_string()),
        }))
    }
}

/// What decides about it in the namespace; `None` where the caller may not read all of it.
async fn workloads(reader: &mut Reader<'_>, namespace: &str) -> Result<Option<Workloads>, Failure> {
    let mut projector = PodProjector::default();
    let set = |set: &ReplicaSet| Some(ReplicaSetView::project(set));
    let sets = by_name(reader, "replicasets", namespace, set).await?;
    let deployments = by_name(reader, "deployments", namespace, DeploymentView::project).await?;
    let pods = by_name(reader, "pods", namespace, |pod: &Pod| projector.project(pod)).await?;
    let claim = |claim: &PersistentVolumeClaim| Some(ClaimView::project(claim));
    let claims = by_name(reader, "persistentvolumeclaims", namespace, claim).await?;
    let (Some(replica_sets), Some(deployments), Some(pods), Some(claims)) = (sets, deployments, pods, claims) else {
        return Ok(None);
    };
    Ok(Some(Workloads {
        replica_sets,
        deployments,
        pods,
        claims,
    }))
}

/// The objects of the namespace, as `project` sees them.
async fn by_name<K, V>(
    reader: &mut Reader<'_>,
    what: &'static str,
    namespace: &str,
    mut project: impl FnMut(&K) -> Option<V>,
) -> Result<Option<Named<V>>, Failure>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let named = |object: K| {
        let name = NamespacedName::new(object.namespace().unwrap_or_default(), object.name_any());
        Some((name, Arc::new(project(&object)?)))
    };
    let found = reader.list_as(
        what,
        reader.cluster.within(Some(namespace)),
        ListParams::default(),
        named,
    );
    Ok(found
        .await?
        .map(|found| Arc::new(found.into_iter().flatten().collect())))
}
