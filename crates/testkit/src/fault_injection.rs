//! The three fault injections that found most bugs in published operators (Sieve, OSDI 2022), for any scenario.
//!
//! A [`Scenario`] is written once, as a value: what is there, what happens, how it must end. [`run_with_faults`] runs it
//! plain and then again for every point of
//!
//! - **intermediate state**: the operator is killed before its first write and after each of its writes (which has
//!   happened; the operator does not know), and started again;
//! - **stale view**: its watches and caches stand still from before an event, with and without a restart meanwhile, and
//!   then catch up;
//! - **unobserved state**: of two events that follow each other at once it only ever sees the outcome.
//!
//! Every run has a [`TestEnv`] of its own, and must come to the same end.

mod report;
mod run;
mod scenario;

use std::future::Future;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, stream};
use kube::Client;

pub use self::report::{Failure, Report};
pub use self::scenario::{Act, Scenario};

use crate::control_plane::ControlPlane;
use crate::names;
use crate::operator::Operator;
use crate::process::Process;
use crate::proxy::Proxy;

/// An operator under test: whatever runs as a process.
pub trait OperatorProcess: Send + Sync + 'static {
    fn process(&self) -> &Process;

    /// Whether the process that runs now has seen the cluster. A process that starts while an event takes place may see
    /// its cause and read its consequence, whatever the point is: its faults would show at points that do not find them.
    /// It may be killed and started again while this is asked.
    fn has_started(&self) -> impl Future<Output = Result<()>> + Send;
}

impl OperatorProcess for Operator {
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
pub struct TestEnv {
    /// A name that no other run has: for the namespace, the nodes, the operator's lease.
    pub name: String,
    /// The control plane that all runs share.
    pub plane: &'static ControlPlane,
    /// A client of the administrator's that no fault reaches.
    pub client: Client,
    /// The operator must reach the API through this.
    pub proxy: Arc<Proxy>,
}

impl TestEnv {
    async fn new() -> Result<Self> {
        let plane = ControlPlane::shared().await;
        let proxy = Arc::new(Proxy::start(plane).await?);
        Ok(Self {
            name: names::unique("env"),
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

/// Runs the scenario without faults; gives the number of the operator's writes.
///
/// `launch` starts the operator, through the environment's proxy and confined to the environment. It must not wait for
/// a write of the operator's, for that write may be the one at which it is killed. An operator that elects a leader
/// should not do so here, or the lease of the killed one has to expire first.
///
/// # Errors
/// When it does not end as expected: with the end of the operator's log.
pub async fn run_plain<W, L, Fut, S>(scenario: &Scenario<W>, launch: L) -> Result<u64>
where
    L: Fn(TestEnv) -> Fut,
    Fut: Future<Output = Result<S>>,
    S: OperatorProcess,
{
    let run = run::run(scenario, &launch, Point::Plain).await;
    run.map(|run| run.writes)
        .with_context(|| format!("{}, plain", scenario.name))
}

/// Runs the scenario plain, and then once for each fault at each of its points; prints how many points were tried.
/// For `launch` see [`run_plain`].
///
/// # Errors
/// When the plain run fails: then there is nothing to compare with. The other failures are in the report.
pub async fn run_with_faults<W, L, Fut, S>(scenario: &Scenario<W>, launch: L) -> Result<Report>
where
    L: Fn(TestEnv) -> Fut,
    Fut: Future<Output = Result<S>>,
    S: OperatorProcess,
{
    let writes = run_plain(scenario, &launch).await?;
    let (launch, points) = (&launch, scenario.points(writes));
    let runs = points
        .into_iter()
        .map(|point| async move { (point, run::run(scenario, launch, point).await) });
    let outcomes: Vec<_> = stream::iter(runs).buffer_unordered(scenario.at_once).collect().await;
    let mut report = Report {
        scenario: scenario.name.clone(),
        writes,
        tried: Vec::new(),
        missed: 0,
        failures: Vec::new(),
    };
    for (point, outcome) in outcomes {
        report.add(point, outcome.map(|run| run.reached));
    }
    println!("{report}");
    Ok(report)
}
