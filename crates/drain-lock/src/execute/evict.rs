//! Evictions: with the pod's UID, and, where the pod is held, with the grant that they rest on.

use std::collections::BTreeMap;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction as EvictionRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use nodeward_api::annotation;
use nodeward_api::drain_ledger::{self, DrainLedger};
use nodeward_core::id::NodeUid;
use nodeward_core::ledger::{Fence, Ledger};
use nodeward_runtime::ApiError;
use serde_json::Value;

use crate::plan::{Force, PodEviction};

use super::{ActionResult, Eviction, ExecutorContext, TaskOutcome, force};

/// Controllers that give each pod a name of its own.
const NEVER_THE_SAME_NAME: [&str; 3] = ["ReplicaSet", "ReplicationController", "Job"];

/// Evicts the pods of a granted claim, once the ledger, read by quorum, says that the grant is still in force.
pub(super) async fn evict_held(
    context: &ExecutorContext,
    node_uid: &NodeUid,
    fence: Fence,
    ledger_uid: &str,
    pods: Vec<PodEviction>,
) -> TaskOutcome {
    let ledgers: Api<DrainLedger> = Api::all(context.clients.requests.clone());
    let ledger = match ledgers.get_opt(drain_ledger::NAME).await {
        Ok(Some(ledger)) if ledger.metadata.uid.as_deref() == Some(ledger_uid) => Ledger::from(&ledger.spec),
        Ok(_) => {
            return stopped(
                &pods,
                &ActionResult::Outdated("the ledger is another one now".to_owned()),
            );
        }
        Err(error) => return stopped(&pods, &error.into()),
    };
    let evictions = pods.iter().map(async |eviction| {
        if ledger.may_evict(node_uid.as_str(), fence, eviction.pod.uid.as_str()) {
            evict(context, eviction, Some(fence)).await
        } else {
            ended(
                eviction,
                ActionResult::Outdated("its grant is no longer in force".to_owned()),
            )
        }
    });
    TaskOutcome {
        evictions: join_all(evictions).await,
        ..ActionResult::Acted(()).into()
    }
}

fn stopped(pods: &[PodEviction], done: &ActionResult) -> TaskOutcome {
    TaskOutcome {
        evictions: pods.iter().map(|eviction| ended(eviction, done.clone())).collect(),
        ..done.clone().into()
    }
}

fn ended(eviction: &PodEviction, done: ActionResult) -> Eviction {
    Eviction {
        pod: eviction.pod.clone(),
        node: eviction.node.clone(),
        done,
        deleted: false,
    }
}

/// The eviction API takes the budget's unit before it looks at the UID, and keeps it for two minutes in the name of
/// whichever pod has the name by then. So where a name is given again, who bears it is read by quorum first.
async fn is_another_by_now(pods: &Api<Pod>, eviction: &PodEviction) -> Option<ActionResult> {
    let owner = eviction.pod.owner.as_deref();
    if owner.is_some_and(|owner| NEVER_THE_SAME_NAME.contains(&&*owner.kind)) {
        return None;
    }
    match pods.get_metadata_opt(&eviction.pod.key.name).await {
        Ok(Some(pod)) if pod.metadata.uid.as_deref() != Some(eviction.pod.uid.as_str()) => {
            Some(ActionResult::Outdated("another pod has its name now".to_owned()))
        }
        Ok(Some(pod)) if pod.metadata.deletion_timestamp.is_none() => None,
        Ok(_) => Some(ActionResult::AlreadyDone),
        Err(error) => Some(error.into()),
    }
}

/// Asks the eviction API, which deletes the pod with its own grace unless a budget stands in the way.
pub(super) async fn evict(context: &ExecutorContext, eviction: &PodEviction, fence: Option<Fence>) -> Eviction {
    let key = &eviction.pod.key;
    let pods: Api<Pod> = Api::namespaced(context.clients.requests.clone(), &key.namespace);
    if let Some(done) = is_another_by_now(&pods, eviction).await {
        return ended(eviction, done);
    }
    let request = EvictionRequest {
        metadata: ObjectMeta {
            name: Some(key.name.to_string()),
            namespace: Some(key.namespace.to_string()),
            annotations: fence.map(|fence| BTreeMap::from([(annotation::TICKET.to_owned(), fence.to_string())])),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            preconditions: Some(Preconditions {
                uid: Some(eviction.pod.uid.as_str().to_owned()),
                resource_version: None,
            }),
            ..DeleteOptions::default()
        }),
    };
    let permit = match context.permits.next_write().await {
        Ok(permit) => permit,
        Err(stop) => return ended(eviction, stop.into()),
    };
    let asked = pods
        .create_subresource::<_, Value>("eviction", &key.name, &PostParams::default(), &request)
        .await;
    drop(permit);
    let Err(error) = asked else {
        return ended(eviction, ActionResult::Acted(()));
    };
    let refusal = match ApiError::from(&error) {
        // Another pod has its name now, or it is on its way with its namespace: it is gone, or going.
        ApiError::NotFound | ApiError::NamespaceTerminating => return ended(eviction, ActionResult::AlreadyDone),
        ApiError::Conflict => {
            return ended(
                eviction,
                ActionResult::Outdated("another pod has its name now".to_owned()),
            );
        }
        refusal => refusal,
    };
    let refusing = match refusal {
        ApiError::RefusedByBudget { .. } => 1,
        // So it answers where several budgets select the pod, and where it has troubles of its own.
        ApiError::Server { code: 500, .. } if context.world.budgets_of(&eviction.pod).len() > 1 => 2,
        refusal => return ended(eviction, ActionResult::Failed(refusal)),
    };
    if eviction.force == Force::Never {
        return ended(eviction, ActionResult::Failed(refusal));
    }
    delete_around(context, eviction, refusing).await
}

/// Deletes a pod around its budgets, of which so many stand in the way at least, unless one of them forbids it by now.
/// The permit comes before the reads, so that they are not as old as the wait for it.
async fn delete_around(context: &ExecutorContext, eviction: &PodEviction, refusing: usize) -> Eviction {
    let _permit = match context.permits.next_write().await {
        Ok(permit) => permit,
        Err(stop) => return ended(eviction, stop.into()),
    };
    match force::objection(context, &eviction.pod, refusing).await {
        Ok(None) => {}
        Ok(Some(objection)) => return ended(eviction, ActionResult::Outdated(objection)),
        Err(error) => return ended(eviction, error.into()),
    }
    if let Err(stop) = context.permits.check() {
        return ended(eviction, stop.into());
    }
    let pods: Api<Pod> = Api::namespaced(context.clients.requests.clone(), &eviction.pod.key.namespace);
    let params = DeleteParams {
        preconditions: Some(kube::api::Preconditions {
            uid: Some(eviction.pod.uid.as_str().to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match pods.delete(&eviction.pod.key.name, &params).await {
        Ok(_) => Eviction {
            deleted: true,
            ..ended(eviction, ActionResult::Acted(()))
        },
        Err(error) => ended(eviction, error.into()),
    }
}
