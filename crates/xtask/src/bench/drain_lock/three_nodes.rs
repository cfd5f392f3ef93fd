//! The case that wedges without drain-lock, many times over: three nodes, two StatefulSets, plain `kubectl drain` for all at
//! once.

use anyhow::{Context, Result};
use nodeward_testkit::progress::Progress;
use serde::Serialize;

use super::figures::Cell;
use super::measure::{Bench, Wanted};
use super::run::Mode;
use super::spread::Spread;
use super::stage::Stage;
use super::topology::Topology;

/// How often it is tried without drain-lock at most: enough to see it wedge.
const ALONE_AT_MOST: usize = 8;

/// What came of all rounds of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rounds {
    #[serde(skip)]
    pub mode: Mode,
    pub runs: usize,
    /// In how many of them all nodes were drained, rebooted and uncordoned, and all pods were back.
    pub ended: usize,
    /// Of those that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub makespan_s: Option<Spread>,
    /// Evictions that were refused: 429.
    pub refused: usize,
    /// Budgets that fell short.
    pub violations: usize,
}

impl Rounds {
    fn of(mode: Mode, cells: &[Cell]) -> Self {
        let makespans: Vec<f64> = cells.iter().filter_map(|cell| cell.makespan_s).collect();
        Self {
            mode,
            runs: cells.len(),
            ended: makespans.len(),
            makespan_s: Spread::of(&makespans),
            refused: cells.iter().map(|cell| cell.refused).sum(),
            violations: cells.iter().map(|cell| cell.violations).sum(),
        }
    }
}

/// Without drain-lock, if that is wanted.
pub async fn alone(bench: &Bench, wanted: &Wanted) -> Result<Option<Rounds>> {
    if !wanted.modes.contains(&Mode::Naive) {
        return Ok(None);
    }
    rounds(bench, Mode::Naive, wanted.wedge_runs.min(ALONE_AT_MOST))
        .await
        .map(Some)
}

/// With drain-lock.
pub async fn locked(bench: &Bench, runs: usize) -> Result<Rounds> {
    rounds(bench, Mode::Auto, runs).await
}

async fn rounds(bench: &Bench, mode: Mode, runs: usize) -> Result<Rounds> {
    let progress = Progress::begin(format!("three nodes at once, {}", mode.name()));
    let topology = Topology::of_three_nodes();
    let stage = Stage::set(&bench.client, &topology).await?;
    let mut cells: Vec<Cell> = Vec::new();
    for run in 1..=runs {
        let cell = bench.cell(&stage, mode, &progress).await;
        cells.push(cell.with_context(|| format!("{}, run {run} of {runs}", mode.name()))?);
    }
    stage.strike().await?;
    let rounds = Rounds::of(mode, &cells);
    progress.done(&format!("{} of {} ended", rounds.ended, rounds.runs));
    Ok(rounds)
}
