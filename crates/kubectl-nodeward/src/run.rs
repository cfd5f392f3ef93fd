//! One command, from its arguments to its exit status.

use std::fmt::Write as _;

use clap::CommandFactory;
use clap_complete::Shell;
use jiff::Timestamp;
use serde::Serialize;

use crate::act::drain::End;
use crate::act::release::{Outcome, Released};
use crate::act::{self};
use crate::args::{Command, CommandLine, Drain, Global, Output};
use crate::cluster::Cluster;
use crate::progress::{self, Board};
use crate::read::Reader;
use crate::render;
use crate::screen::Screen;
use crate::text::line::Tone;
use crate::text::page::Page;
use crate::text::time::moment;
use crate::view::locks::OwnerHold;

/// How a command came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// As asked.
    Done,
    /// It failed, or a drain did.
    Failed,
    /// `--timeout` has passed.
    TimedOut,
    /// Ctrl-C.
    Interrupted,
}

impl Exit {
    /// The exit status; 2 is wrong usage.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::TimedOut => 3,
            Self::Interrupted => 130,
        }
    }
}

/// Runs a command.
///
/// # Errors
/// It failed; the error is for the user.
pub async fn run(line: CommandLine) -> anyhow::Result<Exit> {
    let screen = Screen::new(&line.global);
    if let Command::Completion { shell } = line.command {
        let mut command = CommandLine::command();
        clap_complete::generate(
            Shell::from(shell),
            &mut command,
            "kubectl-nodeward",
            &mut std::io::stdout(),
        );
        return Ok(Exit::Done);
    }
    let mut cluster = Cluster::connect(&line.global).await?;
    cluster.discover().await?;
    let now = Timestamp::now();
    match line.command {
        Command::Status => {
            let status = Reader::new(&cluster, now).status().await?;
            screen.show(&status, |status| render::status::page(status, now))?;
            Ok(Exit::Done)
        }
        Command::Why { node } => {
            let why = Reader::new(&cluster, now).why(&node).await?;
            screen.show(&why, |why| render::why::page(&node, why, now))?;
            Ok(Exit::Done)
        }
        Command::Locks => {
            let locks = Reader::new(&cluster, now).locks().await?;
            screen.show(&locks, |locks| render::locks::page(locks, now))?;
            Ok(Exit::Done)
        }
        Command::Plan { node } => {
            let plan = act::plan::plan(&cluster, &node).await?;
            screen.show(&plan, render::plan::page)?;
            Ok(Exit::Done)
        }
        Command::Drain(args) => drain(&cluster, &args, &line.global, &screen).await,
        Command::Release(args) => release(act::release::release(&cluster, &args).await?, &screen),
        Command::Hold(args) => {
            let hold = act::hold::hold(&cluster, &args).await?;
            screen.show(&hold, |hold| hold_page(hold, now))?;
            Ok(Exit::Done)
        }
        Command::Completion { .. } => Ok(Exit::Done),
    }
}

async fn drain(cluster: &Cluster, args: &Drain, global: &Global, screen: &Screen) -> anyhow::Result<Exit> {
    let mut board = Board::default();
    let drained = act::drain::drain(cluster, args, screen, &mut board).await;
    let options = options(global);
    let end = match drained {
        Ok(end) => end,
        Err(error) => {
            if !board.waited_for().is_empty() {
                screen.say(&act::drain::page(&board, End::Over, true, &options));
            }
            return Err(error.into());
        }
    };
    if end == End::Interrupted {
        screen.clear_line();
    }
    screen.say(&act::drain::page(&board, end, args.no_wait, &options));
    if screen.output() != Output::Table {
        screen.show(&board, |_| Page::new())?;
    }
    Ok(match end {
        End::Interrupted => Exit::Interrupted,
        End::TimedOut => Exit::TimedOut,
        End::Over if board.drains.iter().any(|watched| is_bad(watched.outcome)) => Exit::Failed,
        End::Over => Exit::Done,
    })
}

fn is_bad(outcome: progress::Outcome) -> bool {
    matches!(outcome, progress::Outcome::Failed | progress::Outcome::Cancelled)
}

/// The options by which the same cluster is found again.
fn options(global: &Global) -> String {
    let mut options = String::new();
    if let Some(file) = &global.kubeconfig {
        let _ = write!(options, " --kubeconfig {}", file.display());
    }
    if let Some(context) = &global.context {
        let _ = write!(options, " --context {context}");
    }
    options
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReleasedAll {
    released: Vec<Released>,
}

fn release(released: Vec<Released>, screen: &Screen) -> anyhow::Result<Exit> {
    let failed = released.iter().any(|released| released.outcome == Outcome::Failed);
    screen.show(&ReleasedAll { released }, |all| {
        let mut page = Page::new();
        for released in &all.released {
            let tone = if released.outcome == Outcome::Failed {
                Tone::Bad
            } else {
                Tone::Plain
            };
            page.text(tone, format!("{}: {}", released.target, released.message));
        }
        page
    })?;
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

fn hold_page(hold: &OwnerHold, now: Timestamp) -> Page {
    let mut page = Page::new();
    let name = hold.name.as_deref().unwrap_or_default();
    let namespace = hold.pdb.split_once('/').map_or("", |(namespace, _)| namespace);
    let units = match hold.units {
        None => "all disruptions".to_owned(),
        Some(1) => "1 disruption".to_owned(),
        Some(units) => format!("{units} disruptions"),
    };
    let until = hold
        .until
        .map(|until| format!(" until {}", moment(until, now)))
        .unwrap_or_default();
    page.text(Tone::Good, format!("hold/{name} keeps {units} of {}{until}.", hold.pdb));
    match hold.phase {
        Some(nodeward_api::disruption_hold::HoldPhase::Capped) => {
            page.text(
                Tone::Warning,
                "That is sooner than you asked for: drain-lock's configuration limits holds.",
            );
        }
        None => page.text(
            Tone::Warning,
            "drain-lock has not answered yet: is it running? See kubectl nodeward status",
        ),
        Some(_) => (),
    }
    page.command("end it", format!("kubectl nodeward release hold/{name} -n {namespace}"));
    page
}
