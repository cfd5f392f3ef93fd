//! Parts of the kinds' OpenAPI schemas that no Rust type gives by itself.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A point in time. The pattern keeps out what the API server's `date-time` lets through and RFC 3339 does not.
pub(crate) fn timestamp(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "format": "date-time",
        "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})$",
    })
}

/// As [`timestamp`], absent where there is none.
pub(crate) fn optional_timestamp(generator: &mut SchemaGenerator) -> Schema {
    nullable(timestamp(generator))
}

/// A positive duration in Go's form of at most a hundred years, absent for the default.
pub(crate) fn optional_duration(_: &mut SchemaGenerator) -> Schema {
    nullable(json_schema!({
        "type": "string",
        "maxLength": 32,
        "pattern": r"^([0-9]+(\.[0-9]+)?(h|m|s|ms))+$",
        "x-kubernetes-validations": [{
            "rule": "duration(self) > duration('0s') && duration(self) <= duration('876000h')",
            "message": "must be more than 0 and at most a hundred years: leave it out for the default",
        }],
    }))
}

/// A list of `metav1.Condition`, one of a type.
pub(crate) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "type": "string", "minLength": 1, "maxLength": 316,
                    "description": "Type of the condition.",
                },
                "status": {
                    "type": "string", "enum": ["True", "False", "Unknown"],
                    "description": "True, False or Unknown.",
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "The metadata.generation that the condition was set for.",
                },
                "lastTransitionTime": timestamp_of("When the status last changed.", generator),
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    "description": "Why the status is as it is, in one word.",
                },
                "message": {
                    "type": "string", "maxLength": 32768,
                    "description": "Why the status is as it is, for a person.",
                },
            },
        },
    })
}

fn timestamp_of(description: &str, generator: &mut SchemaGenerator) -> Schema {
    let mut schema = timestamp(generator);
    schema.insert("description".to_owned(), description.into());
    schema
}

fn nullable(mut schema: Schema) -> Schema {
    schema.insert("nullable".to_owned(), true.into());
    schema
}

/// The schema of a kind with rules that see more than its spec or its status: gives the named kind's `JsonSchema`.
macro_rules! kind_schema {
    ($kind:ident { $($property:literal: $of:ty $(,)?)+ } $description:literal, $($rule:literal => $message:literal),+ $(,)?) => {
        impl schemars::JsonSchema for $kind {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($kind).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "object",
                    "description": $description,
                    "required": ["spec"],
                    "properties": { $($property: generator.subschema_for::<$of>(),)+ },
                    "x-kubernetes-validations": [$({ "rule": $rule, "message": $message }),+],
                })
            }
        }
    };
}
pub(crate) use kind_schema;
