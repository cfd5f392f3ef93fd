//! `cargo xtask bench`: what an operator costs, and what it gains, measured on a real control plane.
//!
//! Each operator has a scenario, which fills a control plane, installs the operator, measures it, and gives its figures.

mod ceph_pdb;
mod drain_keeper;
mod drain_lock;
mod drainers;
mod figures;
mod fleet;
mod health_check;
mod measure;
mod plan;

use std::process::ExitCode;

use anyhow::Result;

use self::figures::Figures;
pub use self::figures::count;
pub use self::health_check::{create_health_check, health_checks};
use crate::cluster::find_ceph_libraries;
use crate::until_interrupted;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    operator: Operator,
    /// Only the last line: one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Operator {
    /// How fast ceph-pdb closes budgets and opens them again, and its requests, Ceph commands and memory (12 minutes)
    CephPdb(ceph_pdb::Args),
    /// Requests, lateness, time to ready, memory and CPU of drain-keeper, at 1,000 nodes and at 5,000 (20 minutes)
    DrainKeeper(drain_keeper::Args),
    /// How long parallel drains take with drain-lock and without, and what its webhook costs (20 minutes)
    DrainLock(drain_lock::Args),
    /// How Karpenter, Cluster API, the descheduler and kubectl fare with drain-lock and without (15 minutes)
    Drainers(drainers::Args),
    /// Requests, lateness, time to ready, memory and CPU of health-check at 5,000 nodes (10 minutes)
    HealthCheck(health_check::Args),
    /// How long one pass of drain-keeper and of drain-lock takes at 1,000, 5,000 and 15,000 nodes; needs no control plane (3 minutes)
    Plan(plan::Args),
}

impl Operator {
    async fn bench(&self) -> Result<Figures> {
        match self {
            Self::CephPdb(args) => Box::pin(ceph_pdb::bench(args)).await,
            Self::DrainKeeper(args) => drain_keeper::bench(args).await,
            Self::DrainLock(args) => Box::pin(drain_lock::bench(args)).await,
            Self::Drainers(args) => drainers::bench(args).await,
            Self::HealthCheck(args) => Box::pin(health_check::bench(args)).await,
            Self::Plan(args) => plan::bench(args).await,
        }
    }
}

/// Prints the table, and the JSON object as the last line.
pub fn run(args: &Args) -> Result<ExitCode> {
    if matches!(args.operator, Operator::CephPdb(_)) {
        find_ceph_libraries()?;
    }
    until_interrupted(async {
        let figures = args.operator.bench().await?;
        if !args.json {
            println!("{}", figures.table());
        }
        println!("{}", figures.into_json());
        Ok(ExitCode::SUCCESS)
    })
}
