//! NodeDrains: taken into care, deleted once they are over, let go once nothing is left of them.

use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use nodeward_api::finalizer;
use nodeward_api::node_drain::{NodeDrain, Phase};
use serde_json::{Value, json};

use super::{Done, Means};

/// Who stands for a NodeDrain that was made without a requester: its creator, who releases it by deleting it.
const CREATOR: &str = "nodedrain";

/// The finalizer, the UID of the node, and a requester if there is none.
pub(super) async fn adopt(means: &Means, drain: &NodeDrain, node_uid: &str) -> Done {
    let mut finalizers = drain.metadata.finalizers.clone().unwrap_or_default();
    if !finalizers.iter().any(|finalizer| finalizer == finalizer::DRAIN_LOCK) {
        finalizers.push(finalizer::DRAIN_LOCK.to_owned());
    }
    let mut spec = json!({ "nodeUID": node_uid });
    if drain.spec.requesters.is_empty() {
        spec["requesters"] = json!([{ "name": CREATOR }]);
    }
    let patch = as_seen(drain, &json!({ "finalizers": finalizers }), Some(&spec));
    changed(means, drain, &patch).await
}

/// Deletes it as it was seen: whoever has joined it since keeps it.
pub(super) async fn delete(means: &Means, drain: &NodeDrain) -> Done {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: drain.metadata.uid.clone(),
            resource_version: drain.metadata.resource_version.clone(),
        }),
        ..DeleteParams::default()
    };
    match api(means).delete(&drain.spec.node_name, &params).await {
        Ok(_) => Done::Acted,
        Err(error) => error.into(),
    }
}

/// Says that it is released, and lets it go.
pub(super) async fn finish(means: &Means, drain: &NodeDrain) -> Done {
    let released = json!({
        "metadata": { "uid": drain.metadata.uid },
        "status": { "phase": Phase::Released.as_str(), "message": "holds nothing any more", "blockedBy": [], "holds": [] },
    });
    let params = PatchParams::default();
    if let Err(error) = api(means)
        .patch_status(&drain.spec.node_name, &params, &Patch::Merge(&released))
        .await
    {
        return error.into();
    }
    if let Err(done) = means.may_write() {
        return done;
    }
    let kept: Vec<&String> = drain
        .metadata
        .finalizers
        .iter()
        .flatten()
        .filter(|finalizer| *finalizer != finalizer::DRAIN_LOCK)
        .collect();
    // The status has just changed, and with it the resource version: the UID and the list of finalizers are what counts.
    let patch = json!({ "metadata": { "uid": drain.metadata.uid, "finalizers": kept } });
    changed(means, drain, &patch).await
}

fn as_seen(drain: &NodeDrain, metadata: &Value, spec: Option<&Value>) -> Value {
    let mut patch = json!({ "metadata": metadata });
    patch["metadata"]["uid"] = json!(drain.metadata.uid);
    patch["metadata"]["resourceVersion"] = json!(drain.metadata.resource_version);
    if let Some(spec) = spec {
        patch["spec"] = spec.clone();
    }
    patch
}

async fn changed(means: &Means, drain: &NodeDrain, patch: &Value) -> Done {
    let params = PatchParams {
        field_manager: Some(means.field_manager.to_owned()),
        ..PatchParams::default()
    };
    match api(means)
        .patch(&drain.spec.node_name, &params, &Patch::Merge(patch))
        .await
    {
        Ok(_) => Done::Acted,
        Err(error) => error.into(),
    }
}

fn api(means: &Means) -> Api<NodeDrain> {
    Api::all(means.clients.requests.clone())
}
