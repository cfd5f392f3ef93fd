//! Known systems by name. Each brings its signal, its own mark of a cordoned node that is being drained, taints that
//! cordon, and a sentence on what must be switched on there.

mod claim;
mod drain_rules;
mod kured;
mod plan;

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer};

pub use self::drain_rules::DrainRules;
pub(super) use self::drain_rules::{AllRules, kinds as kinds_of_drain_rules};
use self::kured::KuredLock;
use super::answer::{Answer, Tristate};
use super::fields::Fields;
use super::inputs::{SignalInputs, WatchedResource};
use super::machine_config;
use super::node_marker::{NodeMarker, NodeMarkerPlace};
use super::written::{text_or_map, text_or_map_schema};
use crate::node::{KARPENTER_DISRUPTED_TAINT, NodeView};

/// A system that upgrades or replaces nodes.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "camelCase")]
#[strum(serialize_all = "camelCase")]
pub enum Preset {
    /// kured reboots nodes; its lock names the node that it is at work on.
    Kured,
    /// Cluster API deletes the Machine of a node that it replaces, and drains the node then.
    ClusterApi,
    /// Karpenter taints a node before it drains it, and never sets `spec.unschedulable`; its NodeClaim says what for.
    Karpenter,
    /// Rancher's system-upgrade-controller lists in a Plan's status the nodes that it is at work on.
    SystemUpgradeController,
    /// Talos before 1.13 annotates nodes that it has cordoned itself.
    Talos,
    /// The Machine Config Operator, and what writes its annotations: HyperShift in place.
    MachineConfig,
    /// kOps taints all nodes of a roll-out when it begins.
    Kops,
}

/// A preset with its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresetSignal {
    pub preset: Preset,
    kured: KuredLock,
    /// Reasons for which Karpenter disrupts a node that count as an upgrade.
    reasons: Vec<String>,
}

/// kOps' taint on nodes that are to be replaced.
const KOPS_TAINT: &str = "kops.k8s.io/scheduled-for-update";

/// A node of an outdated template. To consolidate is no upgrade, and overrides nobody's budget.
const KARPENTER_REASONS: [&str; 1] = ["Drifted"];

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
                "kured keeps its lock on its DaemonSet, kube-system/kured unless namespace and daemonSet are given; --annotate-nodes is not needed."
            }
            Self::ClusterApi => {
                "Cluster API's Machines are read in this cluster: where the management cluster is another one, use countsAsDrain: all with a resource signal of your own."
            }
            Self::Karpenter => {
                "Karpenter (1.0 or later) says in its NodeClaims why it disrupts a node; only Drifted counts unless reasons are given."
            }
            Self::SystemUpgradeController => {
                "system-upgrade-controller drains only where a Plan has spec.drain; its Plans must be readable \
                 (apiGroups: [\"upgrade.cattle.io\"], resources: [\"plans\"], verbs: [\"get\", \"list\", \"watch\"])."
            }
            Self::Talos => {
                "Talos before 1.13 marks nodes that it cordons itself; later ones cordon as kubectl does and leave no mark: use countsAsDrain: nodeDrain, or a node mark of your own."
            }
            Self::MachineConfig => {
                "The Machine Config Operator annotates the nodes that it manages; nothing need be switched on."
            }
            Self::Kops => {
                "kOps taints all nodes of a roll-out at its start, which marks no drain: set countsAsDrain, such as all or nodeDrain."
            }
        }
    }

    /// The mark on the node, where the system leaves one that is its signal too.
    fn node_marker(self) -> Option<NodeMarker> {
        match self {
            Self::Talos => Some(NodeMarker::annotation("talos.dev/cordoned").with_value("true")),
            Self::Kops => Some(NodeMarker::taint(KOPS_TAINT, None)),
            _ => None,
        }
    }

    /// The taint that stands for `spec.unschedulable`: one of [`crate::node::CORDON_TAINTS`], or the node would never be seen.
    pub(super) fn cordon_taint(self) -> Option<NodeMarker> {
        (self == Self::Karpenter).then(|| NodeMarker::taint(KARPENTER_DISRUPTED_TAINT, Some("NoSchedule")))
    }

    pub(super) fn reads_annotation(self, key: &str) -> bool {
        let mark = self.node_marker();
        let is_marked = mark.is_some_and(|mark| mark.place == NodeMarkerPlace::Annotation && mark.matches_key(key));
        is_marked || (self == Self::MachineConfig && machine_config::CONFIGS.contains(&key))
    }

    /// Whether it tells which cordoned nodes are being drained. kOps' taint stands on all nodes of a roll-out.
    pub(super) fn marks_drains(self) -> bool {
        self != Self::Kops
    }
}

impl From<Preset> for PresetSignal {
    fn from(preset: Preset) -> Self {
        Self {
            preset,
            kured: KuredLock::default(),
            reasons: KARPENTER_REASONS.map(str::to_owned).to_vec(),
        }
    }
}

impl PresetSignal {
    pub(super) fn kinds(&self) -> Vec<(WatchedResource, Fields)> {
        match self.preset {
            Preset::Kured => {
                let mut fields = Fields::none();
                let lock = ["metadata", "annotations", &self.kured.annotation];
                fields.add(lock.map(str::to_owned).into());
                vec![(self.kured.kind(), fields)]
            }
            Preset::ClusterApi => {
                let fields = Fields::of(&[
                    "metadata.deletionTimestamp",
                    "spec.providerID",
                    "status.nodeRef.name",
                    "status.nodeRef.uid",
                ]);
                claim::machine_kinds().map(|kind| (kind, fields.clone())).into()
            }
            Preset::Karpenter => {
                let fields = Fields::of(&["metadata.deletionTimestamp", "status.nodeName", "status.conditions"]);
                vec![(claim::node_claim_kind(), fields)]
            }
            Preset::SystemUpgradeController => {
                vec![(plan::kind(), Fields::of(&["spec.drain", "status.applying"]))]
            }
            Preset::Talos | Preset::MachineConfig | Preset::Kops => Vec::new(),
        }
    }

    pub(super) fn evaluate(&self, inputs: &SignalInputs, node: &NodeView) -> Answer {
        match self.preset {
            Preset::Kured => self.kured.is_held_for(inputs, node),
            Preset::ClusterApi => claim::machine_is_deleted(inputs, node),
            Preset::Karpenter => claim::is_disrupted(inputs, node, &self.reasons),
            Preset::SystemUpgradeController => plan::is_applied(inputs, node, |_| true),
            Preset::MachineConfig => machine_config::is_changing(node),
            Preset::Talos | Preset::Kops => {
                let is_on = |mark: NodeMarker| mark.as_answer(node);
                self.preset.node_marker().map_or_else(Answer::no, is_on)
            }
        }
    }

    /// Whether the system is draining this cordoned node, and what says so.
    pub(super) fn is_draining(&self, inputs: &SignalInputs, node: &NodeView) -> (Tristate, String) {
        let (answer, because) = match self.preset {
            Preset::Kured => (
                self.kured.is_held_for(inputs, node),
                format!("a lock of the node on {}", self.kured),
            ),
            Preset::ClusterApi => (
                claim::machine_is_deleted(inputs, node),
                "a Machine of the node that is being deleted".to_owned(),
            ),
            Preset::Karpenter => (
                claim::is_deleted(inputs, node),
                "a NodeClaim of the node that is being deleted".to_owned(),
            ),
            Preset::SystemUpgradeController => (
                plan::is_applied(inputs, node, plan::drains),
                "a Plan with spec.drain that lists the node in status.applying".to_owned(),
            ),
            Preset::MachineConfig => {
                let (is_draining, because) = machine_config::is_draining(node);
                (if is_draining { Answer::yes(None) } else { Answer::no() }, because)
            }
            Preset::Talos | Preset::Kops => {
                let because = self.preset.node_marker().map(|mark| mark.to_string());
                (self.evaluate(inputs, node), because.unwrap_or_default())
            }
        };
        match (answer.truth, answer.notes.first()) {
            (Tristate::Unknown, Some(note)) => (Tristate::Unknown, note.message.clone()),
            (truth, _) => (truth, because),
        }
    }
}

impl fmt::Display for PresetSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.preset.fmt(f)
    }
}

/// A preset in its form as a map: its name, and settings of its own.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "PresetSettings")]
struct WrittenPreset {
    name: Preset,
    namespace: Option<String>,
    daemon_set: Option<String>,
    annotation: Option<String>,
    reasons: Option<Vec<String>>,
}

impl TryFrom<WrittenPreset> for PresetSignal {
    type Error = String;

    fn try_from(written: WrittenPreset) -> Result<Self, String> {
        let mut signal = Self::from(written.name);
        let of_kured = [
            ("namespace", written.namespace, &mut signal.kured.namespace),
            ("daemonSet", written.daemon_set, &mut signal.kured.name),
            ("annotation", written.annotation, &mut signal.kured.annotation),
        ];
        for (field, given, setting) in of_kured {
            match given {
                Some(_) if written.name != Preset::Kured => return Err(format!("{field} is a setting of kured alone")),
                Some(text) if text.is_empty() => return Err(format!("{field} is empty: leave it out for the default")),
                Some(text) => *setting = text,
                None => {}
            }
        }
        match written.reasons {
            Some(_) if written.name != Preset::Karpenter => {
                return Err("reasons is a setting of karpenter alone".to_owned());
            }
            Some(reasons) if reasons.is_empty() => return Err("reasons needs at least one".to_owned()),
            Some(reasons) => signal.reasons = reasons,
            None => {}
        }
        Ok(signal)
    }
}

impl<'de> Deserialize<'de> for PresetSignal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let from_text = |name: &str| {
            let preset = Preset::ALL.iter().find(|preset| preset.as_str() == name);
            preset.copied().map(Self::from).ok_or_else(|| {
                let known: Vec<String> = Preset::ALL.iter().map(|preset| format!("`{preset}`")).collect();
                format!("unknown variant `{name}`, expected one of {}", known.join(", "))
            })
        };
        text_or_map::<D, WrittenPreset, _>(
            deserializer,
            "the name of a preset, or {name, and its settings}",
            from_text,
        )
    }
}

impl JsonSchema for PresetSignal {
    fn schema_name() -> Cow<'static, str> {
        "PresetSignal".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let names = generator.subschema_for::<Preset>();
        text_or_map_schema::<WrittenPreset>(generator, &names)
    }
}

#[cfg(test)]
mod tests;
