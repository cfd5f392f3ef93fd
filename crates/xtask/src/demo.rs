//! `cargo xtask demo`: a fleet is upgraded on a real cluster, node by node, and drain-keeper unblocks it.

mod budgets;
mod keeper;
mod machinery;
mod narrator;
mod outcome;
mod owners;
mod page;
mod place;
mod protected;
mod removal;
mod retell;
mod scenario;
mod upgrader;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use futures::FutureExt;
use nodeward_testkit::binaries;
use nodeward_testkit::operator::Operator;
use nodeward_testkit::progress::Progress;

use self::budgets::BudgetWatch;
use self::narrator::Narrator;
use self::outcome::{Kept, Outcome};
use self::place::Place;
use self::upgrader::Upgrader;
use crate::cluster::Ended;

#[derive(clap::Args)]
pub struct Args {
    /// Leave drain-keeper out: the same upgrade gets stuck, and the demo expects just that
    #[arg(long)]
    without: bool,
    /// Leave everything running at the end, until Ctrl-C, and print how to use it
    #[arg(long)]
    keep: bool,
    /// Play on the cluster of this kubeconfig's current context, with simulated nodes of the demo's own; all that the demo
    /// made is removed at the end, on failure and on Ctrl-C
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Only remove what earlier runs left on that cluster: those that were killed, and could not do it themselves
    #[arg(long, requires = "kubeconfig", conflicts_with_all = ["without", "keep"])]
    remove: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(demo(args));
    // A build that was interrupted is not waited for.
    runtime.shutdown_background();
    outcome
}

async fn demo(args: &Args) -> Result<ExitCode> {
    if let (true, Some(kubeconfig)) = (args.remove, &args.kubeconfig) {
        return remove_earlier(kubeconfig).await;
    }
    let mut ended = Ended::listen()?;
    let (binary, place) = tokio::select! {
        opened = open(args) => opened?,
        () = ended.wait() => return Ok(interrupted()),
    };
    // A panic is an error like any other: what was made is removed.
    let play = AssertUnwindSafe(play(args, &place, binary)).catch_unwind();
    let played = tokio::select! {
        played = play => played.unwrap_or_else(|_| Err(anyhow!("the demo panicked"))),
        () = ended.wait() => Ok(Played { code: interrupted(), keeper: None, to_the_end: false }),
    };
    let outcome = match played {
        Ok(played) => end(args, &place, played, &mut ended).await,
        Err(error) => Err(error),
    };
    if place.plane().is_none()
        && let Err(left) = removal::remove(&place).await
    {
        if let Err(error) = &outcome {
            eprintln!("error: {error:#}");
        }
        return Err(left);
    }
    outcome
}

/// What earlier runs left.
async fn remove_earlier(kubeconfig: &Path) -> Result<ExitCode> {
    let mut place = Place::reach(kubeconfig, String::new()).await?;
    let runs = place.earlier_runs().await?;
    if runs.is_empty() {
        println!("nothing of the demo is there");
    }
    for run in runs {
        println!("{run}:");
        place = place.of_run(run);
        removal::remove(&place).await?;
    }
    Ok(ExitCode::SUCCESS)
}

fn interrupted() -> ExitCode {
    eprintln!("\ninterrupted");
    ExitCode::from(130)
}

/// All that takes long the first time.
async fn open(args: &Args) -> Result<(Option<PathBuf>, Place)> {
    let binary = if args.without {
        None
    } else {
        Some(tokio::task::spawn_blocking(|| binaries::operator("drain-keeper")).await??)
    };
    Ok((binary, Place::open(args).await?))
}

/// What is left when the story is told.
struct Played {
    code: ExitCode,
    keeper: Option<Operator>,
    to_the_end: bool,
}

async fn play(args: &Args, place: &Place, binary: Option<PathBuf>) -> Result<Played> {
    let progress = Progress::begin("fleet and workloads");
    scenario::create(place, &progress).await?;
    progress.done(&format!("{} nodes, all workloads ready", scenario::NODES));
    let keeper = match binary {
        Some(binary) => Some(keeper::install(place, binary).await?),
        None => None,
    };

    let narrator = Arc::new(Narrator::new(place));
    introduce(&narrator, args, place);
    let _events = narrator.follow_events(place);
    let _conditions = narrator.follow_conditions(place);
    let budgets = BudgetWatch::start(place);
    let _owners = owners::start(place, &narrator);
    let began = Instant::now();
    let patience = if args.without {
        scenario::PATIENCE_WITHOUT
    } else {
        scenario::PATIENCE
    };
    let upgrade = Upgrader::new(place, Arc::clone(&narrator))
        .upgrade_all(&scenario::nodes(place), patience)
        .await?;
    let took = began.elapsed();
    narrator.finish();
    let kept = match &keeper {
        Some(keeper) => {
            let progress = Progress::begin("drain-keeper cleans up after itself");
            let kept = Kept::gather(place, keeper).await?;
            progress.done(if kept.leftovers.is_empty() {
                "nothing is left on the nodes"
            } else {
                "something is left"
            });
            Some(kept)
        }
        None => None,
    };
    let outcome = Outcome {
        upgrade,
        took,
        violations: budgets.violations(),
        keeper: kept,
    };
    println!("\n{}", outcome.table());
    let verdict = outcome.verdict();
    println!("{}\n", verdict.text());
    if let Some(keeper) = &keeper
        && !verdict.is_promised()
    {
        eprintln!(
            "the last lines of drain-keeper's log:\n{}",
            keeper.process().log_tail(30)
        );
    }
    let code = if verdict.is_promised() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    Ok(Played {
        code,
        keeper,
        to_the_end: true,
    })
}

/// drain-keeper ends as it does in a cluster; with `--keep` not before Ctrl-C.
async fn end(args: &Args, place: &Place, played: Played, ended: &mut Ended) -> Result<ExitCode> {
    if args.keep && played.to_the_end {
        print_usage(place);
        ended.wait().await;
    }
    if let Some(keeper) = played.keeper {
        stop(keeper).await?;
    }
    Ok(played.code)
}

async fn stop(keeper: Operator) -> Result<()> {
    let status = keeper
        .stop(Duration::from_secs(20))
        .await
        .context("stop drain-keeper")?;
    anyhow::ensure!(status.success(), "drain-keeper ended with {status} instead of 0");
    Ok(())
}

fn introduce(narrator: &Narrator, args: &Args, place: &Place) {
    let who = if args.without {
        "without drain-keeper"
    } else {
        "with drain-keeper watching"
    };
    println!();
    let title = format!(
        "An upgrade of {} nodes, one by one, {who}. In its way:",
        scenario::NODES
    );
    narrator.preface(&title, 0);
    for (node, text) in scenario::OBSTACLES {
        narrator.preface(&format!("  {node:<13} {text}"), 16);
    }
    if !args.without {
        narrator.preface(
            "Minutes are seconds here: it waits 6 s, and 9 s where there is a budget.",
            0,
        );
    }
    if !place.prefix().is_empty() {
        narrator.preface(
            &format!(
                "All names begin with {}, which is left out below. All of it is removed at the end.",
                place.prefix()
            ),
            0,
        );
    }
}

fn print_usage(place: &Place) {
    println!("It stays as it is until Ctrl-C:");
    println!("  export KUBECONFIG={}", place.cluster().kubeconfig().display());
    println!(
        "  {} get nodes -l {}",
        place.cluster().tools().kubectl.display(),
        place.ours()
    );
    println!(
        "  {} get events -A --field-selector type=Warning",
        place.cluster().tools().kubectl.display()
    );
}
