use nodeward_api::drain_ledger::DrainLedgerSpec;
use serde_json::json;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    at("2026-01-01T10:30:00Z")
}

fn ledger() -> Ledger {
    let stored: DrainLedgerSpec = serde_json::from_value(json!({
        "nextTicket": 7,
        "budgets": [
            { "namespace": "shop", "name": "db", "uid": "u" },
            { "namespace": "shop", "name": "web", "uid": "u" },
        ],
        "claims": [
            {
                "ticket": 3, "node": "node-1", "nodeUID": "1", "state": "Confirmed",
                "since": "2026-01-01T10:20:00Z", "queuedAt": "2026-01-01T10:00:00Z",
                "holds": ["0/db-0/db-0/retained", "1/web-0/web-0"],
            },
            {
                "ticket": 4, "node": "node-2", "nodeUID": "2", "state": "Waiting",
                "since": "2026-01-01T10:21:00Z", "queuedAt": "2026-01-01T10:21:00Z",
                "needs": [{ "budget": 0, "disruptions": 1, "healthy": 1 }],
            },
            {
                "ticket": 6, "node": "node-3", "nodeUID": "3", "state": "Waiting",
                "since": "2026-01-01T10:22:00Z", "queuedAt": "2026-01-01T10:22:00Z",
            },
        ],
    }))
    .unwrap();
    Ledger::try_from(&stored).unwrap()
}

fn budget(name: &str, hold: Option<&str>) -> PodDisruptionBudget {
    let annotations = hold.map(|reason| json!({ "nodeward.dev/hold": reason }));
    serde_json::from_value(json!({
        "metadata": { "namespace": "shop", "name": name, "annotations": annotations },
        "status": { "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3 },
    }))
    .unwrap()
}

fn hold(name: &str, status: &serde_json::Value) -> DisruptionHold {
    serde_json::from_value(json!({
        "apiVersion": "nodeward.dev/v1alpha1",
        "kind": "DisruptionHold",
        "metadata": { "namespace": "shop", "name": name },
        "spec": { "pdbRef": "db", "disruptions": 1, "reason": "migration", "expiresAt": "2026-01-01T12:00:00Z" },
        "status": status,
    }))
    .unwrap()
}

#[test]
fn budget_lists_holders_waiters_and_owner_holds() {
    let (ledger, budgets) = (
        ledger(),
        [budget("db", None), budget("web", Some("audit")), budget("idle", None)],
    );
    let holds = [hold(
        "mine",
        &json!({ "phase": "Capped", "effectiveUntil": "2026-01-01T11:00:00Z" }),
    )];
    let sources = Sources {
        ledger: Some(&ledger),
        budgets: budgets.iter().collect(),
        holds: holds.iter().collect(),
        namespace: None,
    };
    let locks = of_budgets(&sources, &BTreeSet::new(), now());
    assert_eq!(
        locks.iter().map(|budget| budget.pdb.as_str()).collect::<Vec<_>>(),
        ["shop/db", "shop/web"]
    );
    let db = &locks[0];
    assert_eq!(db.held[0].node, "node-1");
    assert_eq!(
        (&db.held[0].pods, &db.held[0].retained),
        (&vec!["shop/db-0".to_owned()], &vec!["shop/db-0".to_owned()])
    );
    assert_eq!(
        (
            db.waiting[0].node.as_str(),
            db.waiting[0].ticket,
            db.waiting[0].disruptions
        ),
        ("node-2", 4, 1)
    );
    assert_eq!(db.owner_holds[0].until, Some(at("2026-01-01T11:00:00Z")));
    assert_eq!(db.status.map(|status| status.disruptions_allowed), Some(1));
    let web = &locks[1];
    assert_eq!(
        (web.owner_holds[0].name.as_deref(), web.owner_holds[0].reason.as_str()),
        (None, "audit")
    );
    assert_eq!(
        unplanned(&sources)
            .iter()
            .map(|waiting| waiting.node.as_str())
            .collect::<Vec<_>>(),
        ["node-3"]
    );
}

#[test]
fn unread_budget_has_no_numbers() {
    let ledger = ledger();
    let sources = Sources {
        ledger: Some(&ledger),
        ..Sources::default()
    };
    let locks = of_budgets(&sources, &BTreeSet::from(["shop/asked".to_owned()]), now());
    assert_eq!(
        locks
            .iter()
            .map(|budget| (budget.pdb.as_str(), budget.status))
            .collect::<Vec<_>>(),
        [("shop/asked", None), ("shop/db", None), ("shop/web", None)]
    );
}

#[test]
fn namespace_excludes_all_others() {
    let ledger = ledger();
    let sources = Sources {
        ledger: Some(&ledger),
        namespace: Some("bank"),
        ..Sources::default()
    };
    assert_eq!(of_budgets(&sources, &BTreeSet::new(), now()), []);
}

#[rstest::rstest]
#[case::in_force(json!({ "phase": "Active" }), true)]
#[case::not_answered(json!(null), true)]
#[case::no_such_budget(json!({ "phase": "NoSuchBudget" }), true)]
#[case::said_to_have_ended(json!({ "phase": "Expired" }), false)]
#[case::has_just_ended(json!({ "phase": "Active", "effectiveUntil": "2026-01-01T10:30:00Z" }), false)]
fn owner_hold_counts_until_it_ends(#[case] status: serde_json::Value, #[case] counts: bool) {
    let holds = [hold("mine", &status)];
    let sources = Sources {
        holds: holds.iter().collect(),
        ..Sources::default()
    };
    assert_eq!(!of_budgets(&sources, &BTreeSet::new(), now()).is_empty(), counts);
}

#[test]
fn node_groups_list_who_is_away_and_who_waits() {
    let stored: DrainLedgerSpec = serde_json::from_value(json!({
        "nextTicket": 7, "budgets": [],
        "claims": [{
            "ticket": 3, "node": "node-1", "nodeUID": "1", "state": "Confirmed", "nodeGroups": ["control-plane", "all"],
            "since": "2026-01-01T10:20:00Z", "queuedAt": "2026-01-01T10:00:00Z",
        }],
    }))
    .unwrap();
    let drain = |node: &str, reason: &str| {
        let status =
            json!({ "phase": "Queued", "ticket": 5, "blockedBy": [{ "reason": reason, "message": "all allows 1" }] });
        let drain = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": node },
            "spec": { "nodeName": node }, "status": status,
        });
        Drain::of(&serde_json::from_value(drain).unwrap())
    };
    let drains = [drain("node-2", "WaitsForNodeGroup"), drain("node-3", "Queued")];
    let groups = NodeGroups::of(Some(&Ledger::try_from(&stored).unwrap()), &drains);
    let away: Vec<_> = groups
        .away
        .iter()
        .map(|away| (away.group.as_str(), away.node.as_str()))
        .collect();
    assert_eq!(away, [("all", "node-1"), ("control-plane", "node-1")]);
    let waiting: Vec<_> = groups
        .waiting
        .iter()
        .map(|one| (one.node.as_str(), one.ticket))
        .collect();
    assert_eq!(waiting, [("node-2", Some(5))]);
    assert!(NodeGroups::of(None, &[]).is_empty());
}
