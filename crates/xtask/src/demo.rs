//! `cargo xtask demo`: what the operators do for a real cluster.

mod ceph;
mod drains;
mod environment;
mod follow;
mod narrator;
mod outcome;
mod page;
mod promise;
mod record;
mod removal;
mod scenario;
mod story;
mod wedge;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use futures::FutureExt;
use nodeward_testkit::binaries::{self, Profile};
use nodeward_testkit::operator::Operator;
use nodeward_testkit::process::Process;
use nodeward_testkit::wait::{self, secs};

use self::environment::Environment;
use self::outcome::Outcome;
use crate::cluster::{self, Ended};
use crate::install;
use crate::soak::drains::storage::Storage;

/// How many lines of the operators' logs are told where the demo is not as promised.
const TOLD_OF_LOGS: usize = 30;

#[derive(clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct Args {
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
    /// made is removed at the end, on failure and on Ctrl-C. Of the operators drain-keeper alone plays there
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Only remove what earlier runs left on that cluster: those that were killed, and could not do it themselves
    #[arg(long, requires = "kubeconfig", conflicts_with_all = ["without", "keep"])]
    remove: bool,
    /// Write what is told into the first block of text of this page, too, if all is as promised
    #[arg(long, value_name = "PAGE", conflicts_with_all = ["keep", "kubeconfig"])]
    record: Option<PathBuf>,
}

/// Which operators play.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cast {
    /// All that can be had: on a control plane of the demo's own.
    #[default]
    All,
    /// On a user's cluster: its API server could not reach a webhook on this machine, drain-lock keeps one record of all drains of a
    /// cluster, which may be in use there, health-check takes kinds of its own, and Ceph runs on this machine.
    KeeperAlone,
    /// The same work gets stuck.
    Nobody,
}

impl Cast {
    const fn of(args: &Args) -> Self {
        match (args.without, &args.kubeconfig) {
            (true, _) => Self::Nobody,
            (false, Some(_)) => Self::KeeperAlone,
            (false, None) => Self::All,
        }
    }

    /// The programs that it takes.
    const fn programs(self) -> &'static [&'static str] {
        match self {
            Self::All => &[
                "drain-lock",
                "drain-keeper",
                "health-check",
                "ceph-pdb",
                "kubectl-nodeward",
            ],
            Self::KeeperAlone => &["drain-keeper", "kubectl-nodeward"],
            Self::Nobody => &[],
        }
    }
}

/// The programs' binaries by name; none where they are left out.
type Binaries = BTreeMap<&'static str, PathBuf>;

/// What is left when the demo has been played to its end.
struct Played {
    outcome: Outcome,
    /// Those that still run.
    operators: Vec<Operator>,
    /// What they still look after.
    _storage: Option<Storage>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(page) = &args.record {
        return record::run(page);
    }
    let cast = Cast::of(args);
    let mut has_ceph = cast == Cast::All;
    // It begins this program anew, with Ceph's libraries.
    if has_ceph && let Err(why) = cluster::find_ceph_libraries() {
        println!("All that is about Ceph is left out, for there is none: {why:#}");
        has_ceph = false;
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let outcome = runtime.block_on(demo(args, cast, has_ceph));
    // A build that was interrupted is not waited for.
    runtime.shutdown_background();
    outcome
}

async fn demo(args: &Args, cast: Cast, has_ceph: bool) -> Result<ExitCode> {
    if let (true, Some(kubeconfig)) = (args.remove, &args.kubeconfig) {
        return remove_earlier(kubeconfig).await;
    }
    let mut ended = Ended::listen()?;
    let (binaries, env) = tokio::select! {
        opened = open(args, cast) => opened?,
        () = ended.wait() => return Ok(interrupted()),
    };
    // It is killed when dropped.
    let _page = if args.ui { Some(open_page(&env).await?) } else { None };
    // A panic is an error like any other: what was made is removed.
    let play = AssertUnwindSafe(play(&env, cast, &binaries, has_ceph)).catch_unwind();
    let played = tokio::select! {
        played = play => played.unwrap_or_else(|_| Err(anyhow!("the demo panicked"))),
        () = ended.wait() => Ok(None),
    };
    let outcome = match played {
        Ok(Some(played)) => end(args, &env, &played, &mut ended).await,
        Ok(None) => Ok(interrupted()),
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

/// All that takes long the first time: the programs, and the environment.
async fn open(args: &Args, cast: Cast) -> Result<(Binaries, Environment)> {
    let mut found = Binaries::new();
    for &program in cast.programs() {
        let build = || tokio::task::spawn_blocking(|| binaries::operator(program, Profile::Dev));
        found.insert(program, build().await??);
    }
    Ok((found, Environment::open(args.kubeconfig.as_deref()).await?))
}

/// Plays it to its end, and tells what came of it.
async fn play(env: &Environment, cast: Cast, binaries: &Binaries, has_ceph: bool) -> Result<Option<Played>> {
    let played = story::play(env, cast, binaries, has_ceph).await?;
    println!("\n{}\n{}\n", played.outcome.table(), played.outcome.verdict());
    if !played.outcome.is_promised() {
        for operator in &played.operators {
            let (process, lines) = (operator.process(), TOLD_OF_LOGS / played.operators.len());
            eprintln!(
                "the last lines of {}'s log:\n{}",
                process.name(),
                process.log_tail(lines)
            );
        }
    }
    Ok(Some(played))
}

/// The operators end as they do in a cluster; with `--keep` not before Ctrl-C.
async fn end(args: &Args, env: &Environment, played: &Played, ended: &mut Ended) -> Result<ExitCode> {
    if args.keep {
        print_usage(env);
        ended.wait().await;
    }
    for operator in &played.operators {
        install::stop(operator).await?;
    }
    Ok(if played.outcome.is_promised() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Serves `kubectl nodeward ui` of the demo's cluster, and opens it.
async fn open_page(env: &Environment) -> Result<Process> {
    let plugin = tokio::task::spawn_blocking(|| binaries::operator("kubectl-nodeward", Profile::Dev)).await??;
    let log = env.cluster.dir().join("ui.log");
    let page = Process::new("kubectl nodeward ui", plugin, &log)
        .args(["ui", "--kubeconfig"])
        .args([env.cluster.kubeconfig()]);
    page.start()?;
    let address = wait::until("the page to be served", secs(60), || async {
        let said = std::fs::read_to_string(&log)?;
        let address = said.lines().find(|line| line.starts_with("http://"));
        address.map(str::to_owned).context(said.clone())
    })
    .await?;
    println!("the fleet in a browser: {address}");
    Ok(page)
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
