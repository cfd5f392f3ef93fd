//! All that `why NODE` tells, as the page shows it, and when it has to be told anew.

use std::time::Duration;

use futures::{Stream, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use nodeward_runtime::cache::{Selection, Watches};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::fleet::{Fleet, FleetComponent};
use super::live::Live;
use crate::commands::why::Why;
use crate::failure::Failure;
use crate::model::events::LogLine;
use crate::text::page::{Block, Page};

/// A node is looked at anew after a change no sooner than this, and without one no later than that.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(10);

/// A node, as `why` explains it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeView {
    pub name: String,
    pub at: Timestamp,
    pub blocks: Vec<Block>,
    pub events: Vec<LogLine>,
}

impl NodeView {
    /// Of what watches hold, and of reads for the rest. Nothing is tried: the page gets, lists and watches.
    pub async fn fetch(live: &Live, name: &str) -> Result<Self, Failure> {
        let base = live.base();
        let why = Why::read(base.reader(), name, false).await?;
        let at = Timestamp::now();
        let mut page = Page::new(usize::MAX);
        why.print(&mut page, &why.next(&live.commands, at), &live.commands, at);
        let fleet = live.fleets().borrow().clone();
        let events = fleet.as_deref().map(|fleet| events_of(fleet, name)).unwrap_or_default();
        Ok(Self {
            name: name.to_owned(),
            at,
            blocks: page.into_blocks(),
            events,
        })
    }

    /// Whether a person would see a difference.
    fn says_the_same(&self, other: &Self) -> bool {
        self.blocks == other.blocks && self.events == other.events
    }
}

/// The node's Events, the last first.
fn events_of(fleet: &Fleet, name: &str) -> Vec<LogLine> {
    let of_node = fleet.log.values().filter(|line| line.node.as_deref() == Some(name));
    let mut events: Vec<LogLine> = of_node.map(|line| LogLine::clone(line)).collect();
    events.sort_by_key(|line| std::cmp::Reverse(line.at));
    events
}

/// The node's view, and each later one that differs from the one before. Pods are watched for this node alone, and only for as
/// long as somebody looks.
pub fn views(live: Live, name: String) -> impl Stream<Item = Result<NodeView, Failure>> {
    let (views, shown) = mpsc::channel(1);
    tokio::spawn(async move {
        let watches = Watches::detached();
        let selection = Selection::all().fields(format!("spec.nodeName={name}"));
        let _pods = watches.cache("pods", live.base().cluster.scoped(), selection, |pod: Pod| {
            pod.resource_version()
        });
        let mut fleets = live.fleets();
        let mut last: Option<Result<NodeView, Failure>> = None;
        loop {
            let began = Instant::now();
            let seen = fleets.borrow_and_update().clone();
            let view = NodeView::fetch(&live, &name).await;
            let is_same = match (&last, &view) {
                (Some(Ok(last)), Ok(view)) => view.says_the_same(last),
                (Some(Err(last)), Err(view)) => last == view,
                _ => false,
            };
            if !is_same {
                last = Some(view.clone());
                if views.send(view).await.is_err() {
                    return;
                }
            }
            sleep_until(began + SOONEST).await;
            loop {
                tokio::select! {
                    () = watches.trigger().notified() => break,
                    () = sleep_until(began + LATEST) => break,
                    () = views.closed() => return,
                    changed = fleets.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        let now = fleets.borrow_and_update().clone();
                        if seen.as_deref().zip(now.as_deref()).is_none_or(|(seen, now)| concerns(&name, seen, now)) {
                            break;
                        }
                    }
                }
            }
        }
    });
    stream::unfold(shown, async |mut shown| shown.recv().await.map(|view| (view, shown)))
}

/// Whether something that concerns the node differs.
fn concerns(name: &str, before: &Fleet, after: &Fleet) -> bool {
    before.nodes.get(name) != after.nodes.get(name)
        || before.drains.get(name) != after.drains.get(name)
        || before.budgets != after.budgets
        || before.ceph_clusters != after.ceph_clusters
        // A lease that is renewed changes nothing that is told.
        || !before.components.iter().map(FleetComponent::text).eq(after.components.iter().map(FleetComponent::text))
        || events_of(before, name) != events_of(after, name)
}
