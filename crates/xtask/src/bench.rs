//! `cargo xtask bench`: what an operator costs, and what it gains, measured on a real control plane.

mod drain_keeper;
mod drain_lock;
mod large;
mod rounded;

use std::process::ExitCode;

use anyhow::Result;
use tokio::signal;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    operator: Operator,
}

#[derive(clap::Subcommand)]
enum Operator {
    /// Requests, lateness, time to ready, memory and CPU of drain-keeper, at 1,000 nodes and at 5,000 (20 minutes)
    DrainKeeper(drain_keeper::Args),
    /// How long parallel drains take with drain-lock and without, and what its webhook costs (20 minutes)
    DrainLock(drain_lock::Args),
}

pub fn run(args: &Args) -> Result<ExitCode> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let measured = async {
                match &args.operator {
                    Operator::DrainKeeper(args) => drain_keeper::bench(args).await,
                    Operator::DrainLock(args) => Box::pin(drain_lock::bench(args)).await,
                }
            };
            tokio::select! {
                outcome = measured => outcome,
                _ = signal::ctrl_c() => {
                    eprintln!("interrupted: stopping the cluster");
                    Ok(ExitCode::from(130))
                }
            }
        })
}
