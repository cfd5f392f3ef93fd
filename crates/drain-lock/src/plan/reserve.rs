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
use nodeward_api::drain_ledger::ClaimState;
use nodeward_core::deadline::{NextWake, later};
use nodeward_core::id::{BudgetKey, ResourceVersion};
use nodeward_core::ledger::Ledger;

use crate::snapshot::{DISRUPTED_FOR, Snapshot};

/// One write of a budget's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The budget.
    pub budget: BudgetKey,
    /// Its UID.
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

/// What this process has reserved: the time that it wrote, by budget and pod. It only serves to take back early what would
/// end by itself.
#[derive(Debug, Default)]
pub struct Reserved(BTreeMap<BudgetKey, BTreeMap<String, Timestamp>>);

impl Reserved {
    /// What has to be written now, and when to look again. `outage` is how long a node is expected to be away.
    pub fn due(
        &mut self,
        snapshot: &Snapshot,
        ledger: &Ledger,
        outage: SignedDuration,
        now: Timestamp,
    ) -> (Vec<Reservation>, Option<Timestamp>) {
        let wanted = retained(ledger);
        let mut next = NextWake::after(now);
        let keys: BTreeSet<BudgetKey> = wanted.keys().chain(self.0.keys()).cloned().collect();
        let nobody = BTreeSet::new();
        let due = keys.into_iter().filter_map(|key| {
            let pods = wanted.get(&key).unwrap_or(&nobody);
            self.of_budget(&key, pods, snapshot, outage, now, &mut next)
        });
        let due = due.collect();
        (due, next.at())
    }

    /// Budgets that have to be in the next snapshot.
    pub fn budgets(&self) -> impl Iterator<Item = &BudgetKey> {
        self.0.keys()
    }

    fn of_budget(
        &mut self,
        key: &BudgetKey,
        wanted: &BTreeSet<String>,
        snapshot: &Snapshot,
        outage: SignedDuration,
        now: Timestamp,
        next: &mut NextWake,
    ) -> Option<Reservation> {
        let (Some(budget), Some(facts)) = (snapshot.budgets.get(key), snapshot.facts.get(key)) else {
            self.0.remove(key);
            return None;
        };
        let status = &budget.view.status;
        let written = later(whole_second(now), outage.saturating_sub(DISRUPTED_FOR));
        // Renewed when half of the outage is left, so that no write of ours comes too late.
        let renew_before = later(now, outage / 2);
        let ours = self.0.entry(key.clone()).or_default();
        let mut write = Reservation {
            budget: key.clone(),
            uid: Arc::clone(&budget.view.uid),
            resource_version: budget.view.resource_version.clone(),
            reserved: BTreeMap::new(),
            released: BTreeSet::new(),
            disruptions_allowed: status.disruptions_allowed,
        };
        for pod in wanted {
            let present = status.disrupted_pods.get(pod).copied();
            let until = present.map(|at| later(at, DISRUPTED_FOR));
            match (present, until) {
                (Some(at), Some(until)) if until > renew_before => {
                    ours.insert(pod.clone(), at);
                    next.note(until.checked_sub(outage / 2).unwrap_or(until));
                }
                _ => {
                    let counted = facts.healthy.iter().any(|uid| is_of(snapshot, uid.as_str(), key, pod));
                    if counted {
                        write.disruptions_allowed = (write.disruptions_allowed - 1).max(0);
                    }
                    write.reserved.insert(pod.clone(), written);
                }
            }
        }
        ours.retain(|pod, at| {
            if wanted.contains(pod) {
                return true;
            }
            // What is there under another time was written by an eviction since.
            let is_there = status.disrupted_pods.get(pod) == Some(at);
            if is_there {
                write.released.insert(pod.clone());
            }
            is_there
        });
        if ours.is_empty() && write.reserved.is_empty() {
            self.0.remove(key);
        }
        let is_needed = !write.reserved.is_empty() || !write.released.is_empty();
        is_needed.then_some(write)
    }
}

/// The pods that stay on nodes whose claims have their units, by budget.
fn retained(ledger: &Ledger) -> BTreeMap<BudgetKey, BTreeSet<String>> {
    let mut retained: BTreeMap<BudgetKey, BTreeSet<String>> = BTreeMap::new();
    for claim in ledger.claims() {
        match claim.state {
            ClaimState::Confirmed | ClaimState::Suspect => {}
            // Units that stay with a claim which waits are those of pods that are down, and count as gone anyway.
            ClaimState::Waiting | ClaimState::Granted => continue,
        }
        for units in &claim.holds {
            let key = BudgetKey::from(&units.pdb);
            let pods = units.pods.iter().filter(|pod| pod.retained);
            let names: BTreeSet<String> = pods.map(|pod| pod.name.clone()).collect();
            if !names.is_empty() {
                retained.entry(key).or_default().extend(names);
            }
        }
    }
    retained
}

/// Kubernetes keeps times to the second.
fn whole_second(moment: Timestamp) -> Timestamp {
    Timestamp::from_second(moment.as_second()).unwrap_or(moment)
}

/// Whether this UID is that of the pod of this name in the budget's namespace.
fn is_of(snapshot: &Snapshot, uid: &str, budget: &BudgetKey, pod: &str) -> bool {
    let mut pods = snapshot.pods.values().flatten();
    pods.any(|known| known.uid.as_str() == uid && known.key.namespace == budget.namespace && &*known.key.name == pod)
}

#[cfg(test)]
mod tests;
