//! Which pods of a claim are down, and when they count as back, so that their disruptions return: by what is observed, never by
//! time. What is observed of a pod that is there is judged by [`nodeward_core::ledger`] (`recovery.rs`). Pure.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::BudgetRef;
use nodeward_core::id::{BudgetKey, PodKey};
use nodeward_core::ledger::{BudgetFacts, Claim, ClaimState, Disruptions, HeldPod, HeldPodState};

use crate::snapshot::{LedgerFacts, Memory, PodFacts, Snapshot};

use super::action::CalledOff;
use super::drain_context::DrainRecord;

/// The pods of one claim that are down, and those that are back.
#[derive(Debug, Clone, Default)]
pub struct UnavailablePods {
    down: BTreeSet<String>,
    recovered: BTreeSet<String>,
    gone: Vec<TakenForGone>,
    perhaps_scaled_down: BTreeSet<BudgetKey>,
    called_off: Option<CalledOff>,
    changes_at: Option<Timestamp>,
}

/// A pod that is taken for gone, and whose disruption returns for that.
#[derive(Debug, Clone)]
pub struct TakenForGone {
    pub key: PodKey,
    pub uid: String,
    /// The budget whose number of pods tells so; `None` where a pod of its name does.
    pub by_number_of: Option<BudgetRef>,
}

impl UnavailablePods {
    /// Looks at the pods that a drain's claim holds disruptions for.
    pub fn of(record: &DrainRecord, snapshot: &Snapshot, memory: &Memory, now: Timestamp) -> Self {
        let mut this = Self::default();
        let succeeded = record
            .claim
            .as_ref()
            .map(|claim| succeeded_on_node(claim, record.pods(snapshot), snapshot));
        let succeeded = succeeded.unwrap_or_default();
        for disruptions in record.claim.iter().flat_map(|claim| &claim.holds) {
            for held in &disruptions.pods {
                let mut pods = record.pods(snapshot).iter();
                let state = match pods.find(|pod| pod.uid.as_str() == held.uid) {
                    Some(pod) if pod.deletion.is_some() || memory.is_asked_to_go(&held.uid, now) => HeldPodState::Down,
                    // A graceful shutdown of the node leaves its pods behind as Failed: none of them starts again.
                    Some(pod) if pod.is_finished() => this.state_of_gone(disruptions, held, &succeeded, snapshot),
                    Some(pod) => this.state_of_present(record, held, pod, snapshot, now),
                    None => this.state_of_gone(disruptions, held, &succeeded, snapshot),
                };
                match state {
                    HeldPodState::Running(_) => false,
                    HeldPodState::Down => this.down.insert(held.uid.clone()),
                    HeldPodState::Recovered | HeldPodState::CalledOff(_) => this.recovered.insert(held.uid.clone()),
                };
            }
        }
        this
    }

    fn state_of_present(
        &mut self,
        record: &DrainRecord,
        held: &HeldPod,
        pod: &PodFacts,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> HeldPodState {
        let Some((node, claim)) = record.node.as_ref().zip(record.claim.as_ref()) else {
            return state_without_node(record, held, pod, snapshot);
        };
        let state = claim.state_of_present(held, pod, node, record.is_over(), now);
        match state {
            HeldPodState::Running(until) => self.changes_at = until.or(self.changes_at),
            HeldPodState::CalledOff(since) => {
                self.called_off = Some(CalledOff {
                    node: record.name.clone(),
                    node_uid: node.uid.clone(),
                    boot_id: node.boot_id.clone(),
                    since,
                });
            }
            HeldPodState::Down | HeldPodState::Recovered => {}
        }
        state
    }

    fn state_of_gone(
        &mut self,
        disruptions: &Disruptions,
        held: &HeldPod,
        succeeded: &BTreeSet<String>,
        snapshot: &Snapshot,
    ) -> HeldPodState {
        let key = PodKey::new(disruptions.pdb.namespace.as_str(), held.name.as_str());
        let by_name = has_successor(&key, &held.uid, &snapshot.held) || succeeded.contains(&held.uid);
        if !by_name && !has_recovered(disruptions, held, snapshot) {
            if is_replaced_if_scaled_down(disruptions, held, snapshot) {
                self.perhaps_scaled_down.insert(BudgetKey::from(&disruptions.pdb));
            }
            return HeldPodState::Down;
        }
        self.gone.push(TakenForGone {
            key,
            uid: held.uid.clone(),
            by_number_of: (!by_name).then(|| disruptions.pdb.clone()),
        });
        HeldPodState::Recovered
    }

    /// The hashes of the containers of retained pods, by UID, as long as the node runs in the boot of the grant: what a
    /// pod is compared with after the reboot.
    pub fn containers_before_reboot(record: &DrainRecord, snapshot: &Snapshot) -> BTreeMap<String, String> {
        let (Some(node), Some(claim)) = (&record.node, &record.claim) else {
            return BTreeMap::new();
        };
        if node.boot_id.is_empty() || *node.boot_id != *claim.boot_id {
            return BTreeMap::new();
        }
        let retained: BTreeSet<&str> = claim
            .held_pods()
            .filter(|held| held.retained)
            .map(|held| held.uid.as_str())
            .collect();
        let pods = record.pods(snapshot).iter();
        pods.filter(|pod| retained.contains(pod.uid.as_str()))
            .filter_map(|pod| Some((pod.uid.to_string(), pod.containers?.to_string())))
            .collect()
    }

    /// Whether the disruption of this pod cannot be given back by a write.
    pub fn contains(&self, held: &HeldPod) -> bool {
        self.down.contains(&held.uid)
    }

    pub fn is_empty(&self) -> bool {
        self.down.is_empty()
    }

    /// UIDs of the pods that are down.
    pub fn uids(&self) -> &BTreeSet<String> {
        &self.down
    }

    /// UIDs of the pods that are back.
    pub fn recovered(&self) -> Vec<&str> {
        self.recovered.iter().map(String::as_str).collect()
    }

    /// That the node is taken not to go down any more, and disruptions return for that.
    pub fn called_off(&self) -> Option<&CalledOff> {
        self.called_off.as_ref()
    }

    /// When more of them will be back by the passing of time.
    pub fn changes_at(&self) -> Option<Timestamp> {
        self.changes_at
    }

    /// Pods that are taken for gone, and whose disruptions return for that.
    pub fn gone(&self) -> &[TakenForGone] {
        &self.gone
    }

    /// Budgets of which disruptions return if the scale of their pods' owners has fallen.
    pub fn perhaps_scaled_down(&self) -> impl Iterator<Item = &BudgetKey> {
        self.perhaps_scaled_down.iter()
    }
}

/// The UIDs of pods of a claim that have gone, and in whose place another came back to their node, Ready or not. While the node is
/// drained anew, their budget misses one pod for both, and the drain needs a disruption for the one that is there. That one bears the
/// name of the one that has gone, or was created after the first grant.
pub(super) fn succeeded_on_node(claim: &Claim, pods: &[Arc<PodFacts>], snapshot: &Snapshot) -> BTreeSet<String> {
    if claim.state != ClaimState::Waiting || claim.holds.is_empty() {
        return BTreeSet::new();
    }
    let is_there = |pod: &&Arc<PodFacts>| pod.deletion.is_none() && !pod.is_finished();
    let is_new = |pod: &&Arc<PodFacts>| pod.owner.is_some() && !claim.has_disruption(pod.uid.as_str());
    let mut successors: Vec<&Arc<PodFacts>> = pods.iter().filter(is_there).filter(is_new).collect();
    let ledger = snapshot.ledger.as_ref().map(|facts| &facts.ledger);
    let mut succeeded = BTreeSet::new();
    for disruptions in &claim.holds {
        let key = BudgetKey::from(&disruptions.pdb);
        let first = ledger.and_then(|ledger| ledger.budget_row(&disruptions.pdb)?.first_grant);
        let is_gone = |held: &&HeldPod| !pods.iter().filter(is_there).any(|pod| pod.uid.as_str() == held.uid);
        for held in disruptions.pods.iter().filter(|held| !held.retained).filter(is_gone) {
            let succeeds = |pod: &&Arc<PodFacts>| {
                let is_later = first.is_some_and(|first| first.newest_pod < pod.created);
                (is_later || *pod.key.name == *held.name) && snapshot.budgets_of(pod).contains(&key)
            };
            if let Some(at) = successors.iter().position(succeeds) {
                successors.swap_remove(at);
                succeeded.insert(held.uid.clone());
            }
        }
    }
    succeeded
}

/// A pod whose node is gone, or another one by now.
fn state_without_node(record: &DrainRecord, held: &HeldPod, pod: &PodFacts, snapshot: &Snapshot) -> HeldPodState {
    // The pod outlived its node, under another one of that name.
    let has_moved =
        record.is_replaced && pod.is_healthy() && snapshot.nodes.get(&record.name).is_some_and(|node| node.ready);
    // Until it is deleted with its node, a pod looks as it did last.
    if (held.retained || !record.is_replaced) && !has_moved {
        HeldPodState::Down
    } else {
        HeldPodState::Running(None)
    }
}

/// Whether a pod of the same name, which is not the one of this UID on the node that was drained, is Ready: the successor
/// in a StatefulSet.
pub fn has_successor(key: &PodKey, uid: &str, there: &Named) -> bool {
    let there = there.get(key);
    there.is_some_and(|pod| pod.uid.as_str() != uid && pod.is_healthy())
}

/// Pods by name: those that disruptions are held for, and those that bear their names.
type Named = BTreeMap<PodKey, Arc<PodFacts>>;

/// Whether a pod that has gone counts as replaced, by what the snapshot tells of its budget.
pub fn has_recovered(disruptions: &Disruptions, held: &HeldPod, snapshot: &Snapshot) -> bool {
    let facts = snapshot.facts.get(&BudgetKey::from(&disruptions.pdb));
    is_replaced(disruptions, held, snapshot.ledger.as_deref(), facts, &snapshot.held)
}

/// Whether a pod that has gone counts as replaced, by the number of its budget's pods.
///
/// Replacements bear names of their own, so that nobody can tell whose they are: the budget tells how many of its held
/// disruptions are still missing, and of the pods that are gone the ones of the oldest claims count as replaced first.
pub fn is_replaced(
    disruptions: &Disruptions,
    held: &HeldPod,
    ledger: Option<&LedgerFacts>,
    facts: Option<&BudgetFacts>,
    there: &Named,
) -> bool {
    let Some(facts) = facts.filter(|facts| *facts.uid == *disruptions.pdb.uid) else {
        // Nobody counts its pods any more.
        return true;
    };
    let Some(ledger) = ledger.map(|facts| &facts.ledger) else {
        return false;
    };
    let mut claims: Vec<_> = ledger.holders_of(&facts.key).collect();
    claims.sort_by_key(|claim| claim.ticket);
    let holds = claims.iter().flat_map(|claim| &claim.holds);
    let mut healthy_before = 0;
    let mut down = Vec::new();
    for other in holds.filter(|other| other.pdb == disruptions.pdb) {
        healthy_before = healthy_before.max(other.healthy_at_grant);
        down.extend(
            other
                .pods
                .iter()
                .filter(|pod| is_missing(pod, &facts.key, facts, there)),
        );
    }
    let named = |pod: &HeldPod| {
        let there = there.get(&PodKey::new(disruptions.pdb.namespace.as_str(), pod.name.as_str()));
        there.filter(|there| there.uid.as_str() == pod.uid)
    };
    let first_grant = ledger.budget_row(&disruptions.pdb).and_then(|row| row.first_grant);
    let replaced = if let Some(first) = first_grant {
        down.retain(|pod| named(pod).is_none_or(|pod| !pod.is_kept_up()));
        first.in_place_of(down.len(), facts.pods)
    } else {
        // All of its pods come back under their names, or an earlier version made the grant.
        let expected = healthy_before.min(facts.expected_pods);
        let healthy = i32::try_from(facts.healthy.len()).unwrap_or(i32::MAX);
        let still_missing = usize::try_from(expected.saturating_sub(healthy)).unwrap_or_default();
        down.len().saturating_sub(still_missing)
    };
    let is_gone = |pod: &&&HeldPod| named(pod).is_none_or(|pod| pod.is_finished());
    let mut gone = down.iter().filter(is_gone).take(replaced);
    facts.current && gone.any(|pod| pod.uid == held.uid)
}

/// Whether a pod counts as replaced if there should be no more pods of its budget than there are: then the scale of their
/// owners tells, if that has fallen.
fn is_replaced_if_scaled_down(disruptions: &Disruptions, held: &HeldPod, snapshot: &Snapshot) -> bool {
    let key = BudgetKey::from(&disruptions.pdb);
    let counts_present_pods = snapshot
        .budgets
        .get(&key)
        .is_some_and(|budget| budget.counts_present_pods);
    let facts = snapshot.facts.get(&key).filter(|_| counts_present_pods).cloned();
    let facts = facts.map(|mut facts| {
        (facts.expected_pods, facts.pods.expected) = (facts.pods.all, facts.pods.all);
        facts
    });
    facts.is_some()
        && is_replaced(
            disruptions,
            held,
            snapshot.ledger.as_deref(),
            facts.as_ref(),
            &snapshot.held,
        )
}

/// Whether a held pod is not among the healthy ones, nor its successor by name.
fn is_missing(pod: &HeldPod, budget: &BudgetKey, facts: &BudgetFacts, there: &Named) -> bool {
    let key = PodKey::new(budget.namespace.clone(), pod.name.as_str());
    !facts.healthy.contains(pod.uid.as_str()) && !has_successor(&key, &pod.uid, there)
}
