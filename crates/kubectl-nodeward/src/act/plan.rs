//! The plan of a node: of its drain if there is one, else of a preview that is made for the question and deleted.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::ResourceExt;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::wait::await_condition;
use nodeward_api::NodeDrain;
use nodeward_api::node_drain::{Deadlines, Evictor};
use nodeward_core::drain_request::DrainRequest;

use super::request::{self, Asked};
use super::{ATTEMPTS, ActError};
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::view::plan::Plan;

/// How long drain-lock may take to answer.
const ANSWER: Duration = Duration::from_secs(30);

/// The plan of `node`.
///
/// # Errors
/// There is no such node, a request fails, or drain-lock does not answer.
pub async fn plan(cluster: &Cluster, node: &str) -> Result<Plan, ActError> {
    if !cluster.kinds().node_drains {
        return Err(ActError::NotInstalled("NodeDrain"));
    }
    let drains: Api<NodeDrain> = Api::all(cluster.client.clone());
    if let Some(found) = cluster.ask(drains.get_opt(node)).await? {
        return answer(&drains, found).await;
    }
    let node_uid = uid(cluster, node).await?;
    let requester = super::requester(cluster).await?;
    let request = DrainRequest {
        node: node.into(),
        node_uid: node_uid.map(Into::into),
        requester: requester.clone(),
        purpose: Some("plan".to_owned()),
        fallback: None,
        deadlines: Deadlines::default(),
        evict: Evictor::Nodeward,
        dry_run: true,
        is_eviction: false,
        changes_settings: false,
    };
    let (drain, asked) = request::preview(cluster, &request).await?;
    if asked != Asked::Created {
        return answer(&drains, drain).await;
    }
    // However this ends, Ctrl-C included, the preview goes.
    let outcome = tokio::select! {
        outcome = answer(&drains, drain.clone()) => outcome,
        _ = tokio::signal::ctrl_c() => Err(ActError::Refused("interrupted".to_owned())),
    };
    remove(cluster, &drains, &drain, &requester).await?;
    outcome
}

/// The UID of the node; `None` if the caller may not read it.
///
/// # Errors
/// There is no such node, or the API server cannot be asked.
pub async fn uid(cluster: &Cluster, node: &str) -> Result<Option<String>, ActError> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    match cluster.ask(nodes.get_metadata_opt(node)).await {
        Ok(Some(found)) => Ok(found.uid()),
        Ok(None) => Err(ActError::Refused(format!("there is no node {node}"))),
        Err(Failure::MissingRight(_)) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

/// Waits for the plan.
async fn answer(drains: &Api<NodeDrain>, drain: NodeDrain) -> Result<Plan, ActError> {
    let node = drain.name_any();
    let is_answered = |drain: Option<&NodeDrain>| {
        drain.is_none_or(|drain| drain.status.as_ref().is_some_and(|status| status.plan.is_some()))
    };
    let no_answer = || {
        ActError::Refused(format!(
            "drain-lock has not planned the drain of {node} within {} s: is it running? See kubectl nodeward status",
            ANSWER.as_secs()
        ))
    };
    let answered = if is_answered(Some(&drain)) {
        Some(drain)
    } else {
        let waited = tokio::time::timeout(ANSWER, await_condition(drains.clone(), &node, is_answered)).await;
        let answered = waited.map_err(|_| no_answer())?;
        answered.map_err(|error| ActError::Refused(format!("the plan of {node} cannot be watched: {error}")))?
    };
    let Some(drain) = answered else {
        return Err(ActError::Refused(format!(
            "the drain of {node} was deleted before it was planned"
        )));
    };
    let status = drain.status.unwrap_or_default();
    Ok(Plan {
        node,
        dry_run: drain.spec.dry_run,
        phase: status.phase.filter(|_| !drain.spec.dry_run),
        blocked_by: status.blocked_by,
        plan: status.plan.unwrap_or_default(),
    })
}

/// Deletes the preview, unless somebody has made a drain of it meanwhile.
async fn remove(
    cluster: &Cluster,
    drains: &Api<NodeDrain>,
    drain: &NodeDrain,
    requester: &str,
) -> Result<(), ActError> {
    for _ in 0..ATTEMPTS {
        let Some(found) = cluster.ask(drains.get_opt(&drain.name_any())).await? else {
            return Ok(());
        };
        let is_ours = found.uid() == drain.uid()
            && found.spec.dry_run
            && found.spec.requesters.iter().all(|one| one.name == requester);
        if !is_ours {
            return Ok(());
        }
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: found.uid(),
                resource_version: found.resource_version(),
            }),
            ..DeleteParams::default()
        };
        match cluster.ask(drains.delete(&found.name_any(), &params)).await {
            Ok(_) | Err(Failure::NotFound { .. }) => return Ok(()),
            // Its status was written meanwhile.
            Err(Failure::Conflict { .. }) => (),
            Err(failure) => return Err(failure.into()),
        }
    }
    Err(ActError::Refused(format!(
        "the preview NodeDrain {0} could not be deleted: kubectl delete nodedrain {0}",
        drain.name_any()
    )))
}
