//! Known systems by name. Each brings its signal, its own mark of a cordoned node that is being drained, taints that
//! cordon, and a sentence on what must be switched on there.

use serde::Deserialize;
use serde_json::Value;

use super::answer::{Answer, SignalNote};
use super::inputs::{SignalInputs, WatchedResource};
use super::node_marker::{NodeMarker, NodeMarkerPlace};
use crate::node::{KARPENTER_DISRUPTED_TAINT, NodeView};

/// A system that upgrades or replaces nodes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, strum::Display, strum::IntoStaticStr, strum::VariantArray,
)]
#[serde(rename_all = "camelCase")]
#[strum(serialize_all = "camelCase")]
pub enum Preset {
    /// kured reboots nodes; it annotates them only with `--annotate-nodes`.
    Kured,
    /// Cluster API taints the nodes of an outdated revision for the length of a rollout (1.8 and later).
    ClusterApi,
    /// Karpenter taints a node when it begins to drain it, and never sets `spec.unschedulable`.
    Karpenter,
    /// Rancher's system-upgrade-controller lists in a Plan's status the nodes that it is at work on.
    SystemUpgradeController,
    /// Talos annotates nodes that it has cordoned itself.
    Talos,
}

/// The nodes that a Plan is being applied to, by `kubernetes.io/hostname`.
fn plan_kind() -> WatchedResource {
    WatchedResource::all("upgrade.cattle.io/v1", "Plan")
}

impl Preset {
    /// Every preset.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its name in configuration.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// What the user must switch on for it to work, a sentence.
    pub const fn requirement(self) -> &'static str {
        match self {
            Self::Kured => {
                "kured marks the node that it reboots only when it runs with --annotate-nodes (chart: configuration.annotateNodes: true)."
            }
            Self::ClusterApi => {
                "Cluster API (1.8 or later) marks outdated nodes during the rollout of a MachineDeployment, and by nothing else: \
                 control planes, MachinePools and single Machines need countsAsDrain and a signal of your own."
            }
            Self::Karpenter => "Karpenter (1.0 or later) marks every node that it drains; nothing need be switched on.",
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
    fn node_marker(self) -> Option<NodeMarker> {
        match self {
            Self::Kured => Some(NodeMarker::annotation("weave.works/kured-reboot-in-progress")),
            Self::ClusterApi => Some(NodeMarker::taint("node.cluster.x-k8s.io/outdated-revision", None)),
            Self::Karpenter => self.cordon_taint(),
            Self::SystemUpgradeController => None,
            Self::Talos => Some(NodeMarker::annotation("talos.dev/cordoned").with_value("true")),
        }
    }

    /// The taint that stands for `spec.unschedulable`: one of [`crate::node::CORDON_TAINTS`], or the node would never be seen.
    pub(super) fn cordon_taint(self) -> Option<NodeMarker> {
        (self == Self::Karpenter).then(|| NodeMarker::taint(KARPENTER_DISRUPTED_TAINT, Some("NoSchedule")))
    }

    pub(super) fn kinds(self) -> Vec<WatchedResource> {
        if self == Self::SystemUpgradeController {
            vec![plan_kind()]
        } else {
            Vec::new()
        }
    }

    pub(super) fn reads_annotation(self, key: &str) -> bool {
        let mark = self.node_marker();
        mark.is_some_and(|mark| mark.place == NodeMarkerPlace::Annotation && mark.key == key)
    }

    pub(super) fn evaluate(self, inputs: &SignalInputs, node: &NodeView) -> Answer {
        match self.node_marker() {
            Some(mark) => mark.as_answer(node),
            None => plans(inputs, node, |_| true),
        }
    }

    /// Whether the system is draining this cordoned node, and what says so.
    pub(super) fn is_draining(self, inputs: &SignalInputs, node: &NodeView) -> (bool, String) {
        if let Some(mark) = self.node_marker() {
            return (mark.is_on(node), mark.to_string());
        }
        let drains = |plan: &Value| plan.pointer("/spec/drain").is_some_and(Value::is_object);
        let answer = plans(inputs, node, drains);
        (
            answer.truth == super::Tristate::Yes,
            "a Plan with spec.drain that lists the node in status.applying".to_owned(),
        )
    }
}

/// Whether a Plan that `concerns` us is being applied to the node.
fn plans(inputs: &SignalInputs, node: &NodeView, concerns: impl Fn(&Value) -> bool) -> Answer {
    let plans = match inputs.objects(&plan_kind()) {
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

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::tests::fixture::{cordoned, cordoned_with_taints, inputs, objects, signal};
    use super::super::{DrainMarkers, KindObjects, KindState, NodeMarkerPlace, Tristate};
    use super::*;
    use crate::drain::NodeDrains;
    use crate::node::CORDON_TAINTS;

    fn both(preset: Preset, inputs: &SignalInputs, node: &NodeView) -> (Tristate, bool) {
        let signal = signal(&format!("{{preset: {preset}}}"));
        let marks = DrainMarkers::new(&signal, None).unwrap();
        let drained = marks.is_being_drained(node, inputs, &NodeDrains::default());
        assert!(!drained.because.is_empty());
        let is_drained = drained.truth == Tristate::Yes;
        (signal.evaluate(inputs, node).truth, is_drained)
    }

    fn taint(key: &str, effect: &str) -> Value {
        json!([{ "key": key, "effect": effect }])
    }

    #[rstest]
    #[case(Preset::Kured, json!({ "weave.works/kured-reboot-in-progress": "2026-01-01T00:00:00Z" }), true)]
    #[case(Preset::Kured, json!({ "weave.works/kured-most-recent-reboot-needed": "2026-01-01T00:00:00Z" }), false)]
    #[case(Preset::Talos, json!({ "talos.dev/cordoned": "true" }), true)]
    #[case(Preset::Talos, json!({ "talos.dev/cordoned": "false" }), false)]
    #[case(Preset::Talos, json!({}), false)]
    #[case(Preset::ClusterApi, json!({ "cluster.x-k8s.io/machine": "m" }), false)]
    fn a_preset_knows_its_annotation(#[case] preset: Preset, #[case] annotations: Value, #[case] on: bool) {
        let node = cordoned(json!({ "annotations": annotations }));
        let truth = if on { Tristate::Yes } else { Tristate::No };
        assert_eq!(both(preset, &SignalInputs::default(), &node), (truth, on));
    }

    #[rstest]
    #[case(Preset::Karpenter, taint("karpenter.sh/disrupted", "NoSchedule"), true)]
    #[case(Preset::Karpenter, taint("karpenter.sh/disrupted", "NoExecute"), false)]
    #[case(Preset::Karpenter, taint("karpenter.sh/unregistered", "NoExecute"), false)]
    #[case(
        Preset::ClusterApi,
        taint("node.cluster.x-k8s.io/outdated-revision", "PreferNoSchedule"),
        true
    )]
    #[case(
        Preset::ClusterApi,
        taint("node.cluster.x-k8s.io/uninitialized", "NoSchedule"),
        false
    )]
    fn a_preset_knows_its_taint(#[case] preset: Preset, #[case] taints: Value, #[case] on: bool) {
        let node = cordoned_with_taints(json!({}), taints);
        let truth = if on { Tristate::Yes } else { Tristate::No };
        assert_eq!(both(preset, &SignalInputs::default(), &node), (truth, on));
    }

    #[test]
    fn node_cordoned_only_by_preset_taint_is_kept() {
        let cordoning: Vec<NodeMarker> = Preset::ALL.iter().copied().filter_map(Preset::cordon_taint).collect();
        assert!(!cordoning.is_empty());
        for taint in cordoning {
            assert_eq!(taint.place, NodeMarkerPlace::Taint);
            assert!(CORDON_TAINTS.contains(&taint.key.as_str()), "{taint}");
        }
    }

    fn plan(spec: Value, status: Value) -> Value {
        json!({ "metadata": { "namespace": "system-upgrade", "name": "os" }, "spec": spec, "status": status })
    }

    #[rstest]
    #[case::applying_and_draining(plan(json!({ "drain": {} }), json!({ "applying": ["n1"] })), Tristate::Yes, true)]
    #[case::only_cordoning(plan(json!({ "cordon": true }), json!({ "applying": ["n1"] })), Tristate::Yes, false)]
    #[case::drain_is_null(plan(json!({ "drain": null }), json!({ "applying": ["n1"] })), Tristate::Yes, false)]
    #[case::another_node(plan(json!({ "drain": {} }), json!({ "applying": ["n2"] })), Tristate::No, false)]
    #[case::nothing_to_apply(plan(json!({ "drain": {} }), json!({})), Tristate::No, false)]
    #[case::null(plan(json!({ "drain": null }), json!({ "applying": null })), Tristate::No, false)]
    #[case::no_status(json!({ "metadata": { "name": "os" } }), Tristate::No, false)]
    #[case::not_a_list(plan(json!({ "drain": {} }), json!({ "applying": "n1" })), Tristate::Unknown, false)]
    #[case::not_names(plan(json!({ "drain": {} }), json!({ "applying": ["n1", 2] })), Tristate::Unknown, false)]
    #[case::no_object(json!("nonsense"), Tristate::No, false)]
    fn plan_lists_the_nodes_it_applies_to(#[case] plan: Value, #[case] truth: Tristate, #[case] drained: bool) {
        let inputs = inputs([(plan_kind(), objects([plan]))]);
        assert_eq!(
            both(Preset::SystemUpgradeController, &inputs, &cordoned(json!({}))),
            (truth, drained)
        );
    }

    #[test]
    fn a_plan_lists_nodes_by_their_hostname_label() {
        let inputs = inputs([(
            plan_kind(),
            objects([plan(json!({ "drain": {} }), json!({ "applying": ["host-1"] }))]),
        )]);
        let labelled = cordoned(json!({ "labels": { "kubernetes.io/hostname": "host-1" } }));
        assert_eq!(
            both(Preset::SystemUpgradeController, &inputs, &labelled),
            (Tristate::Yes, true)
        );
        assert_eq!(
            both(Preset::SystemUpgradeController, &inputs, &cordoned(json!({}))),
            (Tristate::No, false)
        );
    }

    #[rstest]
    #[case(KindState::Absent, Tristate::No)]
    #[case(KindState::Syncing, Tristate::Unknown)]
    #[case(KindState::Forbidden("no".into()), Tristate::Unknown)]
    fn plans_that_cannot_be_read_drain_nothing(#[case] state: KindObjects, #[case] truth: Tristate) {
        let inputs = inputs([(plan_kind(), state)]);
        assert_eq!(
            both(Preset::SystemUpgradeController, &inputs, &cordoned(json!({}))),
            (truth, false)
        );
    }
}
