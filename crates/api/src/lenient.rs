//! Decoding field by field, so that one value that cannot be read does not lose its whole object.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
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
}

/// A field; its default where it is null or unreadable.
///
/// # Errors
/// Where it is no JSON at all.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// The entries of a list that can be read; none of what is no list. They are read one by one: a long list takes several times the
/// memory as JSON.
///
/// # Errors
/// Where it is no JSON at all.
pub(crate) fn readable<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    deserializer.deserialize_any(Entries(PhantomData))
}

struct Entries<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned> Visitor<'de> for Entries<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
        let mut readable = Vec::new();
        while let Some(entry) = entries.next_element::<Value>()? {
            readable.extend(serde_json::from_value(entry).ok());
        }
        Ok(readable)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Vec<T>, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Vec::new())
    }

    fn visit_unit<E>(self) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }

    fn visit_str<E>(self, _: &str) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }
}
