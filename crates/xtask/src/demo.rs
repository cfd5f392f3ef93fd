//! `cargo xtask demo`: what the operators do for a real cluster, in acts.

mod ceph_drain;
mod environment;
mod narrator;
mod outcome;
mod page;
mod parallel_drains;
mod removal;
mod ui;
mod upgrade;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use futures::FutureExt;
use nodeward_testkit::binaries;
use nodeward_testkit::operator::Operator;

use self::environment::Environment;
use self::outcome::Outcome;
use crate::cluster::{self, Ended};
use crate::install;

#[derive(clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct Args {
    /// Play this act only [default: upgrade, then parallel-drains]
    #[arg(long, value_enum)]
    act: Option<Act>,
    /// Leave the operators out: the same work gets stuck, and the demo expects just that
    #[arg(long)]
    without: bool,
    /// Leave everything running at the end, until Ctrl-C, and print how to use it
    #[arg(long)]
    keep: bool,
    /// Open `kubectl nodeward ui` beside it, for as long as the demo plays; with --keep until Ctrl-C
    #[arg(long, conflicts_with = "remove")]
    ui: bool,
    /// Play on the cluster of this kubeconfig's current context, with simulated nodes of the demo's own; all that the demo
    /// made is removed at the end, on failure and on Ctrl-C. Only the act `upgrade` can be played there
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Only remove what earlier runs left on that cluster: those that were killed, and could not do it themselves
    #[arg(long, requires = "kubeconfig", conflicts_with_all = ["act", "without", "keep"])]
    remove: bool,
}

/// What can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Act {
    /// A fleet is upgraded node by node, and drain-keeper unblocks it; nodes die meanwhile, and health-check sees to them
    Upgrade,
    /// Three nodes are drained at once, and drain-lock keeps their drains from waiting for each other for ever
    ParallelDrains,
    /// Three hosts of a real Ceph are drained one after the other while somebody evicts OSDs of the others, and ceph-pdb keeps
    /// the data in service; left out where Debian's packages of Ceph cannot be had
    CephDrain,
}

impl Act {
    /// The operators that it is about; the first is the one that still runs at its end.
    const fn operators(self) -> &'static [&'static str] {
        match self {
            Self::Upgrade => &["drain-keeper", "health-check"],
            Self::ParallelDrains => &["drain-lock"],
            Self::CephDrain => &["ceph-pdb"],
        }
    }
}

/// The operators' binaries by name; none where they are left out.
type Binaries = BTreeMap<&'static str, PathBuf>;

/// What is left when an act has been played to its end.
struct Played {
    outcome: Outcome,
    operator: Option<Operator>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut acts = acts(args)?;
    // It begins this program anew, with Ceph's libraries.
    if acts.contains(&Act::CephDrain)
        && !args.remove
        && let Err(why) = cluster::find_ceph_libraries()
    {
        println!("The act ceph-drain is left out, for there is no Ceph: {why:#}");
        acts.retain(|act| *act != Act::CephDrain);
        if acts.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let outcome = runtime.block_on(demo(args, &acts));
    // A build that was interrupted is not waited for.
    runtime.shutdown_background();
    outcome
}

async fn demo(args: &Args, acts: &[Act]) -> Result<ExitCode> {
    if let (true, Some(kubeconfig)) = (args.remove, &args.kubeconfig) {
        return remove_earlier(kubeconfig).await;
    }
    let mut ended = Ended::listen()?;
    let (binaries, env) = tokio::select! {
        opened = open(args, acts) => opened?,
        () = ended.wait() => return Ok(interrupted()),
    };
    // It is killed when dropped.
    let _page = if args.ui { Some(ui::open(&env).await?) } else { None };
    // A panic is an error like any other: what was made is removed.
    let play = AssertUnwindSafe(play(&env, acts, &binaries)).catch_unwind();
    let played = tokio::select! {
        played = play => played.unwrap_or_else(|_| Err(anyhow!("the demo panicked"))),
        () = ended.wait() => Ok((interrupted(), None)),
    };
    let outcome = match played {
        Ok((code, Some(last))) => end(args, &env, code, last, &mut ended).await,
        Ok((code, None)) => Ok(code),
        Err(error) => Err(error),
    };
    if env.plane.is_none()
        && let Err(left) = removal::remove(&env).await
    {
        if let Err(error) = &outcome {
            eprintln!("error: {error:#}");
        }
        return Err(left);
    }
    outcome
}

/// Those asked for; the one with Ceph only then, for it takes minutes more. On a user's cluster only the first: its API server
/// could not reach a webhook on this machine, drain-lock keeps one record of all drains of a cluster, which may be in use there,
/// and the Ceph of the last one runs on this machine.
fn acts(args: &Args) -> Result<Vec<Act>> {
    match (args.act, args.kubeconfig.is_some()) {
        (Some(Act::ParallelDrains | Act::CephDrain), true) => Err(anyhow!(
            "this act is played on a control plane of its own only: leave --kubeconfig out"
        )),
        (Some(act), _) => Ok(vec![act]),
        (None, true) => Ok(vec![Act::Upgrade]),
        (None, false) => Ok(vec![Act::Upgrade, Act::ParallelDrains]),
    }
}

/// What earlier runs left.
async fn remove_earlier(kubeconfig: &Path) -> Result<ExitCode> {
    let mut env = Environment::reach(kubeconfig, String::new()).await?;
    let runs = env.earlier_runs().await?;
    if runs.is_empty() {
        println!("nothing of the demo is there");
    }
    for run in runs {
        println!("{run}:");
        env = env.of_run(run);
        removal::remove(&env).await?;
    }
    Ok(ExitCode::SUCCESS)
}

fn interrupted() -> ExitCode {
    eprintln!("\ninterrupted");
    ExitCode::from(130)
}

/// All that takes long the first time: the binaries of the acts' operators, unless they are left out, and the environment.
async fn open(args: &Args, acts: &[Act]) -> Result<(Binaries, Environment)> {
    let mut found = Binaries::new();
    let operators = acts.iter().flat_map(|act| act.operators());
    for &operator in operators.filter(|_| !args.without) {
        let build = || tokio::task::spawn_blocking(|| binaries::operator(operator));
        found.insert(operator, build().await??);
    }
    Ok((found, Environment::open(args.kubeconfig.as_deref()).await?))
}

/// Plays all acts; gives the last one's operator, which still runs.
async fn play(env: &Environment, acts: &[Act], binaries: &Binaries) -> Result<(ExitCode, Option<Last>)> {
    let mut code = ExitCode::SUCCESS;
    let mut last = None;
    let binary = |operator| binaries.get(operator).cloned();
    for act in acts {
        if let Some(Last(Some(operator))) = last.take() {
            install::stop(&operator).await?;
        }
        let played = match act {
            Act::Upgrade => upgrade::play(env, binary("drain-keeper"), binary("health-check")).await?,
            Act::ParallelDrains => parallel_drains::play(env, binary("drain-lock")).await?,
            Act::CephDrain => ceph_drain::play(env, binary("ceph-pdb")).await?,
        };
        println!("\n{}\n{}\n", played.outcome.table(), played.outcome.verdict());
        if !played.outcome.is_promised() {
            code = ExitCode::FAILURE;
            if let Some(operator) = &played.operator {
                let (name, tail) = (act.operators()[0], operator.process().log_tail(30));
                eprintln!("the last lines of {name}'s log:\n{tail}");
            }
        }
        last = Some(Last(played.operator));
    }
    Ok((code, last))
}

/// The operator of the act that was played last, unless it was left out.
struct Last(Option<Operator>);

/// The operator ends as it does in a cluster; with `--keep` not before Ctrl-C.
async fn end(args: &Args, env: &Environment, code: ExitCode, last: Last, ended: &mut Ended) -> Result<ExitCode> {
    if args.keep {
        print_usage(env);
        ended.wait().await;
    }
    if let Some(operator) = last.0 {
        install::stop(&operator).await?;
    }
    Ok(code)
}

fn print_usage(env: &Environment) {
    let (kubeconfig, kubectl) = (
        env.cluster.kubeconfig().display(),
        env.cluster.tools().kubectl.display(),
    );
    println!("It stays as it is until Ctrl-C:");
    println!("  export KUBECONFIG={kubeconfig}");
    println!("  {kubectl} get nodes -l {}", env.ours());
    println!("  {kubectl} get events -A --field-selector type=Warning");
}
