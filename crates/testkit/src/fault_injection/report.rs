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
    /// The points that were reached: a run may have fewer writes than the plain one.
    pub tried: Vec<Point>,
    /// How many were not.
    pub missed: usize,
    /// The runs that went wrong.
    pub failures: Vec<Failure>,
}

impl Report {
    /// Points between writes at which the operator was ended.
    pub fn intermediate(&self) -> usize {
        self.count(|point| matches!(point, Point::BeforeFirstWrite | Point::AfterWrite(_)))
    }

    /// Stale views.
    pub fn stale(&self) -> usize {
        self.count(|point| matches!(point, Point::StaleView { .. }))
    }

    /// Unobserved states.
    pub fn unobserved(&self) -> usize {
        self.count(|point| matches!(point, Point::UnobservedState { .. }))
    }

    fn count(&self, is_counted: fn(&Point) -> bool) -> usize {
        self.tried.iter().copied().filter(is_counted).count()
    }

    /// `outcome` tells whether the point was reached.
    pub(super) fn add(&mut self, point: Point, outcome: Result<bool>) {
        match outcome {
            Ok(false) => self.missed += 1,
            Ok(true) => self.tried.push(point),
            Err(error) => {
                self.tried.push(point);
                self.failures.push(Failure { point, error });
            }
        }
    }

    /// The report, if there were points and every one of them came to the same end as the plain run.
    ///
    /// # Errors
    /// Otherwise: with every failure.
    pub fn same_end(self) -> Result<Self> {
        ensure!(
            !self.tried.is_empty(),
            "{}: not a single point was tried",
            self.scenario
        );
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
        let (scenario, tried, writes) = (&self.scenario, self.tried.len(), self.writes);
        let (intermediate, stale, unobserved) = (self.intermediate(), self.stale(), self.unobserved());
        write!(
            f,
            "{scenario}: {tried} points tried: {intermediate} kills around {writes} writes, {stale} stale views, {unobserved} unobserved states",
        )?;
        if self.missed > 0 {
            write!(f, "; {} kills found no write", self.missed)?;
        }
        match self.failures.len() {
            0 => f.write_str("; all came to the same end"),
            failures => write!(f, "; {failures} did not"),
        }
    }
}
