//! What is written for people only: statuses, and who has a budget.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::{DisruptionHold, NodeDrain, annotation};
use nodeward_core::id::{BudgetKey, NamespacedName};
use serde_json::{Value, json};

use crate::plan::stale_budget::Touch;

use super::{ExecutorContext, Written};

/// What [`StatusUpdate::LockedBy`] and [`touch`] write: of a budget, never both at once.
pub(super) const BUDGET_ANNOTATION: &str = "annotation of budget";

/// Something that is written for people only.
#[derive(Debug, Clone, PartialEq)]
pub enum StatusUpdate {
    /// The status of a NodeDrain: what of it changes.
    Drain {
        name: String,
        uid: String,
        /// The fields that change; null where one goes.
        status: Value,
    },
    /// The status of a DisruptionHold: what of it changes.
    Hold {
        key: NamespacedName,
        uid: String,
        /// The fields that change; null where one goes.
        status: Value,
    },
    /// When the hold ends that a budget's owner has declared by an annotation; `None`: there is none any more.
    HoldUntil {
        key: BudgetKey,
        uid: String,
        until: Option<String>,
    },
    /// The nodes whose drains hold disruptions of a budget; `None`: there is none any more.
    LockedBy {
        key: BudgetKey,
        uid: String,
        nodes: Option<String>,
    },
}

impl StatusUpdate {
    /// What it is about: kind and name.
    pub fn about(&self) -> (&'static str, String) {
        match self {
            Self::Drain { name, .. } => ("status of NodeDrain", name.clone()),
            Self::Hold { key, .. } => ("status of DisruptionHold", key.to_string()),
            Self::HoldUntil { key, .. } => ("end of hold of budget", key.to_string()),
            Self::LockedBy { key, .. } => (BUDGET_ANNOTATION, key.to_string()),
        }
    }
}

/// Writes the annotation in another form, so that the disruption controller looks at the budget again. The next pass finds
/// it changed and restores it.
pub(super) async fn touch(context: &ExecutorContext, touch: Touch) -> Written {
    tracing::info!(budget = %touch.budget, "its status contradicts its pods: it is touched, so that Kubernetes counts anew");
    let update = StatusUpdate::LockedBy {
        key: touch.budget,
        uid: touch.uid.to_string(),
        nodes: Some(touch.annotation),
    };
    write(context, update).await
}

pub(super) async fn write(context: &ExecutorContext, update: StatusUpdate) -> Written {
    let _permit = context.permits.next_write().await?;
    let params = PatchParams::default();
    match update {
        StatusUpdate::Drain { name, uid, status } => {
            let patch = Patch::Merge(json!({ "metadata": { "uid": uid }, "status": status }));
            let drains: Api<NodeDrain> = context.api();
            drains.patch_status(&name, &params, &patch).await?;
        }
        StatusUpdate::Hold { key, uid, status } => {
            let patch = Patch::Merge(json!({ "metadata": { "uid": uid }, "status": status }));
            let holds: Api<DisruptionHold> = context.api_in(&key.namespace);
            holds.patch_status(&key.name, &params, &patch).await?;
        }
        StatusUpdate::HoldUntil { key, uid, until } => {
            annotate(context, &key, &uid, annotation::HOLD_UNTIL, until).await?;
        }
        StatusUpdate::LockedBy { key, uid, nodes } => {
            annotate(context, &key, &uid, annotation::LOCKED_BY, nodes).await?;
        }
    }
    Ok(())
}

async fn annotate(
    context: &ExecutorContext,
    budget: &BudgetKey,
    uid: &str,
    annotation: &str,
    value: Option<String>,
) -> Result<(), kube::Error> {
    let patch = Patch::Merge(json!({ "metadata": { "uid": uid, "annotations": { annotation: value } } }));
    let budgets: Api<PodDisruptionBudget> = context.api_in(&budget.namespace);
    budgets
        .patch_metadata(&budget.name, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}
