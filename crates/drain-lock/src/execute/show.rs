//! What is written for people only: statuses, and who has a budget.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::{DisruptionHold, NodeDrain, annotation};
use serde_json::json;

use crate::report::Show;

use super::{Done, Means};

/// Writes one of them.
pub(super) async fn write(means: &Means, show: Show) -> Done {
    let client = means.clients.requests.clone();
    let params = PatchParams::default();
    let written = match &show {
        Show::Drain { name, uid, status } => {
            let patch = json!({ "metadata": { "uid": uid }, "status": status });
            let drains: Api<NodeDrain> = Api::all(client);
            drains
                .patch_status(name, &params, &Patch::Merge(&patch))
                .await
                .map(drop)
        }
        Show::Hold { key, uid, status } => {
            let patch = json!({ "metadata": { "uid": uid }, "status": status });
            let holds: Api<DisruptionHold> = Api::namespaced(client, &key.namespace);
            holds
                .patch_status(&key.name, &params, &Patch::Merge(&patch))
                .await
                .map(drop)
        }
        Show::LockedBy { key, uid, nodes } => {
            let patch = json!({ "metadata": { "uid": uid, "annotations": { annotation::LOCKED_BY: nodes } } });
            let budgets: Api<PodDisruptionBudget> = Api::namespaced(client, &key.namespace);
            budgets
                .patch_metadata(&key.name, &params, &Patch::Merge(&patch))
                .await
                .map(drop)
        }
    };
    match written {
        Ok(()) => Done::Acted,
        Err(error) => error.into(),
    }
}
