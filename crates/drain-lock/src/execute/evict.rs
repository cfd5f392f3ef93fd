//! Evictions: with the pod's UID, and, where the pod is held, with the grant that they rest on.

use std::collections::BTreeMap;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{Eviction as EvictionRequest, PodDisruptionBudget};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use kube::api::PostParams;
use nodeward_api::annotation;
use nodeward_api::drain_ledger::{self, DrainLedger};
use nodeward_core::id::{BudgetKey, NodeUid};
use nodeward_core::ledger::{Fence, Ledger};
use nodeward_runtime::ApiError;
use serde_json::Value;

use crate::plan::PodEviction;

use super::{ActionResult, Eviction, ExecutorContext, TaskOutcome, Written};

/// Evicts the pods of a granted claim, once the ledger, read by quorum, says that the grant is still in force.
pub(super) async fn evict_held(
    context: &ExecutorContext,
    node_uid: &NodeUid,
    fence: Fence,
    ledger_uid: &str,
    pods: Vec<PodEviction>,
) -> TaskOutcome {
    let ledger = match read_ledger(context, ledger_uid).await {
        Ok(ledger) => ledger,
        Err(result) => {
            let evictions = pods.iter().map(|eviction| ended(eviction, Err(result.clone())));
            return TaskOutcome {
                evictions: evictions.collect(),
                ..result.into()
            };
        }
    };
    let evictions = pods.iter().map(async |eviction| {
        if ledger.may_evict(node_uid.as_str(), fence, eviction.pod.uid.as_str()) {
            evict(context, eviction, Some(fence)).await
        } else {
            let outdated = ActionResult::Outdated("its grant is no longer in force".to_owned());
            ended(eviction, Err(outdated))
        }
    });
    TaskOutcome {
        evictions: join_all(evictions).await,
        ..ActionResult::Acted(()).into()
    }
}

async fn read_ledger(context: &ExecutorContext, uid: &str) -> Result<Ledger, ActionResult> {
    match context.api::<DrainLedger>().get_opt(drain_ledger::NAME).await? {
        Some(ledger) if ledger.metadata.uid.as_deref() == Some(uid) => {
            // A later version has taken over.
            let outdated = |why| ActionResult::Outdated(format!("the ledger cannot be decoded any more: {why}"));
            Ledger::try_from(&ledger.spec).map_err(outdated)
        }
        _ => Err(ActionResult::Outdated("the ledger is another one now".to_owned())),
    }
}

/// Asks for one pod to leave.
pub(super) async fn evict(context: &ExecutorContext, eviction: &PodEviction, fence: Option<Fence>) -> Eviction {
    ended(eviction, request(context, eviction, fence).await)
}

/// Asks for a pod that its budget never lets go. One that lets pods go by now is not asked: what it can spare is the ledger's to
/// give.
pub(super) async fn ask_owner(context: &ExecutorContext, eviction: &PodEviction, budget: &BudgetKey) -> Eviction {
    let asked = async {
        let budgets: Api<PodDisruptionBudget> = context.api_in(&budget.namespace);
        let allowed = budgets.get_opt(&budget.name).await?.and_then(|budget| budget.status);
        if allowed.is_none_or(|status| status.disruptions_allowed > 0) {
            return Err(ActionResult::Outdated("its budget may let it go".to_owned()));
        }
        request(context, eviction, None).await
    };
    ended(eviction, asked.await)
}

fn ended(eviction: &PodEviction, done: Written) -> Eviction {
    Eviction {
        pod: eviction.pod.clone(),
        node: eviction.node.clone(),
        done: done.into(),
    }
}

/// Asks the eviction API, which deletes the pod with its own grace unless a budget stands in the way.
async fn request(context: &ExecutorContext, eviction: &PodEviction, fence: Option<Fence>) -> Written {
    let key = &eviction.pod.key;
    let pods: Api<Pod> = context.api_in(&key.namespace);
    check_name_is_its_own(&pods, eviction).await?;
    let request = EvictionRequest {
        metadata: ObjectMeta {
            name: Some(key.name.to_string()),
            namespace: Some(key.namespace.to_string()),
            annotations: fence.map(|fence| BTreeMap::from([(annotation::TICKET.to_owned(), fence.to_string())])),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            preconditions: Some(Preconditions {
                uid: Some(eviction.pod.uid.to_string()),
                resource_version: None,
            }),
            ..DeleteOptions::default()
        }),
    };
    let _permit = context.permits.next_act().await?;
    let asked = pods
        .create_subresource::<_, Value>("eviction", &key.name, &PostParams::default(), &request)
        .await;
    asked.map(drop).map_err(|error| match ApiError::from(&error) {
        // Another pod has its name now, or it is on its way with its namespace: it is gone, or going.
        ApiError::NotFound | ApiError::NamespaceTerminating => ActionResult::AlreadyDone,
        ApiError::Conflict => name_is_taken(),
        error => ActionResult::Failed(error),
    })
}

/// The eviction API takes the budget's disruption before it looks at the UID, and keeps it for two minutes in the name of
/// whichever pod has the name by then. So where a name is given again, who bears it is read by quorum first.
async fn check_name_is_its_own(pods: &Api<Pod>, eviction: &PodEviction) -> Written {
    if !eviction.pod.owner().reuses_names() {
        return Ok(());
    }
    match pods.get_metadata_opt(&eviction.pod.key.name).await? {
        Some(pod) if pod.metadata.uid.as_deref() != Some(eviction.pod.uid.as_str()) => Err(name_is_taken()),
        Some(pod) if pod.metadata.deletion_timestamp.is_none() => Ok(()),
        _ => Err(ActionResult::AlreadyDone),
    }
}

fn name_is_taken() -> ActionResult {
    ActionResult::Outdated("another pod has its name now".to_owned())
}
