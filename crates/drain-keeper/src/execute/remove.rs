//! Deletes: with the pod's own grace once its budget is overridden, and without grace where it is stuck.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use nodeward_core::strategy::StrategyName;
use nodeward_runtime::Refusal;

use crate::plan::PodAction;

use super::recheck::Doubt;
use super::{Outcome, Pass};

/// Deletes with the pod's own grace.
pub(super) async fn delete_with_grace(pass: &Pass, action: &PodAction) -> Outcome {
    let preconditions = Preconditions {
        uid: Some(action.pod.uid.as_str().to_owned()),
        resource_version: None,
    };
    let params = DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    delete(pass, action, &params, Outcome::BudgetOverridden).await
}

/// Deletes without grace a pod that should long be gone: once node and budgets, read anew, still say so.
pub(super) async fn delete_now(pass: &Pass, action: &PodAction) -> Outcome {
    if let Err(doubt) = pass.recheck.node_still_drains(action, &pass.policy).await {
        return doubt.into();
    }
    let budgets = match pass.recheck.budgets_of(action).await {
        Ok(budgets) => budgets,
        Err(doubt) => return doubt.into(),
    };
    if action.strategy == StrategyName::StuckTerminating && !budgets.is_empty() {
        return Doubt::Changed(format!("budget {} selects the pod now", budgets[0].key)).into();
    }
    if let Some(budget) = budgets.iter().find(|budget| budget.never_forced || budget.ceph) {
        return Doubt::Changed(format!("budget {} is never overridden", budget.key)).into();
    }
    if !pass.leadership.is_leading_now() {
        return Outcome::NotLeading;
    }
    let preconditions = Preconditions {
        uid: Some(action.pod.uid.as_str().to_owned()),
        resource_version: Some(action.pod.resource_version.as_str().to_owned()),
    };
    let params = DeleteParams {
        preconditions: Some(preconditions),
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    delete(pass, action, &params, Outcome::DeletedNow).await
}

async fn delete(pass: &Pass, action: &PodAction, params: &DeleteParams, done: Outcome) -> Outcome {
    let pods: Api<Pod> = Api::namespaced(pass.clients.requests.clone(), &action.pod.key.namespace);
    match pods.delete(&action.pod.key.name, params).await {
        Ok(_) => done,
        Err(error) => match Refusal::from(&error) {
            Refusal::Gone => Outcome::Gone,
            Refusal::Conflict => Outcome::Outdated("the pod has changed".to_owned()),
            refusal => Outcome::Failed(refusal),
        },
    }
}
