//! The node's cordon, taint and conditions. Each write rests on the node as it was read just before.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::{NodeDrain, annotation, taint};
use nodeward_core::deadline::to_the_second;
use serde_json::{Value, json};

use crate::plan::node_markers::{ConditionWrite, Cordon, DRAIN_CONDITIONS, NodeWrite};

use super::{ActionResult, ExecutorContext, fresh};

/// Cordons, uncordons, taints. `seen` is the node's drain as the plan saw it.
pub(super) async fn write(context: &ExecutorContext, write: &NodeWrite, seen: Option<&NodeDrain>) -> ActionResult {
    if lifts_unseen(write, seen) {
        let drains: Api<NodeDrain> = Api::all(context.clients.requests.clone());
        match drains.get_metadata_opt(write.node.name.as_str()).await {
            Ok(present) if is_news(present.as_ref().map(|drain| &drain.metadata), seen) => {
                return ActionResult::Outdated("the node has a drain that was not seen".to_owned());
            }
            Ok(_) => {}
            Err(error) => return error.into(),
        }
    }
    let nodes: Api<Node> = Api::all(context.clients.requests.clone());
    let node = match nodes.get_opt(write.node.name.as_str()).await {
        Ok(Some(node)) if node.metadata.uid.as_deref() == Some(write.node.uid.as_str()) => node,
        Ok(_) => return ActionResult::AlreadyDone,
        Err(error) => return error.into(),
    };
    let patch = match patch(&node, write) {
        Ok(Some(patch)) => patch,
        Ok(None) => return ActionResult::AlreadyDone,
        Err(doubt) => return ActionResult::Outdated(doubt.to_owned()),
    };
    let _permit = match context.permits.next_write().await {
        Ok(permit) => permit,
        Err(stop) => return stop.into(),
    };
    let params = PatchParams {
        field_manager: Some(context.field_manager.to_owned()),
        ..PatchParams::default()
    };
    match nodes
        .patch(write.node.name.as_str(), &params, &Patch::Merge(&patch))
        .await
    {
        Ok(_) => ActionResult::Acted(()),
        Err(error) => error.into(),
    }
}

/// Whether this lifts a cordon of ours whose drain the plan did not see. With the drain in sight it is lifted in full
/// knowledge: the drain is over, or its turn is.
fn lifts_unseen(write: &NodeWrite, seen: Option<&NodeDrain>) -> bool {
    let is_seen = |by: &str| uid_of(seen.map(|drain| &drain.metadata)) == Some(by);
    let lifts = matches!(write.cordon, Cordon::Lift | Cordon::Forget);
    lifts && write.node.cordoned_by().is_some_and(|by| !is_seen(by))
}

/// Whether the node's drain as it was read just now goes on, and is not the one that the plan saw.
fn is_news(present: Option<&ObjectMeta>, seen: Option<&NodeDrain>) -> bool {
    present.is_some_and(fresh::goes_on) && uid_of(present) != uid_of(seen.map(|drain| &drain.metadata))
}

fn uid_of(metadata: Option<&ObjectMeta>) -> Option<&str> {
    metadata.and_then(|metadata| metadata.uid.as_deref())
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
            if cordoned_by.map(String::as_str) != write.node.cordoned_by() {
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
pub(super) async fn write_conditions(context: &ExecutorContext, write: &ConditionWrite) -> ActionResult {
    let nodes: Api<Node> = Api::all(context.clients.requests.clone());
    let now = to_the_second(Timestamp::now());
    let conditions: Vec<Value> = match write.progress {
        Some(progress) => progress
            .conditions()
            .iter()
            .map(|(kind, holds, reason)| {
                let status = if *holds { "True" } else { "False" };
                let before = write.node.condition(kind).filter(|before| *before.status == *status);
                let since = before
                    .and_then(|before| before.last_transition)
                    .map_or_else(|| now.clone(), to_the_second);
                json!({ "type": kind, "status": status, "reason": reason, "lastTransitionTime": since })
            })
            .collect(),
        None => DRAIN_CONDITIONS
            .iter()
            .map(|kind| json!({ "type": kind, "$patch": "delete" }))
            .collect(),
    };
    let patch = json!({ "metadata": { "uid": write.node.uid }, "status": { "conditions": conditions } });
    let _permit = match context.permits.next_write().await {
        Ok(permit) => permit,
        Err(stop) => return stop.into(),
    };
    match nodes
        .patch_status(
            write.node.name.as_str(),
            &PatchParams::default(),
            &Patch::Strategic(patch),
        )
        .await
    {
        Ok(_) => ActionResult::Acted(()),
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::*;
    use crate::observe::project_node;
    use crate::snapshot::fixture;

    /// A drain of this UID, and whether it is being deleted.
    fn drain((uid, is_over): (&str, bool)) -> NodeDrain {
        let end = is_over.then_some("2026-01-01T12:00:00Z");
        fixture::parse(json!({
            "metadata": { "name": "n1", "uid": uid, "deletionTimestamp": end }, "spec": { "nodeName": "n1" },
        }))
    }

    const ONE: (&str, bool) = ("uid-1", false);
    const TWO: (&str, bool) = ("uid-2", false);

    fn handed_on() -> Cordon {
        Cordon::Set { by: "uid-2".to_owned() }
    }

    #[rstest]
    #[case::its_drain_was_seen(Some("uid-1"), Cordon::Lift, Some(ONE), false)]
    #[case::no_drain_was_seen(Some("uid-1"), Cordon::Lift, None, true)]
    #[case::another_drain_was_seen(Some("uid-1"), Cordon::Lift, Some(TWO), true)]
    #[case::only_its_annotation_goes(Some("uid-1"), Cordon::Forget, None, true)]
    #[case::it_stays(Some("uid-1"), Cordon::Keep, None, false)]
    #[case::it_is_handed_on(Some("uid-1"), handed_on(), Some(TWO), false)]
    #[case::there_is_none_of_ours(None, Cordon::Keep, None, false)]
    fn a_cordon_whose_drain_nobody_saw_is_doubted(
        #[case] cordoned_by: Option<&str>,
        #[case] cordon: Cordon,
        #[case] seen: Option<(&str, bool)>,
        #[case] expected: bool,
    ) {
        let by = cordoned_by.map_or(
            json!({}),
            |by| json!({ "metadata": { "annotations": { annotation::CORDONED_BY: by } } }),
        );
        let node = fixture::merged(fixture::cordoned("n1"), by);
        let write = NodeWrite {
            node: Arc::new(project_node(&fixture::parse(node)).unwrap()),
            cordon,
            queued: false,
        };
        assert_eq!(lifts_unseen(&write, seen.map(drain).as_ref()), expected);
    }

    #[rstest]
    #[case::there_is_none(None, None, false)]
    #[case::it_goes_on(None, Some(ONE), true)]
    #[case::it_is_over(None, Some(("uid-1", true)), false)]
    #[case::it_was_seen(Some(TWO), Some(TWO), false)]
    #[case::another_was_seen(Some(TWO), Some(ONE), true)]
    #[case::what_was_seen_is_gone(Some(TWO), None, false)]
    fn a_drain_that_goes_on_and_was_not_seen_is_news(
        #[case] seen: Option<(&str, bool)>,
        #[case] present: Option<(&str, bool)>,
        #[case] expected: bool,
    ) {
        let (seen, present) = (seen.map(drain), present.map(drain));
        let present = present.as_ref().map(|drain| &drain.metadata);
        assert_eq!(is_news(present, seen.as_ref()), expected);
    }
}
