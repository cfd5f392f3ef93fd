//! When a drain has failed.

use jiff::SignedDuration;
use nodeward_api::drain_clock::DrainClock;
use nodeward_api::reason::BlockerReason;
use nodeward_core::signal::PdbForceDrainTimeout;
use nodeward_core::strategy::StrategyName;
use nodeward_core::verdict::{Blocker, Next};
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, budget, clock, minute, not_ready, pod, terminating, upgrade_config, with};
use crate::plan::Plan;
use crate::plan::failed_drain::failed_at;
use crate::snapshot::Outcome;

/// The plan for the world in which the server fails every attempt at these pods.
fn refused(world: &World, pods: &[&str], minutes: i64) -> Plan {
    let mut world = world.clone();
    for pod in pods {
        world = world.attempted(pod, Outcome::Failed("boom".to_owned()), minute(minutes));
    }
    world.at(minutes)
}

fn assert_fails_at(world: &World, pods: &[&str], minutes: i64) {
    let mut early = world.clone();
    let before = minute(minutes) - SignedDuration::from_secs(1);
    for pod in pods {
        early = early.attempted(pod, Outcome::Failed("boom".to_owned()), minute(minutes));
    }
    let plan = early.plan(before);
    assert!(!plan.has_failed());
    assert!(plan.requeue_at <= Some(minute(minutes)) && plan.requeue_at.is_some());
    assert!(refused(world, pods, minutes).has_failed());
}

fn uncovered(name: &str) -> Value {
    with(pod(name), json!({ "metadata": { "labels": null } }))
}

#[test]
fn drain_fails_after_last_due_and_expected_time() {
    assert_fails_at(&World::draining().pod(uncovered("p")), &["p"], 53);
    assert_fails_at(&World::draining().pod(pod("p")).budget(budget("web", 0)), &["p"], 76);
}

/// A sort that reads the unsorted slice takes the first wait for the last one.
#[rstest]
#[case(&["a", "b"])]
#[case(&["b", "a"])]
fn last_wait_counts_in_any_pod_order(#[case] order: &[&str]) {
    let of = |name: &str| if name == "a" { pod(name) } else { uncovered(name) };
    let world = World::draining()
        .pods(order.iter().map(|name| of(name)))
        .budget(budget("web", 0));
    assert!(
        !refused(&world, &["b"], 60).has_failed(),
        "the covered one's time is still to come"
    );
    assert_fails_at(&world, &["a", "b"], 76);
}

#[test]
fn a_drain_fails_after_the_timeout_at_the_earliest() {
    let world = World::openshift()
        .upgrade_configs([upgrade_config(json!({ "spec": { "PDBForceDrainTimeout": 0 } }))])
        .pod(pod("p"))
        .budget(budget("web", 0));
    assert_fails_at(&world, &["p"], 45);
}

#[test]
fn a_pod_created_later_moves_the_failure() {
    let late = with(
        uncovered("p"),
        json!({ "metadata": { "creationTimestamp": minute(30).to_string() } }),
    );
    assert_fails_at(&World::draining().pod(late), &["p"], 83);
}

#[test]
fn drain_has_not_failed_before_pending_strategies() {
    let opted_out = with(
        uncovered("o"),
        json!({ "metadata": { "labels": { "nodeward.dev/drain": "wait-completed" } } }),
    );
    let world = World::draining().pods([opted_out, pod("p")]).budget(budget("web", 0));
    assert!(!world.at(67).has_failed());
    // Its delete was asked for, and now its grace runs.
    let going = World::draining()
        .pod(with(pod("p"), terminating(500, 420)))
        .budget(budget("web", 0));
    assert!(matches!(
        going.at(499).next("p"),
        Next::At {
            strategy: StrategyName::PdbStuckTerminating,
            ..
        }
    ));
    assert!(!going.at(499).has_failed());
}

#[rstest]
#[case::opted_out(json!({ "metadata": { "labels": { "nodeward.dev/drain": "wait-completed" } } }))]
#[case::unmanaged(json!({ "metadata": { "ownerReferences": null } }))]
#[case::ignored_namespace(json!({ "metadata": { "namespace": "ignored" } }))]
fn unresolvable_blocker_fails_drain_after_timeout(#[case] patch: Value) {
    let world = World::draining()
        .also("nodeDrain: {ignoredNamespacePatterns: [ignored]}")
        .pod(with(uncovered("p"), patch));
    assert_fails_at(&world, &[], 45);
}

/// The wait that applied to it before it terminated counts on.
#[rstest]
#[case::without_budget(None, 53)]
#[case::with_budget(Some(0), 76)]
fn protected_finalizer_fails_drain_after_the_evictions_wait(#[case] room: Option<i32>, #[case] minutes: i64) {
    let protected = json!({ "metadata": { "finalizers": ["foregroundDeletion"] } });
    let world = World::draining()
        .pod(with(with(pod("p"), terminating(30, 1)), protected))
        .budgets(room.map(|room| budget("web", room)));
    assert_fails_at(&world, &[], minutes);
}

/// A pod on a node that is not Ready is not deleted without grace; its wait counts all the same.
#[test]
fn withheld_pod_fails_drain_after_its_wait() {
    let claim =
        json!({ "spec": { "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }] } });
    let stuck = with(with(uncovered("p"), claim), terminating(30, 1));
    assert_fails_at(&World::draining().node_with(not_ready()).pod(stuck), &[], 53);
}

/// The next pod's turn comes by itself.
#[test]
fn drain_has_not_failed_while_budgets_take_turns() {
    let world = World::draining()
        .pods([with(pod("a"), terminating(2_000, 1_000)), pod("b")])
        .budget(budget("web", 0));
    let plan = world.at(500);
    assert_eq!(plan.reason("b"), Some(BlockerReason::BudgetInUse));
    let waits = world
        .policy()
        .waits_for(&world.snapshot().nodes[0], &PdbForceDrainTimeout::NotSet);
    let clock = DrainClock::parse(&clock(0)).unwrap();
    let waiting: Vec<Blocker> = plan
        .verdict("n1")
        .blockers
        .iter()
        .filter(|blocker| &*blocker.pod.name == "b")
        .cloned()
        .collect();
    assert_eq!(failed_at(&waiting, &clock, &waits), None);
}

#[rstest]
#[case::limit_of_a_minute(BlockerReason::LimitReached, Some(501), false)]
#[case::limit_of_the_node(BlockerReason::LimitReached, None, true)]
#[case::hold_with_an_end(BlockerReason::BudgetHeld, Some(600), false)]
#[case::hold_without_an_end(BlockerReason::BudgetHeld, None, true)]
#[case::denied_attempt(BlockerReason::Denied, Some(501), true)]
#[case::budget_that_may_not_be_overridden(BlockerReason::BudgetExhausted, None, true)]
fn drain_has_not_failed_while_what_holds_it_back_ends_by_itself(
    #[case] reason: BlockerReason,
    #[case] until: Option<i64>,
    #[case] fails: bool,
) {
    let world = World::draining().pod(pod("p")).budget(budget("web", 0));
    let mut blocker = world.at(1).blocker("p").unwrap().clone();
    blocker.reason = reason;
    blocker.next = Next::HeldBack {
        strategy: StrategyName::PdbDelete,
        due: minute(68),
        until: until.map(minute),
    };
    let waits = world
        .policy()
        .waits_for(&world.snapshot().nodes[0], &PdbForceDrainTimeout::NotSet);
    let clock = DrainClock::parse(&clock(0)).unwrap();
    assert_eq!(failed_at(&[blocker], &clock, &waits), fails.then(|| minute(76)));
}

/// Not even a time for its failure is given.
#[test]
fn no_failure_is_foreseen_before_pending_strategies() {
    let world = World::draining()
        .pods([uncovered("p"), pod("q")])
        .budget(budget("web", 0));
    let plan = refused(&world, &["p"], 46);
    let verdict = plan.verdict("n1");
    let clock = DrainClock::parse(&clock(0)).unwrap();
    let snapshot = world.snapshot();
    let waits = world
        .policy()
        .waits_for(&snapshot.nodes[0], &PdbForceDrainTimeout::NotSet);
    assert_eq!(failed_at(&verdict.blockers, &clock, &waits), None);
    let (done, _): (Vec<Blocker>, Vec<Blocker>) = verdict.blockers.iter().cloned().partition(|b| !b.next.is_pending());
    assert_eq!(failed_at(&done, &clock, &waits), Some(minute(53)));
}

#[test]
fn without_blockers_no_drain_fails() {
    let plan = World::draining().at(10_000);
    assert!(!plan.has_failed() && plan.verdict("n1").blockers.is_empty());
    assert_eq!(plan.requeue_at, None, "nothing is left to wait for");
}
