//! Known systems by name. Each brings its signal, its own mark of a cordoned node that is being drained, taints that
//! cordon, and a sentence on what must be switched on there.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer::{Answer, SignalNote};
use super::inputs::{KindOfInterest, SignalInputs};
use super::node_mark::NodeMark;
use crate::node::{DrainingNode, KARPENTER_DISRUPTED_TAINT, NodeView};

/// A system that upgrades or replaces nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Preset {
    /// kured reboots nodes; it annotates them only with `--annotate-nodes`.
    Kured,
    /// Cluster API taints the nodes of an outdated revision for the length of a rollout (1.6 and later).
    ClusterApi,
    /// Karpenter taints a node when it begins to drain it, and never sets `spec.unschedulable`.
    Karpenter,
    /// Rancher's system-upgrade-controller lists in a Plan's status the nodes that it is at work on.
    SystemUpgradeController,
    /// Talos annotates nodes that it has cordoned itself.
    Talos,
}

/// The nodes that a Plan is being applied to, by `kubernetes.io/hostname`.
fn plan_kind() -> KindOfInterest {
    KindOfInterest::all("upgrade.cattle.io/v1", "Plan")
}

impl Preset {
    /// Every preset.
    pub const ALL: [Self; 5] = [
        Self::Kured,
        Self::ClusterApi,
        Self::Karpenter,
        Self::SystemUpgradeController,
        Self::Talos,
    ];

    /// Its name in configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kured => "kured",
            Self::ClusterApi => "clusterApi",
            Self::Karpenter => "karpenter",
            Self::SystemUpgradeController => "systemUpgradeController",
            Self::Talos => "talos",
        }
    }

    /// What the user must switch on for it to work, a sentence.
    pub const fn requirement(self) -> &'static str {
        match self {
            Self::Kured => {
                "kured marks the node that it reboots only when it runs with --annotate-nodes (chart: configuration.annotateNodes: true)."
            }
            Self::ClusterApi => {
                "Cluster API (1.6 or later) marks outdated nodes during the rollout of a MachineDeployment, and by nothing else: \
                 control planes, MachinePools and single Machines need countsAsDrain and a signal of your own."
            }
            Self::Karpenter => {
                "Karpenter (0.36 or later) marks every node that it drains; nothing need be switched on."
            }
            Self::SystemUpgradeController => {
                "system-upgrade-controller drains only where a Plan has spec.drain; its Plans must be readable \
                 (apiGroups: [\"upgrade.cattle.io\"], resources: [\"plans\"], verbs: [\"get\", \"list\", \"watch\"])."
            }
            Self::Talos => {
                "Talos marks nodes that it cordons itself, as talosctl upgrade and reboot do; a node that was cordoned before is not marked."
            }
        }
    }

    /// The mark on the node, where the system leaves one.
    fn node_mark(self) -> Option<NodeMark> {
        match self {
            Self::Kured => Some(NodeMark::annotation("weave.works/kured-reboot-in-progress")),
            Self::ClusterApi => Some(NodeMark::taint("node.cluster.x-k8s.io/outdated-revision", None)),
            Self::Karpenter => Some(NodeMark::taint(KARPENTER_DISRUPTED_TAINT, Some("NoSchedule"))),
            Self::SystemUpgradeController => None,
            Self::Talos => Some(NodeMark::annotation("talos.dev/cordoned").with_value("true")),
        }
    }

    /// The taint that stands for `spec.unschedulable`.
    pub(super) fn cordon_taint(self) -> Option<NodeMark> {
        (self == Self::Karpenter).then(|| NodeMark::taint(KARPENTER_DISRUPTED_TAINT, Some("NoSchedule")))
    }

    pub(super) fn kinds(self) -> Vec<KindOfInterest> {
        if self == Self::SystemUpgradeController {
            vec![plan_kind()]
        } else {
            Vec::new()
        }
    }

    pub(super) fn evaluate(self, inputs: &SignalInputs, node: &NodeView, details: &DrainingNode) -> Answer {
        match self.node_mark() {
            Some(mark) => mark.as_answer(details),
            None => plans(inputs, node, details, |_| true),
        }
    }

    /// Whether the system is draining this cordoned node, and what says so.
    pub(super) fn is_draining(self, inputs: &SignalInputs, node: &NodeView, details: &DrainingNode) -> (bool, String) {
        if let Some(mark) = self.node_mark() {
            return (mark.is_on(details), mark.to_string());
        }
        let drains = |plan: &Value| plan.pointer("/spec/drain").is_some_and(Value::is_object);
        let answer = plans(inputs, node, details, drains);
        (
            answer.truth == super::Truth::Yes,
            "a Plan with spec.drain that lists the node in status.applying".to_owned(),
        )
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a Plan that `concerns` us is being applied to the node.
fn plans(inputs: &SignalInputs, node: &NodeView, details: &DrainingNode, concerns: impl Fn(&Value) -> bool) -> Answer {
    let plans = match inputs.objects(&plan_kind()) {
        Ok(plans) => plans,
        Err(answer) => return answer,
    };
    let hostname = details
        .labels
        .get("kubernetes.io/hostname")
        .map_or(node.name.as_str(), String::as_str);
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
