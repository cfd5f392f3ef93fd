//! Remove the finalizers that keep a terminating pod, but the protected ones: once node and budgets, read anew, still
//! allow it.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_runtime::ApiError;
use serde_json::json;

use crate::plan::PodAction;

use super::{Outcome, Pass};

/// Patches the pod as it was seen: any change of it since makes this a conflict, and the plan is made anew.
pub(super) async fn remove(pass: &Pass, action: &PodAction) -> Outcome {
    if let Err(doubt) = Box::pin(pass.recheck.still_allows(action, pass)).await {
        return doubt.into();
    }
    if let Err(outcome) = pass.may_force() {
        return outcome;
    }
    let protected = &pass.policy.protected_finalizers;
    let (kept, removed): (Vec<String>, Vec<String>) = action
        .pod
        .finalizers
        .iter()
        .cloned()
        .partition(|finalizer| protected.contains(finalizer));
    let patch = json!({
        "metadata": {
            "uid": action.pod.uid,
            "resourceVersion": action.pod.resource_version,
            "finalizers": kept,
        },
    });
    let pods: Api<Pod> = Api::namespaced(pass.clients.requests.clone(), &action.pod.key.namespace);
    match pods
        .patch_metadata(&action.pod.key.name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Ok(_) => Outcome::FinalizersRemoved(removed),
        Err(error) => match ApiError::from(&error) {
            ApiError::NotFound => Outcome::Gone,
            ApiError::Conflict => Outcome::Outdated("the pod has changed".to_owned()),
            refusal => Outcome::Failed(refusal),
        },
    }
}
