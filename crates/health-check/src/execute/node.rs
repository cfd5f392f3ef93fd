//! Annotates a Node, by UID.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_runtime::{ActionResult, ApiError, Permits};
use serde_json::json;

use super::{Effect, Ended, PassContext, Written};
use crate::plan::NodeChange;

/// Annotates it, or removes the annotation.
pub(super) async fn annotate(
    pass: &PassContext,
    permits: &Permits,
    (node, uid): (&NodeName, &NodeUid),
    before: Option<String>,
    change: &NodeChange,
) -> Ended {
    let _permit = permits.next_write().await?;
    let (annotation, value) = (change.annotation(), change.value());
    let patch = json!({ "metadata": { "uid": uid.as_str(), "annotations": { annotation: value } } });
    let nodes: Api<Node> = Api::all(pass.clients.requests.clone());
    let patched = nodes
        .patch_metadata(node.as_str(), &PatchParams::default(), &Patch::Merge(patch))
        .await;
    let result = match patched.map_err(ApiError::from) {
        Ok(_) => ActionResult::Acted(()),
        // It is gone, and is not asked for again until the watch shows it.
        Err(ApiError::NotFound) => ActionResult::AlreadyDone,
        Err(error) => return Err(error.into()),
    };
    let written = Written::NodeAnnotation {
        node: uid.clone(),
        annotation,
        base: before,
        value: value.map(str::to_owned),
    };
    Ok(Effect {
        result,
        ..Effect::acted(written)
    })
}
