//! `DrainLedger`: the queue of drains and everything that was granted to them, in one object, so that a grant of all units
//! that a node needs is one write.

use jiff::Timestamp;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget_ref::BudgetRef;
use crate::schema::{self, kind_schema};

/// Name of the one DrainLedger.
pub const NAME: &str = "cluster";

/// The queue, and what was granted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "nodeward.dev",
    version = "v1alpha1",
    kind = "DrainLedger",
    plural = "drainledgers",
    category = "nodeward",
    derive = "PartialEq",
    derive = "Default",
    schema = "manual",
    crates(kube_core = "::kube_core"),
    doc = "The queue of drains and the units of budgets that they hold, in the one object named cluster. Written by drain-lock alone: to free what a drain holds, annotate its NodeDrain.",
    printcolumn(
        name = "Next ticket",
        type_ = "integer",
        json_path = ".spec.nextTicket",
        description = "The ticket that the next drain gets"
    ),
    printcolumn(
        name = "Oldest",
        type_ = "string",
        json_path = ".spec.claims[0].node",
        description = "The node whose drain is the oldest"
    ),
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = ".spec.claims[0].state",
        description = "Where its claim stands"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct DrainLedgerSpec {
    /// The ticket that the next drain gets.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub next_ticket: i64,
    /// The claims, in the order of their tickets; one a node.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["nodeUID"]))]
    pub claims: Vec<Claim>,
}

kind_schema! {
    DrainLedger { "spec": DrainLedgerSpec }
    "The queue of drains and the units of budgets that they hold, in the one object named cluster. Written by drain-lock alone: to free what a drain holds, annotate its NodeDrain.",
    "self.metadata.name == 'cluster'" => "there is one DrainLedger, and it is named cluster",
}

/// A drain's place in the queue, what it needs and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Its place in the queue: the lowest is the oldest.
    #[schemars(range(min = 0))]
    pub ticket: i64,
    /// Name of the node.
    pub node: String,
    /// UID of the node.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Where it stands.
    pub state: ClaimState,
    /// Since when it stands there.
    #[schemars(schema_with = "schema::timestamp")]
    pub since: Timestamp,
    /// When its present turn in the queue began.
    #[schemars(schema_with = "schema::timestamp")]
    pub queued_at: Timestamp,
    /// How many times it was granted: with the ticket it tells a present grant from a past one.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub grant: i64,
    /// The node's boot at the grant, and from when it was drained at that moment; empty before the first grant.
    #[serde(rename = "bootID", default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// Whether the node was cordoned by somebody else, so that it is not drain-lock's to uncordon.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign_cordon: bool,
    /// The node may go down at any moment: the pods that stay on it count as down from now on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
    /// It was granted by its drain's fallback, whether its budgets had the units or not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_fallback: bool,
    /// The units that it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Units>,
    /// The units that it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<Units>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &i64) -> bool {
    *count == 0
}

/// Where a claim stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ClaimState {
    /// It waits for its units.
    Waiting,
    /// It has its units, and its budgets have to be read once more before they are used.
    Granted,
    /// It has its units, and they may be used.
    Confirmed,
    /// Its drainer vanished while pods are down.
    Suspect,
}

/// Units of one budget: one for each pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Units {
    /// The budget.
    pub pdb: BudgetRef,
    /// How many of its pods were healthy at the grant; an evicted pod's unit is back when as many are again.
    #[serde(default, skip_serializing_if = "none_healthy")]
    #[schemars(range(min = 0))]
    pub healthy_at_grant: i32,
    /// The pods.
    #[serde(default)]
    pub pods: Vec<HeldPod>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn none_healthy(count: &i32) -> bool {
    *count == 0
}

/// A pod that a unit is needed or held for. Its namespace is its budget's.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldPod {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// It stays on the node through its reboot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retained: bool,
}
