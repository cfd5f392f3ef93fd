//! What a scenario is.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Point, TestEnv};

type AnyAct<W> = Arc<dyn Fn(TestEnv, Arc<W>) -> BoxFuture<'static, Result<()>> + Send + Sync>;
type Setup<W> = Arc<dyn Fn(TestEnv) -> BoxFuture<'static, Result<W>> + Send + Sync>;

pub(super) enum Step<W> {
    /// Something happens to the cluster.
    Event(&'static str, AnyAct<W>),
    /// The operator is given time until this is so.
    Effect(&'static str, AnyAct<W>),
}

/// A cluster, what happens to it, and how it must end. `W` is what the set-up hands to the rest: names, UIDs.
pub struct Scenario<W> {
    pub(super) name: String,
    pub(super) setup: Setup<W>,
    pub(super) steps: Vec<Step<W>>,
    pub(super) end: Option<AnyAct<W>>,
    pub(super) invariant: Option<AnyAct<W>>,
    pub(super) clean_up: Option<AnyAct<W>>,
    pub(super) within: Duration,
    pub(super) stays: Duration,
    pub(super) most_writes: u64,
    pub(super) at_once: usize,
}

/// What happens in an environment, or is looked for there.
pub trait Act<W>: Fn(TestEnv, Arc<W>) -> Self::Future + Send + Sync + 'static {
    type Future: Future<Output = Result<()>> + Send + 'static;
}

impl<W, F, Fut> Act<W> for F
where
    F: Fn(TestEnv, Arc<W>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<()>> + Send + 'static,
{
    type Future = Fut;
}

fn act<W>(act: impl Act<W>) -> AnyAct<W> {
    Arc::new(move |env, world| act(env, world).boxed())
}

impl<W> Scenario<W> {
    /// `setup` makes what is there before the operator starts, in the environment that it is given.
    pub fn new<F, Fut>(name: impl Into<String>, setup: F) -> Self
    where
        F: Fn(TestEnv) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<W>> + Send + 'static,
    {
        Self {
            name: name.into(),
            setup: Arc::new(move |env| setup(env).boxed()),
            steps: Vec::new(),
            end: None,
            invariant: None,
            clean_up: None,
            within: Duration::from_mins(1),
            stays: Duration::from_secs(1),
            most_writes: 40,
            at_once: 2,
        }
    }

    /// Something happens. It must not wait for the operator: that is [`Scenario::effect`]'s. Two events without an
    /// effect between them follow each other at once, and the end must be the same for whoever sees only the second.
    #[must_use]
    pub fn event(mut self, name: &'static str, event: impl Act<W>) -> Self {
        self.steps.push(Step::Event(name, act(event)));
        self
    }

    /// Waits until `probe` gives `Ok` before it goes on; an `Err` says what is still missing.
    #[must_use]
    pub fn effect(mut self, name: &'static str, probe: impl Act<W>) -> Self {
        self.steps.push(Step::Effect(name, act(probe)));
        self
    }

    /// How it must end, and stay: `probe` gives `Ok`.
    #[must_use]
    pub fn end(mut self, probe: impl Act<W>) -> Self {
        self.end = Some(act(probe));
        self
    }

    /// What must be so all the time: `probe` gives `Ok` whenever it is asked.
    #[must_use]
    pub fn throughout(mut self, probe: impl Act<W>) -> Self {
        self.invariant = Some(act(probe));
        self
    }

    /// Removes what the set-up made, after the operator has been stopped, however the run ended.
    #[must_use]
    pub fn clean_up(mut self, clean_up: impl Act<W>) -> Self {
        self.clean_up = Some(act(clean_up));
        self
    }

    /// How long each effect, and the end, may take (default one minute).
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// How long the end must last to count (default 1 s).
    #[must_use]
    pub fn stays(self, stays: Duration) -> Self {
        Self { stays, ..self }
    }

    /// After how many of its writes the operator is killed at most, spread evenly (default 40): the report names how
    /// many of them all were tried. Writes of Leases and Events do not count.
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

    /// All that is tried on it, when its plain run had so many writes.
    pub(super) fn points(&self, writes: u64) -> Vec<Point> {
        let step = usize::try_from(writes.div_ceil(self.most_writes).max(1)).unwrap_or(usize::MAX);
        let mut points: Vec<Point> = (1..=writes).step_by(step).map(Point::AfterWrite).collect();
        if writes > 0 {
            points.push(Point::BeforeFirstWrite);
        }
        let mut event = 0;
        for (step, next) in self.steps.iter().zip(self.steps.iter().skip(1).map(Some).chain([None])) {
            if !matches!(step, Step::Event(..)) {
                continue;
            }
            points.extend([false, true].map(|restart| Point::StaleView { event, restart }));
            if matches!(next, Some(Step::Event(..))) {
                points.push(Point::UnobservedState { event });
            }
            event += 1;
        }
        points
    }
}
