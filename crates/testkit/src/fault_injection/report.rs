//! What came of the runs of one scenario.

use anyhow::{Result, bail, ensure};

use super::Point;

/// A run that did not end as the plain one.
#[derive(Debug)]
pub struct Failure {
    /// What was done to it.
    pub point: Point,
    /// What was wrong, with the end of the operator's log.
    pub error: anyhow::Error,
}

/// The points that were tried, and what came of them.
#[derive(Debug)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// How many writes the plain run had.
    pub writes: u64,
    /// Points between writes at which the operator was ended.
    pub intermediate: usize,
    /// Points at which it was to be ended, but the run had fewer writes than the plain one.
    pub missed: usize,
    /// Stale views.
    pub stale: usize,
    /// Unobserved states.
    pub unobserved: usize,
    /// The runs that went wrong.
    pub failures: Vec<Failure>,
}

impl Report {
    pub(super) fn new(scenario: &str, writes: u64) -> Self {
        Self {
            scenario: scenario.to_owned(),
            writes,
            intermediate: 0,
            missed: 0,
            stale: 0,
            unobserved: 0,
            failures: Vec::new(),
        }
    }

    /// `outcome` tells whether the point was reached.
    pub(super) fn add(&mut self, point: Point, outcome: Result<bool>) {
        match (point, &outcome) {
            (Point::Plain, _) => {}
            (Point::BeforeFirstWrite | Point::AfterWrite(_), Ok(false)) => self.missed += 1,
            (Point::BeforeFirstWrite | Point::AfterWrite(_), _) => self.intermediate += 1,
            (Point::StaleView { .. }, _) => self.stale += 1,
            (Point::UnobservedState { .. }, _) => self.unobserved += 1,
        }
        if let Err(error) = outcome {
            self.failures.push(Failure { point, error });
        }
    }

    /// How many points were tried.
    pub fn tried(&self) -> usize {
        self.intermediate + self.stale + self.unobserved
    }

    /// The report, if there were points and every one of them came to the same end as the plain run.
    ///
    /// # Errors
    /// Otherwise: with every failure.
    pub fn same_end(self) -> Result<Self> {
        ensure!(self.tried() > 0, "{}: not a single point was tried", self.scenario);
        if self.failures.is_empty() {
            return Ok(self);
        }
        let failures: Vec<String> = self
            .failures
            .iter()
            .map(|failure| format!("--- {}: {:#}", failure.point, failure.error))
            .collect();
        bail!("{self}\n{}", failures.join("\n"))
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            scenario,
            writes,
            intermediate,
            missed,
            stale,
            unobserved,
            failures,
        } = self;
        write!(
            f,
            "{scenario}: {} points tried: {intermediate} kills around {writes} writes, {stale} stale views, {unobserved} unobserved states",
            self.tried()
        )?;
        if *missed > 0 {
            write!(f, "; {missed} kills found no write")?;
        }
        if failures.is_empty() {
            f.write_str("; all came to the same end")
        } else {
            write!(f, "; {} did not", failures.len())
        }
    }
}
