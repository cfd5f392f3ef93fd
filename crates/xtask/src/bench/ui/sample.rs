//! A cluster in the middle of an upgrade, as the operators would leave it at one moment: drains in every phase and their
//! ledger, budgets, a NodeHealthCheck, a CephCluster and Events. No operator runs; nothing changes by itself.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use nodeward_api::{DEFAULT_NAMESPACE, ceph_state};
use nodeward_testkit::foreign::{CephKind, Foreign};
use nodeward_testkit::helm::Release;
use nodeward_testkit::store::Stored;
use nodeward_testkit::{ControlPlane, bulk};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::interval;

use crate::bench::fleet;
use crate::bench::fleet::nodes;
use crate::bench::fleet::size::node_name;

/// The components, each with a Deployment and a lease.
const COMPONENTS: [&str; 4] = ["drain-keeper", "drain-lock", "health-check", "ceph-pdb"];

/// The namespace of the CephCluster.
const CEPH: &str = "rook-ceph";

/// Applications, one budget each, in so many namespaces.
const NAMESPACES: usize = 40;

/// How many there are of what.
#[derive(Clone, Copy)]
pub struct Size {
    pub nodes: usize,
    pub drains: usize,
    pub budgets: usize,
}

/// Where the drain of a node stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its drainer vanished while pods are down.
    Suspect,
    /// Granted, and a pod does not go.
    Stuck,
    /// Waits for a budget whose pods are not healthy.
    Unhealthy,
    /// Waits for a budget that its owner holds.
    Held,
    Draining,
    Drained,
    Recovering,
    Queued,
}

/// A control plane with all of it, and what keeps the leases of the components renewed.
pub struct Sample {
    pub plane: ControlPlane,
    pub client: Client,
    _leaders: JoinSet<()>,
}

impl Sample {
    pub async fn start(size: Size) -> Result<Self> {
        let plane = fleet::start_of("nodes", (0..size.nodes).map(|node| stored_node(size, node))).await?;
        let client = plane.client().await?;
        Foreign::Ceph(CephKind::Cluster).install(&client).await?;
        plane.namespace(CEPH).await?;
        for namespace in 0..NAMESPACES.min(size.budgets) {
            plane.namespace(&namespace_name(namespace)).await?;
        }
        let groups = json!([
            { "name": "gpu", "selector": { nodes::POOL: "gpu" }, "maxUnavailable": 1 },
            { "name": "workers", "selector": { nodes::POOL: "workers" }, "maxUnavailable": "5%" },
        ]);
        Release::new("nodeward", DEFAULT_NAMESPACE)
            .values(json!({
                "drainKeeper": { "enabled": true },
                "drainLock": { "enabled": true, "config": { "nodeGroups": groups } },
                "healthCheck": { "enabled": true },
                "cephPdb": { "enabled": true, "namespaces": [CEPH] },
            }))
            .install(&plane)
            .await?;
        let now = Timestamp::now();
        let drains = (0..size.drains).map(|drain| drain_of(size, drain, now));
        let budgets = (0..size.budgets).map(budget);
        let rest = [ledger(size, now), health_check(size, now)];
        let all = drains
            .chain(budgets)
            .chain(rest)
            .chain(pods(size))
            .chain(events(size, now));
        fleet::write(&plane, "drains, budgets and Events", all).await?;
        bulk::create(&client, [ceph(now)?]).await?;
        let leaders = lead(&client).await?;
        Ok(Self {
            plane,
            client,
            _leaders: leaders,
        })
    }
}

/// So many minutes before.
fn ago(now: Timestamp, minutes: usize) -> String {
    let before = Duration::from_mins(minutes as u64);
    (now - before).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// In so many minutes.
fn ahead(now: Timestamp, minutes: usize) -> String {
    let after = Duration::from_mins(minutes as u64);
    (now + after).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn namespace_name(namespace: usize) -> String {
    format!("team-{namespace:02}")
}

fn budget_name(budget: usize) -> (String, String) {
    let app = ["db", "queue", "search", "cart", "mail"][budget % 5];
    (namespace_name(budget % NAMESPACES), format!("{app}-{budget}"))
}

fn budget_text(budget: usize) -> String {
    let (namespace, name) = budget_name(budget);
    format!("{namespace}/{name}")
}

/// The budget that a drain waits for, or holds.
fn budget_of(size: Size, drain: usize) -> usize {
    drain * 7 % size.budgets
}

/// The few that need a person first; then a tenth of each that is in work, and the others wait.
fn stage(drain: usize) -> Stage {
    match drain {
        0 => Stage::Stuck,
        1 => Stage::Drained,
        2 => Stage::Queued,
        3 => Stage::Suspect,
        4 => Stage::Unhealthy,
        5 => Stage::Held,
        _ => match drain % 20 {
            0 | 1 => Stage::Draining,
            2 => Stage::Drained,
            3 => Stage::Recovering,
            19 if drain % 100 == 99 => Stage::Unhealthy,
            _ => Stage::Queued,
        },
    }
}

/// After the nodes that are drained: not Ready, expired but not remediated, remediated, blocked without drain-lock.
fn is_silent(size: Size, node: usize) -> bool {
    size.nodes > 10 && (size.drains..size.drains + 2).contains(&node)
}

fn stored_node(size: Size, node: usize) -> Stored {
    let now = Timestamp::now();
    let mut object = nodes::node(node);
    let pool = if node % 10 == 7 { "gpu" } else { "workers" };
    object["metadata"]["labels"][nodes::POOL] = json!(pool);
    let is_blocked = size.nodes > 10 && node == size.drains + 2;
    if node < size.drains || is_blocked {
        object["spec"]["unschedulable"] = json!(true);
        object["spec"]["taints"] = json!([{
            "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": ago(now, 90 - node % 80),
        }]);
    }
    let conditions = object["status"]["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten() {
        if is_silent(size, node) && condition["type"] == "Ready" {
            condition["status"] = json!("Unknown");
            condition["lastTransitionTime"] = json!(ago(now, if node == size.drains { 12 } else { 3 }));
        }
        if is_blocked && condition["type"] == "Ready" {
            *condition = json!({
                "type": "Ready", "status": "True", "lastTransitionTime": ago(now, 900),
            });
        }
    }
    if is_blocked && let Some(conditions) = object["status"]["conditions"].as_array_mut() {
        conditions.push(json!({
            "type": "nodeward.dev/DrainBlocked", "status": "True", "reason": "BudgetExhausted", "lastTransitionTime": ago(now, 25),
            "message": "1 pod keeps this drain from ending: team-03/cart-3-0 (PDB team-03/cart-3) is covered by a budget that allows no disruption, for 25m; to do: let the application recover",
        }));
    }
    Stored::cluster("minions", &node_name(node), fleet::stored(object, None))
}

fn custom(resource: &str, name: &str, object: Value) -> Stored {
    Stored::cluster(resource, name, fleet::stored(object, None))
}

fn pod_of(drain: usize) -> String {
    format!("replica-{drain}")
}

fn drain_of(size: Size, drain: usize, now: Timestamp) -> Stored {
    let (node, pdb) = (node_name(drain), budget_text(budget_of(size, drain)));
    let (namespace, name) = budget_name(budget_of(size, drain));
    let began = 80 - drain * 55 / size.drains;
    let granted = ago(now, began - 15);
    let holds = json!([{ "pdb": { "namespace": namespace, "name": name }, "disruptions": 1, "pods": [pod_of(drain)] }]);
    let pods = |gone: usize| json!({ "total": 12, "gone": gone, "evicting": usize::from(gone < 12), "retained": 0, "waiting": 11_usize.saturating_sub(gone) });
    let blocked = |reason: &str, about: Value| {
        let mut one = json!({ "reason": reason, "pdb": pdb, "message": "" });
        one.as_object_mut()
            .into_iter()
            .for_each(|one| one.extend(about.as_object().cloned().unwrap_or_default()));
        json!([one])
    };
    let status = match stage(drain) {
        Stage::Suspect => json!({
            "phase": "Suspect", "grantedAt": granted, "holds": holds, "pods": pods(12), "drainedAt": ago(now, began - 20),
            "message": "its pods are not back in time: 1 of 1 pods is down",
        }),
        Stage::Stuck => json!({
            "phase": "Draining", "grantedAt": granted, "holds": holds, "pods": pods(11), "deadline": ahead(now, 20),
            "blockedBy": blocked("FinalizerStuck", json!({
                "pod": format!("{namespace}/{}", pod_of(drain)), "message": "is kept by finalizers beyond its grace period: example.com/detach",
            })),
        }),
        Stage::Unhealthy => json!({
            "phase": "Queued", "blockedBy": blocked("BudgetUnhealthy", json!({ "message": "waits for a budget whose pods are not healthy: 2 of 3 are, and it demands 2" })), "pods": pods(3),
        }),
        Stage::Held => json!({
            "phase": "Queued", "pods": pods(4),
            "blockedBy": blocked("OwnerHold", json!({ "message": "waits for a budget that its owner holds: migration of the orders table" })),
        }),
        Stage::Draining => {
            json!({ "phase": "Draining", "grantedAt": granted, "holds": holds, "pods": pods(7), "deadline": ahead(now, 30) })
        }
        Stage::Drained => json!({
            "phase": "Drained", "grantedAt": granted, "drainedAt": ago(now, began - 19), "holds": holds, "pods": pods(12),
        }),
        Stage::Recovering => json!({
            "phase": "Recovering", "grantedAt": granted, "drainedAt": ago(now, began - 18), "holds": holds, "pods": pods(12), "deadline": ahead(now, 15),
        }),
        Stage::Queued => {
            let holder = node_name(1 % size.drains);
            let about = json!({ "node": holder, "message": "" });
            json!({ "phase": "Queued", "blockedBy": blocked("WaitsForDisruptions", about), "pods": pods(5) })
        }
    };
    let mut object = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": node },
        "spec": {
            "nodeName": node, "purpose": "kernel 6.12", "evict": "Nodeward", "fallback": "ReleaseAndRequeue",
            "requesters": [{ "name": "kubectl-nodeward:alice" }],
        },
        "status": status,
    });
    object["status"]["ticket"] = json!(drain + 1);
    object["status"]["startedAt"] = json!(ago(now, began));
    object["status"]["observedGeneration"] = json!(1);
    custom("nodeward.dev/nodedrains", &node, object)
}

fn ledger(size: Size, now: Timestamp) -> Stored {
    let places: Vec<usize> = (0..size.drains).map(|drain| budget_of(size, drain)).collect();
    let budgets: Vec<Value> = places
        .iter()
        .map(|&budget| {
            let (namespace, name) = budget_name(budget);
            json!({ "namespace": namespace, "name": name, "uid": format!("poddisruptionbudget-{namespace}-{name}") })
        })
        .collect();
    let claims: Vec<Value> = (0..size.drains)
        .map(|drain| {
            let (state, may_go_down) = match stage(drain) {
                Stage::Suspect => ("Suspect", true),
                Stage::Stuck | Stage::Draining => ("Confirmed", false),
                Stage::Drained => ("Confirmed", true),
                Stage::Recovering => ("Returning", true),
                Stage::Unhealthy | Stage::Held | Stage::Queued => ("Waiting", false),
            };
            let at = ago(now, 60 - drain * 50 / size.drains);
            let mut claim = json!({
                "ticket": drain + 1, "node": node_name(drain), "nodeUID": format!("node--{}", node_name(drain)), "state": state, "mayGoDown": may_go_down,
                "since": at, "queuedAt": at,
            });
            if state == "Waiting" {
                claim["needs"] = json!([{ "budget": if stage(drain) == Stage::Queued { 1 % size.drains } else { drain }, "disruptions": 1, "healthy": 1 }]);
            } else {
                claim["holds"] = json!([format!("{drain}/{0}/{0}", pod_of(drain))]);
                claim["nodeGroups"] = json!([if drain % 10 == 7 { "gpu" } else { "workers" }]);
            }
            claim
        })
        .collect();
    let ledger = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "DrainLedger", "metadata": { "name": "cluster" },
        "spec": { "formatVersion": 1, "nextTicket": size.drains + 1, "budgets": budgets, "claims": claims },
    });
    custom("nodeward.dev/drainledgers", "cluster", ledger)
}

fn budget(budget: usize) -> Stored {
    let (namespace, name) = budget_name(budget);
    let object = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": name },
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": name } } },
        "status": {
            "observedGeneration": 1, "currentHealthy": 2, "desiredHealthy": 2, "disruptionsAllowed": 0, "expectedPods": 3,
            "conditions": [{
                "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "", "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        },
    });
    fleet::in_namespace("poddisruptionbudgets", &namespace, object)
}

/// The last pods of the nodes whose drains are stuck.
fn pods(size: Size) -> impl Iterator<Item = Stored> {
    let of_stage = |drain: &usize| matches!(stage(*drain), Stage::Stuck | Stage::Unhealthy | Stage::Held);
    (0..size.drains.min(20)).filter(of_stage).map(move |drain| {
        let (namespace, name) = budget_name(budget_of(size, drain));
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": pod_of(drain), "labels": { "app": name },
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": name, "controller": true }],
            },
            "spec": { "nodeName": node_name(drain), "containers": [{ "name": "main", "image": "registry.example.com/main:1" }] },
        });
        fleet::in_namespace("pods", &namespace, fleet::running(pod))
    })
}

fn health_check(size: Size, now: Timestamp) -> Stored {
    let silent: Vec<usize> = (0..size.nodes).filter(|node| is_silent(size, *node)).collect();
    let template = json!({
        "apiVersion": "self-node-remediation.medik8s.io/v1alpha1", "kind": "SelfNodeRemediationTemplate", "namespace": "medik8s", "name": "reboot",
    });
    let unhealthy: Vec<Value> = silent
        .iter()
        .take(1)
        .map(|node| {
            let name = node_name(*node);
            json!({ "name": name, "remediations": [{
                "resource": {
                    "apiVersion": "self-node-remediation.medik8s.io/v1alpha1", "kind": "SelfNodeRemediation", "namespace": "medik8s", "name": name,
                },
                "started": ago(now, 7), "templateName": "reboot",
            }] })
        })
        .collect();
    let in_flight: Map<String, Value> = silent
        .iter()
        .take(1)
        .map(|node| (node_name(*node), json!(ago(now, 7))))
        .collect();
    let phase = if unhealthy.is_empty() { "Enabled" } else { "Remediating" };
    let check = json!({
        "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "metadata": { "name": "workers" },
        "spec": {
            "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/worker", "operator": "Exists" }] },
            "minHealthy": "90%",
            "unhealthyConditions": [{ "type": "Ready", "status": "Unknown", "duration": "5m" }],
            "escalatingRemediations": [{ "remediationTemplate": template, "order": 1, "timeout": "15m" }],
        },
        "status": {
            "observedNodes": size.nodes, "healthyNodes": size.nodes - silent.len(), "phase": phase, "observedGeneration": 1,
            "reason": if unhealthy.is_empty() { "all nodes are healthy" } else { "1 node is being remediated" },
            "unhealthyNodes": unhealthy, "inFlightRemediations": in_flight,
        },
    });
    custom("remediation.medik8s.io/nodehealthchecks", "workers", check)
}

fn ceph(now: Timestamp) -> Result<ConfigMap> {
    let racks = ["rack-a", "rack-b", "rack-c"];
    let nodes: Map<String, Value> = (0..9).map(|node| (node_name(node), json!([racks[node % 3]]))).collect();
    let state = json!({
        "cluster": "rook", "disruptions": "Closed", "exemptDomain": "rack-b", "since": ago(now, 14), "reason": "DomainDown",
        "failureDomainType": "rack", "isClean": false, "statisticsFreshSince": ago(now, 9), "downOsds": { "rack-b": [4, 13] },
        "nodes": nodes, "noout": { "rack-b": ago(now, 13) },
        "leaderLease": { "namespace": DEFAULT_NAMESPACE, "name": "ceph-pdb" },
    });
    Ok(serde_json::from_value(json!({
        "metadata": { "name": ceph_state::CONFIG_MAP, "namespace": CEPH }, "data": { ceph_state::STATE_KEY: state.to_string() },
    }))?)
}

fn events(size: Size, now: Timestamp) -> impl Iterator<Item = Stored> {
    (0..size.drains.min(60)).map(move |drain| {
        let (namespace, name) = budget_name(budget_of(size, drain));
        let (component, kind, reason, note) = match (drain, drain % 3) {
            (4, _) => (
                "drain-keeper",
                "Warning",
                "PdbDeleted",
                format!("deleted PDB {namespace}/{name} for a moment, so that the pod can leave after 2h"),
            ),
            (_, 0) => (
                "drain-lock",
                "Normal",
                "Granted",
                format!("was granted 1 disruption of {namespace}/{name}"),
            ),
            (_, 1) => (
                "drain-lock",
                "Normal",
                "PodEvicted",
                format!(
                    "{} was evicted for the drain (node {})",
                    pod_of(drain),
                    node_name(drain)
                ),
            ),
            _ => (
                "drain-lock",
                "Normal",
                "Drained",
                "no pod has to leave any more".to_owned(),
            ),
        };
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": { "name": format!("sample-{drain}") },
            "involvedObject": { "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "name": node_name(drain) },
            "type": kind, "reason": reason, "message": note, "action": reason,
            "reportingComponent": format!("nodeward.dev/{component}"), "reportingInstance": "sample",
            "eventTime": format!("{}.000000Z", ago(now, drain).trim_end_matches('Z')), "source": {},
        });
        fleet::in_namespace("events", "default", event)
    })
}

/// The Deployments are ready, and the leases are renewed until this is dropped.
async fn lead(client: &Client) -> Result<JoinSet<()>> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), DEFAULT_NAMESPACE);
    let leases: Api<Lease> = Api::namespaced(client.clone(), DEFAULT_NAMESPACE);
    for deployment in deployments.list(&ListParams::default()).await? {
        let status =
            json!({ "status": { "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "availableReplicas": 2 } });
        deployments
            .patch_status(&deployment.name_any(), &PatchParams::default(), &Patch::Merge(status))
            .await?;
    }
    for name in COMPONENTS {
        let lease = json!({
            "metadata": { "name": name, "namespace": DEFAULT_NAMESPACE },
            "spec": {
                "holderIdentity": format!("nodeward-{name}-7c9f4d-x2x8k"), "leaseDurationSeconds": 15, "renewTime": nodes::micros(Timestamp::now()),
            },
        });
        leases
            .create(&PostParams::default(), &serde_json::from_value(lease)?)
            .await?;
    }
    let mut renewals = JoinSet::new();
    renewals.spawn(async move {
        let mut pace = interval(Duration::from_secs(5));
        loop {
            pace.tick().await;
            for name in COMPONENTS {
                let renewed = Patch::Merge(json!({ "spec": { "renewTime": nodes::micros(Timestamp::now()) } }));
                // The next one makes up for it.
                let _ = leases.patch(name, &PatchParams::default(), &renewed).await;
            }
        }
    });
    Ok(renewals)
}
