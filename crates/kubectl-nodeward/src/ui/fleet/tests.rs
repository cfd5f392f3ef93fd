#![allow(
    clippy::needless_pass_by_value,
    reason = "a row of a table writes its values in place"
)]

use std::collections::BTreeMap;

use clap::Parser;
use k8s_openapi::api::core::v1::Node;
use nodeward_api::drain_ledger::DrainLedgerSpec;
use nodeward_api::node_drain::NodeDrain;
use nodeward_core::ledger::Ledger;
use nodeward_runtime::cache::NamespacedName;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::args::CommandLine;
use crate::fixture::merge;
use crate::model::answer::Severity;

fn now() -> Timestamp {
    "2026-01-01T10:30:00Z".parse().unwrap()
}

pub fn commands() -> PrintedCommands {
    let line = CommandLine::parse_from(["kubectl-nodeward", "ui"]);
    PrintedCommands::new(&line.global, Some("kubectl-nodeward:alice".to_owned()))
}

/// A worker that is Ready.
fn node(name: &str, change: Value) -> Node {
    let mut node = json!({
        "metadata": { "name": name, "labels": { "node-role.kubernetes.io/worker": "" }, "creationTimestamp": "2026-01-01T09:00:00Z" },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T09:00:00Z" }] },
    });
    merge(&mut node, change);
    serde_json::from_value(node).unwrap()
}

fn cordoned() -> Value {
    json!({ "spec": { "unschedulable": true, "taints": [
        { "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-01-01T10:00:00Z" },
    ] } })
}

fn not_ready(since: &str) -> Value {
    json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "lastTransitionTime": since }] } })
}

/// drain-keeper's word of pods that keep the drain from ending.
fn blocked(message: &str) -> Value {
    json!({ "status": { "conditions": [
        { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T09:00:00Z" },
        {
            "type": "nodeward.dev/DrainBlocked", "status": "True", "reason": "BudgetExhausted", "message": message,
            "lastTransitionTime": "2026-01-01T10:10:00Z",
        },
    ] } })
}

fn drain(name: &str, status: Value) -> Drain {
    let drain: NodeDrain = serde_json::from_value(json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain",
        "metadata": { "name": name, "creationTimestamp": "2026-01-01T10:16:00Z" },
        "spec": { "nodeName": name, "requesters": [{ "name": "kubectl-nodeward:alice" }] }, "status": status,
    }))
    .unwrap();
    Drain::of(&drain)
}

/// Workers that are not Ready for five minutes are remediated.
fn check(status: Value) -> NodeHealthCheck {
    let template = json!({ "apiVersion": "a/v1", "kind": "RebootTemplate", "namespace": "n", "name": "t" });
    serde_json::from_value(json!({
        "metadata": { "name": "workers" },
        "spec": {
            "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/worker", "operator": "Exists" }] },
            "minHealthy": "51%", "remediationTemplate": template,
            "unhealthyConditions": [{ "type": "Ready", "status": "Unknown", "duration": "5m" }],
        },
        "status": status,
    }))
    .unwrap()
}

fn key(name: &str) -> NamespacedName {
    NamespacedName::cluster(name)
}

fn one<V>(name: &str, value: Option<V>) -> Content<V> {
    Arc::new(value.into_iter().map(|value| (key(name), Arc::new(value))).collect())
}

fn fleet(node: Node, drain: Option<Drain>, check: Option<NodeHealthCheck>) -> Fleet {
    let inputs = Inputs {
        nodes: one("n1", StoredNode::of(&node)),
        drains: one("n1", drain),
        checks: check.into_iter().collect(),
        ..Inputs::default()
    };
    Fleet::of(&inputs, &mut Quiet::default(), Source::default(), &commands(), now())
}

/// A fleet of so many workers, each with a drain.
pub fn fleet_of(count: usize) -> Fleet {
    let names: Vec<String> = (0..count).map(|index| format!("n{index}")).collect();
    let nodes = names
        .iter()
        .map(|name| (key(name), Arc::new(StoredNode::of(&node(name, json!({}))).unwrap())));
    let inputs = Inputs {
        nodes: Arc::new(nodes.collect()),
        ..Inputs::default()
    };
    Fleet::of(&inputs, &mut Quiet::default(), Source::default(), &commands(), now())
}

pub fn renamed(fleet: Fleet) -> Fleet {
    let mut fleet = fleet;
    "lab".clone_into(&mut fleet.source.cluster);
    fleet
}

const QUEUED_BEHIND: &str = "WaitsForDisruptions";

fn queued(reason: &str) -> Value {
    json!({
        "phase": "Queued", "ticket": 4, "startedAt": "2026-01-01T10:16:02Z", "deadline": "2026-01-01T10:46:00Z",
        "blockedBy": [{ "reason": reason, "pdb": "shop/db", "node": "n2", "message": "shop/db waits" }],
    })
}

fn remediated() -> Value {
    json!({ "healthyNodes": 2, "observedNodes": 3, "unhealthyNodes": [{ "name": "n1", "remediations": [{
        "resource": { "apiVersion": "a/v1", "kind": "Reboot", "namespace": "n", "name": "n1", "uid": "u" },
        "started": "2026-01-01T10:25:00Z",
    }] }] })
}

#[rstest]
#[case::well(json!({}), None, None, NodeState::Ready, Severity::Fine)]
#[case::cordoned_by_somebody(cordoned(), None, None, NodeState::Cordoned, Severity::Fine)]
#[case::cordoned_and_forgotten(
    json!({ "spec": { "unschedulable": true, "taints": [
        { "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-01-01T09:30:00Z" },
    ] } }),
    None,
    None,
    NodeState::Cordoned,
    Severity::NeedsPerson
)]
#[case::not_ready_and_watched_by_nobody(
    not_ready("2026-01-01T10:28:00Z"),
    None,
    None,
    NodeState::NotReady,
    Severity::NeedsPerson
)]
#[case::counts_down(not_ready("2026-01-01T10:28:00Z"), None, Some(json!({})), NodeState::Unhealthy, Severity::Acts)]
#[case::has_expired_and_is_stopped(
    not_ready("2026-01-01T10:00:00Z"), None, Some(json!({ "healthyNodes": 1, "observedNodes": 9 })), NodeState::Unhealthy, Severity::NeedsPerson
)]
#[case::is_remediated(
    not_ready("2026-01-01T10:00:00Z"),
    None,
    Some(remediated()),
    NodeState::Remediating,
    Severity::Acts
)]
#[case::reboots_in_its_drain(
    not_ready("2026-01-01T10:28:00Z"), Some(json!({ "phase": "Drained", "drainedAt": "2026-01-01T10:27:00Z", "deadline": "2026-01-01T11:00:00Z" })),
    Some(json!({})), NodeState::Drained, Severity::Waits
)]
#[case::waits_for_its_turn(json!({}), Some(queued(QUEUED_BEHIND)), None, NodeState::Waiting, Severity::Waits)]
#[case::waits_for_an_owner(json!({}), Some(queued("OwnerHold")), None, NodeState::Blocked, Severity::Waits)]
#[case::waits_for_a_budget_that_never_allows(json!({}), Some(queued("BudgetNeverAllows")), None, NodeState::Blocked, Severity::NeedsPerson)]
#[case::waits_beyond_its_deadline(
    json!({}), Some(json!({ "phase": "Queued", "deadline": "2026-01-01T10:29:00Z" })), None, NodeState::Blocked, Severity::NeedsPerson
)]
#[case::nobody_has_answered(json!({}), Some(json!(null)), None, NodeState::Waiting, Severity::Waits)]
#[case::has_not_begun(json!({}), Some(json!({ "phase": "Scheduled" })), None, NodeState::Waiting, Severity::Waits)]
#[case::evicts(cordoned(), Some(json!({ "phase": "Draining" })), None, NodeState::Draining, Severity::Acts)]
#[case::is_back(json!({}), Some(json!({ "phase": "Recovering" })), None, NodeState::Recovering, Severity::Acts)]
#[case::drain_is_over(json!({}), Some(json!({ "phase": "Released" })), None, NodeState::Ready, Severity::Fine)]
#[case::its_drainer_is_gone(json!({}), Some(json!({ "phase": "Suspect" })), None, NodeState::Blocked, Severity::NeedsPerson)]
#[case::given_up(json!({}), Some(json!({ "phase": "Failed" })), None, NodeState::Blocked, Severity::NeedsPerson)]
#[case::pods_keep_it(blocked("anything"), None, None, NodeState::Blocked, Severity::Acts)]
#[case::pods_keep_it_in_its_turn(blocked("anything"), Some(json!({ "phase": "Draining" })), None, NodeState::Blocked, Severity::Acts)]
fn node_has_the_state_that_counts_most(
    #[case] change: Value,
    #[case] status: Option<Value>,
    #[case] health: Option<Value>,
    #[case] state: NodeState,
    #[case] severity: Severity,
) {
    let fleet = fleet(
        node("n1", change),
        status.map(|status| drain("n1", status)),
        health.map(check),
    );
    let found = &fleet.nodes["n1"];
    assert_eq!(
        (found.answer.state, found.answer.severity),
        (state, severity),
        "{found:?}"
    );
    // Whoever is told that a node is stuck is told why, and what to type.
    if severity >= Severity::Acts && state != NodeState::Draining && state != NodeState::Recovering {
        assert!(
            found.answer.why.as_ref().is_some_and(|why| !why.is_empty()),
            "{found:?}"
        );
        assert!(
            found
                .commands
                .iter()
                .any(|one| one.command == "kubectl nodeward why n1"),
            "{found:?}"
        );
    }
    let own = found
        .commands
        .iter()
        .filter(|one| one.command.starts_with("kubectl nodeward"));
    for command in own {
        let words = command
            .command
            .split(" && ")
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1);
        let parsed = CommandLine::try_parse_from(words);
        assert!(parsed.is_ok(), "{command:?}: {parsed:?}");
    }
}

#[test]
fn unhealthy_nodes_are_told_with_their_check() {
    let fleet = fleet(
        node("n1", not_ready("2026-01-01T10:28:00Z")),
        None,
        Some(check(json!({}))),
    );
    let shown = serde_json::to_value(&*fleet.health_checks["workers"]).unwrap();
    assert_eq!(shown["minHealthy"], "51%");
    assert_eq!(shown["nodes"][0]["node"], "n1");
    assert_eq!(shown["nodes"][0]["condition"]["expires"], "2026-01-01T10:33:00Z");
    assert_eq!(
        fleet.nodes["n1"].answer.until,
        Some("2026-01-01T10:33:00Z".parse().unwrap())
    );
    let healthy = self::fleet(node("n1", json!({})), None, Some(check(json!({}))));
    let shown = serde_json::to_value(&*healthy.health_checks["workers"]).unwrap();
    assert_eq!(shown["nodes"], json!([]));
}

#[test]
fn remediation_of_a_deleted_node_is_told() {
    let inputs = Inputs {
        checks: vec![check(remediated())],
        ..Inputs::default()
    };
    let fleet = Fleet::of(&inputs, &mut Quiet::default(), Source::default(), &commands(), now());
    let shown = serde_json::to_value(&*fleet.health_checks["workers"]).unwrap();
    assert_eq!(shown["nodes"][0]["reason"], "RemediatedNodeGone");
}

#[rstest]
#[case(json!({ "node-role.kubernetes.io/master": "", "topology.kubernetes.io/zone": "a" }), &[("role", "control-plane"), ("zone", "a")])]
#[case(json!({ "karpenter.sh/nodepool": "spot", "node-role.kubernetes.io/worker": null }), &[("pool", "spot")])]
#[case(json!({ "topology.kubernetes.io/zone": "" }), &[("role", "worker")])]
fn nodes_are_grouped_by_what_their_labels_tell(#[case] labels: Value, #[case] groups: &[(&str, &str)]) {
    let mut all = json!({ "node-role.kubernetes.io/worker": "" });
    merge(&mut all, labels);
    all.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    let mut node = node("n1", json!({}));
    node.metadata.labels = serde_json::from_value(all).unwrap();
    let fleet = fleet(node, None, None);
    let expected: BTreeMap<&str, String> = groups
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect();
    assert_eq!(fleet.nodes["n1"].groups, expected);
    let names: Vec<&str> = fleet.groupings.iter().map(|grouping| grouping.name).collect();
    assert_eq!(names.len(), groups.len(), "{names:?}");
}

#[test]
fn ceph_is_shown_by_its_domains() {
    let state = json!({
        "cluster": "rook", "disruptions": "Closed", "exemptDomain": "b", "since": "2026-01-01T10:20:00Z", "reason": "DomainDown",
        "failureDomainType": "rack", "isClean": false, "downOsds": { "b": [2, 3], "": [9] },
        "nodes": { "node-1": ["a"], "node-2": ["b"] }, "noout": { "node-2": "2026-01-01T10:20:01Z" },
    });
    let map = json!({ "metadata": { "namespace": "rook-ceph", "name": "nodeward-ceph-pdb" }, "data": { "state": state.to_string() } });
    let broken = json!({ "metadata": { "namespace": "other", "name": "nodeward-ceph-pdb" } });
    let inputs = Inputs {
        ceph: [map, broken]
            .map(|map| CephCluster::of(&serde_json::from_value(map).unwrap()).unwrap())
            .to_vec(),
        ..Inputs::default()
    };
    let fleet = Fleet::of(&inputs, &mut Quiet::default(), Source::default(), &commands(), now());
    insta::assert_snapshot!(serde_json::to_string_pretty(&fleet.ceph_clusters).unwrap());
}

/// The ledger knows of all namespaces; one who asked for one sees no other's budgets.
#[test]
fn namespace_hides_budgets_of_others() {
    let claim = json!({
        "ticket": 1, "node": "n1", "nodeUID": "n1", "state": "Confirmed", "since": "2026-01-01T10:00:00Z",
        "queuedAt": "2026-01-01T10:00:00Z", "holds": ["0/db-0/u0", "1/web-0/u1"],
    });
    let budget = |namespace: &str, name: &str| json!({ "namespace": namespace, "name": name, "uid": name });
    let stored =
        json!({ "nextTicket": 2, "budgets": [budget("shop", "db"), budget("other", "web")], "claims": [claim] });
    let stored: DrainLedgerSpec = serde_json::from_value(stored).unwrap();
    let mut inputs = Inputs {
        ledger: Some(Arc::new(Ledger::try_from(&stored).map(Arc::new))),
        ..Inputs::default()
    };
    let shown = |inputs: &Inputs| -> Vec<String> {
        let fleet = Fleet::of(inputs, &mut Quiet::default(), Source::default(), &commands(), now());
        fleet.budgets.keys().cloned().collect()
    };
    assert_eq!(shown(&inputs), ["other/web", "shop/db"]);
    inputs.namespace = Some("shop".to_owned());
    assert_eq!(shown(&inputs), ["shop/db"]);
}

#[test]
fn recovering_drain_says_since_when() {
    let claim = |state: &str| {
        json!({
            "ticket": 1, "node": "n1", "nodeUID": "n1", "state": state, "since": "2026-01-01T10:20:00Z",
            "queuedAt": "2026-01-01T10:00:00Z",
        })
    };
    for (state, since) in [("Returning", json!("2026-01-01T10:20:00Z")), ("Confirmed", Value::Null)] {
        let stored: DrainLedgerSpec =
            serde_json::from_value(json!({ "nextTicket": 2, "budgets": [], "claims": [claim(state)] })).unwrap();
        let inputs = Inputs {
            drains: one("n1", Some(drain("n1", json!({ "phase": "Recovering" })))),
            ledger: Some(Arc::new(Ledger::try_from(&stored).map(Arc::new))),
            ..Inputs::default()
        };
        let fleet = Fleet::of(&inputs, &mut Quiet::default(), Source::default(), &commands(), now());
        assert_eq!(
            serde_json::to_value(&*fleet.drains["n1"]).unwrap()["recoveringSince"],
            since
        );
    }
}

/// A fleet made from what was made before is the fleet made from nothing.
#[test]
fn quiet_nodes_are_made_once_and_told_alike() {
    let calm = node("n1", json!({}));
    let checks = || vec![check(json!({}))];
    let steps = [
        Inputs {
            nodes: one("n1", StoredNode::of(&calm)),
            ..Inputs::default()
        },
        Inputs {
            nodes: one("n1", StoredNode::of(&calm)),
            checks: checks(),
            ..Inputs::default()
        },
        Inputs {
            nodes: one("n1", StoredNode::of(&node("n1", not_ready("2026-01-01T10:27:00Z")))),
            checks: checks(),
            ..Inputs::default()
        },
        Inputs {
            nodes: one("n1", StoredNode::of(&calm)),
            drains: one("n1", Some(drain("n1", json!({ "phase": "Drained" })))),
            ..Inputs::default()
        },
        Inputs {
            nodes: one("n1", StoredNode::of(&node("n1", cordoned()))),
            ..Inputs::default()
        },
        Inputs::default(),
    ];
    let mut quiet = Quiet::default();
    let made = |inputs: &Inputs, quiet: &mut Quiet| Fleet::of(inputs, quiet, Source::default(), &commands(), now());
    for inputs in &steps {
        let told = |fleet: &Fleet| serde_json::to_value(fleet).unwrap();
        assert_eq!(
            told(&made(inputs, &mut quiet)),
            told(&made(inputs, &mut Quiet::default()))
        );
        // Twice the same: also what is told of a node that a check has something against.
        assert_eq!(
            told(&made(inputs, &mut quiet)),
            told(&made(inputs, &mut Quiet::default()))
        );
    }
    let (first, second) = (made(&steps[1], &mut quiet), made(&steps[1], &mut quiet));
    assert!(Arc::ptr_eq(&first.nodes["n1"], &second.nodes["n1"]));
    // The status names it now, though the node is the same.
    let named = Inputs {
        checks: vec![check(remediated())],
        ..steps[1].clone()
    };
    assert_eq!(
        made(&named, &mut quiet).nodes["n1"].answer.state,
        NodeState::Remediating
    );
}

#[test]
fn paused_component_says_so() {
    let namespaced = |name: &str, more: Value| {
        let mut object = json!({ "metadata": { "name": name, "namespace": "nodeward-system" } });
        merge(&mut object, more);
        object
    };
    let lease = json!({ "spec": { "holderIdentity": "a", "renewTime": "2026-01-01T10:29:59.000000Z", "leaseDurationSeconds": 15 } });
    let pause = json!({ "data": { "drain-lock": "storage incident" } });
    let inputs = Inputs {
        components: ComponentObjects {
            leases: vec![serde_json::from_value(namespaced("drain-lock", lease)).unwrap()],
            pauses: vec![serde_json::from_value(namespaced("nodeward-pause", pause)).unwrap()],
            ..ComponentObjects::default()
        },
        ..Inputs::default()
    };
    let fleet = Fleet::of(&inputs, &mut Quiet::default(), Source::default(), &commands(), now());
    let text = fleet.components[0].text();
    assert!(text.contains("paused") && text.contains("storage incident"), "{text}");
}
