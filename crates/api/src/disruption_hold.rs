//! `DisruptionHold`: the owner of an application keeps its budget to itself for a while.

use jiff::Timestamp;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::later_version::known_or_absent;
use crate::schema;

/// What is held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "nodeward.dev",
    version = "v1alpha1",
    kind = "DisruptionHold",
    plural = "disruptionholds",
    shortname = "dh",
    category = "nodeward",
    namespaced,
    status = "DisruptionHoldStatus",
    derive = "PartialEq",
    derive = "Default",
    crates(kube_core = "::kube_core"),
    doc = "Keeps disruptions of a PodDisruptionBudget of its namespace from every drain until it expires or is deleted.",
    printcolumn = r#"{"name": "Budget", "type": "string", "jsonPath": ".spec.pdbRef", "description": "The PodDisruptionBudget"}"#,
    printcolumn = r#"{"name": "Disruptions", "type": "integer", "jsonPath": ".spec.disruptions", "description": "How many of its disruptions; none given: all"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase", "description": "Whether it is in force"}"#,
    printcolumn = r#"{"name": "Until", "type": "string", "jsonPath": ".status.effectiveUntil", "description": "When it ends by itself"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".spec.reason", "description": "Why", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DisruptionHoldSpec {
    /// Name of the PodDisruptionBudget, in the namespace of the hold.
    #[schemars(length(min = 1, max = 253))]
    pub pdb_ref: String,
    /// How many disruptions of the budget are held. Absent: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub disruptions: Option<i32>,
    /// Why, for people to read.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// When it ends by itself. The configuration of drain-lock may end it sooner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_timestamp")]
    pub expires_at: Option<Timestamp>,
}

/// Whether the hold is in force: written by drain-lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DisruptionHoldStatus {
    /// Whether it is in force.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "known_or_absent"
    )]
    pub phase: Option<HoldPhase>,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_timestamp")]
    pub effective_until: Option<Timestamp>,
    /// Human-readable explanation of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The `metadata.generation` that this status was written for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
}

/// Whether a hold is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum HoldPhase {
    /// It is in force.
    Active,
    /// It was in force, and has ended.
    Expired,
    /// There is no PodDisruptionBudget of that name.
    NoSuchBudget,
    /// It is in force, and ends sooner than asked for.
    Capped,
    /// It was in force, and an administrator has ended it.
    Overridden,
}
