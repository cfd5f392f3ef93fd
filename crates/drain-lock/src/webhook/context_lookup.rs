//! What the watches know of an eviction's pod, its node and its budgets. One node's worth of work, whatever the size of
//! the cluster, but for the [classification](super::movable_pods) that evictions under a waiting claim ask for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nodeward_core::drain_request::{DrainRequest, JoinOutcome};
use nodeward_core::id::{NodeUid, PodKey, PodUid, ResourceVersion};
use nodeward_core::ledger::{Facts, Ledger, Reservations};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time;

use crate::node_group::groups_of;
use crate::observe::ClusterCache;
use crate::plan::need::{Class, last_unguarded, opt_out};
use crate::policy::Policy;
use crate::snapshot::{LedgerFacts, NodeFacts, PodFacts};

use super::decide::{EvictionContext, LookupResult, MatchingBudgets, NodeContext, PodState, Surge, is_left};
use super::movable_pods::MovablePods;
use super::planning_timeout::PlanningTimeouts;
use super::review::EvictionReview;

/// For how long the facts of the budgets in the ledger serve. They tell what is reserved, and what a claim waits for; the
/// budget of the pod itself is looked up each time.
const FRESH: Duration = Duration::from_millis(50);

/// A drainer cordons and evicts within milliseconds, and the watches show the cordon a moment later: by then at the latest.
pub const CORDON_SHOWS_WITHIN: Duration = Duration::from_millis(100);

/// How often the node is looked at meanwhile.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(5);

/// How many evictions wait for a cordon at once; beyond that they are answered as things are shown.
const WAIT_AT_ONCE: usize = 64;

/// Looks things up for reviews.
pub struct ContextLookup {
    cache: Arc<ClusterCache>,
    waiting: Semaphore,
    planning_timeouts: Mutex<PlanningTimeouts>,
    movable_pods: Arc<MovablePods>,
    view: Mutex<Option<Arc<LedgerView>>>,
    /// Held by who makes the next view.
    refreshing: Mutex<()>,
}

/// The ledger, and the budgets that claims in it need.
#[derive(Debug)]
pub struct LedgerView {
    /// The ledger; one that does not exist is empty.
    pub ledger: Ledger,
    /// Budgets that its claims need or hold.
    pub facts: Facts,
    /// What those claims keep from others.
    pub reservations: Reservations,
    /// Whether it is there and cannot be read.
    pub is_unreadable: bool,
    resource_version: Option<ResourceVersion>,
    read: Instant,
}

impl ContextLookup {
    /// Looks into this cache.
    pub fn new(cache: Arc<ClusterCache>) -> Self {
        Self {
            cache,
            waiting: Semaphore::new(WAIT_AT_ONCE),
            planning_timeouts: Mutex::default(),
            movable_pods: Arc::default(),
            view: Mutex::default(),
            refreshing: Mutex::default(),
        }
    }

    /// The pod of a review, with its node and budgets.
    pub fn look_up(&self, review: &EvictionReview, policy: &Policy, now: Timestamp, instant: Instant) -> LookupResult {
        if !self.cache.is_fresh() {
            return LookupResult::Unsynced;
        }
        let found = self.cache.pod(&review.pod.namespace, &review.pod.name);
        let is_meant = |pod: &Arc<PodFacts>| review.pod_uid.as_ref().is_none_or(|uid| *uid == pod.uid);
        let Some(pod) = found.filter(is_meant) else {
            return LookupResult::UnknownPod;
        };
        let state = pod_state(&pod);
        let facts = pod.node.as_ref().and_then(|node| self.cache.node(node.as_str()));
        let opted_out = opt_out(&pod, facts.as_deref(), now).map(|(opt_out, _)| opt_out);
        let node = facts.as_deref().map(|node| self.node(&pod, node, policy, now, instant));
        let budgets = match state {
            PodState::Pending | PodState::Unready | PodState::Counts => self.budgets(&pod, now),
            PodState::Mirror | PodState::SkipsBudgets => MatchingBudgets::None,
        };
        let is_asked_about = self.is_asked_about(&pod.uid, node.as_ref(), &budgets);
        let is_movable = is_asked_about && self.movable_pods.contains(&pod.uid, instant);
        LookupResult::Found(Box::new(EvictionContext {
            uid: pod.uid.clone(),
            state,
            opted_out,
            surge: self.surge(&pod, now),
            another_goes_last: node.as_ref().is_some_and(|node| {
                is_movable && self.movable_pods.are_beside_held(&node.uid, instant)
                    || self.another_goes_last(&pod, node, now)
            }),
            node,
            budgets,
            is_movable,
            always_allowed: state.is_starting() && self.is_always_allowed(&pod),
            refuse_opt_out: policy.auto.refuse_opt_out,
        }))
    }

    fn surge(&self, pod: &PodFacts, now: Timestamp) -> Option<Surge> {
        let surging = self.cache.surging(pod, now)?;
        let until = surging.surge.as_ref()?.until;
        Some(Surge {
            pod: surging.key.clone(),
            until,
        })
    }

    /// Whether the watches show a drain of the node.
    pub fn has_drain(&self, node: &str) -> bool {
        self.cache.drain(node).is_some()
    }

    /// Takes a drain that would be requested for one that is there, in an audit.
    pub fn keep_drain(&self, request: &DrainRequest, now: Timestamp) -> Option<JoinOutcome> {
        self.cache.keep_drain(request, now)
    }

    /// Whether the pod's budget lets it go while it is not Ready.
    fn is_always_allowed(&self, pod: &PodFacts) -> bool {
        let budgets = self.cache.budgets_of(pod);
        budgets.iter().any(|budget| budget.view.always_lets_unready_go())
    }

    /// Whether the claim of the pod's node has no disruption for it by name, so that it matters whether it is movable.
    fn is_asked_about(&self, pod: &PodUid, node: Option<&NodeContext>, budgets: &MatchingBudgets) -> bool {
        let (Some(node), MatchingBudgets::One(_), Some(ledger)) = (node, budgets, self.cache.ledger()) else {
            return false;
        };
        let claim = ledger.ledger.claim(node.uid.as_str());
        claim.is_some_and(|claim| !claim.has_disruption(pod.as_str()))
    }

    /// Has the pods of draining nodes classified, where that decides on this eviction.
    pub async fn classify_pods(&self, review: &EvictionReview, policy: &Policy, now: Timestamp) {
        if let Some(node) = self.depends_on_classes_of(review, policy, now, Instant::now()) {
            self.movable_pods.refresh(&node, &self.cache, policy).await;
        }
    }

    /// The same at once, on this thread.
    pub fn classify_pods_now(&self, review: &EvictionReview, policy: &Policy, now: Timestamp, instant: Instant) {
        if let Some(node) = self.depends_on_classes_of(review, policy, now, instant) {
            self.movable_pods.classify(&node, &self.cache, policy, now, instant);
        }
    }

    /// The node of whose pods it matters which are movable.
    fn depends_on_classes_of(
        &self,
        review: &EvictionReview,
        policy: &Policy,
        now: Timestamp,
        instant: Instant,
    ) -> Option<NodeUid> {
        let found = self.look_up(review, policy, now, instant);
        let context = found.context()?;
        let node = context.node.as_ref()?;
        let is_asked_about = self.is_asked_about(&context.uid, Some(node), &context.budgets);
        is_asked_about.then(|| node.uid.clone())
    }

    /// Waits a moment where it matters whether the eviction comes ahead of its node's cordon: it would take the last disruption of
    /// its budget, or a pod that is still starting, beside the queue of drains, and two nodes that are drained at once would
    /// each have what the other needs; or it would empty the node around pods that stay on it.
    pub async fn await_cordon(&self, review: &EvictionReview, policy: &Policy, now: Timestamp) {
        let Ok(_waiting) = self.waiting.try_acquire() else {
            return;
        };
        let until = time::Instant::now() + CORDON_SHOWS_WITHIN;
        while self.depends_on_cordon(review, policy, now, Instant::now()) && time::Instant::now() < until {
            time::sleep(LOOKUP_INTERVAL).await;
        }
    }

    /// Whether the answer is another one if the node is cordoned, and no watch shows that it is. Under a claim that drains it is not;
    /// what a drain has left, a cordon makes the begin of another one.
    pub fn depends_on_cordon(
        &self,
        review: &EvictionReview,
        policy: &Policy,
        now: Timestamp,
        instant: Instant,
    ) -> bool {
        let found = self.look_up(review, policy, now, instant);
        let Some((context, node)) = found
            .context()
            .and_then(|context| Some((context, context.node.as_ref()?)))
        else {
            return false;
        };
        let is_last = match &context.budgets {
            MatchingBudgets::One(budget) => budget.disruptions_allowed == 1 || context.state.is_starting(),
            MatchingBudgets::None | MatchingBudgets::Several => false,
        };
        node.auto && !node.cordoned && (is_last || node.retains.is_some()) && !self.has_open_claim(&node.uid)
    }

    fn node(&self, pod: &PodFacts, node: &NodeFacts, policy: &Policy, now: Timestamp, instant: Instant) -> NodeContext {
        let is_selected = policy.node_selector.matches(&node.labels);
        // A pod that belongs to its node is nothing that a drain evicts.
        let auto = policy.auto.enabled && is_selected && !pod.is_daemon();
        let cordoned = node.is_cordoned();
        NodeContext {
            is_being_removed: node.is_being_removed(),
            retains: (!node.is_being_removed() && (auto || self.has_claim(&node.uid)))
                .then(|| self.retained(pod, node, now))
                .flatten(),
            planning_timed_out: self.has_planning_timed_out(&node.uid, instant),
            has_drain: self.drain_goes_on(node),
            name: node.name.clone(),
            uid: node.uid.clone(),
            cordoned,
            auto,
            in_node_group: !groups_of(&policy.node_groups, node).is_empty(),
        }
    }

    /// A pod that stays on the node through its drain, and that a budget guards.
    fn retained(&self, evicted: &PodFacts, node: &NodeFacts, now: Timestamp) -> Option<PodKey> {
        let drain = self.cache.drain(node.name.as_str());
        if evicted.is_daemon() || drain.as_ref().is_some_and(|drain| drain.spec.dry_run) {
            return None;
        }
        let pods = self.cache.pods_on(node.name.as_str());
        let class = |pod: &PodFacts| Class::in_drain(pod, Some(node), drain.as_deref(), now);
        let mut retained = pods.iter().filter(|pod| matches!(class(pod), Some(Class::Retained(_))));
        let guarded = retained.find(|pod| !self.cache.budgets_of(pod).is_empty());
        guarded.map(|pod| pod.key.clone())
    }

    /// Whether another pod of the node goes last of those that no budget guards.
    fn another_goes_last(&self, evicted: &PodFacts, node: &NodeContext, now: Timestamp) -> bool {
        let is_asked_about = node.cordoned && (node.retains.is_some() || node.in_node_group);
        let Some(facts) = self.cache.node(node.name.as_str()).filter(|_| is_asked_about) else {
            return false;
        };
        let drain = self.cache.drain(node.name.as_str());
        let pods = self.cache.pods_on(node.name.as_str());
        let is_guarded = |pod: &PodFacts| !self.cache.budgets_of(pod).is_empty();
        let last = last_unguarded(&pods, &facts, drain.as_deref(), now, is_guarded);
        last.is_some_and(|last| *last != evicted.uid)
    }

    /// Notes that a drainer waits for the plan of the node's drain.
    pub fn await_plan(&self, node: &NodeUid, now: Instant) {
        if !self.has_claim(node) {
            self.planning_timeouts.lock().note(node, now);
        }
    }

    /// Whether the drain of a node has been without a claim for too long.
    fn has_planning_timed_out(&self, node: &NodeUid, now: Instant) -> bool {
        let has_claim = self.has_claim(node);
        let mut timeouts = self.planning_timeouts.lock();
        if has_claim {
            timeouts.planned(node);
        }
        timeouts.is_over(node, now)
    }

    /// Whether somebody has asked for the node's drain, which has not come to its end.
    fn drain_goes_on(&self, node: &NodeFacts) -> bool {
        let drain = self.cache.drain(node.name.as_str());
        drain.is_some_and(|drain| {
            let is_of_node = drain
                .spec
                .node_uid
                .as_deref()
                .is_none_or(|uid| uid == node.uid.as_str());
            is_of_node && !drain.spec.dry_run && drain.metadata.deletion_timestamp.is_none()
        })
    }

    fn has_claim(&self, node: &NodeUid) -> bool {
        let ledger = self.cache.ledger();
        ledger.is_some_and(|facts| facts.ledger.claim(node.as_str()).is_some())
    }

    /// Whether the node has a claim, and not what a drain has left of one.
    fn has_open_claim(&self, node: &NodeUid) -> bool {
        let ledger = self.cache.ledger();
        let claim = ledger.as_deref().and_then(|facts| facts.ledger.claim(node.as_str()));
        claim.is_some_and(|claim| !is_left(claim))
    }

    fn budgets(&self, pod: &PodFacts, now: Timestamp) -> MatchingBudgets {
        match self.cache.budgets_of(pod).as_slice() {
            [] => MatchingBudgets::None,
            [one] => {
                let facts = self.cache.budget_facts(&one.view.key, now);
                facts.map_or(MatchingBudgets::None, MatchingBudgets::One)
            }
            // While Ceph's operator closes budgets, an OSD may be in two for a moment, which the API answers with a 500: the
            // end of `kubectl drain`. The closed one is to answer.
            several => match several.iter().find(|budget| budget.is_closed_by_ceph()) {
                Some(closed) => {
                    let facts = self.cache.budget_facts(&closed.view.key, now);
                    facts.map_or(MatchingBudgets::Several, MatchingBudgets::One)
                }
                None => MatchingBudgets::Several,
            },
        }
    }

    /// The ledger as it stands, with facts that are a moment old at most; a moment more while somebody looks at them again.
    pub fn ledger_view(&self, now: Timestamp, instant: Instant) -> Arc<LedgerView> {
        let state = self.cache.ledger();
        let resource_version = state.as_ref().map(|facts| &facts.resource_version);
        let known = || {
            let view = self.view.lock().clone();
            view.filter(|view| view.resource_version.as_ref() == resource_version)
        };
        let is_fresh = |view: &Arc<LedgerView>| instant.saturating_duration_since(view.read) < FRESH;
        let before = known();
        if let Some(view) = before.as_ref().filter(|view| is_fresh(view)) {
            return Arc::clone(view);
        }
        let _refreshing = match (self.refreshing.try_lock(), before) {
            (Some(refreshing), _) => refreshing,
            (None, Some(view)) => return view,
            (None, None) => self.refreshing.lock(),
        };
        if let Some(view) = known().filter(is_fresh) {
            return view;
        }
        let ledger = LedgerFacts::content(state.as_deref());
        let facts = self.cache.facts_of_claims(&ledger, now);
        let read = Arc::new(LedgerView {
            reservations: Reservations::of_all(&ledger, &facts),
            facts,
            ledger,
            is_unreadable: state.as_ref().is_some_and(|facts| facts.unreadable.is_some()),
            resource_version: resource_version.cloned(),
            read: instant,
        });
        *self.view.lock() = Some(Arc::clone(&read));
        read
    }
}

fn pod_state(pod: &PodFacts) -> PodState {
    if pod.mirror {
        PodState::Mirror
    } else if pod.skips_budgets() {
        if pod.deletion.is_none() && !pod.is_finished() && pod.node.is_some() {
            PodState::Pending
        } else {
            PodState::SkipsBudgets
        }
    } else if pod.ready {
        PodState::Counts
    } else {
        PodState::Unready
    }
}

#[cfg(test)]
mod tests;
