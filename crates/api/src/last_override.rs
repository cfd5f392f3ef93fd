//! When a budget was last overridden, and for which pod, kept on the PodDisruptionBudget, so that no restart and no second
//! leader overrides it again too soon.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Value of the PodDisruptionBudget annotation [`crate::annotation::LAST_OVERRIDE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastOverride {
    /// When the budget was overridden.
    pub at: Timestamp,
    /// Name of the pod that it was overridden for.
    pub pod: String,
    /// UID of that pod.
    pub uid: String,
    /// The strategy that fell due; empty in records of earlier versions, as are the others below.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub strategy: String,
    /// The replica that overrode it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub replica: String,
    /// What said that an upgrade is on: the configured signal, and the objects behind it with their generation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub signal: String,
}

impl LastOverride {
    /// Reads the annotation's value.
    ///
    /// # Errors
    /// When it is not the JSON that [`LastOverride`]'s `Display` writes.
    pub fn parse(value: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(value)
    }
}

impl fmt::Display for LastOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn last_override_json_stays_compatible() {
        let last = LastOverride {
            at: "2026-01-01T00:00:00Z".parse().unwrap(),
            pod: "web-0".to_owned(),
            uid: "u".to_owned(),
            strategy: String::new(),
            replica: String::new(),
            signal: String::new(),
        };
        let text = r#"{"at":"2026-01-01T00:00:00Z","pod":"web-0","uid":"u"}"#;
        assert_eq!(last.to_string(), text);
        assert_eq!(LastOverride::parse(text).unwrap(), last);
        let whole = LastOverride {
            strategy: "PdbDelete".to_owned(),
            replica: "keeper-0".to_owned(),
            signal: "always".to_owned(),
            ..last
        };
        let text = r#"{"at":"2026-01-01T00:00:00Z","pod":"web-0","uid":"u","strategy":"PdbDelete","replica":"keeper-0","signal":"always"}"#;
        assert_eq!(whole.to_string(), text);
        assert_eq!(LastOverride::parse(text).unwrap(), whole);
    }

    #[rstest]
    #[case("")]
    #[case("{}")]
    #[case(r#"{"at":"yesterday","pod":"web-0","uid":"u"}"#)]
    #[case(r#"{"at":1,"pod":"web-0","uid":"u"}"#)]
    #[case("null")]
    fn nonsense_in_the_annotation_is_an_error(#[case] text: &str) {
        assert!(LastOverride::parse(text).is_err());
    }
}
