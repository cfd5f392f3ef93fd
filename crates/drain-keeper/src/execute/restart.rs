//! Tells a pod's Deployment to roll, as `kubectl rollout restart` does, or takes that back.
//!
//! The pod gets the record first, the Deployment its annotation after that, each with UID and resourceVersion. Whoever finds the
//! record while the Deployment is still at the generation of the record does what was left to do; at any other generation it is
//! never told to roll again for this pod. Two leaders at once therefore restart it once.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use nodeward_api::annotation;
use nodeward_api::surge_record::SurgeRecord;
use nodeward_core::deadline::{to_the_second, whole_second};
use nodeward_core::id::NamespacedName;
use nodeward_core::pod::{PodProjector, PodView};
use nodeward_core::surge::{ClaimView, DeploymentView, ReplicaSetView, Workloads};
use nodeward_runtime::{ActionResult, ApiError};
use serde_json::{Value, json};

use super::force_pod::Forcing;
use super::{Forced, PassContext, PodResult};

/// As whom the API server knows the writer of the annotation.
const FIELD_MANAGER: &str = "nodeward-drain-keeper";

impl Forcing<'_> {
    /// Records the surge on the pod, unless that is done, and tells the Deployment to roll.
    pub(super) async fn restart(&self) -> Result<Forced, PodResult> {
        let (_permit, state) = self.permit_after_a_look().await?;
        let deployment = deployment_of(&self.action.pod, state.workloads.as_ref())?;
        let record = match &self.action.pod.surge.record {
            Some(Ok(record)) => record.clone(),
            _ => self.record_surge(&deployment).await?,
        };
        self.annotate(&deployment, Some(&to_the_second(record.at))).await?;
        Ok(Forced::Restarted {
            deployment: deployment.key.clone(),
            revision: deployment.revision,
        })
    }

    /// Puts the former time of a restart back, so that the old pod stays and the new one goes.
    pub(super) async fn undo_restart(&self) -> Result<Forced, PodResult> {
        let (_permit, state) = self.permit_after_a_look().await?;
        let pod = &self.action.pod;
        let deployment = deployment_of(pod, state.workloads.as_ref())?;
        self.annotate(&deployment, pod.surge.restarted_at.as_deref()).await?;
        Ok(Forced::RestartUndone(deployment.key.clone()))
    }

    async fn record_surge(&self, deployment: &DeploymentView) -> Result<SurgeRecord, PodResult> {
        let pod = &self.action.pod;
        let Some(surge) = &self.context.policy.surge else {
            return Err(ActionResult::Outdated("surges were disabled".to_owned()));
        };
        let at = whole_second(Timestamp::now());
        let record = SurgeRecord {
            deployment: deployment.uid.to_string(),
            generation: deployment.generation,
            at,
            until: surge.gives_up_at(at, deployment),
        };
        let patch = json!({ "metadata": {
            "uid": pod.uid, "resourceVersion": pod.resource_version,
            "annotations": { annotation::SURGED: record.to_string() },
        } });
        self.permits.check_act().await?;
        let pods: Api<Pod> = Api::namespaced(self.context.clients.requests.clone(), &pod.key.namespace);
        pods.patch_metadata(&pod.key.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(record)
    }

    async fn annotate(&self, deployment: &DeploymentView, restarted_at: Option<&str>) -> Result<(), PodResult> {
        let patch = restart_patch(deployment, restarted_at);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        self.permits.check_act().await?;
        let key = &deployment.key;
        let deployments: Api<Deployment> = Api::namespaced(self.context.clients.requests.clone(), &key.namespace);
        let patched = deployments.patch(&key.name, &params, &Patch::Merge(&patch)).await;
        match patched.map_err(ApiError::from) {
            Ok(_) => Ok(()),
            Err(ApiError::Conflict | ApiError::NotFound) => {
                Err(ActionResult::Outdated(format!("Deployment {key} has changed")))
            }
            Err(error) => Err(ActionResult::Failed(error)),
        }
    }
}

fn restart_patch(deployment: &DeploymentView, restarted_at: Option<&str>) -> Value {
    json!({
        "metadata": { "uid": deployment.uid, "resourceVersion": deployment.resource_version },
        "spec": { "template": { "metadata": { "annotations": { annotation::RESTARTED_AT: restarted_at } } } },
    })
}

fn deployment_of(pod: &PodView, workloads: Option<&Workloads>) -> Result<Arc<DeploymentView>, PodResult> {
    let found = workloads.and_then(|workloads| workloads.deployment_of(pod)).cloned();
    found.ok_or_else(|| ActionResult::Outdated("its Deployment is gone".to_owned()))
}

/// What decides about a surge of the pod, as it stands now.
pub(super) async fn workloads(pod: &PodView, context: &PassContext) -> Result<Workloads, ApiError> {
    let (namespace, client) = (&pod.key.namespace, || context.clients.requests.clone());
    let key = |name: Option<String>| NamespacedName::new(Arc::clone(namespace), name.unwrap_or_default());
    let sets: Api<ReplicaSet> = Api::namespaced(client(), namespace);
    let sets = sets.list(&ListParams::default()).await?.items.into_iter();
    let pods: Api<Pod> = Api::namespaced(client(), namespace);
    let mut projector = PodProjector::default();
    let pods = pods.list(&ListParams::default()).await?.items.into_iter();
    let mut workloads = Workloads {
        replica_sets: Arc::new(
            sets.map(|set| {
                let view = Arc::new(ReplicaSetView::project(&set));
                (key(set.metadata.name), view)
            })
            .collect(),
        ),
        pods: Arc::new(
            pods.filter_map(|pod| {
                let summary = projector.project(&pod)?;
                Some((key(pod.metadata.name), Arc::new(summary)))
            })
            .collect(),
        ),
        ..Workloads::default()
    };
    let Some(name) = workloads.deployment_name(pod) else {
        return Ok(workloads);
    };
    let deployments: Api<Deployment> = Api::namespaced(client(), namespace);
    let found = deployments.get_opt(&name.name).await?;
    let Some(view) = found.as_ref().and_then(DeploymentView::project).map(Arc::new) else {
        return Ok(workloads);
    };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client(), namespace);
    let mut mounted = std::collections::BTreeMap::new();
    for claim in &view.claims {
        if let Some(found) = claims.get_opt(claim).await? {
            mounted.insert(key(found.metadata.name.clone()), Arc::new(ClaimView::project(&found)));
        }
    }
    workloads.claims = Arc::new(mounted);
    workloads.deployments = Arc::new([(name, view)].into());
    Ok(workloads)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::restart(Some("2026-01-01T00:02:00Z"), json!("2026-01-01T00:02:00Z"))]
    #[case::put_back(Some("before"), json!("before"))]
    #[case::there_was_none(None, Value::Null)]
    fn patch_changes_the_annotation_of_the_read_version(#[case] at: Option<&str>, #[case] expected: Value) {
        let deployment = json!({
            "metadata": { "namespace": "shop", "name": "web", "uid": "u", "resourceVersion": "9" },
            "spec": { "selector": {}, "template": {} },
        });
        let deployment = DeploymentView::project(&serde_json::from_value(deployment).unwrap()).unwrap();
        let patch = json!({
            "metadata": { "uid": "u", "resourceVersion": "9" },
            "spec": { "template": { "metadata": { "annotations": { "kubectl.kubernetes.io/restartedAt": expected } } } },
        });
        assert_eq!(restart_patch(&deployment, at), patch);
    }
}
