//! Write a retained pod into its budget's status, or take it out, on top of nothing but the status that was read.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::Patch;
use nodeward_core::deadline::to_the_second;
use serde_json::{Map, Value, json};

use crate::plan::reservation::Reservation;

use super::{ExecutorContext, Written};

/// Writes it. Somebody else's write of the budget in between, the disruption controller's too, makes it outdated.
pub(super) async fn write(context: &ExecutorContext, reservation: &Reservation) -> Written {
    let _permit = context.permits.next_write().await?;
    let budgets: Api<PodDisruptionBudget> = context.api_in(&reservation.budget.namespace);
    let patch = Patch::Merge(patch(reservation));
    budgets
        .patch_status(&reservation.budget.name, &context.patch_params(), &patch)
        .await?;
    Ok(())
}

fn patch(reservation: &Reservation) -> Value {
    let reserved = reservation
        .reserved
        .iter()
        .map(|(pod, at)| (pod.clone(), json!(to_the_second(*at))));
    let released = reservation.released.iter().map(|pod| (pod.clone(), Value::Null));
    let disrupted: Map<String, Value> = reserved.chain(released).collect();
    json!({
        "metadata": { "uid": reservation.uid, "resourceVersion": reservation.resource_version },
        "status": { "disruptedPods": disrupted, "disruptionsAllowed": reservation.disruptions_allowed },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_patch_names_only_its_preconditions() {
        let reservation = Reservation {
            budget: nodeward_core::id::BudgetKey::new("shop", "web"),
            uid: "u1".into(),
            resource_version: "7".into(),
            reserved: [("web-0".to_owned(), "2026-01-01T00:13:00Z".parse().unwrap())].into(),
            released: ["web-1".to_owned()].into(),
            disruptions_allowed: 0,
        };
        assert_eq!(
            patch(&reservation),
            json!({
                "metadata": { "uid": "u1", "resourceVersion": "7" },
                "status": {
                    "disruptedPods": { "web-0": "2026-01-01T00:13:00Z", "web-1": null },
                    "disruptionsAllowed": 0,
                },
            })
        );
    }
}
