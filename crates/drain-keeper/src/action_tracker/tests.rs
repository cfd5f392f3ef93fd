use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use nodeward_core::id::BudgetKey;

use crate::plan::tests::world::{World, budget, clock, minute, node, pod, second, with};
use crate::plan::{Action, ClockAction, PodAction};

const RATE: NonZeroU32 = NonZeroU32::new(30).unwrap();

fn nothing(dry_run: bool) -> ActionTracker {
    ActionTracker::nothing(RATE, dry_run, second(0))
}

fn seconds(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

/// An act on the pod `p`, which falls due at once.
fn act() -> PodAction {
    World::draining().pod(pod("p")).at(45).acts()[0].clone()
}

fn started(tracker: &mut ActionTracker, action: &PodAction, now: Timestamp) {
    tracker.started(action, now);
}

/// The action has ended, and is tried again in a minute if it failed.
fn completed(tracker: &mut ActionTracker, action: PodAction, result: PodResult, now: Timestamp) {
    let has_failed = matches!(
        result,
        ActionResult::Failed(_) | ActionResult::Outdated(_) | ActionResult::Stopped(Stop::PauseUnknown)
    );
    tracker.pod_completed(
        &action,
        &result,
        saturating_add(now, seconds(60)),
        u32::from(has_failed),
        now,
    );
}

/// What is remembered of the last attempt at `p`.
fn attempt(tracker: &ActionTracker) -> Option<&Attempt> {
    tracker.memory.attempts.get("p")
}

fn failed() -> PodResult {
    ActionResult::Failed(ApiError::Timeout)
}

fn refused() -> PodResult {
    ActionResult::Failed(ApiError::RefusedByBudget { retry_after: None })
}

const GONE: PodResult = ActionResult::AlreadyDone;
const EVICTED: PodResult = ActionResult::Acted(Forced::Evicted);
const DRY_RUN: PodResult = ActionResult::Stopped(Stop::DryRun);
const NOT_LEADING: PodResult = ActionResult::Stopped(Stop::NotLeading);
const POLICY_CHANGED: PodResult = ActionResult::Stopped(Stop::PolicyChanged);

#[rstest]
#[case::evicted(EVICTED, Outcome::Sent, seconds(10))]
#[case::gone(GONE, Outcome::Sent, seconds(10))]
#[case::dry_run(DRY_RUN, Outcome::NotSent, SignedDuration::from_hours(1))]
fn done_action_is_not_repeated_before_watch_shows(
    #[case] outcome: PodResult,
    #[case] remembered: Outcome,
    #[case] wait: SignedDuration,
) {
    let mut tracker = nothing(false);
    completed(&mut tracker, act(), outcome, minute(45));
    let attempt = attempt(&tracker).unwrap();
    assert_eq!((&attempt.outcome, attempt.retry_at), (&remembered, minute(45) + wait));
    assert_eq!(attempt.resource_version.as_str(), "1");
}

#[test]
fn what_is_under_way_is_not_started_again() {
    let mut tracker = nothing(false);
    started(&mut tracker, &act(), minute(45));
    let attempt = attempt(&tracker).unwrap();
    assert_eq!(
        (&attempt.outcome, attempt.retry_at),
        (&Outcome::Sent, minute(45) + seconds(180)),
        "a request may hang; what counts is its end"
    );
}

#[test]
fn budget_refusal_survives_later_attempts() {
    let mut tracker = nothing(false);
    completed(&mut tracker, act(), refused(), minute(45));
    started(&mut tracker, &act(), minute(46));
    completed(&mut tracker, act(), failed(), minute(46));
    let attempt = attempt(&tracker).unwrap();
    assert!(attempt.was_refused_by_budget && attempt.failures == 1);
    assert!(matches!(attempt.outcome, Outcome::Failed(_)));
}

#[test]
fn an_override_is_remembered_by_its_budget() {
    let mut tracker = nothing(false);
    let budget = BudgetKey::new("shop", "web");
    completed(
        &mut tracker,
        act(),
        ActionResult::Acted(Forced::BudgetOverridden(vec![budget.clone()])),
        minute(68),
    );
    let remembered = tracker.at(NonZeroU32::MIN, minute(69)).overridden.get(&budget).cloned();
    assert_eq!(remembered.map(|overridden| overridden.at), Some(minute(68)));
}

#[rstest]
#[case::failed(failed(), Outcome::Failed("no answer in time".to_owned()))]
#[case::refused(refused(), Outcome::RefusedByBudget)]
#[case::namespace(ActionResult::Failed(ApiError::NamespaceTerminating), Outcome::NamespaceTerminating)]
#[case::outdated(ActionResult::Outdated("changed".to_owned()), Outcome::NotSent)]
#[case::pause_unread(
    ActionResult::Stopped(Stop::PauseUnknown),
    Outcome::Failed("it cannot be read whether it is paused (ConfigMap nodeward-pause)".to_owned())
)]
fn what_did_not_happen_waits_for_its_backoff(#[case] outcome: PodResult, #[case] remembered: Outcome) {
    let mut tracker = nothing(false);
    completed(&mut tracker, act(), outcome, minute(45));
    let failed = attempt(&tracker).unwrap();
    assert_eq!(
        (&failed.outcome, failed.retry_at, failed.failures),
        (&remembered, minute(46), 1)
    );
    completed(&mut tracker, act(), EVICTED, minute(46));
    assert_eq!(attempt(&tracker).unwrap().failures, 0, "a success forgets them");
}

/// The errors are told apart, and quoted; what only a person can change is not asked again at once.
#[rstest]
#[case::denied(ApiError::Forbidden { message: "no right".to_owned() }, Outcome::Denied("forbidden: no right".to_owned()), 60)]
#[case::unknown_user(ApiError::Unauthorized { message: "who".to_owned() }, Outcome::Denied("unauthorized: who".to_owned()), 60)]
#[case::throttled(
    ApiError::Throttled { message: "later".to_owned(), retry_after: None },
    Outcome::Throttled("throttled: later".to_owned()),
    1
)]
#[case::failing_server(
    ApiError::Server { code: 500, reason: "InternalError".to_owned(), message: "broken".to_owned(), retry_after: None },
    Outcome::Failed("the API server failed with 500: broken".to_owned()),
    1
)]
fn errors_of_the_server_are_told_apart(#[case] error: ApiError, #[case] outcome: Outcome, #[case] again_in: i64) {
    let mut tracker = nothing(false);
    let now = minute(45);
    let retry_at = saturating_add(now, seconds(1));
    tracker.pod_completed(&act(), &ActionResult::Failed(error), retry_at, 1, now);
    let remembered = attempt(&tracker).unwrap();
    assert_eq!(
        (&remembered.outcome, remembered.retry_at),
        (&outcome, saturating_add(now, seconds(again_in)))
    );
}

/// The delay has passed, and the pod still counts as covered.
#[test]
fn refusal_for_a_budget_lasts_until_next_attempt() {
    let mut tracker = nothing(false);
    let world = World::draining().pod(pod("p"));
    completed(&mut tracker, act(), refused(), minute(45));
    let mut snapshot = world.snapshot();
    tracker.compare(&mut snapshot, minute(50));
    let (snapshot_pod, memory) = (act().pod, snapshot.memory);
    assert!(memory.was_refused_by_budget(&snapshot_pod));
    assert_eq!(memory.attempt(&snapshot_pod, minute(50)), None);
}

#[test]
fn attempt_without_leadership_is_forgotten() {
    let mut tracker = nothing(false);
    started(&mut tracker, &act(), minute(45));
    completed(&mut tracker, act(), NOT_LEADING, minute(45));
    assert_eq!(attempt(&tracker), None);
}

/// A reload must not shorten the pod's grace, or forget a refusal.
#[test]
fn a_pods_history_survives_a_change_of_policy() {
    let mut tracker = nothing(false);
    completed(&mut tracker, act(), refused(), minute(45));
    completed(&mut tracker, act(), EVICTED, minute(46));
    completed(&mut tracker, act(), POLICY_CHANGED, minute(47));
    let attempt = attempt(&tracker).unwrap();
    assert_eq!((&attempt.outcome, attempt.retry_at), (&Outcome::NotSent, minute(47)));
    assert!(attempt.was_refused_by_budget);
    assert_eq!(attempt.asked_at, Some(minute(46)));
}

#[rstest]
#[case::acted(EVICTED, 29)]
#[case::overridden(ActionResult::Acted(Forced::BudgetOverridden(Vec::new())), 29)]
#[case::finalizers(ActionResult::Acted(Forced::FinalizersRemoved(vec![])), 29)]
#[case::deleted(ActionResult::Acted(Forced::DeletedNow), 29)]
// Its answer was lost: it may have happened.
#[case::unanswered(failed(), 29)]
#[case::refused(refused(), 30)]
#[case::gone(GONE, 30)]
#[case::outdated(ActionResult::Outdated(String::new()), 30)]
#[case::dry_run(DRY_RUN, 30)]
#[case::not_leading(NOT_LEADING, 30)]
#[case::policy_changed(POLICY_CHANGED, 30)]
fn only_what_was_done_counts_for_the_minutes_limit(#[case] outcome: PodResult, #[case] left: u32) {
    let mut tracker = nothing(false);
    started(&mut tracker, &act(), second(0));
    assert_eq!(tracker.at(RATE, second(0)).acts_left, 29, "while it is under way");
    completed(&mut tracker, act(), outcome, second(0));
    assert_eq!(tracker.at(RATE, second(0)).acts_left, left);
}

#[test]
fn memory_tells_acts_left_and_next_act() {
    let mut tracker = nothing(false);
    for _ in 0..30 {
        started(&mut tracker, &act(), second(0));
    }
    let memory = tracker.at(RATE, second(0));
    let next = memory.next_act_at.unwrap();
    assert_eq!(memory.acts_left, 0);
    assert!(second(2) <= next && next < second(3), "{next}");
    assert_eq!(tracker.at(RATE, next).acts_left, 1);
    assert_eq!(
        nothing(false).at(NonZeroU32::MIN, second(0)).acts_left,
        1,
        "the rate of the policy in force"
    );
}

fn clock_write(text: &str) -> ClockAction {
    let action = World::empty()
        .node(with(node("n1"), annotated(Value::Null)))
        .at(1)
        .actions
        .remove(0);
    let Action::WriteClock(mut action) = action else {
        panic!("{action:?}")
    };
    if let ClockWrite::Set(clock) = &mut action.write {
        // The texts of the tables name no writer.
        clock.writer = None;
    }
    assert_eq!(
        action.write,
        ClockWrite::Set(nodeward_api::drain_clock::DrainClock::parse(text).unwrap())
    );
    action
}

fn annotated(clock: impl Into<Value>) -> Value {
    json!({ "metadata": { "annotations": { "nodeward.dev/drain-clock": clock.into() } } })
}

/// The clock that the next plan sees on the node.
fn seen_clock(tracker: &mut ActionTracker, world: &World, now: Timestamp) -> Option<String> {
    let mut snapshot = world.snapshot();
    tracker.compare(&mut snapshot, now);
    snapshot.nodes[0].annotations.get(annotation::DRAIN_CLOCK).cloned()
}

fn unwritten() -> World {
    World::empty().node(with(node("n1"), annotated(Value::Null)))
}

#[test]
fn a_written_clock_counts_before_the_watch_shows_it() {
    let mut tracker = nothing(false);
    tracker.clock_completed(&clock_write(&clock(0)), &ActionResult::Acted(()), second(60));
    assert_eq!(seen_clock(&mut tracker, &unwritten(), second(61)), Some(clock(0)));
    assert_eq!(
        seen_clock(&mut tracker, &unwritten(), second(70)),
        None,
        "the watch is right in the end"
    );
}

#[test]
fn removed_clock_is_gone_before_the_watch() {
    let mut tracker = nothing(false);
    let world = World::draining();
    let action = ClockAction {
        node: Arc::clone(&world.snapshot().nodes[0]),
        write: ClockWrite::Remove,
    };
    tracker.clock_completed(&action, &ActionResult::Acted(()), second(60));
    assert_eq!(seen_clock(&mut tracker, &world, second(61)), None);
}

#[test]
fn a_clock_that_somebody_else_has_written_since_counts() {
    let mut tracker = nothing(false);
    tracker.clock_completed(&clock_write(&clock(0)), &ActionResult::Acted(()), second(60));
    let others = World::empty().node(with(node("n1"), annotated("another")));
    assert_eq!(
        seen_clock(&mut tracker, &others, second(61)),
        Some("another".to_owned())
    );
}

/// The watch is late to show that the node is gone: its clock is not written again in every pass.
#[test]
fn clock_expectation_of_gone_node_expires() {
    let mut tracker = nothing(false);
    tracker.clock_completed(&clock_write(&clock(0)), &ActionResult::AlreadyDone, second(60));
    assert_eq!(tracker.next_expiry(), Some(second(70)));
    assert_eq!(seen_clock(&mut tracker, &unwritten(), second(69)), Some(clock(0)));
    assert_eq!(seen_clock(&mut tracker, &unwritten(), second(70)), None);
    assert_eq!(tracker.next_expiry(), None);
}

#[test]
fn a_clock_that_was_not_written_does_not_count() {
    let mut tracker = nothing(false);
    let failed = ActionResult::Failed(ApiError::Conflict);
    tracker.clock_completed(&clock_write(&clock(0)), &failed, second(60));
    assert_eq!(seen_clock(&mut tracker, &unwritten(), second(60)), None);
}

/// A dry run writes nothing, and goes on as if it had.
#[test]
fn dry_run_sees_its_unwritten_clocks() {
    let mut tracker = nothing(true);
    let action = clock_write(&clock(0));
    let dry_run = ActionResult::Stopped(Stop::DryRun);
    tracker.clock_completed(&action, &dry_run, second(60));
    for minutes in [1, 1000] {
        assert_eq!(seen_clock(&mut tracker, &unwritten(), minute(minutes)), Some(clock(0)));
    }
    // What a real one writes beside it is none of its business.
    let removal = ClockAction {
        write: ClockWrite::Remove,
        ..action
    };
    tracker.clock_completed(&removal, &dry_run, second(70));
    assert_eq!(seen_clock(&mut tracker, &World::draining(), second(70)), None);
}

/// Absent from a list that is not complete is not gone.
#[rstest]
#[case::gone(World::draining(), false)]
#[case::still_there(World::draining().pod(pod("p")), true)]
#[case::not_listed_yet(World::draining().syncing("n1"), true)]
fn what_is_gone_is_forgotten(#[case] world: World, #[case] remembered: bool) {
    let mut tracker = nothing(false);
    completed(&mut tracker, act(), failed(), minute(45));
    let held_back = World::draining()
        .pod(pod("p"))
        .pod(pod("q"))
        .also("limits: {forcedPerNode: 1}")
        .at(45);
    let mut plan = held_back;
    plan.held_back = ["p".into()].into();
    tracker.planned(&plan);
    tracker.compare(&mut world.snapshot(), minute(45));
    assert_eq!(attempt(&tracker).is_some(), remembered);
    assert_eq!(tracker.memory.held_back.contains("p"), remembered);
}

#[test]
fn a_node_that_is_gone_is_forgotten() {
    let mut tracker = nothing(false);
    tracker.memory.node_history.insert("n1".into(), NodeHistory::default());
    tracker.clock_completed(&clock_write(&clock(0)), &ActionResult::Acted(()), second(60));
    tracker.compare(&mut World::empty().snapshot(), second(61));
    assert!(tracker.memory.node_history.is_empty());
    assert_eq!(seen_clock(&mut tracker, &unwritten(), second(61)), None);
}

#[test]
fn held_back_pods_are_remembered() {
    let mut tracker = nothing(false);
    let world = World::draining()
        .also("limits: {forcedPerNode: 1}")
        .pods([pod("p"), pod("q")])
        .budget(budget("web", 9));
    tracker.planned(&world.at(68));
    let mut snapshot = world.snapshot();
    tracker.compare(&mut snapshot, minute(50));
    assert_eq!(snapshot.memory.held_back, ["q".into()].into());
    assert_eq!(snapshot.memory.node_history["n1"].cordoned_since, Some(minute(68)));
    tracker.planned(&world.at(1));
    assert_eq!(tracker.memory.held_back, ["q".into()].into(), "until it is gone");
}

#[test]
fn it_leads_since_its_first_plan() {
    let mut tracker = nothing(false);
    let plan_at = |tracker: &mut ActionTracker, minutes| {
        tracker.compare(&mut World::draining().snapshot(), minute(minutes));
        tracker.planned(&World::draining().at(minutes));
        tracker.memory.leads_since
    };
    assert_eq!(plan_at(&mut tracker, 45), Some(minute(45)));
    assert_eq!(plan_at(&mut tracker, 46), Some(minute(45)));
    tracker.on_leadership_lost(minute(47));
    tracker.followed([].into());
    assert_eq!(tracker.memory.leads_since, None);
    assert_eq!(plan_at(&mut tracker, 48), Some(minute(48)));
}

/// A failover forgets no parked node.
#[test]
fn what_was_seen_of_nodes_outlives_the_leadership() {
    let mut tracker = nothing(false);
    tracker.followed([("n1".into(), NodeHistory::default())].into());
    completed(&mut tracker, act(), EVICTED, minute(45));
    tracker.on_leadership_lost(minute(46));
    assert_eq!(attempt(&tracker), None);
    assert!(tracker.memory.node_history.contains_key("n1"));
}

#[test]
fn clock_that_steps_back_delays_no_retry() {
    let world = World::draining().pod(pod("p"));
    let mut tracker = nothing(false);
    tracker.compare(&mut world.snapshot(), minute(45));
    completed(&mut tracker, act(), failed(), minute(45));
    let retry_in = |tracker: &mut ActionTracker, now: Timestamp| {
        tracker.compare(&mut world.snapshot(), now);
        attempt(tracker).unwrap().retry_at.duration_since(now)
    };
    assert_eq!(retry_in(&mut tracker, minute(15)), seconds(60));
    assert_eq!(
        retry_in(&mut tracker, minute(15) + seconds(20)),
        seconds(40),
        "it goes on"
    );
}
