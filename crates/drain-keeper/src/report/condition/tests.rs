use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::plan::tests::world::{World, budget, minute, pod, remediated, terminating, with};
use crate::snapshot::Outcome;

/// Every moment is told in seconds after the drain's start.
fn at(second: i64) -> Timestamp {
    crate::plan::tests::world::second(second)
}

/// A drain that a budget without room blocks.
fn blocked() -> World {
    World::draining().pod(pod("p")).budget(budget("web", 0))
}

fn look(conditions: &mut Conditions, world: &World, now: Timestamp) -> (Vec<Change>, Option<Timestamp>) {
    let (changes, requeue_at) = conditions.changes(&world.snapshot(), &world.plan(now), now);
    for change in &changes {
        conditions.started(&change.uid);
    }
    (changes, requeue_at)
}

/// The one change that is to be written now.
fn change(conditions: &mut Conditions, world: &World, now: Timestamp) -> Change {
    let (mut changes, _) = look(conditions, world, now);
    assert_eq!(changes.len(), 1, "{changes:?}");
    changes.remove(0)
}

fn quiet(conditions: &mut Conditions, world: &World, now: Timestamp) -> Option<Timestamp> {
    let (changes, requeue_at) = look(conditions, world, now);
    assert_eq!(changes, []);
    requeue_at
}

/// The change was written, and the watch shows it.
fn written(conditions: &mut Conditions, world: World, change: &Change, now: Timestamp) -> World {
    conditions.written(&change.uid, true, now);
    let mut all = vec![json!({ "type": "Ready", "status": "True" })];
    all.extend(change.condition.as_ref().map(standing));
    world.node_with(json!({ "status": { "conditions": all } }))
}

fn standing(condition: &DrainBlocked) -> Value {
    json!({
        "type": "nodeward.dev/DrainBlocked", "status": condition.reason.status(), "reason": condition.reason.as_str(),
        "message": condition.message, "lastTransitionTime": condition.since.to_string(),
    })
}

#[test]
fn condition_names_the_gate_once_the_upgrade_stays_off() {
    let (mut conditions, world, _) = told(blocked());
    let mut over = world.config("{upgradeSignal: {node: {label: upgrading}}}");
    over.memory.node_history = over.plan(at(100)).node_history;
    quiet(&mut conditions, &over, at(219));
    let condition = change(&mut conditions, &over, at(220)).condition.unwrap();
    assert_eq!(condition.reason, ConditionReason::Gate(GateReason::NotUpgrading));
}

#[rstest]
#[case::not_upgrading(
    "{upgradeSignal: {node: {label: upgrading}}}",
    GateReason::NotUpgrading,
    "; to do: check upgradeSignal"
)]
#[case::not_draining(
    "{upgradeSignal: always, countsAsDrain: {annotation: drained-by}}",
    GateReason::NotDraining,
    "drained-by"
)]
fn closed_gate_is_named_once_it_has_settled(#[case] config: &str, #[case] gate: GateReason, #[case] says: &str) {
    let no_clock = json!({ "metadata": { "annotations": { "nodeward.dev/drain-clock": null } } });
    let world = World::draining().node_with(no_clock).config(config);
    let mut conditions = Conditions::default();
    assert_eq!(quiet(&mut conditions, &world, at(60)), Some(at(75)));
    let change = change(&mut conditions, &world, at(75));
    let condition = change.condition.clone().unwrap();
    assert_eq!(
        (condition.reason, condition.since),
        (ConditionReason::Gate(gate), at(60))
    );
    assert!(
        condition.message.starts_with("drain-keeper does not act: the node ") && condition.message.contains(says),
        "{}",
        condition.message
    );
    assert_eq!((change.news.len(), change.has_failed), (0, false));
    let world = written(&mut conditions, world, &change, at(75));
    assert_eq!(quiet(&mut conditions, &world, at(600)), None);
    // Another process finds it told, and takes it back when the node is in use again.
    let mut after = Conditions::default();
    quiet(&mut after, &world, at(700));
    let uncordoned = world.node_with(json!({ "spec": { "unschedulable": false, "taints": null } }));
    assert_eq!(self::change(&mut after, &uncordoned, at(701)).condition, None);
}

#[test]
fn remediation_replaces_the_blocked_condition_at_once() {
    let (mut conditions, mut world, _) = told(blocked());
    world.remediations = remediated("n1");
    let condition = change(&mut conditions, &world, at(67)).condition.unwrap();
    assert_eq!(condition.reason, ConditionReason::Gate(GateReason::UnderRemediation));
}

/// Conditions that told, of `world`, what blocks it since second 60; it stands since second 65.
fn told(world: World) -> (Conditions, World, DrainBlocked) {
    let mut conditions = Conditions::default();
    look(&mut conditions, &world, at(60));
    let change = change(&mut conditions, &world, at(65));
    let world = written(&mut conditions, world, &change, at(65));
    (conditions, world, change.condition.unwrap())
}

#[test]
fn a_blocked_drain_is_said_once_it_has_settled() {
    let mut conditions = Conditions::default();
    assert_eq!(quiet(&mut conditions, &blocked(), at(60)), Some(at(65)));
    assert_eq!(quiet(&mut conditions, &blocked(), at(64)), Some(at(65)));
    let change = change(&mut conditions, &blocked(), at(65));
    let condition = change.condition.unwrap();
    assert_eq!(
        (condition.reason, condition.since),
        (ConditionReason::Blocked(BlockerReason::BudgetExhausted), at(60))
    );
    assert_eq!(
        condition.message,
        "1 pod keeps the drain from ending: shop/p is covered by a budget that allows no disruption (PDB shop/web); next: PdbDelete at \
         2026-01-01T01:08:00Z: evict it, or delete it if the budget refuses"
    );
    assert_eq!((change.news.len(), change.has_failed), (1, false));
}

#[rstest]
#[case::waiting(json!({}))]
#[case::terminating(terminating(30, 29))]
fn an_ordinary_drain_leaves_no_trace(#[case] state: Value) {
    let world = World::draining().pod(with(pod("p"), state));
    let mut conditions = Conditions::default();
    for second in [60, 65, 600] {
        assert_eq!(quiet(&mut conditions, &world, at(second)), None);
    }
}

#[test]
fn obstacle_gone_while_settling_is_never_reported() {
    let mut conditions = Conditions::default();
    quiet(&mut conditions, &blocked(), at(60));
    quiet(&mut conditions, &World::draining(), at(63));
    assert_eq!(quiet(&mut conditions, &blocked(), at(66)), Some(at(71)));
}

#[test]
fn what_stands_is_not_written_again() {
    let (mut conditions, world, _) = told(blocked());
    assert_eq!(quiet(&mut conditions, &world, at(100)), None);
}

#[rstest]
// Succeeded, and the watch does not show it yet.
#[case::not_seen_yet(true, 80)]
#[case::failed(false, 71)]
fn a_write_is_not_repeated_at_once(#[case] succeeded: bool, #[case] again: i64) {
    let mut conditions = Conditions::default();
    quiet(&mut conditions, &blocked(), at(60));
    let change = change(&mut conditions, &blocked(), at(65));
    assert_eq!(
        quiet(&mut conditions, &blocked(), at(66)),
        None,
        "while it is under way"
    );
    conditions.written(&change.uid, succeeded, at(66));
    assert_eq!(quiet(&mut conditions, &blocked(), at(66)), Some(at(again)));
    let again = self::change(&mut conditions, &blocked(), at(again));
    assert_eq!(
        (again.news.len(), again.condition),
        (0, change.condition),
        "and is no news"
    );
}

#[rstest]
#[case::not_seen_yet(true, 115)]
#[case::failed(false, 106)]
fn a_removal_is_not_repeated_at_once(#[case] succeeded: bool, #[case] again: i64) {
    let (mut conditions, world, _) = told(blocked());
    let free = world.node_with(json!({ "spec": { "unschedulable": false, "taints": null } }));
    let change = change(&mut conditions, &free, at(100));
    conditions.written(&change.uid, succeeded, at(101));
    assert_eq!(quiet(&mut conditions, &free, at(101)), Some(at(again)));
    assert_eq!(self::change(&mut conditions, &free, at(again)).condition, None);
}

#[rstest]
#[case::no_blocker_left(|_: World, standing: Value| World::draining().node_with(standing))]
#[case::uncordoned(|world: World, _: Value| world.node_with(json!({ "spec": { "unschedulable": false, "taints": null } })))]
#[case::only_its_own_pace(|_: World, standing: Value| World::draining().node_with(standing).pod(pod("p")))]
fn the_condition_goes_at_once_with_what_it_says(#[case] becomes: fn(World, Value) -> World) {
    let (mut conditions, world, condition) = told(blocked());
    let standing = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }, standing(&condition)] } });
    // Sooner than a message would be changed.
    let change = change(&mut conditions, &becomes(world, standing), at(67));
    assert_eq!((change.condition, change.news.len()), (None, 0));
}

#[rstest]
#[case::pods_syncing(|world: World| world.syncing("n1"))]
#[case::upgrade_off_for_a_moment(|world: World| world.config("{upgradeSignal: {node: {label: upgrading}}}"))]
#[case::remediation_unknown(|mut world: World| { world.remediations.add_unknown("forbidden".to_owned()); world })]
#[case::clock_starting(|world: World| world.node_with(json!({ "metadata": { "annotations": { "nodeward.dev/drain-clock": null } } })))]
fn what_stands_stays_while_nothing_is_known(#[case] becomes: fn(World) -> World) {
    let (mut conditions, world, _) = told(blocked());
    quiet(&mut conditions, &becomes(world), at(100));
}

#[test]
fn message_stays_unless_its_reason_changes() {
    let (mut conditions, world, _) = told(blocked());
    let more = world.clone().pod(pod("q"));
    assert_eq!(quiet(&mut conditions, &more, at(70)), Some(at(80)));
    let other_reason = world.pod(with(
        pod("q"),
        json!({ "metadata": { "ownerReferences": null, "labels": null } }),
    ));
    let change = change(&mut conditions, &other_reason, at(70));
    assert_eq!(
        change.condition.unwrap().reason,
        ConditionReason::Blocked(BlockerReason::Unmanaged),
        "somebody has to look at it"
    );
    assert_eq!(change.news.len(), 1);
}

#[test]
fn a_blocker_is_news_once_for_each_reason() {
    let (mut conditions, world, _) = told(blocked());
    let names = |change: &Change| {
        change
            .news
            .iter()
            .map(|blocker| blocker.pod.name.to_string())
            .collect::<Vec<_>>()
    };
    let world = world.pod(pod("q"));
    let first = change(&mut conditions, &world, at(100));
    assert_eq!(names(&first), ["q"]);
    let world = written(&mut conditions, world, &first, at(100)).budget(budget("second", 0));
    let second = change(&mut conditions, &world, at(200));
    assert_eq!(names(&second), ["p", "q"], "several budgets are another reason");
    let after = written(&mut conditions, world, &second, at(200));
    assert_eq!(quiet(&mut conditions, &after, at(300)), None);
}

#[test]
fn a_failed_drain_is_said_once() {
    let opted_out = with(
        pod("p"),
        json!({ "metadata": { "labels": { "nodeward.dev/drain": "wait-completed" } } }),
    );
    let (mut conditions, world, _) = told(World::draining().pod(opted_out));
    assert_eq!(quiet(&mut conditions, &world, minute(44)), None);
    let failed = change(&mut conditions, &world, minute(45));
    assert!(failed.has_failed && failed.news.is_empty());
    assert!(
        failed
            .condition
            .as_ref()
            .unwrap()
            .message
            .starts_with("The drain has failed")
    );
    let world = written(&mut conditions, world, &failed, minute(45)).pod(pod("q"));
    let later = change(&mut conditions, &world.budget(budget("web", 0)), minute(46));
    assert!(!later.has_failed, "q is pending, and what was said stays said");
}

/// Another process goes on from what stands.
#[rstest]
#[case::told("True", 65, 60)]
#[case::of_nobody("False", 105, 100)]
fn the_beginning_is_read_from_what_stands(#[case] status: &str, #[case] earliest: i64, #[case] since: i64) {
    let (_, world, condition) = told(blocked());
    let mut standing = standing(&condition);
    standing["status"] = status.into();
    let world = world
        .node_with(json!({ "status": { "conditions": [standing] } }))
        .node_with(json!({}))
        .pod(pod("q"));
    let mut conditions = Conditions::default();
    let now = at(100.max(earliest));
    if now < at(earliest) || earliest > 100 {
        quiet(&mut conditions, &world, at(100));
    }
    let change = change(&mut conditions, &world, now);
    assert_eq!(change.condition.unwrap().since, at(since));
}

#[rstest]
#[case::needs_somebody_before_all(
    json!({ "metadata": { "labels": { "nodeward.dev/drain": "what" } } }), BlockerReason::UnknownOptOut
)]
#[case::nothing_but_pace(json!({ "metadata": { "labels": null } }), BlockerReason::BudgetExhausted)]
fn reason_follows_the_most_important_pod(#[case] patch: Value, #[case] reason: BlockerReason) {
    let world = blocked().pod(with(pod("a"), patch));
    let (_, _, condition) = told(world);
    assert_eq!(condition.reason, ConditionReason::Blocked(reason));
}

/// Held back by something of ours: not the drain's own pace.
#[test]
fn limited_pod_is_an_obstacle() {
    let now = minute(45);
    let world = World::draining()
        .pod(pod("p"))
        .attempted("p", Outcome::Failed("boom".to_owned()), now);
    let mut conditions = Conditions::default();
    quiet(&mut conditions, &world, now);
    let five = now + SignedDuration::from_secs(5);
    let condition = change(&mut conditions, &world, five).condition.unwrap();
    assert_eq!(condition.reason, ConditionReason::Blocked(BlockerReason::Retrying));
    assert!(condition.message.contains("boom"), "{}", condition.message);
}

#[test]
fn message_names_ten_pods_obstacles_first() {
    let pace = (0..3).map(|index| with(pod(&format!("a{index}")), json!({ "metadata": { "labels": null } })));
    let covered = (0..9).map(|index| pod(&format!("z{index}")));
    let (_, _, condition) = told(World::draining().pods(pace).pods(covered).budget(budget("web", 0)));
    let message = condition.message;
    assert!(
        message.starts_with("12 pods keep the drain from ending: shop/z0 "),
        "{message}"
    );
    assert!(
        message.ends_with("| and 2 more") && message.contains("shop/a0") && !message.contains("shop/a1"),
        "{message}"
    );
}

#[test]
fn a_node_that_is_gone_is_forgotten() {
    let mut conditions = Conditions::default();
    quiet(&mut conditions, &blocked(), at(60));
    quiet(&mut conditions, &World::empty(), at(61));
    assert!(conditions.nodes.is_empty());
    conditions.written(&"n1".into(), false, at(62));
}

/// A cluster may have a drain-keeper for each of several sets of nodes.
#[rstest]
#[case::cordoned(json!({}))]
#[case::uncordoned(json!({ "spec": { "unschedulable": false, "taints": null } }))]
fn condition_out_of_scope_is_removed_only_if_ours(#[case] node: Value) {
    let (mut conditions, world, _) = told(blocked());
    let world = world.node_with(node).also("nodeSelector: {pool: blue}");
    quiet(&mut Conditions::default(), &world, at(100));
    assert_eq!(change(&mut conditions, &world, at(100)).condition, None);
}
