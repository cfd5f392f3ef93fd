//! `drain`: requests drains, and shows their progress until all are over.

pub mod progress;

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use jiff::Timestamp;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use nodeward_api::NodeDrain;
use nodeward_api::node_drain::{Consent, Deadlines};
use nodeward_core::consent::Consents;
use nodeward_core::drain_request::DrainRequest;
use nodeward_core::duration::ConfigDuration;
use tokio::time::MissedTickBehavior;

use self::progress::{DrainOutcome, DrainProgress, ProgressEvent, WatchedDrain};
use super::Exit;
use super::plan::node_uid;
use super::request::{Requested, request_drain, requester};
use crate::args::DrainArgs;
use crate::cluster::Cluster;
use crate::describe;
use crate::failure::Failure;
use crate::model::drain::Drain;
use crate::screen::Screen;
use crate::text::Style;
use crate::text::page::Page;

/// How often the live table is drawn at most.
const TICK: Duration = Duration::from_millis(250);

/// Requests the drains and waits for them. `options` find the same cluster again.
pub async fn run(cluster: &Cluster, args: &DrainArgs, options: &str, screen: &Screen) -> anyhow::Result<Exit> {
    let timeout = args
        .timeout
        .map_or(Duration::MAX, |timeout| timeout.get().unsigned_abs());
    let timed_out = tokio::time::sleep(timeout);
    let mut progress = DrainProgress::default();
    let end = tokio::select! {
        done = request_and_watch(cluster, args, screen, &mut progress) => done.map(|()| Exit::Done),
        () = timed_out => Ok(Exit::TimedOut),
        () = interrupted() => Ok(Exit::Interrupted),
    };
    // The drains that were requested go on.
    if end.is_err() && !progress.waited_for().is_empty() {
        screen.say(|page| print_end(page, &progress, Exit::Done, true, options));
    }
    let end = end?;
    if end == Exit::Interrupted {
        screen.clear_line();
    }
    screen.say(|page| print_end(page, &progress, end, args.no_wait, options));
    if !screen.output().is_text() {
        screen.show(&progress, |_| ())?;
    }
    let is_bad = |drain: &WatchedDrain| matches!(drain.outcome, DrainOutcome::Failed | DrainOutcome::Cancelled);
    let has_failed = end == Exit::Done && progress.drains.iter().any(is_bad);
    Ok(if has_failed { Exit::Failed } else { end })
}

async fn request_and_watch(
    cluster: &Cluster,
    args: &DrainArgs,
    screen: &Screen,
    progress: &mut DrainProgress,
) -> Result<(), Failure> {
    cluster.require::<NodeDrain>()?;
    let (_, requester) = requester(cluster).await?;
    let mut requests = Vec::new();
    // All names are checked first: a mistake in the last one requests nothing.
    for node in args.nodes.of(cluster).await? {
        let node_uid = node_uid(cluster, &node).await?;
        let request = DrainRequest::new(node.into(), node_uid, requester.clone());
        requests.push(with_settings(request, args));
    }
    let tell = |style, text: &str| screen.say(|page| page.text(style, text));
    for request in &requests {
        let waits = |node: &str| tell(Style::Faint, &format!("{node}: waits for the end of its earlier drain"));
        let (drain, requested) = request_drain(cluster, request, &waits).await?;
        let answer = answer(&requested, &Drain::of(&drain));
        tell(Style::Plain, &format!("{}: {answer}", request.node));
        progress.add(&drain);
    }
    if args.no_wait || progress.is_over() {
        return Ok(());
    }
    watch(cluster, screen, progress).await
}

/// The request with what the command line asks for.
pub fn with_settings(request: DrainRequest, args: &DrainArgs) -> DrainRequest {
    let text = |duration: Option<ConfigDuration>| duration.map(|duration| duration.to_string());
    let consent = |given: bool| if given { Consent::Evict } else { Consent::Keep };
    DrainRequest {
        purpose: args.purpose.clone(),
        consents: Consents {
            unmanaged_pods: consent(args.force),
            empty_dir_data: consent(args.delete_emptydir_data),
        },
        fallback: args.fallback.map(Into::into),
        deadlines: Deadlines {
            queue: text(args.deadline_queue),
            drain: text(args.deadline_drain),
            recover: text(args.deadline_recover),
        },
        ignore_windows: args.ignore_windows,
        ask_owners: args.ask_owners,
        changes_settings: true,
        ..request
    }
}

fn answer(requested: &Requested, drain: &Drain) -> String {
    match requested {
        Requested::Created => "requested".to_owned(),
        Requested::Joined(others) => format!("joined the drain of {}: {}", others.join(", "), progress::state(drain)),
        Requested::Known if drain.phase.is_none() => "already requested".to_owned(),
        Requested::Known => format!("already requested: {}", progress::state(drain)),
    }
}

async fn watch(cluster: &Cluster, screen: &Screen, progress: &mut DrainProgress) -> Result<(), Failure> {
    let drains: Api<NodeDrain> = Api::all(cluster.client.clone());
    let watch = watcher::watcher(drains, watcher::Config::default());
    let mut watch = watch.default_backoff().boxed();
    let began = Timestamp::now();
    let table = live_table(screen);
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut present = Vec::new();
    let mut events: Vec<ProgressEvent> = Vec::new();
    let mut trouble = None;
    loop {
        tokio::select! {
            event = watch.try_next() => match event {
                Ok(Some(event)) => {
                    trouble = None;
                    observe(progress, event, &mut present, &mut events);
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    let failure = failure(cluster, &error);
                    if matches!(failure, Failure::MissingRight(_) | Failure::Unauthenticated(_)) {
                        return Err(failure);
                    }
                    // The watch goes on by itself; the same trouble is told once.
                    let text = failure.to_string();
                    if trouble.as_ref() != Some(&text) {
                        table.suspend(|| screen.say(|page| page.text(Style::Warning, &text)));
                        trouble = Some(text);
                    }
                }
            },
            _ = ticks.tick() => {
                let now = Timestamp::now();
                events.extend(progress.unanswered(now));
                // The table shows the rest.
                events.retain(|event| event.matters || !screen.is_live());
                if !events.is_empty() {
                    let print = |page: &mut Page| events.iter().for_each(|event| event.print(page, now));
                    table.suspend(|| screen.say(print));
                    events.clear();
                }
                if progress.is_over() {
                    table.finish_and_clear();
                    return Ok(());
                }
                if let Some((width, height)) = screen.size().filter(|_| screen.is_live()) {
                    // A full last line or screen would scroll.
                    let (width, height) = (width.saturating_sub(1).max(1), height.saturating_sub(2).max(1));
                    table.set_message(progress.live_table(now, began, width, height).join("\n"));
                }
            }
        }
    }
}

/// A table at the end of a terminal that is drawn over; drawn nowhere where output is not live.
fn live_table(screen: &Screen) -> ProgressBar {
    let table = ProgressBar::no_length().with_finish(ProgressFinish::Abandon);
    table.set_draw_target(if screen.is_live() {
        ProgressDrawTarget::stdout()
    } else {
        ProgressDrawTarget::hidden()
    });
    if let Ok(style) = ProgressStyle::with_template("{msg}") {
        table.set_style(style);
    }
    table
}

fn observe(
    progress: &mut DrainProgress,
    event: Event<NodeDrain>,
    present: &mut Vec<String>,
    events: &mut Vec<ProgressEvent>,
) {
    match event {
        Event::Init => present.clear(),
        Event::InitApply(drain) => {
            present.extend(drain.uid());
            events.extend(progress.observe(&drain));
        }
        Event::InitDone => events.extend(progress.observe_missing(present)),
        Event::Apply(drain) => events.extend(progress.observe(&drain)),
        Event::Delete(drain) => {
            // Its last status comes with it.
            events.extend(progress.observe(&drain));
            events.extend(progress.observe_deleted(&drain));
        }
    }
}

fn failure(cluster: &Cluster, error: &watcher::Error) -> Failure {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => cluster.failure(error),
        watcher::Error::WatchError(status) => cluster.failure(&kube::Error::Api(status.clone())),
        watcher::Error::NoResourceVersion => Failure::Unreachable(error.to_string()),
    }
}

/// Returns at Ctrl-C or SIGTERM.
async fn interrupted() {
    #[cfg(unix)]
    if let Ok(mut terminate) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => (),
            _ = terminate.recv() => (),
        }
        return;
    }
    let _ = tokio::signal::ctrl_c().await;
}

/// The outcome of the drains when the command has ended so, and the commands that continue those that are not over.
fn print_end(page: &mut Page, progress: &DrainProgress, end: Exit, no_wait: bool, options: &str) {
    let waiting = progress.waited_for().join(" ");
    let print_commands = |page: &mut Page| {
        page.command("watch again", format!("kubectl nodeward drain{options} {waiting}"));
        page.command("give up", format!("kubectl nodeward release{options} {waiting}"));
    };
    match end {
        _ if progress.drains.is_empty() => page.text(Style::Plain, "Nothing was requested."),
        Exit::Done if no_wait => print_commands(page),
        Exit::Done if progress.is_drained() => print_drained(page, progress, options),
        Exit::Done => {
            let drains = progress.drains.iter();
            for WatchedDrain { drain, .. } in drains.filter(|one| one.outcome != DrainOutcome::Drained) {
                let is_undone = drain.drained_at.is_some();
                let was = if is_undone { "is no longer" } else { "was not" };
                let text = format!("{} {was} drained: {}", drain.node, describe::message(drain));
                page.text(Style::Bad, text);
            }
        }
        _ => {
            let has_timed_out = end == Exit::TimedOut;
            let why = if has_timed_out { "Timed out" } else { "Interrupted" };
            if waiting.is_empty() {
                page.text(Style::Warning, format!("{why}. All requested drains are over."));
            } else {
                page.text(Style::Warning, format!("{why}. The drains go on without this command."));
                print_commands(page);
            }
        }
    }
}

/// The nodes that may go down: those whose drains have not ended since, as the drain of a node that is back does.
fn print_drained(page: &mut Page, progress: &DrainProgress, options: &str) {
    let count = progress.drains.len();
    let lasting = progress.drains.iter().filter(|one| !one.ended);
    let nodes: Vec<&str> = lasting.map(|one| one.drain.node.as_str()).collect();
    let text = match nodes.as_slice() {
        [] => {
            let text = "Drained; the drains have ended since, and their nodes may be in use again.";
            return page.text(Style::Good, text);
        }
        [one] if count == 1 => format!("{one} is drained and may go down."),
        all if all.len() == count => format!("All {count} nodes are drained and may go down."),
        some => format!(
            "All {count} nodes were drained. {} may go down; the drains of the others have ended since.",
            some.join(" and ")
        ),
    };
    page.text(Style::Good, text);
    let nodes = nodes.join(" ");
    page.command("when done", format!("kubectl nodeward release{options} {nodes}"));
}
