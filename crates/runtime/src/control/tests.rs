use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use nodeward_api::pause::Paused;
use rstest::rstest;
use tokio::sync::Notify;

use super::*;

/// Reports one action a pass, and remembers what it is told.
struct Toy {
    policy: Arc<u32>,
    observed: fn() -> Observed<()>,
    lane: Lane,
    behaviour: Arc<dyn Fn(&Permits) -> ActionResult + Send + Sync>,
    planned: Vec<(u32, u32)>,
    writes: Arc<Writes>,
    log: Arc<Mutex<Vec<String>>>,
}

/// The fake API server: a write lasts until it is released.
#[derive(Default)]
struct Writes {
    arrived: Mutex<Vec<(u32, u32)>>,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
    release: Notify,
    is_blocking: std::sync::atomic::AtomicBool,
}

/// Plans from this number on have been noted by the operator when they were started.
const NOTED: u32 = 100;

/// Actions of keys from this number on are stopped when a plan leaves them out.
const STOPPABLE: u32 = 50;

/// An action of a key, with the number of the plan that it comes from.
struct Write {
    key: u32,
    plan: u32,
    lane: Lane,
}

type Context = (Arc<Writes>, Arc<dyn Fn(&Permits) -> ActionResult + Send + Sync>);

impl Action for Write {
    type Key = u32;
    type Context = Context;
    type Outcome = ActionResult;

    fn key(&self) -> u32 {
        self.key
    }

    fn lane(&self) -> Lane {
        self.lane
    }

    fn replaces_queued(&self) -> bool {
        self.plan < NOTED
    }

    fn stops_when_unplanned(&self) -> bool {
        self.key >= STOPPABLE
    }

    async fn run(self, (writes, behaviour): Context, permits: Permits) -> ActionResult {
        let _permit = match permits.next_write().await {
            Ok(permit) => permit,
            Err(stop) => return stop.into(),
        };
        writes.arrived.lock().unwrap().push((self.key, self.plan));
        let at_once = writes.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        writes.most_at_once.fetch_max(at_once, Ordering::SeqCst);
        if writes.is_blocking.load(Ordering::SeqCst) {
            writes.release.notified().await;
        }
        writes.at_once.fetch_sub(1, Ordering::SeqCst);
        behaviour(&permits)
    }
}

/// A policy that has nothing written.
const AUDITING: u32 = 100;

impl Operator for Toy {
    type Args = ();
    type Settings = ();
    type Policy = u32;
    type Snapshot = ();
    type Verdicts = ();
    type Action = Write;

    const COMPONENT: Component = Component::new("toy", "0");
    const ABOUT: &'static str = "";
    const OPTIONS: ControlOptions = ControlOptions {
        pass_spacing: Duration::ZERO,
        backoff: BackoffPolicy {
            first: SignedDuration::from_secs(4),
            limit: SignedDuration::from_mins(1),
        },
        dry_run_silence: SignedDuration::from_mins(10),
        standbys_observe: true,
    };

    fn parse(_: &str) -> Result<(), ConfigError> {
        Ok(())
    }

    fn audits(policy: &u32) -> bool {
        *policy == AUDITING
    }

    async fn open(_: &OperatorContext<()>, (): ()) -> anyhow::Result<Self> {
        anyhow::bail!("not opened in these tests")
    }

    fn effective_policy(&mut self) -> Option<Arc<u32>> {
        Some(Arc::clone(&self.policy))
    }

    fn observe(&mut self, _: &u32, _: Timestamp) -> Observed<()> {
        (self.observed)()
    }

    fn plan(&mut self, (): &(), _: &u32, _: Timestamp) -> Plan<Write, ()> {
        let lane = self.lane;
        let planned = self.planned.iter();
        Plan {
            actions: planned.map(|&(key, plan)| Write { key, plan, lane }).collect(),
            verdicts: (),
            requeue_at: None,
        }
    }

    fn report(&mut self, (): &(), (): (), _: Timestamp) -> Report<Write> {
        Report {
            actions: Vec::new(),
            requeue_at: None,
        }
    }

    fn action_context(&self, _: &Arc<()>, _: &Arc<u32>) -> Context {
        (Arc::clone(&self.writes), Arc::clone(&self.behaviour))
    }

    fn completed(&mut self, completed: Completed<Write>, _: Timestamp) {
        let Completed {
            key,
            outcome,
            failures_before,
            ..
        } = completed;
        self.log
            .lock()
            .unwrap()
            .push(format!("{key} after {failures_before}: {outcome:?}"));
    }

    fn follow(&mut self, (): &(), _: &u32, _: Timestamp) {
        self.log.lock().unwrap().push("followed".to_owned());
    }

    fn on_leadership_lost(&mut self) {
        self.log.lock().unwrap().push("lost".to_owned());
    }
}

fn toy() -> Toy {
    Toy {
        policy: Arc::new(1),
        observed: || Observed::Ready(()),
        lane: Lane::Api,
        behaviour: Arc::new(|_| ActionResult::Acted(())),
        planned: vec![(1, 1)],
        writes: Arc::default(),
        log: Arc::default(),
    }
}

fn running() -> Pause {
    Pause::fixed(PauseState::Running)
}

fn control(toy: Toy) -> Control<Toy> {
    Control::new(toy, Leadership::fixed(true), running(), false)
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

impl Control<Toy> {
    /// Lets tasks run until they wait for something.
    async fn settle(&mut self) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    fn arrived(&self) -> Vec<(u32, u32)> {
        self.operator.writes.arrived.lock().unwrap().clone()
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut *self.operator.log.lock().unwrap())
    }

    fn block(&self, blocking: bool) {
        self.operator.writes.is_blocking.store(blocking, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn one_action_of_a_key_runs_at_once() {
    let mut control = control(toy());
    control.block(true);
    for second in 0..3 {
        control.pass(at(second));
        control.settle().await;
    }
    assert_eq!(control.arrived(), [(1, 1)]);
    control.operator.writes.release.notify_waiters();
    control.settle().await;
    control.pass(at(4));
    control.settle().await;
    assert_eq!(control.log(), ["1 after 0: Some(Acted(()))"]);
    assert_eq!(control.arrived(), [(1, 1), (1, 1)]);
}

#[tokio::test]
async fn only_the_failed_key_backs_off() {
    let mut toy = toy();
    toy.behaviour = Arc::new(|_| ActionResult::Failed(ApiError::Timeout));
    let mut control = control(toy);
    control.pass(at(0));
    control.settle().await;
    control.operator.planned = vec![(1, 2), (2, 2)];
    let retry_at = control.pass(at(0)).unwrap();
    control.settle().await;
    assert_eq!(control.arrived(), [(1, 1), (2, 2)]);
    assert!(at(2) <= retry_at && retry_at <= at(4), "{retry_at}");
    control.pass(at(4));
    control.settle().await;
    control.pass(at(5));
    assert_eq!(control.arrived()[2..], [(1, 2)]);
    let log = control.log();
    assert_eq!(log.last().unwrap(), "1 after 1: Some(Failed(Timeout))");
}

#[tokio::test]
async fn panic_backs_off_without_an_outcome() {
    let mut toy = toy();
    toy.behaviour = Arc::new(|_| panic!("boom"));
    let mut control = control(toy);
    control.pass(at(0));
    control.settle().await;
    assert!(control.pass(at(0)).is_some_and(|retry_at| at(2) <= retry_at));
    assert_eq!(control.log(), ["1 after 0: None"]);
}

/// The slots of a lane are taken: an action that waits for one is that of the newest plan by the time it has it.
#[rstest]
#[case::by_the_newest_plan(1, 2, 2)]
#[case::not_where_the_operator_has_noted_it(NOTED, NOTED + 1, NOTED)]
#[tokio::test]
async fn a_queued_action_is_replaced(#[case] first: u32, #[case] second: u32, #[case] arrives: u32) {
    let mut toy = toy();
    toy.lane = Lane::Status;
    toy.planned = (0..6).map(|key| (key, first)).collect();
    let mut control = control(toy);
    control.block(true);
    control.pass(at(0));
    control.settle().await;
    assert_eq!(control.arrived().len(), 4);
    control.operator.planned = (0..6).map(|key| (key, second)).collect();
    control.pass(at(1));
    control.block(false);
    control.operator.writes.release.notify_waiters();
    control.settle().await;
    assert_eq!(control.arrived()[4..], [(4, arrives), (5, arrives)]);
    assert_eq!(control.operator.writes.most_at_once.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a_queued_write_is_stopped_when_the_policy_changes() {
    let mut toy = toy();
    toy.lane = Lane::Status;
    toy.planned = (0..5).map(|key| (key, 1)).collect();
    let mut control = control(toy);
    control.block(true);
    control.pass(at(0));
    control.settle().await;
    control.operator.planned = Vec::new();
    control.operator.policy = Arc::new(2);
    control.pass(at(1));
    control.operator.writes.release.notify_waiters();
    control.settle().await;
    control.pass(at(2));
    assert_eq!(control.arrived().len(), 4);
    assert_eq!(control.log().last().unwrap(), "4 after 0: Some(Stopped(PolicyChanged))");
}

/// An action of several writes: the second one is asked for anew.
fn two_writes(permits: &Permits) -> ActionResult {
    match permits.next_write().now_or_never() {
        Some(Err(stop)) => stop.into(),
        _ => ActionResult::Acted(()),
    }
}

#[tokio::test]
async fn policy_change_stops_second_write() {
    let mut toy = toy();
    toy.behaviour = Arc::new(two_writes);
    let mut control = control(toy);
    control.block(true);
    control.pass(at(0));
    control.settle().await;
    control.operator.policy = Arc::new(2);
    control.pass(at(1));
    control.block(false);
    control.operator.writes.release.notify_waiters();
    control.settle().await;
    control.pass(at(2));
    assert_eq!(control.log(), ["1 after 0: Some(Stopped(PolicyChanged))"]);
}

#[rstest]
#[case::stopped_where_it_asks_for_it(STOPPABLE, &[], "Stopped(Unplanned)")]
#[case::finished_where_it_does_not(1, &[], "Acted(())")]
#[case::finished_where_it_is_still_planned(STOPPABLE, &[(STOPPABLE, 2)], "Acted(())")]
#[tokio::test]
async fn second_write_of_an_unplanned_action(
    #[case] key: u32,
    #[case] next_plan: &[(u32, u32)],
    #[case] expected: &str,
) {
    let mut toy = toy();
    toy.planned = vec![(key, 1)];
    toy.behaviour = Arc::new(two_writes);
    let mut control = control(toy);
    control.block(true);
    control.pass(at(0));
    control.settle().await;
    control.operator.planned = next_plan.to_vec();
    control.pass(at(1));
    control.block(false);
    control.operator.writes.release.notify_waiters();
    control.settle().await;
    control.operator.planned = Vec::new();
    control.pass(at(2));
    assert_eq!(control.log(), [format!("{key} after 0: Some({expected})")]);
}

/// The first action of the key rests on what was gone for a moment; one that has not begun is replaced.
#[tokio::test]
async fn action_that_is_planned_again_while_queued_runs() {
    let mut toy = toy();
    toy.lane = Lane::Status;
    toy.planned = (STOPPABLE..STOPPABLE + 5).map(|key| (key, 1)).collect();
    let mut control = control(toy);
    control.block(true);
    control.pass(at(0));
    control.settle().await;
    control.operator.planned = Vec::new();
    control.pass(at(1));
    control.operator.planned = (STOPPABLE..STOPPABLE + 5).map(|key| (key, 2)).collect();
    control.pass(at(2));
    control.block(false);
    control.operator.writes.release.notify_waiters();
    control.settle().await;
    assert_eq!(control.arrived()[4..], [(STOPPABLE + 4, 2)]);
}

#[tokio::test]
async fn dry_run_logs_again_after_its_interval() {
    let mut control = Control::new(toy(), Leadership::fixed(true), running(), true);
    control.pass(at(0));
    control.settle().await;
    assert_eq!(control.pass(at(0)), Some(at(600)));
    assert_eq!(control.log(), ["1 after 0: Some(Stopped(DryRun))"]);
    assert_eq!(control.arrived(), []);
}

#[tokio::test]
async fn auditing_policy_stops_writes_until_another_comes() {
    let mut toy = toy();
    toy.policy = Arc::new(AUDITING);
    let mut control = control(toy);
    control.pass(at(0));
    control.settle().await;
    assert_eq!(control.arrived(), []);
    control.operator.policy = Arc::new(1);
    control.pass(at(1));
    control.settle().await;
    assert_eq!(control.arrived(), [(1, 1)]);
}

#[tokio::test]
async fn a_standby_follows_and_does_nothing() {
    let mut control = Control::new(toy(), Leadership::fixed(false), running(), false);
    control.pass(at(0));
    control.settle().await;
    assert_eq!(
        (control.arrived(), control.log()),
        (vec![], vec!["followed".to_owned()])
    );
}

#[tokio::test]
async fn lost_leadership_is_told_once_and_stops_writes() {
    let mut control = control(toy());
    control.pass(at(0));
    control.leadership = Leadership::fixed(false);
    control.pass(at(1));
    control.pass(at(2));
    assert_eq!(control.log(), ["lost", "followed", "followed"]);
}

#[tokio::test]
async fn stale_caches_are_looked_at_again_by_themselves() {
    let mut toy = toy();
    toy.observed = || Observed::wait("nodes are stale");
    let mut control = control(toy);
    assert_eq!(control.pass(at(0)), Some(at(5)));
    control.settle().await;
    assert_eq!(control.arrived(), []);
}

#[tokio::test]
async fn blocked_operator_plans_nothing_and_looks_again() {
    let mut toy = toy();
    toy.observed = || Observed::Blocked("the ledger is malformed".to_owned());
    let mut control = control(toy);
    assert_eq!(control.pass(at(0)), Some(at(5)));
    control.settle().await;
    assert_eq!(control.arrived(), []);
    control.operator.observed = || Observed::Ready(());
    control.pass(at(5));
    control.settle().await;
    assert_eq!(control.arrived(), [(1, 1)]);
}

#[tokio::test]
async fn nothing_under_way_is_waited_for_in_vain() {
    let mut control = control(toy());
    assert!(control.executor.wait().now_or_never().is_none());
}

#[tokio::test]
async fn shutdown_waits_for_all_actions() {
    let mut toy = toy();
    toy.planned = vec![(1, 1), (2, 1)];
    let mut control = control(toy);
    control.pass(at(0));
    control.executor.wait().await;
    assert_eq!(control.executor.finish().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn overdue_deadline_respects_the_pass_spacing() {
    let earliest = Instant::now() + Duration::from_millis(20);
    let overdue = saturating_add(Timestamp::now(), SignedDuration::from_secs(-1));
    until_due(Some(overdue), earliest).await;
    assert!(earliest <= Instant::now());
    assert!(
        until_due(None, Instant::now()).now_or_never().is_none(),
        "nothing is due without a deadline"
    );
}

fn paused() -> PauseState {
    PauseState::Paused(Arc::new(Paused {
        reason: "INC-1".to_owned(),
        since: None,
    }))
}

#[rstest]
#[case::by_a_person(paused())]
#[case::until_it_is_known(PauseState::Unknown("not read yet".to_owned()))]
#[tokio::test]
async fn paused_operator_starts_nothing(#[case] state: PauseState) {
    let mut control = control(toy());
    control.pause.set(state);
    assert!(control.pass(at(0)).is_none_or(|next| at(0) < next), "it does not spin");
    control.settle().await;
    assert_eq!(control.arrived(), []);
    control.pause.set(PauseState::Running);
    control.pass(at(1));
    control.settle().await;
    assert_eq!(control.arrived(), [(1, 1)]);
}

#[tokio::test]
async fn pause_stops_a_write_that_waits_for_its_slot() {
    let mut toy = toy();
    let all = u32::try_from(crate::client::REQUESTS_AT_ONCE).unwrap() + 1;
    toy.planned = (0..all).map(|key| (key, 1)).collect();
    let mut control = control(toy);
    control.block(true);
    control.pass(at(0));
    control.settle().await;
    assert_eq!(control.arrived().len(), all as usize - 1);
    control.pause.set(paused());
    control.operator.writes.release.notify_waiters();
    control.settle().await;
    control.pass(at(1));
    assert_eq!(control.arrived().len(), all as usize - 1);
    let stopped = format!("{} after 0: Some(Stopped(Paused))", all - 1);
    assert!(control.log().contains(&stopped));
}

#[tokio::test]
async fn act_whose_pause_cannot_be_read_backs_off() {
    let mut toy = toy();
    toy.behaviour = Arc::new(|_| ActionResult::Stopped(Stop::PauseUnknown));
    let mut control = control(toy);
    control.pass(at(0));
    control.settle().await;
    let again = control.pass(at(1));
    assert!(again.is_some_and(|again| at(2) < again), "{again:?}");
    control.settle().await;
    assert_eq!(control.arrived().len(), 1);
    control.pass(at(6));
    control.settle().await;
    assert_eq!(control.arrived().len(), 2);
}
