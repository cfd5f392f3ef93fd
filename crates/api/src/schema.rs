//! Parts of the kinds' OpenAPI schemas that no Rust type gives by itself.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Whether a count is left out.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(crate) fn is_zero(count: &i32) -> bool {
    *count == 0
}

/// The API server keeps fields that this version of the kind does not know.
pub(crate) fn keep_unknown_fields(schema: &mut Schema) {
    schema.remove("additionalProperties");
    schema.insert("x-kubernetes-preserve-unknown-fields".to_owned(), true.into());
}

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
                "lastTransitionTime": described("When the status last changed.", timestamp(generator)),
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    "description": "Why the status is as it is, in one CamelCase word.",
                },
                "message": {
                    "type": "string", "maxLength": 32768,
                    "description": "Human-readable explanation of the status.",
                },
            },
        },
    })
}

/// A number of nodes.
pub(crate) fn count(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "int32", "minimum": 0 })
}

/// A number from one on.
pub(crate) fn at_least_one(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "int32", "minimum": 1 })
}

/// A `metadata.generation`.
pub(crate) fn generation(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "int64", "minimum": 0 })
}

/// Points in time, each under a name.
pub(crate) fn timestamps_by_name(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": timestamp(generator) })
}

/// Any text.
pub(crate) fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string" })
}

/// True or false.
pub(crate) fn boolean(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "boolean" })
}

/// A number of nodes, or a percentage of them.
pub(crate) fn number_or_percentage(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "x-kubernetes-int-or-string": true,
        "pattern": "^((100|[0-9]{1,2})%|[0-9]+)$",
        "x-kubernetes-validations": [{
            "rule": "type(self) != int || self >= 0",
            "message": "must not be negative: give a number of nodes from 0, or a percentage from 0% to 100%",
        }],
    })
}

/// A duration as Go writes it.
pub(crate) fn go_duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 64, "pattern": GO_DURATION })
}

/// A duration as Go writes it, which may be negative.
pub(crate) fn signed_go_duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 64, "pattern": format!("^-?{}", &GO_DURATION[1..]) })
}

const GO_DURATION: &str = r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$";

/// A reference to any object.
pub(crate) fn object_reference(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "apiVersion": { "type": "string", "maxLength": 253, "description": "API version of the object." },
            "kind": { "type": "string", "maxLength": 253, "description": "Kind of the object." },
            "namespace": { "type": "string", "description": "Namespace of the object." },
            "name": { "type": "string", "maxLength": 253, "description": "Name of the object." },
            "uid": { "type": "string", "description": "UID of the object." },
            "resourceVersion": { "type": "string", "description": "Version of the object." },
            "fieldPath": { "type": "string", "description": "Part of the object." },
        },
    })
}

/// A reference to a remediation template.
pub(crate) fn template_reference(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = object_reference(generator);
    schema.insert(
        "x-kubernetes-validations".to_owned(),
        serde_json::json!([{
            "rule": "has(self.apiVersion) && self.apiVersion != '' && has(self.name) && self.name != ''",
            "message": "must name a template: give apiVersion, kind, name, and the namespace that it is in",
        }, {
            "rule": "has(self.kind) && self.kind.endsWith('Template') && self.kind != 'Template'",
            "message": "the kind of a remediation template ends with Template, as in SelfNodeRemediationTemplate",
        }]),
    );
    schema
}

/// The conditions that make a node unhealthy.
pub(crate) fn unhealthy_conditions(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "default": crate::node_health_check::default_unhealthy_conditions(),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type", "status"],
        "items": {
            "type": "object",
            "required": ["type", "status", "duration"],
            "properties": {
                "type": { "type": "string", "minLength": 1, "description": "Type of the Node's condition." },
                "status": {
                    "type": "string", "minLength": 1,
                    "description": "Status of the condition: True, False or Unknown. Missing: the Node has no condition of the type.",
                },
                "duration": described("How long the condition must last, such as 300s or 1h30m.", go_duration(generator)),
            },
        },
    })
}

/// The steps of an escalation.
pub(crate) fn escalating_remediations(generator: &mut SchemaGenerator) -> Schema {
    let mut timeout = described(
        "How long the node has to become healthy before the next step, such as 5m; at least a minute.",
        go_duration(generator),
    );
    timeout.insert(
        "x-kubernetes-validations".to_owned(),
        serde_json::json!([{
            // What is no duration breaks the pattern, and an error in a rule would refuse even a change of something else.
            "rule": format!("!self.matches(r'{GO_DURATION}') || duration(self) >= duration('1m')"),
            "message": "a step lasts at least 1m, so that remediations do not run in parallel: give a longer timeout",
        }]),
    );
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-validations": [{
            "rule": "self.all(a, self.exists_one(b, a.order == b.order))",
            "message": "each step needs an order of its own: give every entry another number",
        }],
        "items": {
            "type": "object",
            "required": ["order", "remediationTemplate", "timeout"],
            "properties": {
                "order": { "type": "integer", "format": "int64", "description": "Place in the chain: lower ones come first." },
                "remediationTemplate": described("The template of the remediation.", template_reference(generator)),
                "timeout": timeout,
            },
        },
    })
}

/// How the delay between remediations of a node grows.
pub(crate) fn backoff(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "type": {
                "type": "string", "enum": [crate::node_health_check::EXPONENTIAL],
                "default": crate::node_health_check::EXPONENTIAL,
                "description": "How the delay grows: twice as long each time.",
            },
            "initial": described("The first delay. Absent: 1m.", go_duration(generator)),
            "limit": described(
                "The longest delay; a node that was healthy for that long starts again at `initial`. Absent: 10m.",
                go_duration(generator),
            ),
        },
    })
}

/// A `metav1.LabelSelector`.
pub(crate) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "type": "object", "additionalProperties": { "type": "string" },
                "description": "Labels that a node must carry, each with this value.",
            },
            "matchExpressions": {
                "type": "array",
                "description": "Requirements that a node's labels must meet, all of them.",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": { "type": "string", "description": "Key of the label." },
                        "operator": { "type": "string", "description": "In, NotIn, Exists or DoesNotExist." },
                        "values": {
                            "type": "array", "items": { "type": "string" },
                            "description": "Values for In and NotIn.",
                        },
                    },
                },
            },
        },
    })
}

/// What the fields of a NodeHealthCheck's spec must be to each other. A stored one that broke a rule before there was that
/// rule stays updatable, as long as it breaks it in the same way: pausing it must never fail.
pub(crate) fn node_health_check_rules(schema: &mut Schema) {
    let deletes_machines = format!(
        "(has(SELF.remediationTemplate) && has(SELF.remediationTemplate.kind) && SELF.remediationTemplate.kind == '{kind}') || \
         (has(SELF.escalatingRemediations) && SELF.escalatingRemediations.exists(r, has(r.remediationTemplate.kind) && \
         r.remediationTemplate.kind == '{kind}'))",
        kind = crate::node_health_check::MACHINE_DELETION_TEMPLATE,
    );
    // Stored objects have an empty list beside a single template.
    let escalates = "has(SELF.escalatingRemediations) && size(SELF.escalatingRemediations) > 0";
    let broken = [
        (
            "has(SELF.minHealthy) && has(SELF.maxUnhealthy)".to_owned(),
            "minHealthy and maxUnhealthy exclude each other: remove one of them",
        ),
        (
            format!("has(SELF.remediationTemplate) && {escalates}"),
            "remediationTemplate and escalatingRemediations exclude each other: remove one of them",
        ),
        (
            format!("!has(SELF.remediationTemplate) && !({escalates})"),
            "a template is needed: set remediationTemplate or escalatingRemediations",
        ),
        (
            format!("has(SELF.maxUnhealthy) && ({deletes_machines})"),
            "maxUnhealthy cannot be used with a MachineDeletionRemediationTemplate: set minHealthy instead",
        ),
    ];
    let rules = broken.map(|(broken, message)| {
        let (now, before) = (
            broken.replace("SELF", "self"),
            broken.replace("SELF", "oldSelf.value()"),
        );
        serde_json::json!({
            "rule": format!("!({now}) || (oldSelf.hasValue() && ({before}))"),
            "optionalOldSelf": true,
            "message": message,
        })
    });
    schema.insert("x-kubernetes-validations".to_owned(), serde_json::json!(rules));
}

fn described(description: &str, mut schema: Schema) -> Schema {
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
