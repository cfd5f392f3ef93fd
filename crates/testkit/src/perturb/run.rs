//! One run of a scenario.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result};
use futures::FutureExt;
use tokio::sync::watch;

use super::scenario::Step;
use super::{Perturbed, Point, STARTED_WITHIN, Site, Subject, guarded};
use crate::proxy::{Gate, Stage, Verdict, Write};
use crate::wait;

/// How much of the operator's log a failure shows.
const LOG_LINES: usize = 20;

pub(super) struct Run {
    /// The writes of the run.
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

impl<W: Send + Sync + 'static, S: Subject> Perturbed<W, S> {
    pub(super) async fn run(&self, point: Point) -> Result<Run> {
        let site = Site::new().await?;
        let world = Arc::new((self.scenario.setup)(site.clone()).await.context("set up")?);
        let (put, subject) = watch::channel(None);
        let writes = Arc::new(AtomicU64::new(0));
        let reached = Arc::new(AtomicBool::new(false));
        let gate = killing_gate(point, subject, Arc::clone(&writes), Arc::clone(&reached));
        let counted = Arc::clone(&self.counted);
        site.proxy
            .set_gate(Some(gate.counting(move |request| counted(request))));

        let launched = (self.launch)(site.clone()).await.map(Arc::new);
        let outcome = match launched {
            Ok(subject) => {
                put.send_replace(Some(Arc::clone(&subject)));
                let steps = guarded(
                    &self.scenario,
                    &site,
                    &world,
                    self.steps(point, &site, &world, &*subject),
                );
                let outcome = steps
                    .await
                    .with_context(|| format!("its log ends with:\n{}", subject.process().log_tail(LOG_LINES)));
                subject.process().kill();
                outcome
            }
            Err(error) => Err(error.context("start the operator")),
        };
        // The proxy keeps the gate, and the gate the operator.
        site.proxy.set_gate(None);
        if let Some(clean_up) = &self.scenario.clean_up {
            clean_up(site.clone(), world).await.context("clean up")?;
        }
        outcome?;
        let killed = matches!(point, Point::BeforeFirstWrite | Point::AfterWrite(_));
        Ok(Run {
            writes: writes.load(Ordering::SeqCst),
            reached: !killed || reached.load(Ordering::SeqCst),
        })
    }

    async fn steps(&self, point: Point, site: &Site, world: &Arc<W>, subject: &S) -> Result<()> {
        let scenario = &self.scenario;
        started(subject).await?;
        let mut event = 0;
        for step in &scenario.steps {
            match step {
                Step::Event(name, act) => {
                    self.event(point, event, site, subject, act(site.clone(), Arc::clone(world)))
                        .await
                        .with_context(|| format!("event {event} ({name})"))?;
                    event += 1;
                }
                Step::Effect(name, probe) => {
                    wait::until(name, scenario.within, || probe(site.clone(), Arc::clone(world))).await?;
                }
            }
        }
        if let Some(end) = &scenario.end {
            let probe = || end(site.clone(), Arc::clone(world));
            wait::until("the expected end", scenario.within, probe).await?;
            wait::throughout("the expected end", scenario.stays, probe).await?;
        }
        Ok(())
    }

    /// One event, with what the point does around it.
    async fn event(
        &self,
        point: Point,
        number: usize,
        site: &Site,
        subject: &S,
        act: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let stale = matches!(point, Point::StaleView { event, .. } if event == number);
        let first = point == Point::UnobservedState { event: number };
        let second = number > 0 && point == Point::UnobservedState { event: number - 1 };
        if stale || first {
            site.proxy.freeze().await?;
        }
        act.await?;
        if stale {
            if matches!(point, Point::StaleView { restart: true, .. }) {
                subject.process().restart()?;
                started(subject).await?;
            }
            // Nothing to wait for: what it must not do has no sign.
            tokio::time::sleep(self.scenario.stale_for).await;
            site.proxy.thaw();
        }
        if second {
            site.proxy.thaw_to_present().await?;
        }
        Ok(())
    }
}

async fn started(subject: &impl Subject) -> Result<()> {
    wait::until("the operator to start", STARTED_WITHIN, || subject.has_started()).await
}

/// Counts the writes, and kills the operator at the point, once.
fn killing_gate<S: Subject>(
    point: Point,
    subject: watch::Receiver<Option<Arc<S>>>,
    writes: Arc<AtomicU64>,
    reached: Arc<AtomicBool>,
) -> Gate {
    Gate::new(move |write| {
        let (mut subject, writes, reached) = (subject.clone(), Arc::clone(&writes), Arc::clone(&reached));
        async move {
            writes.fetch_max(write.number, Ordering::SeqCst);
            if !point.is_at(&write) {
                return Verdict::Pass;
            }
            // It may write before whoever starts it has been handed it.
            let Ok(subject) = subject.wait_for(Option::is_some).await.map(|subject| subject.clone()) else {
                return Verdict::Pass;
            };
            reached.store(true, Ordering::SeqCst);
            if let Some(subject) = subject
                && let Err(error) = subject.process().restart()
            {
                eprintln!("{} did not start again: {error:#}", subject.process().name());
            }
            Verdict::Cut
        }
        .boxed()
    })
}
