//! Look: what the watches know of an eviction's pod, its node and its budgets. One pod's worth of work, whatever the size of
//! the cluster, but for the [`classes`](super::classes) that evictions under a waiting claim ask for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nodeward_core::id::{NodeUid, ResourceVersion};
use nodeward_core::ledger::{Facts, Ledger};
use tokio::sync::Semaphore;
use tokio::time;

use crate::observe::ClusterCache;
use crate::policy::Policy;
use crate::snapshot::{LedgerState, NodeFacts, PodFacts};

use super::classes::Classes;
use super::decide::{Covering, Place, Scene, Standing};
use super::patience::Patience;
use super::review::EvictionReview;

/// For how long the facts of the budgets in the ledger serve. They tell what is reserved, and what a claim waits for; the
/// budget of the pod itself is looked up each time.
const FRESH: Duration = Duration::from_millis(50);

/// A drainer cordons and evicts within milliseconds, and the watches show the cordon a moment later: by then at the latest.
const CORDON_SHOWS_WITHIN: Duration = Duration::from_millis(100);

/// How often the node is looked at meanwhile.
const LOOKS_EVERY: Duration = Duration::from_millis(5);

/// How many evictions wait for a cordon at once; beyond that they are answered as things are shown.
const WAIT_AT_ONCE: usize = 64;

/// Looks things up for reviews.
pub struct Lookout {
    cache: Arc<ClusterCache>,
    waiting: Semaphore,
    patience: Mutex<Patience>,
    classes: Classes,
    known: Mutex<Option<Arc<Known>>>,
}

/// The ledger, and the budgets that claims in it need.
#[derive(Debug)]
pub struct Known {
    /// The ledger; one that does not exist is empty.
    pub ledger: Ledger,
    /// Budgets that its claims need or hold.
    pub facts: Facts,
    resource_version: Option<ResourceVersion>,
    read: Instant,
}

/// What was seen of a pod.
#[derive(Debug)]
pub enum Seen {
    /// Nothing can be concluded.
    Unsynced,
    /// There is no such pod, or another of its name.
    UnknownPod,
    /// This.
    Pod(Box<Scene>),
}

impl Lookout {
    /// Looks into this cache.
    pub fn new(cache: Arc<ClusterCache>) -> Self {
        Self {
            cache,
            waiting: Semaphore::new(WAIT_AT_ONCE),
            patience: Mutex::default(),
            classes: Classes::default(),
            known: Mutex::default(),
        }
    }

    /// The pod of a review, with its node and budgets.
    pub fn look(&self, review: &EvictionReview, policy: &Policy, now: Timestamp, instant: Instant) -> Seen {
        if !self.cache.is_fresh() {
            return Seen::Unsynced;
        }
        let found = self.cache.pod(&review.pod.namespace, &review.pod.name);
        let is_meant = |pod: &Arc<PodFacts>| review.pod_uid.as_ref().is_none_or(|uid| *uid == pod.uid);
        let Some(pod) = found.filter(is_meant) else {
            return Seen::UnknownPod;
        };
        let standing = standing(&pod);
        let place = self.place(&pod, policy, instant);
        let covering = match standing {
            Standing::Counts => self.covering(&pod, now),
            Standing::Mirror | Standing::SkipsBudgets | Standing::Unready => Covering::Nothing,
        };
        let needs_no_disruption = self.is_asked_about(&pod, place.as_ref(), &covering)
            && self
                .classes
                .needs_no_disruption(&pod.uid, &self.cache, policy, now, instant);
        Seen::Pod(Box::new(Scene {
            uid: pod.uid.clone(),
            standing,
            opted_out: pod.opt_out.map(|(opt_out, _)| opt_out),
            place,
            covering,
            needs_no_disruption,
            refuse_opt_out: policy.auto.refuse_opt_out,
        }))
    }

    /// Whether the claim of the pod's node waits for disruptions of the pod's budget, and so perhaps for one for this pod.
    fn is_asked_about(&self, pod: &PodFacts, place: Option<&Place>, covering: &Covering) -> bool {
        let (Some(place), Covering::One(budget), LedgerState::Present(ledger)) = (place, covering, self.cache.ledger())
        else {
            return false;
        };
        let claim = ledger.ledger.claim(place.uid.as_str());
        claim.is_some_and(|claim| claim.needs_of(&budget.key) && !claim.has_disruption(pod.uid.as_str()))
    }

    /// Waits a moment where it matters whether the eviction comes ahead of its node's cordon: it would take the last disruption of
    /// its budget, beside the queue of drains, and two nodes that are drained at once would each have what the other needs.
    pub async fn await_cordon(&self, review: &EvictionReview, policy: &Policy, now: Timestamp) {
        let Ok(_waiting) = self.waiting.try_acquire() else {
            return;
        };
        let until = time::Instant::now() + CORDON_SHOWS_WITHIN;
        while self.would_take_the_last_disruption_of_a_running_node(review, policy, now) && time::Instant::now() < until
        {
            time::sleep(LOOKS_EVERY).await;
        }
    }

    fn would_take_the_last_disruption_of_a_running_node(
        &self,
        review: &EvictionReview,
        policy: &Policy,
        now: Timestamp,
    ) -> bool {
        let Seen::Pod(scene) = self.look(review, policy, now, Instant::now()) else {
            return false;
        };
        let Some(place) = &scene.place else { return false };
        let Covering::One(budget) = &scene.covering else {
            return false;
        };
        place.auto && !place.cordoned && budget.disruptions_allowed == 1 && !self.has_claim(&place.uid)
    }

    fn place(&self, pod: &PodFacts, policy: &Policy, now: Instant) -> Option<Place> {
        let node = self.cache.node(pod.node.as_ref()?.as_str())?;
        let is_selected = policy.node_selector.matches(&node.labels);
        // A pod that belongs to its node is nothing that a drain evicts.
        let auto = policy.auto.enabled && is_selected && !pod.is_daemon();
        let cordoned = node.is_cordoned();
        Some(Place {
            patience_is_over: auto && cordoned && self.patience_is_over(&node, now),
            name: node.name.clone(),
            uid: node.uid.clone(),
            cordoned,
            auto,
        })
    }

    /// Whether the drain of a node has been without a claim for too long.
    fn patience_is_over(&self, node: &NodeFacts, now: Instant) -> bool {
        let has_claim = self.has_claim(&node.uid);
        let mut patience = self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        if has_claim {
            patience.planned(&node.uid);
            return false;
        }
        patience.is_over(&node.uid, now)
    }

    fn has_claim(&self, node: &NodeUid) -> bool {
        match self.cache.ledger() {
            LedgerState::Absent => false,
            LedgerState::Present(ledger) => ledger.ledger.claim(node.as_str()).is_some(),
        }
    }

    fn covering(&self, pod: &PodFacts, now: Timestamp) -> Covering {
        let budgets = self.cache.budgets_of(pod);
        match budgets.as_slice() {
            [] => Covering::Nothing,
            [one] => self
                .cache
                .budget_facts(&one.view.key, now)
                .map_or(Covering::Nothing, Covering::One),
            _ => Covering::Several,
        }
    }

    /// The ledger as it stands, with facts that are a moment old at most.
    pub fn ledger(&self, now: Timestamp, instant: Instant) -> Arc<Known> {
        let state = self.cache.ledger();
        let resource_version = match &state {
            LedgerState::Absent => None,
            LedgerState::Present(ledger) => Some(&ledger.resource_version),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_ref()
            && known.resource_version.as_ref() == resource_version
            && instant.saturating_duration_since(known.read) < FRESH
        {
            return Arc::clone(known);
        }
        let ledger = state.ledger();
        let read = Arc::new(Known {
            facts: self.cache.facts_of_claims(&ledger, now),
            ledger,
            resource_version: resource_version.cloned(),
            read: instant,
        });
        *known = Some(Arc::clone(&read));
        read
    }
}

fn standing(pod: &PodFacts) -> Standing {
    if pod.mirror {
        Standing::Mirror
    } else if pod.skips_budgets() {
        Standing::SkipsBudgets
    } else if pod.ready {
        Standing::Counts
    } else {
        Standing::Unready
    }
}

#[cfg(test)]
mod tests;
