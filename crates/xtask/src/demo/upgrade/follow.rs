//! What drain-keeper says to the cluster, followed as it says it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use console::Style;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::watcher;
use nodeward_api::condition::DRAIN_BLOCKED;
use tokio::task::JoinSet;

use super::parse_messages;
use crate::demo::environment::Environment;
use crate::demo::narrator::{Line, Narrator, Voice};
use crate::watch::follow;

/// Retells drain-keeper's Events on pods: what it does.
pub fn events(narrator: &Arc<Narrator>, env: &Environment) -> JoinSet<()> {
    let narrator = Arc::clone(narrator);
    let events: Api<Event> = Api::all(env.client());
    follow(events, watcher::Config::default(), move |event| {
        retell_act(&narrator, &event);
    })
}

/// The pod that an Event of drain-keeper's is about; `None` for any other Event.
pub(super) fn pod_of(event: &Event) -> Option<&ObjectReference> {
    let by_keeper = event
        .reporting_controller
        .as_deref()
        .is_some_and(|name| name.contains("drain-keeper"));
    let about = event.regarding.as_ref().filter(|_| by_keeper)?;
    (about.kind.as_deref() == Some("Pod")).then_some(about)
}

fn retell_act(narrator: &Narrator, event: &Event) {
    let Some(pod) = pod_of(event) else { return };
    let (namespace, name) = (
        pod.namespace.as_deref().unwrap_or_default(),
        pod.name.as_deref().unwrap_or_default(),
    );
    if !namespace.starts_with(narrator.prefix()) {
        return;
    }
    let node = event
        .related
        .as_ref()
        .and_then(|node| node.name.as_deref())
        .unwrap_or_default();
    let reason = event.reason.as_deref().unwrap_or_default();
    let note = event.note.as_deref().unwrap_or_default();
    // The node is named above.
    let note = note.strip_suffix(&format!(" (node {node})")).unwrap_or(note);
    narrator.tell(
        Voice::Keeper,
        node,
        [
            Line::plain(format!("{reason}: {namespace}/{name}")).look(Style::new().yellow().bold()),
            Line::plain(format!("  {note}")),
        ],
    );
}

/// Retells the Nodes' condition: who is blocked by what, and what comes next. Each situation is told once: that only
/// times have changed is no news, and when a node is no longer blocked, the upgrader says so.
pub fn conditions(narrator: &Arc<Narrator>, env: &Environment) -> JoinSet<()> {
    let narrator = Arc::clone(narrator);
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    follow(Api::all(env.client()), env.selecting_ours(), move |node: Node| {
        let name = node.name_any();
        let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let blocked = conditions.find(|condition| condition.type_ == DRAIN_BLOCKED);
        match blocked.and_then(|condition| condition.message.as_deref()) {
            Some(message) => retell_condition(&narrator, &name, message, known.entry(name.clone()).or_default()),
            None => drop(known.remove(&name)),
        }
    })
}

fn retell_condition(narrator: &Narrator, node: &str, message: &str, known: &mut BTreeSet<String>) {
    let (head, mut blockers) = parse_messages::condition(message);
    let all = blockers.len();
    blockers.retain(|blocker| known.insert(blocker.situation().to_owned()));
    if blockers.is_empty() {
        return;
    }
    let mut lines = Vec::new();
    if blockers.len() == all {
        lines.push(Line::plain(format!("{head}:")).look(Style::new().bold()));
    }
    for blocker in blockers {
        lines.push(Line::plain(format!("- {}", blocker.now)));
        let next = Line::plain(format!("  next: {}", blocker.next));
        lines.push(next.look(Style::new().cyan()).hang(8));
    }
    narrator.tell(Voice::Keeper, node, lines);
}
