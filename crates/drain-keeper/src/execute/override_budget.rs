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
use nodeward_api::drain_clock::LastOverride;
use nodeward_core::budget::BudgetView;
use nodeward_runtime::Refusal;
use serde_json::json;

use crate::plan::PodAction;
use crate::plan::turn::{evidence_of, may_override};

use super::recheck::Doubt;
use super::{BudgetRefusal, Outcome, Pass, remove};

/// Overrides all budgets that select the pod, if node and budgets, read anew, still allow it, and deletes the pod.
pub(super) async fn override_and_delete(pass: &Pass, action: &PodAction, refusal: BudgetRefusal) -> Outcome {
    if let Err(doubt) = pass.recheck.node_still_drains(action, &pass.policy).await {
        return doubt.into();
    }
    let budgets = match pass.recheck.budgets_of(action).await {
        Ok(budgets) => budgets,
        Err(doubt) => return doubt.into(),
    };
    if budgets.is_empty() {
        return Doubt::Changed("no budget selects the pod any more".to_owned()).into();
    }
    let now = Timestamp::now();
    for budget in &budgets {
        if let Some(why) = is_off_limits(budget, pass, action, now) {
            return Doubt::Changed(why).into();
        }
        let evidence = evidence_of(budget, &pass.snapshot);
        if let Err(wait) = may_override(budget, &action.pod.uid, &evidence, pass.policy.override_spacing, now) {
            return Outcome::RefusedByBudget(BudgetRefusal {
                wait: Some(wait),
                ..refusal
            });
        }
    }
    for budget in &budgets {
        if !pass.leadership.is_leading_now() {
            return Outcome::NotLeading;
        }
        if let Err(error) = record(pass, action, budget, now).await {
            return match Refusal::from(&error) {
                Refusal::Conflict | Refusal::Gone => Outcome::Outdated(format!("budget {} has changed", budget.key)),
                refusal => Outcome::Failed(refusal),
            };
        }
    }
    remove::delete_with_grace(pass, action).await
}

/// Why a budget is not to be overridden at all.
fn is_off_limits(budget: &BudgetView, pass: &Pass, action: &PodAction, now: Timestamp) -> Option<String> {
    if budget.never_forced || budget.ceph {
        return Some(format!("budget {} is never overridden", budget.key));
    }
    let held = pass
        .snapshot
        .holds
        .iter()
        .any(|hold| hold.budget == budget.key && hold.stands_against(&action.node, now));
    held.then(|| format!("budget {} is held", budget.key))
}

async fn record(pass: &Pass, action: &PodAction, budget: &BudgetView, now: Timestamp) -> Result<(), kube::Error> {
    let record = LastOverride {
        at: now,
        pod: action.pod.key.name.to_string(),
        uid: action.pod.uid.as_str().to_owned(),
    };
    let disrupted_at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
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
