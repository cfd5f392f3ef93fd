//! The life of a drain, one step at a time: from a moment of a small cluster to what is written, done and said.

mod ceph;
mod control_plane;
mod endings;
mod grants;
mod ledger_size;
mod life;
mod node_groups;
mod obstacles;
mod properties;
mod room;
mod silence;
mod stages;
mod timeouts;
mod windows;

use jiff::SignedDuration;
use nodeward_core::id::PodUid;
use nodeward_core::node::UNSCHEDULABLE_TAINT;
use rstest::rstest;
use serde_json::{Value, json};

use super::node_markers::Cordon;
use super::*;
use nodeward_core::ledger::HeldPod;

use crate::config::Config;
use crate::explain::explain;
use crate::plan::lease::LeaseStep;
use crate::tests::fixture::{Cluster, at, budget, merged, node, now, pod, waiting};

const A_MINUTE_AGO: &str = "2026-01-01T11:59:00Z";
const YESTERDAY: &str = "2025-12-31T12:00:00Z";

/// The defaults, without node leases.
fn policy() -> Policy {
    Policy {
        medik8s_leases: None,
        ..Policy::from_config(Config::default()).unwrap()
    }
}

fn planned(cluster: &Cluster) -> Plan {
    plan(&cluster.snapshot(), &Memory::default(), &policy(), now())
}

/// A NodeDrain of `n1` that drain-lock has adopted.
fn drain(patch: Value) -> Value {
    let base = json!({
        "metadata": {
            "name": "n1", "uid": "uid-drain", "resourceVersion": "7", "finalizers": [nodeward_api::finalizer::DRAIN_LOCK],
            "creationTimestamp": A_MINUTE_AGO,
        },
        "spec": { "nodeName": "n1", "nodeUID": "uid-n1", "requesters": [{ "name": "alice" }] },
    });
    merged(base, patch)
}

/// A drain whose requesters evict by themselves and have not been heard of since yesterday.
fn silent_drain_of(requesters: &[&str]) -> Value {
    let requesters: Vec<Value> = requesters.iter().map(|name| json!({ "name": name })).collect();
    drain(json!({
        "metadata": { "creationTimestamp": YESTERDAY }, "spec": { "evict": "Requester", "requesters": requesters },
    }))
}

/// The annotations of a node that drain-lock drains under its own cordon.
fn annotated_for(drain_uid: &str) -> Value {
    json!({
        nodeward_api::annotation::CORDONED_BY: drain_uid,
        nodeward_api::annotation::KARPENTER_DO_NOT_DISRUPT: "true",
        nodeward_api::annotation::DO_NOT_DISRUPT_BY: "drain-lock",
    })
}

/// `n1` under the cordon of that drain.
fn ours(patch: Value) -> Value {
    let cordon = json!({
        "metadata": { "annotations": annotated_for("uid-drain") },
        "spec": { "unschedulable": true },
    });
    node("n1", merged(cordon, patch))
}

/// `n1` under the cordon of somebody who uncordoned it first.
fn taken(patch: Value) -> Value {
    let taint = json!({ "key": UNSCHEDULABLE_TAINT, "effect": "NoSchedule", "timeAdded": A_MINUTE_AGO });
    let cordon = json!({
        "metadata": { "annotations": { nodeward_api::annotation::CORDONED_BY: "uid-drain@2026-01-01T11:00:00Z" } },
        "spec": { "taints": [taint] },
    });
    ours(merged(cordon, patch))
}

fn foreign(patch: Value) -> Value {
    node("n1", merged(json!({ "spec": { "unschedulable": true } }), patch))
}

fn rebooted() -> Value {
    json!({ "status": {
        "nodeInfo": { "bootID": "boot-2" },
        "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T11:30:00Z" }],
    } })
}

/// The claim of `n1`, first in the queue.
fn claim(patch: Value) -> Value {
    let base = json!({
        "ticket": 1, "node": "n1", "nodeUID": "uid-n1", "state": "Waiting", "since": A_MINUTE_AGO, "queuedAt": A_MINUTE_AGO, "grant": 4,
    });
    merged(base, patch)
}

fn granted(state: &str, pods: &[&str]) -> Value {
    claim(
        json!({ "state": state, "grant": 5, "bootID": "boot-1", "needs": [disruptions(pods)], "holds": [disruptions(pods)] }),
    )
}

/// Disruptions of the budget `web` for these pods; in brackets: one that stays.
fn disruptions(pods: &[&str]) -> Value {
    let pods: Vec<Value> = pods
        .iter()
        .map(|name| {
            let bare = name.trim_matches(['(', ')']);
            json!({ "name": bare, "uid": format!("uid-{bare}"), "retained": bare != *name })
        })
        .collect();
    json!({ "pdb": { "namespace": "shop", "name": "web", "uid": "uid-web" }, "healthyAtGrant": 3, "pods": pods })
}

/// A pod of `web` that finds no room on any other node.
fn held(name: &str, patch: Value) -> Value {
    pod(
        name,
        merged(
            json!({ "spec": { "nodeSelector": { "kubernetes.io/hostname": "n1" } } }),
            patch,
        ),
    )
}

fn retained(name: &str, patch: Value) -> Value {
    let stays = json!({
        "metadata": { "labels": { "nodeward.dev/drain": "skip" } },
        "spec": { "tolerations": [{ "operator": "Exists", "effect": "NoExecute" }] },
    });
    pod(name, merged(stays, patch))
}

fn leaving(patch: Value) -> Value {
    merged(
        json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } }),
        patch,
    )
}

/// A pod that has waited for a node for ten seconds.
fn newly_waiting(name: &str, patch: Value) -> Value {
    let since = "2026-01-01T11:59:50Z";
    let unschedulable =
        json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": since });
    let new = json!({ "metadata": { "creationTimestamp": since }, "status": { "conditions": [unschedulable] } });
    waiting(name, merged(new, patch))
}

fn bare() -> Value {
    json!({ "metadata": { "labels": { "app": "other" } } })
}

/// The other two pods of `web`, elsewhere.
fn siblings() -> [Value; 2] {
    ["b", "c"].map(|name| pod(name, json!({ "spec": { "nodeName": "n2" } })))
}

fn cluster(node_1: Value, drain: Option<Value>, claims: &[Value], pods: &[Value]) -> Cluster {
    let pods = pods.iter().cloned().chain(siblings());
    let cluster = Cluster::new([node_1, node("n2", json!({}))], pods)
        .budgets([budget("web", json!({}))])
        .drains(drain);
    if claims.is_empty() {
        cluster
    } else {
        cluster.ledger(json!({ "nextTicket": 9, "claims": claims }))
    }
}

/// The plan in words: what the ledger becomes, what is done, and how the drains stand. The node's conditions are left out.
fn shown(plan: &Plan) -> Vec<String> {
    let mut lines: Vec<String> = plan.ledger.iter().flat_map(shown_write).collect();
    lines.extend(plan.actions.iter().filter_map(shown_action));
    lines.extend(plan.drains.iter().map(|verdict| {
        let why: Vec<_> = verdict.blocked_by.iter().map(|why| why.reason.as_str()).collect();
        format!("{} is {}: {}", verdict.node, verdict.phase.as_str(), why.join(", "))
            .trim_end_matches([':', ' '])
            .to_owned()
    }));
    lines
}

fn shown_write(write: &LedgerWrite) -> Vec<String> {
    let pods = |disruptions: &[nodeward_core::ledger::Disruptions]| {
        let all = disruptions
            .iter()
            .map(|held| pods_and_movable(&held.pods, held.movable));
        all.collect::<Vec<_>>().join("+")
    };
    let claims = write.next.claims().iter().map(|claim| {
        let needs = claim
            .needs
            .iter()
            .map(|need| pods_and_movable(&need.pods.0, need.movable.0));
        let (needs, holds) = (needs.collect::<Vec<_>>().join("+"), pods(&claim.holds));
        let down = if claim.may_go_down { ", may go down," } else { "" };
        format!(
            "ledger: {}#{} {:?}{down} needs [{needs}] holds [{holds}]",
            claim.node, claim.ticket, claim.state
        )
    });
    let mut lines: Vec<String> = claims.collect();
    if lines.is_empty() {
        lines.push("ledger: empty".to_owned());
    }
    lines.extend(write.grants.iter().map(|ask| format!("grant {}", ask.node_uid)));
    lines.extend(
        write
            .confirms
            .iter()
            .map(|ask| format!("confirm {} {}", ask.node_uid, ask.grant)),
    );
    lines.extend(
        write
            .drained
            .iter()
            .map(|ask| format!("make sure that {} is drained", ask.node)),
    );
    lines.extend(
        write
            .called_off
            .iter()
            .map(|called_off| format!("make sure of {} since {}", called_off.node, called_off.since)),
    );
    lines
}

fn pods_and_movable(pods: &[HeldPod], movable: bool) -> String {
    let names = pods.iter().map(|pod| pod.name.as_str());
    names.chain(movable.then_some("movable")).collect::<Vec<_>>().join("+")
}

fn shown_action(action: &Action) -> Option<String> {
    Some(match action {
        Action::Adopt { .. } => "adopt".to_owned(),
        Action::Delete { reason, .. } => format!("delete NodeDrain: {}", reason.as_str()),
        Action::Finish { .. } => "let NodeDrain go".to_owned(),
        Action::Node(write) if !write.changes_spec() => return None,
        Action::Node(write) => {
            let cordon = match write.cordon {
                Cordon::Keep | Cordon::Respect => "mark",
                Cordon::Set { .. } => "cordon",
                Cordon::Lift => "uncordon",
                Cordon::Forget => "forget cordon",
            };
            format!(
                "{cordon} {}{}",
                write.node.name,
                if write.queued { " queued" } else { "" }
            )
        }
        Action::Evict { eviction } => format!("evict {}", eviction.pod.key.name),
        Action::AskOwner { eviction, .. } => format!("ask for {}", eviction.pod.key.name),
        Action::EvictHeld { fence, pods, .. } => {
            let pods: Vec<_> = pods.iter().map(|pod| &*pod.pod.key.name).collect();
            format!("evict {} under {}/{}", pods.join("+"), fence.ticket, fence.grant)
        }
        Action::Lease(change) => {
            let step = match change.step {
                LeaseStep::Take => "take",
                LeaseStep::Release => "release",
            };
            if change.name.starts_with("node-") {
                format!("{step} lease")
            } else {
                format!("{step} {} for {}", change.name, change.holder)
            }
        }
        Action::RemoveStaleEntries(stale) => format!("remove stale entries of {}", stale.budget),
        Action::Touch(touch) => format!("touch {}", touch.budget),
    })
}

fn with_fallback(fallback: &str) -> Value {
    drain(json!({ "spec": { "fallback": fallback } }))
}

fn granted_yesterday(pods: &[&str]) -> Value {
    merged(
        granted("Confirmed", pods),
        json!({ "since": YESTERDAY, "queuedAt": "2025-12-31T11:59:00Z" }),
    )
}
