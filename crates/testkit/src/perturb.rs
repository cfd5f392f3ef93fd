//! The three perturbations that found most bugs in published operators (Sieve, OSDI 2022), for any scenario.
//!
//! A [`Scenario`] is written once, as a value: what is there, what happens, how it must end. [`Perturbed`] runs it plain
//! and then again for every point of
//!
//! - **intermediate state**: the operator is killed before its first write and after each of its writes (which has
//!   happened; the operator does not know), and started again;
//! - **stale view**: its watches and caches stand still from before an event, with and without a restart meanwhile, and
//!   then catch up;
//! - **unobserved state**: of two events that follow each other at once it only ever sees the outcome.
//!
//! Every run has a [`Site`] of its own, and must come to the same end.

mod report;
mod run;
mod scenario;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kube::Client;

pub use self::report::{Failure, Report};
pub use self::scenario::Scenario;

use crate::control_plane::ControlPlane;
use crate::operator::Operator;
use crate::process::Process;
use crate::proxy::{ApiRequest, Proxy};
use crate::{names, wait};

/// How long an operator may take to start, or to start again.
const STARTED_WITHIN: Duration = Duration::from_mins(1);

/// An operator under test: whatever runs as a process.
pub trait Subject: Send + Sync + 'static {
    /// Its process.
    fn process(&self) -> &Process;

    /// Whether the process that runs now has seen the cluster. A process that starts while an event takes place may see
    /// its cause and read its consequence, whatever the point is: its faults would show at points that do not find them.
    /// It may be killed and started again while this is asked.
    fn has_started(&self) -> impl Future<Output = Result<()>> + Send;
}

impl Subject for Operator {
    fn process(&self) -> &Process {
        Self::process(self)
    }

    async fn has_started(&self) -> Result<()> {
        let (status, text) = self.get("/readyz").await?;
        ensure!(status == 200, "/readyz: {status} {text}");
        Ok(())
    }
}

/// Where one run takes place.
#[derive(Clone)]
pub struct Site {
    /// A name that no other run has: for the namespace, the nodes, the operator's lease.
    pub name: String,
    /// The control plane that all runs share.
    pub plane: &'static ControlPlane,
    /// A client of the administrator's that is never perturbed.
    pub client: Client,
    /// The operator must reach the API through this.
    pub proxy: Arc<Proxy>,
}

impl Site {
    async fn new() -> Result<Self> {
        let plane = ControlPlane::shared().await;
        let proxy = Arc::new(Proxy::start(plane).await?);
        Ok(Self {
            name: names::unique("site"),
            plane,
            client: plane.client().await?,
            proxy,
        })
    }
}

/// What is done to one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Nothing.
    Plain,
    /// Killed before its first write, which does not happen.
    BeforeFirstWrite,
    /// Killed after the write with this number (from 1), of whose outcome it never learns.
    AfterWrite(u64),
    /// Does not see the event with this number (from 0) until later.
    StaleView {
        /// The event.
        event: usize,
        /// Whether it is restarted meanwhile, into the same old view.
        restart: bool,
    },
    /// Sees the events with this number and the next only together.
    UnobservedState {
        /// The first of the two.
        event: usize,
    },
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::BeforeFirstWrite => f.write_str("killed before its first write"),
            Self::AfterWrite(write) => write!(f, "killed after write {write}"),
            Self::StaleView { event, restart: false } => write!(f, "stale view of event {event}"),
            Self::StaleView { event, restart: true } => write!(f, "restarted into a stale view of event {event}"),
            Self::UnobservedState { event } => write!(f, "events {event} and {} seen as one", event + 1),
        }
    }
}

type Launch<S> = Arc<dyn Fn(Site) -> BoxFuture<'static, Result<S>> + Send + Sync>;
type Counted = Arc<dyn Fn(&ApiRequest) -> bool + Send + Sync>;

/// A scenario together with the operator that it is about.
pub struct Perturbed<W, S> {
    scenario: Scenario<W>,
    launch: Launch<S>,
    counted: Counted,
    most_writes: u64,
    at_once: usize,
}

impl<W: Send + Sync + 'static, S: Subject> Perturbed<W, S> {
    /// `launch` starts the operator, through the site's proxy and confined to the site. It must not wait for a write of
    /// the operator's, for that write may be the one at which it is killed. An operator that elects a leader should not
    /// do so here, or the lease of the killed one has to expire first.
    pub fn new<F, Fut>(scenario: Scenario<W>, launch: F) -> Self
    where
        F: Fn(Site) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<S>> + Send + 'static,
    {
        Self {
            scenario,
            launch: Arc::new(move |site| launch(site).boxed()),
            counted: Arc::new(|request| !request.is_housekeeping()),
            most_writes: 40,
            at_once: 2,
        }
    }

    /// Which writes are points of the intermediate state. Default: all but those of Leases and Events.
    #[must_use]
    pub fn counting(mut self, counted: impl Fn(&ApiRequest) -> bool + Send + Sync + 'static) -> Self {
        self.counted = Arc::new(counted);
        self
    }

    /// After how many of its writes it is killed at most, spread evenly (default 40): the report names how many of them
    /// all were tried.
    #[must_use]
    pub fn at_most(mut self, writes: u64) -> Self {
        self.most_writes = writes.max(1);
        self
    }

    /// How many runs take place side by side (default 2).
    #[must_use]
    pub fn at_once(mut self, runs: usize) -> Self {
        self.at_once = runs.max(1);
        self
    }

    /// Runs it plain.
    ///
    /// # Errors
    /// When it does not end as expected: with the end of the operator's log.
    pub async fn plain(&self) -> Result<u64> {
        let run = self.run(Point::Plain).await;
        run.map(|run| run.writes)
            .with_context(|| format!("{}, plain", self.scenario.name))
    }

    /// Runs it plain, and then through every perturbation; prints how many points were tried.
    ///
    /// # Errors
    /// When the plain run fails: then there is nothing to compare with. The other failures are in the report.
    pub async fn everything(&self) -> Result<Report> {
        let writes = self.plain().await?;
        let points = self.points(writes);
        let runs = points.iter().map(|point| async { (*point, self.run(*point).await) });
        let outcomes: Vec<_> = stream::iter(runs).buffer_unordered(self.at_once).collect().await;
        let mut report = Report::new(self.scenario.name.clone(), writes);
        for (point, outcome) in outcomes {
            report.add(point, outcome.map(|run| run.reached));
        }
        println!("{report}");
        Ok(report)
    }

    fn points(&self, writes: u64) -> Vec<Point> {
        let step = writes.div_ceil(self.most_writes).max(1);
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        let mut points = Vec::new();
        if writes > 0 {
            points.push(Point::BeforeFirstWrite);
        }
        points.extend((1..=writes).step_by(step).map(Point::AfterWrite));
        for event in 0..self.scenario.events() {
            points.extend([false, true].map(|restart| Point::StaleView { event, restart }));
        }
        points.extend(
            self.scenario
                .pairs()
                .into_iter()
                .map(|event| Point::UnobservedState { event }),
        );
        points
    }
}

/// Until the run's own deadline, or until something that must never be is there.
async fn guarded<W>(
    scenario: &Scenario<W>,
    site: &Site,
    world: &Arc<W>,
    run: impl Future<Output = Result<()>>,
) -> Result<()> {
    let Some(invariant) = &scenario.invariant else {
        return run.await;
    };
    let broken = async {
        loop {
            invariant(site.clone(), Arc::clone(world))
                .await
                .context("an invariant is broken")?;
            tokio::time::sleep(wait::LONGEST_PAUSE).await;
        }
    };
    tokio::select! {
        done = run => done,
        broken = broken => broken,
    }
}
