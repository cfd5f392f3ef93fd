//! Ends requests to drain nodes, and holds of budgets.

use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use nodeward_api::node_drain::NodeDrain;
use nodeward_api::{DisruptionHold, annotation};
use nodeward_core::drain_request::{leave, other_requesters};
use serde::Serialize;
use serde_json::json;

use super::{ATTEMPTS, ActError};
use crate::args::{Release, Target};
use crate::cluster::Cluster;
use crate::failure::Failure;

/// What became of one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Released {
    /// `node/NAME` or `hold/NAMESPACE/NAME`.
    pub target: String,
    /// What became of it.
    pub outcome: Outcome,
    /// The same for a person.
    pub message: String,
}

/// What became of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// The drain ends: its last requester has released it.
    Ends,
    /// The drain goes on for others.
    GoesOn,
    /// The hold is deleted.
    Deleted,
    /// The override is written down; drain-lock carries it out.
    Overridden,
    /// Nothing was changed.
    Failed,
}

/// Releases each target; one that fails does not stop the others.
///
/// # Errors
/// Who the caller is cannot be found out.
pub async fn release(cluster: &Cluster, args: &Release) -> Result<Vec<Released>, ActError> {
    let caller = super::requester(cluster).await?;
    let requester = args.requester.clone().unwrap_or_else(|| caller.clone());
    let user = caller.strip_prefix(super::PREFIX).unwrap_or(&caller);
    let forced = args
        .reason
        .as_ref()
        .filter(|_| args.force)
        .map(|reason| format!("{user}: {reason}"));
    let mut released = Vec::new();
    for target in &args.targets {
        let (name, result) = match target {
            Target::Node(node) => (
                format!("node/{node}"),
                release_node(cluster, node, &requester, forced.as_deref()).await,
            ),
            Target::Hold(hold) => {
                let namespace = cluster.one_namespace();
                (
                    format!("hold/{namespace}/{hold}"),
                    release_hold(cluster, hold, forced.as_deref()).await,
                )
            }
        };
        released.push(match result {
            Ok((outcome, message)) => Released {
                target: name,
                outcome,
                message,
            },
            Err(error) => Released {
                target: name,
                outcome: Outcome::Failed,
                message: error.to_string(),
            },
        });
    }
    Ok(released)
}

async fn release_node(
    cluster: &Cluster,
    node: &str,
    requester: &str,
    forced: Option<&str>,
) -> Result<(Outcome, String), ActError> {
    if !cluster.kinds().node_drains {
        return Err(ActError::NotInstalled("NodeDrain"));
    }
    let drains: Api<NodeDrain> = Api::all(cluster.client.clone());
    for _ in 0..ATTEMPTS {
        let Some(drain) = cluster.ask(drains.get_opt(node)).await? else {
            return Err(ActError::Refused(format!("there is no drain of {node}")));
        };
        let written = if let Some(said) = forced {
            let patch = json!({
                "metadata": { "uid": drain.metadata.uid, "annotations": { annotation::RELEASE: said } },
            });
            let written = cluster
                .ask(drains.patch(node, &PatchParams::default(), &Patch::Merge(&patch)))
                .await;
            written.map(|_| {
                (
                    Outcome::Overridden,
                    "all that its drain holds is freed by your override, which is written down".to_owned(),
                )
            })
        } else {
            end_request(cluster, &drains, &drain, requester).await?
        };
        match written {
            Ok(done) => return Ok(done),
            // Changed since it was read.
            Err(Failure::Conflict { .. } | Failure::NotFound { .. }) => (),
            Err(failure) => return Err(failure.into()),
        }
    }
    Err(ActError::Refused(format!(
        "the drain of {node} changes too fast: try again"
    )))
}

/// Takes the requester off the list. The last one deletes the drain: drain-lock, which keeps it until its units have
/// returned, then uncordons the node if the cordon is its own.
async fn end_request(
    cluster: &Cluster,
    drains: &Api<NodeDrain>,
    drain: &NodeDrain,
    requester: &str,
) -> Result<Result<(Outcome, String), Failure>, ActError> {
    let node = &drain.spec.node_name;
    if drain.metadata.deletion_timestamp.is_some() {
        return Ok(Ok((Outcome::Ends, "its drain is ending already".to_owned())));
    }
    let others: Vec<&str> = other_requesters(drain, requester)
        .map(|other| other.name.as_str())
        .collect();
    let patch = leave(drain, requester);
    if patch.is_none() && !others.is_empty() {
        return Err(ActError::Refused(format!(
            "{node} was not asked for by {requester}, but by {}: name one with --requester",
            others.join(", ")
        )));
    }
    let Some(patch) = patch.filter(|_| !others.is_empty()) else {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: drain.metadata.uid.clone(),
                resource_version: drain.metadata.resource_version.clone(),
            }),
            ..DeleteParams::default()
        };
        let deleted = cluster.ask(drains.delete(node, &params)).await;
        return Ok(deleted.map(|_| {
            (
                Outcome::Ends,
                "its drain ends; what it holds returns as its pods do".to_owned(),
            )
        }));
    };
    let written = cluster
        .ask(drains.patch(node, &PatchParams::default(), &Patch::Merge(&patch)))
        .await;
    Ok(written.map(|_| {
        (
            Outcome::GoesOn,
            format!("your request has ended; its drain goes on for {}", others.join(", ")),
        )
    }))
}

async fn release_hold(cluster: &Cluster, hold: &str, forced: Option<&str>) -> Result<(Outcome, String), ActError> {
    if !cluster.kinds().disruption_holds {
        return Err(ActError::NotInstalled("DisruptionHold"));
    }
    let holds: Api<DisruptionHold> = Api::namespaced(cluster.client.clone(), cluster.one_namespace());
    if let Some(said) = forced {
        let patch = json!({ "metadata": { "annotations": { annotation::RELEASE: said } } });
        cluster
            .ask(holds.patch(hold, &PatchParams::default(), &Patch::Merge(&patch)))
            .await?;
        return Ok((
            Outcome::Overridden,
            "it is out of force by your override, which is written down".to_owned(),
        ));
    }
    cluster.ask(holds.delete(hold, &DeleteParams::default())).await?;
    Ok((Outcome::Deleted, "it holds nothing any more".to_owned()))
}
