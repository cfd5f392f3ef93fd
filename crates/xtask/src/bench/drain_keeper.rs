//! What drain-keeper costs a large cluster.

mod config;
mod drain;
mod figures;
mod heartbeats;
mod lateness;
mod measure;
mod populate;

use std::process::ExitCode;

use anyhow::Result;
use nodeward_testkit::binaries;

use super::large::size::{PODS_PER_NODE, Size};

/// What is measured unless a size is asked for: nodes and pods.
const SIZES: [(usize, usize); 2] = [(1_000, 30_000), (5_000, 150_000)];

#[derive(clap::Args)]
pub struct Args {
    /// Measure only this many nodes
    #[arg(long)]
    nodes: Option<usize>,
    /// Measure only this many pods [default: 30 a node]
    #[arg(long)]
    pods: Option<usize>,
    /// Only the last line: one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    fn sizes(&self) -> Result<Vec<Size>> {
        if self.nodes.is_none() && self.pods.is_none() {
            return SIZES.into_iter().map(|(nodes, pods)| Size::new(nodes, pods)).collect();
        }
        let nodes = self
            .nodes
            .unwrap_or_else(|| self.pods.map_or(0, |pods| pods / PODS_PER_NODE));
        Ok(vec![Size::new(nodes, self.pods.unwrap_or(nodes * PODS_PER_NODE))?])
    }
}

/// Measures it, and prints the figures.
pub async fn bench(args: &Args) -> Result<ExitCode> {
    let sizes = args.sizes()?;
    let binary = tokio::task::spawn_blocking(|| binaries::operator("drain-keeper")).await??;
    let mut all = Vec::new();
    for size in &sizes {
        let figures = measure::measure(*size, &binary).await?;
        if !args.json {
            println!("{}", figures.table());
        }
        all.push(figures);
    }
    println!("{}", figures::as_json(all));
    Ok(ExitCode::SUCCESS)
}
