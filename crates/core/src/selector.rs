//! Label selectors, with the API's exact semantics (`metav1.LabelSelectorAsSelector` of Kubernetes' apimachinery).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube_core::Expression;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::labels::Labels;

/// A parsed label selector.
///
/// In configuration it is written as labels in a plain map, as a pod's `nodeSelector` has them, or as in the API, with
/// `matchLabels` and `matchExpressions`; unknown fields are refused.
///
/// kube's own `Selector` is not used: it accepts `In []`, which the API server refuses, and cannot match interned labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector(Option<Vec<Expression>>);

/// Why a label selector is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// An operator that label selectors do not have.
    #[error("{operator:?} is not a label selector operator: write In, NotIn, Exists or DoesNotExist")]
    Operator { operator: String },
    /// `In` or `NotIn` without values.
    #[error("{operator} of {key:?} needs at least one value")]
    NoValues {
        /// The label.
        key: String,
        operator: String,
    },
    /// `Exists` or `DoesNotExist` with values.
    #[error("{operator} of {key:?} takes no values")]
    Values {
        /// The label.
        key: String,
        operator: String,
    },
    /// A key that no label can have.
    #[error("{key:?} is not a label key")]
    Key { key: String },
    /// A value that no label can have.
    #[error("{value:?} is not a value that the label {key:?} can have")]
    Value {
        /// The label.
        key: String,
        value: String,
    },
}

impl Selector {
    /// The selector that matches nothing.
    pub const NOTHING: Self = Self(None);

    /// The selector that matches everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Parses a selector of the API: absent matches nothing, empty matches everything.
    ///
    /// # Errors
    /// Whatever makes the API server's own parser refuse it.
    pub fn parse(selector: Option<&LabelSelector>) -> Result<Self, SelectorError> {
        let Some(selector) = selector else {
            return Ok(Self::NOTHING);
        };
        let labels = selector.match_labels.iter().flatten().map(|(key, value)| {
            check(key, [value])?;
            Ok(Expression::Equal(key.clone(), value.clone()))
        });
        let expressions = selector.match_expressions.iter().flatten().map(parse_requirement);
        Ok(Self(Some(labels.chain(expressions).collect::<Result<_, _>>()?)))
    }

    /// Whether labels fulfil every term. `NotIn` and `DoesNotExist` hold for an absent key.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.matches_by(|key| labels.get(key))
    }

    /// The same of labels as the API has them.
    pub fn matches_map(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_by(|key| labels.get(key).map(String::as_str))
    }

    fn matches_by<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        let accepts = |expression: &Expression| match expression {
            Expression::In(key, values) => get(key).is_some_and(|value| values.contains(value)),
            Expression::NotIn(key, values) => get(key).is_none_or(|value| !values.contains(value)),
            Expression::Equal(key, wanted) => get(key) == Some(wanted),
            Expression::NotEqual(key, unwanted) => get(key) != Some(unwanted),
            Expression::Exists(key) => get(key).is_some(),
            Expression::DoesNotExist(key) => get(key).is_none(),
        };
        self.0.as_ref().is_some_and(|terms| terms.iter().all(accepts))
    }

    /// Whether it has no term: absent, or `{}`.
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(Vec::is_empty)
    }

    /// A value that some label of whatever it matches has; `None` where it demands none, or leaves a choice.
    pub(crate) fn demanded_value(&self) -> Option<&str> {
        self.0.iter().flatten().find_map(|term| match term {
            Expression::Equal(_, value) => Some(value.as_str()),
            _ => None,
        })
    }

    /// Whether labels with this key and one of `values` are what some term demands.
    pub(crate) fn demands(&self, key: &str, accept: impl Fn(&str) -> bool) -> bool {
        self.0.iter().flatten().any(|term| match term {
            Expression::Equal(label, value) => label == key && accept(value),
            Expression::In(label, values) => label == key && values.iter().all(|value| accept(value)),
            _ => false,
        })
    }
}

impl Default for Selector {
    fn default() -> Self {
        Self(Some(Vec::new()))
    }
}

/// `Expression` has no hash of its own.
impl Hash for Selector {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.is_some().hash(state);
        self.to_string().hash(state);
    }
}

/// The form that the API takes in the query parameter `labelSelector`.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.0.iter().flatten().enumerate() {
            write!(f, "{}{term}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

fn parse_requirement(requirement: &LabelSelectorRequirement) -> Result<Expression, SelectorError> {
    let LabelSelectorRequirement { key, operator, values } = requirement.clone();
    let values = values.unwrap_or_default();
    check(&key, &values)?;
    match (operator.as_str(), values.is_empty()) {
        ("In" | "NotIn", true) => Err(SelectorError::NoValues { key, operator }),
        ("Exists" | "DoesNotExist", false) => Err(SelectorError::Values { key, operator }),
        ("In", _) => Ok(Expression::In(key, values.into_iter().collect())),
        ("NotIn", _) => Ok(Expression::NotIn(key, values.into_iter().collect())),
        ("Exists", _) => Ok(Expression::Exists(key)),
        ("DoesNotExist", _) => Ok(Expression::DoesNotExist(key)),
        _ => Err(SelectorError::Operator { operator }),
    }
}

/// Whether labels can have this key and these values.
fn check<'a>(key: &str, values: impl IntoIterator<Item = &'a String>) -> Result<(), SelectorError> {
    let key = key.to_owned();
    if !is_label_key(&key) {
        return Err(SelectorError::Key { key });
    }
    match values.into_iter().find(|value| !is_label_value(value)) {
        Some(value) => Err(SelectorError::Value {
            key,
            value: value.clone(),
        }),
        None => Ok(()),
    }
}

/// A qualified name: an optional DNS subdomain and `/`, then a name of at most 63 characters.
fn is_label_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_dns_label = |part: &str| {
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let edge = |c: Option<&u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        part.bytes().all(inner) && edge(part.as_bytes().first()) && edge(part.as_bytes().last())
    };
    let prefix_is_valid = prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(is_dns_label));
    prefix_is_valid && !name.is_empty() && is_label_value(name)
}

/// At most 63 of `[A-Za-z0-9_.-]` that begin and end alphanumerically, or nothing.
fn is_label_value(value: &str) -> bool {
    let bytes = value.as_bytes();
    let edge = |c: Option<&u8>| c.is_none_or(u8::is_ascii_alphanumeric);
    bytes.len() <= 63
        && bytes
            .iter()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
        && edge(bytes.first())
        && edge(bytes.last())
}

/// The selector as it stands in a configuration file, in the API's form.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(rename = "LabelSelector")]
struct Written {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<WrittenExpression>,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LabelSelectorRequirement")]
struct WrittenExpression {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = BTreeMap::<String, Value>::deserialize(deserializer)?;
        let is_in_full = fields.contains_key("matchLabels") || fields.contains_key("matchExpressions");
        let written = if is_in_full {
            serde_json::from_value(Value::Object(fields.into_iter().collect())).map_err(D::Error::custom)?
        } else {
            Written {
                match_labels: plain_labels(fields).map_err(D::Error::custom)?,
                ..Written::default()
            }
        };
        let requirement = |WrittenExpression { key, operator, values }| LabelSelectorRequirement {
            key,
            operator,
            values: Some(values),
        };
        Self::parse(Some(&LabelSelector {
            match_labels: Some(written.match_labels),
            match_expressions: Some(written.match_expressions.into_iter().map(requirement).collect()),
        }))
        .map_err(D::Error::custom)
    }
}

impl JsonSchema for Selector {
    fn schema_name() -> Cow<'static, str> {
        "Selector".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A label selector with matchLabels and matchExpressions, or labels in a plain map.",
            "type": "object",
            "if": { "anyOf": [{ "required": ["matchLabels"] }, { "required": ["matchExpressions"] }] },
            "then": generator.subschema_for::<Written>(),
            "else": { "additionalProperties": { "type": "string" } },
        })
    }
}

fn plain_labels(fields: BTreeMap<String, Value>) -> Result<BTreeMap<String, String>, String> {
    let label = |(key, value)| match value {
        Value::String(value) => Ok((key, value)),
        other => Err(format!(
            "{key}: a label's value is text, in quotes, and {other} is not; a selector in full has matchLabels and \
             matchExpressions"
        )),
    };
    fields.into_iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn api(selector: &Value) -> LabelSelector {
        serde_json::from_value(selector.clone()).unwrap()
    }

    fn parse(selector: &Value) -> Result<Selector, SelectorError> {
        Selector::parse(Some(&api(selector)))
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().copied().collect()
    }

    #[test]
    fn null_matches_nothing_and_empty_matches_everything() {
        let some = labels(&[("app", "web")]);
        assert!(!Selector::parse(None).unwrap().matches(&some));
        assert!(!Selector::parse(None).unwrap().matches(&labels(&[])));
        for empty in [json!({}), json!({ "matchLabels": {}, "matchExpressions": [] })] {
            assert!(parse(&empty).unwrap().matches(&some));
            assert!(parse(&empty).unwrap().matches(&labels(&[])));
        }
    }

    #[rstest]
    #[case("In", json!(["web", "api"]), true, false, false)]
    #[case("NotIn", json!(["web", "api"]), false, true, true)]
    #[case("Exists", json!([]), true, true, false)]
    #[case("DoesNotExist", json!([]), false, false, true)]
    fn an_operator_holds_for(
        #[case] operator: &str,
        #[case] values: Value,
        #[case] listed: bool,
        #[case] another_value: bool,
        #[case] absent: bool,
    ) {
        let selector =
            parse(&json!({ "matchExpressions": [{ "key": "app", "operator": operator, "values": values }] })).unwrap();
        assert_eq!(selector.matches(&labels(&[("app", "web")])), listed);
        assert_eq!(selector.matches(&labels(&[("app", "db")])), another_value);
        assert_eq!(selector.matches(&labels(&[("other", "web")])), absent);
    }

    #[rstest]
    #[case(json!([{ "key": "a", "operator": "in", "values": ["b"] }]), "\"in\" is not a label selector operator")]
    #[case(json!([{ "key": "a", "operator": "In", "values": [] }]), "In of \"a\" needs at least one value")]
    #[case(json!([{ "key": "a", "operator": "NotIn" }]), "NotIn of \"a\" needs at least one value")]
    #[case(json!([{ "key": "a", "operator": "Exists", "values": ["b"] }]), "Exists of \"a\" takes no values")]
    #[case(json!([{ "key": "a", "operator": "DoesNotExist", "values": ["b"] }]), "DoesNotExist of \"a\" takes no values")]
    #[case(json!([{ "key": "", "operator": "Exists" }]), "\"\" is not a label key")]
    #[case(json!([{ "key": "-a", "operator": "Exists" }]), "is not a label key")]
    #[case(json!([{ "key": "a/b/c", "operator": "Exists" }]), "is not a label key")]
    #[case(json!([{ "key": "/a", "operator": "Exists" }]), "is not a label key")]
    #[case(json!([{ "key": "A.b/c", "operator": "Exists" }]), "is not a label key")]
    #[case(json!([{ "key": "a", "operator": "In", "values": ["b c"] }]), "\"b c\" is not a value")]
    #[case(json!([{ "key": "a", "operator": "In", "values": ["b-"] }]), "is not a value")]
    fn what_the_api_server_cannot_parse_is_an_error(#[case] expressions: Value, #[case] says: &str) {
        let error = parse(&json!({ "matchExpressions": expressions }))
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{error}");
    }

    #[rstest]
    #[case("app")]
    #[case("node-role.kubernetes.io/worker")]
    #[case("a.b-c.d/E_f.g-1")]
    fn every_label_key_is_accepted(#[case] key: &str) {
        assert!(parse(&json!({ "matchLabels": { key: "" } })).is_ok());
    }

    #[rstest]
    #[case(json!({ "matchLabels": { "a": "b" } }), "a=b")]
    #[case(json!({ "matchLabels": { "a": "b" }, "matchExpressions": [
        { "key": "c", "operator": "In", "values": ["d", "e"] },
        { "key": "f", "operator": "NotIn", "values": ["g"] },
        { "key": "h", "operator": "Exists" },
        { "key": "i", "operator": "DoesNotExist" },
    ] }), "a=b,c in (d,e),f notin (g),h,!i")]
    #[case(json!({}), "")]
    fn selector_prints_as_a_query_parameter(#[case] selector: Value, #[case] query: &str) {
        assert_eq!(parse(&selector).unwrap().to_string(), query);
    }

    #[rstest]
    #[case(json!({}), Ok("{}"))]
    #[case(json!({ "matchLabels": { "a": "b" } }), Ok("a=b"))]
    #[case(json!({ "a": "b", "c": "" }), Ok("a=b,c="))]
    #[case(json!({ "a": "b c" }), Err("is not a value"))]
    #[case(json!({ "a": 1 }), Err("a: a label's value is text, in quotes"))]
    #[case(json!({ "a": null }), Err("a: a label's value is text"))]
    #[case(json!({ "matchLabel": { "a": "b" } }), Err("a selector in full has matchLabels and matchExpressions"))]
    #[case(json!({ "matchLabels": { "a": "b" }, "c": "d" }), Err("unknown field `c`"))]
    #[case(json!({ "matchLabels": null }), Err("invalid type"))]
    #[case(json!({ "matchExpressions": null }), Err("invalid type"))]
    #[case(json!({ "matchExpressions": [{ "key": "a", "operator": "Exists", "value": "b" }] }), Err("unknown field `value`"))]
    #[case(json!({ "matchExpressions": [{ "key": "a", "operator": "Near" }] }), Err("not a label selector operator"))]
    #[case(json!({ "matchLabels": { "a": 1 } }), Err("invalid type"))]
    #[case(json!(null), Err("invalid type"))]
    fn a_configured_selector_is_checked(#[case] written: Value, #[case] outcome: Result<&str, &str>) {
        match (serde_json::from_value::<Selector>(written), outcome) {
            (Ok(selector), Ok(query)) => {
                assert_eq!(selector.to_string(), query.trim_matches(['{', '}']));
            }
            (Err(error), Err(says)) => assert!(error.to_string().contains(says), "{error}"),
            (read, _) => panic!("{read:?}"),
        }
    }

    /// The rules of `labels.Requirement.Matches` in apimachinery, said again in the simplest way.
    fn model(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
        let mut holds = true;
        for (key, value) in selector.match_labels.clone().unwrap_or_default() {
            holds = holds && labels.get(&key) == Some(&value);
        }
        for requirement in selector.match_expressions.clone().unwrap_or_default() {
            let values = requirement.values.unwrap_or_default();
            let value = labels.get(&requirement.key);
            holds = holds
                && match requirement.operator.as_str() {
                    "In" => value.is_some() && values.contains(value.unwrap()),
                    "NotIn" => value.is_none() || !values.contains(value.unwrap()),
                    "Exists" => value.is_some(),
                    _ => value.is_none(),
                };
        }
        holds
    }

    fn any_selector() -> impl Strategy<Value = LabelSelector> {
        let requirement =
            ("[ab]", 0..4_usize, prop::collection::vec("[xyz]", 1..3)).prop_map(|(key, operator, values)| {
                let operator = ["In", "NotIn", "Exists", "DoesNotExist"][operator];
                let values = operator.ends_with("In").then_some(values);
                LabelSelectorRequirement {
                    key,
                    operator: operator.to_owned(),
                    values,
                }
            });
        (
            prop::option::of(prop::collection::btree_map("[ab]", "[xyz]", 0..2)),
            prop::option::of(prop::collection::vec(requirement, 0..3)),
        )
            .prop_map(|(match_labels, match_expressions)| LabelSelector {
                match_labels,
                match_expressions,
            })
    }

    proptest! {
        #[test]
        fn a_selector_matches_what_the_api_says(
            selector in any_selector(),
            labels in prop::collection::btree_map("[abc]", "[xyz]", 0..3),
        ) {
            let parsed = Selector::parse(Some(&selector)).unwrap();
            prop_assert_eq!(parsed.matches(&labels.clone().into_iter().collect()), model(&selector, &labels));
        }
    }
}
