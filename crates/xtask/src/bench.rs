//! `cargo xtask bench`: what an operator costs a large cluster, measured on a real control plane.

mod config;
mod drain;
mod figures;
mod heartbeats;
mod lateness;
mod load;
mod measure;
mod nodes;
mod pods;
mod populate;
mod size;

use std::process::ExitCode;

use anyhow::Result;
use nodeward_testkit::binaries;
use tokio::signal;

use self::size::Size;

/// What is measured unless a size is asked for: nodes and pods.
const SIZES: [(usize, usize); 2] = [(1_000, 30_000), (5_000, 150_000)];

/// Pods of a node, where only the number of nodes is asked for.
const PODS_PER_NODE: usize = 30;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    operator: Operator,
}

#[derive(clap::Subcommand)]
enum Operator {
    /// Requests, lateness, time to ready, memory and CPU of drain-keeper, at 1,000 nodes and at 5,000 (20 minutes)
    DrainKeeper(DrainKeeper),
}

#[derive(clap::Args)]
struct DrainKeeper {
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

pub fn run(args: &Args) -> Result<ExitCode> {
    let Operator::DrainKeeper(args) = &args.operator;
    let sizes = args.sizes()?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(async {
            tokio::select! {
                outcome = bench(&sizes, args.json) => outcome,
                _ = signal::ctrl_c() => {
                    eprintln!("interrupted: stopping the cluster");
                    Ok(ExitCode::from(130))
                }
            }
        })
}

impl DrainKeeper {
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

async fn bench(sizes: &[Size], json: bool) -> Result<ExitCode> {
    let binary = tokio::task::spawn_blocking(|| binaries::operator("drain-keeper")).await??;
    let mut all = Vec::new();
    for size in sizes {
        let figures = measure::measure(*size, &binary).await?;
        if !json {
            println!("{}", figures.table());
        }
        all.push(figures);
    }
    println!("{}", figures::as_json(all));
    Ok(ExitCode::SUCCESS)
}
