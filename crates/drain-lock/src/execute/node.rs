//! The node's cordon, taint and conditions. Each write rests on the node as it was read just before.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodeward_api::{NodeDrain, annotation, taint};
use nodeward_core::deadline::to_the_second;
use serde_json::{Value, json};

use crate::plan::node_markers::{ConditionWrite, Cordon, DRAIN_CONDITIONS, NodeWrite};

use super::{ActionResult, ExecutorContext, Written, fresh};

/// Cordons, uncordons, taints.
pub(super) async fn write(context: &ExecutorContext, write: &NodeWrite) -> Written {
    let name = write.node.name.as_str();
    let seen = context.pass.snapshot.drains.get(name).map(Arc::as_ref);
    if lifts_unseen(write, seen) {
        let present = context.api::<NodeDrain>().get_metadata_opt(name).await?;
        if is_news(present.as_ref().map(|drain| &drain.metadata), seen) {
            let unseen = "the node has a drain that was not seen";
            return Err(ActionResult::Outdated(unseen.to_owned()));
        }
    }
    let nodes: Api<Node> = context.api();
    let node = nodes.get_opt(name).await?;
    let is_meant = |node: &Node| node.metadata.uid.as_deref() == Some(write.node.uid.as_str());
    let node = node.filter(is_meant).ok_or(ActionResult::AlreadyDone)?;
    let patch = patch(&node, write).map_err(|contradiction| ActionResult::Outdated(contradiction.to_owned()))?;
    let patch = patch.ok_or(ActionResult::AlreadyDone)?;
    let _permit = context.permits.next_write().await?;
    nodes
        .patch(name, &context.patch_params(), &Patch::Merge(&patch))
        .await?;
    Ok(())
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
    let spec = node.spec.as_ref();
    let is_unschedulable = spec.and_then(|spec| spec.unschedulable).unwrap_or_default();
    let annotations = node.metadata.annotations.as_ref();
    let cordoned_by = annotations.and_then(|annotations| annotations.get(annotation::CORDONED_BY));
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
    let taints = || spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    let is_queued = taints().any(|present| present.key == taint::QUEUED);
    if is_queued != write.queued {
        is_changed = true;
        let others = taints().filter(|present| present.key != taint::QUEUED);
        let mut taints: Vec<Value> = others.map(|present| json!(present)).collect();
        if write.queued {
            taints.push(json!({ "key": taint::QUEUED, "effect": taint::QUEUED_EFFECT }));
        }
        // The list is replaced as a whole: the resource version sees to it that nobody else's taint is lost.
        patch["spec"]["taints"] = json!(taints);
    }
    Ok(is_changed.then_some(patch))
}

/// Says on the node how far its drain has come: a strategic merge, so that the other conditions stay.
pub(super) async fn write_conditions(context: &ExecutorContext, write: &ConditionWrite) -> Written {
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
    let _permit = context.permits.next_write().await?;
    let (name, patch) = (write.node.name.as_str(), Patch::Strategic(patch));
    let nodes: Api<Node> = context.api();
    nodes.patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::*;
    use crate::observe::project_node;
    use crate::tests::fixture;

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
    fn unseen_running_drain_is_news(
        #[case] seen: Option<(&str, bool)>,
        #[case] present: Option<(&str, bool)>,
        #[case] expected: bool,
    ) {
        let (seen, present) = (seen.map(drain), present.map(drain));
        let present = present.as_ref().map(|drain| &drain.metadata);
        assert_eq!(is_news(present, seen.as_ref()), expected);
    }
}
