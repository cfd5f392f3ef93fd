//! Tells what happens, as it happens: on a terminal above a progress line, elsewhere as plain lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use console::{Style, style};
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use nodeward_api::condition::DRAIN_BLOCKED;
use tokio::task::JoinSet;

use super::page::{self, MARGIN};
use super::place::Place;
use super::retell;

/// Who is speaking.
#[derive(Clone, Copy)]
pub enum Voice {
    Upgrader,
    Keeper,
    Owner,
}

/// A line of what is said.
pub struct Line {
    text: String,
    look: Style,
    /// How far what does not fit is indented.
    hang: usize,
}

impl Line {
    pub fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            look: Style::new(),
            hang: 2,
        }
    }

    pub fn look(self, look: Style) -> Self {
        Self { look, ..self }
    }

    fn hang(self, hang: usize) -> Self {
        Self { hang, ..self }
    }
}

/// Tells what happens.
pub struct Narrator {
    began: Instant,
    began_at: Timestamp,
    /// What all names of the demo begin with, which is not told again and again.
    prefix: String,
    bar: Option<ProgressBar>,
    /// The node that the last heading was about.
    under: Mutex<String>,
    last_said: Mutex<Instant>,
}

impl Narrator {
    pub fn new(place: &Place) -> Self {
        let bar = std::io::stdout().is_terminal().then(|| {
            let bar = ProgressBar::new(1);
            if let Ok(style) =
                ProgressStyle::with_template("{spinner:.cyan} {pos}/{len} nodes [{bar:24.cyan}] {elapsed}  {wide_msg}")
            {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self {
            began: Instant::now(),
            began_at: Timestamp::now(),
            prefix: place.prefix().to_owned(),
            bar,
            under: Mutex::default(),
            last_said: Mutex::new(Instant::now()),
        }
    }

    /// A name without what all names of the demo begin with.
    pub fn short(&self, text: &str) -> String {
        if self.prefix.is_empty() {
            text.to_owned()
        } else {
            text.replace(&self.prefix, "")
        }
    }

    /// A node's turn begins.
    pub fn heading(&self, node: &str, number: usize, of: usize) {
        node.clone_into(&mut self.under.lock().unwrap_or_else(PoisonError::into_inner));
        let node = self.short(node);
        let count = format!("{number} of {of}");
        let rule = "-".repeat(page::width().saturating_sub(node.len() + count.len() + 6));
        self.print(&format!("\n-- {} {} {count}\n", style(node).bold(), style(rule).dim()));
    }

    /// Says something about a node.
    pub fn say(&self, voice: Voice, node: &str, text: &str) {
        self.tell(voice, node, [Line::plain(text)]);
    }

    /// Says several lines about a node.
    pub fn tell(&self, voice: Voice, node: &str, lines: impl IntoIterator<Item = Line>) {
        let elsewhere = *self.under.lock().unwrap_or_else(PoisonError::into_inner) != node;
        let about = elsewhere.then(|| Line::plain(format!("{node}:")).look(Style::new().bold()));
        let who = match voice {
            Voice::Upgrader => style("upgrader    ").blue(),
            Voice::Keeper => style("drain-keeper").green(),
            Voice::Owner => style("owner       ").magenta(),
        };
        let mut margin = format!("{:>6.1}s  {who}  ", self.began.elapsed().as_secs_f32());
        let mut block = String::new();
        for line in about.into_iter().chain(lines) {
            let text = retell::in_seconds(&self.short(&line.text), self.began_at);
            for part in page::wrap(&text, page::width() - MARGIN, line.hang) {
                let _ = writeln!(block, "{margin}{}", line.look.apply_to(part));
                margin = " ".repeat(MARGIN);
            }
        }
        self.print(&block);
    }

    /// Says something before the story begins; what does not fit is indented.
    pub fn preface(&self, text: &str, indent: usize) {
        let mut block = String::new();
        for line in page::wrap(text, page::width(), indent) {
            let _ = writeln!(block, "{line}");
        }
        self.print(&block);
    }

    /// How far the upgrade is.
    pub fn progress(&self, done: usize, all: usize, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(self.short(text));
        }
    }

    /// The story is over, or was interrupted.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// For how long nobody has said anything.
    pub fn silence(&self) -> Duration {
        self.last_said.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Whoever closes the output early does not end the demo in the middle.
    fn print(&self, block: &str) {
        *self.last_said.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let write = || {
            let _ = std::io::stdout().lock().write_all(block.as_bytes());
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Retells drain-keeper's Events on pods: what it does.
    pub fn follow_events(self: &Arc<Self>, place: &Place) -> JoinSet<()> {
        let narrator = Arc::clone(self);
        let events: Api<Event> = Api::all(place.client());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut changes = watcher(events, watcher::Config::default())
                .default_backoff()
                .applied_objects()
                .boxed();
            while let Some(change) = changes.next().await {
                if let Ok(event) = change {
                    narrator.retell_act(&event);
                }
            }
        });
        tasks
    }

    fn retell_act(&self, event: &Event) {
        let by_keeper = event
            .reporting_controller
            .as_deref()
            .is_some_and(|name| name.contains("drain-keeper"));
        let about_pod = event
            .regarding
            .as_ref()
            .filter(|about| about.kind.as_deref() == Some("Pod"));
        let (true, Some(pod)) = (by_keeper, about_pod) else {
            return;
        };
        let (namespace, name) = (
            pod.namespace.as_deref().unwrap_or_default(),
            pod.name.as_deref().unwrap_or_default(),
        );
        if !namespace.starts_with(&self.prefix) {
            return;
        }
        let node = event
            .related
            .as_ref()
            .and_then(|node| node.name.as_deref())
            .unwrap_or_default();
        let (strategy, what) = retell::act(event.note.as_deref().unwrap_or_default(), node);
        let reason = event.reason.as_deref().unwrap_or_default();
        self.tell(
            Voice::Keeper,
            node,
            [
                Line::plain(format!("{reason}: {namespace}/{name}")).look(Style::new().yellow().bold()),
                Line::plain(format!("  {strategy}: {what}")),
            ],
        );
    }

    /// Retells the Nodes' condition: who is blocked by what, and what comes next. Each situation is told once: that only
    /// times have changed is no news, and when a node is no longer blocked, the upgrader says so.
    pub fn follow_conditions(self: &Arc<Self>, place: &Place) -> JoinSet<()> {
        let narrator = Arc::clone(self);
        let nodes: Api<Node> = Api::all(place.client());
        let ours = place.selecting_ours();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            let mut changes = watcher(nodes, ours).default_backoff().applied_objects().boxed();
            while let Some(change) = changes.next().await {
                let Ok(node) = change else { continue };
                let name = node.name_any();
                let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
                let message = conditions
                    .into_iter()
                    .find(|condition| condition.type_ == DRAIN_BLOCKED)
                    .and_then(|condition| condition.message.clone());
                match message {
                    Some(message) => narrator.retell_condition(&name, &message, known.entry(name.clone()).or_default()),
                    None => drop(known.remove(&name)),
                }
            }
        });
        tasks
    }

    fn retell_condition(&self, node: &str, message: &str, known: &mut BTreeSet<String>) {
        let told = retell::condition(message);
        let all = told.blockers.len();
        let news: Vec<_> = told
            .blockers
            .into_iter()
            .filter(|blocker| known.insert(blocker.situation()))
            .collect();
        if news.is_empty() {
            return;
        }
        let mut lines = Vec::new();
        if news.len() == all {
            lines.push(Line::plain(format!("{}:", told.head)).look(Style::new().bold()));
        }
        for blocker in news {
            lines.push(Line::plain(format!("- {} {}", blocker.pod, blocker.why)));
            lines.push(
                Line::plain(format!("  next: {}", blocker.next))
                    .look(Style::new().cyan())
                    .hang(8),
            );
        }
        self.tell(Voice::Keeper, node, lines);
    }
}

impl Drop for Narrator {
    fn drop(&mut self) {
        self.finish();
    }
}
