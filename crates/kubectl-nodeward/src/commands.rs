//! The commands, from the arguments to the exit status. Each file reads, models and prints one command.

pub mod ceph;
pub mod check;
pub mod completion;
pub mod drain;
mod hold;
pub mod locks;
pub mod pause;
pub mod plan;
pub mod printed;
pub mod release;
mod request;
pub mod status;
mod ui;
pub mod uninstall;
pub mod why;

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

use jiff::Timestamp;
use nodeward_core::drain_request::DrainRequest;
use tokio::time::MissedTickBehavior;

use self::ceph::Opened;
use self::locks::Locks;
use self::pause::Pauses;
use self::plan::NodePlan;
use self::printed::{PrintedCommands, options};
use self::release::Releases;
use self::status::Status;
use self::uninstall::UninstallCheck;
use self::why::answers::{WhyAnswer, targets};
use crate::args::{CephCommand, Command, CommandLine, Global, NodesArgs, Output, WhyArgs};
use crate::cluster::Cluster;
use crate::failure::{Failure, error_line};
use crate::listed::Listed;
use crate::screen::Screen;
use crate::text::Style;
use crate::text::page::Page;
use crate::text::time::distance;

/// Between two looks of `--watch`.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The exit of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command has done its work.
    Done,
    /// The command, or a drain that it waited for, has failed.
    Failed,
    /// `--timeout` has passed.
    TimedOut,
    /// Of `status --exit-code`: somebody has to act.
    NeedsPerson,
    /// Of `status --exit-code`: something could not be read, and nothing else needs a person.
    CannotTell,
    /// Ctrl-C.
    Interrupted,
}

impl Exit {
    /// The exit status; 2 is wrong usage.
    pub fn status(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::TimedOut | Self::NeedsPerson => 3,
            Self::CannotTell => 4,
            Self::Interrupted => 130,
        }
    }
}

/// Runs a command. Errors are for the user.
pub async fn run(line: CommandLine) -> anyhow::Result<Exit> {
    let screen = Screen::new(&line.global);
    if let Command::Completion { shell } = line.command {
        completion::print_script(shell);
        return Ok(Exit::Done);
    }
    if let Command::Ui(args) = &line.command {
        return ui::run(args, &line.global, &screen).await;
    }
    let mut cluster = Cluster::connect(&line.global).await?;
    let looks = matches!(
        line.command,
        Command::Status(_) | Command::Why(_) | Command::Locks | Command::Check { .. } | Command::Uninstall { .. }
    );
    cluster.discover(!looks).await?;
    let now = Timestamp::now();
    match line.command {
        Command::Status(args) if args.watch => {
            let print = |status: &Status, page: &mut Page, now| status.print(page, now);
            return watch(&mut cluster, &screen, Status::fetch, print).await;
        }
        Command::Status(args) => {
            let status = Status::fetch(&cluster).await?;
            screen.show(&status, |page| status.print(page, now))?;
            if args.exit_code {
                return Ok(status.exit());
            }
        }
        Command::Why(args) => return why(&mut cluster, &args, &line.global, &screen).await,
        Command::Check { wait } => return check::run(&cluster, wait, &screen).await,
        Command::Uninstall { .. } => {
            let check = UninstallCheck::fetch(&cluster).await?;
            let commands = PrintedCommands::new(&line.global, None);
            screen.show(&check, |page| check.print(page, &commands, now))?;
            return Ok(check.exit());
        }
        Command::Locks => {
            let locks = Locks::fetch(&cluster).await?;
            screen.show(&locks, |page| locks.print(page, now))?;
        }
        Command::Plan { nodes } => return plan(&cluster, &nodes, |request| request, &screen).await,
        Command::Drain(args) if args.dry_run => {
            let settings = |request| drain::with_settings(request, &args);
            return plan(&cluster, &args.nodes, settings, &screen).await;
        }
        Command::Drain(args) => return drain::run(&cluster, &args, &options(&line.global), &screen).await,
        Command::Release(args) => {
            let releases = Releases::run(&cluster, &args).await?;
            screen.show(&releases, |page| releases.print(page))?;
            if releases.has_failed() {
                return Ok(Exit::Failed);
            }
        }
        Command::Pause { components, reason } => {
            let pauses = Pauses::pause(&cluster, &components, &reason).await?;
            screen.show(&pauses, |page| pauses.print(page))?;
        }
        Command::Resume { components } => {
            let pauses = Pauses::resume(&cluster, &components).await?;
            screen.show(&pauses, |page| pauses.print(page))?;
            if pauses.is_still_paused() {
                return Ok(Exit::Failed);
            }
        }
        Command::Ceph(CephCommand::Open { reason }) => {
            let opened = Opened::open(&cluster, &reason).await?;
            screen.show(&opened, |page| opened.print(page))?;
        }
        Command::Hold(args) => {
            let hold = hold::hold(&cluster, &args).await?;
            screen.show(&hold, |page| hold::print(&hold, page, now))?;
        }
        Command::Completion { .. } | Command::Ui(_) => (),
    }
    Ok(Exit::Done)
}

async fn why(cluster: &mut Cluster, args: &WhyArgs, global: &Global, screen: &Screen) -> anyhow::Result<Exit> {
    // Without a name of one's own the commands name the requester.
    let own = request::requester(cluster).await.ok().map(|(_, requester)| requester);
    let commands = PrintedCommands::new(global, own);
    if args.watch {
        let fetch = async |cluster: &Cluster| {
            let mut answers = Vec::new();
            for target in targets(cluster, args).await? {
                answers.push(WhyAnswer::fetch(cluster, &target, &commands).await?);
            }
            Ok(answers)
        };
        let print = |answers: &Vec<WhyAnswer>, page: &mut Page, now| {
            for answer in answers {
                answer.print(page, &commands, now);
            }
        };
        return watch(cluster, screen, fetch, print).await;
    }
    let targets = targets(cluster, args).await?;
    let cluster = &*cluster;
    let answer = async |target: &_| WhyAnswer::fetch(cluster, target, &commands).await;
    let print = |answer: &WhyAnswer, page: &mut Page| answer.print(page, &commands, Timestamp::now());
    each(&targets, args.selector.is_some(), screen, answer, print).await
}

async fn plan(
    cluster: &Cluster,
    args: &NodesArgs,
    settings: impl Fn(DrainRequest) -> DrainRequest,
    screen: &Screen,
) -> anyhow::Result<Exit> {
    let nodes = args.of(cluster).await?;
    let answer = async |node: &String| NodePlan::fetch(cluster, node, &settings).await;
    each(&nodes, args.selector.is_some(), screen, answer, NodePlan::print).await
}

impl NodesArgs {
    /// The nodes that the command line names, each once.
    async fn of(&self, cluster: &Cluster) -> Result<Vec<String>, Failure> {
        let Some(selector) = &self.selector else {
            return Ok(once(&self.nodes));
        };
        cluster.nodes_with(selector).await
    }
}

/// Each of them once, in their order.
fn once<T: Clone + Eq + Hash>(given: &[T]) -> Vec<T> {
    let mut seen = HashSet::new();
    given.iter().filter(|one| seen.insert(*one)).cloned().collect()
}

/// Answers about each of several things; one that cannot be answered does not keep the others from it. One that is named alone is one
/// document for a program, and all else is a list.
async fn each<T, A: Listed>(
    asked: &[T],
    is_selected: bool,
    screen: &Screen,
    answer: impl AsyncFn(&T) -> Result<A, Failure>,
    print: impl Fn(&A, &mut Page),
) -> anyhow::Result<Exit> {
    if let ([one], false) = (asked, is_selected) {
        let answer = answer(one).await?;
        screen.show(&answer, |page| print(&answer, page))?;
        return Ok(Exit::Done);
    }
    let (mut answers, mut exit) = (Vec::new(), Exit::Done);
    for one in asked {
        match answer(one).await {
            Ok(answer) => answers.push(answer),
            Err(failure @ (Failure::Timeout(_) | Failure::Unreachable(_) | Failure::Unauthenticated(_))) => {
                return Err(failure.into());
            }
            Err(failure) => {
                eprintln!("{}", error_line(&failure, screen.output() == Output::Json));
                exit = Exit::Failed;
            }
        }
    }
    screen.show(&answers, |page| {
        for answer in &answers {
            print(answer, page);
        }
    })?;
    Ok(exit)
}

/// Shows what there is, and again every few seconds, until Ctrl-C. While the cluster does not answer the last answer stays, with its
/// age.
async fn watch<T: Listed>(
    cluster: &mut Cluster,
    screen: &Screen,
    fetch: impl AsyncFn(&Cluster) -> Result<T, Failure>,
    print: impl Fn(&T, &mut Page, Timestamp),
) -> anyhow::Result<Exit> {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last: Option<(T, Timestamp)> = None;
    loop {
        let look = async {
            ticks.tick().await;
            // What is installed meanwhile is shown, too.
            cluster.discover(false).await?;
            fetch(cluster).await
        };
        let found = tokio::select! {
            found = look => found,
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Interrupted),
        };
        let now = Timestamp::now();
        let failure = match found {
            Ok(found) => {
                last = Some((found, now));
                None
            }
            Err(failure) => Some(failure),
        };
        match (&last, failure) {
            (Some((shown, at)), failure) => screen.redraw(shown, |page| {
                if let Some(failure) = &failure {
                    let text = format!("{failure}. What follows was so {}.", distance(*at, now));
                    page.text(Style::Bad, text);
                }
                print(shown, page, now);
            })?,
            (None, Some(failure)) => return Err(failure.into()),
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests;
