//! The rule of every field: one that is there has a value. An explicit `null`, which is easily written by leaving a line
//! unfinished, is an error, and only an absent field is its default. (A list or a map that is null would otherwise be an
//! empty one.)

use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// For `#[serde(deserialize_with)]`: the field's value, never null.
///
/// # Errors
/// Null, or whatever the value's own type refuses.
pub fn value<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    let missing = || D::Error::custom("has no value: give it one, or leave the field out for the default");
    Option::deserialize(deserializer)?.ok_or_else(missing)
}

/// As [`value()`], for fields whose absence is told from every value: with `#[serde(default)]` an absent one is `None`.
///
/// # Errors
/// As [`value()`].
pub fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    value(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde::Deserialize;

    use super::{given, value};
    use crate::config::from_yaml;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Settings {
        #[serde(default, deserialize_with = "value")]
        list: Vec<u8>,
        #[serde(default, deserialize_with = "given")]
        wait: Option<u8>,
    }

    #[rstest]
    #[case::absent("{}", Settings { list: Vec::new(), wait: None })]
    #[case::there("{list: [1], wait: 0}", Settings { list: vec![1], wait: Some(0) })]
    fn a_field_is_absent_or_has_a_value(#[case] text: &str, #[case] settings: Settings) {
        assert_eq!(from_yaml::<Settings>(text).unwrap(), settings);
    }

    #[rstest]
    #[case("list:\n", "list")]
    #[case("wait: null\n", "wait")]
    #[case("wait: ~\n", "wait")]
    fn an_explicit_null_is_not_the_default(#[case] text: &str, #[case] path: &str) {
        let error = from_yaml::<Settings>(text).unwrap_err();
        assert_eq!(error.path(), Some(path));
        assert!(
            error.message().contains("leave the field out for the default"),
            "{error}"
        );
    }
}
