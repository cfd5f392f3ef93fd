//! Override a budget: record it on the budget, then delete the pod with its own grace.
//!
//! The record is one patch of the budget's status with its resource version: it names the pod in `disruptedPods`, as the
//! eviction handler does, and sets the annotation of the last override. Two leaders at once, or one that was restarted,
//! therefore never override one budget for two pods: the second patch is a conflict. The disruption controller takes the
//! pod out of `disruptedPods` once it has counted its going, so a controller that stands still is noticed too.

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::annotation;
use nodeward_api::last_override::LastOverride;
use nodeward_core::budget::BudgetView;
use nodeward_core::deadline::to_the_second;
use nodeward_runtime::ApiError;
use serde_json::json;

use crate::plan::PodAction;
use crate::plan::override_rule::{Evidence, may_override};

use super::recheck::{Doubt, Grounds};
use super::{BudgetRefusal, Outcome, Pass, remove};

/// Overrides all budgets that select the pod, if node and budgets, read anew, still allow it, and deletes the pod.
pub(super) async fn override_and_delete(pass: &Pass, action: &PodAction, refusal: BudgetRefusal) -> Outcome {
    let Grounds { budgets, holds } = match Box::pin(pass.recheck.still_allows(action, pass)).await {
        Ok(grounds) => grounds,
        Err(doubt) => return doubt.into(),
    };
    if budgets.is_empty() {
        return Doubt::Changed("no budget selects the pod any more".to_owned()).into();
    }
    let now = Timestamp::now();
    // A refusal also says "not counted yet", and room may have come since: then the next eviction passes. But not where
    // drain-lock refuses it for a claim, which is beyond its limit by now.
    let may_pass = |budget: &BudgetView| {
        budget.room(&action.pod).is_there() && !holds.is_outlasted(&budget.key, &action.node_uid, now)
    };
    let is_worth_another = matches!(budgets.as_slice(), [budget] if may_pass(budget));
    if is_worth_another || budgets.iter().any(|budget| !budget.is_status_current()) {
        return Outcome::RefusedByBudget(refusal);
    }
    for budget in &budgets {
        let evidence = Evidence::of(budget, &pass.snapshot);
        if let Err(wait) = may_override(budget, &action.pod, &evidence, pass.policy.override_spacing, now) {
            return Outcome::RefusedByBudget(BudgetRefusal {
                wait: Some(wait),
                ..refusal
            });
        }
    }
    for budget in &budgets {
        if let Err(outcome) = pass.may_force() {
            return outcome;
        }
        if let Err(error) = record(pass, action, budget, now).await {
            return match ApiError::from(&error) {
                ApiError::Conflict | ApiError::NotFound => {
                    Outcome::Outdated(format!("budget {} has changed", budget.key))
                }
                refusal => Outcome::Failed(refusal),
            };
        }
    }
    let overridden = budgets.iter().map(|budget| budget.key.clone()).collect();
    Box::pin(remove::delete_with_grace(pass, action, overridden)).await
}

async fn record(pass: &Pass, action: &PodAction, budget: &BudgetView, now: Timestamp) -> Result<(), kube::Error> {
    let record = LastOverride {
        at: now,
        pod: action.pod.key.name.to_string(),
        uid: action.pod.uid.as_str().to_owned(),
    };
    let disrupted_at = to_the_second(now);
    let patch = json!({
        "metadata": {
            "uid": budget.uid,
            "resourceVersion": budget.resource_version,
            "annotations": { annotation::LAST_OVERRIDE: record.to_string() },
        },
        "status": { "disruptedPods": { &*action.pod.key.name: disrupted_at } },
    });
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(pass.clients.requests.clone(), &budget.key.namespace);
    budgets
        .patch_status(&budget.key.name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map(|_| ())
}
