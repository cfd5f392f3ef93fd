//! Which pods of a draining node are movable. The budgets that its claim needs do not tell: a budget may select held and movable
//! pods of one node, and these go before the claim, or by the disruption that it has for them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nodeward_core::id::{NodeUid, PodUid};
use parking_lot::Mutex;

use crate::observe::ClusterCache;
use crate::plan::need::Class;
use crate::plan::needs_of_drains;
use crate::policy::Policy;
use crate::snapshot::{Snapshot, SnapshotScope};

/// After so long they are classified anew, or for a claim that came since. That is of all claims at once, so that no number of
/// retries makes more work.
const FRESH: Duration = Duration::from_secs(1);

/// For how long a classification serves while the next is under way.
const SERVES: Duration = Duration::from_secs(5);

/// How long an answer waits for a classification: in a cluster of 1,000 nodes it takes tens of milliseconds, and longer
/// where many pods have anti-affinity. Then the pod's claim decides, and the drainer asks again.
const WAIT: Duration = Duration::from_millis(250);

/// The movable pods of all claims' nodes, as they were classified last.
#[derive(Debug, Default)]
pub struct MovablePods {
    classified: Mutex<Option<Classified>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct Classified {
    /// Those that are movable, or that no claim concerns.
    pods: BTreeSet<PodUid>,
    /// Nodes with pods that leave under the claim alone.
    nodes_of_held: BTreeSet<NodeUid>,
    /// Nodes whose claims it knows.
    nodes: BTreeSet<NodeUid>,
    at: Instant,
}

impl MovablePods {
    /// Whether the pod is movable; false for one that is not classified.
    pub fn contains(&self, pod: &PodUid, now: Instant) -> bool {
        self.last(now, |last| last.pods.contains(pod))
    }

    /// Whether pods of the node leave under its claim alone, so that no drainer is done with it before.
    pub fn are_beside_held(&self, node: &NodeUid, now: Instant) -> bool {
        self.last(now, |last| last.nodes_of_held.contains(node))
    }

    fn last(&self, now: Instant, tells: impl Fn(&Classified) -> bool) -> bool {
        let classified = self.classified.lock();
        let serves = |last: &&Classified| now.saturating_duration_since(last.at) < SERVES;
        classified.as_ref().filter(serves).is_some_and(tells)
    }

    /// Sees to it that there is a fresh classification of this node's pods, or waits for it in vain. One is made at a time, on a
    /// thread of its own: it holds up no other answer.
    pub async fn refresh(self: &Arc<Self>, node: &NodeUid, cache: &Arc<ClusterCache>, policy: &Policy) {
        let (this, cache, policy) = (Arc::clone(self), Arc::clone(cache), policy.clone());
        let node = node.clone();
        let refresh = async move {
            let turn = Arc::clone(&this.turn).lock_owned().await;
            if this.is_fresh(&node, Instant::now()) {
                return;
            }
            // The turn goes with the work, which ends by itself.
            let classify = move || {
                let _turn = turn;
                this.classify(&node, &cache, &policy, Timestamp::now(), Instant::now());
            };
            if let Err(error) = tokio::task::spawn_blocking(classify).await {
                tracing::error!(%error, "the pods of draining nodes could not be classified");
            }
        };
        let _ = tokio::time::timeout(WAIT, refresh).await;
    }

    /// Classifies them, unless that was done a moment ago, with the claim of this node.
    pub fn classify(&self, node: &NodeUid, cache: &ClusterCache, policy: &Policy, now: Timestamp, at: Instant) {
        if self.is_fresh(node, at) {
            return;
        }
        let snapshot = cache.snapshot(&SnapshotScope::default(), now);
        let classified = snapshot.map(|snapshot| {
            let claims = snapshot.claims().iter();
            let nodes: BTreeSet<NodeUid> = claims.map(|claim| claim.node_uid.as_str().into()).collect();
            (movable_pods(&snapshot, policy, now), nodes)
        });
        let ((pods, nodes_of_held), nodes) = classified.unwrap_or_default();
        *self.classified.lock() = Some(Classified {
            pods,
            nodes_of_held,
            nodes,
            at,
        });
    }

    fn is_fresh(&self, node: &NodeUid, now: Instant) -> bool {
        let classified = self.classified.lock();
        let age = |last: &Classified| now.saturating_duration_since(last.at);
        classified
            .as_ref()
            .is_some_and(|last| age(last) < FRESH && last.nodes.contains(node))
    }
}

/// The movable pods of all claims' nodes, and the nodes with pods that leave under a claim alone, as the plan has them.
fn movable_pods(snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> (BTreeSet<PodUid>, BTreeSet<NodeUid>) {
    let (mut pods, mut nodes_of_held) = (BTreeSet::new(), BTreeSet::new());
    for (node_uid, need) in needs_of_drains(snapshot, policy, now) {
        let movable = need.pods.iter().filter(|pod| match pod.class {
            Class::Held(_) | Class::LeftToOwner | Class::Retained(_) => false,
            Class::Ignored(_) | Class::Finished | Class::WaitsCompleted | Class::Movable => true,
        });
        pods.extend(movable.map(|classified| classified.pod.uid.clone()));
        let mut needed = need.needs.iter().flat_map(|disruptions| &disruptions.pods);
        if needed.any(|pod| !pod.retained) {
            nodes_of_held.insert(node_uid);
        }
    }
    (pods, nodes_of_held)
}
