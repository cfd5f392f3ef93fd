//! Requests for a drain, and their release, as the eviction webhook and FleetLock write them.
//!
//! Every write is conditioned on what was read just before, so two replicas that ask for the same drain at once make one.

use jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nodeward_api::node_drain::NodeDrain;
use nodeward_core::drain_request::{DrainRequest, JoinOutcome, JoinStep, join, leave};
use nodeward_runtime::ApiError;
use serde_json::Value;

/// How often a write is tried again because somebody else was faster.
const ATTEMPTS: u32 = 5;

/// Asks for a drain: creates it, or joins the one that exists. Asking again changes nothing.
///
/// # Errors
/// The API server's refusal. `Conflict` after several attempts: ask again.
pub async fn request_drain(client: &Client, request: &DrainRequest, now: Timestamp) -> Result<JoinOutcome, ApiError> {
    let drains: Api<NodeDrain> = Api::all(client.clone());
    let name = request.node.as_str();
    for _ in 0..ATTEMPTS {
        let present = drains.get_opt(name).await?;
        let (outcome, written) = match join(present.as_ref(), request, now) {
            JoinStep::Done(outcome) => return Ok(outcome),
            JoinStep::Create(drain) => {
                let created = drains.create(&PostParams::default(), &drain).await;
                (JoinOutcome::Created, created)
            }
            JoinStep::Patch(outcome, patch) => (outcome, write(&drains, name, &patch).await),
        };
        if is_written(written)? {
            return Ok(outcome);
        }
    }
    Err(ApiError::Conflict)
}

/// Releases a request; answers whether there was one. A drain that is gone has been released already.
///
/// # Errors
/// The API server's refusal. `Conflict` after several attempts: ask again.
pub async fn release_drain(client: &Client, node: &str, requester: &str) -> Result<bool, ApiError> {
    let drains: Api<NodeDrain> = Api::all(client.clone());
    for _ in 0..ATTEMPTS {
        let present = drains.get_opt(node).await?;
        let Some(patch) = present.and_then(|present| leave(&present, requester)) else {
            return Ok(false);
        };
        if is_written(write(&drains, node, &patch).await)? {
            return Ok(true);
        }
    }
    Err(ApiError::Conflict)
}

async fn write(drains: &Api<NodeDrain>, name: &str, patch: &Value) -> kube::Result<NodeDrain> {
    drains.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

/// Whether it is written; otherwise somebody else was faster, and it is tried again.
fn is_written(written: kube::Result<NodeDrain>) -> Result<bool, ApiError> {
    match written.map_err(ApiError::from) {
        Ok(_) => Ok(true),
        Err(ApiError::Conflict | ApiError::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}
