//! What ceph-pdb publishes of a CephCluster: the ConfigMap [`CONFIG_MAP`] in the cluster's namespace, key [`STATE_KEY`], as JSON.
//! Other programs read this and nothing else of ceph-pdb.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::{Deserialize, Serialize};

use crate::reason::{CephCondition, CephReason};

/// Name of the ConfigMap, in the CephCluster's namespace.
pub const CONFIG_MAP: &str = "nodeward-ceph-pdb";

/// Its key.
pub const STATE_KEY: &str = "state";

/// How the disruption budgets of a CephCluster stand. Written on transitions only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CephClusterState {
    /// Name of the CephCluster.
    pub cluster: String,
    /// The lease of the ceph-pdb that tells this: while nobody renews it, nothing here need be true any more. Absent where
    /// ceph-pdb elects no leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_lease: Option<LeaderLease>,
    /// Which OSDs may be evicted.
    pub disruptions: PublishedDisruptions,
    /// Closed, but for the OSDs of this failure domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exempt_domain: Option<String>,
    /// Closed, but for the OSDs of these nodes: those of the exempt domain, or a node alone where its domain as a whole may not go.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub exempt_nodes: BTreeSet<String>,
    /// Since when `disruptions` has its value.
    pub since: Timestamp,
    /// Why.
    #[serde(deserialize_with = "CephReason::lenient")]
    pub reason: CephReason,
    /// Type of the failure domains, such as `host`; absent until Ceph has answered once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_domain_type: Option<String>,
    /// Since when all OSDs are up again while the budgets are still closed: `pgHealthCheckTimeout` counts from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovering_since: Option<Timestamp>,
    /// Whether all placement groups are clean; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_clean: Option<bool>,
    /// Since when the placement groups' statistics are current; absent while they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics_fresh_since: Option<Timestamp>,
    /// What the statistics were of when they were last current, as a fingerprint of the OSDs, the pools and CRUSH. Whoever leads next
    /// tells by it whether anything has happened since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics_of: Option<String>,
    /// OSDs that are down, by failure domain; those of an unknown one are under the empty name.
    #[serde(default)]
    pub down_osds: BTreeMap<String, BTreeSet<i64>>,
    /// Failure domains of the OSDs of each node: also of those whose pods are gone, on the node that they last ran on. Without OSDs
    /// that are down while all placement groups are clean without them, or while Ceph has marked them out.
    #[serde(default)]
    pub nodes: BTreeMap<String, BTreeSet<String>>,
    /// Our `noout` flags, by CRUSH bucket, and since when.
    #[serde(default)]
    pub noout: BTreeMap<String, Timestamp>,
    /// What somebody should look at.
    #[serde(default)]
    pub conditions: Vec<PublishedCondition>,
    /// While Rook manages the budgets, what ceph-pdb would have them allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<DisruptionsPreview>,
}

impl CephClusterState {
    /// What is exempt from closed budgets, for people: such as `rack b` or `node n1`.
    pub fn exempt(&self) -> Option<String> {
        let kind = self.failure_domain_type.as_deref().unwrap_or("failure domain");
        let nodes = || self.exempt_nodes.iter().cloned().collect::<Vec<_>>().join(", ");
        match &self.exempt_domain {
            Some(domain) => Some(format!("{kind} {domain}")),
            None => (!self.exempt_nodes.is_empty()).then(|| format!("node {}", nodes())),
        }
    }

    /// Reads it from its ConfigMap.
    ///
    /// # Errors
    /// With what is wrong with the ConfigMap.
    pub fn read(map: &ConfigMap) -> Result<Self, String> {
        let stored = map.data.as_ref().and_then(|data| data.get(STATE_KEY));
        let text = stored.ok_or_else(|| format!("ConfigMap {CONFIG_MAP} has no key {STATE_KEY}"))?;
        serde_json::from_str(text)
            .map_err(|error| format!("key {STATE_KEY} of ConfigMap {CONFIG_MAP} cannot be read: {error}"))
    }
}

/// Where to see that ceph-pdb is alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaderLease {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Which OSDs may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
pub enum PublishedDisruptions {
    /// One at a time.
    Open,
    /// None, but what is exempt.
    Closed,
    /// The same is decided, and the budgets still allow more: the write is under way, or refused.
    Closing,
    /// ceph-pdb does not manage this cluster's budgets.
    Unmanaged,
}

impl PublishedDisruptions {
    /// Whether no OSD is to go but what is exempt.
    pub const fn is_closed(self) -> bool {
        matches!(self, Self::Closed | Self::Closing)
    }
}

/// What budgets would allow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DisruptionsPreview {
    /// No OSD may go but what is exempt; else one at a time may.
    pub is_closed: bool,
    /// What is exempt, for people: as [`CephClusterState::exempt`] tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exempt: Option<String>,
    /// Why.
    #[serde(deserialize_with = "CephReason::lenient")]
    pub reason: CephReason,
}

/// What somebody should look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedCondition {
    /// Which condition it is.
    #[serde(rename = "type", deserialize_with = "CephCondition::lenient")]
    pub kind: CephCondition,
    /// For people.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::{CephClusterState, PublishedDisruptions};
    use crate::reason::{CephCondition, CephReason};

    #[test]
    fn unreadable_state_says_what_is_wrong() {
        let read = |data: serde_json::Value| {
            let map: ConfigMap = serde_json::from_value(json!({ "data": data })).unwrap();
            CephClusterState::read(&map)
        };
        assert_eq!(
            read(json!({})).unwrap_err(),
            "ConfigMap nodeward-ceph-pdb has no key state"
        );
        for text in ["", "{", "{}", "[]"] {
            let problem = read(json!({ "state": text })).unwrap_err();
            assert!(
                problem.starts_with("key state of ConfigMap nodeward-ceph-pdb cannot be read: "),
                "{problem}"
            );
        }
        // What a later version calls the budgets is not guessed at.
        let later =
            json!({ "cluster": "rook", "disruptions": "HalfOpen", "since": "2026-01-01T00:00:00Z", "reason": "AllUp" });
        assert!(read(json!({ "state": later.to_string() })).is_err());
        // An earlier version names no lease.
        let earlier =
            json!({ "cluster": "rook", "disruptions": "Open", "since": "2026-01-01T00:00:00Z", "reason": "AllUp" });
        assert_eq!(
            read(json!({ "state": earlier.to_string() })).unwrap().leader_lease,
            None
        );
    }

    #[test]
    fn state_of_a_later_version_is_read() {
        let stored = json!({
            "cluster": "rook", "disruptions": "Closed", "since": "2026-01-01T00:00:00Z", "reason": "ReasonOfLater",
            "conditions": [{"type": "ConditionOfLater", "message": "m", "since": "2026-01-01T00:00:00Z"}], "later": 1,
        });
        let state: CephClusterState = serde_json::from_value(stored).unwrap();
        assert_eq!(state.disruptions, PublishedDisruptions::Closed);
        assert_eq!(state.reason, CephReason::Other);
        assert_eq!(state.conditions[0].kind, CephCondition::Other);
        let written = serde_json::to_value(&state).unwrap();
        assert_eq!(serde_json::from_value::<CephClusterState>(written).unwrap(), state);
    }
}
