//! Asks for a drain: creates the NodeDrain, or joins the one that there is.

use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use nodeward_api::NodeDrain;
use nodeward_api::node_drain::Phase;
use nodeward_core::drain_request::{Conflict, DrainRequest, JoinOutcome, JoinStep, join, new_drain, other_requesters};

use super::{ATTEMPTS, ActError};
use crate::cluster::Cluster;
use crate::failure::Failure;

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// There was no drain, and now there is.
    Created,
    /// There was one, for these.
    Joined(Vec<String>),
    /// The caller had asked for it before.
    Known,
}

/// Asks for a drain. A drain that is ending is waited for, and a new one is asked for then; `waits` is called before.
///
/// # Errors
/// A request fails, or the drain of that name is another node's.
pub async fn ask(
    cluster: &Cluster,
    request: &DrainRequest,
    waits: &dyn Fn(&str),
) -> Result<(NodeDrain, Asked), ActError> {
    let drains: Api<NodeDrain> = Api::all(cluster.client.clone());
    let node = request.node.as_str();
    for _ in 0..ATTEMPTS {
        let found = cluster.ask(drains.get_opt(node)).await?;
        let step = if found.as_ref().is_some_and(is_released) {
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
                let gone = await_condition(drains.clone(), node, conditions::is_deleted(uid)).await;
                gone.map_err(|error| {
                    ActError::Refused(format!("the end of the drain before cannot be watched: {error}"))
                })?;
                continue;
            }
            (JoinStep::Done(JoinOutcome::Conflicting(_)), _) => {
                return Err(ActError::Refused(format!(
                    "there is a drain of an earlier node {node}: end it with kubectl nodeward release {node}"
                )));
            }
            (JoinStep::Done(_), Some(known)) => return Ok((known.clone(), Asked::Known)),
            (JoinStep::Done(_), None) => continue,
        };
        match written {
            Ok(drain) => return Ok((drain, asked(found.as_ref(), &request.requester))),
            // Somebody else was faster.
            Err(Failure::Conflict { .. } | Failure::NotFound { .. }) => (),
            Err(failure) => return Err(failure.into()),
        }
    }
    Err(changes_too_fast(node))
}

/// Asks for a plan: creates a preview unless there is a drain, which is left as it is.
///
/// # Errors
/// A request fails.
pub async fn preview(cluster: &Cluster, request: &DrainRequest) -> Result<(NodeDrain, Asked), ActError> {
    let drains: Api<NodeDrain> = Api::all(cluster.client.clone());
    let node = request.node.as_str();
    for _ in 0..ATTEMPTS {
        let preview = new_drain(request, Timestamp::now());
        match cluster.ask(drains.create(&PostParams::default(), &preview)).await {
            Ok(created) => return Ok((created, Asked::Created)),
            Err(Failure::Conflict { .. }) => (),
            Err(failure) => return Err(failure.into()),
        }
        if let Some(found) = cluster.ask(drains.get_opt(node)).await? {
            return Ok((found, Asked::Known));
        }
    }
    Err(changes_too_fast(node))
}

fn changes_too_fast(node: &str) -> ActError {
    ActError::Refused(format!("the drain of {node} changes too fast: try again"))
}

/// What a request that was written has made of the drain found before.
fn asked(found: Option<&NodeDrain>, requester: &str) -> Asked {
    let Some(found) = found else {
        return Asked::Created;
    };
    let others = other_requesters(found, requester).map(|other| other.name.clone());
    let others: Vec<String> = others.collect();
    if others.len() < found.spec.requesters.len() {
        Asked::Known
    } else {
        Asked::Joined(others)
    }
}

/// Whether the drain holds nothing any more: it is about to go, and another has to be asked for.
fn is_released(drain: &NodeDrain) -> bool {
    drain.status.as_ref().and_then(|status| status.phase) == Some(Phase::Released)
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
    fn the_answer_names_requesters_that_came_before() {
        let found = found(None);
        assert_eq!(asked(None, "carol"), Asked::Created);
        assert_eq!(asked(Some(&found), "bob"), Asked::Known);
        let both = vec!["alice".to_owned(), "bob".to_owned()];
        assert_eq!(asked(Some(&found), "carol"), Asked::Joined(both));
    }
}
