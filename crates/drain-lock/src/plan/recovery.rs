//! Which pods of a claim are down, and when they count as back, so that their disruptions return: by what is observed, never by
//! time. What is observed of a pod that is there is judged by [`nodeward_core::ledger`] (`recovery.rs`). Pure.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nodeward_core::id::{BudgetKey, PodKey};
use nodeward_core::ledger::{BudgetFacts, Disruptions, HeldPod, HeldPodState};

use crate::snapshot::{Memory, PodFacts, Snapshot};

use super::action::CalledOff;
use super::drain_context::DrainRecord;

/// The pods of one claim that are down, and those that are back.
#[derive(Debug, Clone, Default)]
pub struct UnavailablePods {
    down: BTreeSet<String>,
    recovered: BTreeSet<String>,
    gone: Vec<(PodKey, String)>,
    called_off: Option<CalledOff>,
    changes_at: Option<Timestamp>,
}

impl UnavailablePods {
    /// Looks at the pods that a drain's claim holds disruptions for.
    pub fn of(record: &DrainRecord, snapshot: &Snapshot, memory: &Memory, now: Timestamp) -> Self {
        let mut this = Self::default();
        for disruptions in record.claim.iter().flat_map(|claim| &claim.holds) {
            for held in &disruptions.pods {
                let mut pods = record.pods(snapshot).iter();
                let state = match pods.find(|pod| pod.uid.as_str() == held.uid) {
                    Some(pod) if pod.deletion.is_some() || memory.is_asked_to_go(&held.uid, now) => HeldPodState::Down,
                    // A graceful shutdown of the node leaves its pods behind as Failed: none of them starts again.
                    Some(pod) if pod.is_finished() => this.state_of_gone(disruptions, held, snapshot),
                    Some(pod) => this.state_of_present(record, held, pod, snapshot, now),
                    None => this.state_of_gone(disruptions, held, snapshot),
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

    fn state_of_gone(&mut self, disruptions: &Disruptions, held: &HeldPod, snapshot: &Snapshot) -> HeldPodState {
        let key = PodKey::new(disruptions.pdb.namespace.as_str(), held.name.as_str());
        if !has_replacement(&key, &held.uid, snapshot) && !has_recovered(disruptions, held, snapshot) {
            return HeldPodState::Down;
        }
        self.gone.push((key, held.uid.clone()));
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
    pub fn gone(&self) -> &[(PodKey, String)] {
        &self.gone
    }
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
pub fn has_replacement(key: &PodKey, uid: &str, snapshot: &Snapshot) -> bool {
    let there = snapshot.held.get(key);
    there.is_some_and(|pod| pod.uid.as_str() != uid && pod.is_healthy())
}

/// Whether a pod that has gone counts as replaced, because its budget has as many healthy pods as before the grant.
///
/// Replacements bear names of their own, so that nobody can tell whose they are: the budget tells how many of its held
/// disruptions are still missing, and of the pods that are gone the ones of the oldest claims count as replaced first.
pub fn has_recovered(disruptions: &Disruptions, held: &HeldPod, snapshot: &Snapshot) -> bool {
    let key = BudgetKey::from(&disruptions.pdb);
    let facts = snapshot.facts.get(&key);
    let Some(facts) = facts.filter(|facts| *facts.uid == *disruptions.pdb.uid) else {
        // Nobody counts its pods any more.
        return true;
    };
    let Some(ledger) = &snapshot.ledger else {
        return false;
    };
    let mut claims: Vec<_> = ledger.ledger.holders_of(&key).collect();
    claims.sort_by_key(|claim| claim.ticket);
    let holds = claims.iter().flat_map(|claim| &claim.holds);
    let mut healthy_before = 0;
    let mut down = Vec::new();
    for other in holds.filter(|other| other.pdb == disruptions.pdb) {
        healthy_before = healthy_before.max(other.healthy_at_grant);
        down.extend(other.pods.iter().filter(|pod| is_missing(pod, &key, facts, snapshot)));
    }
    let expected = healthy_before.min(facts.expected_pods);
    let healthy = i32::try_from(facts.healthy.len()).unwrap_or(i32::MAX);
    let still_missing = usize::try_from(expected.saturating_sub(healthy)).unwrap_or_default();
    let replaced = down.len().saturating_sub(still_missing);
    let is_gone = |pod: &&&HeldPod| {
        let key = PodKey::new(disruptions.pdb.namespace.as_str(), pod.name.as_str());
        let there = snapshot.held.get(&key);
        there.is_none_or(|there| there.uid.as_str() != pod.uid || there.is_finished())
    };
    let mut gone = down.iter().filter(is_gone).take(replaced);
    facts.current && gone.any(|pod| pod.uid == held.uid)
}

/// Whether a held pod is not among the healthy ones, nor its successor by name.
fn is_missing(pod: &HeldPod, budget: &BudgetKey, facts: &BudgetFacts, snapshot: &Snapshot) -> bool {
    let key = PodKey::new(budget.namespace.clone(), pod.name.as_str());
    !facts.healthy.contains(pod.uid.as_str()) && !has_replacement(&key, &pod.uid, snapshot)
}
