//! Strategies and their due moments.

use jiff::SignedDuration;
use nodeward_api::reason::BlockerReason;
use nodeward_core::strategy::{Remedy, StrategyName};
use nodeward_core::verdict::Next;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{
    World, budget, clock, cordon, finalizers, minute, node, objects, owner, pod, second, terminating, upgrade_config,
    with,
};
use crate::snapshot::Outcome;

use StrategyName::{Delete, Finalizer, PdbDelete, PdbFinalizer, PdbStuckTerminating, StuckTerminating};

#[rstest]
#[case::delete(pod("p"), false, Delete, Remedy::Evict, 45)]
#[case::finalizer(with(with(pod("p"), terminating(30, 1)), finalizers(&["a.io/x"])), false, Finalizer, Remedy::RemoveFinalizers, 45)]
#[case::stuck(with(pod("p"), terminating(30, 1)), false, StuckTerminating, Remedy::DeleteNow, 45)]
#[case::pdb_delete(pod("p"), true, PdbDelete, Remedy::EvictOrDelete, 68)]
#[case::pdb_finalizer(with(with(pod("p"), terminating(30, 1)), finalizers(&["a.io/x"])), true, PdbFinalizer, Remedy::RemoveFinalizers, 68)]
#[case::pdb_stuck(with(pod("p"), terminating(30, 1)), true, PdbStuckTerminating, Remedy::DeleteNow, 68)]
// `forceAfter` beyond its own grace, where that ends after the wait.
#[case::finalizer_after_grace(with(with(pod("p"), terminating(50, 30)), finalizers(&["a.io/x"])), false, Finalizer, Remedy::RemoveFinalizers, 55)]
#[case::stuck_after_grace(with(pod("p"), terminating(50, 30)), false, StuckTerminating, Remedy::DeleteNow, 55)]
#[case::pdb_finalizer_after_the_delete(with(with(pod("p"), terminating(70, 1)), finalizers(&["a.io/x"])), true, PdbFinalizer, Remedy::RemoveFinalizers, 75)]
#[case::pdb_stuck_after_the_delete(
    with(pod("p"), terminating(70, 1)),
    true,
    PdbStuckTerminating,
    Remedy::DeleteNow,
    75
)]
// A pod created after the drain began counts from its creation.
#[case::created_later(with(pod("p"), json!({ "metadata": { "creationTimestamp": minute(10).to_string() } })), false, Delete, Remedy::Evict, 55)]
#[case::created_later_in_a_budget(with(pod("p"), json!({ "metadata": { "creationTimestamp": minute(10).to_string() } })), true, PdbDelete, Remedy::EvictOrDelete, 78)]
// A finished pod that terminates does block a drain.
#[case::finished_with_a_finalizer(
    with(with(with(pod("p"), terminating(30, 1)), finalizers(&["a.io/x"])), json!({ "status": { "phase": "Succeeded" } })),
    false, Finalizer, Remedy::RemoveFinalizers, 45
)]
#[case::pending(with(pod("p"), json!({ "status": { "phase": "Pending" } })), false, Delete, Remedy::Evict, 45)]
// Finalizers are removed from terminating pods only.
#[case::running_with_a_finalizer(with(pod("p"), finalizers(&["a.io/x"])), false, Delete, Remedy::Evict, 45)]
fn strategies_act_at_due_time_never_earlier(
    #[case] pod: Value,
    #[case] covered: bool,
    #[case] strategy: StrategyName,
    #[case] remedy: Remedy,
    #[case] due: i64,
) {
    let budgets = covered.then(|| budget("web", 0));
    let world = World::draining().pod(pod).budgets(budgets);
    let before = world.plan(minute(due) - SignedDuration::from_secs(1));
    assert_eq!(before.acted(), Vec::<&str>::new());
    assert_eq!(before.requeue_at, Some(minute(due)));
    assert_eq!(
        before.next("p"),
        Next::At {
            strategy,
            due: minute(due)
        }
    );
    let at = world.at(due);
    let acts = at.acts();
    assert_eq!(acts.len(), 1, "{:?}", at.verdicts);
    assert_eq!(
        (acts[0].strategy.name, acts[0].strategy.remedy, acts[0].due),
        (strategy, remedy, minute(due))
    );
    assert_eq!(
        at.next("p"),
        Next::Now {
            strategy,
            due: minute(due)
        }
    );
}

#[rstest]
#[case::terminating_within_grace(with(pod("p"), terminating(80, 60)), BlockerReason::Terminating)]
#[case::beyond_grace(with(pod("p"), terminating(30, 1)), BlockerReason::StuckTerminating)]
#[case::kept_by_a_finalizer(with(with(pod("p"), terminating(30, 1)), finalizers(&["a.io/x"])), BlockerReason::FinalizerStuck)]
#[case::only_protected_ones(
    with(with(pod("p"), terminating(30, 1)), finalizers(&["foregroundDeletion"])),
    BlockerReason::ProtectedFinalizer
)]
#[case::waiting(pod("p"), BlockerReason::AwaitingEviction)]
// Finalizers of a pod that does not terminate keep nothing.
#[case::running_with_a_finalizer(with(pod("p"), finalizers(&["a.io/x"])), BlockerReason::AwaitingEviction)]
fn a_blocker_says_why_it_is_still_there(#[case] pod: Value, #[case] reason: BlockerReason) {
    assert_eq!(World::draining().pod(pod).at(40).reason("p"), Some(reason));
}

#[rstest]
#[case::protected_by_default("batch.kubernetes.io/job-tracking", "", false)]
#[case::foreground("foregroundDeletion", "", false)]
#[case::configured("a.io/x", "protectedFinalizers: [a.io/x]", false)]
#[case::not_configured_any_more("foregroundDeletion", "protectedFinalizers: [a.io/x]", true)]
#[case::ordinary("a.io/x", "", true)]
fn protected_finalizers_are_never_removed(#[case] finalizer: &str, #[case] config: &str, #[case] acts: bool) {
    let stuck = with(with(pod("p"), terminating(30, 1)), finalizers(&[finalizer]));
    let plan = World::draining().also(config).pod(stuck).at(10_000);
    assert_eq!(plan.acted().len(), usize::from(acts));
    let reason = if acts {
        BlockerReason::FinalizerStuck
    } else {
        BlockerReason::ProtectedFinalizer
    };
    assert_eq!(plan.reason("p"), Some(reason));
    assert_eq!(plan.blocker("p").unwrap().finalizers, [finalizer]);
}

/// A pod with a protected finalizer is not deleted past it either.
#[test]
fn protected_finalizer_stays_others_are_removed() {
    let stuck = with(
        with(pod("p"), terminating(30, 1)),
        finalizers(&["foregroundDeletion", "a.io/x"]),
    );
    assert_eq!(World::draining().pod(stuck).at(45).strategy(), Some(Finalizer));
}

#[rstest]
#[case::of_the_upgrade_config(upgrade_config(json!({ "spec": { "PDBForceDrainTimeout": 30 } })), 38, None)]
#[case::zero_is_legal(upgrade_config(json!({ "spec": { "PDBForceDrainTimeout": 0 } })), 8, None)]
#[case::missing(upgrade_config(json!({ "spec": { "PDBForceDrainTimeout": null } })), 28, Some("is not set"))]
#[case::not_a_number(upgrade_config(json!({ "spec": { "PDBForceDrainTimeout": "soon" } })), 28, Some("\"soon\""))]
#[case::negative(upgrade_config(json!({ "spec": { "PDBForceDrainTimeout": -1 } })), 28, Some("-1"))]
#[case::a_fraction(upgrade_config(json!({ "spec": { "PDBForceDrainTimeout": 1.5 } })), 28, Some("1.5"))]
fn budget_wait_falls_back_to_ours_with_warning(#[case] config: Value, #[case] due: i64, #[case] warning: Option<&str>) {
    let world = World::openshift()
        .config("pdbForceDrainTimeout: 20")
        .upgrade_configs([config])
        .pod(pod("p"))
        .budget(budget("web", 0));
    let plan = world.at(1);
    assert_eq!(
        plan.next("p"),
        Next::At {
            strategy: PdbDelete,
            due: minute(due)
        }
    );
    let texts: Vec<&str> = plan.warnings.iter().map(|warning| warning.text.as_str()).collect();
    assert_eq!(texts.len(), usize::from(warning.is_some()), "{texts:?}");
    assert!(
        texts
            .iter()
            .all(|text| text.contains(warning.unwrap()) && text.contains("pdbForceDrainTimeout")),
        "{texts:?}"
    );
}

#[test]
fn endless_upgrade_timeout_is_bounded_with_warning() {
    let endless = upgrade_config(json!({ "spec": { "PDBForceDrainTimeout": u64::MAX } }));
    let world = World::openshift()
        .upgrade_configs([endless])
        .pod(pod("p"))
        .budget(budget("web", 0));
    let plan = world.at(1);
    let due = minute(8 + 100 * 365 * 24 * 60);
    assert_eq!(
        plan.next("p"),
        Next::At {
            strategy: PdbDelete,
            due
        }
    );
    let texts: Vec<&str> = plan.warnings.iter().map(|warning| warning.text.as_str()).collect();
    assert!(
        matches!(texts.as_slice(), [text] if text.ends_with("a hundred years count instead")),
        "{texts:?}"
    );
}

#[test]
fn pool_overrides_waits_and_inherits_the_rest() {
    let world = World::draining()
        .also(
            "nodeDrain: {timeOut: 30, expectedNodeDrainTime: 4}, pdbForceDrainTimeout: 10, \
             pools: [{selector: {pool: slow}, nodeDrain: {timeOut: '3h'}}, {selector: {}, nodeDrain: {expectedNodeDrainTime: 1}}]",
        )
        .node_with(json!({ "metadata": { "labels": { "pool": "slow" } } }))
        .node(node("n2"))
        .budget(budget("web", 0));
    let web = |name: &str, node: &str| with(pod(name), json!({ "spec": { "nodeName": node } }));
    let bare = |pod: Value| with(pod, json!({ "metadata": { "labels": null } }));
    let plan = world
        .pods([
            web("a", "n1"),
            bare(web("b", "n1")),
            web("c", "n2"),
            bare(web("d", "n2")),
        ])
        .at(1);
    let due = |pod: &str| plan.next(pod).due().unwrap();
    assert_eq!(
        (due("a"), due("b")),
        (minute(14), minute(180)),
        "the first pool that matches"
    );
    assert_eq!(
        (due("c"), due("d")),
        (minute(11), minute(30)),
        "the pool that selects all"
    );
}

/// The server decides: a budget that the cache has not seen yet refuses the eviction, and the pod moves to the strategies
/// for covered pods.
#[test]
fn pod_refused_for_budget_waits_as_covered() {
    let refused = |now| {
        World::draining()
            .pod(pod("p"))
            .attempted("p", Outcome::RefusedByBudget, minute(now))
    };
    let plan = refused(45).plan(minute(45) + SignedDuration::from_secs(1));
    assert_eq!(
        plan.next("p"),
        Next::At {
            strategy: PdbDelete,
            due: minute(68)
        }
    );
    assert_eq!(plan.reason("p"), Some(BlockerReason::BudgetExhausted));
    assert_eq!(refused(45).at(67).strategy(), None);
    assert_eq!(refused(45).at(68).strategy(), Some(PdbDelete));
}

#[rstest]
#[case::sent(Outcome::Sent, BlockerReason::AwaitingEviction)]
#[case::outdated(Outcome::NotSent, BlockerReason::AwaitingEviction)]
#[case::namespace_terminating(Outcome::NamespaceTerminating, BlockerReason::NamespaceTerminating)]
#[case::failed(Outcome::Failed("boom".to_owned()), BlockerReason::Retrying)]
#[case::denied(Outcome::Denied("boom".to_owned()), BlockerReason::Denied)]
#[case::throttled(Outcome::Throttled("boom".to_owned()), BlockerReason::Throttled)]
fn attempt_waits_alone_for_its_retry(#[case] outcome: Outcome, #[case] reason: BlockerReason) {
    let now = minute(45);
    let world = World::draining()
        .pods([pod("p"), pod("q")])
        .attempted("p", outcome, now);
    let plan = world.plan(now);
    assert_eq!(plan.acted(), ["q"]);
    assert_eq!(plan.reason("p"), Some(reason));
    assert_eq!(plan.requeue_at, Some(now + SignedDuration::from_secs(10)));
    assert_eq!(world.plan(now + SignedDuration::from_secs(10)).acted(), ["p", "q"]);
}

/// What only waits for the watch ends with the watch.
#[rstest]
#[case::asked_to_go_and_not_seen_to(Outcome::Sent, json!({}), false)]
#[case::asked_to_go_and_seen_to(Outcome::Sent, terminating(0, 30), true)]
#[case(Outcome::NotSent, json!({}), true)]
#[case(Outcome::Failed("boom".to_owned()), json!({}), false)]
fn changed_pod_is_reevaluated_unless_backoff_runs(#[case] outcome: Outcome, #[case] state: Value, #[case] acts: bool) {
    let now = minute(45);
    let changed = with(with(pod("p"), state), json!({ "metadata": { "resourceVersion": "2" } }));
    let plan = World::draining().pod(changed).attempted("p", outcome, now).plan(now);
    assert_eq!(plan.acted().len(), usize::from(acts));
}

#[test]
fn an_act_carries_what_it_rests_on() {
    let plan = World::draining().pod(pod("p")).at(50);
    let act = plan.acts()[0];
    assert_eq!(
        (act.node.as_str(), act.node_uid.as_str(), act.pod.uid.as_str()),
        ("n1", "n1", "p")
    );
    assert_eq!(
        (act.clock.to_string(), act.due, act.was_held_back),
        (clock(0), minute(45), false)
    );
}

#[rstest]
#[case::daemon_set(json!({ "metadata": { "ownerReferences": [owner("apps/v1", "DaemonSet")] } }))]
#[case::mirror_pod(json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "x" } } }))]
#[case::succeeded(json!({ "status": { "phase": "Succeeded" } }))]
#[case::failed(json!({ "status": { "phase": "Failed" } }))]
#[case::opted_out(json!({ "metadata": { "labels": { "nodeward.dev/drain": "skip" } } }))]
#[case::opted_out_and_terminating(with(terminating(30, 1), json!({ "metadata": { "labels": { "nodeward.dev/drain": "skip" } } })))]
fn ignored_pods_are_neither_touched_nor_named(#[case] patch: Value) {
    let world = World::draining().pod(with(pod("p"), patch)).budget(budget("web", 0));
    for minutes in [10, 10_000] {
        let plan = world.at(minutes);
        assert_eq!((plan.acted().len(), plan.blocker("p")), (0, None));
        assert!(!plan.has_failed(), "nothing blocks it");
    }
}

/// `expectedNodeDrainTime` of the peer's file and times as text.
#[test]
fn every_time_may_be_minutes_or_a_duration() {
    let world = World::draining()
        .also("nodeDrain: {timeOut: '90s', expectedNodeDrainTime: '1m30s'}, pdbForceDrainTimeout: 1")
        .pods([pod("p"), with(pod("q"), json!({ "metadata": { "labels": null } }))])
        .budget(budget("web", 0));
    let plan = world.at(0);
    assert_eq!(plan.next("q").due(), Some(second(90)));
    assert_eq!(plan.next("p").due(), Some(second(150)));
}

/// An upgrade that a config of another kind announces leaves the configured wait.
#[test]
fn configured_wait_counts_without_upgrading_config() {
    let done = upgrade_config(json!({ "spec": { "PDBForceDrainTimeout": null }, "status": { "history": [] } }));
    let plan = World::draining()
        .signal(
            "upgrade.managed.openshift.io/v1alpha1",
            "UpgradeConfig",
            objects([done]),
        )
        .pod(pod("p"))
        .budget(budget("web", 0))
        .at(1);
    assert_eq!(plan.next("p").due(), Some(minute(68)));
    assert!(plan.warnings.is_empty());
}

/// The start is where all waits count from: a clock that starts later moves them all.
#[rstest]
#[case(0, 45)]
#[case(20, 65)]
fn waits_count_from_the_recorded_clock(#[case] start: i64, #[case] due: i64) {
    let patch = json!({
        "metadata": { "annotations": { "nodeward.dev/drain-clock": clock(start) } },
        "spec": { "taints": [cordon(start)] },
    });
    let world = World::empty().node(with(node("n1"), patch)).pod(pod("p"));
    assert_eq!(
        (world.at(due - 1).strategy(), world.at(due).strategy()),
        (None, Some(Delete))
    );
}

/// The server's clock may be behind ours: its deletionTimestamp then lies in our past at once.
#[test]
fn evicted_pod_keeps_grace_by_our_clock() {
    let mut world = World::draining()
        .pod(with(pod("p"), terminating(41, 1)))
        .attempted("p", Outcome::Sent, minute(1));
    world.memory.attempts.get_mut("p").unwrap().asked_at = Some(minute(46));
    assert!(world.plan(minute(51)).acted().is_empty());
    assert_eq!(world.plan(minute(52)).acted(), ["p"]);
}
