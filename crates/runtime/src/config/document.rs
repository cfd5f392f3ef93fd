//! Reading YAML so that an error names the line, the column and the field.

use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_path_to_error::Path;
use serde_yaml::Value;

use super::ConfigError;

/// Parses a document of our own. Nothing at all, or nothing but comments, is an empty mapping: every field has its default.
/// An explicit `null`, which is easily written by leaving a line unfinished, is an error; only an absent field is its
/// default.
pub fn from_yaml<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    // Text that is no YAML at all gets a better error below.
    let document = serde_yaml::from_str::<Value>(text).unwrap_or_default();
    if let Some(path) = path_of_null(&document).filter(|path| !path.is_empty()) {
        let problem = "has no value: give it one, or leave the field out for the default";
        return Err(ConfigError::at(path, problem).located_in(text));
    }
    from_foreign_yaml(text)
}

/// Where the document's first null is; empty for the document itself.
fn path_of_null(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::Mapping(fields) => fields.iter().find_map(|(key, value)| {
            let (key, inner) = (key.as_str()?, path_of_null(value)?);
            Some(format!("{key}{}{inner}", separator_before(&inner)))
        }),
        Value::Sequence(items) => items.iter().enumerate().find_map(|(index, value)| {
            let inner = path_of_null(value)?;
            Some(format!("[{index}]{}{inner}", separator_before(&inner)))
        }),
        _ => None,
    }
}

fn separator_before(path: &str) -> &'static str {
    if path.is_empty() || path.starts_with('[') {
        ""
    } else {
        "."
    }
}

/// As [`from_yaml`], for a document that another program reads too, and may write nulls into.
pub fn from_foreign_yaml<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    let text = if is_blank(text) { "{}" } else { text };
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_yaml::Deserializer::from_str(text);
    T::deserialize(serde_path_to_error::Deserializer::new(deserializer, &mut track)).map_err(|error| {
        let path = dotted(&track.path());
        let place = error.location().map(|place| (place.line(), place.column()));
        let message = bare_message(&error.to_string(), path.as_deref());
        let error = match path {
            Some(path) => ConfigError::at(path, message),
            None => ConfigError::new(message),
        };
        // For an error of a type's own the parser knows no more than where the mapping around it begins.
        let of_the_field = error.clone().located_in(text);
        match place {
            Some((line, column)) if of_the_field.line() <= Some(line) => error.with_place(line, column),
            _ => of_the_field,
        }
    })
}

fn is_blank(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .all(|line| line.is_empty() || line.starts_with('#') || line == "---")
}

/// `None` for the document as a whole.
fn dotted(path: &Path) -> Option<String> {
    let text = path.to_string();
    (path.iter().next().is_some() && text != ".").then_some(text)
}

/// The parser repeats the path in front of its message, and the place behind it; both are shown once, by us.
fn bare_message(message: &str, path: Option<&str>) -> String {
    let message = match message.rsplit_once(" at line ") {
        Some((message, place)) if place.starts_with(|first: char| first.is_ascii_digit()) => message,
        _ => message,
    };
    let repeated = path
        .and_then(|path| message.strip_prefix(path))
        .and_then(|rest| rest.strip_prefix(": "));
    repeated.unwrap_or(message).to_owned()
}

/// Line and column of a field, found by reading the document once more and stopping there. For a field that is not in the
/// document, the place of the nearest one above it that is.
pub(super) fn locate(text: &str, path: &str) -> Option<(usize, usize)> {
    let steps = steps(path);
    (1..=steps.len()).rev().find_map(|depth| {
        let stop = Stop { steps: &steps[..depth] };
        let error = stop.deserialize(serde_yaml::Deserializer::from_str(text)).err()?;
        let place = error.location().filter(|_| error.to_string().contains(FOUND))?;
        Some((place.line(), place.column()))
    })
}

const FOUND: &str = "the field in question";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// `pools[0].selector` as a key, an index and a key.
fn steps(path: &str) -> Vec<Step> {
    path.split('.')
        .flat_map(|part| {
            let (key, indices) = part.split_once('[').map_or((part, ""), |(key, rest)| (key, rest));
            let key = (!key.is_empty()).then(|| Step::Key(key.to_owned()));
            let indices = indices
                .split(['[', ']'])
                .filter_map(|index| index.parse().ok())
                .map(Step::Index);
            key.into_iter().chain(indices).collect::<Vec<_>>()
        })
        .collect()
}

/// Descends along the steps and fails at their end, which makes the parser tell where that is.
struct Stop<'a> {
    steps: &'a [Step],
}

impl<'de> DeserializeSeed<'de> for Stop<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Stop<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whatever value is found where the steps end has the wrong type, and so the parser names its place.
        f.write_str(FOUND)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((Step::Key(wanted), rest)) = self.steps.split_first() else {
            return Err(A::Error::custom(FOUND));
        };
        while let Some(key) = map.next_key::<String>()? {
            if key == *wanted {
                map.next_value_seed(Stop { steps: rest })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Some((Step::Index(wanted), rest)) = self.steps.split_first() else {
            return Err(A::Error::custom(FOUND));
        };
        for _ in 0..*wanted {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        seq.next_element_seed(Stop { steps: rest })?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;
    use serde::Deserialize;

    use super::{from_foreign_yaml, from_yaml, locate};
    use crate::config::ConfigError;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Settings {
        node_drain: NodeDrain,
        pools: Vec<NodeDrain>,
        labels: BTreeMap<String, String>,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct NodeDrain {
        time_out: u32,
    }

    #[rstest]
    #[case::empty("")]
    #[case::comments("# nothing yet\n\n---\n")]
    #[case::braces("{}")]
    fn an_empty_document_means_all_defaults(#[case] text: &str) {
        assert_eq!(from_yaml::<Settings>(text).unwrap(), Settings::default());
    }

    #[rstest]
    #[case::wrong_type(
        "nodeDrain:\n  timeOut: soon\n",
        2,
        Some("nodeDrain.timeOut"),
        "invalid type: string \"soon\", expected u32"
    )]
    #[case::negative("nodeDrain:\n  timeOut: -1\n", 2, Some("nodeDrain.timeOut"), "expected u32")]
    #[case::unknown_field(
        "nodeDrain:\n  timeout: 45\n",
        2,
        Some("nodeDrain.timeout"),
        "unknown field `timeout`, expected `timeOut`"
    )]
    #[case::unknown_at_top("nodeDrains: {}\n", 1, Some("nodeDrains"), "unknown field `nodeDrains`")]
    #[case::in_a_list("pools:\n- timeOut: 1\n- timeOut: x\n", 3, Some("pools[1].timeOut"), "expected u32")]
    #[case::not_yaml(
        "nodeDrain:\n\ttimeOut: 1\n",
        2,
        Some("nodeDrain"),
        "found character that cannot start any token"
    )]
    #[case::not_a_mapping("just words\n", 1, None, "expected struct Settings")]
    #[case::twice("nodeDrain: {}\nnodeDrain: {}\n", 1, None, "duplicate field `nodeDrain`")]
    #[case::two_documents("{}\n---\n{}\n", 1, None, "more than one document")]
    fn an_error_names_line_field_and_remedy(
        #[case] text: &str,
        #[case] line: usize,
        #[case] path: Option<&str>,
        #[case] message: &str,
    ) {
        let error = from_yaml::<Settings>(text).unwrap_err();
        assert!(error.message().contains(message), "{error}");
        assert!(!error.message().contains("at line"), "{error}");
        assert_eq!(error.path(), path, "{error}");
        if !message.contains("document") {
            assert_eq!(error.line(), Some(line), "{error}");
        }
    }

    #[rstest]
    #[case::list("pools:\n", 1, "pools")]
    #[case::tilde("nodeDrain:\n  timeOut: ~\n", 2, "nodeDrain.timeOut")]
    #[case::in_a_list("pools:\n- timeOut: 1\n- timeOut: null\n", 3, "pools[1].timeOut")]
    #[case::element("pools: [{}, null]\n", 1, "pools[1]")]
    #[case::map("labels:\n  a:\n", 2, "labels.a")]
    fn explicit_null_is_an_error(#[case] text: &str, #[case] line: usize, #[case] path: &str) {
        let error = from_yaml::<Settings>(text).unwrap_err();
        assert_eq!((error.path(), error.line()), (Some(path), Some(line)), "{error}");
        assert!(
            error.message().contains("leave the field out for the default"),
            "{error}"
        );
    }

    #[test]
    fn foreign_document_may_have_nulls() {
        #[derive(Debug, Deserialize)]
        struct Foreign {
            pools: Option<Vec<NodeDrain>>,
        }
        assert!(
            from_foreign_yaml::<Foreign>("pools:\nother: ~\n")
                .unwrap()
                .pools
                .is_none()
        );
        assert!(from_yaml::<Foreign>("pools:\n").is_err());
    }

    #[test]
    fn an_error_is_shown_the_way_editors_jump_to() {
        let error = from_yaml::<Settings>("nodeDrain:\n  timeOut: soon\n")
            .unwrap_err()
            .in_origin("/etc/nodeward.yaml");
        let shown = error.to_string();
        assert!(
            shown.starts_with("/etc/nodeward.yaml:2:12: nodeDrain.timeOut: invalid type"),
            "{shown}"
        );
    }

    const DOCUMENT: &str = "labels: {a: b}\npools:\n- timeOut: 1\n- {timeOut: 2}\nnodeDrain:\n  timeOut: 3\n";

    #[rstest]
    #[case::nested("nodeDrain.timeOut", Some(6))]
    #[case::in_a_list("pools[1].timeOut", Some(4))]
    #[case::block("pools[0]", Some(3))]
    #[case::scalar("labels.a", Some(1))]
    #[case::absent_field_is_shown_at_its_parent("nodeDrain.other", Some(6))]
    #[case::absent_altogether("nothing", None)]
    fn a_callers_own_check_is_located_too(#[case] path: &str, #[case] line: Option<usize>) {
        assert_eq!(locate(DOCUMENT, path).map(|(line, _)| line), line);
        assert_eq!(
            ConfigError::at(path, "must be positive").located_in(DOCUMENT).line(),
            line
        );
    }
}
