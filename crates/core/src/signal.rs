//! "Is this cluster, or this node's pool, upgrading?": one type, shared by the components. What each does with the answer
//! differs; the question does not.

mod answer;
mod drain_marker;
mod evaluations;
mod expression;
mod fields;
mod inputs;
mod machine_config;
mod node_marker;
mod openshift;
mod preset;
mod resource;
mod spec;
mod written;

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

pub use self::answer::{Answer, NoteLevel, SignalNote, Tristate};
pub use self::drain_marker::{BeingDrained, CountsAsDrain, DrainMarkers};
pub use self::evaluations::Evaluations;
pub use self::expression::{Expression, ExpressionError};
pub use self::fields::Fields;
pub use self::inputs::{KindObjects, KindState, SignalInputs, WatchedResource};
pub use self::node_marker::{NodeMarker, NodeMarkerPlace};
pub use self::openshift::{PdbForceDrainTimeout, pdb_force_drain_timeout, upgrades_in_progress};
pub use self::preset::{DrainRules, Preset, PresetSignal};
pub use self::spec::{ResourceSpec, SignalSpec};

use self::resource::ResourceSignal;
use crate::node::NodeView;

/// How deeply `anyOf` and `allOf` may be nested.
pub const MAX_NESTING: usize = 16;

/// A compiled upgrade signal.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "SignalSpec")]
pub struct UpgradeSignal {
    spec: SignalSpec,
    root: Compiled,
}

#[derive(Debug, Clone)]
enum Compiled {
    Always,
    OpenShift,
    OpenShiftClusterVersion,
    MachineConfigPool,
    Preset(PresetSignal),
    Node(NodeMarker),
    Resource(Box<ResourceSignal>),
    AnyOf(Vec<Compiled>),
    AllOf(Vec<Compiled>),
}

/// Why a signal, or what counts as a drain under it, cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignalError {
    /// An `anyOf` or `allOf` without members.
    #[error("{0} needs at least one signal")]
    Empty(&'static str),
    /// Nested beyond [`MAX_NESTING`].
    #[error("anyOf and allOf are nested more than {MAX_NESTING} deep")]
    TooDeep,
    /// A `resource` whose `apiVersion`, `kind` or `name` cannot be one.
    #[error("resource: {0}")]
    Resource(String),
    /// A `resource` whose expression is refused.
    #[error("resource {resource}: when: {error}")]
    Expression {
        /// `apiVersion` and kind.
        resource: String,
        /// Why.
        error: ExpressionError,
    },
    /// Nothing says which cordoned nodes are being drained.
    #[error(
        "upgradeSignal {0} does not say which cordoned nodes are being drained: set countsAsDrain to an annotation, label or \
         taint that your drainer puts on a node, to nodeDrain (where drain-lock runs), or to all (every cordoned node \
         counts, parked ones too)"
    )]
    NoDrainMarker(String),
}

impl JsonSchema for UpgradeSignal {
    fn schema_name() -> Cow<'static, str> {
        SignalSpec::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        SignalSpec::json_schema(generator)
    }

    fn schema_id() -> Cow<'static, str> {
        SignalSpec::schema_id()
    }
}

impl UpgradeSignal {
    /// Checks a signal and compiles its expressions.
    ///
    /// # Errors
    /// An empty `anyOf` or `allOf`, nesting beyond [`MAX_NESTING`], or a `resource` that cannot be read.
    pub fn compile(spec: SignalSpec) -> Result<Self, SignalError> {
        let root = Compiled::new(&spec, 0)?;
        Ok(Self { spec, root })
    }

    /// OpenShift upgrades the cluster, or is to change the node's configuration.
    pub fn openshift_node() -> Self {
        Self {
            spec: SignalSpec::AnyOf(vec![
                SignalSpec::OpenShiftClusterVersion,
                SignalSpec::Preset(Preset::MachineConfig.into()),
            ]),
            root: Compiled::AnyOf(vec![
                Compiled::OpenShiftClusterVersion,
                Compiled::Preset(Preset::MachineConfig.into()),
            ]),
        }
    }

    /// That of one preset.
    pub fn preset(preset: Preset) -> Self {
        Self {
            spec: SignalSpec::Preset(preset.into()),
            root: Compiled::Preset(preset.into()),
        }
    }

    /// The signal as configured.
    pub fn spec(&self) -> &SignalSpec {
        &self.spec
    }

    /// Whether the answer may depend on a node's annotation of this key.
    pub fn reads_annotation(&self, key: &str) -> bool {
        self.root.leaves().iter().any(|leaf| leaf.reads_annotation(key))
    }

    /// What must be watched to evaluate it, each once, and what is read of it.
    pub fn kinds(&self) -> BTreeMap<WatchedResource, Fields> {
        united(self.root.leaves().into_iter().flat_map(Compiled::kinds))
    }

    /// The same, and what [`UpgradeSignal::drain_rules`] reads.
    pub fn kinds_with_drain_rules(&self) -> BTreeMap<WatchedResource, Fields> {
        let of_rules = self.has_drain_rules().then(preset::kinds_of_drain_rules);
        united(self.kinds().into_iter().chain(of_rules.into_iter().flatten()))
    }

    /// Which pods of the node the systems in this signal leave alone when they drain it.
    pub fn drain_rules(&self, inputs: &SignalInputs, node: &NodeView) -> DrainRules {
        if self.has_drain_rules() {
            DrainRules::of_node(inputs, node)
        } else {
            DrainRules::NONE
        }
    }

    fn has_drain_rules(&self) -> bool {
        self.presets().contains(&Preset::ClusterApi)
    }

    /// Whether an upgrade is on that concerns this node.
    pub fn evaluate(&self, inputs: &SignalInputs, node: &NodeView) -> Answer {
        self.root.evaluate(inputs, node)
    }

    /// Taints besides `node.kubernetes.io/unschedulable` that cordon a node under this signal.
    pub fn cordon_taints(&self) -> Vec<NodeMarker> {
        self.presets().into_iter().filter_map(Preset::cordon_taint).collect()
    }

    /// What the user must switch on elsewhere for the presets in this signal, a sentence each.
    pub fn requirements(&self) -> Vec<&'static str> {
        self.presets().into_iter().map(Preset::requirement).collect()
    }

    /// The presets in it, each once.
    fn presets(&self) -> Vec<Preset> {
        let mut presets = Vec::new();
        for leaf in self.root.leaves() {
            if let Compiled::Preset(preset) = leaf
                && !presets.contains(&preset.preset)
            {
                presets.push(preset.preset);
            }
        }
        presets
    }
}

/// Each kind once, with all that is read of it.
fn united(kinds: impl IntoIterator<Item = (WatchedResource, Fields)>) -> BTreeMap<WatchedResource, Fields> {
    let mut united = BTreeMap::new();
    for (kind, fields) in kinds {
        let known = united.remove(&kind).unwrap_or_else(Fields::none);
        united.insert(kind, known.and(fields));
    }
    united
}

/// No signal configured means `openshift`: nothing is ever forced elsewhere by default.
impl Default for UpgradeSignal {
    fn default() -> Self {
        Self {
            spec: SignalSpec::OpenShift,
            root: Compiled::OpenShift,
        }
    }
}

impl PartialEq for UpgradeSignal {
    fn eq(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

impl TryFrom<SignalSpec> for UpgradeSignal {
    type Error = SignalError;

    fn try_from(spec: SignalSpec) -> Result<Self, SignalError> {
        Self::compile(spec)
    }
}

impl Compiled {
    fn new(spec: &SignalSpec, depth: usize) -> Result<Self, SignalError> {
        if depth > MAX_NESTING {
            return Err(SignalError::TooDeep);
        }
        let all = |members: &[SignalSpec], name| match members {
            [] => Err(SignalError::Empty(name)),
            members => members
                .iter()
                .map(|member| Self::new(member, depth + 1))
                .collect::<Result<Vec<_>, _>>(),
        };
        Ok(match spec {
            SignalSpec::Always => Self::Always,
            SignalSpec::OpenShift => Self::OpenShift,
            SignalSpec::OpenShiftClusterVersion => Self::OpenShiftClusterVersion,
            SignalSpec::MachineConfigPool => Self::MachineConfigPool,
            SignalSpec::Preset(preset) => Self::Preset(preset.clone()),
            SignalSpec::Node(mark) => Self::Node(mark.clone()),
            SignalSpec::Resource(resource) => Self::Resource(Box::new(ResourceSignal::compile(resource)?)),
            SignalSpec::AnyOf(members) => Self::AnyOf(all(members, "anyOf")?),
            SignalSpec::AllOf(members) => Self::AllOf(all(members, "allOf")?),
        })
    }

    fn leaves(&self) -> Vec<&Self> {
        match self {
            Self::AnyOf(members) | Self::AllOf(members) => members.iter().flat_map(Self::leaves).collect(),
            leaf => vec![leaf],
        }
    }

    fn kinds(&self) -> Vec<(WatchedResource, Fields)> {
        match self {
            Self::OpenShift => openshift::kinds(),
            Self::OpenShiftClusterVersion => {
                vec![(openshift::cluster_version_kind(), openshift::cluster_version_fields())]
            }
            Self::MachineConfigPool => vec![(machine_config::pool_kind(), machine_config::pool_fields())],
            Self::Preset(preset) => preset.kinds(),
            Self::Resource(resource) => vec![(resource.kind().clone(), resource.fields())],
            Self::Always | Self::Node(_) | Self::AnyOf(_) | Self::AllOf(_) => Vec::new(),
        }
    }

    fn reads_annotation(&self, key: &str) -> bool {
        match self {
            Self::MachineConfigPool => machine_config::CONFIGS.contains(&key),
            Self::Preset(preset) => preset.preset.reads_annotation(key),
            Self::Node(mark) => mark.place == NodeMarkerPlace::Annotation && mark.matches_key(key),
            // The expression sees the whole node.
            Self::Resource(_) => true,
            Self::Always | Self::OpenShift | Self::OpenShiftClusterVersion | Self::AnyOf(_) | Self::AllOf(_) => false,
        }
    }

    fn evaluate(&self, inputs: &SignalInputs, node: &NodeView) -> Answer {
        match self {
            Self::Always => Answer::yes(None),
            Self::OpenShift => openshift::upgrading(inputs, node),
            Self::OpenShiftClusterVersion => openshift::cluster_version_progressing(inputs),
            Self::MachineConfigPool => openshift::pool_or_node_is_changing(inputs, node),
            Self::Preset(preset) => preset.evaluate(inputs, node),
            Self::Node(mark) => mark.as_answer(node),
            Self::Resource(resource) => resource.evaluate(inputs, node),
            Self::AnyOf(members) => Answer::any_of(members.iter().map(|m| m.evaluate(inputs, node))),
            Self::AllOf(members) => Answer::all_of(members.iter().map(|m| m.evaluate(inputs, node))),
        }
    }
}

#[cfg(test)]
mod tests;
