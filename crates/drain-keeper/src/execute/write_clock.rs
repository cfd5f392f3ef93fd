//! Write the drain clock into the Node's annotation, on top of nothing but what was read there.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::annotation;
use nodeward_runtime::{ActionResult, ApiError, Permits};
use serde_json::{Value, json};

use crate::clock::ClockWrite;
use crate::plan::ClockAction;

use super::PassContext;

/// Writes it. A node of another UID, or an annotation that has changed since it was read, is a conflict.
pub(super) async fn write(context: &PassContext, permits: &Permits, action: &ClockAction) -> Result<(), ActionResult> {
    let patch = match serde_json::from_value(operations(action)) {
        Ok(operations) => Patch::Json::<Value>(operations),
        Err(error) => {
            let message = error.to_string();
            return Err(ActionResult::Failed(ApiError::Invalid { message }));
        }
    };
    let _permit = permits.next_write().await?;
    let nodes: Api<Node> = Api::all(context.clients.requests.clone());
    let patched = nodes
        .patch_metadata(action.node.name.as_str(), &PatchParams::default(), &patch)
        .await;
    match patched.map_err(ApiError::from) {
        Ok(_) => Ok(()),
        // A failed `test` of a JSON patch is answered with 422.
        Err(ApiError::Invalid { .. }) => Err(ActionResult::Failed(ApiError::Conflict)),
        Err(ApiError::NotFound) => Err(ActionResult::AlreadyDone),
        Err(error) => Err(ActionResult::Failed(error)),
    }
}

/// A JSON patch: the change, after a test of what it replaces. A test for null holds where there is nothing.
pub fn operations(action: &ClockAction) -> Value {
    let annotations = Some(&action.node.annotations).filter(|annotations| !annotations.is_empty());
    let (path, before, after) = match (annotations, &action.write) {
        (Some(annotations), write) => {
            let before = annotations
                .get(annotation::DRAIN_CLOCK)
                .map_or(Value::Null, |text| json!(text));
            let after = match write {
                ClockWrite::Set(clock) => json!(clock.to_string()),
                ClockWrite::Remove => Value::Null,
            };
            (
                format!("/metadata/annotations/{}", annotation::DRAIN_CLOCK.replace('/', "~1")),
                before,
                after,
            )
        }
        (None, ClockWrite::Set(clock)) => (
            "/metadata/annotations".to_owned(),
            Value::Null,
            json!({ annotation::DRAIN_CLOCK: clock.to_string() }),
        ),
        (None, ClockWrite::Remove) => ("/metadata/annotations".to_owned(), Value::Null, Value::Null),
    };
    let mut operations = vec![
        json!({ "op": "test", "path": "/metadata/uid", "value": action.node.uid }),
        json!({ "op": "test", "path": path, "value": before }),
    ];
    match (before.is_null(), after.is_null()) {
        (_, false) => operations.push(json!({ "op": "add", "path": path, "value": after })),
        (false, true) => operations.push(json!({ "op": "remove", "path": path })),
        (true, true) => {}
    }
    Value::Array(operations)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nodeward_core::node::NodeView;
    use rstest::rstest;

    use super::*;
    use crate::plan::tests::world::{clock, node};

    #[rstest]
    #[case::first_of_a_node_without_annotations(json!({}), json!([
        { "op": "test", "path": "/metadata/annotations", "value": null },
        { "op": "add", "path": "/metadata/annotations", "value": { "nodeward.dev/drain-clock": clock(0) } },
    ]))]
    #[case::first_beside_others(json!({ "a": "b" }), json!([
        { "op": "test", "path": "/metadata/annotations/nodeward.dev~1drain-clock", "value": null },
        { "op": "add", "path": "/metadata/annotations/nodeward.dev~1drain-clock", "value": clock(0) },
    ]))]
    #[case::in_place_of_another(json!({ "nodeward.dev/drain-clock": "old" }), json!([
        { "op": "test", "path": "/metadata/annotations/nodeward.dev~1drain-clock", "value": "old" },
        { "op": "add", "path": "/metadata/annotations/nodeward.dev~1drain-clock", "value": clock(0) },
    ]))]
    fn clock_write_requires_the_read_version(#[case] annotations: Value, #[case] expected: Value) {
        let mut object = node("n1");
        object["metadata"]["annotations"] = annotations;
        let view = NodeView::project(&serde_json::from_value(object).unwrap()).unwrap();
        let clock = nodeward_api::drain_clock::DrainClock::parse(&clock(0)).unwrap();
        let action = ClockAction {
            node: Arc::new(view),
            write: ClockWrite::Set(clock),
        };
        assert_eq!(
            operations(&action).as_array().unwrap()[1..],
            *expected.as_array().unwrap()
        );
    }
}
