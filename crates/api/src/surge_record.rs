//! That a pod's Deployment is told to roll so that the pod moves, kept on the Pod: an annotation on the Deployment would be lost
//! with the next `rollout undo`.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// How long a rollout may take at most.
pub const LONGEST: SignedDuration = SignedDuration::from_hours(1);

/// Value of the Pod annotation [`crate::annotation::SURGED`], written before the Deployment is touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SurgeRecord {
    /// UID of the Deployment.
    pub deployment: String,
    /// Its generation before it is told to roll. At any other one it is never told so again for this pod.
    pub generation: i64,
    /// When: what the Deployment's template gets as [`crate::annotation::RESTARTED_AT`], in whole seconds.
    pub at: Timestamp,
    /// When the surge is given up.
    pub until: Timestamp,
}

impl SurgeRecord {
    /// Whether the surge is given up. A time that is further away than a rollout may take is none of drain-keeper's: it would keep the
    /// pod for ever.
    pub fn is_given_up(&self, now: Timestamp) -> bool {
        self.until <= now || self.until.duration_since(now) > LONGEST
    }

    /// Reads the annotation's value.
    ///
    /// # Errors
    /// When it is not the JSON that [`SurgeRecord`]'s `Display` writes.
    pub fn parse(value: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(value)
    }
}

impl fmt::Display for SurgeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn surge_record_json_stays_compatible() {
        let record = SurgeRecord {
            deployment: "d".to_owned(),
            generation: 3,
            at: "2026-01-01T00:02:00Z".parse().unwrap(),
            until: "2026-01-01T00:12:00Z".parse().unwrap(),
        };
        let text = r#"{"deployment":"d","generation":3,"at":"2026-01-01T00:02:00Z","until":"2026-01-01T00:12:00Z"}"#;
        assert_eq!(record.to_string(), text);
        assert_eq!(SurgeRecord::parse(text).unwrap(), record);
    }

    #[rstest]
    #[case("")]
    #[case("{}")]
    #[case(r#"{"deployment":"d","generation":"3","at":"2026-01-01T00:02:00Z","until":"2026-01-01T00:12:00Z"}"#)]
    #[case(r#"{"deployment":"d","generation":3,"at":"2026-01-01T00:02:00Z"}"#)]
    #[case("null")]
    fn nonsense_in_the_annotation_is_an_error(#[case] text: &str) {
        assert!(SurgeRecord::parse(text).is_err());
    }

    #[rstest]
    #[case::begun("2026-01-01T00:02:00Z", false)]
    #[case::in_its_last_second("2026-01-01T00:11:59Z", false)]
    #[case::given_up("2026-01-01T00:12:00Z", true)]
    #[case::further_away_than_a_rollout_may_take("2025-12-31T23:11:59Z", true)]
    fn surge_is_given_up_in_time(#[case] now: Timestamp, #[case] expected: bool) {
        let text = r#"{"deployment":"d","generation":3,"at":"2026-01-01T00:02:00Z","until":"2026-01-01T00:12:00Z"}"#;
        assert_eq!(SurgeRecord::parse(text).unwrap().is_given_up(now), expected);
    }
}
