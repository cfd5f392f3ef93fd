//! What drain-keeper says to the cluster, followed as it says it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use console::Style;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use nodeward_api::condition::DRAIN_BLOCKED;
use tokio::task::JoinSet;

use super::retell;
use crate::demo::narrator::{Line, Narrator, Voice};
use crate::demo::place::Place;

/// Retells drain-keeper's Events on pods: what it does.
pub fn events(narrator: &Arc<Narrator>, place: &Place) -> JoinSet<()> {
    let narrator = Arc::clone(narrator);
    let events: Api<Event> = Api::all(place.client());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut changes = watcher(events, watcher::Config::default())
            .default_backoff()
            .applied_objects()
            .boxed();
        while let Some(change) = changes.next().await {
            if let Ok(event) = change {
                retell_act(&narrator, &event);
            }
        }
    });
    tasks
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
    let (strategy, what) = retell::act(event.note.as_deref().unwrap_or_default(), node);
    let reason = event.reason.as_deref().unwrap_or_default();
    narrator.tell(
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
pub fn conditions(narrator: &Arc<Narrator>, place: &Place) -> JoinSet<()> {
    let narrator = Arc::clone(narrator);
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
                Some(message) => retell_condition(&narrator, &name, &message, known.entry(name.clone()).or_default()),
                None => drop(known.remove(&name)),
            }
        }
    });
    tasks
}

fn retell_condition(narrator: &Narrator, node: &str, message: &str, known: &mut BTreeSet<String>) {
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
    narrator.tell(Voice::Keeper, node, lines);
}
