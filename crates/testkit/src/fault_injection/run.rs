//! One run of a scenario.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::FutureExt;
use tokio::sync::watch;

use super::scenario::Step;
use super::{OperatorProcess, Point, Scenario, TestEnv};
use crate::proxy::{Gate, Stage, Verdict, Write};
use crate::wait;

/// How long an operator may take to start, or to start again.
const STARTED_WITHIN: Duration = Duration::from_mins(2);

/// For how long a view stands still: long enough for the operator to do what it would do.
const STALE_FOR: Duration = Duration::from_secs(2);

/// How much of the operator's log a failure shows.
const LOG_LINES: usize = 20;

pub(super) struct Run {
    pub writes: u64,
    /// Whether what the point asks for was done.
    pub reached: bool,
}

impl Point {
    fn is_at(self, write: &Write) -> bool {
        match (self, write.stage) {
            (Self::BeforeFirstWrite, Stage::Before) => write.number == 1,
            (Self::AfterWrite(number), Stage::After(_)) => write.number == number,
            _ => false,
        }
    }
}

/// One run in an environment of its own, with what `point` says done to it.
pub(super) async fn run<W, L, Fut, S>(scenario: &Scenario<W>, launch: &L, point: Point) -> Result<Run>
where
    L: Fn(TestEnv) -> Fut,
    Fut: Future<Output = Result<S>>,
    S: OperatorProcess,
{
    let env = TestEnv::new().await?;
    let world = Arc::new((scenario.setup)(env.clone()).await.context("set up")?);
    let (put, operator) = watch::channel(None);
    let writes = Arc::new(AtomicU64::new(0));
    let reached = Arc::new(AtomicBool::new(false));
    let gate = killing_gate(point, operator, Arc::clone(&writes), Arc::clone(&reached));
    env.proxy.set_gate(Some(gate));

    let outcome = async {
        let operator = Arc::new(launch(env.clone()).await.context("start the operator")?);
        put.send_replace(Some(Arc::clone(&operator)));
        let outcome = tokio::select! {
            done = steps(scenario, point, &env, &world, &*operator) => done,
            broken = invariant_broken(scenario, &env, &world) => Err(broken),
        };
        // What the end broke is found, too, however little time was left to look.
        let outcome = match outcome {
            Ok(()) => invariant_holds(scenario, &env, &world).await,
            failed => failed,
        };
        operator.process().kill();
        outcome.with_context(|| format!("its log ends with:\n{}", operator.process().log_tail(LOG_LINES)))
    }
    .await;
    // The proxy keeps the gate, and the gate the operator.
    env.proxy.set_gate(None);
    if let Some(clean_up) = &scenario.clean_up {
        clean_up(env.clone(), world).await.context("clean up")?;
    }
    outcome?;
    let killed = matches!(point, Point::BeforeFirstWrite | Point::AfterWrite(_));
    Ok(Run {
        writes: writes.load(Ordering::SeqCst),
        reached: !killed || reached.load(Ordering::SeqCst),
    })
}

/// Returns when what must be so all the time is not.
async fn invariant_broken<W>(scenario: &Scenario<W>, env: &TestEnv, world: &Arc<W>) -> anyhow::Error {
    loop {
        if let Err(error) = invariant_holds(scenario, env, world).await {
            return error;
        }
        tokio::time::sleep(wait::LONGEST_PAUSE).await;
    }
}

async fn invariant_holds<W>(scenario: &Scenario<W>, env: &TestEnv, world: &Arc<W>) -> Result<()> {
    match &scenario.invariant {
        Some(invariant) => {
            let held = invariant(env.clone(), Arc::clone(world)).await;
            held.context("an invariant is broken")
        }
        None => Ok(()),
    }
}

async fn steps<W>(
    scenario: &Scenario<W>,
    point: Point,
    env: &TestEnv,
    world: &Arc<W>,
    operator: &impl OperatorProcess,
) -> Result<()> {
    started(operator).await?;
    let mut number = 0;
    for step in &scenario.steps {
        match step {
            Step::Event(name, act) => {
                let act = act(env.clone(), Arc::clone(world));
                event(point, number, env, operator, act)
                    .await
                    .with_context(|| format!("event {number} ({name})"))?;
                number += 1;
            }
            Step::Effect(name, probe) => {
                wait::until(name, scenario.within, || probe(env.clone(), Arc::clone(world))).await?;
            }
        }
    }
    if let Some(end) = &scenario.end {
        let probe = || end(env.clone(), Arc::clone(world));
        wait::until("the expected end", scenario.within, probe).await?;
        wait::throughout("the expected end", scenario.stays, probe).await?;
    }
    Ok(())
}

/// One event, with what the point does around it.
async fn event(
    point: Point,
    number: usize,
    env: &TestEnv,
    operator: &impl OperatorProcess,
    act: impl Future<Output = Result<()>>,
) -> Result<()> {
    let stale = matches!(point, Point::StaleView { event, .. } if event == number);
    let first = point == Point::UnobservedState { event: number };
    let second = number > 0 && point == Point::UnobservedState { event: number - 1 };
    if stale || first {
        env.proxy.freeze().await?;
    }
    act.await?;
    if stale {
        if matches!(point, Point::StaleView { restart: true, .. }) {
            operator.process().restart()?;
            started(operator).await?;
        }
        // Nothing to wait for: what it must not do has no sign.
        tokio::time::sleep(STALE_FOR).await;
        env.proxy.thaw();
    }
    if second {
        env.proxy.thaw_to_present().await?;
    }
    Ok(())
}

async fn started(operator: &impl OperatorProcess) -> Result<()> {
    wait::until("the operator to start", STARTED_WITHIN, || operator.has_started()).await
}

/// Counts the writes, and kills the operator at the point, once.
fn killing_gate<S: OperatorProcess>(
    point: Point,
    operator: watch::Receiver<Option<Arc<S>>>,
    writes: Arc<AtomicU64>,
    reached: Arc<AtomicBool>,
) -> Gate {
    Gate::new(move |write| {
        let (mut operator, writes, reached) = (operator.clone(), Arc::clone(&writes), Arc::clone(&reached));
        async move {
            writes.fetch_max(write.number, Ordering::SeqCst);
            if !point.is_at(&write) {
                return Verdict::Pass;
            }
            // It may write before whoever starts it has been handed it.
            let started = operator.wait_for(Option::is_some).await;
            let Some(operator) = started.ok().and_then(|operator| operator.clone()) else {
                return Verdict::Pass;
            };
            reached.store(true, Ordering::SeqCst);
            if let Err(error) = operator.process().restart() {
                eprintln!("{} did not start again: {error:#}", operator.process().name());
            }
            Verdict::Cut
        }
        .boxed()
    })
}
