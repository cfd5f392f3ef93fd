//! Requests for drains: the writes that `drain`, `plan` and `release` share. Each write rests on what was read just before,
//! so that two people who do the same at once do it once.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt};
use nodeward_api::NodeDrain;
use nodeward_api::node_drain::{Phase, REQUESTER_AT_MOST};
use nodeward_core::drain_request::{Conflict, DrainRequest, JoinOutcome, JoinStep, join, other_requesters};
use nodeward_core::text::cut;

use crate::cluster::Cluster;
use crate::failure::Failure;

/// Attempts at a write while others change the object.
pub const ATTEMPTS: u32 = 5;

/// Prefix of the plugin's requesters; the user follows.
const PREFIX: &str = "kubectl-nodeward:";

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requested {
    Created,
    /// The drain existed, for these.
    Joined(Vec<String>),
    /// The caller had requested it before.
    Known,
}

/// The caller's user name, and the name of their requests: `kubectl-nodeward:alice`.
pub async fn requester(cluster: &Cluster) -> Result<(String, String), Failure> {
    let user = cluster.user().await?;
    let requester = cut(format!("{PREFIX}{user}"), REQUESTER_AT_MOST);
    Ok((user, requester))
}

/// Requests a drain. If an earlier drain of the node is ending, calls `waits` and requests a new one after its end.
pub async fn request_drain(
    cluster: &Cluster,
    request: &DrainRequest,
    waits: &dyn Fn(&str),
) -> Result<(NodeDrain, Requested), Failure> {
    let drains: Api<NodeDrain> = Api::all(cluster.client.clone());
    let node = request.node.as_str();
    for _ in 0..ATTEMPTS {
        let found = cluster.ask(drains.get_opt(node)).await?;
        let ends = match &found {
            Some(found) => is_released(found) || is_uncordoned(cluster, found).await?,
            None => false,
        };
        let step = if ends {
            JoinStep::Done(JoinOutcome::Conflicting(Conflict::Ending))
        } else {
            join(found.as_ref(), request, Timestamp::now())
        };
        let written = match (step, &found) {
            (JoinStep::Create(drain), _) => cluster.ask(drains.create(&PostParams::default(), &drain)).await,
            (JoinStep::Patch(_, patch), _) => {
                let patch = Patch::Merge(patch);
                cluster.ask(drains.patch(node, &PatchParams::default(), &patch)).await
            }
            (JoinStep::Done(JoinOutcome::Conflicting(Conflict::Ending)), Some(ending)) => {
                waits(node);
                let uid = ending.metadata.uid.as_deref().unwrap_or_default();
                let ended = await_condition(drains.clone(), node, conditions::is_deleted(uid)).await;
                ended.map_err(|error| {
                    Failure::Other(format!("the end of the earlier drain cannot be watched: {error}"))
                })?;
                continue;
            }
            (JoinStep::Done(JoinOutcome::Conflicting(_)), _) => {
                return Err(Failure::Other(format!(
                    "a drain of an earlier node {node} exists: end it with kubectl nodeward release {node}"
                )));
            }
            (JoinStep::Done(_), Some(known)) => return Ok((known.clone(), Requested::Known)),
            (JoinStep::Done(_), None) => continue,
        };
        match written {
            Ok(drain) => return Ok((drain, requested(found.as_ref(), &request.requester))),
            // Somebody else was faster.
            Err(Failure::Conflict(_) | Failure::NotFound(_)) => (),
            Err(failure) => return Err(failure),
        }
    }
    Err(changes_too_fast(node))
}

pub fn changes_too_fast(node: &str) -> Failure {
    Failure::Other(format!("the drain of {node} changes too fast: try again"))
}

/// The outcome of a request that was written, given the drain that was found before.
fn requested(found: Option<&NodeDrain>, requester: &str) -> Requested {
    let Some(found) = found else {
        return Requested::Created;
    };
    let others = other_requesters(found, requester).map(|other| other.name.clone());
    let others: Vec<String> = others.collect();
    if others.len() < found.spec.requesters.len() {
        Requested::Known
    } else {
        Requested::Joined(others)
    }
}

/// Whether the drain holds nothing any more: it is about to go, and another must be requested.
fn is_released(drain: &NodeDrain) -> bool {
    drain.status.as_ref().and_then(|status| status.phase) == Some(Phase::Released)
}

/// Whether the node of a drain that had begun was uncordoned: drain-lock is about to end it, whoever joins it. A user who may not
/// read nodes joins it.
async fn is_uncordoned(cluster: &Cluster, drain: &NodeDrain) -> Result<bool, Failure> {
    let phase = drain.status.as_ref().and_then(|status| status.phase);
    if !matches!(phase, Some(Phase::Draining | Phase::Drained)) {
        return Ok(false);
    }
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    match cluster.ask(nodes.get_opt(&drain.spec.node_name)).await {
        Ok(node) => Ok(node.is_some_and(|node| !node.spec.and_then(|spec| spec.unschedulable).unwrap_or_default())),
        Err(Failure::MissingRight(_)) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Parameters that delete the drain only as it was read.
pub fn if_unchanged(drain: &NodeDrain) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions {
        uid: drain.uid(),
        resource_version: drain.resource_version(),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn found(phase: Option<Phase>) -> NodeDrain {
        serde_json::from_value(json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain",
            "metadata": { "name": "node-1", "uid": "u", "resourceVersion": "7" },
            "spec": { "nodeName": "node-1", "requesters": [{ "name": "alice" }, { "name": "bob" }] },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[rstest]
    #[case(None, false)]
    #[case(Some(Phase::Drained), false)]
    #[case(Some(Phase::Released), true)]
    fn released_drains_cannot_be_joined(#[case] phase: Option<Phase>, #[case] released: bool) {
        assert_eq!(is_released(&found(phase)), released);
    }

    #[test]
    fn outcome_names_earlier_requesters() {
        let found = found(None);
        assert_eq!(requested(None, "carol"), Requested::Created);
        assert_eq!(requested(Some(&found), "bob"), Requested::Known);
        let both = vec!["alice".to_owned(), "bob".to_owned()];
        assert_eq!(requested(Some(&found), "carol"), Requested::Joined(both));
    }
}
