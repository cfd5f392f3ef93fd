//! Remove stale entries from a budget's status, on top of nothing but the status that was read.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::Patch;
use serde_json::{Map, Value, json};

use crate::plan::stale_entries::StaleEntries;

use super::{ExecutorContext, Written};

/// Removes them. Somebody else's write of the budget in between, the disruption controller's too, makes it outdated.
pub(super) async fn remove(context: &ExecutorContext, stale: &StaleEntries) -> Written {
    let _permit = context.permits.next_write().await?;
    let budgets: Api<PodDisruptionBudget> = context.api_in(&stale.budget.namespace);
    let patch = Patch::Merge(patch(stale));
    budgets
        .patch_status(&stale.budget.name, &context.patch_params(), &patch)
        .await?;
    Ok(())
}

fn patch(stale: &StaleEntries) -> Value {
    let disrupted: Map<String, Value> = stale.pods.iter().map(|pod| (pod.clone(), Value::Null)).collect();
    json!({
        "metadata": { "uid": stale.uid, "resourceVersion": stale.resource_version },
        "status": { "disruptedPods": disrupted },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_names_only_its_preconditions() {
        let stale = StaleEntries {
            budget: nodeward_core::id::BudgetKey::new("shop", "web"),
            uid: "u1".into(),
            resource_version: "7".into(),
            pods: ["web-1".to_owned()].into(),
        };
        assert_eq!(
            patch(&stale),
            json!({
                "metadata": { "uid": "u1", "resourceVersion": "7" },
                "status": { "disruptedPods": { "web-1": null } },
            })
        );
    }
}
