//! Drains nodes: asks for each, and shows how they come on until all are over.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use nodeward_api::NodeDrain;
use nodeward_api::node_drain::{Deadlines, Evictor, Fallback};
use nodeward_core::drain_request::DrainRequest;
use nodeward_core::duration::ConfigDuration;
use tokio::time::{Instant, MissedTickBehavior};

use super::request::{self, Asked};
use super::{ActError, plan};
use crate::args::{self, FallbackArg};
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::progress::painter::Painter;
use crate::progress::{Board, News, state};
use crate::render::drain as words;
use crate::screen::Screen;
use crate::text::line::Tone;
use crate::text::page::Page;
use crate::view::drain::Drain;

/// How often the picture is painted anew at most.
const TICK: Duration = Duration::from_millis(250);

/// Why waiting came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All drains are over, or were not to be waited for.
    Over,
    /// `--timeout` has passed.
    TimedOut,
    /// Ctrl-C.
    Interrupted,
}

/// Asks for the drains, and waits for them. What was asked for is in `board`, however this ends.
///
/// # Errors
/// A drain cannot be asked for, or the drains cannot be watched.
pub async fn drain(cluster: &Cluster, args: &args::Drain, screen: &Screen, board: &mut Board) -> Result<End, ActError> {
    let deadline = args
        .timeout
        .map(|timeout| Instant::now() + timeout.get().unsigned_abs());
    let timed_out = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        done = ask_and_watch(cluster, args, screen, board) => done.map(|()| End::Over),
        () = timed_out => Ok(End::TimedOut),
        () = interrupted() => Ok(End::Interrupted),
    }
}

async fn ask_and_watch(
    cluster: &Cluster,
    args: &args::Drain,
    screen: &Screen,
    board: &mut Board,
) -> Result<(), ActError> {
    if !cluster.kinds().node_drains {
        return Err(ActError::NotInstalled("NodeDrain"));
    }
    let requester = super::requester(cluster).await?;
    let mut seen = BTreeSet::new();
    let nodes: Vec<&String> = args.nodes.iter().filter(|node| seen.insert(*node)).collect();
    // All names are looked at first: a mistake in the last one asks for nothing.
    let mut requests = Vec::new();
    for node in nodes {
        let node_uid = plan::uid(cluster, node).await?;
        requests.push(drain_request(args, node, node_uid, &requester));
    }
    for request in &requests {
        let waits = |node: &str| tell(screen, Tone::Faint, &format!("{node}: its drain before has yet to end"));
        let (drain, asked) = request::ask(cluster, request, &waits).await?;
        let view = Drain::of(&drain);
        tell(
            screen,
            Tone::Plain,
            &format!("{}: {}", request.node, answer(&asked, &view)),
        );
        board.add(drain.uid().unwrap_or_default(), view);
    }
    if args.no_wait || board.is_over() {
        return Ok(());
    }
    watch(cluster, screen, board).await
}

fn drain_request(args: &args::Drain, node: &str, node_uid: Option<String>, requester: &str) -> DrainRequest {
    let text = |duration: Option<ConfigDuration>| duration.map(|duration| duration.to_string());
    DrainRequest {
        node: node.into(),
        node_uid: node_uid.map(Into::into),
        requester: requester.to_owned(),
        purpose: args.purpose.clone(),
        fallback: args.fallback.map(|fallback| match fallback {
            FallbackArg::Wait => Fallback::Wait,
            FallbackArg::ReleaseAndRequeue => Fallback::ReleaseAndRequeue,
            FallbackArg::EvictAnyway => Fallback::EvictAnyway,
            FallbackArg::Delete => Fallback::Delete,
        }),
        deadlines: Deadlines {
            queue: text(args.deadline_queue),
            drain: text(args.deadline_drain),
            recover: text(args.deadline_recover),
        },
        evict: Evictor::Nodeward,
        dry_run: false,
        is_eviction: false,
        changes_settings: true,
    }
}

fn answer(asked: &Asked, drain: &Drain) -> String {
    match asked {
        Asked::Created => "asked for".to_owned(),
        Asked::Joined(others) => format!("joined the drain of {}: {}", others.join(", "), state(drain)),
        Asked::Known if drain.phase.is_none() => "asked for before".to_owned(),
        Asked::Known => format!("asked for before: {}", state(drain)),
    }
}

fn tell(screen: &Screen, tone: Tone, text: &str) {
    let mut page = Page::new();
    page.text(tone, text);
    screen.say(&page);
}

async fn watch(cluster: &Cluster, screen: &Screen, board: &mut Board) -> Result<(), ActError> {
    let drains: Api<NodeDrain> = Api::all(cluster.client.clone());
    let mut events = watcher::watcher(drains, watcher::Config::default())
        .default_backoff()
        .boxed();
    let began = Timestamp::now();
    let mut painter = Painter::default();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut present = Vec::new();
    let mut pending: Vec<News> = Vec::new();
    let mut trouble = None;
    loop {
        tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(event)) => {
                    trouble = None;
                    pending.extend(take(board, event, &mut present));
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    let failure = failure(&error);
                    if matches!(failure, Failure::MissingRight(_) | Failure::Unauthenticated { .. }) {
                        return Err(failure.into());
                    }
                    // The watch goes on by itself; the same trouble is told once.
                    let text = failure.to_string();
                    if trouble.as_ref() != Some(&text) {
                        tell(screen, Tone::Warning, &text);
                        trouble = Some(text);
                    }
                }
            },
            _ = ticks.tick() => {
                let now = Timestamp::now();
                pending.extend(board.silence(now));
                show(screen, &mut painter, board, &std::mem::take(&mut pending), began, now);
                if board.is_over() {
                    return Ok(());
                }
            }
        }
    }
}

/// What an event of the watch has to tell.
fn take(board: &mut Board, event: Event<NodeDrain>, present: &mut Vec<String>) -> Vec<News> {
    match event {
        Event::Init => {
            present.clear();
            Vec::new()
        }
        Event::InitApply(drain) => {
            present.extend(drain.uid());
            board
                .see(&drain.uid().unwrap_or_default(), Drain::of(&drain))
                .into_iter()
                .collect()
        }
        Event::InitDone => board.present(present),
        Event::Apply(drain) => board
            .see(&drain.uid().unwrap_or_default(), Drain::of(&drain))
            .into_iter()
            .collect(),
        Event::Delete(drain) => {
            let uid = drain.uid().unwrap_or_default();
            // Its last status came with it.
            let last = board.see(&uid, Drain::of(&drain));
            last.into_iter().chain(board.gone(&drain.name_any(), &uid)).collect()
        }
    }
}

fn show(screen: &Screen, painter: &mut Painter, board: &Board, news: &[News], began: Timestamp, now: Timestamp) {
    let size = screen.size().filter(|_| screen.is_live());
    let Some((width, height)) = size else {
        for news in news {
            let mut page = Page::new();
            page.line(news.line(now));
            screen.say(&page);
        }
        return;
    };
    let mut page = Page::new();
    for news in news.iter().filter(|news| news.matters) {
        page.line(news.line(now));
    }
    let told = page.lines(Some(width));
    let picture = if board.is_over() {
        Vec::new()
    } else {
        // The cursor stands below the picture, and nothing may scroll out.
        board.picture(
            now,
            began,
            width.saturating_sub(1).max(1),
            height.saturating_sub(2).max(1),
        )
    };
    painter.paint(&told, &picture, screen.ink());
}

fn failure(error: &watcher::Error) -> Failure {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Failure::from(error),
        watcher::Error::WatchError(status) => Failure::from(&kube::Error::Api(status.clone())),
        watcher::Error::NoResourceVersion => Failure::Unreachable {
            message: error.to_string(),
        },
    }
}

/// Ctrl-C, or the request to end.
async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let terminated = async {
            match signal(SignalKind::terminate()) {
                Ok(mut signal) => {
                    signal.recv().await;
                }
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => (),
            () = terminated => (),
        }
    }
    #[cfg(not(unix))]
    {
        let _ = tokio::signal::ctrl_c().await;
    }
}

/// Which nodes may go down: those whose drains have not ended since, as the drain of a node that is back does.
fn all_drained(page: &mut Page, board: &Board, options: &str) {
    let (ended, stand): (Vec<_>, Vec<_>) = board.drains.iter().partition(|watched| watched.ended);
    let names: Vec<&str> = stand.iter().map(|watched| watched.drain.node.as_str()).collect();
    let count = board.drains.len();
    let text = match (names.as_slice(), ended.len()) {
        ([], _) => {
            page.text(
                Tone::Good,
                "Drained; the drains have ended since, and their nodes may be in use again.",
            );
            return;
        }
        ([one], 0) => format!("{one} is drained and may go down."),
        (_, 0) => format!("All {count} nodes are drained and may go down."),
        (some, _) => format!(
            "All {count} nodes were drained. {} may go down; the drains of the others have ended since.",
            some.join(" and ")
        ),
    };
    page.text(Tone::Good, text);
    page.command(
        "when done",
        format!("kubectl nodeward release{options} {}", names.join(" ")),
    );
}

/// How the drains came out, and how to go on with those that are not over.
pub fn page(board: &Board, end: End, no_wait: bool, options: &str) -> Page {
    let mut page = Page::new();
    let waiting = board.waited_for().join(" ");
    let go_on = |page: &mut Page| {
        page.command("watch again", format!("kubectl nodeward drain{options} {waiting}"));
        page.command("give up", format!("kubectl nodeward release{options} {waiting}"));
    };
    match end {
        _ if board.drains.is_empty() => page.text(Tone::Plain, "Nothing was asked for."),
        End::Over if no_wait => go_on(&mut page),
        End::Over if board.is_drained() => {
            all_drained(&mut page, board, options);
        }
        End::Over => {
            for watched in &board.drains {
                let drain = &watched.drain;
                if watched.outcome != crate::progress::Outcome::Drained {
                    let why = drain.message.as_deref().unwrap_or_else(|| words::meaning(drain));
                    let stands = if drain.drained_at.is_some() {
                        "is not drained any more"
                    } else {
                        "was not drained"
                    };
                    page.text(Tone::Bad, format!("{} {stands}: {why}", drain.node));
                }
            }
        }
        End::TimedOut | End::Interrupted => {
            let why = if end == End::TimedOut {
                "The timeout has passed"
            } else {
                "Interrupted"
            };
            page.text(
                Tone::Warning,
                format!("{why}. What was asked for goes on without this command."),
            );
            if waiting.is_empty() {
                page.text(Tone::Plain, "All that was asked for is over.");
            } else {
                go_on(&mut page);
            }
        }
    }
    page
}
