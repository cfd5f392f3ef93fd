//! Every page at 80 and 120 columns. No line of a table or a paragraph is wider than the terminal.

use std::collections::{BTreeMap, BTreeSet};

use clap::Parser;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use nodeward_api::node_drain::{Fallback, HeldBudget, Phase};
use nodeward_api::reason::BlockerReason;
use nodeward_api::{NodeDrain, NodeHealthCheck};
use rstest::rstest;
use serde_json::{Value, json};
use textwrap::core::display_width;

use super::Exit;
use super::locks::Locks;
use super::plan::NodePlan;
use super::printed::PrintedCommands;
use super::status::{Cause, LockCounts, NodeCounts, Status};
use super::uninstall::UninstallCheck;
use super::why::Why;
use super::why::answers::{Explained, WhyAnswer};
use super::why::budget::{Override, WhyBudget};
use super::why::pod::WhyPod;
use super::why::pods::{KeptBy, PodObstacle, PodsOnNode};
use super::why::rollout::Rollout;
use crate::args::CommandLine;
use crate::describe::{overdue, requeue};
use crate::failure::MissingRight;
use crate::model::Unread;
use crate::model::answer::NodeState;
use crate::model::budget_health::{BudgetHealth, UnhealthyPod};
use crate::model::ceph::{CephCluster, NodeCeph};
use crate::model::component::{Component, ComponentState};
use crate::model::drain::{Drain, Durations};
use crate::model::events::Act;
use crate::model::health::{HealthCheck, HealthSources, KeptRemediation, NodeHealth, of_node};
use crate::model::leftover::Leftovers;
use crate::model::locks::{BudgetLocks, BudgetNumbers, Held, NodeAway, NodeGroups, OwnerHold, Waiting, WaitsForGroup};
use crate::model::node::NodeSummary;
use crate::screen::document;
use crate::text::page::Page;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    at("2026-01-01T10:30:00Z")
}

/// Names as clouds give them.
const LONG: &str = "ip-10-0-171-23.eu-central-1.compute.internal";

fn drain(node: &str, status: &Value) -> Drain {
    let drain = json!({
        "apiVersion": "nodeward.dev/v1alpha1",
        "kind": "NodeDrain",
        "metadata": { "name": node, "creationTimestamp": "2026-01-01T10:16:00Z" },
        "spec": {
            "nodeName": node,
            "requesters": [{ "name": "kubectl-nodeward:alice@example.com" }],
            "purpose": "kernel 6.12",
        },
        "status": status,
    });
    Drain::of(&serde_json::from_value(drain).unwrap())
}

fn waiting_drain() -> Drain {
    drain(
        "node-1",
        &json!({
            "phase": "Queued", "ticket": 4, "startedAt": "2026-01-01T10:16:02Z", "deadline": "2026-01-01T10:46:00Z",
            "leavesOutAt": "2026-01-01T10:34:00Z",
            "pods": { "total": 8, "gone": 5, "evicting": 1, "retained": 1, "waiting": 1 },
            "blockedBy": [
                {
                    "reason": "WaitsForDisruptions", "pdb": "shop/database", "node": LONG,
                    "message": format!("shop/database waits for disruptions of a budget that another drain holds (1 needed, 0 free): node {LONG}"),
                },
                { "reason": "OwnerHold", "pdb": "shop/web", "message": "shop/web waits for a budget that its owner holds" },
                { "reason": "BudgetUnhealthy", "pdb": "shop/cache", "message": "shop/cache waits for a budget whose pods are not healthy (1 needed, 0 free)" },
                { "reason": "UnknownOptOut", "pod": "shop/job-0", "message": "pod shop/job-0 has an unknown nodeward.dev/drain value and is waited for" },
            ],
        }),
    )
}

#[rstest]
#[case::waits_for_its_turn(
    Phase::Queued,
    false,
    Fallback::ReleaseAndRequeue,
    60,
    "it is reported as overdue from 10:31:00Z"
)]
#[case::drains(
    Phase::Draining,
    true,
    Fallback::ReleaseAndRequeue,
    60,
    "drain-lock releases what it can and queues it again at 10:31:00Z"
)]
#[case::has_no_grant(
    Phase::Draining,
    false,
    Fallback::ReleaseAndRequeue,
    60,
    "it is reported as overdue from"
)]
#[case::waits_on(Phase::Draining, true, Fallback::Wait, 60, "it is reported as overdue from")]
#[case::has_passed(Phase::Drained, true, Fallback::Wait, -60, "it is overdue since 10:29:00Z")]
fn deadline_says_what_follows(
    #[case] phase: Phase,
    #[case] granted: bool,
    #[case] fallback: Fallback,
    #[case] seconds: i64,
    #[case] said: &str,
) {
    let drain = Drain {
        phase: Some(phase),
        granted,
        fallback,
        deadline: Some(now() + jiff::SignedDuration::from_secs(seconds)),
        ..waiting_drain()
    };
    let text = requeue(&drain, now()).or_else(|| overdue(&drain, now())).unwrap();
    assert!(text.contains(said), "{text}");
}

fn holding_drain() -> Drain {
    drain(
        LONG,
        &json!({
            "phase": "Draining", "ticket": 3, "startedAt": "2026-01-01T10:15:00Z", "grantedAt": "2026-01-01T10:20:00Z",
            "deadline": "2026-01-01T10:50:00Z",
            "pods": { "total": 12, "gone": 3, "evicting": 2, "retained": 0, "waiting": 7 },
            "holds": [{ "pdb": { "namespace": "shop", "name": "database", "uid": "u" }, "disruptions": 1, "pods": ["shop/database-0"] }],
        }),
    )
}

fn blocked_node(name: &str) -> NodeSummary {
    let message = "12 pods keep the drain from ending: shop/web-0 is covered by a budget that allows no disruption (PDB shop/web); next: \
                   PdbDelete at 2026-01-01T10:45:00Z: evict it, or delete it if the budget refuses | shop/stuck-6c9f is kept by \
                   finalizers beyond its grace period (finalizers example.com/backup; grace until 2026-01-01T10:20:00Z); next: \
                   Finalizer at 2026-01-01T10:50:00Z: remove its finalizers | and 10 more";
    let node = json!({
        "metadata": { "name": name, "annotations": {
            "nodeward.dev/drain-clock": r#"{"start":"2026-01-01T10:00:00Z","from":"Taint","bootID":"b"}"#,
        } },
        "spec": {
            "unschedulable": true,
            "taints": [{ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-01-01T10:00:00Z" }],
        },
        "status": { "conditions": [
            { "type": "Ready", "status": "True" },
            {
                "type": "nodeward.dev/DrainBlocked", "status": "True", "reason": "BudgetExhausted", "message": message,
                "lastTransitionTime": "2026-01-01T10:10:00Z",
            },
        ] },
    });
    NodeSummary::of(&serde_json::from_value(node).unwrap())
}

fn budgets() -> Vec<BudgetLocks> {
    let held = |node: &str, pods: &[&str], retained: &[&str]| Held {
        node: node.to_owned(),
        ticket: 3,
        state: nodeward_core::ledger::ClaimState::Confirmed,
        disruptions: pods.len(),
        pods: pods.iter().map(|&pod| pod.to_owned()).collect(),
        retained: retained.iter().map(|&pod| pod.to_owned()).collect(),
        since: at("2026-01-01T10:20:00Z"),
    };
    let waiting = |node: &str, ticket| Waiting {
        node: node.to_owned(),
        ticket,
        disruptions: 1,
        since: at("2026-01-01T10:16:00Z"),
    };
    let hold = |name: Option<&str>, reason: &str| OwnerHold {
        name: name.map(str::to_owned),
        pdb: "shop/web".to_owned(),
        disruptions: None,
        reason: reason.to_owned(),
        until: name.map(|_| at("2026-01-01T12:00:00Z")),
        phase: None,
    };
    vec![
        BudgetLocks {
            pdb: "shop/database".to_owned(),
            status: Some(BudgetNumbers {
                disruptions_allowed: 1,
                current_healthy: 3,
                desired_healthy: 2,
                expected_pods: 3,
            }),
            held: vec![held(LONG, &["shop/database-0"], &["shop/database-0"])],
            waiting: vec![waiting("node-1", 4), waiting("node-2", 12)],
            owner_holds: vec![],
        },
        BudgetLocks {
            pdb: "shop/web".to_owned(),
            status: None,
            held: vec![],
            waiting: vec![waiting("node-1", 4)],
            owner_holds: vec![
                hold(Some("web-7x2kq"), "migration of the orders table"),
                hold(None, "audit"),
            ],
        },
    ]
}

fn missing(resource: &str) -> MissingRight {
    MissingRight {
        user: "system:serviceaccount:ops:viewer".to_owned(),
        verb: "list".to_owned(),
        resource: resource.to_owned(),
        group: String::new(),
        namespace: None,
        changes: false,
    }
}

fn component(name: &str, state: ComponentState) -> Component {
    Component {
        name: name.to_owned(),
        state,
        version: Some("0.1.0".to_owned()),
        namespace: "nodeward-system".to_owned(),
        deployment: None,
        runs_elsewhere: false,
        ready: Some(2),
        replicas: Some(2),
        leader: (state == ComponentState::Leading).then(|| "nodeward-drain-lock-7d9c5b8f6d-x2x5z".to_owned()),
        renewed: Some(at("2026-01-01T10:26:00Z")),
        planned: None,
        paused: None,
    }
}

fn busy_status() -> Status {
    Status {
        components: vec![
            component("drain-keeper", ComponentState::NotLeading),
            component("drain-lock", ComponentState::Leading),
        ],
        nodes: Some(NodeCounts {
            total: 42,
            cordoned: 3,
            not_ready: 1,
        }),
        needs_person: vec![Cause {
            why: "it is not Ready, and no NodeHealthCheck counts that against it".to_owned(),
            state: NodeState::NotReady,
            since: None,
            nodes: ["node-3", "node-4", "node-5", "node-6"].map(str::to_owned).to_vec(),
        }],
        drains: vec![
            holding_drain(),
            waiting_drain(),
            drain(
                "node-2",
                &json!({ "phase": "Drained", "ticket": 2, "drainedAt": "2026-01-01T10:00:00Z" }),
            ),
            drain("node-9", &Value::Null),
        ],
        timed: vec![blocked_node(LONG)],
        health_checks: health_checks().iter().map(HealthCheck::of).collect(),
        ceph_clusters: ceph_clusters(),
        locks: Some(LockCounts {
            held: 1,
            waited_for: 2,
            owner_held: 1,
        }),
        bypassed: Some(2),
        unread: vec![],
    }
}

fn unhealthy_counts() -> BudgetHealth {
    BudgetHealth {
        pdb: "shop/cache".to_owned(),
        healthy: 2,
        unhealthy: vec![UnhealthyPod {
            pod: "shop/cache-2".to_owned(),
            node: None,
            cause: "is Pending: it fits only node-7, which is cordoned".to_owned(),
        }],
        not_true: vec![
            "it counts cache-1 as evicted until 10:31:00Z (in 1m), although its successor is here".to_owned(),
        ],
    }
}

fn answered(target: Explained) -> WhyAnswer {
    let next = target.next(&commands(), now());
    WhyAnswer { target, next }
}

fn busy_why() -> Why {
    let why = Why {
        name: "node-1".to_owned(),
        answer: None,
        components: vec![
            component("drain-keeper", ComponentState::NotLeading),
            component("drain-lock", ComponentState::Leading),
        ],
        counts: vec![unhealthy_counts()],
        done: vec![Act {
            at: Some(at("2026-01-01T10:25:00Z")),
            pod: "shop/web-1".to_owned(),
            reason: "BudgetOverridden".to_owned(),
            note: "PdbDelete: deleted with its own grace although its budget refused its eviction (node node-1)"
                .to_owned(),
        }],
        node: Some(blocked_node("node-1")),
        drain: Some(waiting_drain()),
        health: Some(sick_health()),
        kept: vec![KeptRemediation {
            check: "workers".to_owned(),
            remediation: "SelfNodeRemediation medik8s/node-1".to_owned(),
            deleted: at("2026-01-01T10:20:00Z"),
            finalizers: vec!["self-node-remediation.medik8s.io/snr-finalizer".to_owned()],
        }],
        ceph: Some(node_ceph("node-1")),
        ahead: Some(2),
        durations: Some(Durations {
            median_seconds: 240,
            drains: 3,
        }),
        holders: vec![holding_drain()],
        closed: BTreeSet::new(),
        budgets: budgets(),
        pods: Some(PodsOnNode {
            is_asked_elsewhere: false,
            evicted: vec![],
            ignored: 4,
            to_leave: 8,
            terminating: 1,
            obstacles: vec![PodObstacle {
                pod: "shop/web-0".to_owned(),
                pdbs: vec!["shop/web".to_owned()],
                kept_by: Some(KeptBy::Budget(BlockerReason::BudgetExhausted)),
                answer: Some("Cannot evict pod as it would violate the pod's disruption budget.".to_owned()),
            }],
            asked: 7,
            not_asked: None,
        }),
        unread: vec![],
    };
    why.answered(at("2026-01-01T10:26:00Z"))
}

fn health_checks() -> Vec<NodeHealthCheck> {
    let template =
        |kind: &str| json!({ "apiVersion": "a/v1", "kind": kind, "namespace": "medik8s", "name": "default" });
    let remediation = json!({
        "resource": { "apiVersion": "a/v1", "kind": "SelfNodeRemediation", "namespace": "medik8s", "name": "node-1", "uid": "u" },
        "started": "2026-01-01T10:25:00Z",
    });
    let check = |name: &str, spec: Value, status: Value| json!({ "metadata": { "name": name }, "spec": spec, "status": status });
    let chain = json!([
        { "remediationTemplate": template("SelfNodeRemediationTemplate"), "order": 1, "timeout": "10m" },
        { "remediationTemplate": template("FenceAgentsRemediationTemplate"), "order": 2, "timeout": "5m" },
    ]);
    [
        check(
            "control-plane",
            json!({
                "selector": { "matchLabels": { "role": "control-plane" } }, "dryRun": true, "pauseRequests": ["upgrade to 4.20"],
                "remediationTemplate": template("SelfNodeRemediationTemplate"),
            }),
            json!({
                "phase": "Paused", "healthyNodes": 3, "observedNodes": 3, "reason": "paused: upgrade to 4.20",
            }),
        ),
        check("new", json!({ "selector": { "matchLabels": { "role": "new" } } }), Value::Null),
        check(
            "workers",
            json!({ "selector": {}, "escalatingRemediations": chain }),
            json!({
                "phase": "Remediating", "healthyNodes": 40, "observedNodes": 42, "reason": "",
                "unhealthyNodes": [
                    { "name": "node-1", "remediations": [remediation] },
                    { "name": LONG, "stoppedBy": { "reason": "ConcurrencyLimitReached", "message": "1 of 1: node-1" } },
                ],
            }),
        ),
    ]
    .map(|check| serde_json::from_value(check).unwrap())
    .into()
}

/// A node on whose first step the second one follows, unless the exclusion label stops it.
fn sick_health() -> Vec<NodeHealth> {
    let node = json!({
        "metadata": { "name": "node-1", "labels": { "remediation.medik8s.io/exclude-from-remediation": "true" } },
        "status": { "conditions": [
            { "type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T10:20:00Z" },
        ] },
    });
    let node = serde_json::from_value(node).unwrap();
    let sources = HealthSources {
        checks: &health_checks(),
        node: Some(&node),
        ..HealthSources::default()
    };
    let mut health = of_node("node-1", &sources, now());
    let remediation = json!({
        "metadata": {},
        "status": { "conditions": [{
            "type": "Processing", "status": "True", "reason": "RemediationStarted", "message": "waits for the watchdog",
            "lastTransitionTime": "2026-01-01T10:25:01Z",
        }] },
    });
    let remediation = serde_json::from_value(remediation).unwrap();
    for step in health.iter_mut().filter_map(|health| health.step.as_mut()) {
        step.take_conditions(Some(&remediation));
    }
    health
}

/// One around a drained rack, one with two domains down that Ceph does not answer for, and those that wait for nothing.
fn ceph_clusters() -> Vec<CephCluster> {
    let cluster = |namespace: &str, state: &str| {
        let metadata = json!({ "namespace": namespace, "name": "nodeward-ceph-pdb" });
        let map = json!({ "metadata": metadata, "data": { "state": state } });
        CephCluster::of(&serde_json::from_value(map).unwrap()).unwrap()
    };
    let drained = json!({
        "cluster": "rook", "disruptions": "Closed", "exemptDomain": "b", "since": "2026-01-01T10:20:00Z", "reason": "DomainDown",
        "failureDomainType": "rack", "isClean": false, "statisticsFreshSince": "2026-01-01T10:21:00Z",
        "downOsds": { "b": [2, 3] }, "noout": { "node-2": "2026-01-01T10:20:01Z" },
        "nodes": { "node-1": ["a"], "node-2": ["b"], LONG: ["b"] },
        "conditions": [{ "type": "UnsurvivablePools", "message": ".mgr (size 1, min_size 1)", "since": "2025-12-31T10:00:00Z" }],
    });
    let failed = json!({
        "cluster": "fast", "disruptions": "Closed", "since": "2026-01-01T10:29:00Z", "reason": "SecondDomainDown",
        "failureDomainType": "host", "downOsds": { "": [9], "node-1": [0], "node-2": [1, 4, 5] },
        "nodes": { "node-1": ["node-1"], "node-2": ["node-2"] },
        "conditions": [
            { "type": "CephUnavailable", "message": "Unreachable: no monitor answers", "since": "2026-01-01T10:29:30Z" },
            { "type": "CannotHeal", "message": "without osd.0: flag norecover", "since": "2026-01-01T10:29:30Z" },
        ],
    });
    let open = json!({
        "cluster": "rook", "disruptions": "Open", "since": "2025-12-30T10:00:00Z", "reason": "AllClean", "failureDomainType": "host",
        "isClean": true, "statisticsFreshSince": "2025-12-30T10:00:00Z", "nodes": { "node-1": ["node-1"] },
    });
    let unmanaged = json!({
        "cluster": "rook", "disruptions": "Unmanaged", "since": "2026-01-01T09:00:00Z", "reason": "ManagedByRook",
        "failureDomainType": "rack", "isClean": false, "statisticsFreshSince": "2026-01-01T10:29:00Z", "downOsds": { "b": [2] },
        "preview": { "isClosed": true, "exempt": "rack b", "reason": "DomainDown" },
    });
    vec![
        cluster("ceph-broken", "{"),
        cluster("ceph-fast", &failed.to_string()),
        cluster("ceph-open", &open.to_string()),
        cluster("ceph-unmanaged", &unmanaged.to_string()),
        cluster("rook-ceph", &drained.to_string()),
    ]
}

fn node_ceph(node: &str) -> Vec<NodeCeph> {
    let osds = ["ceph-broken", "ceph-unmanaged", "ceph-open", "rook-ceph"].map(|namespace| {
        let labels = json!({ "app": "rook-ceph-osd", "ceph-osd-id": "7" });
        let metadata = json!({ "namespace": namespace, "name": "p", "labels": labels });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    });
    NodeCeph::of_node(node, ceph_clusters(), &osds)
}

/// A node that only Ceph keeps, and that is of the exempt domain.
fn exempt_why() -> Why {
    Why {
        name: LONG.to_owned(),
        ceph: Some(node_ceph(LONG)),
        unread: vec![],
        ..bare_why()
    }
}

/// A node that is cordoned and left alone, and whose pods the caller may not evict.
/// All that its drain waited for is over.
fn outdated_why() -> Why {
    let mut drain = waiting_drain();
    drain.outdated = drain.blocked_by.split_off(2);
    drain.blocked_by.clear();
    let why = Why {
        drain: Some(drain),
        ..parked_why()
    };
    why.answered(at("2026-01-01T10:26:00Z"))
}

fn parked_why() -> Why {
    let node = json!({
        "metadata": { "name": "node-1" },
        "spec": { "unschedulable": true },
        "status": { "conditions": [
            { "type": "Ready", "status": "True" },
            {
                "type": "nodeward.dev/DrainBlocked", "status": "False", "reason": "NotDraining",
                "message": "drain-keeper does not act: the node is cordoned, but nothing marks it as being drained (no NodeDrain); \
                            to do: set countsAsDrain in drain-keeper's configuration if your drainer leaves another mark",
                "lastTransitionTime": "2026-01-01T10:10:00Z",
            },
        ] },
    });
    let why = Why {
        node: Some(NodeSummary::of(&serde_json::from_value(node).unwrap())),
        components: vec![component("drain-keeper", ComponentState::Leading)],
        pods: Some(PodsOnNode {
            to_leave: 2,
            not_asked: Some(MissingRight {
                verb: "create".to_owned(),
                group: "policy".to_owned(),
                namespace: Some("shop".to_owned()),
                ..missing("pods/eviction")
            }),
            ..PodsOnNode::default()
        }),
        unread: vec![],
        ..bare_why()
    };
    why.answered(at("2026-01-01T10:26:00Z"))
}

fn why_budget() -> WhyBudget {
    WhyBudget {
        locks: budgets().remove(0),
        counts: Some(unhealthy_counts()),
        never_overridden: Some(BlockerReason::BudgetNeverForced),
        last_override: Some(Override {
            at: at("2026-01-01T10:00:00Z"),
            pod: "shop/database-1".to_owned(),
        }),
        unread: vec![],
    }
}

/// A drain that holds nothing has nothing to release: the pods that it moved are not back yet.
#[rstest]
#[case::holds_disruptions(holding_drain().holds, "releases its disruptions")]
#[case::holds_none(vec![], "Ready elsewhere")]
fn next_step_behind_another_drain_tells_what_it_has(#[case] holds: Vec<HeldBudget>, #[case] told: &str) {
    let holder = Drain {
        holds,
        ..holding_drain()
    };
    let why = Why {
        drain: Some(waiting_drain()),
        holders: vec![holder],
        ..bare_why()
    };
    let next = answered(Explained::Node(Box::new(why))).next;
    assert!(next.iter().any(|step| step.text.contains(told)), "{next:?}");
}

/// The numbers alone tell a budget that never allows a disruption no different from one that Ceph's operator has closed.
#[rstest]
#[case::of_anybody(None, "[BudgetNeverAllows]")]
#[case::of_ceph(Some(BlockerReason::CephBudget), "[CephBudget]")]
fn next_step_for_a_budget_that_allows_nothing(#[case] never_overridden: Option<BlockerReason>, #[case] named: &str) {
    let status = BudgetNumbers {
        disruptions_allowed: 0,
        current_healthy: 1,
        desired_healthy: 1,
        expected_pods: 1,
    };
    let why = WhyBudget {
        locks: BudgetLocks {
            status: Some(status),
            ..BudgetLocks::default()
        },
        counts: Some(BudgetHealth {
            unhealthy: vec![],
            not_true: vec![],
            ..unhealthy_counts()
        }),
        never_overridden,
        last_override: None,
        unread: vec![],
    };
    let mut page = Page::new(120);
    answered(Explained::Budget(Box::new(why))).print(&mut page, &commands(), now());
    let text = page.print(false);
    let (_, next) = text.split_once("next").unwrap();
    assert!(next.contains(named), "{next}");
}

fn why_pod() -> WhyPod {
    WhyPod {
        pod: "shop/web-0".to_owned(),
        state: "Running, Ready".to_owned(),
        node: Some(blocked_node("node-1")),
        controller: Some("ReplicaSet web-6c9f".to_owned()),
        kept_by: Some(KeptBy::Budget(BlockerReason::BudgetExhausted)),
        eviction:
            "the API server would refuse it now: Cannot evict pod as it would violate the pod's disruption budget."
                .to_owned(),
        would_be_evicted: Some(false),
        rollout: None,
        drain: Some(waiting_drain()),
        planned: Some(
            "down until its node is back, so it needs a disruption: it fits no other node [Pinned]".to_owned(),
        ),
        blocked_by: waiting_drain().blocked_by[1..2].to_vec(),
        drain_keeper: Some("it is covered by a budget that allows no disruption (PDB shop/web)".to_owned()),
        budgets: budgets().split_off(1),
        counts: vec![],
        unread: vec![],
    }
}

#[rstest]
#[case::moves(
    Rollout::Moves("web".to_owned()),
    "kubectl --context lab rollout restart deployment/web -n shop"
)]
#[case::moves_not(
    Rollout::MovesNot("NotOneReplica: it has another number of replicas than one (3)".to_owned()),
    "rollout     would not move it: NotOneReplica: it has another number of replicas than one (3)"
)]
fn rollout_is_offered_where_it_helps(#[case] rollout: Rollout, #[case] expected: &str) {
    let rollout = Some(rollout);
    let why = WhyPod { rollout, ..why_pod() };
    let mut page = Page::new(120);
    answered(Explained::Pod(Box::new(why))).print(&mut page, &commands(), now());
    let text = page.print(false);
    assert!(text.contains(expected), "{text}");
    assert_eq!(
        text.matches("rollout restart").count(),
        usize::from(expected.contains("restart"))
    );
}

fn node_groups() -> NodeGroups {
    NodeGroups {
        away: vec![NodeAway {
            group: "control-plane".to_owned(),
            ticket: 3,
            node: LONG.to_owned(),
            since: at("2026-01-01T10:20:00Z"),
        }],
        waiting: vec![WaitsForGroup {
            node: "node-1".to_owned(),
            ticket: Some(4),
            since: Some(at("2026-01-01T10:28:00Z")),
            message: format!("node group control-plane allows 1 nodes away at once: {LONG}"),
        }],
    }
}

fn commands() -> PrintedCommands {
    let line = CommandLine::parse_from(["kubectl-nodeward", "--context", "lab", "status"]);
    PrintedCommands::new(&line.global, Some("kubectl-nodeward:alice@example.com".to_owned()))
}

fn bare_why() -> Why {
    Why {
        name: "node-1".to_owned(),
        answer: None,
        components: vec![],
        counts: vec![],
        done: vec![],
        node: None,
        drain: None,
        health: None,
        kept: vec![],
        ceph: None,
        ahead: None,
        durations: None,
        holders: vec![],
        closed: BTreeSet::new(),
        budgets: vec![],
        pods: None,
        unread: vec![
            Unread::Forbidden {
                what: "node",
                missing: missing("nodes"),
            },
            Unread::NotInstalled {
                what: "drains",
                component: "drain-lock",
            },
            Unread::Forbidden {
                what: "pods",
                missing: missing("pods"),
            },
        ],
    }
}

fn busy_plan() -> NodePlan {
    let pod = |name: &str, pdbs: &[&str], reason: &str, message: Option<&str>| json!({ "pod": name, "pdbs": pdbs, "reason": reason, "message": message });
    NodePlan {
        node: "node-1".to_owned(),
        dry_run: true,
        phase: None,
        blocked_by: waiting_drain().blocked_by,
        plan: serde_json::from_value(json!({
            "held": [
                pod("shop/database-0", &["shop/database"], "LocalVolume", None),
                pod("monitoring/prometheus-kube-prometheus-stack-prometheus-0", &["monitoring/prometheus-kube-prometheus-stack"], "NoRoom", Some("largest request: 16Gi of memory")),
            ],
            "movable": 5,
            "waitsFor": [pod("batch/report-28421-x7x2p", &[], "WaitCompleted", None)],
            "retained": [pod("shop/cache-0", &["shop/cache"], "OptedOut", None)],
            "leftOut": [pod("shop/room-2", &["shop/room"], "NoRoom", Some("largest request: 32Gi of memory"))],
            "ignored": 4,
            "problems": [
                { "reason": "BudgetNeverAllows", "pdb": "shop/singleton", "message": "budget shop/singleton can never allow a disruption: it demands 1 healthy pods of 1" },
                { "reason": "TolerationTooShort", "pod": "shop/cache-0", "message": "pod shop/cache-0 stays, but tolerates node.kubernetes.io/unreachable for 300 s only; the node is expected to be away for 900 s" },
            ],
            "omitted": 3,
        }))
        .unwrap(),
    }
}

fn uninstall() -> UninstallCheck {
    let node: Node = serde_json::from_value(json!({
        "metadata": { "name": LONG, "annotations": { "nodeward.dev/cordoned-by": "uid", "nodeward.dev/drain-clock": "{}" } },
        "spec": { "unschedulable": true },
    }))
    .unwrap();
    let drain = |name: &str| -> NodeDrain {
        let metadata = json!({ "name": name, "finalizers": ["nodeward.dev/drain-lock"] });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "nodeName": name } })).unwrap()
    };
    let mut found = Leftovers::default();
    found.add_drain(&drain(LONG));
    found.add_drain(&drain("node-1"));
    found.add_node(&node);
    for ceph in ceph_clusters() {
        found.add_ceph_cluster(&ceph);
    }
    let (blocks, stays) = found.sorted();
    UninstallCheck {
        components: vec![component("drain-lock", ComponentState::Leading)],
        blocks,
        stays,
        unread: vec![Unread::Forbidden {
            what: "certificates",
            missing: missing("secrets"),
        }],
    }
}

fn pages(width: usize) -> Vec<(&'static str, Page)> {
    let locks = Locks {
        budgets: budgets(),
        node_groups: node_groups(),
        unplanned: vec![Waiting {
            node: "node-3".to_owned(),
            ticket: 13,
            disruptions: 0,
            since: now(),
        }],
        unread: vec![],
    };
    let bare_status = Status {
        unread: vec![
            Unread::Forbidden {
                what: "components",
                missing: missing("deployments"),
            },
            Unread::NotInstalled {
                what: "drains",
                component: "drain-lock",
            },
            Unread::NotInstalled {
                what: "claims",
                component: "drain-lock",
            },
        ],
        ..Status::default()
    };
    let empty_plan = NodePlan {
        node: "node-1".to_owned(),
        dry_run: false,
        phase: Some(Phase::Drained),
        blocked_by: Vec::new(),
        plan: nodeward_api::node_drain::DrainPlan::default(),
    };
    let page = |print: &dyn Fn(&mut Page)| {
        let mut page = Page::new(width);
        print(&mut page);
        page
    };
    let node = |why: Why| answered(Explained::Node(Box::new(why)));
    vec![
        ("status", page(&|page| busy_status().print(page, now()))),
        ("status_bare", page(&|page| bare_status.print(page, now()))),
        ("status_idle", page(&|page| Status::default().print(page, now()))),
        ("why", page(&|page| node(busy_why()).print(page, &commands(), now()))),
        (
            "why_bare",
            page(&|page| node(bare_why()).print(page, &commands(), now())),
        ),
        (
            "why_budget",
            page(&|page| answered(Explained::Budget(Box::new(why_budget()))).print(page, &commands(), now())),
        ),
        (
            "why_ceph",
            page(&|page| node(exempt_why()).print(page, &commands(), now())),
        ),
        (
            "why_outdated",
            page(&|page| node(outdated_why()).print(page, &commands(), now())),
        ),
        (
            "why_parked",
            page(&|page| node(parked_why()).print(page, &commands(), now())),
        ),
        (
            "why_pod",
            page(&|page| answered(Explained::Pod(Box::new(why_pod()))).print(page, &commands(), now())),
        ),
        ("plan", page(&|page| busy_plan().print(page))),
        ("plan_empty", page(&|page| empty_plan.print(page))),
        ("locks", page(&|page| locks.print(page, now()))),
        ("uninstall", page(&|page| uninstall().print(page, &commands(), now()))),
        (
            "uninstall_idle",
            page(&|page| UninstallCheck::default().print(page, &commands(), now())),
        ),
        ("locks_empty", page(&|page| Locks::default().print(page, now()))),
    ]
}

#[rstest]
#[case(80)]
#[case(120)]
fn pages_keep_their_layout(#[case] width: usize) {
    for (name, page) in pages(width) {
        insta::assert_snapshot!(format!("{name}_{width}"), page.print(false));
        // Colours change no text.
        let colored = page.print(true);
        assert_eq!(console::strip_ansi_codes(&colored), page.print(false), "{name}");
    }
}

#[rstest]
#[case(20)]
#[case(40)]
#[case(79)]
#[case(80)]
#[case(120)]
fn pages_fit_their_terminal(#[case] width: usize) {
    for (name, page) in pages(width) {
        // A command is never broken.
        for line in page.lines().iter().filter(|line| !line.trim().starts_with("kubectl ")) {
            assert!(display_width(line) <= width, "{name}: {line}");
        }
    }
}

#[test]
fn no_width_loses_a_letter() {
    // Tables put their cells side by side, so their letters come in another order; records repeat the titles.
    let letters = |page: &Page| {
        let mut count = BTreeMap::<char, usize>::new();
        for letter in page.print(false).chars().filter(|letter| !letter.is_whitespace()) {
            *count.entry(letter).or_default() += 1;
        }
        count
    };
    let unlimited = pages(usize::MAX);
    for width in [20, 40, 80] {
        for ((name, all), (_, shown)) in unlimited.iter().zip(pages(width)) {
            let (all, shown) = (letters(all), letters(&shown));
            let lost = all
                .iter()
                .find(|(letter, count)| shown.get(letter).is_none_or(|shown| shown < count));
            assert_eq!(lost, None, "{name} at {width}");
        }
    }
}

/// Each has a line of its own, to be copied.
#[test]
fn printed_commands_are_valid_command_lines() {
    let mut commands = 0;
    for (name, page) in pages(80) {
        for line in page.lines().iter().map(|line| line.trim()) {
            if let Some(words) = line.strip_prefix("kubectl nodeward ") {
                let words = std::iter::once("kubectl-nodeward").chain(words.split_whitespace());
                let parsed = CommandLine::try_parse_from(words);
                assert!(parsed.is_ok(), "{name}: {line}: {parsed:?}");
                commands += 1;
            }
            // Nothing else begins so but what is to be copied.
            assert!(!line.ends_with("kubectl"), "{name}: {line}");
        }
    }
    assert!(commands >= 5, "{commands}");
}

/// Scripts read these.
#[test]
fn models_are_stable() {
    insta::assert_snapshot!("json_status", pretty(&busy_status()));
    let answer = |target: Explained| pretty(&answered(target));
    insta::assert_snapshot!("json_why", answer(Explained::Node(Box::new(busy_why()))));
    insta::assert_snapshot!("json_why_bare", answer(Explained::Node(Box::new(bare_why()))));
    insta::assert_snapshot!("json_why_budget", answer(Explained::Budget(Box::new(why_budget()))));
    insta::assert_snapshot!("json_why_pod", answer(Explained::Pod(Box::new(why_pod()))));
    insta::assert_snapshot!("json_uninstall", pretty(&uninstall()));
    insta::assert_snapshot!("json_plan", pretty(&busy_plan()));
    insta::assert_snapshot!(
        "json_locks",
        pretty(&Locks {
            budgets: budgets(),
            node_groups: node_groups(),
            ..Locks::default()
        })
    );
}

fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(&document(value).unwrap()).unwrap()
}

#[rstest]
#[case::nothing(UninstallCheck::default(), Exit::Done)]
#[case::something(uninstall(), Exit::Failed)]
#[case::nothing_that_can_be_seen(UninstallCheck { unread: uninstall().unread, ..UninstallCheck::default() }, Exit::CannotTell)]
#[case::what_is_not_installed_is_not_there(
    UninstallCheck {
        unread: vec![Unread::NotInstalled { what: "drains", component: "drain-lock" }],
        ..UninstallCheck::default()
    },
    Exit::Done
)]
fn exit_tells_whether_an_uninstall_would_block(#[case] check: UninstallCheck, #[case] exit: Exit) {
    assert_eq!(check.exit(), exit);
}
