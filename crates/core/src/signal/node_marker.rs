//! Marks on a Node: an annotation, a label or a taint.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use super::answer::Answer;
use super::written::{exactly_one, text_or_map, text_or_map_schema};
use crate::node::NodeView;

/// A mark by which a Node says something of itself.
///
/// In configuration: `{annotation: key}`, or `{annotation: {key: …, value: …}}` when the value matters; likewise `label`
/// and `taint`, where `effect` can be given too.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WrittenMarker")]
pub struct NodeMarker {
    /// Where it is.
    pub place: NodeMarkerPlace,
    /// Key, or how it begins.
    pub key: Text,
    /// Value that it must have, or how it must begin; any if `None`.
    pub value: Option<Text>,
    /// Effect that a taint must have; any if `None`.
    pub effect: Option<String>,
}

/// A text as it is, or as it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    Exactly(String),
    Prefix(String),
}

impl Text {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exactly(wanted) => wanted == text,
            Self::Prefix(prefix) => text.starts_with(prefix.as_str()),
        }
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Exactly(text) | Self::Prefix(text) => text,
        }
    }

    /// The one that is given, if any.
    fn one_of(exactly: Option<String>, prefix: Option<String>, name: &str) -> Result<Option<Self>, String> {
        match (exactly, prefix) {
            (Some(_), Some(_)) => Err(format!("{name} and {name}Prefix are both given: one is enough")),
            (_, Some(prefix)) if prefix.is_empty() => Err(format!("{name}Prefix is empty: leave it out for any")),
            (exactly, prefix) => Ok(exactly.map(Self::Exactly).or(prefix.map(Self::Prefix))),
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(text) => f.write_str(text),
            Self::Prefix(text) => write!(f, "{text}*"),
        }
    }
}

/// Where a mark is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum NodeMarkerPlace {
    Annotation,
    Label,
    Taint,
}

const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

impl NodeMarker {
    /// An annotation, whatever its value.
    pub fn annotation(key: &str) -> Self {
        Self {
            place: NodeMarkerPlace::Annotation,
            key: Text::Exactly(key.to_owned()),
            value: None,
            effect: None,
        }
    }

    /// A taint, whatever its value.
    pub fn taint(key: &str, effect: Option<&str>) -> Self {
        Self {
            place: NodeMarkerPlace::Taint,
            key: Text::Exactly(key.to_owned()),
            value: None,
            effect: effect.map(str::to_owned),
        }
    }

    /// Requires this value.
    #[must_use]
    pub fn with_value(mut self, value: &str) -> Self {
        self.value = Some(Text::Exactly(value.to_owned()));
        self
    }

    /// Whether the node carries it.
    pub fn is_on(&self, node: &NodeView) -> bool {
        let is_mark = |key: &str, value: &str| {
            self.key.matches(key) && self.value.as_ref().is_none_or(|wanted| wanted.matches(value))
        };
        match self.place {
            NodeMarkerPlace::Annotation => node.annotations.iter().any(|(key, value)| is_mark(key, value)),
            NodeMarkerPlace::Label => node.labels.iter().any(|(key, value)| is_mark(key, value)),
            NodeMarkerPlace::Taint => node.taints.iter().any(|taint| {
                is_mark(&taint.key, &taint.value) && self.effect.as_deref().is_none_or(|effect| effect == taint.effect)
            }),
        }
    }

    /// Whether a mark with this key may be it.
    pub(super) fn matches_key(&self, key: &str) -> bool {
        self.key.matches(key)
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
impl fmt::Display for NodeMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.place, self.key)?;
        if let Some(value) = &self.value {
            write!(f, "={value}")?;
        }
        self.effect.as_ref().map_or(Ok(()), |effect| write!(f, ":{effect}"))
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "one of annotation, label and taint, with a key or {key, value}"
)]
#[schemars(rename = "NodeMarker", extend("minProperties" = 1, "maxProperties" = 1))]
struct WrittenMarker {
    #[serde(default, deserialize_with = "key_or_map")]
    #[schemars(schema_with = "key_or_map_schema")]
    annotation: Option<MarkKey>,
    #[serde(default, deserialize_with = "key_or_map")]
    #[schemars(schema_with = "key_or_map_schema")]
    label: Option<MarkKey>,
    #[serde(default, deserialize_with = "key_or_map")]
    #[schemars(schema_with = "key_or_map_schema")]
    taint: Option<MarkKey>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "NodeMarkerKey")]
struct MarkKey {
    key: Option<String>,
    key_prefix: Option<String>,
    value: Option<String>,
    value_prefix: Option<String>,
    effect: Option<String>,
}

fn key_or_map<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MarkKey>, D::Error> {
    let from_text = |key: &str| {
        Ok(MarkKey {
            key: Some(key.to_owned()),
            ..MarkKey::default()
        })
    };
    text_or_map::<D, MarkKey, _>(deserializer, "a key, or {key, value}", from_text).map(Some)
}

fn key_or_map_schema(generator: &mut SchemaGenerator) -> Schema {
    text_or_map_schema::<MarkKey>(generator, &json_schema!({ "minLength": 1 }))
}

impl JsonSchema for NodeMarker {
    fn schema_name() -> Cow<'static, str> {
        WrittenMarker::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        WrittenMarker::json_schema(generator)
    }

    fn schema_id() -> Cow<'static, str> {
        WrittenMarker::schema_id()
    }
}

impl TryFrom<WrittenMarker> for NodeMarker {
    type Error = String;

    fn try_from(written: WrittenMarker) -> Result<Self, String> {
        let entries = [
            (
                "annotation",
                written.annotation.map(|key| (NodeMarkerPlace::Annotation, key)),
            ),
            ("label", written.label.map(|key| (NodeMarkerPlace::Label, key))),
            ("taint", written.taint.map(|key| (NodeMarkerPlace::Taint, key))),
        ];
        let (name, (place, mark)) = exactly_one(entries, "a mark is one of them")?;
        let effect = mark.effect;
        let value = Text::one_of(mark.value, mark.value_prefix, "value")?;
        let written = Text::one_of(mark.key, mark.key_prefix, "key")?.ok_or("missing field `key`")?;
        let key = written.as_str();
        if key.is_empty() || key.contains(char::is_whitespace) {
            let article = if place == NodeMarkerPlace::Annotation {
                "an"
            } else {
                "a"
            };
            return Err(format!("{key:?} is not the key of {article} {name}"));
        }
        if effect.is_some() && place != NodeMarkerPlace::Taint {
            return Err("only a taint has an effect".to_owned());
        }
        if let Some(effect) = &effect
            && !EFFECTS.contains(&effect.as_str())
        {
            return Err(format!(
                "unknown variant `{effect}`, expected one of {}",
                EFFECTS.join(", ")
            ));
        }
        Ok(Self {
            place,
            key: written,
            value,
            effect,
        })
    }
}
