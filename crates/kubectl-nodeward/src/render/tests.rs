//! Every page as it looks at 80 and at 120 columns, and where there is no limit: what a line of a table or a paragraph may
//! not do is be wider than the terminal.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rstest::rstest;
use serde_json::{Value, json};

use super::{locks, plan, status, why};
use crate::failure::MissingRight;
use crate::text::line::Ink;
use crate::text::page::Page;
use crate::view::drain::Drain;
use crate::view::locks::{BudgetLocks, BudgetNumbers, Held, Locks, OwnerHold, Waiting};
use crate::view::node::NodeGlance;
use crate::view::plan::Plan;
use crate::view::status::{Component, ComponentState, LockCounts, NodeCounts, Status};
use crate::view::unread::Unread;
use crate::view::why::{KeptBy, PodObstacle, PodsOnNode, Why};

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
            "pods": { "total": 8, "gone": 5, "evicting": 1, "retained": 1, "waiting": 1 },
            "blockedBy": [
                { "reason": "WaitsForUnits", "pdb": "shop/database", "node": LONG, "message": "" },
                { "reason": "OwnerHold", "pdb": "shop/web", "message": "migration of the orders table, until 12:00" },
            ],
        }),
    )
}

fn holding_drain() -> Drain {
    drain(
        LONG,
        &json!({
            "phase": "Draining", "ticket": 3, "startedAt": "2026-01-01T10:15:00Z", "grantedAt": "2026-01-01T10:20:00Z",
            "deadline": "2026-01-01T10:50:00Z",
            "pods": { "total": 12, "gone": 3, "evicting": 2, "retained": 0, "waiting": 7 },
            "holds": [{ "pdb": { "namespace": "shop", "name": "database", "uid": "u" }, "units": 1, "pods": ["shop/database-0"] }],
        }),
    )
}

fn blocked_node(name: &str) -> NodeGlance {
    let message = "12 pods keep the drain from ending: shop/web-0 is covered by a budget without room (PDB shop/web); next: \
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
    NodeGlance::of(&serde_json::from_value(node).unwrap())
}

fn budgets() -> Vec<BudgetLocks> {
    let held = |node: &str, pods: &[&str], retained: &[&str]| Held {
        node: node.to_owned(),
        ticket: 3,
        state: nodeward_api::drain_ledger::ClaimState::Confirmed,
        units: pods.len(),
        pods: pods.iter().map(|&pod| pod.to_owned()).collect(),
        retained: retained.iter().map(|&pod| pod.to_owned()).collect(),
        since: at("2026-01-01T10:20:00Z"),
    };
    let waiting = |node: &str, ticket| Waiting {
        node: node.to_owned(),
        ticket,
        units: 1,
        since: at("2026-01-01T10:16:00Z"),
    };
    let hold = |name: Option<&str>, reason: &str| OwnerHold {
        name: name.map(str::to_owned),
        pdb: "shop/web".to_owned(),
        units: None,
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
        to_act: false,
    }
}

fn component(name: &str, state: ComponentState) -> Component {
    Component {
        name: name.to_owned(),
        state,
        version: Some("0.1.0".to_owned()),
        namespace: "nodeward-system".to_owned(),
        ready: Some(2),
        replicas: Some(2),
        leader: (state == ComponentState::Leading).then(|| "nodeward-drain-lock-7d9c5b8f6d-x2x5z".to_owned()),
        renewed: Some(at("2026-01-01T10:26:00Z")),
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
        locks: Some(LockCounts {
            held: 1,
            waited_for: 2,
            owner_held: 1,
        }),
        unread: vec![],
    }
}

fn busy_why() -> Why {
    Why {
        node: Some(blocked_node("node-1")),
        drain: Some(waiting_drain()),
        ahead: Some(2),
        holders: vec![holding_drain()],
        budgets: budgets(),
        pods: Some(PodsOnNode {
            ignored: 4,
            to_leave: 8,
            terminating: 1,
            obstacles: vec![PodObstacle {
                pod: "shop/web-0".to_owned(),
                pdbs: vec!["shop/web".to_owned()],
                kept_by: KeptBy::BudgetExhausted,
            }],
        }),
        unread: vec![],
    }
}

fn bare_why() -> Why {
    Why {
        node: None,
        drain: None,
        ahead: None,
        holders: vec![],
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

fn busy_plan() -> Plan {
    let pod = |name: &str, pdbs: &[&str], reason: &str, message: Option<&str>| json!({ "pod": name, "pdbs": pdbs, "reason": reason, "message": message });
    Plan {
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
            "ignored": 4,
            "problems": [
                { "reason": "MisconfiguredPDB", "pdb": "shop/singleton", "pod": "shop/singleton-0", "message": "one replica, and minAvailable is 1" },
                { "reason": "TolerationTooShort", "pod": "shop/cache-0", "message": "it tolerates 300s of node.kubernetes.io/unreachable, and 900s are expected" },
            ],
            "omitted": 3,
        }))
        .unwrap(),
    }
}

fn pages() -> Vec<(&'static str, Page)> {
    let locks_view = Locks {
        budgets: budgets(),
        unplanned: vec![Waiting {
            node: "node-3".to_owned(),
            ticket: 13,
            units: 0,
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
    let empty_plan = Plan {
        node: "node-1".to_owned(),
        dry_run: false,
        phase: Some(nodeward_api::node_drain::Phase::Drained),
        blocked_by: Vec::new(),
        plan: nodeward_api::node_drain::DrainPlan::default(),
    };
    vec![
        ("status", status::page(&busy_status(), now())),
        ("status_bare", status::page(&bare_status, now())),
        ("status_idle", status::page(&Status::default(), now())),
        ("why", why::page("node-1", &busy_why(), now())),
        ("why_bare", why::page("node-1", &bare_why(), now())),
        ("plan", plan::page(&busy_plan())),
        ("plan_empty", plan::page(&empty_plan)),
        ("locks", locks::page(&locks_view, now())),
        ("locks_empty", locks::page(&Locks::default(), now())),
    ]
}

#[rstest]
#[case(80)]
#[case(120)]
fn every_page_fits_its_terminal(#[case] width: usize) {
    for (name, page) in pages() {
        for line in page.lines(Some(width)) {
            assert!(line.width() <= width, "{name}: {}", line.paint(Ink::Plain));
        }
        insta::assert_snapshot!(format!("{name}_{width}"), page.print(Some(width), Ink::Plain));
    }
}

#[rstest]
#[case(20)]
#[case(40)]
#[case(79)]
fn no_page_is_ever_wider_than_its_terminal(#[case] width: usize) {
    for (name, page) in pages() {
        for line in page.lines(Some(width)) {
            assert!(line.width() <= width, "{name}: {}", line.paint(Ink::Plain));
        }
    }
}

#[test]
fn whatever_the_width_no_letter_is_lost() {
    // Tables put their cells side by side, so their letters come in another order; records repeat the titles.
    let letters = |page: &Page, width| {
        let mut count = BTreeMap::<char, usize>::new();
        for letter in page
            .print(width, Ink::Plain)
            .chars()
            .filter(|letter| !letter.is_whitespace())
        {
            *count.entry(letter).or_default() += 1;
        }
        count
    };
    for (name, page) in pages() {
        let all = letters(&page, None);
        for width in [20, 40, 80] {
            let shown = letters(&page, Some(width));
            let lost = all
                .iter()
                .find(|(letter, count)| shown.get(letter).is_none_or(|shown| shown < count));
            assert_eq!(lost, None, "{name} at {width}");
        }
    }
}

#[test]
fn colours_change_no_text() {
    for (name, page) in pages() {
        let coloured = page.print(Some(80), Ink::Coloured);
        assert_eq!(
            console::strip_ansi_codes(&coloured),
            page.print(Some(80), Ink::Plain),
            "{name}"
        );
    }
}

/// What scripts read: a change here is a change for them.
#[test]
fn the_structures_are_stable() {
    insta::assert_snapshot!("json_status", pretty(&busy_status()));
    insta::assert_snapshot!("json_why", pretty(&busy_why()));
    insta::assert_snapshot!("json_why_bare", pretty(&bare_why()));
    insta::assert_snapshot!("json_plan", pretty(&busy_plan()));
    insta::assert_snapshot!(
        "json_locks",
        pretty(&Locks {
            budgets: budgets(),
            ..Locks::default()
        })
    );
}

fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap()
}
