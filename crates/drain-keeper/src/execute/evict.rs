//! Evict: the server decides.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, EvictParams, PostParams, Preconditions};
use nodeward_runtime::ApiError;

use crate::plan::PodAction;

use super::{BudgetRefusal, Outcome, Pass};

/// Asks the eviction API, which deletes the pod with its own grace unless a budget stands in the way.
pub(super) async fn evict(pass: &Pass, action: &PodAction) -> Outcome {
    let pods: Api<Pod> = Api::namespaced(pass.clients.requests.clone(), &action.pod.key.namespace);
    let params = EvictParams {
        delete_options: Some(DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(action.pod.uid.as_str().to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        }),
        post_options: PostParams::default(),
    };
    let Err(error) = pods.evict(&action.pod.key.name, &params).await else {
        return Outcome::Evicted;
    };
    match ApiError::from(&error) {
        ApiError::RefusedByBudget { retry_after } => Outcome::RefusedByBudget(BudgetRefusal {
            retry_after,
            wait: None,
        }),
        // The API answers 500 to every eviction of a pod that several budgets select.
        ApiError::Server { code: 500, .. } if pass.snapshot.budgets.matching(&action.pod).len() > 1 => {
            Outcome::RefusedByBudget(BudgetRefusal::default())
        }
        ApiError::NamespaceTerminating => Outcome::NamespaceTerminating,
        ApiError::NotFound => Outcome::Gone,
        ApiError::Conflict => Outcome::Outdated("another pod has its name now".to_owned()),
        refusal => Outcome::Failed(refusal),
    }
}
