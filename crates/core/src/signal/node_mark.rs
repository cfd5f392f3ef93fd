//! Marks on a Node: an annotation, a label or a taint.

use std::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::answer::Answer;
use crate::node::NodeView;

/// A mark by which a Node says something of itself.
///
/// In configuration: `{annotation: key}`, or `{annotation: {key: …, value: …}}` when the value matters; likewise `label`
/// and `taint`, where `effect` can be given too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeMark {
    /// Where it is.
    pub place: NodeMarkPlace,
    /// Key.
    pub key: String,
    /// Value that it must have; any if `None`.
    pub value: Option<String>,
    /// Effect that a taint must have; any if `None`.
    pub effect: Option<String>,
}

/// Where a mark is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeMarkPlace {
    /// An annotation.
    Annotation,
    /// A label.
    Label,
    /// A taint.
    Taint,
}

const PLACES: &[&str] = &["annotation", "label", "taint"];
const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

impl NodeMarkPlace {
    fn as_str(self) -> &'static str {
        match self {
            Self::Annotation => "annotation",
            Self::Label => "label",
            Self::Taint => "taint",
        }
    }
}

impl NodeMark {
    /// An annotation, whatever its value.
    pub fn annotation(key: &str) -> Self {
        Self {
            place: NodeMarkPlace::Annotation,
            key: key.to_owned(),
            value: None,
            effect: None,
        }
    }

    /// A taint, whatever its value.
    pub fn taint(key: &str, effect: Option<&str>) -> Self {
        Self {
            place: NodeMarkPlace::Taint,
            key: key.to_owned(),
            value: None,
            effect: effect.map(str::to_owned),
        }
    }

    /// Requires this value.
    #[must_use]
    pub fn with_value(mut self, value: &str) -> Self {
        self.value = Some(value.to_owned());
        self
    }

    /// Whether the node carries it.
    pub fn is_on(&self, node: &NodeView) -> bool {
        let value_fits = |value: &str| self.value.as_deref().is_none_or(|wanted| wanted == value);
        match self.place {
            NodeMarkPlace::Annotation => node.annotations.get(&self.key).is_some_and(|value| value_fits(value)),
            NodeMarkPlace::Label => node.labels.get(&self.key).is_some_and(value_fits),
            NodeMarkPlace::Taint => node.taints.iter().any(|taint| {
                taint.key == self.key
                    && value_fits(&taint.value)
                    && self.effect.as_deref().is_none_or(|effect| effect == taint.effect)
            }),
        }
    }

    /// As a signal: an upgrade is on while the node carries the mark.
    pub(super) fn as_answer(&self, node: &NodeView) -> Answer {
        if self.is_on(node) {
            Answer::yes(None)
        } else {
            Answer::no()
        }
    }
}

/// `taint karpenter.sh/disrupted:NoSchedule`, for people.
impl fmt::Display for NodeMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.place.as_str(), self.key)?;
        if let Some(value) = &self.value {
            write!(f, "={value}")?;
        }
        self.effect.as_ref().map_or(Ok(()), |effect| write!(f, ":{effect}"))
    }
}

impl<'de> Deserialize<'de> for NodeMark {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeMarkVisitor)
    }
}

struct NodeMarkVisitor;

impl<'de> Visitor<'de> for NodeMarkVisitor {
    type Value = NodeMark;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one of annotation, label and taint, with a key or {key, value}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NodeMark, A::Error> {
        let Some(place) = map.next_key::<String>()? else {
            return Err(de::Error::custom("one of annotation, label and taint is needed"));
        };
        let mark = NodeMark::from_entry(&place, &mut map)?;
        match map.next_key::<String>()? {
            None => Ok(mark),
            Some(second) => Err(de::Error::custom(format!(
                "only one of annotation, label and taint: {place} and {second} are both given"
            ))),
        }
    }
}

impl NodeMark {
    /// Reads the value of the entry whose key has just been read.
    pub(super) fn from_entry<'de, A: MapAccess<'de>>(place: &str, map: &mut A) -> Result<Self, A::Error> {
        let place = match place {
            "annotation" => NodeMarkPlace::Annotation,
            "label" => NodeMarkPlace::Label,
            "taint" => NodeMarkPlace::Taint,
            other => return Err(de::Error::unknown_field(other, PLACES)),
        };
        let KeyOrPair(WrittenMark { key, value, effect }) = map.next_value()?;
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(de::Error::custom(format!(
                "{key:?} is not the key of {}",
                article(place)
            )));
        }
        if effect.is_some() && place != NodeMarkPlace::Taint {
            return Err(de::Error::custom("only a taint has an effect"));
        }
        if let Some(effect) = &effect
            && !EFFECTS.contains(&effect.as_str())
        {
            return Err(de::Error::unknown_variant(effect, EFFECTS));
        }
        Ok(Self {
            place,
            key,
            value,
            effect,
        })
    }
}

fn article(place: NodeMarkPlace) -> &'static str {
    match place {
        NodeMarkPlace::Annotation => "an annotation",
        NodeMarkPlace::Label => "a label",
        NodeMarkPlace::Taint => "a taint",
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMark {
    key: String,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    effect: Option<String>,
}

struct KeyOrPair(WrittenMark);

impl<'de> Deserialize<'de> for KeyOrPair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeyOrPairVisitor)
    }
}

struct KeyOrPairVisitor;

impl<'de> Visitor<'de> for KeyOrPairVisitor {
    type Value = KeyOrPair;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key, or {key, value}")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<KeyOrPair, E> {
        Ok(KeyOrPair(WrittenMark {
            key: key.to_owned(),
            value: None,
            effect: None,
        }))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<KeyOrPair, A::Error> {
        WrittenMark::deserialize(de::value::MapAccessDeserializer::new(map)).map(KeyOrPair)
    }
}
