//! What a later version wrote is read as far as this one knows it: while a rollout lasts old and new run side by side, and
//! one value that is not known must not make its whole object unreadable.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// A value of an enum in a status; one that is not known is read as absent.
pub(crate) fn known_or_absent<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let value = Option::<String>::deserialize(deserializer)?;
    Ok(value.and_then(|text| serde_json::from_value(text.into()).ok()))
}
