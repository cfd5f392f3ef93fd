//! The watches on pods, one for each draining node.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use nodeward_core::id::NodeName;
use nodeward_core::pod::PodView;
use nodeward_runtime::{Cache, Selection, Watches};

use crate::snapshot::NodePods;

/// How many are listed for the first time at once: after a failover hundreds of nodes may be draining.
const LISTED_AT_ONCE: usize = 16;

/// The watches.
pub(super) struct PodWatches {
    watches: Watches,
    client: Client,
    open: BTreeMap<NodeName, Cache<PodView>>,
}

impl PodWatches {
    /// None is open yet.
    pub(super) fn new(watches: &Watches, client: Client) -> Self {
        Self {
            watches: watches.clone(),
            client,
            open: BTreeMap::new(),
        }
    }

    /// Watches the pods of these nodes, and of no others. Of many new watches some are still to be opened after this, which it
    /// says with `false`: call it again once others have been listed, of which the trigger tells.
    pub(super) fn follow(&mut self, nodes: &BTreeSet<NodeName>) -> bool {
        self.open.retain(|node, _| nodes.contains(node));
        // One that fails holds up no other.
        let is_listing = |pods: &&Cache<PodView>| !pods.is_synced() && pods.health().failures == 0;
        let room = LISTED_AT_ONCE.saturating_sub(self.open.values().filter(is_listing).count());
        let missing: Vec<NodeName> = nodes
            .iter()
            .filter(|node| !self.open.contains_key(*node))
            .cloned()
            .collect();
        for node in missing.iter().take(room) {
            let (name, api) = ("pods of a draining node", Api::<Pod>::all(self.client.clone()));
            let on_node = Selection::all().fields(format!("spec.nodeName={node}"));
            let pods = self.watches.cache(name, api, on_node, |pod| PodView::project(&pod));
            self.open.insert(node.clone(), pods);
        }
        missing.len() <= room
    }

    /// The pods of each node that is watched.
    pub(super) fn pods(&self) -> BTreeMap<NodeName, NodePods> {
        let pods = self.open.iter().map(|(node, pods)| (node.clone(), pods_of(pods)));
        pods.collect()
    }
}

fn pods_of(pods: &Cache<PodView>) -> NodePods {
    if pods.is_fresh() {
        NodePods::Synced(pods.snapshot().values().cloned().collect())
    } else {
        NodePods::Syncing
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// An API server that answers no watch, or refuses each; and how many it was asked for.
    fn server(answers: bool) -> (Client, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let service = tower::service_fn(move |_: Request<Body>| {
            counter.fetch_add(1, Ordering::SeqCst);
            async move {
                if !answers {
                    std::future::pending::<()>().await;
                }
                let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}"#;
                Response::builder()
                    .status(500)
                    .body(Body::from(status.as_bytes().to_vec()))
            }
        });
        (Client::new(service, "default"), asked)
    }

    fn nodes(count: usize) -> BTreeSet<NodeName> {
        (0..count).map(|node| format!("n{node}").as_str().into()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn many_watches_open_a_few_at_a_time() {
        let (client, asked) = server(false);
        let mut watches = PodWatches::new(&Watches::detached(), client);
        for _ in 0..3 {
            assert!(!watches.follow(&nodes(40)));
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!((watches.open.len(), asked.load(Ordering::SeqCst)), (16, 16));
        }
        assert!(watches.follow(&nodes(10)), "there is room for all of these");
        assert_eq!(watches.open.len(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn failing_watches_hold_up_no_others() {
        let (client, _) = server(true);
        let mut watches = PodWatches::new(&Watches::detached(), client);
        for open in [16, 32, 40] {
            watches.follow(&nodes(40));
            assert_eq!(watches.open.len(), open);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let all = watches.pods();
        assert!(all.values().all(|pods| matches!(pods, NodePods::Syncing)));
    }
}
