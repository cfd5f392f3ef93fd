//! Durations as a configuration file writes them.

use std::borrow::Cow;
use std::fmt;

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, Unexpected, Visitor};

/// A positive duration. An integer is minutes, as in managed-upgrade-operator; a string is a duration in Go's form:
/// `"90s"`, `"5m"`, `"1h30m"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigDuration(SignedDuration);

/// Why a value is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("a time must be more than 0: leave it out for the default")]
    Zero,
    /// Below zero.
    #[error("a time must not be negative (got {0})")]
    Negative(String),
    /// A number with a fraction.
    #[error("{0} is not a whole number of minutes: write a duration such as \"90s\"")]
    Fraction(String),
    /// Beyond what can be counted.
    #[error("{0} is too long: at most {max} minutes (a hundred years)", max = MAX_MINUTES)]
    TooLong(String),
    #[error("{0:?} is not a duration: write whole minutes (5) or a duration such as \"90s\", \"5m\", \"1h30m\"")]
    NotADuration(String),
}

/// A hundred years: no sum of configured times can then leave the range of timestamps.
const MAX_MINUTES: i64 = 100 * 365 * 24 * 60;

const UNITS: [(&str, i128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl ConfigDuration {
    /// The longest that is accepted.
    pub const LONGEST: SignedDuration = SignedDuration::from_mins(MAX_MINUTES);

    /// A number of minutes.
    ///
    /// # Errors
    /// Zero, negative, or too long.
    pub fn from_minutes(minutes: impl Into<i128>) -> Result<Self, DurationError> {
        match minutes.into() {
            0 => Err(DurationError::Zero),
            minutes @ ..0 => Err(DurationError::Negative(minutes.to_string())),
            minutes => match i64::try_from(minutes) {
                Ok(minutes @ ..=MAX_MINUTES) => Ok(Self(SignedDuration::from_mins(minutes))),
                _ => Err(DurationError::TooLong(minutes.to_string())),
            },
        }
    }

    /// A duration in Go's form: numbers, with a fraction if need be, each with a unit of h, m, s, ms, us (µs), ns.
    ///
    /// # Errors
    /// Not of that form, zero, negative, or too long.
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        let malformed = || DurationError::NotADuration(text.to_owned());
        let (sign, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Err(DurationError::Zero);
        }
        if rest.is_empty() {
            return Err(malformed());
        }
        let mut nanoseconds: i128 = 0;
        while !rest.is_empty() {
            let number = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .ok_or_else(malformed)?;
            let (digits, after) = rest.split_at(number);
            let unit = after
                .find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(after.len());
            let (unit, after) = after.split_at(unit);
            let scale = UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .map(|(_, scale)| *scale)
                .ok_or_else(malformed)?;
            let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
            if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
                return Err(malformed());
            }
            let too_long = |_| DurationError::TooLong(text.to_owned());
            let whole: i128 = if whole.is_empty() {
                0
            } else {
                i128::from(whole.parse::<i64>().map_err(too_long)?)
            };
            nanoseconds += whole * scale;
            let mut place = scale;
            for digit in fraction.bytes() {
                place /= 10;
                nanoseconds += i128::from(digit - b'0') * place;
            }
            rest = after;
            if nanoseconds > i128::from(MAX_MINUTES) * 60_000_000_000 {
                return Err(DurationError::TooLong(text.to_owned()));
            }
        }
        match (nanoseconds, sign) {
            (0, _) => Err(DurationError::Zero),
            (_, -1) => Err(DurationError::Negative(text.to_owned())),
            _ => Ok(Self(SignedDuration::from_nanos_i128(nanoseconds))),
        }
    }

    pub fn get(self) -> SignedDuration {
        self.0
    }
}

impl From<ConfigDuration> for SignedDuration {
    fn from(duration: ConfigDuration) -> Self {
        duration.0
    }
}

/// In Go's form, which [`ConfigDuration::parse`] reads back.
impl fmt::Display for ConfigDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_nanos();
        for (unit, scale) in [
            ("h", UNITS[6].1),
            ("m", UNITS[5].1),
            ("s", UNITS[4].1),
            ("ms", UNITS[3].1),
            ("us", UNITS[1].1),
            ("ns", 1),
        ] {
            if rest >= scale {
                write!(f, "{}{unit}", rest / scale)?;
                rest %= scale;
            }
        }
        Ok(())
    }
}

impl std::str::FromStr for ConfigDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        Self::parse(text)
    }
}

impl<'de> Deserialize<'de> for ConfigDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ConfigDurationVisitor)
    }
}

/// Only the form: that a duration is not 0 and not too long is left to the type.
impl JsonSchema for ConfigDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let units = UNITS.map(|(unit, _)| unit).join("|");
        json_schema!({
            "description": "Whole minutes (5), or a duration such as \"90s\", \"5m\", \"1h30m\".",
            "type": ["integer", "string"],
            "minimum": 1,
            "maximum": MAX_MINUTES,
            "pattern": format!(r"^\+?([0-9.]+({units}))+$"),
        })
    }
}

struct ConfigDurationVisitor;

impl Visitor<'_> for ConfigDurationVisitor {
    type Value = ConfigDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("whole minutes (5) or a duration such as \"90s\", \"5m\", \"1h30m\"; leave it out for the default")
    }

    fn visit_i64<E: de::Error>(self, minutes: i64) -> Result<ConfigDuration, E> {
        self.visit_i128(minutes.into())
    }

    fn visit_u64<E: de::Error>(self, minutes: u64) -> Result<ConfigDuration, E> {
        self.visit_i128(minutes.into())
    }

    fn visit_i128<E: de::Error>(self, minutes: i128) -> Result<ConfigDuration, E> {
        ConfigDuration::from_minutes(minutes).map_err(E::custom)
    }

    /// What does not fit into 64 bits.
    fn visit_u128<E: de::Error>(self, minutes: u128) -> Result<ConfigDuration, E> {
        Err(E::custom(DurationError::TooLong(minutes.to_string())))
    }

    fn visit_f64<E: de::Error>(self, minutes: f64) -> Result<ConfigDuration, E> {
        if minutes.is_finite() {
            Err(E::custom(DurationError::Fraction(minutes.to_string())))
        } else {
            Err(E::invalid_type(Unexpected::Other(&minutes.to_string()), &self))
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ConfigDuration, E> {
        ConfigDuration::parse(text).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn seconds(duration: ConfigDuration) -> i64 {
        duration.get().as_secs()
    }

    #[rstest]
    #[case("45", 45 * 60)]
    #[case("1", 60)]
    #[case("\"90s\"", 90)]
    #[case("\"5m\"", 300)]
    #[case("5m", 300)]
    #[case("\"1h30m\"", 5400)]
    #[case("\"1.5h\"", 5400)]
    #[case("\"+2m\"", 120)]
    #[case("\"1000ms\"", 1)]
    #[case("\"1000000us\"", 1)]
    #[case("\"1000000µs\"", 1)]
    #[case("\"24h\"", 86400)]
    #[case("\"0h1m\"", 60)]
    #[case("52560000", 52_560_000 * 60)]
    fn integers_are_minutes_and_strings_durations(#[case] yaml: &str, #[case] expected: i64) {
        assert_eq!(seconds(serde_yaml::from_str(yaml).unwrap()), expected);
    }

    #[rstest]
    #[case("0", "leave it out for the default")]
    #[case("\"0\"", "more than 0")]
    #[case("\"0s\"", "more than 0")]
    #[case("\"0m0.0s\"", "more than 0")]
    #[case("-5", "must not be negative (got -5)")]
    #[case("\"-5m\"", "must not be negative (got -5m)")]
    #[case("1.5", "write a duration such as \"90s\"")]
    #[case("5.0", "not a whole number of minutes")]
    #[case(".nan", "invalid type")]
    #[case(".inf", "invalid type")]
    #[case("52560001", "too long")]
    #[case("9223372036854775807", "too long")]
    #[case("18446744073709551615", "too long")]
    #[case("\"1000000000000h\"", "too long")]
    #[case("\"99999999999999999999s\"", "too long")]
    #[case("~", "leave it out for the default")]
    #[case("null", "leave it out for the default")]
    #[case("true", "whole minutes (5) or a duration")]
    #[case("[5]", "whole minutes (5) or a duration")]
    #[case("{minutes: 5}", "whole minutes (5) or a duration")]
    #[case("\"\"", "not a duration")]
    #[case("\"5\"", "not a duration: write whole minutes (5) or")]
    #[case("\"5 m\"", "not a duration")]
    #[case("\"5min\"", "not a duration")]
    #[case("\"5d\"", "not a duration")]
    #[case("\"m\"", "not a duration")]
    #[case("\"1.2.3s\"", "not a duration")]
    #[case("\".s\"", "not a duration")]
    #[case("\"--5m\"", "not a duration")]
    #[case("\"1h-5m\"", "not a duration")]
    #[case("\"PT5M\"", "not a duration")]
    #[case("soon", "not a duration")]
    fn other_types_are_errors_with_a_hint(#[case] yaml: &str, #[case] says: &str) {
        let error = serde_yaml::from_str::<ConfigDuration>(yaml).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(nanoseconds in 1..3_000_000_000_000_000_000_i64) {
            let duration = ConfigDuration(SignedDuration::from_nanos(nanoseconds));
            prop_assert_eq!(ConfigDuration::parse(&duration.to_string()), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.hmsuµn ]{0,24}") {
            let _ = ConfigDuration::parse(&text);
        }

        #[test]
        fn what_is_accepted_is_positive(minutes in any::<i64>()) {
            if let Ok(duration) = ConfigDuration::from_minutes(minutes) {
                prop_assert!(duration.get().is_positive() && duration.get().as_mins() == minutes);
            }
        }
    }
}
