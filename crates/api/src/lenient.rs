//! Decoding field by field, so that one value that cannot be read does not lose its whole object.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// An object's fields, taken one by one.
pub(crate) struct Fields {
    fields: Map<String, Value>,
    /// The fields that were there and could not be read, each with the reason.
    pub(crate) unreadable: Vec<String>,
}

impl Fields {
    /// Of something that is no object: none.
    pub(crate) fn of(value: Option<Value>) -> Self {
        let (fields, unreadable) = match value {
            None | Some(Value::Null) => (Map::new(), Vec::new()),
            Some(Value::Object(fields)) => (fields, Vec::new()),
            Some(other) => (Map::new(), vec![format!("an object was expected, not {other}")]),
        };
        Self { fields, unreadable }
    }

    /// A field; none where it is absent, null or unreadable.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let value = self.fields.remove(name).filter(|value| !value.is_null())?;
        serde_json::from_value(value)
            .map_err(|error| self.unreadable.push(format!("{name}: {error}")))
            .ok()
    }

    /// The entries of a list that can be read.
    pub(crate) fn take_readable<T: DeserializeOwned>(&mut self, name: &str) -> Vec<T> {
        let entries: Vec<Value> = self.take(name).unwrap_or_default();
        let read = |entry| {
            serde_json::from_value(entry)
                .map_err(|error| self.unreadable.push(format!("{name}: {error}")))
                .ok()
        };
        entries.into_iter().filter_map(read).collect()
    }
}
