//! Drains that wait for pods which find no node until somebody uncordons one. They may wait for each other by pods which went
//! down without a claim: two plain `kubectl drain` while drain-lock was away, say. Each node waits for a budget whose missing
//! pods can come back on the other node alone, and the ledger, which knows of circles among claims, shows none of it. Or the
//! pods fit a node alone that somebody else has drained, and leaves cordoned. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::{RequeueAt, is_due, saturating_add};
use nodeward_core::id::{BudgetKey, NodeName};
use nodeward_core::ledger::{Claim, ClaimState, circle_of};
use nodeward_scheduling::{Placement, SchedulingView};

use crate::policy::Policy;
use crate::snapshot::{NodeFacts, Snapshot};

use super::drain_context::DrainContext;
use super::intent::Intent;
use super::node_markers::Cordon;
use super::stage::Stage;
use super::verdict::DrainVerdict;
use super::{ActiveDrain, Planner};

/// The drains that wait in a circle, or for a node that stays cordoned, by their nodes.
pub(super) type Circles = BTreeMap<NodeName, InCircle>;

/// How a drain waits in a circle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InCircle {
    /// The budget that it waits for.
    pub budget: BudgetKey,
    /// The node of the circle that is to be uncordoned, so that the pods which another drain waits for come back.
    pub opener: NodeName,
    /// Who uncordons that one.
    pub uncordoned_by: UncordonedBy,
}

/// Who uncordons the node that ends a circle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UncordonedBy {
    /// drain-lock itself.
    Us,
    /// Its drainer, or whoever called that one, before it is drained.
    Drainer,
    /// Whoever cordoned it, once the work on it is done.
    WhenDone {
        /// The work takes as long as is expected of it: nobody has to act yet.
        is_expected: bool,
    },
}

impl InCircle {
    fn is_opened_by_us_at(&self, node: &NodeName) -> bool {
        self.uncordoned_by == UncordonedBy::Us && self.opener == *node
    }
}

/// A drain that waits for its turn, or for its movable pods to go.
struct Waiting<'a> {
    /// How many disruptions it waits for, of budgets with pods that wait for a node.
    needs: BTreeMap<&'a BudgetKey, i32>,
    claim: Option<&'a Claim>,
    /// Whether its node's cordon is ours to lift, or to leave out.
    is_ours: bool,
}

impl Waiting<'_> {
    fn ticket(&self) -> i64 {
        self.claim.map_or(i64::MAX, |claim| claim.ticket)
    }

    /// Whether a pod of the budget has gone for it.
    fn has_moved(&self, budget: &BudgetKey) -> bool {
        self.claim.is_some_and(|claim| {
            let mut holds = claim.holds.iter();
            holds.any(|held| BudgetKey::from(&held.pdb) == *budget) || claim.budgets_of_moving().any(|of| of == *budget)
        })
    }
}

/// The nodes that stay cordoned until somebody has done his work on them, with until when that is expected to take.
type Closed = BTreeMap<NodeName, Option<Timestamp>>;

/// By budget, the pods that wait for a node: for each, the nodes that would take it if they were uncordoned.
type Missing<'a> = BTreeMap<&'a BudgetKey, Vec<BTreeSet<NodeName>>>;

/// Finds the circles. A drain of ours counts as if its node were cordoned: it is not to be while that would close a circle.
pub(super) fn circles(
    contexts: &[DrainContext],
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
    requeue_at: &mut RequeueAt,
) -> Circles {
    let mut waiting: BTreeMap<NodeName, Waiting<'_>> = contexts
        .iter()
        .filter_map(|context| {
            let stays = context.cordon_stays_until(policy.auto.quiet_period, now);
            requeue_at.note(stays);
            Some((context.name.clone(), waiting(context, snapshot, stays.is_some())?))
        })
        .collect();
    if waiting.is_empty() {
        return Circles::new();
    }
    let closed = stay_cordoned(contexts, snapshot, policy, now);
    let missing = missing(&waiting, &closed, snapshot, policy, now, requeue_at);
    let blocking = |name: &NodeName, drain: &Waiting<'_>, waiting: &BTreeMap<NodeName, Waiting<'_>>| {
        blocking(name, drain, waiting, &closed, &missing, snapshot)
    };
    // Whoever waits for pods that can come back elsewhere is in no circle, nor is who waits for such a drain.
    while let Some(ends) = waiting
        .iter()
        .find(|(name, drain)| blocking(name, drain, &waiting).is_none())
        .map(|(name, _)| name.clone())
    {
        waiting.remove(&ends);
    }
    let next: BTreeMap<NodeName, (BudgetKey, NodeName)> = waiting
        .iter()
        .filter_map(|(name, drain)| Some((name.clone(), blocking(name, drain, &waiting)?)))
        .collect();
    let mut circles = Circles::new();
    for (name, (budget, first)) in &next {
        let step = |at: &&NodeName| next.get(*at).map(|(_, after)| after);
        // As many steps as there are drains lead into a circle.
        let mut path = std::iter::successors(Some(first), step).take(next.len());
        let mut insert = |opener: &NodeName, uncordoned_by| {
            let (budget, opener) = (budget.clone(), opener.clone());
            let in_circle = InCircle {
                budget,
                opener,
                uncordoned_by,
            };
            circles.insert(name.clone(), in_circle);
        };
        if let Some((opener, outage)) = path.find_map(|at| closed.get_key_value(at)) {
            requeue_at.note(*outage);
            let is_expected = outage.is_some();
            insert(opener, UncordonedBy::WhenDone { is_expected });
            continue;
        }
        let circle = circle_of(name, |at| next.get(at).map(|(_, after)| after).into_iter().collect());
        let opener = if first == name {
            // By itself drain-lock brings no pod back that went for this very drain: it would be evicted again.
            let is_ours = snapshot.nodes.get(name).is_some_and(|node| node.is_cordoned_by_us());
            let opens = waiting.get(name).map(|drain| {
                if drain.is_ours {
                    !drain.has_moved(budget)
                } else {
                    !is_ours
                }
            });
            Some(name).filter(|_| opens == Some(true))
        } else {
            circle.into_iter().max_by_key(|name| {
                let drain = waiting.get(*name);
                drain.map(|drain| (drain.is_ours, drain.ticket(), Reverse(*name)))
            })
        };
        if let Some(opener) = opener {
            let is_ours = waiting.get(opener).is_some_and(|drain| drain.is_ours);
            insert(
                opener,
                if is_ours {
                    UncordonedBy::Us
                } else {
                    UncordonedBy::Drainer
                },
            );
        }
    }
    circles
}

fn waiting<'a>(context: &'a DrainContext, snapshot: &'a Snapshot, stays: bool) -> Option<Waiting<'a>> {
    let (node, classes) = (context.node.as_deref()?, context.classes.as_ref()?);
    let claim = context.claim.as_ref();
    // One that goes on without pods that cannot go has its grant, and waits for these.
    let waits = claim
        .is_none_or(|claim| !claim.may_go_down && matches!(claim.state, ClaimState::Waiting | ClaimState::Confirmed));
    let has_grant = claim.is_some_and(|claim| claim.state == ClaimState::Confirmed);
    let is_left_to_others = context.is_by_requester() || context.has_foreign_cordon() || node.is_being_removed();
    let is_ours = !is_left_to_others && !stays && !has_grant;
    let is_closed = node.is_cordoned() || node.is_being_removed();
    if context.intent != Intent::Drain || !waits || !(is_ours || is_closed) {
        return None;
    }
    let mut needs: BTreeMap<&BudgetKey, i32> = BTreeMap::new();
    for disruptions in &classes.needs {
        let pdb = &disruptions.pdb;
        let budget = snapshot
            .facts
            .get_key_value(&BudgetKey::new(pdb.namespace.as_str(), pdb.name.as_str()));
        let Some((key, facts)) = budget else { continue };
        let is_held = |uid: &str| claim.is_some_and(|claim: &Claim| claim.has_disruption(uid));
        let pods = disruptions.pods.iter().filter(|pod| !is_held(&pod.uid));
        needs.insert(key, facts.cost(pods));
    }
    for pod in classes.movable.iter().filter(|pod| pod.is_healthy()) {
        for key in snapshot.budgets_of(pod) {
            let needed = needs.entry(key).or_default();
            *needed = 1.max(*needed);
        }
    }
    // What the need leaves out is waited for all the same.
    let left_out = classes.obstacles.beyond_claims.iter();
    for obstacle in left_out.filter(|obstacle| obstacle.reason == LockReason::BudgetUnhealthy) {
        let budget = obstacle.pdb.as_ref();
        if let Some((key, _)) = budget.and_then(|key| snapshot.facts.get_key_value(key)) {
            let needed = needs.entry(key).or_default();
            *needed = obstacle.needed.max(*needed);
        }
    }
    let is_short = |key: &BudgetKey| {
        let unhealthy = snapshot.unhealthy.get(key);
        unhealthy.is_some_and(|pods| pods.iter().any(|pod| pod.awaits_a_node()))
    };
    needs.retain(|key, needed| *needed > 0 && is_short(key));
    (!needs.is_empty()).then_some(Waiting { needs, claim, is_ours })
}

/// The nodes that somebody else has drained, or cordoned without a drain: nothing but an `uncordon` lets pods onto them again. An
/// outage begins when the node is drained; of a node without a drain, when it is cordoned. One that is down for longer than is
/// expected is none of them: an `uncordon` would not help.
fn stay_cordoned(contexts: &[DrainContext], snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> Closed {
    let goes_on = |context: &&DrainContext| !(context.may_go_down() && context.is_by_requester());
    let drains: BTreeSet<&NodeName> = contexts.iter().filter(goes_on).map(|context| &context.name).collect();
    let is_closed = |node: &&Arc<NodeFacts>| {
        let by_others = node.is_cordoned() && !node.is_cordoned_by_us();
        by_others && !node.is_being_removed() && !drains.contains(&node.name)
    };
    let drained_at = |node: &NodeFacts| {
        let is_drained = |context: &&DrainContext| context.name == node.name && context.may_go_down();
        let context = contexts.iter().find(is_drained)?;
        let status = context.drain.as_deref()?.status.as_ref();
        Some(status.and_then(|status| status.drained_at).unwrap_or(now))
    };
    let outage = |node: &NodeFacts| {
        let begin = drained_at(node).or_else(|| node.tainted_unschedulable_at())?;
        Some(saturating_add(begin, policy.expected_outage)).filter(|end| !is_due(*end, now))
    };
    let closed = snapshot.nodes.values().filter(is_closed);
    let closed = closed.map(|node| (node, outage(node)));
    let closed = closed.filter(|(node, outage)| node.ready || outage.is_some());
    closed.map(|(node, outage)| (node.name.clone(), outage)).collect()
}

/// The pods that the scheduler has found no node for, for long enough that it will find none.
fn missing<'a>(
    waiting: &BTreeMap<NodeName, Waiting<'a>>,
    closed: &Closed,
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
    requeue_at: &mut RequeueAt,
) -> Missing<'a> {
    let is_candidate = |node: &&Arc<NodeFacts>| {
        // Of nodes that are being removed in another way a taint keeps pods away, if they take none.
        let is_ready = node.ready && !node.is_being_deleted;
        let takes_pods_again = is_ready && (node.unschedulable || waiting.contains_key(&node.name));
        takes_pods_again || closed.contains_key(&node.name)
    };
    let candidates = snapshot.nodes.values().filter(is_candidate);
    let candidates: BTreeSet<NodeName> = candidates.map(|node| node.name.clone()).collect();
    let view: SchedulingView = snapshot.scheduling.with_in_service(&candidates);
    let placement = Placement::new(&view);
    let mut missing = Missing::new();
    for key in waiting.values().flat_map(|drain| drain.needs.keys()) {
        if missing.contains_key(key) {
            continue;
        }
        let mut pods = Vec::new();
        let unhealthy = || snapshot.unhealthy.get(*key).into_iter().flatten();
        for pod in unhealthy().filter(|pod| pod.awaits_a_node() && !pod.gated) {
            let Some(since) = pod.unschedulable_since else { continue };
            let lasting = saturating_add(since, policy.unschedulable_after);
            if is_due(lasting, now) {
                pods.push(placement.takers(pod, &candidates).into_iter().collect());
            } else {
                requeue_at.note(lasting);
            }
        }
        // Until the pod has gone that it replaces, one may find no node for that one's sake.
        let leaving = unhealthy().filter(|pod| pod.deletion.is_some()).count();
        pods.truncate(pods.len().saturating_sub(leaving));
        missing.insert(*key, pods);
    }
    missing
}

/// A budget that the drain waits for in vain while `waiting` do and `closed` nodes stay cordoned, and the first of the nodes
/// that its pods wait for: those that are expected back come first, other closed ones before the rest, and its own last.
fn blocking(
    own: &NodeName,
    drain: &Waiting<'_>,
    waiting: &BTreeMap<NodeName, Waiting<'_>>,
    closed: &Closed,
    missing: &Missing<'_>,
    snapshot: &Snapshot,
) -> Option<(BudgetKey, NodeName)> {
    drain.needs.iter().find_map(|(key, needed)| {
        let facts = snapshot.facts.get(*key).filter(|facts| facts.unusable.is_none())?;
        let is_closed = |node: &NodeName| waiting.contains_key(node) || closed.contains_key(node);
        let waits_in_vain = |takers: &&BTreeSet<NodeName>| !takers.is_empty() && takers.iter().all(is_closed);
        let in_vain: Vec<_> = missing.get(*key)?.iter().filter(waits_in_vain).collect();
        // A StatefulSet makes its next pod once this one is Ready.
        let to_be_made = facts.pods.expected.saturating_sub(facts.pods.all).max(0);
        let lost = i32::try_from(in_vain.len())
            .unwrap_or(i32::MAX)
            .saturating_add(to_be_made);
        // What is never allowed, however many pods come back, has another reason.
        let is_blocked = *needed <= facts.ceiling() && *needed > facts.ceiling().saturating_sub(lost);
        let nodes = in_vain.into_iter().flatten();
        let node = nodes
            .min_by_key(|node| {
                (
                    !closed.get(*node).is_some_and(Option::is_some),
                    !closed.contains_key(*node),
                    *node == own,
                    *node,
                )
            })
            .filter(|_| is_blocked)?;
        Some(((*key).clone(), node.clone()))
    })
}

impl Planner<'_> {
    /// Whether the drain leaves its node to the pods that others wait for: it uncordons the node, or does not cordon it yet,
    /// keeps its place, and goes on when they are back.
    pub(super) fn opens_circle(&mut self, stage: Stage, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) -> bool {
        let node = active.node;
        let waits = matches!(
            stage,
            Stage::AwaitingNodeGroup | Stage::Uncordoned | Stage::Completing | Stage::Leaving | Stage::Claiming
        );
        let circle = self.circles.get(&node.name);
        let is_opener = circle.is_some_and(|circle| circle.is_opened_by_us_at(&node.name));
        if !waits || !is_opener {
            return false;
        }
        self.set_needs(active, Vec::new());
        if active
            .context
            .claim
            .as_ref()
            .is_some_and(|claim| !claim.holds.is_empty() || !claim.node_groups.is_empty())
        {
            // What it has returns first, and then it queues again.
            let is_down = |pod: &_| active.context.unavailable.contains(pod);
            self.write.next.time_out(active.uid(), &is_down, self.now);
        }
        self.write_node_markers(node, Cordon::Lift, true, None);
        let text = "its node stays uncordoned until pods are back that find no other node";
        verdict.block(LockReason::CircularWait, text);
        verdict.set_message(text);
        true
    }

    /// Names the node that ends the circle which the drain waits in. Of one that is drained, and out of service for no longer than
    /// is expected, as in a rolling reboot, no person has to act yet.
    pub(super) fn name_circle(&self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) {
        let Some(circle) = self.circles.get(&active.node.name) else {
            return;
        };
        if circle.is_opened_by_us_at(&active.node.name) {
            return;
        }
        let InCircle { budget, opener, .. } = circle;
        let mut reason = LockReason::CircularWait;
        let ends = match circle.uncordoned_by {
            UncordonedBy::Us => format!("drain-lock uncordons node {opener}, so that its pods come back"),
            UncordonedBy::Drainer => {
                format!("uncordon node {opener}, so that its pods come back: kubectl uncordon {opener}")
            }
            UncordonedBy::WhenDone { is_expected } => {
                if is_expected {
                    reason = LockReason::AwaitsUncordon;
                }
                format!(
                    "its pods find no node but {opener}, which stays cordoned; once the work on it is done: \
                     kubectl uncordon {opener}"
                )
            }
        };
        let pdb = budget.to_string();
        let is_meant = |reason| matches!(reason, LockReason::BudgetUnhealthy | LockReason::WaitsForDisruptions);
        let mut obstacles = verdict.blocked_by.iter_mut();
        let obstacle = obstacles.find(|blocked| is_meant(blocked.reason) && blocked.pdb.as_ref() == Some(&pdb));
        if let Some(blocked) = obstacle {
            blocked.reason = reason;
            blocked.message = format!("{}; {ends}", blocked.message);
            blocked.node = Some(opener.to_string());
        } else {
            let text = format!("budget {pdb} waits for pods that find no node; {ends}");
            verdict.block_by_node(reason, text, Some(opener));
        }
    }
}

#[cfg(test)]
mod tests;
