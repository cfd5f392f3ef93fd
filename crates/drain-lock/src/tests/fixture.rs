//! Small clusters for tests, written as the API writes them.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::drain_ledger::DrainLedgerSpec;
use nodeward_core::id::NodeName;
use nodeward_core::ledger::{Claim, ClaimState, Disruptions, Ledger, Need};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::observe::{ClusterCache, Objects};
use crate::snapshot::{PodFacts, Snapshot, SnapshotScope};

/// The moment of most tests.
pub const NOW: &str = "2026-01-01T12:00:00Z";

pub fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

pub fn now() -> Timestamp {
    at(NOW)
}

/// Lays `patch` over `base`, field by field; `null` takes a field away.
pub fn merged(mut base: Value, patch: Value) -> Value {
    match (base.as_object_mut(), patch) {
        (Some(fields), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    fields.remove(&key);
                } else {
                    let old = fields.remove(&key).unwrap_or(Value::Null);
                    fields.insert(key, merged(old, value));
                }
            }
            base
        }
        (_, patch) => patch,
    }
}

pub fn parse<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// A Ready node with 4 CPUs, 8 GiB and room for 10 pods, in zone `z1`.
pub fn node(name: &str, patch: Value) -> Value {
    let base = json!({
        "metadata": { "name": name, "uid": format!("uid-{name}"), "labels": {
            "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "z1",
        } },
        "spec": {},
        "status": {
            "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "10" },
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            "nodeInfo": {
                "bootID": "boot-1", "machineID": "machine", "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
            },
        },
    });
    merged(base, patch)
}

pub fn cordoned(name: &str) -> Value {
    node(name, json!({ "spec": { "unschedulable": true } }))
}

/// A Ready pod of a ReplicaSet `web` in namespace `shop`, on `n1`, that requests 1 CPU.
pub fn pod(name: &str, patch: Value) -> Value {
    let base = json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": format!("uid-{name}"), "labels": { "app": "web" },
            "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [owner("apps/v1", "ReplicaSet", "web")],
        },
        "spec": { "nodeName": "n1", "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    merged(base, patch)
}

/// The same, waiting for a node since 11:59.
pub fn waiting(name: &str, patch: Value) -> Value {
    let waits = json!({
        "spec": { "nodeName": null },
        "status": { "phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "2026-01-01T11:59:00Z",
        }] },
    });
    merged(pod(name, waits), patch)
}

pub fn owner(api_version: &str, kind: &str, name: &str) -> Value {
    json!({ "apiVersion": api_version, "kind": kind, "name": name, "uid": format!("uid-{name}"), "controller": true })
}

/// A budget `web` in namespace `shop` over `app: web`, with 3 pods of which 1 may be disrupted.
pub fn budget(name: &str, patch: Value) -> Value {
    let base = json!({
        "metadata": { "namespace": "shop", "name": name, "uid": format!("uid-{name}"), "generation": 1 },
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": "web" } } },
        "status": {
            "observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3,
        },
    });
    merged(base, patch)
}

/// Claims by what they need and hold, pods included.
pub fn claims(claims: &Value) -> Vec<Claim> {
    claims.as_array().unwrap().iter().map(claim).collect()
}

fn claim(described: &Value) -> Claim {
    let needs: Vec<Disruptions> = serde_json::from_value(described["needs"].clone()).unwrap_or_default();
    let mut claim: Claim = parse(merged(described.clone(), json!({ "needs": null })));
    if matches!(claim.state, ClaimState::Waiting | ClaimState::Suspect) {
        let missing = needs
            .into_iter()
            .filter(|disruptions| disruptions.pods.iter().any(|pod| !claim.has_disruption(&pod.uid)));
        claim.needs = missing.map(Need::from).collect();
    }
    claim
}

/// A bound volume that is reached from these nodes.
pub fn volume(name: &str, claim: &str, nodes: &[&str]) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "claimRef": { "namespace": "shop", "name": claim },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": nodes },
            ] }] } },
        },
        "status": { "phase": "Bound" },
    })
}

#[derive(Debug, Default)]
pub struct Cluster(pub Objects);

impl Cluster {
    pub fn new(nodes: impl IntoIterator<Item = Value>, pods: impl IntoIterator<Item = Value>) -> Self {
        let mut cluster = Self::default();
        cluster.0.nodes = nodes.into_iter().map(parse).collect();
        cluster.0.pods = pods.into_iter().map(parse).collect();
        cluster
    }

    pub fn budgets(mut self, budgets: impl IntoIterator<Item = Value>) -> Self {
        self.0.budgets = budgets.into_iter().map(parse).collect();
        self
    }

    pub fn volumes(mut self, volumes: impl IntoIterator<Item = Value>) -> Self {
        self.0.volumes = volumes.into_iter().map(parse).collect();
        self
    }

    /// The next ticket, and the claims as [`claims`] reads them.
    pub fn ledger(mut self, spec: Value) -> Self {
        let ledger = Ledger::of(spec["nextTicket"].as_i64().unwrap_or_default(), claims(&spec["claims"]));
        let spec = serde_json::to_value(DrainLedgerSpec::from(&ledger)).unwrap();
        self.0.ledger = Some(parse(
            json!({ "metadata": { "name": "cluster", "uid": "uid-ledger", "resourceVersion": "1" }, "spec": spec }),
        ));
        self
    }

    pub fn drains(mut self, drains: impl IntoIterator<Item = Value>) -> Self {
        self.0.drains = drains.into_iter().map(parse).collect();
        self
    }

    pub fn holds(mut self, holds: impl IntoIterator<Item = Value>) -> Self {
        self.0.holds = holds.into_iter().map(parse).collect();
        self
    }

    pub fn leases(mut self, leases: impl IntoIterator<Item = Value>) -> Self {
        self.0.leases = leases.into_iter().map(parse).collect();
        self
    }

    pub fn cache(&self) -> Arc<ClusterCache> {
        ClusterCache::fixed(&self.0)
    }

    /// This moment, with the pods of `n1`.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_of(&["n1"])
    }

    pub fn snapshot_of(&self, nodes: &[&str]) -> Snapshot {
        let scope = SnapshotScope {
            nodes: nodes.iter().map(|name| NodeName::from(*name)).collect(),
            ..SnapshotScope::default()
        };
        self.cache().snapshot(&scope, now()).unwrap()
    }
}

impl Snapshot {
    /// A pod of one of the nodes that were scope for.
    pub fn pod(&self, name: &str) -> &Arc<PodFacts> {
        let mut pods = self.pods.values().flatten();
        pods.find(|pod| &*pod.key.name == name).unwrap()
    }
}
