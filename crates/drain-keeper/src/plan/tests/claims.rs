//! Pods of a node that drain-lock drains: those that go down with the node go under its claim.

use nodeward_api::reason::BlockerReason;
use nodeward_core::hold::Holder;
use nodeward_core::strategy::StrategyName::{self, Delete, PdbDelete, PdbStuckTerminating};
use nodeward_core::verdict::Next;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, budget, claim_of, minute, movable_claim_of, pod, reserved_for, terminating, with};

fn listed(names: &[&str]) -> Value {
    let named = names
        .iter()
        .map(|name| json!({ "pod": format!("shop/{name}"), "reason": "Pinned" }));
    named.collect()
}

/// `p` goes down with the node.
fn held() -> Value {
    json!({ "status": { "plan": { "held": listed(&["p"]) } } })
}

fn movable() -> Value {
    json!({ "status": { "plan": { "held": listed(&["other"]), "movable": 1 } } })
}

/// The drain has just met an obstacle.
fn with_obstacle(reason: &str) -> Value {
    let obstacle = json!({ "reason": reason, "pdb": "shop/web", "message": "" });
    with(held(), json!({ "status": { "plan": { "problems": [obstacle] } } }))
}

/// The obstacle has lasted.
fn left_out(reason: &str) -> Value {
    let pod = json!({ "pod": "shop/p", "reason": reason });
    json!({ "status": { "plan": { "held": listed(&["other"]), "leftOut": [pod] } } })
}

fn draining(drain: Value) -> World {
    World::draining().node_drain_with("Draining", drain)
}

#[rstest]
#[case::movable(movable(), None)]
#[case::held(held(), Some(""))]
#[case::retained(json!({ "status": { "plan": { "retained": listed(&["p"]) } } }), Some(""))]
#[case::perhaps_held(
    json!({ "status": { "plan": { "held": listed(&["other"; 100]), "omitted": 1 } } }),
    Some("its NodeDrain does not list all pods that go down under the claim")
)]
#[case::not_planned(json!({}), Some("its NodeDrain does not list all pods that go down under the claim"))]
#[case::budget_never_allows(left_out("BudgetNeverAllows"), None)]
#[case::budget_is_not_counted(left_out("SyncFailed"), None)]
#[case::budget_allows_fewer(left_out("NeedExceedsBudget"), None)]
#[case::budget_is_unhealthy(left_out("BudgetUnhealthy"), None)]
#[case::several_budgets(left_out("SeveralPDBs"), None)]
#[case::budget_may_yet_be_healthy(with_obstacle("BudgetUnhealthy"), Some(""))]
#[case::drain_waits_for_its_change(with_obstacle("NeedExceedsBudget"), Some(""))]
fn pod_that_goes_down_with_its_node_awaits_the_claim(#[case] drain: Value, #[case] detail: Option<&str>) {
    let world = draining(drain).pod(pod("p")).budget(budget("web", 0));
    let plan = world.at(68);
    let Some(detail) = detail else {
        return assert_eq!(plan.strategy(), Some(PdbDelete));
    };
    assert_eq!(
        (plan.strategy(), plan.reason("p")),
        (None, Some(BlockerReason::AwaitsClaim))
    );
    assert_eq!(plan.blocker("p").unwrap().detail, detail);
    let next = Next::HeldBack {
        strategy: PdbDelete,
        due: minute(68),
        until: None,
    };
    assert_eq!(
        (plan.next("p"), world.at(1).next("p")),
        (next, next),
        "it is said from the start"
    );
    let granted = world.held("web", claim_of("n1", &["p"]), None);
    assert_eq!(granted.at(68).strategy(), Some(PdbDelete));
}

#[rstest]
#[case::unbudgeted(json!({ "metadata": { "labels": { "app": "db" } } }), json!({}), Some(Delete))]
#[case::leaving(terminating(30, 1), json!({}), Some(PdbStuckTerminating))]
#[case::unready_and_not_counted(
    json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
    json!({ "spec": { "unhealthyPodEvictionPolicy": "AlwaysAllow" } }),
    Some(PdbDelete)
)]
#[case::unready_and_counted(
    json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
    json!({}),
    None
)]
fn pod_that_needs_no_disruption_awaits_no_claim(
    #[case] state: Value,
    #[case] policy: Value,
    #[case] expected: Option<StrategyName>,
) {
    let world = draining(held())
        .pod(with(pod("p"), state))
        .budget(with(budget("web", 0), policy));
    assert_eq!(world.at(100).strategy(), expected);
}

/// A grant for one of two budgets is none, and one for another pod neither.
#[rstest]
#[case::of_both([&["p"], &["p"]], true)]
#[case::of_one([&["p"], &["q"]], false)]
#[case::of_none([&["q"], &["q"]], false)]
fn claim_is_granted_for_the_very_pod_and_each_budget(#[case] granted: [&[&str; 1]; 2], #[case] is_forced: bool) {
    let world = draining(held())
        .pod(pod("p"))
        .budgets([budget("web", 0), budget("all", 0)])
        .held("web", claim_of("n1", granted[0]), None)
        .held("all", claim_of("n1", granted[1]), None);
    assert_eq!(world.at(68).strategy().is_some(), is_forced);
}

/// Once a drain is over, or is none, its node is one that is only cordoned.
#[rstest]
#[case::drained("Drained", json!({}), true)]
#[case::back("Recovering", json!({}), true)]
#[case::without_a_drainer("Suspect", json!({}), true)]
#[case::over("Released", json!({}), false)]
#[case::given_up("Failed", json!({}), false)]
#[case::a_plan("Draining", json!({ "spec": { "dryRun": true } }), false)]
#[case::called_off("Draining", json!({ "metadata": { "deletionTimestamp": minute(0).to_string() } }), false)]
#[case::of_an_earlier_node("Draining", json!({ "spec": { "nodeUID": "older" } }), false)]
fn claim_is_awaited_while_the_drain_is_under_way(
    #[case] phase: &str,
    #[case] changes: Value,
    #[case] is_awaited: bool,
) {
    let world = World::draining().node_drain_with(phase, with(held(), changes));
    let plan = world.pod(pod("p")).budget(budget("web", 0)).at(68);
    assert_eq!(plan.strategy().is_none(), is_awaited);
}

/// The drain of another node has, or is to have, what this one would take.
#[rstest]
#[case::reserved(reserved_for("n2"))]
#[case::held(claim_of("n2", &["q"]))]
#[case::held_for_movable_pods(movable_claim_of("n2"))]
fn movable_pod_leaves_budgets_of_others_alone(#[case] other: Holder) {
    let world = draining(movable())
        .pod(pod("p"))
        .budget(budget("web", 0))
        .held("web", other, None);
    let plan = world.at(68);
    assert_eq!(
        (plan.strategy(), plan.reason("p")),
        (None, Some(BlockerReason::BudgetHeld))
    );
    for own in [claim_of("n1", &["p"]), movable_claim_of("n1")] {
        let granted = world.clone().held("web", own, None);
        assert_eq!(granted.at(68).strategy(), Some(PdbDelete), "it was granted both");
    }
}

/// The disruption for movable pods is none for a pod that stays down.
#[test]
fn held_pod_does_not_go_by_the_disruption_of_movable_pods() {
    let world = draining(held()).pod(pod("p")).budget(budget("web", 0));
    let plan = world.held("web", movable_claim_of("n1"), None).at(68);
    assert_eq!(
        (plan.strategy(), plan.reason("p")),
        (None, Some(BlockerReason::AwaitsClaim))
    );
}
