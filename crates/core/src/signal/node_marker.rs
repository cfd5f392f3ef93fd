//! Marks on a Node: an annotation, a label or a taint.

use std::fmt;

use serde::{Deserialize, Deserializer};

use super::answer::Answer;
use super::written::{exactly_one, text_or_map};
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
    pub key: String,
    /// Value that it must have; any if `None`.
    pub value: Option<String>,
    /// Effect that a taint must have; any if `None`.
    pub effect: Option<String>,
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
            key: key.to_owned(),
            value: None,
            effect: None,
        }
    }

    /// A taint, whatever its value.
    pub fn taint(key: &str, effect: Option<&str>) -> Self {
        Self {
            place: NodeMarkerPlace::Taint,
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
            NodeMarkerPlace::Annotation => node.annotations.get(&self.key).is_some_and(|value| value_fits(value)),
            NodeMarkerPlace::Label => node.labels.get(&self.key).is_some_and(value_fits),
            NodeMarkerPlace::Taint => node.taints.iter().any(|taint| {
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
impl fmt::Display for NodeMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.place, self.key)?;
        if let Some(value) = &self.value {
            write!(f, "={value}")?;
        }
        self.effect.as_ref().map_or(Ok(()), |effect| write!(f, ":{effect}"))
    }
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "one of annotation, label and taint, with a key or {key, value}"
)]
struct WrittenMarker {
    #[serde(default, deserialize_with = "key_or_map")]
    annotation: Option<MarkKey>,
    #[serde(default, deserialize_with = "key_or_map")]
    label: Option<MarkKey>,
    #[serde(default, deserialize_with = "key_or_map")]
    taint: Option<MarkKey>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkKey {
    key: String,
    value: Option<String>,
    effect: Option<String>,
}

fn key_or_map<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MarkKey>, D::Error> {
    let from_text = |key: &str| {
        Ok(MarkKey {
            key: key.to_owned(),
            value: None,
            effect: None,
        })
    };
    text_or_map::<D, MarkKey, _>(deserializer, "a key, or {key, value}", from_text).map(Some)
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
        let (name, (place, MarkKey { key, value, effect })) = exactly_one(entries, "a mark is one of them")?;
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
            key,
            value,
            effect,
        })
    }
}
