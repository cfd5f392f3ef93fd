//! Deletes: with the pod's own grace once its budget is overridden, and without grace where it is stuck.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use nodeward_core::id::BudgetKey;
use nodeward_runtime::ApiError;

use crate::plan::PodAction;

use super::{Outcome, Pass};

/// Deletes with the pod's own grace, and only the very version that was judged: one that has been labelled since, to opt
/// out or to come under another budget, is judged anew.
pub(super) async fn delete_with_grace(pass: &Pass, action: &PodAction, overridden: Vec<BudgetKey>) -> Outcome {
    let params = DeleteParams {
        preconditions: Some(as_judged(action)),
        ..DeleteParams::default()
    };
    delete(pass, action, &params, Outcome::BudgetOverridden(overridden)).await
}

/// Deletes without grace a pod that should long be gone: once node and budgets, read anew, still say so.
pub(super) async fn delete_now(pass: &Pass, action: &PodAction) -> Outcome {
    if let Err(doubt) = Box::pin(pass.recheck.still_allows(action, pass)).await {
        return doubt.into();
    }
    if let Err(outcome) = pass.may_force() {
        return outcome;
    }
    let params = DeleteParams {
        preconditions: Some(as_judged(action)),
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    delete(pass, action, &params, Outcome::DeletedNow).await
}

fn as_judged(action: &PodAction) -> Preconditions {
    Preconditions {
        uid: Some(action.pod.uid.as_str().to_owned()),
        resource_version: Some(action.pod.resource_version.as_str().to_owned()),
    }
}

async fn delete(pass: &Pass, action: &PodAction, params: &DeleteParams, done: Outcome) -> Outcome {
    let pods: Api<Pod> = Api::namespaced(pass.clients.requests.clone(), &action.pod.key.namespace);
    match pods.delete(&action.pod.key.name, params).await {
        Ok(_) => done,
        Err(error) => match ApiError::from(&error) {
            ApiError::NotFound => Outcome::Gone,
            ApiError::Conflict => Outcome::Outdated("the pod has changed".to_owned()),
            refusal => Outcome::Failed(refusal),
        },
    }
}
