//! Label selectors, with the API's exact semantics (`metav1.LabelSelectorAsSelector` of Kubernetes' apimachinery).

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde::{Deserialize, Serialize};

/// A parsed label selector.
///
/// In configuration it is written as in the API, `matchLabels` and `matchExpressions`; unknown fields are refused.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Selector(Terms);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Terms {
    /// The selector is absent: it matches nothing.
    Nothing,
    /// All must hold; none at all matches everything.
    All(Vec<Term>),
}

impl Default for Terms {
    fn default() -> Self {
        Self::All(Vec::new())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    key: String,
    condition: Condition,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

/// Why a label selector is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// An operator that label selectors do not have.
    #[error("{operator:?} is not a label selector operator: write In, NotIn, Exists or DoesNotExist")]
    Operator {
        /// The operator.
        operator: String,
    },
    /// `In` or `NotIn` without values.
    #[error("{operator} of {key:?} needs at least one value")]
    NoValues {
        /// The label.
        key: String,
        /// The operator.
        operator: &'static str,
    },
    /// `Exists` or `DoesNotExist` with values.
    #[error("{operator} of {key:?} takes no values")]
    Values {
        /// The label.
        key: String,
        /// The operator.
        operator: &'static str,
    },
    /// A key that no label can have.
    #[error("{key:?} is not a label key")]
    Key {
        /// The key.
        key: String,
    },
    /// A value that no label can have.
    #[error("{value:?} is not a value that the label {key:?} can have")]
    Value {
        /// The label.
        key: String,
        /// The value.
        value: String,
    },
}

impl Selector {
    /// The selector that matches nothing.
    pub const NOTHING: Self = Self(Terms::Nothing);

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
        let labels = selector.match_labels.iter().flatten().map(|(key, value)| Term::equals(key, value));
        let expressions = selector.match_expressions.iter().flatten().map(Term::parse);
        Ok(Self(Terms::All(labels.chain(expressions).collect::<Result<_, _>>()?)))
    }

    /// Whether labels fulfil every term. `NotIn` and `DoesNotExist` hold for an absent key.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        match &self.0 {
            Terms::Nothing => false,
            Terms::All(terms) => terms.iter().all(|term| term.matches(labels)),
        }
    }

    /// Whether it has no term: absent, or `{}`.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            Terms::Nothing => true,
            Terms::All(terms) => terms.is_empty(),
        }
    }

    /// Whether labels with this key and one of `values` are what some term demands.
    pub(crate) fn demands(&self, key: &str, accept: impl Fn(&str) -> bool) -> bool {
        let Terms::All(terms) = &self.0 else {
            return false;
        };
        terms.iter().any(|term| match &term.condition {
            Condition::In(values) => term.key == key && values.iter().all(|value| accept(value)),
            _ => false,
        })
    }
}

/// The form that the API takes in the query parameter `labelSelector`.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Terms::All(terms) = &self.0 else {
            return Ok(());
        };
        for (index, Term { key, condition }) in terms.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match condition {
                Condition::In(values) if values.len() == 1 => write!(f, "{key}={}", values[0])?,
                Condition::In(values) => write!(f, "{key} in ({})", values.join(","))?,
                Condition::NotIn(values) => write!(f, "{key} notin ({})", values.join(","))?,
                Condition::Exists => write!(f, "{key}")?,
                Condition::DoesNotExist => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

impl Term {
    fn equals(key: &str, value: &str) -> Result<Self, SelectorError> {
        Self::new(key, Condition::In(vec![value.to_owned()]))
    }

    fn parse(requirement: &LabelSelectorRequirement) -> Result<Self, SelectorError> {
        let key = &requirement.key;
        let values = requirement.values.clone().unwrap_or_default();
        let some = |operator| match values.is_empty() {
            true => Err(SelectorError::NoValues { key: key.clone(), operator }),
            false => Ok(values.clone()),
        };
        let none = |operator| match values.is_empty() {
            true => Ok(()),
            false => Err(SelectorError::Values { key: key.clone(), operator }),
        };
        let condition = match requirement.operator.as_str() {
            "In" => Condition::In(some("In")?),
            "NotIn" => Condition::NotIn(some("NotIn")?),
            "Exists" => none("Exists").map(|()| Condition::Exists)?,
            "DoesNotExist" => none("DoesNotExist").map(|()| Condition::DoesNotExist)?,
            other => return Err(SelectorError::Operator { operator: other.to_owned() }),
        };
        Self::new(key, condition)
    }

    fn new(key: &str, condition: Condition) -> Result<Self, SelectorError> {
        if !is_label_key(key) {
            return Err(SelectorError::Key { key: key.to_owned() });
        }
        if let Condition::In(values) | Condition::NotIn(values) = &condition
            && let Some(value) = values.iter().find(|value| !is_label_value(value))
        {
            return Err(SelectorError::Value { key: key.to_owned(), value: value.clone() });
        }
        Ok(Self { key: key.to_owned(), condition })
    }

    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match &self.condition {
            Condition::In(values) => value.is_some_and(|value| values.contains(value)),
            Condition::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Condition::Exists => value.is_some(),
            Condition::DoesNotExist => value.is_none(),
        }
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
        && bytes.iter().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
        && edge(bytes.first())
        && edge(bytes.last())
}

/// The selector as it stands in a configuration file.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    match_labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    match_expressions: Vec<WrittenExpression>,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct WrittenExpression {
    key: String,
    operator: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    values: Vec<String>,
}

impl TryFrom<Written> for Selector {
    type Error = SelectorError;

    fn try_from(written: Written) -> Result<Self, SelectorError> {
        let expressions = written.match_expressions.into_iter().map(|expression| LabelSelectorRequirement {
            key: expression.key,
            operator: expression.operator,
            values: Some(expression.values),
        });
        Self::parse(Some(&LabelSelector {
            match_labels: Some(written.match_labels),
            match_expressions: Some(expressions.collect()),
        }))
    }
}

impl From<Selector> for Written {
    fn from(selector: Selector) -> Self {
        let terms = match selector.0 {
            Terms::Nothing => Vec::new(),
            Terms::All(terms) => terms,
        };
        let expression = |Term { key, condition }| {
            let (operator, values) = match condition {
                Condition::In(values) => ("In", values),
                Condition::NotIn(values) => ("NotIn", values),
                Condition::Exists => ("Exists", Vec::new()),
                Condition::DoesNotExist => ("DoesNotExist", Vec::new()),
            };
            WrittenExpression { key, operator: operator.to_owned(), values }
        };
        Self { match_labels: BTreeMap::new(), match_expressions: terms.into_iter().map(expression).collect() }
    }
}
