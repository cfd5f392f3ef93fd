//! Budgets: which cover a pod, which are never overridden, which are held.

use nodeward_api::reason::BlockerReason;
use nodeward_core::hold::{Hold, Holder};
use nodeward_core::strategy::StrategyName;
use nodeward_core::verdict::Next;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, budget, claim_of, finalizers, minute, not_ready, pod, reserved_for, terminating, with};
use crate::snapshot::Outcome;

use StrategyName::{Delete, PdbDelete, PdbFinalizer, PdbStuckTerminating};

#[rstest]
#[case::room(json!({}), BlockerReason::AwaitingEviction, json!({ "disruptionsAllowed": 1 }))]
#[case::exhausted(json!({}), BlockerReason::BudgetExhausted, json!({ "disruptionsAllowed": 0 }))]
// Room is read from the status, which must be of the present spec.
#[case::status_behind(json!({}), BlockerReason::BudgetExhausted, json!({ "disruptionsAllowed": 1, "observedGeneration": 0 }))]
#[case::negative(json!({}), BlockerReason::BudgetExhausted, json!({ "disruptionsAllowed": -1 }))]
#[case::unready_in_a_healthy_budget(not_ready(), BlockerReason::AwaitingEviction, json!({ "disruptionsAllowed": 0 }))]
#[case::unready_in_an_unhealthy_budget(
    not_ready(), BlockerReason::BudgetExhausted, json!({ "disruptionsAllowed": 0, "currentHealthy": 1 })
)]
#[case::pending_is_not_asked(
    json!({ "status": { "phase": "Pending" } }), BlockerReason::AwaitingEviction, json!({ "disruptionsAllowed": 0 })
)]
fn room_is_what_the_eviction_handler_reads(#[case] patch: Value, #[case] reason: BlockerReason, #[case] status: Value) {
    let world = World::draining()
        .pod(with(pod("p"), patch))
        .budget(with(budget("web", 0), json!({ "status": status })));
    let plan = world.at(1);
    assert_eq!(plan.reason("p"), Some(reason));
    assert_eq!(
        plan.next("p"),
        Next::At {
            strategy: PdbDelete,
            due: minute(68)
        },
        "covered, whatever the room"
    );
    assert_eq!(plan.blocker("p").unwrap().budgets.len(), 1);
}

#[rstest]
#[case::same_namespace(json!({}), PdbDelete)]
#[case::another_namespace(json!({ "metadata": { "namespace": "other" } }), Delete)]
#[case::one_label_of_two(json!({ "spec": { "selector": { "matchLabels": { "tier": "front" } } } }), Delete)]
#[case::expressions_alone(
    json!({ "spec": { "selector": { "matchLabels": null, "matchExpressions": [{ "key": "app", "operator": "Exists" }] } } }),
    PdbDelete
)]
#[case::everything(json!({ "spec": { "selector": { "matchLabels": null } } }), PdbDelete)]
#[case::nothing(json!({ "spec": { "selector": null } }), Delete)]
fn budget_covers_full_selector_matches_in_namespace(#[case] patch: Value, #[case] strategy: StrategyName) {
    let world = World::draining().pod(pod("p")).budget(with(budget("web", 0), patch));
    let due = if strategy == Delete { 45 } else { 68 };
    assert_eq!(
        world.at(1).next("p"),
        Next::At {
            strategy,
            due: minute(due)
        }
    );
    let early = world.at(45).strategy();
    assert_eq!(
        early,
        (strategy == Delete).then_some(Delete),
        "a covered pod is left alone at the others' deadline"
    );
}

#[rstest]
#[case::labelled(json!({ "metadata": { "labels": { "nodeward.dev/force-drain": "never" } } }), BlockerReason::BudgetNeverForced)]
#[case::of_another_spelling(json!({ "metadata": { "labels": { "nodeward.dev/force-drain": "Allowed" } } }), BlockerReason::BudgetNeverForced)]
#[case::of_rooks_owner(
    json!({ "metadata": { "ownerReferences": [{ "apiVersion": "ceph.rook.io/v1", "kind": "CephCluster", "name": "c", "uid": "c" }] } }),
    BlockerReason::CephBudget
)]
#[case::with_rooks_labels(json!({ "metadata": { "labels": { "app": "rook-ceph-osd" } } }), BlockerReason::CephBudget)]
fn some_budgets_are_never_overridden_by_any_strategy(
    #[case] patch: Value,
    #[case] reason: BlockerReason,
    #[values(json!({}), terminating(30, 1), with(terminating(30, 1), finalizers(&["a.io/x"])))] state: Value,
    #[values(0, 1)] room: i32,
    #[values(false, true)] beside_another: bool,
) {
    let world = World::draining()
        .pod(with(pod("p"), state))
        .budget(with(budget("web", room), patch))
        .budgets(beside_another.then(|| budget("another", 1)));
    let plan = world.at(10_000);
    assert_eq!(
        (plan.strategy(), plan.reason("p"), plan.next("p")),
        (None, Some(reason), Next::Nothing)
    );
    assert!(plan.has_failed());
}

/// Ceph's operator leaves the OSDs of the domain that drains out of all budgets.
#[rstest]
fn ceph_daemons_are_never_forced_without_budget(
    #[values("rook-ceph-osd", "rook-ceph-mon", "rook-ceph-mgr", "rook-ceph-mds", "rook-ceph-rgw")] app: &str,
    #[values(json!({}), terminating(30, 1), with(terminating(30, 1), finalizers(&["a.io/x"])))] state: Value,
    #[values(false, true)] covered: bool,
) {
    let daemon = with(pod("p"), json!({ "metadata": { "labels": { "app": app } } }));
    let over_all = with(
        budget("all", 1),
        json!({ "spec": { "selector": { "matchLabels": null } } }),
    );
    let world = World::draining()
        .pod(with(daemon, state))
        .budgets(covered.then_some(over_all));
    let plan = world.at(10_000);
    assert_eq!(
        (plan.strategy(), plan.reason("p"), plan.next("p")),
        (None, Some(BlockerReason::CephDaemon), Next::Nothing)
    );
    assert!(plan.has_failed());
}

#[test]
fn annotation_protects_no_budget() {
    let annotated = json!({ "metadata": { "annotations": { "nodeward.dev/force-drain": "never" } } });
    let world = World::draining()
        .pod(pod("p"))
        .budget(with(budget("web", 0), annotated));
    assert_eq!(world.at(68).strategy(), Some(PdbDelete));
}

#[test]
fn unknown_value_of_the_label_is_named() {
    let labelled = json!({ "metadata": { "labels": { "nodeward.dev/force-drain": "Allowed" } } });
    let world = World::draining().pod(pod("p")).budget(with(budget("web", 0), labelled));
    let detail = "its label nodeward.dev/force-drain: Allowed is not known, and counts as never";
    assert_eq!(world.at(68).blocker("p").unwrap().detail, detail);
}

fn allowed(name: &str, room: i32) -> Value {
    let labelled = json!({ "metadata": { "labels": { "nodeward.dev/force-drain": "allowed" } } });
    with(budget(name, room), labelled)
}

/// What the configuration says decides on the override alone: an eviction that the budget lets pass, finalizers and a pod that is
/// stuck are as ever.
#[rstest]
#[case::all("all", json!({}), vec![budget("a", 0)], Some(PdbDelete))]
#[case::labelled("labelled", json!({}), vec![allowed("a", 0)], Some(PdbDelete))]
#[case::labelled_both("labelled", json!({}), vec![allowed("a", 0), allowed("b", 0)], Some(PdbDelete))]
#[case::without_a_label("labelled", json!({}), vec![budget("a", 0)], None)]
#[case::one_of_two_without_a_label("labelled", json!({}), vec![allowed("a", 0), budget("b", 0)], None)]
#[case::never("never", json!({}), vec![allowed("a", 0)], None)]
#[case::never_though_several_select_it("never", json!({}), vec![budget("a", 1), budget("b", 1)], None)]
#[case::never_with_room("never", json!({}), vec![budget("a", 1)], Some(Delete))]
#[case::never_with_finalizers("never", with(terminating(30, 1), finalizers(&["a.io/x"])), vec![budget("a", 0)], Some(PdbFinalizer))]
#[case::never_when_stuck("never", terminating(30, 1), vec![budget("a", 0)], Some(PdbStuckTerminating))]
fn configuration_decides_which_budgets_are_overridden(
    #[case] choice: &str,
    #[case] state: Value,
    #[case] budgets: Vec<Value>,
    #[case] strategy: Option<StrategyName>,
) {
    let world = World::draining()
        .config(&format!(
            "{{upgradeSignal: always, countsAsDrain: all, overrideBudgets: {choice}}}"
        ))
        .pod(with(pod("p"), state))
        .budgets(budgets);
    let plan = world.at(10_000);
    assert_eq!(plan.strategy(), strategy);
    if strategy.is_none() {
        let when_it_opens = Next::HeldBack {
            strategy: Delete,
            due: minute(68),
            until: None,
        };
        let blocker = plan.blocker("p").unwrap();
        assert_eq!(blocker.next, when_it_opens);
        let detail = format!("overrideBudgets is {choice}");
        assert!(blocker.detail.starts_with(&detail), "{}", blocker.detail);
        assert!(plan.has_failed());
        // Nothing else is promised before, either.
        let early = world.at(1);
        assert!(early.next("p") == when_it_opens && !early.has_failed());
    }
}

/// A budget that the cache does not show yet, told by a refusal, has no label.
#[rstest]
fn refusal_of_unseen_budget_is_overridden_only_where_all_are(#[values("all", "labelled", "never")] choice: &str) {
    let world = World::draining()
        .config(&format!(
            "{{upgradeSignal: always, countsAsDrain: all, overrideBudgets: {choice}}}"
        ))
        .pod(pod("p"))
        .attempted("p", Outcome::RefusedByBudget, minute(1));
    let is_overridden = world.at(10_000).strategy() == Some(PdbDelete);
    assert_eq!(is_overridden, choice == "all");
}

#[rstest]
#[case::another_node(claim_of("n2", &[]), true, false)]
#[case::reserved_for_another_node(reserved_for("n2"), true, false)]
#[case::its_own_node(claim_of("n1", &[]), false, false)]
#[case::reserved_for_its_own_node(reserved_for("n1"), false, false)]
#[case::an_owner(Holder::Owner("migration".to_owned()), true, true)]
fn a_held_budget_is_reported_not_forced(
    #[case] holder: Holder,
    #[case] stands: bool,
    #[case] stands_against_leaving: bool,
    #[values(json!({}), terminating(30, 1), with(terminating(30, 1), finalizers(&["a.io/x"])))] state: Value,
) {
    // A pod that leaves is down already, and claims wait for its successor.
    let stands = if state == json!({}) {
        stands
    } else {
        stands_against_leaving
    };
    let world = World::draining()
        .pod(with(pod("p"), state))
        .budget(budget("web", 0))
        .held("web", holder, None);
    let plan = world.at(10_000);
    assert_eq!(plan.strategy().is_none(), stands);
    if stands {
        assert_eq!(plan.reason("p"), Some(BlockerReason::BudgetHeld));
        let detail = &plan.blocker("p").unwrap().detail;
        assert!(
            detail.starts_with("held by") || detail == "reserved for the claim of node n2",
            "{detail}"
        );
        assert!(plan.has_failed(), "a held pod is not pending");
    }
}

#[test]
fn a_hold_ends_at_its_own_limit() {
    let world = World::draining().pod(pod("p")).budget(budget("web", 0)).held(
        "web",
        Holder::Owner("migration".to_owned()),
        Some(minute(100)),
    );
    let plan = world.at(80);
    assert_eq!(
        plan.next("p"),
        Next::HeldBack {
            strategy: PdbDelete,
            due: minute(68),
            until: Some(minute(100))
        }
    );
    assert_eq!(
        plan.blocker("p").unwrap().detail,
        "held by its owner until 2026-01-01T01:40:00Z: migration"
    );
    assert_eq!((plan.requeue_at, world.at(99).strategy()), (Some(minute(100)), None));
    let mut world = world;
    world.memory.held_back = plan.held_back;
    let free = world.at(100);
    assert!(free.acts()[0].was_held_back, "late by intent");
}

/// The ledger granted both nodes a disruption: neither claim stands in the way of the other's own pods, and both stand in the
/// way of every other pod.
#[rstest]
#[case(&["p"], true)]
#[case(&["q"], false)]
fn own_grant_overrides_other_holds(#[case] own: &[&str], #[case] forced: bool) {
    let world = World::draining()
        .pod(pod("p"))
        .budget(budget("web", 0))
        .held("web", claim_of("n1", own), None)
        .held("web", claim_of("n2", &["r"]), None);
    assert_eq!(world.at(68).strategy().is_some(), forced);
}

/// Of several holds the verdict names the last to end, and the pod goes when that has.
#[test]
fn pod_waits_for_the_last_hold() {
    let world = World::draining()
        .pod(pod("p"))
        .budgets([budget("web", 0), budget("all", 0)])
        .held("web", claim_of("n2", &[]), Some(minute(90)))
        .held("all", Holder::Owner("audit".to_owned()), Some(minute(120)));
    let blocker = world.at(70).blocker("p").unwrap().clone();
    assert_eq!(blocker.detail, "held by its owner until 2026-01-01T02:00:00Z: audit");
    assert_eq!(
        (world.at(119).strategy(), world.at(120).strategy()),
        (None, Some(PdbDelete))
    );
}

/// What cannot be read may hold anything: nothing is done against a budget, and pods without one are none of its concern.
#[test]
fn unreadable_holds_stop_budget_overrides() {
    let mut world = World::draining()
        .pods([
            pod("covered"),
            with(pod("free"), json!({ "metadata": { "labels": { "app": "db" } } })),
        ])
        .budget(budget("web", 0));
    world
        .holds
        .add(Hold::unknown("drainledgers may not be read: forbidden"));
    let plan = world.at(10_000);
    assert_eq!(plan.acted(), ["free"]);
    let blocker = plan.blocker("covered").unwrap();
    assert_eq!(blocker.reason, BlockerReason::HoldsUnknown);
    assert_eq!(blocker.detail, "drainledgers may not be read: forbidden");
}

/// A hold that ends before the deadline changes nothing but what is said.
#[test]
fn early_hold_is_named_with_the_deadline() {
    let world =
        World::draining()
            .pod(pod("p"))
            .budget(budget("web", 0))
            .held("web", claim_of("n2", &[]), Some(minute(20)));
    let plan = world.at(10);
    assert_eq!(
        plan.next("p"),
        Next::HeldBack {
            strategy: PdbDelete,
            due: minute(68),
            until: Some(minute(68))
        }
    );
    assert_eq!((plan.requeue_at, plan.held_back.len()), (Some(minute(68)), 0));
    assert_eq!(world.at(20).reason("p"), Some(BlockerReason::BudgetExhausted));
}

#[test]
fn a_hold_on_another_budget_is_no_concern() {
    let world =
        World::draining()
            .pod(pod("p"))
            .budgets([budget("web", 0)])
            .held("db", Holder::Owner(String::new()), None);
    assert_eq!(world.at(68).strategy(), Some(PdbDelete));
}

/// The eviction API answers 500 every time: known from our own count, and treated as refused.
#[test]
fn several_budgets_are_named_then_overridden() {
    let world = World::draining()
        .pod(pod("p"))
        .budgets([budget("web", 1), budget("all", 1)]);
    let plan = world.at(1);
    assert_eq!(plan.reason("p"), Some(BlockerReason::SeveralPDBs));
    assert_eq!(plan.blocker("p").unwrap().budgets.len(), 2);
    assert_eq!(
        (world.at(67).strategy(), world.at(68).strategy()),
        (None, Some(PdbDelete))
    );
}
