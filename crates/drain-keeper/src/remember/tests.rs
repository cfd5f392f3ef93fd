use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use nodeward_core::id::BudgetKey;

use crate::clock::Seen;
use crate::execute::BudgetRefusal;
use crate::plan::tests::world::{World, budget, clock, minute, node, pod, second, with};
use crate::plan::{Action, ClockAction, PodAction};

const RATE: NonZeroU32 = NonZeroU32::new(30).unwrap();

fn nothing(dry_run: bool) -> Remember {
    Remember::nothing(RATE, dry_run, second(0))
}

fn seconds(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

/// An act on the pod `p`, which falls due at once.
fn act() -> PodAction {
    World::draining().pod(pod("p")).at(45).acts()[0].clone()
}

fn started(remember: &mut Remember, action: &PodAction, now: Timestamp) {
    let started = Started::Pod(action.pod.uid.clone(), action.pod.resource_version.clone());
    remember.started(&started, now);
}

fn completed(remember: &mut Remember, action: PodAction, outcome: execute::Outcome, now: Timestamp) {
    let done = PodCompletion {
        action,
        started: now,
        outcome,
    };
    remember.completed(&Completion::Pod(done), now);
}

/// What is remembered of the last attempt at `p`.
fn attempt(remember: &Remember) -> Option<&Attempt> {
    remember.memory.attempts.get("p")
}

fn failed() -> execute::Outcome {
    execute::Outcome::Failed(ApiError::Timeout)
}

fn refused(retry_after: Option<SignedDuration>) -> execute::Outcome {
    execute::Outcome::RefusedByBudget(BudgetRefusal {
        retry_after,
        wait: None,
    })
}

#[rstest]
#[case::evicted(execute::Outcome::Evicted, Outcome::Sent, seconds(10))]
#[case::gone(execute::Outcome::Gone, Outcome::Sent, seconds(10))]
#[case::dry_run(execute::Outcome::DryRun, Outcome::NotSent, SignedDuration::from_hours(1))]
fn what_was_done_is_not_done_again_before_the_watch_had_time_to_show_it(
    #[case] outcome: execute::Outcome,
    #[case] remembered: Outcome,
    #[case] wait: SignedDuration,
) {
    let mut remember = nothing(false);
    completed(&mut remember, act(), outcome, minute(45));
    let attempt = attempt(&remember).unwrap();
    assert_eq!((&attempt.outcome, attempt.retry_at), (&remembered, minute(45) + wait));
    assert_eq!(attempt.resource_version.as_str(), "1");
}

#[test]
fn what_is_under_way_is_not_started_again() {
    let mut remember = nothing(false);
    started(&mut remember, &act(), minute(45));
    let attempt = attempt(&remember).unwrap();
    assert_eq!(
        (&attempt.outcome, attempt.retry_at),
        (&Outcome::Sent, minute(45) + seconds(180)),
        "a request may hang; what counts is its end"
    );
}

#[test]
fn a_refusal_by_a_budget_is_remembered_through_later_attempts() {
    let mut remember = nothing(false);
    completed(&mut remember, act(), refused(None), minute(45));
    started(&mut remember, &act(), minute(46));
    completed(&mut remember, act(), failed(), minute(46));
    let attempt = attempt(&remember).unwrap();
    assert!(attempt.was_refused_by_budget && attempt.failures == 2);
    assert!(matches!(attempt.outcome, Outcome::Failed(_)));
}

#[test]
fn an_override_is_remembered_by_its_budget() {
    let mut remember = nothing(false);
    let budget = BudgetKey::new("shop", "web");
    completed(
        &mut remember,
        act(),
        execute::Outcome::BudgetOverridden(vec![budget.clone()]),
        minute(68),
    );
    let remembered = remember
        .at(NonZeroU32::MIN, minute(69))
        .overridden
        .get(&budget)
        .cloned();
    assert_eq!(remembered.map(|overridden| overridden.at), Some(minute(68)));
}

#[rstest]
#[case::failed(failed(), Outcome::Failed("no answer in time".to_owned()))]
#[case::refused(refused(None), Outcome::RefusedByBudget)]
#[case::namespace(execute::Outcome::NamespaceTerminating, Outcome::NamespaceTerminating)]
#[case::outdated(execute::Outcome::Outdated("changed".to_owned()), Outcome::NotSent)]
fn what_did_not_happen_is_tried_again_after_a_growing_delay(
    #[case] outcome: execute::Outcome,
    #[case] remembered: Outcome,
) {
    let mut remember = nothing(false);
    for (failures, most) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60)] {
        completed(&mut remember, act(), outcome.clone(), minute(45));
        let attempt = attempt(&remember).unwrap();
        let wait = attempt.retry_at.duration_since(minute(45));
        assert!(
            seconds(most) <= wait * 2 && wait <= seconds(most),
            "{wait:?} after {failures}"
        );
        assert_eq!(
            (&attempt.outcome, remember.failures(&"p".into())),
            (&remembered, failures)
        );
    }
    completed(&mut remember, act(), execute::Outcome::Evicted, minute(45));
    assert_eq!(remember.failures(&"p".into()), 0, "a success forgets them");
}

#[test]
fn the_server_is_not_asked_before_its_retry_after() {
    let mut remember = nothing(false);
    completed(&mut remember, act(), refused(Some(seconds(30))), minute(45));
    assert_eq!(attempt(&remember).unwrap().retry_at, minute(45) + seconds(30));
}

/// The delay has passed, and the pod still counts as covered.
#[test]
fn a_refusal_for_a_budget_is_remembered_until_the_next_attempt() {
    let mut remember = nothing(false);
    let world = World::draining().pod(pod("p"));
    completed(&mut remember, act(), refused(None), minute(45));
    let mut snapshot = world.snapshot();
    remember.compare(&mut snapshot);
    let (snapshot_pod, memory) = (act().pod, snapshot.memory);
    assert!(memory.was_refused_by_budget(&snapshot_pod));
    assert_eq!(memory.attempt(&snapshot_pod, minute(50)), None);
}

#[test]
fn one_that_does_not_lead_any_more_remembers_no_attempt() {
    let mut remember = nothing(false);
    started(&mut remember, &act(), minute(45));
    completed(&mut remember, act(), execute::Outcome::NotLeading, minute(45));
    assert_eq!(attempt(&remember), None);
}

#[rstest]
#[case::acted(execute::Outcome::Evicted, 29)]
#[case::overridden(execute::Outcome::BudgetOverridden(Vec::new()), 29)]
#[case::finalizers(execute::Outcome::FinalizersRemoved(vec![]), 29)]
#[case::deleted(execute::Outcome::DeletedNow, 29)]
// Its answer was lost: it may have happened.
#[case::unanswered(failed(), 29)]
#[case::refused(refused(None), 30)]
#[case::gone(execute::Outcome::Gone, 30)]
#[case::outdated(execute::Outcome::Outdated(String::new()), 30)]
#[case::dry_run(execute::Outcome::DryRun, 30)]
#[case::not_leading(execute::Outcome::NotLeading, 30)]
fn only_what_was_done_counts_for_the_minutes_limit(#[case] outcome: execute::Outcome, #[case] left: u32) {
    let mut remember = nothing(false);
    started(&mut remember, &act(), second(0));
    assert_eq!(remember.at(RATE, second(0)).acts_left, 29, "while it is under way");
    completed(&mut remember, act(), outcome, second(0));
    assert_eq!(remember.at(RATE, second(0)).acts_left, left);
}

#[test]
fn the_memory_tells_how_many_acts_are_left_and_when_there_is_one_more() {
    let mut remember = nothing(false);
    for _ in 0..30 {
        started(&mut remember, &act(), second(0));
    }
    let memory = remember.at(RATE, second(0));
    let next = memory.next_act_at.unwrap();
    assert_eq!(memory.acts_left, 0);
    assert!(second(2) <= next && next < second(3), "{next}");
    assert_eq!(remember.at(RATE, next).acts_left, 1);
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
    let Action::WriteClock(action) = action else {
        panic!("{action:?}")
    };
    assert_eq!(
        action.write,
        ClockWrite::Set(nodeward_api::drain_clock::DrainClock::parse(text).unwrap())
    );
    action
}

fn annotated(clock: impl Into<Value>) -> Value {
    json!({ "metadata": { "annotations": { "nodeward.dev/drain-clock": clock.into() } } })
}

/// The snapshot as the next plan gets it, and the write that is still waited for.
fn compared(remember: &mut Remember, world: &World) -> (Snapshot, Option<PendingWrite>) {
    let mut snapshot = world.snapshot();
    remember.compare(&mut snapshot);
    let pending = snapshot.memory.clock_writes.get("n1").cloned();
    (snapshot, pending)
}

#[test]
fn a_clock_write_is_waited_for_until_the_watch_shows_it() {
    let mut remember = nothing(false);
    let action = clock_write(&clock(0));
    remember.started(&Started::Clock(action.clone()), second(60));
    remember.completed(&Completion::Clock(action, Ok(())), second(61));
    let before = World::empty().node(with(node("n1"), annotated(Value::Null)));
    assert_eq!(compared(&mut remember, &before).1.unwrap().until, second(70));
    assert_eq!(compared(&mut remember, &World::draining()).1, None);
}

#[test]
fn a_removal_is_waited_for_until_the_watch_shows_it() {
    let mut remember = nothing(false);
    let action = ClockAction {
        write: ClockWrite::Remove,
        ..clock_write(&clock(0))
    };
    remember.started(&Started::Clock(action), second(60));
    assert!(compared(&mut remember, &World::draining()).1.is_some());
    let after = World::empty().node(with(node("n1"), annotated(Value::Null)));
    assert_eq!(compared(&mut remember, &after).1, None);
}

#[test]
fn a_clock_write_that_failed_is_tried_again_after_a_growing_delay() {
    let mut remember = nothing(false);
    let before = World::empty().node(with(node("n1"), annotated(Value::Null)));
    for most in [1, 2, 4] {
        let action = clock_write(&clock(0));
        remember.started(&Started::Clock(action.clone()), second(60));
        remember.completed(&Completion::Clock(action, Err(ApiError::Timeout)), second(60));
        let wait = compared(&mut remember, &before)
            .1
            .unwrap()
            .until
            .duration_since(second(60));
        assert!(seconds(most) <= wait * 2 && wait <= seconds(most), "{wait:?}");
    }
}

/// A dry run writes nothing, and goes on as if it had.
#[test]
fn a_dry_run_sees_the_clocks_that_it_would_have_written() {
    let mut remember = nothing(true);
    let before = World::empty().node(with(node("n1"), annotated(Value::Null)));
    let action = clock_write(&clock(0));
    remember.started(&Started::Clock(action.clone()), second(60));
    remember.completed(&Completion::Clock(action.clone(), Ok(())), second(60));
    for _ in 0..2 {
        let (snapshot, pending) = compared(&mut remember, &before);
        let annotations = &snapshot.nodes[0].annotations;
        assert_eq!(annotations["nodeward.dev/drain-clock"], clock(0));
        assert_eq!(pending.unwrap().until, second(60), "and waits for none");
    }
    // What a real one writes beside it is none of its business.
    let removal = ClockAction {
        write: ClockWrite::Remove,
        ..action
    };
    remember.started(&Started::Clock(removal), second(70));
    let (snapshot, _) = compared(&mut remember, &World::draining());
    assert!(!snapshot.nodes[0].annotations.contains_key("nodeward.dev/drain-clock"));
}

#[test]
fn a_real_run_sees_the_cluster_as_it_is() {
    let mut remember = nothing(false);
    let before = World::empty().node(with(node("n1"), annotated(Value::Null)));
    remember.started(&Started::Clock(clock_write(&clock(0))), second(60));
    let (snapshot, _) = compared(&mut remember, &before);
    assert!(!snapshot.nodes[0].annotations.contains_key("nodeward.dev/drain-clock"));
}

/// Absent from a list that is not complete is not gone.
#[rstest]
#[case::gone(World::draining(), false)]
#[case::still_there(World::draining().pod(pod("p")), true)]
#[case::not_listed_yet(World::draining().syncing("n1"), true)]
fn what_is_gone_is_forgotten(#[case] world: World, #[case] remembered: bool) {
    let mut remember = nothing(false);
    completed(&mut remember, act(), failed(), minute(45));
    let held_back = World::draining()
        .pod(pod("p"))
        .pod(pod("q"))
        .also("limits: {forcedPerNode: 1}")
        .at(45);
    let mut plan = held_back;
    plan.held_back = ["p".into()].into();
    remember.planned(&plan);
    remember.compare(&mut world.snapshot());
    assert_eq!(attempt(&remember).is_some(), remembered);
    assert_eq!(remember.memory.held_back.contains("p"), remembered);
    assert_eq!(remember.failures(&"p".into()) > 0, remembered);
}

#[test]
fn a_node_that_is_gone_is_forgotten() {
    let mut remember = nothing(false);
    remember.memory.seen.insert("n1".into(), Seen::default());
    remember.started(&Started::Clock(clock_write(&clock(0))), second(60));
    remember.compare(&mut World::empty().snapshot());
    assert!(remember.memory.seen.is_empty() && remember.memory.clock_writes.is_empty());
}

#[test]
fn what_a_plan_has_seen_and_held_back_is_remembered_for_the_next() {
    let mut remember = nothing(false);
    let world = World::draining()
        .also("limits: {forcedPerNode: 1}")
        .pods([pod("p"), pod("q")])
        .budget(budget("web", 9));
    remember.planned(&world.at(68));
    let mut snapshot = world.snapshot();
    remember.compare(&mut snapshot);
    assert_eq!(snapshot.memory.held_back, ["q".into()].into());
    assert_eq!(snapshot.memory.seen["n1"].cordoned_since, Some(minute(68)));
    remember.planned(&world.at(1));
    assert_eq!(remember.memory.held_back, ["q".into()].into(), "until it is gone");
}
