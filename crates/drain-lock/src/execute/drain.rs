//! NodeDrains: taken into care, deleted once they are over, let go once nothing is left of them.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use nodeward_api::finalizer;
use nodeward_api::node_drain::{NodeDrain, Phase};
use nodeward_api::reason::LockReason;
use serde_json::{Value, json};

use crate::observe::project_node;
use crate::snapshot::NodeFacts;

use super::{ActionResult, ExecutorContext, Written};

/// Who stands for a NodeDrain that was made without a requester: its creator, who releases it by deleting it.
const CREATOR: &str = "nodedrain";

pub(super) async fn adopt(context: &ExecutorContext, drain: &NodeDrain, node_uid: &str) -> Written {
    patch(context, drain, &adoption(drain, node_uid)).await
}

/// What takes a NodeDrain into care: the finalizer, the UID of the node, and a requester if there is none.
pub fn adoption(drain: &NodeDrain, node_uid: &str) -> Value {
    let mut finalizers = drain.metadata.finalizers.clone().unwrap_or_default();
    if !finalizers.iter().any(|finalizer| finalizer == finalizer::DRAIN_LOCK) {
        finalizers.push(finalizer::DRAIN_LOCK.to_owned());
    }
    let mut spec = json!({ "nodeUID": node_uid });
    if drain.spec.requesters.is_empty() {
        spec["requesters"] = json!([{ "name": CREATOR }]);
    }
    let metadata = json!({
        "uid": drain.metadata.uid, "resourceVersion": drain.metadata.resource_version, "finalizers": finalizers,
    });
    json!({ "metadata": metadata, "spec": spec })
}

/// Deletes it as it was seen: whoever has joined it since keeps it. What its node was taken for is looked at once more.
pub(super) async fn delete(context: &ExecutorContext, drain: &NodeDrain, reason: LockReason) -> Written {
    if matches!(reason, LockReason::NodeGone | LockReason::Uncordoned) {
        let node = context.api::<Node>().get_opt(&drain.spec.node_name).await?;
        let node = node.as_ref().and_then(project_node);
        if let Some(contradiction) = contradiction(drain, reason, node.as_ref()) {
            return Err(ActionResult::Outdated(contradiction.to_owned()));
        }
    }
    let _permit = context.permits.next_write().await?;
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: drain.metadata.uid.clone(),
        resource_version: drain.metadata.resource_version.clone(),
    });
    let drains: Api<NodeDrain> = context.api();
    drains.delete(&drain.spec.node_name, &params).await?;
    Ok(())
}

/// What speaks against the end of a drain for this reason: its node as it was read just now. Until it is adopted, it
/// means whichever node has the name.
pub fn contradiction(drain: &NodeDrain, reason: LockReason, node: Option<&NodeFacts>) -> Option<&'static str> {
    let is_meant = |uid: &str| drain.spec.node_uid.as_deref().is_none_or(|meant| meant == uid);
    let node = node.filter(|node| is_meant(node.uid.as_str()))?;
    match reason {
        LockReason::NodeGone => Some("the node is there"),
        LockReason::Uncordoned => node.is_cordoned().then_some("the node is cordoned"),
        _ => None,
    }
}

/// Lets it go. Where others keep it, its status says that it is released.
pub(super) async fn finish(context: &ExecutorContext, drain: &NodeDrain) -> Written {
    let Some(released) = released(drain) else {
        return patch(context, drain, &without_our_finalizer(drain)).await;
    };
    let permit = context.permits.next_write().await?;
    let (drains, released) = (context.api::<NodeDrain>(), Patch::Merge(&released));
    let current = drains
        .patch_status(&drain.spec.node_name, &PatchParams::default(), &released)
        .await?;
    drop(permit);
    patch(context, drain, &without_our_finalizer(&current)).await
}

/// The status of a NodeDrain that has nothing left; `None` for one that goes with our finalizer.
fn released(drain: &NodeDrain) -> Option<Value> {
    let mut finalizers = drain.metadata.finalizers.iter().flatten();
    let is_kept = finalizers.any(|name| name != finalizer::DRAIN_LOCK);
    is_kept.then(|| {
        json!({
            "metadata": { "uid": drain.metadata.uid },
            "status": { "phase": Phase::Released.as_str(), "message": "holds nothing any more", "blockedBy": [], "holds": [] },
        })
    })
}

/// What lets a NodeDrain go, as far as drain-lock is concerned. The list is replaced as a whole: a finalizer that another
/// controller has added since makes it outdated.
pub fn without_our_finalizer(current: &NodeDrain) -> Value {
    let finalizers = current.metadata.finalizers.iter().flatten();
    let kept: Vec<&String> = finalizers.filter(|name| *name != finalizer::DRAIN_LOCK).collect();
    let (uid, version) = (&current.metadata.uid, &current.metadata.resource_version);
    json!({ "metadata": { "uid": uid, "resourceVersion": version, "finalizers": kept } })
}

async fn patch(context: &ExecutorContext, drain: &NodeDrain, patch: &Value) -> Written {
    let _permit = context.permits.next_write().await?;
    let (drains, params) = (context.api::<NodeDrain>(), context.patch_params());
    drains
        .patch(&drain.spec.node_name, &params, &Patch::Merge(patch))
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::tests::fixture::{cordoned, merged, node, parse};

    #[test]
    fn finalizers_of_others_outlast_the_drain() {
        let drain = parse(json!({
            "metadata": {
                "name": "n1", "uid": "uid-drain", "resourceVersion": "7",
                "finalizers": ["example.com/audit", finalizer::DRAIN_LOCK],
            },
            "spec": { "nodeName": "n1" },
        }));
        let kept = json!({ "uid": "uid-drain", "resourceVersion": "7", "finalizers": ["example.com/audit"] });
        assert_eq!(without_our_finalizer(&drain), json!({ "metadata": kept }));
    }

    const GONE: LockReason = LockReason::NodeGone;
    const UNCORDONED: LockReason = LockReason::Uncordoned;

    fn another() -> Value {
        merged(cordoned("n1"), json!({ "metadata": { "uid": "uid-another" } }))
    }

    fn scaled_down() -> Value {
        node(
            "n1",
            json!({ "spec": { "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }] } }),
        )
    }

    #[rstest]
    #[case::gone(GONE, Some("uid-n1"), None, None)]
    #[case::gone_and_another_has_its_name(GONE, Some("uid-n1"), Some(another()), None)]
    #[case::there(GONE, Some("uid-n1"), Some(node("n1", json!({}))), Some("the node is there"))]
    #[case::uncordoned(UNCORDONED, Some("uid-n1"), Some(node("n1", json!({}))), None)]
    #[case::uncordoned_and_gone(UNCORDONED, Some("uid-n1"), None, None)]
    #[case::cordoned(UNCORDONED, Some("uid-n1"), Some(cordoned("n1")), Some("the node is cordoned"))]
    #[case::tainted_for_scaling_down(UNCORDONED, Some("uid-n1"), Some(scaled_down()), Some("the node is cordoned"))]
    #[case::another_is_cordoned(UNCORDONED, Some("uid-n1"), Some(another()), None)]
    #[case::cordoned_before_it_was_adopted(UNCORDONED, None, Some(another()), Some("the node is cordoned"))]
    #[case::whatever_the_node_is(LockReason::Abandoned, Some("uid-n1"), Some(cordoned("n1")), None)]
    fn drain_ends_by_its_nodes_present_state(
        #[case] reason: LockReason,
        #[case] node_uid: Option<&str>,
        #[case] node: Option<Value>,
        #[case] expected: Option<&str>,
    ) {
        let drain = json!({ "metadata": { "name": "n1" }, "spec": { "nodeName": "n1", "nodeUID": node_uid } });
        let drain: NodeDrain = serde_json::from_value(drain).unwrap();
        let node = node.and_then(|node| project_node(&parse(node)));
        assert_eq!(contradiction(&drain, reason, node.as_ref()), expected);
    }
}
