//! The commands, from the arguments to the exit status. Each file reads, models and prints one command.

mod ceph;
pub mod completion;
mod drain;
mod hold;
mod locks;
mod pause;
mod plan;
pub mod printed;
mod release;
mod request;
pub mod status;
mod ui;
pub mod why;

use jiff::Timestamp;

use self::ceph::Opened;
use self::locks::Locks;
use self::pause::Pauses;
use self::plan::NodePlan;
use self::printed::{PrintedCommands, options};
use self::release::Releases;
use self::status::Status;
use self::why::Why;
use self::why::budget::WhyBudget;
use self::why::pod::WhyPod;
use crate::args::{CephCommand, Command, CommandLine, Global, WhyTarget};
use crate::cluster::Cluster;
use crate::screen::Screen;

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
    let changes = !matches!(line.command, Command::Status(_) | Command::Why { .. } | Command::Locks);
    cluster.discover(changes).await?;
    let now = Timestamp::now();
    match line.command {
        Command::Status(args) => {
            let status = Status::fetch(&cluster).await?;
            screen.show(&status, |page| status.print(page, now))?;
            if args.exit_code {
                return Ok(status.exit());
            }
        }
        Command::Why { target } => why(&cluster, target, &line.global, &screen, now).await?,
        Command::Locks => {
            let locks = Locks::fetch(&cluster).await?;
            screen.show(&locks, |page| locks.print(page, now))?;
        }
        Command::Plan { node } => {
            let plan = NodePlan::fetch(&cluster, &node).await?;
            screen.show(&plan, |page| plan.print(page))?;
        }
        Command::Drain(args) => return drain::run(&cluster, &args, &options(&line.global), &screen).await,
        Command::Release(args) => {
            let releases = Releases::run(&cluster, &args).await?;
            screen.show(&releases, |page| releases.print(page))?;
            if releases.has_failed() {
                return Ok(Exit::Failed);
            }
        }
        Command::Pause(args) => {
            let pauses = Pauses::pause(&cluster, &args).await?;
            screen.show(&pauses, |page| pauses.print(page))?;
        }
        Command::Resume(args) => {
            let pauses = Pauses::resume(&cluster, &args).await?;
            screen.show(&pauses, |page| pauses.print(page))?;
            if pauses.is_still_paused() {
                return Ok(Exit::Failed);
            }
        }
        Command::Ceph(CephCommand::Open(args)) => {
            let opened = Opened::open(&cluster, &args).await?;
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

async fn why(
    cluster: &Cluster,
    target: WhyTarget,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
) -> anyhow::Result<()> {
    // Without a name of one's own the commands name the requester.
    let own = request::requester(cluster).await.ok().map(|(_, requester)| requester);
    let commands = PrintedCommands::new(global, own);
    let namespace = |given: Option<String>| given.unwrap_or_else(|| cluster.one_namespace().to_owned());
    match target {
        WhyTarget::Node(node) => {
            let why = Why::fetch(cluster, &node).await?;
            screen.show(&why, |page| why.print(page, &commands, now))
        }
        WhyTarget::Pod { namespace: given, name } => {
            let why = WhyPod::fetch(cluster, &namespace(given), &name).await?;
            screen.show(&why, |page| why.print(page, &commands, now))
        }
        WhyTarget::Budget { namespace: given, name } => {
            let why = WhyBudget::fetch(cluster, &namespace(given), &name).await?;
            screen.show(&why, |page| why.print(page, &commands, now))
        }
    }
}

#[cfg(test)]
mod tests;
