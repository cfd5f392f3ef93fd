//! What this process has done lately and no watch shows yet. It only saves work: what safety rests on is read from the API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::{BudgetKey, NodeName, NodeUid, PodUid};
use nodeward_core::ledger::{Leaderless, Obstacle};

use super::PodFacts;

/// How often the owner of a pod is asked to move it.
pub const ASK_OWNER_EVERY: SignedDuration = SignedDuration::from_mins(1);

/// How long after it was asked an owner may have moved a pod for that.
const OWNER_ACTS_WITHIN: SignedDuration = SignedDuration::from_mins(10);

/// Budgets whose status contradicts their pods, and those that were touched lately.
#[derive(Debug, Clone, Default)]
pub struct StaleBudgets {
    pub contradictions: BTreeMap<BudgetKey, Contradiction>,
    /// Their last touches.
    pub touched: BTreeMap<BudgetKey, Touched>,
}

/// The last touch of a budget.
#[derive(Debug, Clone, Copy)]
pub struct Touched {
    /// When it was touched.
    pub at: Timestamp,
    /// For how long it is not touched again if that does not help.
    pub interval: SignedDuration,
}

/// Which counts differ, and since when.
#[derive(Debug, Clone, Copy)]
pub struct Contradiction {
    /// `status.currentHealthy`.
    pub told: i32,
    /// Healthy pods by the pod cache.
    pub counted: i32,
    /// Since when these two have differed.
    pub since: Timestamp,
}

/// The pods that are on their way out on a node, and when one of them was last found to be gone.
#[derive(Debug, Clone, Default)]
pub struct LeavingPods {
    pods: BTreeSet<PodUid>,
    pub last_end: Option<Timestamp>,
}

impl LeavingPods {
    /// The same at `now`, when these are on their way out.
    #[must_use]
    pub fn updated(&self, pods: BTreeSet<PodUid>, now: Timestamp) -> Self {
        let has_one_ended = !self.pods.is_subset(&pods);
        let last_end = if has_one_ended { Some(now) } else { self.last_end };
        Self { pods, last_end }
    }
}

/// What this process has tried, as far as plans read it.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    evictions: BTreeMap<PodUid, Attempt>,
    refused_grants: BTreeMap<NodeUid, RefusedGrant>,
    doubted: BTreeMap<NodeUid, Doubted>,
    /// By what was to be written, with the API server's words. The same write would be refused again.
    pub refused_writes: BTreeMap<WriteTarget, String>,
    /// Pods whose owners were asked to move them, and when.
    owners_asked: BTreeMap<PodUid, Timestamp>,
    departed: BTreeMap<PodUid, (Arc<PodFacts>, Timestamp)>,
    /// Budgets whose pods' owners were asked for their scale, until when they are not asked again.
    scales: BTreeMap<BudgetKey, Timestamp>,
    /// The namespace of the node leases is not there: nobody uses them.
    pub leases_absent_until: Option<Timestamp>,
    /// Budgets whose status contradicts their pods.
    pub stale_budgets: StaleBudgets,
    /// The pods that leave each node that has a drain.
    pub leaving: BTreeMap<NodeName, LeavingPods>,
    /// By the UID of its node, the pods that are down once they leave, as the last plan had them.
    pub to_be_down: BTreeMap<NodeUid, Vec<PodToBeDown>>,
    /// By the UID of its node, since when a drain has had an obstacle, as the last plan had it.
    pub obstructed: BTreeMap<NodeUid, Timestamp>,
    /// When the first plan of this term was made: what happened before, nobody has seen.
    pub first_plan_at: Option<Timestamp>,
    /// Long times in which nobody planned: nobody led before this process did, it could not, or a person had paused it.
    pub leaderless: Vec<Leaderless>,
}

/// Something of a drain that is written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteTarget {
    Ledger,
    Node(NodeUid),
}

/// The last attempt at a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Attempt {
    /// Whether the server has accepted it, or may have.
    may_have_gone: bool,
    /// Not again before then.
    not_before: Timestamp,
}

/// A grant that fresh reads refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedGrant {
    /// Why.
    pub obstacles: Vec<Obstacle>,
    /// Not again before then.
    pub not_before: Timestamp,
}

/// A claim of which nothing could be written, for what that rested on could not be read, or was not so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubted {
    /// What was in the way.
    pub why: String,
    /// Not again before then.
    pub not_before: Timestamp,
}

/// A healthy pod that is down once it leaves, and its budgets, which nobody can tell once it is gone.
#[derive(Debug, Clone)]
pub struct PodToBeDown {
    pub pod: Arc<PodFacts>,
    pub budgets: Vec<BudgetKey>,
    /// Another one replaces it elsewhere; else nothing does before its drain is over.
    pub moves: bool,
}

impl Memory {
    /// Of whoever plans for the first time.
    pub fn of_first_plan(now: Timestamp) -> Self {
        Self {
            first_plan_at: Some(now),
            ..Self::default()
        }
    }

    /// Pods whose eviction was asked for, and perhaps accepted.
    pub fn asked_to_go(&self, now: Timestamp) -> impl Iterator<Item = &PodUid> {
        self.evictions
            .iter()
            .filter(move |(_, attempt)| attempt.may_have_gone && now < attempt.not_before)
            .map(|(uid, _)| uid)
    }

    /// Whether this pod's eviction was asked for, and perhaps accepted.
    pub fn is_asked_to_go(&self, pod: &str, now: Timestamp) -> bool {
        self.evictions
            .get(pod)
            .is_some_and(|attempt| attempt.may_have_gone && now < attempt.not_before)
    }

    /// Until when the pod is left alone after its last attempt.
    pub fn not_before(&self, pod: &PodUid, now: Timestamp) -> Option<Timestamp> {
        self.evictions
            .get(pod)
            .map(|attempt| attempt.not_before)
            .filter(|until| now < *until)
    }

    /// When the next pod is no longer left alone, or its owner is asked again: no watch tells of that.
    pub fn next_attempt(&self, now: Timestamp) -> Option<Timestamp> {
        let attempts = self.evictions.values().map(|attempt| attempt.not_before);
        let asked = self
            .owners_asked
            .values()
            .map(|asked| saturating_add(*asked, ASK_OWNER_EVERY));
        attempts.chain(asked).filter(|until| now < *until).min()
    }

    /// Whether the pod's owner was asked to move it, and may be about to.
    pub fn was_owner_asked(&self, pod: &str) -> bool {
        self.owners_asked.contains_key(pod)
    }

    /// Whether the pod's owner is to be asked.
    pub fn is_owner_to_be_asked(&self, pod: &PodUid, now: Timestamp) -> bool {
        let asked = self.owners_asked.get(pod);
        asked.is_none_or(|asked| saturating_add(*asked, ASK_OWNER_EVERY) <= now) && self.not_before(pod, now).is_none()
    }

    pub fn note_owner_asked(&mut self, pod: PodUid, now: Timestamp) {
        self.owners_asked.insert(pod, now);
    }

    /// The grant that fresh reads refused, while it is not tried again.
    pub fn refused_grant(&self, node: &str, now: Timestamp) -> Option<&RefusedGrant> {
        self.refused_grants.get(node).filter(|refused| now < refused.not_before)
    }

    /// Claims that are left as they are until what their changes rest on is read again.
    pub fn doubted(&self, now: Timestamp) -> impl Iterator<Item = (&NodeUid, &Doubted)> {
        self.doubted.iter().filter(move |(_, doubted)| now < doubted.not_before)
    }

    /// Movable pods that were seen on their way out a moment ago: between the end of a pod and its replacement nothing
    /// tells that one will come.
    pub fn departed(&self, now: Timestamp) -> impl Iterator<Item = &Arc<PodFacts>> {
        let pods = self.departed.values();
        pods.filter(move |(_, until)| now < *until).map(|(pod, _)| pod)
    }

    /// Until when the scale of a budget's pods' owners is not read again.
    pub fn scale_not_before(&self, budget: &BudgetKey, now: Timestamp) -> Option<Timestamp> {
        self.scales.get(budget).copied().filter(|until| now < *until)
    }

    pub fn note_scale_read(&mut self, budget: BudgetKey, not_before: Timestamp) {
        self.scales.insert(budget, not_before);
    }

    /// Notes movable pods that are on their way out.
    pub fn note_departing(&mut self, pods: Vec<Arc<PodFacts>>, until: Timestamp) {
        let noted = pods.into_iter().map(|pod| (pod.uid.clone(), (pod, until)));
        self.departed.extend(noted);
    }

    /// The wall clock has gone back by so much, and with it all that waits.
    pub fn step_back(&mut self, by: SignedDuration) {
        let evictions = self.evictions.values_mut().map(|attempt| &mut attempt.not_before);
        let grants = self.refused_grants.values_mut().map(|refused| &mut refused.not_before);
        let doubted = self.doubted.values_mut().map(|doubted| &mut doubted.not_before);
        let departed = self.departed.values_mut().map(|(_, until)| until);
        let scales = self.scales.values_mut();
        let ends = self.leaving.values_mut().filter_map(|pods| pods.last_end.as_mut());
        for until in evictions
            .chain(grants)
            .chain(doubted)
            .chain(departed)
            .chain(scales)
            .chain(ends)
            .chain(self.owners_asked.values_mut())
            .chain(&mut self.leases_absent_until)
            .chain(&mut self.first_plan_at)
            .chain(self.obstructed.values_mut())
        {
            *until = saturating_add(*until, -by);
        }
    }

    /// Forgets what has passed.
    pub fn forget_past(&mut self, now: Timestamp) {
        self.evictions.retain(|_, attempt| now < attempt.not_before);
        self.refused_grants.retain(|_, refused| now < refused.not_before);
        self.doubted.retain(|_, doubted| now < doubted.not_before);
        self.owners_asked
            .retain(|_, asked| now < saturating_add(*asked, OWNER_ACTS_WITHIN));
        self.departed.retain(|_, (_, until)| now < *until);
        self.scales.retain(|_, until| now < *until);
        if self.leases_absent_until.is_some_and(|until| until <= now) {
            self.leases_absent_until = None;
        }
    }

    /// Notes an eviction: the next plan leaves the pod alone, and its budget's disruption.
    pub fn note_eviction(&mut self, pod: PodUid, may_have_gone: bool, not_before: Timestamp) {
        self.evictions.insert(
            pod,
            Attempt {
                may_have_gone,
                not_before,
            },
        );
    }

    pub fn note_refused_grant(&mut self, node: NodeUid, obstacles: Vec<Obstacle>, not_before: Timestamp) {
        self.refused_grants.insert(node, RefusedGrant { obstacles, not_before });
    }

    pub fn note_doubted(&mut self, node: NodeUid, why: String, not_before: Timestamp) {
        self.doubted.insert(node, Doubted { why, not_before });
    }

    /// Notes that a claim was granted.
    pub fn note_grant(&mut self, node: &NodeUid) {
        self.refused_grants.remove(node);
    }
}
