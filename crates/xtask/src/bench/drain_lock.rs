//! How long parallel drains take with drain-lock and without it, and what its webhook costs.

mod bound;
mod figures;
mod kills;
mod measure;
mod meter;
mod queue;
mod run;
mod spread;
mod stage;
mod three_nodes;
mod topology;
mod webhook;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use nodeward_testkit::binaries;

use self::measure::Wanted;
use self::run::Mode;
use super::large::size::{PODS_PER_NODE, Size};

/// What many nodes at once are by option.
const MANY: usize = 50;

#[derive(clap::Args)]
pub struct Args {
    /// How many nodes are drained at once; each of these in turn
    #[arg(long, value_delimiter = ',', default_values_t = [2, 6, 12])]
    nodes_at_once: Vec<usize>,
    /// 50 nodes at once, too
    #[arg(long)]
    with_50: bool,
    /// Only these regimes, of A (room), B (no room), C (pinned), D (mixed)
    #[arg(long, value_delimiter = ',', value_name = "LETTER")]
    regimes: Vec<String>,
    /// Only these ways of draining
    #[arg(long, value_delimiter = ',', value_enum)]
    modes: Vec<Mode>,
    /// How often each way of draining is measured; the middle run counts. Who is first in the queue is chance, and how
    /// long all take depends on it
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=50))]
    runs: u8,
    /// Nodes of the cluster for which the webhook answers; 0 leaves its measurement out
    #[arg(long, default_value_t = 5_000)]
    webhook_nodes: usize,
    /// Pods there [default: 30 a node]
    #[arg(long)]
    webhook_pods: Option<usize>,
    /// How many pinned nodes are drained while drain-lock is killed again and again; 0 leaves that out
    #[arg(long, default_value_t = 6)]
    killed_nodes: usize,
    /// Only the case that wedges: three nodes, two StatefulSets, drained at once by plain `kubectl drain`, so many times with
    /// drain-lock, and some times without
    #[arg(long, default_value_t = 0, value_name = "N", conflicts_with_all = ["nodes_at_once", "with_50", "regimes"])]
    wedge_runs: usize,
    /// Only the last line: one JSON object
    #[arg(long)]
    json: bool,
}

/// Measures it, and prints the figures.
pub async fn bench(args: &Args) -> Result<ExitCode> {
    let wanted = args.wanted().await?;
    let figures = Box::pin(measure::measure(&wanted)).await?;
    if !args.json {
        println!("{}", figures.table());
    }
    println!("{}", figures.json());
    Ok(ExitCode::SUCCESS)
}

impl Args {
    async fn wanted(&self) -> Result<Wanted> {
        let mut sizes = self.nodes_at_once.clone();
        sizes.extend(self.with_50.then_some(MANY));
        sizes.sort_unstable();
        sizes.dedup();
        let known = measure::regime_names()?;
        let regimes: Vec<String> = self.regimes.iter().map(|regime| regime.to_uppercase()).collect();
        for regime in &regimes {
            ensure!(
                known.contains(regime),
                "there is no regime {regime}; there are {}",
                known.join(", ")
            );
        }
        let modes = if self.modes.is_empty() && self.wedge_runs > 0 {
            vec![Mode::Naive, Mode::Auto]
        } else if self.modes.is_empty() {
            [Mode::ALONE, Mode::LOCKED].concat()
        } else {
            self.modes.clone()
        };
        let binaries = if modes.iter().any(|mode| Mode::LOCKED.contains(mode)) {
            let lock = tokio::task::spawn_blocking(|| binaries::operator("drain-lock")).await??;
            let plugin = tokio::task::spawn_blocking(|| binaries::operator("kubectl-nodeward")).await??;
            Some((lock, plugin))
        } else {
            None
        };
        let pods = self.webhook_pods.unwrap_or(self.webhook_nodes * PODS_PER_NODE);
        let webhook = match self.webhook_nodes {
            0 => None,
            _ if self.wedge_runs > 0 => None,
            nodes => Some(Size::new(nodes, pods)?),
        };
        Ok(Wanted {
            webhook,
            sizes,
            regimes: if regimes.is_empty() { known } else { regimes },
            modes,
            binaries,
            killed_nodes: self.killed_nodes,
            runs: usize::from(self.runs),
            wedge_runs: self.wedge_runs,
        })
    }
}
