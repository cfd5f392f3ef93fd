//! Which pods of a draining node its claim has no disruption for. The budgets that a claim needs do not tell: a budget may select
//! held and movable pods of one node, and a movable one that waited with the claim could wait for ever, once the held ones
//! have taken the last disruption.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nodeward_core::id::PodUid;
use nodeward_scheduling::Placement;

use crate::observe::ClusterCache;
use crate::plan::need::{Class, NeedRules, classify};
use crate::policy::Policy;
use crate::snapshot::{Snapshot, SnapshotScope};

/// For how long the classes serve. They are those of all claims at once, so that no number of retries makes more work.
const FRESH: Duration = Duration::from_secs(1);

/// The pods of all claims' nodes that need no disruption, as they were classified last.
#[derive(Debug, Default)]
pub struct Classes(Mutex<Option<Classified>>);

#[derive(Debug)]
struct Classified {
    without_disruption: BTreeSet<PodUid>,
    at: Instant,
}

impl Classes {
    /// Whether the drain of the pod's node needs no disruption for it; false for a pod that cannot be classified.
    pub fn needs_no_disruption(
        &self,
        pod: &PodUid,
        cache: &ClusterCache,
        policy: &Policy,
        now: Timestamp,
        instant: Instant,
    ) -> bool {
        let mut classified = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = |known: &Classified| instant.saturating_duration_since(known.at) < FRESH;
        if let Some(known) = classified.as_ref()
            && is_fresh(known)
        {
            return known.without_disruption.contains(pod);
        }
        let snapshot = cache.snapshot(&SnapshotScope::default(), now);
        let without_disruption = snapshot.map(|snapshot| without_disruption(&snapshot, &NeedRules::of(policy), now));
        let known = classified.insert(Classified {
            without_disruption: without_disruption.unwrap_or_default(),
            at: instant,
        });
        known.without_disruption.contains(pod)
    }
}

/// The pods of all claims' nodes that need no disruption. The oldest drain comes first, as in the plan: a place that its pods
/// take is none for those of the next.
fn without_disruption(snapshot: &Snapshot, rules: &NeedRules, now: Timestamp) -> BTreeSet<PodUid> {
    let mut placement = Placement::new(&snapshot.scheduling);
    let ledger = snapshot.ledger.ledger();
    let nodes = ledger.claims().iter().filter_map(|claim| {
        let is_wanted = |name: &str| {
            let drain = snapshot.drains.get(name);
            drain.is_some_and(|drain| drain.metadata.deletion_timestamp.is_none())
        };
        let node = snapshot.nodes.get(claim.node.as_str())?;
        (node.uid.as_str() == claim.node_uid && is_wanted(&claim.node)).then_some(node)
    });
    let mut pods = BTreeSet::new();
    for node in nodes {
        let need = classify(node, snapshot, &mut placement, rules, now);
        let without_disruption = need.pods.iter().filter(|pod| match pod.class {
            Class::Held(_) | Class::Retained => false,
            Class::Ignored(_) | Class::Finished | Class::WaitsCompleted | Class::Movable => true,
        });
        pods.extend(without_disruption.map(|classified| classified.pod.uid.clone()));
    }
    pods
}
