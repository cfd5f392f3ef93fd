//! Whether a pod that its budget keeps on a cordoned node would move by a rollout of its Deployment: what drain-keeper does with
//! `surge.enabled`, and a person with kubectl.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use nodeward_core::budget::{BudgetView, DisruptionAllowance, NoAllowance};
use nodeward_core::id::NamespacedName;
use nodeward_core::node::{NodeView, UNSCHEDULABLE_TAINT, UNSCHEDULABLE_TAINT_EFFECT};
use nodeward_core::pod::{PodProjector, PodView};
use nodeward_core::surge::{ClaimView, DeploymentView, Named, ReplicaSetView, SurgeEvidence, Workloads, obstacle};
use serde::Serialize;

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
    let client = reader.cluster.client.clone();
    let all = ListParams::default;
    let (sets, deployments) = (
        Api::namespaced(client.clone(), namespace),
        Api::namespaced(client.clone(), namespace),
    );
    let (pods, claims) = (
        Api::namespaced(client.clone(), namespace),
        Api::namespaced(client, namespace),
    );
    let mut projector = PodProjector::default();
    let sets = reader.list("replicasets", sets, all(), |set: ReplicaSet| {
        Some((named(&set), Arc::new(ReplicaSetView::project(&set))))
    });
    let sets = sets.await?;
    let deployments = reader.list("deployments", deployments, all(), |deployment: Deployment| {
        Some((named(&deployment), Arc::new(DeploymentView::project(&deployment)?)))
    });
    let deployments = deployments.await?;
    let pods = reader.list("pods", pods, all(), |pod: Pod| {
        Some((named(&pod), Arc::new(projector.project(&pod)?)))
    });
    let pods = pods.await?;
    let claims = reader.list(
        "persistentvolumeclaims",
        claims,
        all(),
        |claim: PersistentVolumeClaim| Some((named(&claim), Arc::new(ClaimView::project(&claim)))),
    );
    let claims = claims.await?;
    let (Some(sets), Some(deployments), Some(pods), Some(claims)) = (sets, deployments, pods, claims) else {
        return Ok(None);
    };
    Ok(Some(Workloads {
        replica_sets: by_name(sets),
        deployments: by_name(deployments),
        pods: by_name(pods),
        claims: by_name(claims),
    }))
}

fn named(object: &impl ResourceExt) -> NamespacedName {
    NamespacedName::new(object.namespace().unwrap_or_default(), object.name_any())
}

fn by_name<V>(objects: Vec<Option<(NamespacedName, Arc<V>)>>) -> Named<V> {
    Arc::new(objects.into_iter().flatten().collect())
}
