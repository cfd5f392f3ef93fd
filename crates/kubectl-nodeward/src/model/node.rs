//! A node, as far as drains are concerned.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_api::drain_clock::{ClockSource, DrainClock};
use nodeward_core::node::{AUTOSCALER_TAINT, KARPENTER_DISRUPTED_TAINT, UNSCHEDULABLE_TAINT};
use nodeward_core::verdict::BlockedMessage;
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSummary {
    pub name: String,
    pub ready: bool,
    /// Whether no new pod is to come to it: it is cordoned, or about to be removed.
    pub cordoned: bool,
    /// Since when it is cordoned, where its taint says so.
    pub cordoned_since: Option<Timestamp>,
    pub drain_keeper: Option<KeeperVerdict>,
}

/// What drain-keeper says of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeeperVerdict {
    /// When the drain that it times began.
    pub drain_began: Option<Timestamp>,
    /// What that was read from.
    pub drain_began_from: Option<ClockSource>,
    /// Since when the drain waits for its turn, by which its beginning then moves forward.
    pub clock_suspended_since: Option<Timestamp>,
    /// What keeps the drain from ending: the condition is `True`.
    pub blocked: Option<Blocked>,
    /// The gate that keeps it from acting on the node: the condition is `False`.
    pub gate: Option<Blocked>,
}

/// The condition `nodeward.dev/DrainBlocked`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocked {
    pub reason: String,
    /// Since when its status is what it is.
    pub since: Option<Timestamp>,
    pub message: String,
    /// The message, taken apart; absent where it names no pods.
    pub pods: Option<BlockedMessage>,
}

impl NodeSummary {
    pub fn of(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let taints = || spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        let leaves = [UNSCHEDULABLE_TAINT, KARPENTER_DISRUPTED_TAINT, AUTOSCALER_TAINT];
        let cordon = taints().find(|taint| leaves.contains(&taint.key.as_str()));
        Self {
            name: node.name_any(),
            ready: condition(node, "Ready").is_some_and(|condition| condition.status == "True"),
            cordoned: cordon.is_some() || spec.is_some_and(|spec| spec.unschedulable == Some(true)),
            cordoned_since: cordon.and_then(|taint| taint.time_added.as_ref()).map(|time| time.0),
            drain_keeper: KeeperVerdict::of(node),
        }
    }
}

impl KeeperVerdict {
    fn of(node: &Node) -> Option<Self> {
        let clock = DrainClock::of(node.annotations())
            .and_then(Result::ok)
            .filter(|clock| !clock.ended);
        let told = |status| condition(node, DRAIN_BLOCKED).filter(|condition| condition.status == status);
        let verdict = Self {
            drain_began: clock.as_ref().map(|clock| clock.start),
            drain_began_from: clock.as_ref().map(|clock| clock.from),
            clock_suspended_since: clock.as_ref().and_then(|clock| clock.suspended_at),
            blocked: told("True").map(Blocked::of),
            gate: told("False").map(Blocked::of),
        };
        (verdict.drain_began.is_some() || verdict.blocked.is_some() || verdict.gate.is_some()).then_some(verdict)
    }
}

impl Blocked {
    fn of(condition: &NodeCondition) -> Self {
        let message = condition.message.clone().unwrap_or_default();
        Self {
            reason: condition.reason.clone().unwrap_or_default(),
            since: condition.last_transition_time.as_ref().map(|time| time.0),
            pods: BlockedMessage::parse(&message),
            message,
        }
    }
}

pub fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == type_)
}
