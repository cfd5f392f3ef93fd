//! The signal as a configuration file writes it.

use std::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::node_mark::NodeMark;
use super::preset::Preset;
use crate::selector::Selector;

/// An upgrade signal as configured: a name (`always`, `openshift`, `openshiftClusterVersion`) or a map with one entry
/// (`preset`, `node`, `resource`, `anyOf`, `allOf`).
#[derive(Debug, Clone, PartialEq)]
pub enum SignalSpec {
    /// An upgrade is always on.
    Always,
    /// managed-upgrade-operator's UpgradeConfig, and the node's MachineConfigPool.
    OpenShift,
    /// The ClusterVersion is `Progressing`.
    OpenShiftClusterVersion,
    /// A known system, by name.
    Preset(Preset),
    /// The node carries a mark.
    Node(NodeMark),
    /// An expression holds for an object.
    Resource(ResourceSpec),
    /// Any of these.
    AnyOf(Vec<SignalSpec>),
    /// All of these.
    AllOf(Vec<SignalSpec>),
}

/// Objects and an expression over them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceSpec {
    /// Group and version, or `v1`.
    pub api_version: String,
    /// Kind.
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

const NAMES: &[&str] = &["always", "openshift", "openshiftClusterVersion"];
const FIELDS: &[&str] = &["preset", "node", "resource", "anyOf", "allOf"];

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
            Self::Preset(preset) => write!(f, "preset {preset}"),
            Self::Node(mark) => write!(f, "node {mark}"),
            Self::Resource(resource) => write!(f, "resource {} {}", resource.api_version, resource.kind),
            Self::AnyOf(members) => list(f, "anyOf", members),
            Self::AllOf(members) => list(f, "allOf", members),
        }
    }
}

impl<'de> Deserialize<'de> for SignalSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SignalVisitor)
    }
}

struct SignalVisitor;

impl<'de> Visitor<'de> for SignalVisitor {
    type Value = SignalSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a signal: one of {}, or one of {{{}}}",
            NAMES.join(", "),
            FIELDS.join(", ")
        )
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<SignalSpec, E> {
        match name {
            "always" => Ok(SignalSpec::Always),
            "openshift" => Ok(SignalSpec::OpenShift),
            "openshiftClusterVersion" => Ok(SignalSpec::OpenShiftClusterVersion),
            other if Preset::ALL.iter().any(|preset| preset.as_str() == other) => {
                Err(E::custom(format!("{other} is a preset: write {{preset: {other}}}")))
            }
            other => Err(E::custom(format!(
                "unknown signal {other:?}: expected {}, or a map with one of {}",
                NAMES.join(", "),
                FIELDS.join(", ")
            ))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SignalSpec, A::Error> {
        let Some(field) = map.next_key::<String>()? else {
            return Err(de::Error::custom(format!(
                "an empty signal: expected one of {}",
                FIELDS.join(", ")
            )));
        };
        let signal = match field.as_str() {
            "preset" => SignalSpec::Preset(map.next_value()?),
            "node" => SignalSpec::Node(map.next_value()?),
            "resource" => SignalSpec::Resource(map.next_value()?),
            "anyOf" => SignalSpec::AnyOf(map.next_value()?),
            "allOf" => SignalSpec::AllOf(map.next_value()?),
            other => return Err(de::Error::unknown_field(other, FIELDS)),
        };
        match map.next_key::<String>()? {
            None => Ok(signal),
            Some(second) => Err(de::Error::custom(format!(
                "a signal has one field, and {field} and {second} are both given: put them in a list under anyOf or allOf"
            ))),
        }
    }
}
