//! What the operators say, followed as they say it.

pub mod lock;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use console::Style;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::watcher;
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_core::verdict::BlockedMessage;
use nodeward_testkit::fleet;
use tokio::task::JoinSet;

use super::environment::Environment;
use super::narrator::{Line, Narrator, Voice};
use crate::watch::follow;

/// Tells what drain-keeper does to pods, and health-check to nodes, by their Events.
pub fn events(narrator: &Arc<Narrator>, env: &Environment) -> JoinSet<()> {
    let narrator = Arc::clone(narrator);
    let events: Api<Event> = Api::all(env.client());
    let mut told = BTreeSet::new();
    follow(events, watcher::Config::default(), move |event| {
        if let Some(pod) = subject_of(&event, "drain-keeper", "Pod") {
            tell_act(&narrator, &event, pod);
        } else if let Some(node) = subject_of(&event, "health-check", "Node") {
            let (node, reason, note) = (
                text(node.name.as_ref()),
                text(event.reason.as_ref()),
                text(event.note.as_ref()),
            );
            // A series of the same Event is no news.
            if node.starts_with(narrator.prefix()) && told.insert((node.to_owned(), note.to_owned())) {
                narrator.tell(Voice::Health, node, [head(reason), Line::plain(format!("  {note}"))]);
            }
        }
    })
}

/// What an Event of this operator is about, if that is of this kind.
fn subject_of<'a>(event: &'a Event, operator: &str, kind: &str) -> Option<&'a ObjectReference> {
    let by = event.reporting_controller.as_deref()?;
    let about = event.regarding.as_ref().filter(|_| by.contains(operator))?;
    (about.kind.as_deref() == Some(kind)).then_some(about)
}

fn text(text: Option<&String>) -> &str {
    text.map_or("", String::as_str)
}

fn head(text: impl Into<String>) -> Line {
    Line::plain(text).look(Style::new().yellow().bold())
}

fn tell_act(narrator: &Narrator, event: &Event, pod: &ObjectReference) {
    let (namespace, name) = (text(pod.namespace.as_ref()), text(pod.name.as_ref()));
    if !namespace.starts_with(narrator.prefix()) {
        return;
    }
    let node = event.related.as_ref().map_or("", |node| text(node.name.as_ref()));
    let (reason, note) = (text(event.reason.as_ref()), text(event.note.as_ref()));
    // The node is named above.
    let note = note.strip_suffix(&format!(" (node {node})")).unwrap_or(note);
    let lines = [
        head(format!("{reason}: {namespace}/{name}")),
        Line::plain(format!("  {note}")),
    ];
    narrator.tell(Voice::Keeper, node, lines);
}

/// Tells the Nodes' condition: who is blocked by what, and what comes next. Each situation is told once: that only
/// times have changed is no news, and when a node is no longer blocked, the upgrader says so.
pub fn conditions(narrator: &Arc<Narrator>, env: &Environment) -> JoinSet<()> {
    let narrator = Arc::clone(narrator);
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    follow(Api::all(env.client()), env.selecting_ours(), move |node: Node| {
        let name = node.name_any();
        let blocked = fleet::condition(&node, DRAIN_BLOCKED);
        match blocked.and_then(|condition| condition.message.as_deref()) {
            Some(message) => tell_condition(&narrator, &name, message, known.entry(name.clone()).or_default()),
            None => drop(known.remove(&name)),
        }
    })
}

fn tell_condition(narrator: &Narrator, node: &str, message: &str, known: &mut BTreeSet<String>) {
    let Some(blocked) = BlockedMessage::parse(message) else {
        return;
    };
    let news = news(&blocked, known);
    if news.is_empty() {
        return;
    }
    let mut lines = Vec::new();
    if news.len() == blocked.named.len() {
        let failed = if blocked.drain_failed {
            "The drain has failed: everything that may be done has been. "
        } else {
            ""
        };
        let keep = if blocked.pods == 1 { "pod keeps" } else { "pods keep" };
        let head = format!("{failed}{} {keep} the drain from ending:", blocked.pods);
        lines.push(Line::plain(head).look(Style::new().bold()));
    }
    for pod in news {
        let (now, next) = pod.split_once("; next: ").unwrap_or((pod, ""));
        lines.push(Line::plain(format!("- {now}")));
        let next = Line::plain(format!("  next: {next}"));
        lines.push(next.look(Style::new().cyan()).hang(8));
    }
    narrator.tell(Voice::Keeper, node, lines);
}

/// The pods whose situation is not known yet. It stands before the details, of which the times change.
fn news<'a>(blocked: &'a BlockedMessage, known: &mut BTreeSet<String>) -> Vec<&'a str> {
    let situation = |pod: &str| pod.split(" (").next().unwrap_or_default().to_owned();
    let named = blocked.named.iter().map(String::as_str);
    named.filter(|pod| known.insert(situation(pod))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "2 pods keep the drain from ending: finance/ledger-1 is covered by a budget that allows no disruption (PDB finance/ledger); \
        next: PdbDelete at 2026-11-21T11:09:31Z: evict it, or delete it if the budget refuses | finance/ledger-2 is kept by finalizers \
        beyond its grace period (finalizers a/b; grace until 2026-11-21T11:09:00Z); next: nothing by itself; to do: repair its controller";

    #[test]
    fn changed_times_are_no_news() {
        let mut known = BTreeSet::new();
        let mut count = |message: &str| news(&BlockedMessage::parse(message).unwrap(), &mut known).len();
        assert_eq!(count(MESSAGE), 2);
        assert_eq!(count(&MESSAGE.replace("11:09", "11:10")), 0);
        assert_eq!(
            count(&MESSAGE.replace("is covered by a budget that allows no disruption", "waits")),
            1
        );
    }
}
