//! `DrainLedger`: the queue of drains and everything that was granted to them, in one object, so that a grant of all disruptions
//! that a node needs is one write.
//!
//! The types are the stored form, made to be small: etcd takes at most 1.5 MiB. Budgets stand in a table that claims point
//! into; a claim that waits names no pods; a held pod is one string. Lists are atomic, for the API server records the owner
//! of every entry of a list that is not.
//!
//! Whatever is stored decodes, so that no watch and no read loses the object; what this version does not know makes the spec
//! [unreadable](DrainLedgerSpec::unreadable). The API server keeps such fields, so that an earlier version sees that they are there.

use std::fmt;

use jiff::Timestamp;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::Value;
use serde_path_to_error::Track;

use crate::schema::{self, is_zero, kind_schema};

/// Name of the one DrainLedger.
pub const NAME: &str = "cluster";

/// The format that this version reads and writes.
pub const FORMAT_VERSION: i32 = 1;

/// The queue, and what was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, CustomResource)]
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
    doc = "The queue of drains and the disruptions of budgets that they hold, in the one object named cluster. Written by drain-lock alone: to free what a drain holds, annotate its NodeDrain.",
    printcolumn = r#"{"name": "Next ticket", "type": "integer", "jsonPath": ".spec.nextTicket", "description": "The ticket that the next drain gets"}"#,
    printcolumn = r#"{"name": "Oldest", "type": "string", "jsonPath": ".spec.claims[0].node", "description": "The node whose drain is the oldest"}"#,
    printcolumn = r#"{"name": "State", "type": "string", "jsonPath": ".spec.claims[0].state", "description": "Where its claim stands"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields, remote = "Self")]
#[schemars(transform = schema::keep_unknown_fields)]
pub struct DrainLedgerSpec {
    /// The version of this format. A drain-lock that knows only earlier ones writes nothing.
    #[schemars(range(min = 1))]
    pub format_version: i32,
    /// The ticket that the next drain gets.
    #[schemars(range(min = 0))]
    pub next_ticket: i64,
    /// The budgets that claims need or hold disruptions of. Claims name them by their place in this list.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub budgets: Vec<StoredBudget>,
    /// The claims, in the order of their tickets; one a node.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub claims: Vec<StoredClaim>,
    /// Times without a leader that plans, the oldest first: no deadline of a claim ran meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub leaderless: Vec<Leaderless>,
    /// Why what is stored cannot be read: all else is at its default then, and says nothing.
    #[serde(skip)]
    pub unreadable: Option<String>,
}

impl<'de> Deserialize<'de> for DrainLedgerSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = Value::deserialize(deserializer)?;
        Ok(Self::read(&stored).unwrap_or_else(|why| Self {
            unreadable: Some(why),
            ..Self::default()
        }))
    }
}

impl Serialize for DrainLedgerSpec {
    /// One that could not be read is never written: what it stands for would be lost.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.unreadable {
            Some(why) => Err(ser::Error::custom(why)),
            None => Self::serialize(self, serializer),
        }
    }
}

impl DrainLedgerSpec {
    /// Reads what is stored, or says which field of it cannot be read, and why.
    fn read(stored: &Value) -> Result<Self, String> {
        // A later format may have changed anything: what else is odd about it would mislead.
        if let Some(version) = stored["formatVersion"].as_i64()
            && version > FORMAT_VERSION.into()
        {
            return Err(format!(
                "formatVersion: {version} is later than {FORMAT_VERSION}, the last that is known"
            ));
        }
        let mut track = Track::new();
        let read = Self::deserialize(serde_path_to_error::Deserializer::new(stored, &mut track));
        read.map_err(|error| format!("{}: {error}", track.path()))
    }
}

/// A time without a leader that plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = schema::keep_unknown_fields)]
pub struct Leaderless {
    /// When somebody planned last.
    #[serde(serialize_with = "to_the_second")]
    #[schemars(schema_with = "schema::timestamp")]
    pub from: Timestamp,
    /// When somebody could plan again.
    #[serde(serialize_with = "to_the_second")]
    #[schemars(schema_with = "schema::timestamp")]
    pub to: Timestamp,
}

impl Default for DrainLedgerSpec {
    fn default() -> Self {
        Self {
            format_version: FORMAT_VERSION,
            next_ticket: 0,
            budgets: Vec::new(),
            claims: Vec::new(),
            leaderless: Vec::new(),
            unreadable: None,
        }
    }
}

kind_schema! {
    DrainLedger { "spec": DrainLedgerSpec }
    "The queue of drains and the disruptions of budgets that they hold, in the one object named cluster. Written by drain-lock alone: to free what a drain holds, annotate its NodeDrain.",
    "self.metadata.name == 'cluster'" => "there is one DrainLedger, and it is named cluster",
}

/// A budget that claims need or hold disruptions of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = schema::keep_unknown_fields)]
pub struct StoredBudget {
    /// Namespace of the PodDisruptionBudget.
    pub namespace: String,
    /// Name of the PodDisruptionBudget.
    pub name: String,
    /// UID of the PodDisruptionBudget.
    pub uid: String,
    /// How many of its pods were healthy at a grant in force; an evicted pod's disruption is back when as many are again.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub healthy_at_grant: i32,
    /// How many pods there should be, where the budget's `minAvailable` is a number: the scale of their owners when it was read
    /// last, or the most pods that were seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub expected_pods: Option<i32>,
    /// Those owners, `KIND/NAME` or `GROUP/VERSION/KIND/NAME`: one whose pods are all down is known from here alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub owners: Vec<String>,
    /// When the newest of its pods was created that were there at the first grant in force. Absent where all of its pods come
    /// back under their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_timestamp")]
    pub newest_pod: Option<Timestamp>,
    /// How many pods fewer there were then than there should be.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub missing_pods: i32,
}

/// A drain's place in the queue, what it needs and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = schema::keep_unknown_fields)]
pub struct StoredClaim {
    /// Its place in the queue: the lowest is the oldest.
    #[schemars(range(min = 0))]
    pub ticket: i64,
    /// Name of the node.
    pub node: String,
    /// UID of the node.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Waiting, Granted, Confirmed, Returning, Suspect.
    #[schemars(with = "String")]
    pub state: ClaimState,
    /// Whether the node may go down at any moment: its retained pods count as down.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_go_down: bool,
    /// Since when it stands there.
    #[serde(serialize_with = "to_the_second")]
    #[schemars(schema_with = "schema::timestamp")]
    pub since: Timestamp,
    /// When its present turn in the queue began.
    #[serde(serialize_with = "to_the_second")]
    #[schemars(schema_with = "schema::timestamp")]
    pub queued_at: Timestamp,
    /// Grows with each grant: with the ticket it tells a present grant from a past one.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub grant: i64,
    /// The node's boot at the grant, and from when it was drained at that moment; empty before the first grant.
    #[serde(rename = "bootID", default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// Whether the node was cordoned by somebody else, so that it is not drain-lock's to uncordon.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign_cordon: bool,
    /// Since when a pod of it has an obstacle that no other drain's end lifts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_timestamp")]
    pub obstructed_since: Option<Timestamp>,
    /// Whether it is the claim that waits for other drains and keeps what it needs from those behind it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reserves: bool,
    /// The node groups of which it counts as a node that is away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub node_groups: Vec<String>,
    /// What it waits for, beyond what it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub needs: Vec<StoredNeed>,
    /// The pods that it holds disruptions for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub holds: Vec<StoredHold>,
    /// Places of the budgets of which it holds one disruption more, for the movable pods of its node: they follow one another on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<i32>", extend("x-kubernetes-list-type" = "atomic"))]
    pub movable: Vec<u32>,
    /// The movable pods of its node that have left without a disruption of the claim, and that nothing replaces yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub moving: Vec<StoredHold>,
}

/// Disruptions of one budget that a claim waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = schema::keep_unknown_fields)]
pub struct StoredNeed {
    /// Place of the budget in the list of budgets.
    #[schemars(with = "i32", range(min = 0))]
    pub budget: u32,
    /// How many.
    #[schemars(range(min = 0))]
    pub disruptions: i32,
    /// How many of them the grant takes from what is free: those of healthy pods.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub healthy: i32,
    /// Name of a pod that must leave and that several budgets select, so that no eviction of it is accepted.
    #[serde(rename = "severalPDBs", default, skip_serializing_if = "Option::is_none")]
    pub several: Option<String>,
}

/// A pod that a disruption is held for. Stored as `BUDGET/NAME/UID`, with the place of its budget, whose namespace is the pod's,
/// and `/retained` behind it for a pod that stays on the node through its reboot, followed by `/` and the hash of its
/// containers (16 hexadecimal digits) once that is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct StoredHold {
    /// Place of the budget in the list of budgets.
    pub budget: u32,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Whether it stays on the node through its reboot.
    pub retained: bool,
    /// The hash of a retained pod's containers; empty while it is not known.
    pub containers: String,
}

const RETAINED: &str = "retained";

impl TryFrom<String> for StoredHold {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let invalid = || format!("a held pod is written BUDGET/NAME/UID[/retained[/HASH]], not {text:?}");
        let parts: Vec<&str> = text.split('/').collect();
        let (budget, name, uid, retained, containers) = match *parts.as_slice() {
            [budget, name, uid] => (budget, name, uid, false, ""),
            [budget, name, uid, RETAINED] => (budget, name, uid, true, ""),
            [budget, name, uid, RETAINED, hash] if is_hash(hash) => (budget, name, uid, true, hash),
            _ => return Err(invalid()),
        };
        if name.is_empty() || uid.is_empty() {
            return Err(invalid());
        }
        Ok(Self {
            budget: budget.parse().map_err(|_| invalid())?,
            name: name.to_owned(),
            uid: uid.to_owned(),
            retained,
            containers: containers.to_owned(),
        })
    }
}

fn is_hash(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl From<StoredHold> for String {
    fn from(hold: StoredHold) -> Self {
        hold.to_string()
    }
}

impl fmt::Display for StoredHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.budget, self.name, self.uid)?;
        if self.retained {
            write!(f, "/{RETAINED}")?;
        }
        if !self.containers.is_empty() {
            write!(f, "/{}", self.containers)?;
        }
        Ok(())
    }
}

/// The state of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ClaimState {
    /// It has its place in the queue, and waits for the disruptions that it needs, if it needs any yet. What it holds meanwhile
    /// are disruptions of pods that are down.
    Waiting,
    /// It has its disruptions, and its budgets have to be read once more before they are used.
    Granted,
    /// It has its disruptions, and they may be used.
    Confirmed,
    /// The drain ended, or its turn did, while pods were down: the claim waits for nothing but those.
    Returning,
    /// Its drainer vanished while pods are down, or they are not back in time.
    Suspect,
}

impl ClaimState {
    /// Whether it has all its disruptions, confirmed or not.
    pub const fn has_grant(self) -> bool {
        matches!(self, Self::Granted | Self::Confirmed)
    }
}

/// As Kubernetes keeps times.
fn to_the_second<S: Serializer>(moment: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&moment.strftime("%Y-%m-%dT%H:%M:%SZ"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[test]
    fn held_pods_are_read_as_written() {
        for text in [
            "3/web-0/u0",
            "0/web-0/u0/retained",
            "3/web-0/u0/retained/0123456789abcdef",
        ] {
            let hold = StoredHold::try_from(text.to_owned()).unwrap();
            assert_eq!(hold.to_string(), text);
            assert_eq!(hold.retained, text.contains("retained"));
        }
    }

    /// A ledger with one claim, changed at this place.
    fn stored(at: &str, value: Value) -> Value {
        let mut ledger = json!({ "metadata": { "name": NAME }, "spec": {
            "formatVersion": 1, "nextTicket": 2, "leaderless": [{ "from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:05:00Z" }],
            "budgets": [{ "namespace": "shop", "name": "web", "uid": "b1" }],
            "claims": [{
                "ticket": 1, "node": "n1", "nodeUID": "u1", "state": "Confirmed", "since": "2026-01-01T00:00:00Z",
                "queuedAt": "2026-01-01T00:00:00Z", "needs": [{ "budget": 0, "disruptions": 1 }],
                "holds": ["0/web-0/u0/retained"],
            }],
        } });
        let (parent, field) = at.rsplit_once('/').unwrap();
        match ledger.pointer_mut(parent).unwrap() {
            Value::Array(list) => list[field.parse::<usize>().unwrap()] = value,
            object => object[field] = value,
        }
        ledger
    }

    #[rstest]
    #[case::no_object("/spec", json!("all"), ".: invalid type: string")]
    #[case::later_format("/spec/formatVersion", json!(2), "formatVersion: 2 is later than 1")]
    #[case::field_of_the_ledger("/spec/lanes", json!([]), "lanes: unknown field `lanes`")]
    #[case::field_of_a_time("/spec/leaderless/0/why", json!("paused"), "leaderless[0].why: unknown field")]
    #[case::field_of_a_budget("/spec/budgets/0/scale", json!(3), "budgets[0].scale: unknown field `scale`")]
    #[case::field_of_a_claim("/spec/claims/0/lane", json!("a"), "claims[0].lane: unknown field `lane`")]
    #[case::field_of_a_need("/spec/claims/0/needs/0/lane", json!("a"), "claims[0].needs[0].lane: unknown field")]
    #[case::state("/spec/claims/0/state", json!("Parked"), "claims[0].state: unknown variant `Parked`")]
    #[case::hold_that_is_none("/spec/claims/0/holds/0", json!(7), "claims[0].holds[0]: invalid type: integer `7`")]
    #[case::hold_of_a_pod_without_a_uid("/spec/claims/0/holds/0", json!("0/web-0"), "claims[0].holds[0]: a held pod is written")]
    #[case::hold_without_a_name("/spec/claims/0/holds/0", json!("3//u0"), "claims[0].holds[0]: a held pod is written")]
    #[case::hold_of_no_budget("/spec/claims/0/holds/0", json!("-1/web-0/u0"), "claims[0].holds[0]: a held pod is written")]
    #[case::hold_with_a_mark("/spec/claims/0/holds/0", json!("3/web-0/u0/later"), "claims[0].holds[0]: a held pod is written")]
    #[case::hold_with_a_mark_behind_retained(
        "/spec/claims/0/holds/0", json!("3/web-0/u0/retained/b00t/4a5"), "claims[0].holds[0]: a held pod is written"
    )]
    #[case::time("/spec/claims/0/since", json!("yesterday"), "claims[0].since: ")]
    #[case::budget_below_zero("/spec/claims/0/needs/0/budget", json!(-1), "claims[0].needs[0].budget: invalid value")]
    fn what_is_not_known_makes_the_spec_unreadable(#[case] at: &str, #[case] value: Value, #[case] why: &str) {
        let ledger: DrainLedger = serde_json::from_value(stored(at, value)).unwrap();
        let unreadable = ledger.spec.unreadable.clone().unwrap_or_default();
        assert!(unreadable.starts_with(why), "{unreadable}");
        assert_eq!(ledger.spec.claims, []);
        assert!(serde_json::to_value(&ledger).is_err(), "it would be lost");
    }

    #[test]
    fn spec_is_written_as_it_was_read() {
        let written = stored("/spec/nextTicket", json!(4))["spec"].clone();
        let mut read: DrainLedgerSpec = serde_json::from_value(written).unwrap();
        assert_eq!(read.unreadable, None);
        read.claims[0].needs.clear();
        let again: DrainLedgerSpec = serde_json::from_value(serde_json::to_value(&read).unwrap()).unwrap();
        assert_eq!(again, read);
    }
}
