//! `cargo xtask`: everything that is done in this repository and is more than one command.

mod bench;
mod budget_watch;
mod cluster;
mod crds;
mod demo;
mod events;
mod image;
mod install;
mod lines;
mod maintenance;
mod soak;
mod test;
mod values;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Testbed, tests, demo, benchmarks and generators of Nodeward"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

/// One variant a command, each with a module of its own.
#[derive(Subcommand)]
enum Command {
    /// Measure what an operator costs a large cluster
    Bench(bench::Args),
    /// Run a real control plane on this machine
    Cluster(cluster::Args),
    /// Generate the CustomResourceDefinitions and their reference from the Rust types
    Crds(crds::Args),
    /// Show on a real control plane what the operators do, or what happens without them
    Demo(demo::Args),
    /// Generate the page of Events and conditions
    Events,
    /// Build the container image of a component, and run it
    Image(image::Args),
    /// Count the lines of code by crate
    Lines,
    /// Let things fail at random under an operator, and watch what must hold
    Soak(soak::Args),
    /// Run every test
    Test(test::Args),
    /// Generate the page of the chart's values
    Values,
}

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Cluster(args) => cluster::run(args),
        Command::Crds(args) => crds::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Events => events::run(),
        Command::Image(args) => image::run(&args),
        Command::Lines => lines::run(),
        Command::Soak(args) => soak::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Values => values::run(),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Runs it to its end; Ctrl-C drops it, and with it the cluster that it has started.
fn until_interrupted(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    tokio::runtime::Runtime::new()?.block_on(async {
        tokio::select! {
            ended = work => ended,
            _ = tokio::signal::ctrl_c() => {
                eprintln!("interrupted: stopping the cluster");
                Ok(ExitCode::from(130))
            }
        }
    })
}
