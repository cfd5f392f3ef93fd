//! What becomes of each pod of a draining node, and which disruptions of which budgets the drain needs for it. Pure.
//!
//! A claim covers each *held* pod, which stays down, or must not be counted on, until its node is back; and of each budget
//! one disruption more for all *movable* pods together, which follow one another on it. With these a node can be emptied,
//! whatever other drains do.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::node_drain::{BlockedBy, Evictor, NodeDrain};
use nodeward_api::reason::LockReason;
use nodeward_core::consent::Consents;
use nodeward_core::deadline::{RequeueAt, is_due, saturating_add};
use nodeward_core::id::{BudgetKey, NodeName, PodUid};
use nodeward_core::ledger::{Claim, Disruptions};
use nodeward_core::node::{UNSCHEDULABLE_TAINT, UNSCHEDULABLE_TAINT_EFFECT};
use nodeward_core::opt_out::OptOut;
use nodeward_scheduling::{Cordons, Placement, PlacementError};

use crate::policy::Policy;
use crate::snapshot::{NodeFacts, PodFacts, Snapshot};

use super::disruptions::{Asking, Excess, needed};
use super::intent::refused_again;
use super::obstacles::{Obstacles, never_allowing, problems};
use super::recovery::succeeded_on_node;

/// What becomes of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// No drain concerns it.
    Ignored(Ignored),
    /// It has ended.
    Finished,
    WaitsCompleted,
    /// It leaves under the stock budget, and comes back elsewhere.
    Movable,
    /// It leaves under the claim, and stays down until the node is back; for this reason.
    Held(LockReason),
    /// Its budget never lets it go: it leaves once whoever runs it moves it, for which the drain asks.
    LeftToOwner,
    /// It stays on the node, and is down while that is; for this reason.
    Retained(LockReason),
}

/// Why no drain concerns a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignored {
    /// A DaemonSet would make it again on the same node.
    DaemonSet,
    /// It is a static pod of the kubelet.
    Mirror,
}

impl Class {
    /// What becomes of a pod by what it says itself, or its node's rules of it; `None`: it leaves, and the room that there is
    /// decides how.
    fn by_itself(pod: &PodFacts, node: Option<&NodeFacts>, now: Timestamp) -> Option<Self> {
        if pod.mirror {
            return Some(Self::Ignored(Ignored::Mirror));
        }
        if pod.is_daemon() {
            return Some(Self::Ignored(Ignored::DaemonSet));
        }
        if pod.is_finished() {
            return Some(Self::Finished);
        }
        if pod.deletion.is_some() {
            // It is leaving, whatever it asked for.
            return Some(Self::Movable);
        }
        match opt_out(pod, node, now) {
            Some((OptOut::Skip, _)) => Some(Self::Retained(LockReason::OptedOut)),
            Some((OptOut::WaitCompleted | OptOut::Unknown, _)) => Some(Self::WaitsCompleted),
            // Nobody makes it again, here or elsewhere: waiting for it would have no end.
            None => pod.owner.is_none().then_some(Self::Movable),
        }
    }

    /// The same on its node, if that is known, with this drain, which may have put it there.
    pub fn in_drain(
        pod: &PodFacts,
        node: Option<&NodeFacts>,
        drain: Option<&NodeDrain>,
        now: Timestamp,
    ) -> Option<Self> {
        let has_returned = || node.is_some_and(|node| has_returned(pod, node, drain));
        let returned = || has_returned().then_some(Self::Retained(LockReason::ToleratesCordon));
        Self::by_itself(pod, node, now).or_else(returned)
    }
}

/// What the pod asks drains to do with it, or else a rule of its node, and the text that says where, or what is wrong with it.
pub fn opt_out(pod: &PodFacts, node: Option<&NodeFacts>, now: Timestamp) -> Option<(OptOut, String)> {
    let of_pod = pod.opt_out(now).map(|(opt_out, source)| {
        let text = format!("{} of pod {} takes {}", source.key(), pod.key, source.values());
        (opt_out, text)
    });
    of_pod.or_else(|| node?.drain_rules.as_ref()?.opt_out(pod))
}

/// Whether it was made in the drain of its node, after the cordon, and put there by its toleration of that: so would be each
/// that its controller makes in its place, and to evict them all would never end.
fn has_returned(pod: &PodFacts, node: &NodeFacts, drain: Option<&NodeDrain>) -> bool {
    let asked = drain.and_then(|drain| drain.metadata.creation_timestamp.as_ref());
    let cordon = node.taint(UNSCHEDULABLE_TAINT, Some(UNSCHEDULABLE_TAINT_EFFECT));
    cordon.zip(asked).is_some_and(|(cordon, asked)| {
        let began = cordon.time_added.map_or(asked.0, |added| added.max(asked.0));
        began < pod.created && cordon.tolerated_by(&pod.requirements.tolerations).is_some()
    })
}

/// Of the pods of a node that no budget guards, the one that its drainer is kept waiting with until the claim is granted: the one
/// with the smallest UID, for every replica and every moment the same. Drainers leave pods without a controller alone.
pub fn last_unguarded<'a>(
    pods: impl IntoIterator<Item = &'a Arc<PodFacts>>,
    node: &NodeFacts,
    drain: Option<&NodeDrain>,
    now: Timestamp,
    is_guarded: impl Fn(&PodFacts) -> bool,
) -> Option<&'a PodUid> {
    let leaves = |pod: &&Arc<PodFacts>| Class::in_drain(pod, Some(node), drain, now).is_none();
    let unguarded = pods.into_iter().filter(|pod| !is_guarded(pod));
    unguarded.filter(leaves).map(|pod| &pod.uid).min()
}

/// Whether a movable pod under a budget is the last to leave, which waits for the claim: no pod leaves under the claim alone, and none
/// that no budget guards waits in its place.
fn goes_last(pods: &[ClassifiedPod], node: &NodeFacts, drain: &NodeDrain, snapshot: &Snapshot, now: Timestamp) -> bool {
    let is_guarded = |pod: &PodFacts| !snapshot.budgets_of(pod).is_empty();
    let last = || last_unguarded(snapshot.pods_of(&node.name), node, Some(drain), now, is_guarded);
    !pods.iter().any(|pod| matches!(pod.class, Class::Held(_))) && last().is_none()
}

/// Whether the drainer asked for other pods first, and was refused, since the claim stands where it does.
pub(super) fn is_refused_again(drain: &NodeDrain, claim: Option<&Claim>) -> bool {
    refused_again(drain) > claim.map(|claim| claim.since)
}

/// When pods of a cordoned node began to leave: with its cordon, or, where nobody knows that, with the request.
pub(super) fn began(node: &NodeFacts, drain: &NodeDrain) -> Option<Timestamp> {
    let cordon = node.taint(UNSCHEDULABLE_TAINT, Some(UNSCHEDULABLE_TAINT_EFFECT));
    let asked = drain.metadata.creation_timestamp.as_ref().map(|time| time.0);
    cordon.and_then(|cordon| cordon.time_added).or(asked)
}

/// The pods of a node, and what their drain needs.
#[derive(Debug, Clone, Default)]
pub struct NodeNeed {
    /// By name.
    pub pods: Vec<ClassifiedPod>,
    /// What its requesters have consented to.
    pub consents: Consents,
    /// The disruptions that it takes, by budget: one for each held and each retained pod, ready or not, and one for its movable
    /// pods.
    pub needs: Vec<Disruptions>,
    /// Budgets whose movable pods leave before the claim is asked for: the pods that stay leave no disruption for them.
    pub movable_first: BTreeSet<BudgetKey>,
    /// Budgets that can never spare as many disruptions as it takes.
    pub excesses: Vec<Excess>,
    /// Budgets of which more pods stay down than they can ever spare, only for the cordons of other drains.
    pub crowded_out: BTreeSet<BudgetKey>,
    /// What no other drain's end lifts.
    pub obstacles: Obstacles,
    /// What keeps the drain from ever ending, or a pod from staying, unless a person sees to it.
    pub problems: Vec<BlockedBy>,
    /// When a class changes by the passing of time alone.
    pub changes_at: Option<Timestamp>,
}

/// A pod, and what becomes of it.
#[derive(Debug, Clone)]
pub struct ClassifiedPod {
    pub pod: Arc<PodFacts>,
    pub class: Class,
    /// Why it is held, in words, where there is more to say than the reason.
    pub why: Option<String>,
}

/// The pods of a node by name, but first those of budgets that can spare fewer than are here: only places elsewhere, of which
/// there may be too few for all, let such a drain end.
fn by_excess<'a>(node: &NodeName, snapshot: &'a Snapshot) -> Vec<&'a Arc<PodFacts>> {
    let pods = snapshot.pods_of(node);
    let mut here: BTreeMap<&BudgetKey, i32> = BTreeMap::new();
    for key in pods.iter().flat_map(|pod| snapshot.budgets_of(pod)) {
        *here.entry(key).or_default() += 1;
    }
    let excess = |pod: &&Arc<PodFacts>| {
        let budgets = snapshot.budgets_of(pod).iter();
        let facts = budgets.filter_map(|key| snapshot.facts.get(key).zip(here.get(key)));
        facts
            .filter(|(budget, _)| budget.current)
            .map(|(budget, here)| here.saturating_sub(budget.ceiling()).max(0))
            .max()
    };
    let mut pods: Vec<_> = pods.iter().collect();
    pods.sort_by_cached_key(|pod| Reverse(excess(pod).unwrap_or_default()));
    pods
}

/// Works out what becomes of the pods of `node`. One that will not come back holds no pod and needs nothing: what it would wait
/// for never returns, and who takes it away makes room elsewhere. Movable pods take the places that they find from
/// `placement`: called for one node after another, the oldest drain first, no two of them share the last place. `cordons` tells
/// which pods find no room for other drains.
pub fn classify(
    node: &NodeFacts,
    snapshot: &Snapshot,
    cordons: Option<&Cordons<'_>>,
    placement: &mut Placement<'_>,
    policy: &Policy,
    now: Timestamp,
) -> NodeNeed {
    let drain = snapshot.drains.get(&node.name).map(Arc::as_ref);
    let mut need = NodeNeed {
        consents: consents(drain, policy),
        ..NodeNeed::default()
    };
    let asks_owners = drain.is_some_and(|drain| drain.spec.ask_owners && drain.spec.evict == Evictor::Nodeward);
    let is_left_to_owner =
        |pod: &PodFacts| asks_owners && pod.deletion.is_none() && never_allowing(pod, snapshot).is_some();
    let mut changes_at = RequeueAt::after(now);
    for pod in by_excess(&node.name, snapshot) {
        changes_at.note(pod.opt_outs.changes_at());
        let (class, why) = match Class::in_drain(pod, Some(node), drain, now) {
            Some(class) => {
                // The successor of a pod that keeps its name is only made when it has gone, and will need room.
                if class == Class::Movable && pod.owner().keeps_names() {
                    let _ = placement.place(pod, Some(&node.name));
                }
                (class, None)
            }
            None => match placement.place(pod, Some(&node.name)) {
                Err(error) => (Class::Held(held_reason(&error)), Some(error.to_string())),
                Ok(_) => match unschedulable_sibling(pod, snapshot, policy) {
                    Some((sibling, counts_from)) if counts_from <= now => {
                        let why = format!("pod {} has found no node", sibling.key);
                        (Class::Held(LockReason::Unschedulable), Some(why))
                    }
                    Some((_, counts_from)) => {
                        changes_at.note(counts_from);
                        (Class::Movable, None)
                    }
                    None => (Class::Movable, None),
                },
            },
        };
        let class = match class {
            Class::Held(_) | Class::Movable if is_left_to_owner(pod) => Class::LeftToOwner,
            // With its node for good, it comes back wherever somebody makes room for it.
            Class::Held(_) if node.is_being_removed() => Class::Movable,
            class => class,
        };
        let pod = Arc::clone(pod);
        need.pods.push(ClassifiedPod { pod, class, why });
    }
    need.pods.sort_by(|a, b| a.pod.key.cmp(&b.pod.key));
    need.changes_at = changes_at.at();
    if node.is_being_removed() {
        return need.with_problems(node, snapshot, policy, now);
    }
    let claim = snapshot.claim(node.uid.as_str());
    // A node that nobody has cordoned serves until somebody has seen to what its drain waits for.
    let cordoned = claim.filter(|_| node.is_cordoned());
    let leaves_out_at = cordoned.and_then(|claim| leaves_out_at(claim, policy));
    let leaves_out = leaves_out_at.is_some_and(|at| is_due(at, now));
    changes_at.note(leaves_out_at);
    need.changes_at = changes_at.at();
    // What has a successor here is needed for that one.
    let succeeded = claim.map(|claim| succeeded_on_node(claim, snapshot.pods_of(&node.name), snapshot));
    let without = claim.zip(succeeded).filter(|(_, succeeded)| !succeeded.is_empty());
    let without = without.map(|(claim, succeeded)| claim.without_pods(&succeeded));
    let claim = without.as_ref().or(claim);
    let asking = Asking {
        claim,
        leaves_out,
        is_crowded_out: &|| is_crowded_out(&need.pods, cordons),
        goes_nowhere: drain.is_some_and(|drain| {
            let is_last = || goes_last(&need.pods, node, drain, snapshot, now);
            drain.spec.evict == Evictor::Requester && (is_refused_again(drain, claim) || is_last())
        }),
    };
    let needed = needed(&need.pods, asking, snapshot);
    (need.needs, need.movable_first) = (needed.disruptions, needed.movable_first);
    (need.excesses, need.crowded_out) = (needed.excesses, needed.crowded_out);
    need.obstacles = needed.obstacles;
    need.with_problems(node, snapshot, policy, now)
}

/// From when on a drain goes on without the pods that have an obstacle, if it waits for one.
pub(super) fn leaves_out_at(claim: &Claim, policy: &Policy) -> Option<Timestamp> {
    let since = claim.obstructed_since?;
    Some(saturating_add(since, policy.obstacle_after))
}

/// Whether a pod finds no room that would if no other node were drained.
fn is_crowded_out(pods: &[ClassifiedPod], cordons: Option<&Cordons<'_>>) -> bool {
    let of = |class: Class| {
        let pods = pods.iter().filter(move |classified| classified.class == class);
        pods.map(|classified| Arc::clone(&classified.pod)).collect::<Vec<_>>()
    };
    let without_room = of(Class::Held(LockReason::NoRoom));
    cordons.is_some_and(|cordons| !cordons.crowded_out(&of(Class::Movable), &without_room).is_empty())
}

impl NodeNeed {
    fn with_problems(mut self, node: &NodeFacts, snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> Self {
        self.problems = problems(&self, node, snapshot, policy, now);
        self
    }
}

/// What the requesters of a drain have consented to. Without a drain it is a machine that would ask for one.
fn consents(drain: Option<&NodeDrain>, policy: &Policy) -> Consents {
    let machine = || policy.fleet_lock.as_ref().map(|fleet_lock| fleet_lock.consents);
    drain
        .map(|drain| Consents::of(&drain.spec))
        .or_else(machine)
        .unwrap_or_default()
}

/// Why a pod that would have to leave is kept; nothing: it may be evicted, or leaves already.
pub fn kept(pod: &PodFacts, consents: Consents) -> impl Iterator<Item = LockReason> {
    let reasons = consents.lacking(pod.owner.is_none(), pod.has_empty_dir);
    reasons.filter(|_| pod.deletion.is_none())
}

fn held_reason(error: &PlacementError) -> LockReason {
    match error {
        PlacementError::LocalVolume => LockReason::LocalVolume,
        PlacementError::Pinned => LockReason::Pinned,
        PlacementError::NoRoom(_) => LockReason::NoRoom,
    }
}

/// The pod of the same controller, asking for the same, that has found no node for the longest, and from when this one's
/// replacement is taken to find none either. What its own volume ties to a place says nothing about others.
fn unschedulable_sibling<'a>(
    pod: &PodFacts,
    snapshot: &'a Snapshot,
    policy: &Policy,
) -> Option<(&'a PodFacts, Timestamp)> {
    let view = &snapshot.scheduling;
    let unschedulable = view
        .pending
        .iter()
        .filter_map(|other| Some((&**other, other.unschedulable_since?)));
    let siblings = unschedulable.filter(|(other, _)| other.is_sibling_of(pod));
    let unschedulable =
        siblings.filter(|(other, _)| other.requirements == pod.requirements && view.volumes_of(other).next().is_none());
    let (sibling, since) = unschedulable.min_by_key(|(_, since)| *since)?;
    Some((sibling, saturating_add(since, policy.unschedulable_after)))
}
