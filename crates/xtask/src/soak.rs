//! `cargo xtask soak`: an operator on a real control plane on which things fail at random, and what must hold meanwhile.

mod cluster;
mod event;
mod invariants;
mod view;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nodeward_testkit::progress::Progress;
use tokio::time::{Instant, sleep};

use self::cluster::SoakCluster;
use self::event::Dice;
use crate::until_interrupted;

/// How long things fail before all is mended, and nothing may be left.
const ROUND: Duration = Duration::from_secs(50);

/// Nodes that too many failures at once can be tried with.
const LEAST_NODES: usize = 20;

/// How many of the last events a failure tells.
const TOLD: usize = 60;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    operator: Operator,
}

#[derive(clap::Subcommand)]
enum Operator {
    /// Nodes fail, recover, flap, change and go, templates are edited, requests fail and the operator is killed
    HealthCheck(HealthCheck),
}

#[derive(clap::Args)]
struct HealthCheck {
    /// How long it lasts
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// From which the events follow; else a random one, which is printed
    #[arg(long)]
    seed: Option<u64>,
    /// Nodes of the cluster
    #[arg(long, default_value_t = 300)]
    nodes: usize,
}

/// # Errors
/// When something that must hold did not: with the seed, the last events and the operator's log.
pub fn run(args: &Args) -> Result<ExitCode> {
    let Operator::HealthCheck(args) = &args.operator;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("seed {seed}");
    until_interrupted(async {
        soak(args, seed).await.with_context(|| format!("seed {seed}"))?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn soak(args: &HealthCheck, seed: u64) -> Result<()> {
    ensure!(args.nodes >= LEAST_NODES, "at least {LEAST_NODES} nodes are needed");
    let cluster = SoakCluster::start(args.nodes, seed).await?;
    let mut dice = Dice::new(seed, args.nodes);
    let end = Instant::now() + Duration::from_mins(args.minutes);
    let mut told = Vec::new();
    let mut round = 0;
    let outcome = loop {
        round += 1;
        let progress = Progress::begin(format!("round {round}"));
        let outcome = fail_and_mend(&cluster, &mut dice, &mut told, &progress).await;
        if outcome.is_err() || end <= Instant::now() {
            break outcome;
        }
        progress.done(&format!("{} events, {}", told.len(), cluster.invariants.text()));
    };
    if outcome.is_err() {
        let first = told.len().saturating_sub(TOLD);
        eprintln!("the last events:\n{}", told[first..].join("\n"));
        eprintln!("{}", cluster.logs());
    }
    outcome?;
    let ended = cluster.end().await;
    println!("{} events in {round} rounds; {}", told.len(), cluster.invariants.text());
    ended
}

/// One round: events at random for a while, then all is mended, and nothing may be left.
async fn fail_and_mend(
    cluster: &SoakCluster,
    dice: &mut Dice,
    told: &mut Vec<String>,
    progress: &Progress,
) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < ROUND {
        let event = dice.next();
        let text = event.to_string();
        told.push(format!("{:>7.1} s  {text}", cluster.age().as_secs_f64()));
        progress.step(&text);
        cluster
            .let_happen(event)
            .await
            .with_context(|| format!("let it happen: {text}"))?;
        sleep(dice.pause()).await;
        cluster.invariants.hold()?;
    }
    told.push(format!("{:>7.1} s  all is mended", cluster.age().as_secs_f64()));
    progress.step("mending all");
    cluster.mend().await?;
    cluster.nothing_is_left().await?;
    cluster.invariants.hold()
}
