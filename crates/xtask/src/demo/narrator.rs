//! Tells what happens, as it happens: on a terminal above a progress line, elsewhere as plain lines.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Instant;

use console::style;
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use nodeward_api::condition::DRAIN_BLOCKED;
use tokio::task::JoinSet;

/// Who is speaking.
#[derive(Clone, Copy)]
pub enum Voice {
    Demo,
    Upgrader,
    Keeper,
    Owner,
}

/// Width of the columns before the text.
const INDENT: usize = 31;

/// Tells what happens.
pub struct Narrator {
    began: Instant,
    bar: Option<ProgressBar>,
}

impl Narrator {
    pub fn new() -> Self {
        let bar = std::io::stdout().is_terminal().then(|| {
            let bar = ProgressBar::new(1);
            if let Ok(style) = ProgressStyle::with_template("{spinner:.cyan} [{bar:24.cyan}] {pos}/{len} nodes  {msg}") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(std::time::Duration::from_millis(120));
            bar
        });
        Self { began: Instant::now(), bar }
    }

    /// Says something about a node.
    pub fn say(&self, voice: Voice, node: &str, text: &str) {
        let who = match voice {
            Voice::Demo => style("demo        ").dim(),
            Voice::Upgrader => style("upgrader    ").blue(),
            Voice::Keeper => style("drain-keeper").green().bold(),
            Voice::Owner => style("owner       ").magenta(),
        };
        let head = format!("{:>6.1}s  {who}  {node:<8} ", self.began.elapsed().as_secs_f32());
        let width = usize::from(console::Term::stdout().size().1).clamp(60, 120) - INDENT;
        for (index, line) in textwrap::wrap(text, width).iter().enumerate() {
            if index == 0 {
                self.line(&format!("{head}{line}"));
            } else {
                self.line(&format!("{:INDENT$}{line}", ""));
            }
        }
    }

    /// How far the upgrade is.
    pub fn progress(&self, done: usize, all: usize, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(text.to_owned());
        }
    }

    /// The story is over.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn line(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| println!("{line}")),
            None => println!("{line}"),
        }
    }

    /// Retells drain-keeper's Events on pods: what it does.
    pub fn follow_events(self: &Arc<Self>, client: &Client) -> JoinSet<()> {
        let narrator = Arc::clone(self);
        let events: Api<Event> = Api::all(client.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut changes = watcher(events, watcher::Config::default()).default_backoff().applied_objects().boxed();
            while let Some(change) = changes.next().await {
                let Ok(event) = change else { continue };
                let by_keeper = event.reporting_controller.as_deref().is_some_and(|name| name.contains("drain-keeper"));
                let about_pod = event.regarding.as_ref().filter(|about| about.kind.as_deref() == Some("Pod"));
                let (true, Some(pod)) = (by_keeper, about_pod) else { continue };
                let name = format!(
                    "{}/{}",
                    pod.namespace.as_deref().unwrap_or_default(),
                    pod.name.as_deref().unwrap_or_default()
                );
                let node = event.related.as_ref().and_then(|node| node.name.as_deref()).unwrap_or_default();
                let text = format!(
                    "{}: {name}: {}",
                    event.reason.as_deref().unwrap_or_default(),
                    event.note.as_deref().unwrap_or_default()
                );
                narrator.say(Voice::Keeper, node, &text);
            }
        });
        tasks
    }

    /// Retells the Nodes' condition: who is blocked by what, and what comes next.
    pub fn follow_conditions(self: &Arc<Self>, client: &Client) -> JoinSet<()> {
        let narrator = Arc::clone(self);
        let nodes: Api<Node> = Api::all(client.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut told: BTreeMap<String, String> = BTreeMap::new();
            let mut changes = watcher(nodes, watcher::Config::default()).default_backoff().applied_objects().boxed();
            while let Some(change) = changes.next().await {
                let Ok(node) = change else { continue };
                let name = node.name_any();
                let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
                let message = conditions
                    .into_iter()
                    .find(|condition| condition.type_ == DRAIN_BLOCKED)
                    .and_then(|condition| condition.message.clone());
                match message {
                    Some(message) => {
                        if told.insert(name.clone(), message.clone()).as_ref() != Some(&message) {
                            narrator.say(Voice::Keeper, &name, &message);
                        }
                    }
                    None => {
                        if told.remove(&name).is_some() {
                            narrator.say(Voice::Keeper, &name, "is no longer blocked");
                        }
                    }
                }
            }
        });
        tasks
    }
}
