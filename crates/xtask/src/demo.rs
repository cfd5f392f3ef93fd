//! `cargo xtask demo`: a fleet is upgraded on a real control plane, node by node, and drain-keeper unblocks it.

mod budgets;
mod narrator;
mod outcome;
mod owners;
mod scenario;
mod upgrader;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nodeward_testkit::binaries;
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::{Operator, OperatorSpec};
use nodeward_testkit::progress::Progress;
use nodeward_testkit::{ControlPlane, Options};
use serde_json::{Value, json};
use tokio::signal;

use self::budgets::BudgetWatch;
use self::narrator::{Narrator, Voice};
use self::outcome::Outcome;
use self::upgrader::Upgrader;

/// Where the components live.
const NAMESPACE: &str = "nodeward-system";

/// Name of the chart's release.
const RELEASE: &str = "nodeward";

#[derive(clap::Args)]
pub struct Args {
    /// Leave drain-keeper out: the same upgrade gets stuck, and the demo expects just that
    #[arg(long)]
    without: bool,
    /// Leave the cluster running at the end, until Ctrl-C, and print how to use it
    #[arg(long)]
    keep: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        tokio::select! {
            outcome = demo(args) => outcome,
            _ = signal::ctrl_c() => {
                eprintln!("interrupted: stopping the cluster");
                Ok(ExitCode::from(130))
            }
        }
    })
}

async fn demo(args: &Args) -> Result<ExitCode> {
    if !args.without {
        tokio::task::spawn_blocking(|| binaries::ensure_built(binaries::OPERATORS)).await??;
    }
    let plane = ControlPlane::start(Options::default()).await?;
    let client = plane.client().await?;
    let progress = Progress::begin("fleet and workloads");
    scenario::create(&plane, &client, &progress).await?;
    progress.done(&format!("{} nodes, all workloads ready", scenario::NODES));
    let keeper = if args.without { None } else { Some(install(&plane).await?) };

    let narrator = Arc::new(Narrator::new());
    introduce(&narrator, args.without);
    let _events = narrator.follow_events(&client);
    let _conditions = narrator.follow_conditions(&client);
    let budgets = BudgetWatch::start(&client);
    let _owners = owners::start(&client, &narrator);
    let began = Instant::now();
    let upgrader = Upgrader::new(client.clone(), Arc::clone(&narrator));
    let patience = if args.without { scenario::PATIENCE_WITHOUT } else { scenario::PATIENCE };
    let upgrade = upgrader.upgrade_all(&scenario::nodes(), patience).await?;
    let took = began.elapsed();
    let metrics = match &keeper {
        Some(keeper) => Some(keeper.metrics().await?),
        None => None,
    };
    let outcome = Outcome::gather(&client, upgrade, &budgets, metrics, took).await?;
    narrator.finish();
    println!("\n{}", outcome.table(args.without));
    let verdict = outcome.verdict(args.without);
    println!("{}\n", verdict.text());
    if !verdict.is_promised()
        && let Some(keeper) = &keeper
    {
        eprintln!("the last lines of drain-keeper's log:\n{}", last_lines(&keeper.log(), 30));
    }
    if args.keep {
        keep(&plane).await?;
    }
    if let Some(keeper) = keeper {
        let status = keeper.stop(Duration::from_secs(20)).await.context("stop drain-keeper")?;
        anyhow::ensure!(status.success(), "drain-keeper ended with {status} instead of 0");
    }
    Ok(if verdict.is_promised() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Installs the chart as a user does, and runs the operator's binary under the ServiceAccount that it made.
async fn install(plane: &ControlPlane) -> Result<Operator> {
    let progress = Progress::begin("drain-keeper");
    progress.step("helm install");
    let config: Value = serde_yaml::from_str(scenario::CONFIG)?;
    Release::new(RELEASE, NAMESPACE)
        .values(json!({ "drainKeeper": { "config": config, "deployment": { "enabled": false } } }))
        .install(plane)
        .await?;
    progress.step("starting");
    let keeper = OperatorSpec::new("drain-keeper", NAMESPACE, "nodeward-drain-keeper")
        .config(scenario::CONFIG)
        .arg("--log-format=text")
        .start(plane)
        .await?;
    keeper.ready(Duration::from_secs(30)).await?;
    progress.done("installed by helm, running under its own ServiceAccount, ready");
    Ok(keeper)
}

fn introduce(narrator: &Narrator, without: bool) {
    let who = if without { "without drain-keeper" } else { "with drain-keeper watching" };
    narrator.say(Voice::Demo, "", &format!("An upgrade of {} nodes, one by one, {who}.", scenario::NODES));
    for obstacle in scenario::OBSTACLES {
        narrator.say(Voice::Demo, obstacle.node, obstacle.text);
    }
}

async fn keep(plane: &ControlPlane) -> Result<()> {
    println!("The cluster stays up until Ctrl-C:");
    println!("  export KUBECONFIG={}", plane.kubeconfig().display());
    println!("  {} get nodes", plane.tools().kubectl.display());
    println!("  {} get events -A --field-selector type=Warning", plane.tools().kubectl.display());
    signal::ctrl_c().await?;
    Ok(())
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
