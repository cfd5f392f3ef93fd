//! One pod of a budget at a time, in the whole cluster.

use jiff::SignedDuration;
use nodeward_api::reason::BlockerReason;
use nodeward_core::id::BudgetKey;
use nodeward_core::strategy::StrategyName;
use nodeward_core::verdict::Next;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, budget, finalizers, minute, node, not_ready, pod, terminating, with};
use crate::snapshot::{Outcome, Overridden};

use StrategyName::PdbDelete;

fn on(name: &str, node: &str) -> Value {
    with(pod(name), json!({ "spec": { "nodeName": node } }))
}

/// Two draining nodes and a budget without room.
fn two_nodes() -> World {
    World::draining().node(node("n2"))
}

/// The record that an override leaves on a budget.
fn overridden(minutes: i64, uid: &str) -> Value {
    let record = format!(r#"{{"at":"{}","pod":"{uid}","uid":"{uid}"}}"#, minute(minutes));
    json!({ "metadata": { "annotations": { "nodeward.dev/last-override": record } } })
}

#[test]
fn one_pod_per_budget_is_forced_clusterwide() {
    let plan = two_nodes()
        .pods([on("p", "n1"), on("q", "n2")])
        .budget(budget("web", 0))
        .at(68);
    assert_eq!(plan.acted(), ["p"]);
    assert_eq!(plan.reason("q"), Some(BlockerReason::BudgetInUse));
    assert_eq!(
        plan.next("q"),
        Next::HeldBack {
            strategy: PdbDelete,
            due: minute(68),
            until: None
        }
    );
    assert!(!plan.has_failed());
}

#[test]
fn different_budgets_do_not_block_each_other() {
    let db = json!({ "metadata": { "labels": { "app": "db" } } });
    let for_db = json!({ "spec": { "selector": { "matchLabels": { "app": "db" } } } });
    let plan = two_nodes()
        .pods([on("p", "n1"), with(on("q", "n2"), db)])
        .budgets([budget("web", 0), with(budget("db", 0), for_db)])
        .at(68);
    assert_eq!(plan.acted(), ["p", "q"]);
}

#[rstest]
#[case(0, &["a"])]
#[case(1, &["a"])]
#[case(2, &["a", "b"])]
#[case(9, &["a", "b", "c"])]
fn evictions_at_once_match_allowed_disruptions(#[case] room: i32, #[case] acted: &[&str]) {
    let plan = World::draining()
        .pods([pod("a"), pod("b"), pod("c")])
        .budget(budget("web", room))
        .at(68);
    assert_eq!(plan.acted(), acted);
}

/// A turn needs the turn of every budget of the pod.
#[test]
fn pod_waits_for_all_its_budgets() {
    let plan = World::draining()
        .pods([
            pod("a"),
            with(
                pod("b"),
                json!({ "metadata": { "labels": { "app": "web", "tier": "front" } } }),
            ),
        ])
        .budgets([
            budget("web", 0),
            with(
                budget("front", 9),
                json!({ "spec": { "selector": { "matchLabels": { "app": null, "tier": "front" } } } }),
            ),
        ])
        .at(68);
    assert_eq!(
        (plan.acted(), plan.reason("b")),
        (vec!["a"], Some(BlockerReason::BudgetInUse))
    );
}

#[test]
fn order_is_unready_then_deadline_then_name() {
    let created = |minutes: i64| json!({ "metadata": { "creationTimestamp": minute(minutes).to_string() } });
    let plan = World::draining()
        .pods([
            pod("d"),
            pod("c"),
            with(pod("a"), created(5)),
            with(with(pod("z"), created(5)), not_ready()),
            with(pod("y"), not_ready()),
        ])
        .at(60);
    assert_eq!(plan.acted(), ["y", "z", "c", "d", "a"]);
}

#[rstest]
// None of its pods terminates, and enough are healthy: the last one is made good.
#[case::made_good(overridden(68, "gone"), json!({}), None)]
#[case::too_few_healthy(overridden(68, "gone"), json!({ "currentHealthy": 2 }), Some(78))]
// The status says nothing of the present spec.
#[case::status_behind(overridden(68, "gone"), json!({ "observedGeneration": 0 }), Some(78))]
// The record stands, and the pod that it names is not seen to go yet: nobody else's turn.
#[case::record_pending(overridden(68, "p"), json!({}), Some(78))]
// The disruption controller has not counted its going.
#[case::not_counted(json!({}), json!({ "disruptedPods": { "gone": minute(69).to_string() } }), Some(79))]
#[case::never_overridden(json!({}), json!({ "currentHealthy": 0 }), None)]
#[case::unreadable_record(json!({ "metadata": { "annotations": { "nodeward.dev/last-override": "?" } } }), json!({ "currentHealthy": 0 }), None)]
fn next_turn_follows_recovery_or_spacing(#[case] record: Value, #[case] status: Value, #[case] until: Option<i64>) {
    let world = two_nodes()
        .node(node("n3"))
        // `p` is on a node that is not acted on now; `q` is the candidate.
        .pods([on("p", "n3"), on("q", "n2")])
        .budget(with(with(budget("web", 0), record), json!({ "status": status })));
    let mut world = world;
    world.remediations = super::world::remediated("n3");
    let plan = world.at(70);
    let Some(until) = until else {
        assert_eq!(plan.acted(), ["q"]);
        return;
    };
    assert!(plan.acted().is_empty());
    assert_eq!(plan.reason("q"), Some(BlockerReason::BudgetInUse));
    assert_eq!(
        plan.next("q"),
        Next::HeldBack {
            strategy: PdbDelete,
            due: minute(68),
            until: Some(minute(until))
        }
    );
    assert!(plan.requeue_at.is_some_and(|at| at <= minute(until)));
    assert!(
        world
            .plan(minute(until) - SignedDuration::from_secs(1))
            .acted()
            .is_empty()
    );
    assert_eq!(world.at(until).acted(), ["q"]);
}

/// The spacing counts by the API server's clock, whatever the clock of the machine says that wrote the record.
#[rstest]
#[case::behind(-600)]
#[case::ahead(600)]
fn wrong_clock_of_a_writer_shortens_no_spacing(#[case] written: i64) {
    let taken_in = json!({ "metadata": { "managedFields": [{
        "manager": "drain-keeper", "operation": "Update", "subresource": "status", "time": minute(69).to_string(),
        "fieldsV1": { "f:metadata": { "f:annotations": { "f:nodeward.dev/last-override": {} } } },
    }] } });
    let budget = with(
        with(budget("web", 0), overridden(written, "gone")),
        json!({ "status": { "currentHealthy": 2 } }),
    );
    let world = World::draining().pod(pod("q")).budget(with(budget, taken_in));
    assert_eq!(world.at(70).reason("q"), Some(BlockerReason::BudgetInUse));
    assert!(world.at(78).acted().is_empty());
    assert_eq!(world.at(80).acted(), ["q"]);
}

/// A leader that ended between the record and the delete: the next one goes on with the same pod.
#[test]
fn the_pod_that_the_record_names_may_go_on() {
    let plan = two_nodes()
        .pods([on("a", "n1"), on("p", "n2")])
        .budget(with(budget("web", 0), overridden(69, "p")))
        .at(70);
    assert_eq!(
        (plan.acted(), plan.reason("a")),
        (vec!["p"], Some(BlockerReason::BudgetInUse))
    );
}

#[rstest]
#[case("", 80)]
#[case("overrideSpacing: 3m", 73)]
fn terminating_pod_blocks_override_for_spacing(#[case] config: &str, #[case] until: i64) {
    let world = two_nodes()
        .also(config)
        // Asked for at 70.
        .pods([with(on("p", "n1"), terminating(500, 430)), on("q", "n2")])
        .budget(budget("web", 0));
    assert_eq!(
        world.at(71).next("q"),
        Next::HeldBack {
            strategy: PdbDelete,
            due: minute(68),
            until: Some(minute(until))
        }
    );
    assert!(world.at(until - 1).acted().is_empty());
    assert_eq!(world.at(until).acted(), ["q"]);
}

/// A pod that the record names and that terminates is as much on its way as any other.
#[test]
fn terminating_pod_delays_next_despite_healthy_count() {
    let plan = two_nodes()
        .pods([with(on("p", "n1"), terminating(90, 20)), on("q", "n2")])
        .budget(with(budget("web", 0), overridden(70, "p")))
        .at(71);
    assert!(plan.acted().is_empty());
    assert!(plan.blocker("q").unwrap().detail.contains("on its way out"));
}

/// Between the answer and the watch nothing shows that the pod goes.
#[test]
fn requested_pod_takes_budget_turn_before_watch_shows() {
    let world = two_nodes()
        .pods([on("p", "n1"), on("q", "n2")])
        .budget(budget("web", 0));
    let now = minute(68);
    let plan = world.clone().attempted("p", Outcome::Sent, now).plan(now);
    assert_eq!(
        (plan.acted().len(), plan.reason("q")),
        (0, Some(BlockerReason::BudgetInUse))
    );
    assert_eq!(plan.requeue_at, Some(now + SignedDuration::from_secs(10)));
    let plan = world.attempted("p", Outcome::NotSent, now).plan(now);
    assert_eq!(plan.acted(), ["q"], "nothing came of it");
}

/// Where the pod goes already, its finalizers and its grace are no further disruption.
#[test]
fn strategies_on_terminating_pods_take_no_turn() {
    let stuck = with(pod("b"), terminating(30, 1));
    let kept = with(with(pod("c"), terminating(30, 1)), finalizers(&["a.io/x"]));
    let plan = World::draining().pods([stuck, kept]).budget(budget("web", 0)).at(68);
    assert_eq!(plan.acted(), ["b", "c"]);
}

/// Pending pods are evicted without asking any budget.
#[test]
fn pods_that_skip_budgets_take_no_turn() {
    let pending = |name| {
        with(
            pod(name),
            json!({ "status": { "phase": "Pending", "conditions": null } }),
        )
    };
    let plan = World::draining()
        .pods([pending("a"), pending("b"), pod("c")])
        .budget(budget("web", 0))
        .at(68);
    assert_eq!(plan.acted(), ["a", "b", "c"]);
}

#[test]
fn unseen_budget_limits_force_to_one_per_pass() {
    let long_ago = minute(45);
    let plan = World::draining()
        .pods([
            pod("a"),
            pod("b"),
            with(pod("c"), json!({ "metadata": { "namespace": "other" } })),
        ])
        .attempted("a", Outcome::RefusedByBudget, long_ago)
        .attempted("b", Outcome::RefusedByBudget, long_ago)
        .attempted("c", Outcome::RefusedByBudget, long_ago)
        .at(68);
    assert_eq!(plan.acted(), ["c", "a"], "by namespace and name");
    assert_eq!(plan.reason("b"), Some(BlockerReason::BudgetInUse));
}

#[test]
fn limited_pod_takes_no_turn() {
    let plan = two_nodes()
        .also("limits: {forcedPerNode: 1}")
        .pods([on("a", "n1"), on("b", "n1"), on("c", "n2")])
        .pods([with(on("0", "n1"), json!({ "metadata": { "labels": null } }))])
        .budget(budget("web", 0))
        .at(68);
    assert_eq!(plan.acted(), ["0", "c"]);
}

/// What was begun for a pod and not finished, for whatever reason, does not keep that pod waiting.
#[rstest]
#[case::recorded(overridden(69, "p"), json!({}))]
#[case::counted_as_going(json!({}), json!({ "disruptedPods": { "p": minute(69).to_string() } }))]
fn an_override_that_was_begun_is_finished(#[case] record: Value, #[case] status: Value) {
    let plan = World::draining()
        .pod(pod("p"))
        .budget(with(with(budget("web", 0), record), json!({ "status": status })))
        .at(70);
    assert_eq!(plan.acted(), ["p"]);
}

#[test]
fn unrecorded_override_counts_for_its_maker() {
    let mut world = World::draining()
        .pod(pod("q"))
        .budget(with(budget("web", 0), json!({ "status": { "currentHealthy": 2 } })));
    let overridden = Overridden {
        at: minute(69),
        pod: "p".into(),
    };
    world
        .memory
        .overridden
        .insert(BudgetKey::new("shop", "web"), overridden);
    assert_eq!(world.at(70).reason("q"), Some(BlockerReason::BudgetInUse));
    assert_eq!(world.at(79).acted(), ["q"]);
}

/// A delete that an admission webhook denies for ever must not take every turn.
#[test]
fn failing_pod_lets_others_go_first() {
    let mut world = World::draining()
        .pods([pod("a"), pod("b")])
        .budget(budget("web", 0))
        .attempted("a", Outcome::Failed("denied".into()), minute(1));
    assert_eq!(world.at(68).acted(), ["a"]);
    world.memory.attempts.get_mut("a").unwrap().failures = 1;
    assert_eq!(world.at(68).acted(), ["b"]);
}
