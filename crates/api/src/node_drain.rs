//! `NodeDrain`: the wish that a node be drained, and how far that has come.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget_ref::BudgetRef;
use crate::condition;
use crate::later_version::known_or_absent;
use crate::reason::LockReason;
use crate::schema::{self, is_zero, kind_schema};

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "nodeward.dev",
    version = "v1alpha1",
    kind = "NodeDrain",
    plural = "nodedrains",
    shortname = "nd",
    category = "nodeward",
    status = "NodeDrainStatus",
    derive = "PartialEq",
    derive = "Default",
    schema = "manual",
    crates(kube_core = "::kube_core"),
    doc = "Asks that a node be drained, and tells how far that has come. It is named after its node.",
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase", "description": "Where the drain stands"}"#,
    printcolumn = r#"{"name": "Ticket", "type": "integer", "jsonPath": ".status.ticket", "description": "Its place in the queue: the lowest is the oldest"}"#,
    printcolumn = r#"{"name": "Held", "type": "integer", "jsonPath": ".status.heldDisruptions", "description": "Disruptions of budgets that it holds"}"#,
    printcolumn = r#"{"name": "Blocked by", "type": "string", "jsonPath": ".status.blockedBy[0].reason", "description": "The first thing that it waits for"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Requester", "type": "string", "jsonPath": ".spec.requesters[0].name", "description": "Who asked for it", "priority": 1}"#,
    printcolumn = r#"{"name": "Budget", "type": "string", "jsonPath": ".status.blockedBy[0].pdb", "description": "The budget that it waits for", "priority": 1}"#,
    printcolumn = r#"{"name": "Held by", "type": "string", "jsonPath": ".status.blockedBy[0].node", "description": "The node that has that budget", "priority": 1}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.message", "description": "Human-readable state of the drain", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(oldSelf.nodeUID) || (has(self.nodeUID) && self.nodeUID == oldSelf.nodeUID)",
    "message": "nodeUID cannot be changed once it is set: delete the NodeDrain and make another"
}, {
    "rule": "!has(self.dryRun) || !self.dryRun || (has(oldSelf.dryRun) && oldSelf.dryRun)",
    "message": "dryRun cannot be set on a drain that has begun: delete the NodeDrain and make another"
}]))]
pub struct NodeDrainSpec {
    /// Name of the node to drain: the same as the NodeDrain's own name. It cannot be changed.
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = [{
        "rule": "self == oldSelf", "message": "nodeName cannot be changed: delete the NodeDrain and make another"
    }]))]
    pub node_name: String,
    /// UID of the node to drain, so that a node that was created again under the same name is not drained by mistake.
    /// drain-lock fills it in. It cannot be changed once it is set.
    #[serde(rename = "nodeUID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub node_uid: Option<String>,
    /// Who asked for the drain. It goes on until the last of them has released it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = REQUESTERS_AT_MOST), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub requesters: Vec<Requester>,
    /// What the drain is for, for people to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = PURPOSE_AT_MOST))]
    pub purpose: Option<String>,
    /// Who evicts the pods: Nodeward, or the requester, whose evictions are refused until the drain's claim is granted. A requester
    /// that evicts cordons the node first: the drain ends once the node is not cordoned.
    #[serde(default)]
    pub evict: Evictor,
    /// Whether drain-lock evicts pods that no controller makes again. A pod that is kept blocks the drain until it is gone,
    /// or somebody consents. Evictions by the requester itself need no consent.
    #[serde(default)]
    pub unmanaged_pods: Consent,
    /// Whether drain-lock evicts pods with emptyDir volumes, whose data goes with them.
    #[serde(default)]
    pub empty_dir_data: Consent,
    /// How long each part of the drain may take.
    #[serde(default, skip_serializing_if = "Deadlines::is_default")]
    pub deadlines: Deadlines,
    /// What happens when its deadline `drain` passes. Wait: the drain is reported as overdue. ReleaseAndRequeue: it releases the
    /// disruptions of running pods and queues again.
    #[serde(default)]
    #[schemars(with = "String", extend("x-kubernetes-validations" = [{
        "rule": "self in ['ReleaseAndRequeue', 'Wait']", "message": Fallback::REFUSED
    }]))]
    pub fallback: Fallback,
    /// Whether the drain begins, and drain-keeper forces its pods, outside maintenance windows too: for emergencies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignore_windows: bool,
    /// Whether the drain goes on though a budget never lets a pod of the node go: the other pods leave, and whoever runs this
    /// one is asked to move it. The eviction API is asked for it once a minute, and refuses; operators that have a webhook
    /// for evictions move their pods when they hear of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask_owners: bool,
    /// Plan only: nothing is cordoned, claimed or evicted. It can be taken back, and the drain begins; it cannot be set later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

kind_schema! {
    NodeDrain { "spec": NodeDrainSpec, "status": Option<NodeDrainStatus> }
    "Asks that a node be drained, and tells how far that has come. It is named after its node.",
    "self.metadata.name == self.spec.nodeName" => "a NodeDrain is named after its node: metadata.name and spec.nodeName must be the same",
}

/// Somebody who asked for a drain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Requester {
    /// Who: `kubectl-nodeward:alice`, `eviction:system:serviceaccount:ns:name`, `fleetlock:GROUP:ID`.
    #[schemars(length(min = 1, max = REQUESTER_AT_MOST))]
    pub name: String,
    /// When they first asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_timestamp")]
    pub since: Option<Timestamp>,
}

/// Who evicts the pods of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Evictor {
    /// drain-lock evicts them.
    #[default]
    Nodeward,
    /// The requester evicts them, and is refused until the claim is granted. Also what a value of a later version is read
    /// as: nothing is then evicted that was not asked for.
    #[serde(other)]
    Requester,
}

/// Consent to the eviction of pods that destroys something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Consent {
    /// They are evicted.
    Evict,
    /// They are kept. Also what a value of a later version is read as.
    #[default]
    #[serde(other)]
    Keep,
}

/// How long each part of a drain may take: durations such as `90s`, `15m`, `1h30m`. An absent one is the configuration's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// From its turn in the queue to the grant of its claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub queue: Option<String>,
    /// From the grant to the node being drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub drain: Option<String>,
    /// From the grant to the return of the last disruption, in addition to `drain`: the reboot and what follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub recover: Option<String>,
}

impl Deadlines {
    /// Whether all are the configuration's.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What happens when a drain has not emptied its node in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fallback {
    /// Disruptions of pods that still run are given back, and the drain queues again, last. It keeps its ticket only where it
    /// held nothing, or where pods are down under somebody else's cordon.
    #[default]
    ReleaseAndRequeue,
    /// `EvictAnyway` or `Delete`, which went around budgets and are refused now. One that is stored counts as `Wait`.
    #[serde(rename(serialize = "Wait", deserialize = "Delete"), alias = "EvictAnyway")]
    Removed,
    /// It goes on waiting. Also what a value of a later version is read as: waiting harms nothing.
    #[serde(other)]
    Wait,
}

impl Fallback {
    /// Why a fallback that is neither of the two is refused, and what to use instead.
    pub const REFUSED: &str = "fallback is ReleaseAndRequeue or Wait; EvictAnyway and Delete are gone: drain-keeper \
                               overrides budgets, one pod at a time and on record";
}

/// How far a drain has come: written by drain-lock for people and other programs, and never read by it for a decision.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeDrainStatus {
    /// The `metadata.generation` that this status was written for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Where the drain stands.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "known_or_absent"
    )]
    pub phase: Option<Phase>,
    /// Its place in the queue: the lowest is the oldest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ticket: Option<i64>,
    /// Disruptions of budgets that it holds: the sum over `holds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub held_disruptions: Option<i32>,
    /// The budgets that it holds disruptions of. At most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HeldBudget>,
    /// What it waits for, the most telling first. At most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<BlockedBy>,
    /// What becomes of each pod of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<DrainPlan>,
    /// How many pods have gone, and how many have not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodCounts>,
    /// When the drain began: the node was cordoned, or found cordoned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_timestamp")]
    pub started_at: Option<Timestamp>,
    /// When its claim was granted last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_timestamp")]
    pub granted_at: Option<Timestamp>,
    /// When no pod had to leave the node any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_timestamp")]
    pub drained_at: Option<Timestamp>,
    /// Until when the present phase lasts at most; from then on the drain is overdue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_timestamp")]
    pub deadline: Option<Timestamp>,
    /// From when on the drain goes on without the pods that cannot go; absent where it waits for none of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_timestamp")]
    pub leaves_out_at: Option<Timestamp>,
    /// Human-readable state of the drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Planned, Granted, BudgetBlocked, MisconfiguredPDB, Drained, LeaseLost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

impl NodeDrainStatus {
    /// Whether it says that the drain's claim has its grant.
    pub fn is_granted(&self) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.any(|condition| condition.type_ == condition::GRANTED && condition.status == "True")
    }
}

/// Where a drain stands.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
pub enum Phase {
    /// It has not begun: it waits for its window, or for what a person has to see to. Nothing of it waits for other drains.
    Scheduled,
    /// It waits for its claim; pods that need none may leave already.
    Queued,
    /// Its claim is granted, and is being confirmed.
    Granted,
    /// Its pods are leaving.
    Draining,
    /// No pod has to leave the node any more: it may go down.
    Drained,
    /// The node is back, and its disruptions return as its pods do.
    Recovering,
    /// Nothing is held any more.
    Released,
    /// Its drainer vanished while pods are down: what it holds is freed by what is seen, or by an administrator.
    Suspect,
    /// It was given up.
    Failed,
}

impl Phase {
    /// Every phase, in the order that a drain passes them.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its spelling in the status, in metrics and on the command line.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Disruptions of one budget that a drain holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldBudget {
    /// The budget.
    pub pdb: BudgetRef,
    /// How many of its disruptions: one a pod, but one for all OSDs of Ceph that leave the node together.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub disruptions: i32,
    /// The pods, as `namespace/name`. At most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
}

/// Something that a drain waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockedBy {
    /// What it is, in one CamelCase word.
    #[serde(deserialize_with = "LockReason::lenient")]
    #[schemars(with = "String")]
    pub reason: LockReason,
    /// The budget, as `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pdb: Option<String>,
    /// The pod, as `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The node whose drain has the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Human-readable description.
    #[serde(default)]
    pub message: String,
}

/// What becomes of each pod of a node. Each list has at most 100 entries; `omitted` counts the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPlan {
    /// Pods that are gone until the node is back, or must not be counted on: each needs a disruption of its budgets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<PlannedPod>,
    /// How many pods find room elsewhere: evicted as their budgets allow, without a disruption.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub movable: i32,
    /// Pods that the drain waits for until they finish.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<PlannedPod>,
    /// Pods that stay on the node through its reboot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retained: Vec<PlannedPod>,
    /// Pods that the claim is asked for without. No other drain's end helps them, and that has lasted for `deadlines.obstacle`; or
    /// they lack nothing but room, and are more than their budget spares at a time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<PlannedPod>,
    /// How many pods no drain concerns: DaemonSets' pods, mirror pods, finished pods.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub ignored: i32,
    /// What keeps the plan from being carried out, and needs a person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<BlockedBy>,
    /// How many entries the lists above left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub omitted: i32,
}

/// How many entries a list in a status has at most.
pub const LISTED_AT_MOST: usize = 100;

/// The most requesters of one drain.
pub const REQUESTERS_AT_MOST: usize = 64;

/// How many characters a requester's name has at most. Who makes one cuts it to as many bytes, which are never more.
pub const REQUESTER_AT_MOST: usize = 512;

/// How long a drainer may evict nothing before others may use what it does not use of its grant: kubectl, Karpenter and Cluster API
/// try again within 20 seconds.
pub const GRANT_IDLE: SignedDuration = SignedDuration::from_mins(2);

/// How many characters a drain's purpose has at most.
pub const PURPOSE_AT_MOST: usize = 1024;

/// A pod in a plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedPod {
    /// The pod, as `namespace/name`.
    pub pod: String,
    /// The budgets that select it, as `namespace/name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pdbs: Vec<String>,
    /// Why it is treated so, in one CamelCase word.
    #[serde(deserialize_with = "LockReason::lenient")]
    #[schemars(with = "String")]
    pub reason: LockReason,
    /// Human-readable explanation of why it is treated so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How many pods of the node have gone, and how many have not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCounts {
    /// All that the drain concerns.
    #[schemars(range(min = 0))]
    pub total: i32,
    /// Gone from the node.
    #[schemars(range(min = 0))]
    pub gone: i32,
    /// Evicted, and terminating.
    #[schemars(range(min = 0))]
    pub evicting: i32,
    /// Staying through the reboot.
    #[schemars(range(min = 0))]
    pub retained: i32,
    /// Not evicted yet, or waited for until they finish.
    #[schemars(range(min = 0))]
    pub waiting: i32,
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[test]
    fn removed_fallback_is_read_and_written_as_wait() {
        for stored in ["EvictAnyway", "Delete"] {
            let fallback: Fallback = from_value(json!(stored)).unwrap();
            assert_eq!(fallback, Fallback::Removed);
            assert_eq!(to_value(fallback).unwrap(), "Wait");
        }
        assert_eq!(from_value::<Fallback>(json!("Wait")).unwrap(), Fallback::Wait);
        assert_eq!(
            from_value::<Fallback>(json!("OfALaterVersion")).unwrap(),
            Fallback::Wait
        );
    }
}
