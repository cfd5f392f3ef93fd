//! The signal as a configuration file writes it.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use super::node_marker::NodeMarker;
use super::preset::{Preset, PresetSignal};
use super::written::{exactly_one, text_or_map, text_or_map_schema};
use crate::selector::Selector;

/// An upgrade signal as configured: a name (`always`, `openshift`, `openshiftClusterVersion`, `machineConfigPool`) or a map with
/// one entry (`preset`, `node`, `resource`, `anyOf`, `allOf`).
#[derive(Debug, Clone, PartialEq)]
pub enum SignalSpec {
    /// An upgrade is always on.
    Always,
    /// managed-upgrade-operator's UpgradeConfig, and the node's MachineConfigPool.
    OpenShift,
    /// The ClusterVersion is `Progressing`.
    OpenShiftClusterVersion,
    /// The node's MachineConfigPool is being updated, or the node is to get another machine configuration than it has.
    MachineConfigPool,
    /// A known system, by name.
    Preset(PresetSignal),
    /// The node carries a mark.
    Node(NodeMarker),
    /// An expression holds for an object.
    Resource(ResourceSpec),
    AnyOf(Vec<SignalSpec>),
    /// All of these.
    AllOf(Vec<SignalSpec>),
}

/// Objects and an expression over them.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "ResourceSignal")]
pub struct ResourceSpec {
    /// Group and version, or `v1`.
    pub api_version: String,
    pub kind: String,
    /// Only the object of this name.
    #[serde(default)]
    pub name: Option<String>,
    /// Only objects in this namespace.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Only objects that this label selector matches.
    #[serde(default)]
    pub selector: Option<Selector>,
    /// A CEL expression over `object` and `node`.
    pub when: String,
}

impl fmt::Display for SignalSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, name, members: &[Self]| {
            write!(f, "{name}[")?;
            for (index, member) in members.iter().enumerate() {
                write!(f, "{}{member}", if index > 0 { ", " } else { "" })?;
            }
            f.write_str("]")
        };
        match self {
            Self::Always => f.write_str("always"),
            Self::OpenShift => f.write_str("openshift"),
            Self::OpenShiftClusterVersion => f.write_str("openshiftClusterVersion"),
            Self::MachineConfigPool => f.write_str("machineConfigPool"),
            Self::Preset(preset) => write!(f, "preset {preset}"),
            Self::Node(mark) => write!(f, "node {mark}"),
            Self::Resource(resource) => write!(f, "resource {} {}", resource.api_version, resource.kind),
            Self::AnyOf(members) => list(f, "anyOf", members),
            Self::AllOf(members) => list(f, "allOf", members),
        }
    }
}

/// A signal in its form as a map, of which one entry is given.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "UpgradeSignalMap", extend("minProperties" = 1, "maxProperties" = 1))]
struct WrittenSignal {
    preset: Option<PresetSignal>,
    node: Option<NodeMarker>,
    resource: Option<ResourceSpec>,
    any_of: Option<Vec<SignalSpec>>,
    all_of: Option<Vec<SignalSpec>>,
}

impl TryFrom<WrittenSignal> for SignalSpec {
    type Error = String;

    fn try_from(written: WrittenSignal) -> Result<Self, String> {
        let entries = [
            ("preset", written.preset.map(Self::Preset)),
            ("node", written.node.map(Self::Node)),
            ("resource", written.resource.map(Self::Resource)),
            ("anyOf", written.any_of.map(Self::AnyOf)),
            ("allOf", written.all_of.map(Self::AllOf)),
        ];
        exactly_one(entries, "put them in a list under anyOf or allOf").map(|(_, signal)| signal)
    }
}

impl<'de> Deserialize<'de> for SignalSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "a signal: one of always, openshift, openshiftClusterVersion, machineConfigPool, or one of \
                                {preset, node, resource, anyOf, allOf}";
        let from_text = |name: &str| match name {
            "always" => Ok(Self::Always),
            "openshift" => Ok(Self::OpenShift),
            "openshiftClusterVersion" => Ok(Self::OpenShiftClusterVersion),
            "machineConfigPool" => Ok(Self::MachineConfigPool),
            other if Preset::ALL.iter().any(|preset| preset.as_str() == other) => {
                Err(format!("{other} is a preset: write {{preset: {other}}}"))
            }
            other => Err(format!("unknown signal {other:?}: expected {EXPECTED}")),
        };
        text_or_map::<D, WrittenSignal, _>(deserializer, EXPECTED, from_text)
    }
}

impl JsonSchema for SignalSpec {
    fn schema_name() -> Cow<'static, str> {
        "UpgradeSignal".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let names = [
            Self::Always,
            Self::OpenShift,
            Self::OpenShiftClusterVersion,
            Self::MachineConfigPool,
        ];
        let names = json_schema!({ "enum": names.map(|name| name.to_string()) });
        text_or_map_schema::<WrittenSignal>(generator, &names)
    }
}
