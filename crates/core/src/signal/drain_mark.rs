//! Which cordoned nodes are being drained for maintenance, and not merely parked.

use std::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::inputs::SignalInputs;
use super::node_mark::NodeMark;
use super::preset::Preset;
use super::{Compiled, SignalError, UpgradeSignal, machine_config};
use crate::node::{DrainingNode, NodeView};

/// What the user says counts as a drain, besides what the signal brings: a mark on the node, or `all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CountsAsDrain {
    /// A cordoned node that carries this.
    Mark(NodeMark),
    /// Every cordoned node, parked ones too.
    All,
    /// A `NodeDrain`; refused by [`DrainMarks::new`] in this version.
    NodeDrain,
}

/// All that marks a cordoned node as being drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainMarks(Vec<Mark>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Mark {
    MachineConfigOperator,
    Preset(Preset),
    Node(NodeMark),
    All,
}

/// Whether a cordoned node is being drained, and what says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeingDrained {
    /// Whether it is.
    pub holds: bool,
    /// The mark that says so, or all that were looked for.
    pub because: String,
}

impl DrainMarks {
    /// What the signal's leaves bring, and what the user adds.
    ///
    /// # Errors
    /// Nothing marks a drain, or `nodeDrain` is asked for.
    pub fn new(signal: &UpgradeSignal, counts_as_drain: Option<&CountsAsDrain>) -> Result<Self, SignalError> {
        let mut marks = Vec::new();
        signal.root.for_each_leaf(&mut |leaf| {
            let mark = match leaf {
                Compiled::OpenShift | Compiled::OpenShiftClusterVersion => Mark::MachineConfigOperator,
                Compiled::Preset(preset) => Mark::Preset(*preset),
                Compiled::Node(mark) => Mark::Node(mark.clone()),
                Compiled::Always | Compiled::Resource(_) | Compiled::AnyOf(_) | Compiled::AllOf(_) => return,
            };
            if !marks.contains(&mark) {
                marks.push(mark);
            }
        });
        match counts_as_drain {
            Some(CountsAsDrain::Mark(mark)) => marks.push(Mark::Node(mark.clone())),
            Some(CountsAsDrain::All) => marks.push(Mark::All),
            Some(CountsAsDrain::NodeDrain) => return Err(SignalError::NeedsDrainLock),
            None => {}
        }
        if marks.is_empty() {
            return Err(SignalError::NoDrainMark(signal.spec().to_string()));
        }
        Ok(Self(marks))
    }

    /// Whether a cordoned node is being drained.
    pub fn is_being_drained(&self, node: &NodeView, details: &DrainingNode, inputs: &SignalInputs) -> BeingDrained {
        let mut missing = Vec::new();
        for mark in &self.0 {
            let (holds, because) = mark.is_on(node, details, inputs);
            if holds {
                return BeingDrained { holds, because };
            }
            missing.push(because);
        }
        BeingDrained {
            holds: false,
            because: format!("not found: {}", missing.join("; ")),
        }
    }
}

impl Mark {
    fn is_on(&self, node: &NodeView, details: &DrainingNode, inputs: &SignalInputs) -> (bool, String) {
        match self {
            Self::MachineConfigOperator => machine_config::is_draining(details),
            Self::Preset(preset) => preset.is_draining(inputs, node, details),
            Self::Node(mark) => (mark.is_on(details), mark.to_string()),
            Self::All => (
                true,
                "every cordoned node counts as being drained (countsAsDrain: all)".to_owned(),
            ),
        }
    }
}

impl Serialize for CountsAsDrain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Mark(mark) => mark.serialize(serializer),
            Self::All => serializer.serialize_str("all"),
            Self::NodeDrain => serializer.serialize_str("nodeDrain"),
        }
    }
}

impl<'de> Deserialize<'de> for CountsAsDrain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountsAsDrainVisitor)
    }
}

struct CountsAsDrainVisitor;

impl<'de> Visitor<'de> for CountsAsDrainVisitor {
    type Value = CountsAsDrain;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all, or one of {annotation, label, taint} with a key or {key, value}")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<CountsAsDrain, E> {
        match name {
            "all" => Ok(CountsAsDrain::All),
            "nodeDrain" => Ok(CountsAsDrain::NodeDrain),
            other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CountsAsDrain, A::Error> {
        NodeMark::deserialize(de::value::MapAccessDeserializer::new(map)).map(CountsAsDrain::Mark)
    }
}
