use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use nodeward_api::drain_ledger::DrainLedgerSpec;
use nodeward_api::reason::{BlockerReason, LockReason};
use nodeward_core::ledger::Ledger;
use rstest::rstest;
use serde_json::{Value, json};

use super::pods::{EvictionAnswer, KeptBy};
use super::*;
use crate::fixture::merge;

fn pod(change: Value) -> Pod {
    let mut pod = json!({
        "metadata": { "namespace": "shop", "name": "web-0", "labels": { "app": "web" } },
        "spec": { "containers": [], "nodeName": "node-1" },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    merge(&mut pod, change);
    serde_json::from_value(pod).unwrap()
}

fn budget(name: &str, allowed: i32) -> PodDisruptionBudget {
    budget_with(name, allowed, json!({}))
}

fn budget_with(name: &str, allowed: i32, change: Value) -> PodDisruptionBudget {
    let mut budget = json!({
        "metadata": { "namespace": "shop", "name": name, "generation": 1 },
        "spec": { "selector": { "matchLabels": { "app": "web" } } },
        "status": {
            "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 2,
        },
    });
    merge(&mut budget, change);
    serde_json::from_value(budget).unwrap()
}

#[rstest]
#[case::room(json!({}), vec![budget("a", 1)], None)]
#[case::no_budget(json!({}), vec![], None)]
#[case::no_room(json!({}), vec![budget("a", 0)], Some(KeptBy::Budget(BlockerReason::BudgetExhausted)))]
#[case::never_room(
    json!({}), vec![budget_with("a", 0, json!({ "status": { "expectedPods": 1 } }))], Some(KeptBy::Drain(LockReason::BudgetNeverAllows))
)]
#[case::closed_by_ceph(
    json!({}),
    vec![budget_with("a", 0, json!({
        "metadata": { "labels": { "app.kubernetes.io/managed-by": "nodeward-ceph-pdb" } }, "status": { "expectedPods": 1 },
    }))],
    Some(KeptBy::Budget(BlockerReason::BudgetExhausted)),
)]
#[case::several(json!({}), vec![budget("a", 1), budget("b", 1)], Some(KeptBy::Drain(LockReason::SeveralPDBs)))]
#[case::pending(json!({ "status": { "phase": "Pending" } }), vec![budget("a", 0)], None)]
#[case::asked_to_stay(json!({ "metadata": { "labels": { "nodeward.dev/drain": "skip" } } }), vec![], Some(KeptBy::Drain(LockReason::OptedOut)))]
#[case::asked_to_finish(
    json!({ "metadata": { "annotations": { "nodeward.dev/drain": "wait-completed" } } }), vec![], Some(KeptBy::Drain(LockReason::WaitCompleted))
)]
fn obstacles_are_refused_evictions_and_opt_outs(
    #[case] change: Value,
    #[case] budgets: Vec<PodDisruptionBudget>,
    #[case] kept_by: Option<KeptBy>,
) {
    let seen = PodsOnNode::of(&[pod(change)], Some(&budgets), Timestamp::UNIX_EPOCH);
    assert_eq!(seen.obstacles.first().and_then(|obstacle| obstacle.kept_by), kept_by);
    assert_eq!((seen.to_leave, seen.ignored, seen.terminating), (1, 0, 0));
}

#[rstest]
#[case::daemon(json!({
    "metadata": { "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true }] }
}), (0, 1, 0))]
#[case::mirror(json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "m" } } }), (0, 1, 0))]
#[case::finished(json!({ "status": { "phase": "Succeeded" } }), (0, 1, 0))]
#[case::terminating(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), (1, 0, 1))]
fn ignored_and_terminating_pods_are_no_obstacles(#[case] change: Value, #[case] counts: (usize, usize, usize)) {
    let seen = PodsOnNode::of(&[pod(change)], Some(&[budget("a", 0)]), Timestamp::UNIX_EPOCH);
    assert_eq!((seen.to_leave, seen.ignored, seen.terminating), counts);
    assert_eq!(seen.obstacles, []);
}

/// The status of a budget may be old, and a webhook may refuse: the API server's answer counts.
#[test]
fn api_server_answer_outweighs_budget_statuses() {
    let named = |name: &str| pod(json!({ "metadata": { "name": name } }));
    let all = [named("web-0"), named("web-1")];
    let mut seen = PodsOnNode::of(&all, Some(&[budget("a", 0)]), Timestamp::UNIX_EPOCH);
    assert_eq!(seen.obstacles.len(), 2);
    seen.take_answers(BTreeMap::from([
        ("shop/web-0".to_owned(), EvictionAnswer::Accepted),
        ("shop/web-1".to_owned(), EvictionAnswer::Refused("no".to_owned())),
        ("shop/web-2".to_owned(), EvictionAnswer::Refused("a webhook".to_owned())),
    ]));
    let told: Vec<_> = seen
        .obstacles
        .iter()
        .map(|one| (one.pod.as_str(), one.kept_by.is_some(), one.answer.as_deref()))
        .collect();
    assert_eq!(
        told,
        [
            ("shop/web-1", true, Some("no")),
            ("shop/web-2", false, Some("a webhook"))
        ]
    );
    assert_eq!(seen.asked, 3);
}

/// Older drains that need nothing which it waits for do not stand in its way.
#[rstest]
#[case("node-1", Some(0))]
#[case("node-2", Some(0))]
#[case("node-3", Some(2))]
#[case::each_counts_once("node-5", Some(5))]
#[case("node-9", None)]
fn only_drains_in_the_way_come_first(#[case] node: &str, #[case] ahead: Option<usize>) {
    let claim = |ticket: i64, node: &str, state: &str, more: Value| {
        let mut claim = json!({
            "ticket": ticket, "node": node, "nodeUID": node, "state": state,
            "since": "2026-01-01T10:00:00Z", "queuedAt": "2026-01-01T10:00:00Z",
        });
        merge(&mut claim, more);
        claim
    };
    let need = |budget: i32| json!({ "budget": budget, "disruptions": 1, "healthy": 1 });
    let needs = |budget: i32| json!({ "needs": [need(budget)] });
    let needs_both = || json!({ "needs": [need(0), need(1)] });
    let stored: DrainLedgerSpec = serde_json::from_value(json!({
        "nextTicket": 9,
        "budgets": [
            { "namespace": "shop", "name": "db", "uid": "u" }, { "namespace": "shop", "name": "web", "uid": "v" },
        ],
        "claims": [
            claim(1, "node-1", "Confirmed", json!({ "holds": ["0/db-0/db-0"] })),
            claim(2, "node-2", "Waiting", needs(1)),
            claim(3, "node-0", "Waiting", needs(0)),
            claim(4, "node-3", "Waiting", needs(0)),
            claim(5, "node-4", "Waiting", needs_both()),
            claim(6, "node-5", "Waiting", needs_both()),
        ],
    }))
    .unwrap();
    assert_eq!(next::Turns::of(&Ledger::try_from(&stored).unwrap()).before(node), ahead);
}

/// Only once drain-lock has answered does the absence of requesters say that they have all gone.
#[rstest]
#[case::unanswered(json!(null), "whoever created it")]
#[case::released(json!({ "phase": "Recovering" }), "nobody any more")]
fn drain_without_requesters_says_whose_it_is(#[case] status: Value, #[case] requesters: &str) {
    let drain = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain",
        "metadata": { "name": "node-1" }, "spec": { "nodeName": "node-1" }, "status": status,
    });
    let mut page = Page::new(120);
    let now = "2026-01-01T10:30:00Z".parse().unwrap();
    print_drain(&mut page, &Drain::of(&serde_json::from_value(drain).unwrap()), now);
    let printed = page.print(false);
    let mut lines = printed.lines();
    let line = lines.find(|line| line.trim_start().starts_with("requesters"));
    assert!(line.is_some_and(|line| line.ends_with(requesters)), "{printed}");
}
