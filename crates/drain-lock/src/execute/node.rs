//! The node's cordon, taint and conditions. Each write rests on the node as it was read just before.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::{annotation, condition, taint};
use nodeward_core::deadline::to_the_second;
use serde_json::{Value, json};

use crate::plan::node_marks::{ConditionWrite, Cordon, NodeWrite};

use super::{Done, Means};

/// Cordons, uncordons, taints.
pub(super) async fn write(means: &Means, write: &NodeWrite) -> Done {
    let nodes: Api<Node> = Api::all(means.clients.requests.clone());
    let node = match nodes.get_opt(write.node.name.as_str()).await {
        Ok(Some(node)) if node.metadata.uid.as_deref() == Some(write.node.uid.as_str()) => node,
        Ok(_) => return Done::Nothing,
        Err(error) => return error.into(),
    };
    let patch = match patch(&node, write) {
        Ok(Some(patch)) => patch,
        Ok(None) => return Done::Nothing,
        Err(doubt) => return Done::Outdated(doubt.to_owned()),
    };
    if let Err(done) = means.may_write() {
        return done;
    }
    let params = PatchParams {
        field_manager: Some(means.field_manager.to_owned()),
        ..PatchParams::default()
    };
    match nodes
        .patch(write.node.name.as_str(), &params, &Patch::Merge(&patch))
        .await
    {
        Ok(_) => Done::Acted,
        Err(error) => error.into(),
    }
}

/// The change of a node as it is now; `None` if it is so already.
fn patch(node: &Node, write: &NodeWrite) -> Result<Option<Value>, &'static str> {
    let is_unschedulable = node
        .spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default();
    let cordoned_by = node
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(annotation::CORDONED_BY));
    let mut patch = json!({ "metadata": {
        "uid": node.metadata.uid,
        "resourceVersion": node.metadata.resource_version,
    } });
    let mut is_changed = true;
    match &write.cordon {
        Cordon::Keep => is_changed = false,
        Cordon::Set { by } => {
            if is_unschedulable && cordoned_by.is_none() {
                return Err("somebody else has cordoned the node");
            }
            if cordoned_by.is_some_and(|present| present == by) && !is_unschedulable {
                return Err("somebody else has uncordoned the node");
            }
            patch["metadata"]["annotations"] = json!({ annotation::CORDONED_BY: by });
            patch["spec"] = json!({ "unschedulable": true });
        }
        Cordon::Lift | Cordon::Forget => {
            if cordoned_by.map(String::as_str) != write.node.cordoned_by.as_deref() {
                return Err("the node's cordon is another one now");
            }
            patch["metadata"]["annotations"] = json!({ annotation::CORDONED_BY: null });
            if write.cordon == Cordon::Lift {
                patch["spec"] = json!({ "unschedulable": null });
            } else if is_unschedulable {
                return Err("the node is cordoned again");
            }
        }
    }
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    let is_queued = taints.iter().any(|present| present.key == taint::QUEUED);
    if is_queued != write.queued {
        is_changed = true;
        let mut taints: Vec<Value> = taints
            .iter()
            .filter(|present| present.key != taint::QUEUED)
            .map(|present| json!(present))
            .collect();
        if write.queued {
            taints.push(json!({ "key": taint::QUEUED, "effect": taint::QUEUED_EFFECT }));
        }
        if patch["spec"].is_null() {
            patch["spec"] = json!({});
        }
        // The list is replaced as a whole: the resource version sees to it that nobody else's taint is lost.
        patch["spec"]["taints"] = json!(taints);
    }
    Ok(is_changed.then_some(patch))
}

/// Says on the node how far its drain has come: a strategic merge, so that the other conditions stay.
pub(super) async fn write_conditions(means: &Means, write: &ConditionWrite) -> Done {
    let nodes: Api<Node> = Api::all(means.clients.requests.clone());
    let now = to_the_second(Timestamp::now());
    let conditions: Vec<Value> = match write.progress {
        Some(progress) => progress
            .conditions()
            .iter()
            .map(|(kind, holds, reason)| {
                let status = if *holds { "True" } else { "False" };
                let before = write
                    .node
                    .drain_conditions
                    .get(*kind)
                    .filter(|before| *before.status == *status);
                let since = before
                    .and_then(|before| before.last_transition)
                    .map_or_else(|| now.clone(), to_the_second);
                json!({ "type": kind, "status": status, "reason": reason, "lastTransitionTime": since })
            })
            .collect(),
        None => [condition::DRAIN_IN_PROGRESS, condition::DRAINED]
            .iter()
            .map(|kind| json!({ "type": kind, "$patch": "delete" }))
            .collect(),
    };
    let patch = json!({ "metadata": { "uid": write.node.uid }, "status": { "conditions": conditions } });
    match nodes
        .patch_status(
            write.node.name.as_str(),
            &PatchParams::default(),
            &Patch::Strategic(patch),
        )
        .await
    {
        Ok(_) => Done::Acted,
        Err(error) => error.into(),
    }
}
