//! Reservation without a webhook: a retained pod is written into its budget's status as one whose eviction was accepted, and
//! the budget then refuses everybody else by itself.
//!
//! The eviction handler does the same (`pkg/registry/core/pod/storage/eviction.go`): it adds the pod to `disruptedPods` with
//! the present time and takes one from `disruptionsAllowed`, and the disruption controller counts the pod as gone for two
//! minutes from that time (`DeletionTimeout`). Here the time is two minutes before the node is expected back, so the pod
//! counts as gone until then. An entry that nobody renews ends by itself: a process that dies leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::Evictor;
use nodeward_core::deadline::{RequeueAt, saturating_add, whole_second};
use nodeward_core::id::{BudgetKey, PodKey, ResourceVersion};
use nodeward_core::ledger::{Claim, Ledger};

use crate::snapshot::{DISRUPTED_FOR, PodFacts, Reserved, Snapshot};

use super::{Action, Planner};

/// One write of a budget's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    pub budget: BudgetKey,
    pub uid: Arc<str>,
    /// The status that this is written on top of.
    pub resource_version: ResourceVersion,
    /// Pods that count as gone, with the time to write.
    pub reserved: BTreeMap<String, Timestamp>,
    /// Pods that count again.
    pub released: BTreeSet<String>,
    /// `disruptionsAllowed` from now on, until the disruption controller has counted anew.
    pub disruptions_allowed: i32,
}

impl Planner<'_> {
    /// Plans the writes of budgets' statuses: for retained pods, where the policy reserves them there, and for stale entries.
    pub(super) fn reserve_retained_pods(&mut self) {
        let mut reserved = self.memory.reserved.clone();
        let (no_claims, mut nothing) = (Ledger::default(), Reserved::new());
        let reserves = self.snapshot.ledger.is_some() && self.policy.reserve_through_budget_status;
        let (ledger, ours) = if reserves {
            (&self.before, &mut reserved)
        } else {
            (&no_claims, &mut nothing)
        };
        let (outage, requeue_at) = (self.policy.expected_outage, &mut self.requeue_at);
        let due = reservations(self.snapshot, ledger, ours, outage, self.now, requeue_at);
        self.plan.actions.extend(due.into_iter().map(Action::Reserve));
        self.plan.reserved = reserved;
    }
}

/// The writes that are due. `outage` is how long a node is expected to be away.
fn reservations(
    snapshot: &Snapshot,
    ledger: &Ledger,
    reserved: &mut Reserved,
    outage: SignedDuration,
    now: Timestamp,
    requeue_at: &mut RequeueAt,
) -> Vec<Reservation> {
    let mut wanted = retained(ledger, snapshot);
    for key in reserved.keys().chain(snapshot.stale_entries.keys()) {
        wanted.entry(key.clone()).or_default();
    }
    let mut due = Vec::new();
    for (key, wanted) in &wanted {
        let (Some(budget), Some(facts)) = (snapshot.budgets.get(key), snapshot.facts.get(key)) else {
            reserved.remove(key);
            continue;
        };
        let status = &budget.view.status;
        let ours = reserved.entry(key.clone()).or_default();
        let mut write = Reservation {
            budget: key.clone(),
            uid: Arc::clone(&budget.view.uid),
            resource_version: budget.view.resource_version.clone(),
            reserved: BTreeMap::new(),
            released: BTreeSet::new(),
            disruptions_allowed: status.disruptions_allowed,
        };
        for pod in wanted {
            // Renewed when half of the outage is left, so that no write of ours comes too late.
            let renewed = status
                .disrupted_pods
                .get(pod)
                .map(|at| (*at, saturating_add(*at, DISRUPTED_FOR)));
            if let Some((at, until)) = renewed.filter(|(_, until)| *until > saturating_add(now, outage / 2)) {
                ours.insert(pod.clone(), at);
                requeue_at.note(until.checked_sub(outage / 2).unwrap_or(until));
                continue;
            }
            if held(snapshot, key, pod).is_some_and(|pod| facts.healthy.contains(&pod.uid)) {
                write.disruptions_allowed = (write.disruptions_allowed - 1).max(0);
            }
            let disrupted_at = saturating_add(whole_second(now), outage.saturating_sub(DISRUPTED_FOR));
            write.reserved.insert(pod.clone(), disrupted_at);
        }
        ours.retain(|pod, at| {
            // What is there under another time was written by an eviction since.
            let is_to_go = !wanted.contains(pod) && status.disrupted_pods.get(pod) == Some(at);
            if is_to_go {
                write.released.insert(pod.clone());
            }
            is_to_go || wanted.contains(pod)
        });
        // The disruption controller forgets an entry two minutes after its time, though a StatefulSet has made the pod anew
        // meanwhile; until then every eviction is refused. The write of the status makes it count anew, too.
        let stale = snapshot.stale_entries.get(key).into_iter().flatten();
        write
            .released
            .extend(stale.filter(|pod| !wanted.contains(*pod)).cloned());
        if ours.is_empty() && write.reserved.is_empty() {
            reserved.remove(key);
        }
        if !write.reserved.is_empty() || !write.released.is_empty() {
            due.push(write);
        }
    }
    due
}

/// The pods that stay on nodes whose claims have their disruptions, by budget. Whoever evicts by himself may evict those, too: a
/// reservation would keep him from it without end.
fn retained(ledger: &Ledger, snapshot: &Snapshot) -> BTreeMap<BudgetKey, BTreeSet<String>> {
    let mut retained: BTreeMap<BudgetKey, BTreeSet<String>> = BTreeMap::new();
    let is_by_requester = |claim: &Claim| {
        let drain = snapshot.drains.get(claim.node.as_str());
        drain.is_some_and(|drain| drain.spec.evict == Evictor::Requester)
    };
    for claim in ledger.claims().iter().filter(|claim| !is_by_requester(claim)) {
        // Disruptions that stay with a claim which waits are those of pods that are down, and count as gone anyway.
        if !claim.state.is_confirmed() && !claim.state.is_suspect() {
            continue;
        }
        for disruptions in &claim.holds {
            let key = BudgetKey::from(&disruptions.pdb);
            let pods = disruptions.pods.iter().filter(|pod| pod.retained);
            let names: BTreeSet<String> = pods.map(|pod| pod.name.clone()).collect();
            if !names.is_empty() {
                retained.entry(key).or_default().extend(names);
            }
        }
    }
    retained
}

/// The pod of this name in the budget's namespace that a disruption is held for.
fn held<'a>(snapshot: &'a Snapshot, budget: &BudgetKey, pod: &str) -> Option<&'a Arc<PodFacts>> {
    snapshot.held.get(&PodKey::new(Arc::clone(&budget.namespace), pod))
}

#[cfg(test)]
mod tests;
