//! What the configuration's forms share: a text or a map, and a map with exactly one entry.

use std::fmt::{self, Display};
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// Reads a text through `from_text`, and a map as an `M`.
pub(super) fn text_or_map<'de, D, M, T>(
    deserializer: D,
    expecting: &'static str,
    from_text: fn(&str) -> Result<T, String>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    M: Deserialize<'de>,
    T: TryFrom<M, Error: Display>,
{
    deserializer.deserialize_any(TextOrMap {
        expecting,
        from_text,
        map: PhantomData::<M>,
    })
}

/// The schema of what [`text_or_map`] reads.
pub(super) fn text_or_map_schema<M: JsonSchema>(generator: &mut SchemaGenerator, text: &Schema) -> Schema {
    json_schema!({
        "type": ["string", "object"],
        "if": { "type": "string" },
        "then": text,
        "else": generator.subschema_for::<M>(),
    })
}

struct TextOrMap<M, T> {
    expecting: &'static str,
    from_text: fn(&str) -> Result<T, String>,
    map: PhantomData<M>,
}

impl<'de, M, T> Visitor<'de> for TextOrMap<M, T>
where
    M: Deserialize<'de>,
    T: TryFrom<M, Error: Display>,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.from_text)(text).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::try_from(M::deserialize(MapAccessDeserializer::new(map))?).map_err(A::Error::custom)
    }
}

/// The one entry that is given, with its name.
pub(super) fn exactly_one<T, const N: usize>(
    entries: [(&'static str, Option<T>); N],
    hint: &str,
) -> Result<(&'static str, T), String> {
    let names = entries.each_ref().map(|(name, _)| *name);
    let mut given = entries.into_iter().filter_map(|(name, value)| Some((name, value?)));
    match (given.next(), given.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(format!("one of {} is needed", names.join(", "))),
        (Some((first, _)), Some((second, _))) => Err(format!("{first} and {second} are both given: {hint}")),
    }
}
