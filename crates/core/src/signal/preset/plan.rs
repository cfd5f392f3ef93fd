//! Plans of Rancher's system-upgrade-controller.

use serde_json::Value;

use super::super::answer::{Answer, SignalNote};
use super::super::inputs::{SignalInputs, WatchedResource};
use crate::node::NodeView;

/// Plans, whose status lists the nodes that they are being applied to, by `kubernetes.io/hostname`.
pub(super) fn kind() -> WatchedResource {
    WatchedResource::all("upgrade.cattle.io/v1", "Plan")
}

/// Whether the Plan drains nodes before it is applied to them.
pub(super) fn drains(plan: &Value) -> bool {
    plan.pointer("/spec/drain").is_some_and(Value::is_object)
}

/// Whether a Plan that `concerns` us is being applied to the node.
pub(super) fn is_applied(inputs: &SignalInputs, node: &NodeView, concerns: impl Fn(&Value) -> bool) -> Answer {
    let plans = match inputs.objects(&kind()) {
        Ok(plans) => plans,
        Err(answer) => return answer,
    };
    let hostname = node.labels.get("kubernetes.io/hostname").unwrap_or(node.name.as_str());
    Answer::any_of(
        plans
            .iter()
            .filter(|plan| concerns(plan))
            .map(|plan| is_applied_to(plan, hostname)),
    )
}

fn is_applied_to(plan: &Value, hostname: &str) -> Answer {
    match plan.pointer("/status/applying") {
        None | Some(Value::Null) => Answer::no(),
        Some(Value::Array(nodes)) if nodes.iter().all(Value::is_string) => {
            if nodes.iter().any(|node| node == hostname) {
                Answer::yes(None)
            } else {
                Answer::no()
            }
        }
        Some(_) => {
            let name = plan
                .pointer("/metadata/name")
                .and_then(Value::as_str)
                .unwrap_or("without a name");
            Answer::unknown(SignalNote::warning(
                format!("malformed/Plan/{name}"),
                format!("Plan {name} cannot be read: status.applying is not a list of node names."),
            ))
        }
    }
}
