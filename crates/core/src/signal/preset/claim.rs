//! Objects that stand for a node where it came from: Cluster API's Machines, Karpenter's NodeClaims.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::super::answer::{Answer, SignalNote};
use super::super::inputs::{KindState, SignalInputs, WatchedResource, full_name};
use crate::node::NodeView;

/// A kind of Cluster API's, which serves the older version until it is removed, and the newer from 1.11 on.
pub(super) fn in_all_versions(kind: &str) -> [WatchedResource; 2] {
    ["cluster.x-k8s.io/v1beta2", "cluster.x-k8s.io/v1beta1"].map(|version| WatchedResource::all(version, kind))
}

pub(super) fn machine_kinds() -> [WatchedResource; 2] {
    in_all_versions("Machine")
}

pub(super) fn node_claim_kind() -> WatchedResource {
    WatchedResource::all("karpenter.sh/v1", "NodeClaim")
}

/// Of the versions of a kind, the first that could be listed, or else the first that is served.
pub(super) fn served<'a>(inputs: &SignalInputs, kinds: &'a [WatchedResource]) -> Option<&'a WatchedResource> {
    let served = || kinds.iter().filter(|kind| *inputs.get(kind) != KindState::Absent);
    let listed = served().find(|kind| matches!(inputs.get(kind), KindState::Synced(_)));
    listed.or_else(|| served().next())
}

/// Whether the node's Machine is being deleted, which begins with its drain. Where no Machines are served, the cluster is
/// managed from another one, and nothing can be told.
pub(super) fn machine_is_deleted(inputs: &SignalInputs, node: &NodeView) -> Answer {
    if served(inputs, &machine_kinds()).is_none() {
        return Answer::unknown(SignalNote::warning(
            "absent/cluster.x-k8s.io/Machine",
            "The API server does not serve Cluster API's Machines: this cluster is managed from another one. Use \
             countsAsDrain: all with a signal of your own, or a resource signal, in place of the preset clusterApi.",
        ));
    }
    match machine_of(inputs, node) {
        Ok(machine) => {
            let deleted = machine.and_then(|machine| deleted_at(&machine));
            deleted.map_or_else(Answer::no, |at| Answer::yes(Some(at)))
        }
        Err(note) => Answer::unknown(note),
    }
}

/// The Machine of the node. A management cluster has other clusters' Machines, too, with nodes of the same names.
///
/// # Errors
/// When it cannot be told.
pub(super) fn machine_of(inputs: &SignalInputs, node: &NodeView) -> Result<Option<Arc<Value>>, SignalNote> {
    let kinds = machine_kinds();
    let Some(kind) = served(inputs, &kinds) else {
        return Ok(None);
    };
    let named = match inputs.objects_of(kind, "/status/nodeRef/name", &node.name) {
        Ok(named) => named,
        Err(answer) => {
            let unknown = || SignalNote::warning(format!("unknown/{kind}"), format!("{kind} is not known."));
            return Err(answer.notes.into_iter().next().unwrap_or_else(unknown));
        }
    };
    let text = |machine: &Value, pointer: &str| machine.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let is_its = |machine: &Arc<Value>| {
        let provider_id = text(machine, "/spec/providerID");
        let uid = text(machine, "/status/nodeRef/uid");
        provider_id.is_none_or(|id| node.provider_id.as_deref() == Some(&*id))
            && uid.is_none_or(|uid| uid == node.uid.as_str())
    };
    let mut machines: Vec<Arc<Value>> = named.into_iter().filter(is_its).collect();
    if machines.len() > 1 {
        let mut names: Vec<String> = machines.iter().map(|machine| full_name(machine)).collect();
        names.sort();
        return Err(SignalNote::warning(
            format!("several/Machine/{}", node.name),
            format!(
                "Several Machines are this node's: {}. Delete those that are not.",
                names.join(", ")
            ),
        ));
    }
    Ok(machines.pop())
}

/// Whether Karpenter disrupts the node for one of these reasons, since it decided to.
pub(super) fn is_disrupted(inputs: &SignalInputs, node: &NodeView, reasons: &[String]) -> Answer {
    with_claim_of(inputs, node, |claim| {
        let conditions = claim.pointer("/status/conditions").and_then(Value::as_array);
        let disrupted = conditions.into_iter().flatten().find(|condition| {
            condition.get("type").and_then(Value::as_str) == Some("DisruptionReason")
                && condition.get("status").and_then(Value::as_str) == Some("True")
        });
        let Some(disrupted) = disrupted else {
            return Answer::no();
        };
        let reason = disrupted.get("reason").and_then(Value::as_str).unwrap_or_default();
        if reasons.iter().any(|counts| counts == reason) {
            return Answer::yes(time(disrupted.get("lastTransitionTime")));
        }
        let name = full_name(claim);
        Answer::no().with_note(SignalNote::info(
            format!("reason/NodeClaim/{name}/{reason}"),
            format!("NodeClaim {name} is disrupted for {reason:?}, which is not among the preset's reasons."),
        ))
    })
}

/// Whether the node's NodeClaim is being deleted: only then does Karpenter drain; before, it waits for replacements.
pub(super) fn is_deleted(inputs: &SignalInputs, node: &NodeView) -> Answer {
    with_claim_of(inputs, node, |claim| {
        deleted_at(claim).map_or_else(Answer::no, |at| Answer::yes(Some(at)))
    })
}

fn with_claim_of(inputs: &SignalInputs, node: &NodeView, judge: impl Fn(&Value) -> Answer) -> Answer {
    with_object_of(inputs, &node_claim_kind(), "/status/nodeName", node, judge)
}

/// What `judge` says of the object whose field at `pointer` names the node; No if there is none.
fn with_object_of(
    inputs: &SignalInputs,
    kind: &WatchedResource,
    pointer: &str,
    node: &NodeView,
    judge: impl Fn(&Value) -> Answer,
) -> Answer {
    match inputs.objects_of(kind, pointer, &node.name) {
        Ok(objects) => Answer::any_of(objects.iter().map(|object| judge(object))),
        Err(answer) => answer,
    }
}

fn deleted_at(object: &Value) -> Option<Timestamp> {
    time(object.pointer("/metadata/deletionTimestamp"))
}

fn time(value: Option<&Value>) -> Option<Timestamp> {
    value?.as_str()?.parse().ok()
}
