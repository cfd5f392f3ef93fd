//! `cargo xtask demo`: what the operators do for a real cluster, in acts.

mod all_operators;
mod app;
mod ceph_drain;
mod drains;
mod environment;
mod narrator;
mod outcome;
mod page;
mod parallel_drains;
mod record;
mod removal;
mod ui;
mod upgrade;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, ensure};
use futures::FutureExt;
use nodeward_testkit::binaries::{self, Profile};
use nodeward_testkit::operator::Operator;

use self::environment::Environment;
use self::outcome::Outcome;
use crate::cluster::{self, Ended};
use crate::install;
use crate::soak::drains::storage::Storage;

/// How many lines of the operators' logs are told where an act is not as promised.
const TOLD_OF_LOGS: usize = 30;

#[derive(clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct Args {
    /// Play this act, and no other unless it is given, too [default: all-operators; with --without upgrade and parallel-drains;
    /// with --kubeconfig upgrade]
    #[arg(long, value_enum)]
    act: Vec<Act>,
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
    /// Write what is told into the first block of text of this page, too, if all is as promised
    #[arg(long, value_name = "PAGE", conflicts_with_all = ["keep", "kubeconfig"])]
    record: Option<PathBuf>,
}

/// What can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Act {
    /// One fleet is upgraded with all four operators, and each has something to do: the queue, a node that does not drain, one
    /// that dies, and the hosts of a real Ceph, unless Debian's packages of Ceph cannot be had
    AllOperators,
    /// A fleet is upgraded node by node, and drain-keeper unblocks it; nodes die meanwhile, and health-check sees to them
    Upgrade,
    /// Three nodes are drained at once, and drain-lock keeps their drains from waiting for each other for ever
    ParallelDrains,
    /// Three hosts of a real Ceph are drained one after the other while somebody evicts OSDs of the others, and ceph-pdb keeps
    /// the data in service; left out where Debian's packages of Ceph cannot be had
    CephDrain,
}

impl Act {
    /// The programs that it takes.
    const fn programs(self) -> &'static [&'static str] {
        match self {
            Self::AllOperators => &[
                "drain-lock",
                "drain-keeper",
                "health-check",
                "ceph-pdb",
                "kubectl-nodeward",
            ],
            Self::Upgrade => &["drain-keeper", "health-check"],
            Self::ParallelDrains => &["drain-lock"],
            Self::CephDrain => &["ceph-pdb"],
        }
    }
}

/// The programs' binaries by name; none where they are left out.
type Binaries = BTreeMap<&'static str, PathBuf>;

/// What is left when an act has been played to its end.
struct Played {
    outcome: Outcome,
    /// Those that still run.
    operators: Vec<Operator>,
    /// What they still look after.
    _storage: Option<Storage>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut acts = acts(args)?;
    if let Some(page) = &args.record {
        return record::run(page);
    }
    let uses_ceph = acts.iter().any(|act| matches!(act, Act::AllOperators | Act::CephDrain));
    let mut has_ceph = uses_ceph && !args.remove;
    // It begins this program anew, with Ceph's libraries.
    if has_ceph && let Err(why) = cluster::find_ceph_libraries() {
        println!("All that is about Ceph is left out, for there is none: {why:#}");
        has_ceph = false;
        acts.retain(|act| *act != Act::CephDrain);
        if acts.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let outcome = runtime.block_on(demo(args, &acts, has_ceph));
    // A build that was interrupted is not waited for.
    runtime.shutdown_background();
    outcome
}

async fn demo(args: &Args, acts: &[Act], has_ceph: bool) -> Result<ExitCode> {
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
    let play = AssertUnwindSafe(play(&env, acts, &binaries, has_ceph)).catch_unwind();
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

/// Those asked for. On a user's cluster only `upgrade`: its API server could not reach a webhook on this machine, drain-lock
/// keeps one record of all drains of a cluster, which may be in use there, and Ceph runs on this machine.
fn acts(args: &Args) -> Result<Vec<Act>> {
    let on_users = args.kubeconfig.is_some();
    ensure!(
        !on_users || args.act.iter().all(|act| *act == Act::Upgrade),
        "this act is played on a control plane of its own only: leave --kubeconfig out"
    );
    ensure!(
        !args.without || !args.act.contains(&Act::AllOperators),
        "this act is played with the operators only: leave --without out, or choose another act"
    );
    Ok(match args.act.as_slice() {
        [] if on_users => vec![Act::Upgrade],
        [] if args.without => vec![Act::Upgrade, Act::ParallelDrains],
        [] => vec![Act::AllOperators],
        acts => acts.to_vec(),
    })
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

/// All that takes long the first time: the acts' programs, unless they are left out, and the environment.
async fn open(args: &Args, acts: &[Act]) -> Result<(Binaries, Environment)> {
    let mut found = Binaries::new();
    let programs = acts.iter().flat_map(|act| act.programs());
    for &program in programs.filter(|_| !args.without) {
        let build = || tokio::task::spawn_blocking(|| binaries::operator(program, Profile::Dev));
        found.insert(program, build().await??);
    }
    Ok((found, Environment::open(args.kubeconfig.as_deref()).await?))
}

/// Plays all acts; gives what is left of the last one.
async fn play(
    env: &Environment,
    acts: &[Act],
    binaries: &Binaries,
    has_ceph: bool,
) -> Result<(ExitCode, Option<Played>)> {
    let mut code = ExitCode::SUCCESS;
    let mut last: Option<Played> = None;
    let binary = |operator| binaries.get(operator).cloned();
    for act in acts {
        if let Some(last) = last.take() {
            last.stop().await?;
        }
        let played = match act {
            Act::AllOperators => all_operators::play(env, binaries, has_ceph).await?,
            Act::Upgrade => upgrade::play(env, binary("drain-keeper"), binary("health-check")).await?,
            Act::ParallelDrains => parallel_drains::play(env, binary("drain-lock")).await?,
            Act::CephDrain => ceph_drain::play(env, binary("ceph-pdb")).await?,
        };
        println!("\n{}\n{}\n", played.outcome.table(), played.outcome.verdict());
        if !played.outcome.is_promised() {
            code = ExitCode::FAILURE;
            for operator in &played.operators {
                let (process, lines) = (operator.process(), TOLD_OF_LOGS / played.operators.len());
                eprintln!(
                    "the last lines of {}'s log:\n{}",
                    process.name(),
                    process.log_tail(lines)
                );
            }
        }
        last = Some(played);
    }
    Ok((code, last))
}

impl Played {
    /// The operators end as they do in a cluster.
    async fn stop(self) -> Result<()> {
        for operator in &self.operators {
            install::stop(operator).await?;
        }
        Ok(())
    }
}

/// All ends; with `--keep` not before Ctrl-C.
async fn end(args: &Args, env: &Environment, code: ExitCode, last: Played, ended: &mut Ended) -> Result<ExitCode> {
    if args.keep {
        print_usage(env);
        ended.wait().await;
    }
    last.stop().await?;
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
