//! Write the drain clock into the Node's annotation, on top of nothing but what was read there.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::annotation;
use nodeward_runtime::Refusal;
use serde_json::{Value, json};

use crate::clock::ClockWrite;
use crate::plan::ClockAction;

use super::Pass;

/// Where the annotation stands, as a JSON pointer.
const POINTER: &str = "/metadata/annotations/nodeward.dev~1drain-clock";

/// Writes it. A node of another UID, or an annotation that has changed since it was read, is a conflict.
pub(super) async fn write(pass: &Pass, action: &ClockAction) -> Result<(), Refusal> {
    if !pass.leadership.is_leading_now() {
        return Err(Refusal::Conflict);
    }
    let nodes: Api<Node> = Api::all(pass.clients.requests.clone());
    let name = action.node.name.as_str();
    let patched = match json_patch(action) {
        Some(patch) => nodes.patch_metadata(name, &PatchParams::default(), &patch).await,
        None => {
            nodes
                .patch_metadata(name, &PatchParams::default(), &first_annotation(action))
                .await
        }
    };
    match patched.map_err(|error| Refusal::from(&error)) {
        Ok(_) | Err(Refusal::Gone) => Ok(()),
        // A failed `test` of a JSON patch is answered with 422.
        Err(Refusal::Invalid { .. }) => Err(Refusal::Conflict),
        Err(refusal) => Err(refusal),
    }
}

/// The change with a test of what is replaced; `None` if the node has no annotations yet, where there is nothing to test.
fn json_patch(action: &ClockAction) -> Option<Patch<Value>> {
    let annotations = &action.node.drain.as_deref()?.annotations;
    if annotations.is_empty() {
        return None;
    }
    // A test for null holds where the annotation is absent.
    let before = annotations
        .get(annotation::DRAIN_CLOCK)
        .map_or(Value::Null, |text| json!(text));
    let change = match &action.write {
        ClockWrite::Set(clock) => json!({ "op": "add", "path": POINTER, "value": clock.to_string() }),
        ClockWrite::Remove => json!({ "op": "remove", "path": POINTER }),
    };
    let operations = json!([
        { "op": "test", "path": "/metadata/uid", "value": action.node.uid },
        { "op": "test", "path": POINTER, "value": before },
        change,
    ]);
    serde_json::from_value(operations).ok().map(Patch::Json)
}

fn first_annotation(action: &ClockAction) -> Patch<Value> {
    let value = match &action.write {
        ClockWrite::Set(clock) => json!(clock.to_string()),
        ClockWrite::Remove => Value::Null,
    };
    Patch::Merge(json!({ "metadata": { "uid": action.node.uid, "annotations": { annotation::DRAIN_CLOCK: value } } }))
}
