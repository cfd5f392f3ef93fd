//! When a pod that was down counts as back, so that its unit returns: by what is observed, never by time. Pure.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use nodeward_core::id::{BudgetKey, PodKey};
use nodeward_core::ledger::{BudgetFacts, Claim, HeldPod, Units};

use crate::snapshot::{LedgerState, NodeFacts, PodFacts, Snapshot};

/// Whether a pod that stayed on its node has come back with it: the node is Ready in another boot than at the grant, and
/// since it is, the pod was started anew, or became Ready anew.
///
/// A pod of the host's network may run, and be Ready, before its node is. It is back if all of that happened since the
/// claim stands where it does: it was started, it became Ready, and its node was seen to return.
pub fn is_back(pod: &PodFacts, node: &NodeFacts, claim: &Claim) -> bool {
    let has_rebooted = claim.has_rebooted(&node.boot_id);
    let Some(returned) = node
        .ready_since
        .filter(|_| node.ready && has_rebooted && pod.is_healthy())
    else {
        return false;
    };
    let started_since = |moment| pod.started_at.is_some_and(|started| started > moment);
    let ready_since = |moment| pod.ready_since.is_some_and(|ready| ready > moment);
    let all_since = |moment| returned > moment && started_since(moment) && ready_since(moment);
    started_since(returned) || ready_since(returned) || all_since(claim.since)
}

/// Whether a pod of the same name, which is not the one of this UID on the node that was drained, is Ready: the successor
/// in a StatefulSet.
pub fn has_replacement(key: &PodKey, uid: &str, snapshot: &Snapshot) -> bool {
    snapshot
        .held
        .get(key)
        .is_some_and(|pod| pod.uid.as_str() != uid && pod.is_healthy())
}

/// Whether a pod that has gone counts as replaced, because its budget has as many healthy pods as before the grant.
///
/// Replacements bear names of their own, so that nobody can tell whose they are: the budget tells how many of its held
/// units are still missing, and of the pods that are gone the ones of the oldest claims count as replaced first.
pub fn has_recovered(units: &Units, held: &HeldPod, snapshot: &Snapshot) -> bool {
    let key = BudgetKey::from(&units.pdb);
    let Some(facts) = snapshot.facts.get(&key).filter(|facts| *facts.uid == *units.pdb.uid) else {
        // Nobody counts its pods any more.
        return true;
    };
    let LedgerState::Present(ledger) = &snapshot.ledger else {
        return false;
    };
    let mut claims: Vec<_> = ledger.ledger.claims().iter().collect();
    claims.sort_by_key(|claim| claim.ticket);
    let holds = claims
        .iter()
        .flat_map(|claim| &claim.holds)
        .filter(|other| other.pdb == units.pdb);
    let mut healthy_before = 0;
    let mut down = Vec::new();
    for other in holds {
        healthy_before = healthy_before.max(other.healthy_at_grant);
        down.extend(other.pods.iter().filter(|pod| is_missing(pod, &key, facts, snapshot)));
    }
    let expected = healthy_before.min(facts.expected_pods);
    let healthy = i32::try_from(facts.healthy.len()).unwrap_or(i32::MAX);
    let still_missing = usize::try_from(expected.saturating_sub(healthy)).unwrap_or_default();
    let replaced = down.len().saturating_sub(still_missing);
    let pods: BTreeMap<&str, &PodFacts> = down
        .iter()
        .filter_map(|pod| {
            let key = PodKey::new(units.pdb.namespace.as_str(), pod.name.as_str());
            Some((pod.uid.as_str(), &**snapshot.held.get(&key)?))
        })
        .collect();
    let is_gone = |pod: &&&HeldPod| {
        pods.get(pod.uid.as_str())
            .is_none_or(|there| there.uid.as_str() != pod.uid)
    };
    let mut gone = down.iter().filter(is_gone).take(replaced);
    facts.current && gone.any(|pod| pod.uid == held.uid)
}

/// Whether a held pod is not among the healthy ones, nor its successor by name.
fn is_missing(pod: &HeldPod, budget: &BudgetKey, facts: &BudgetFacts, snapshot: &Snapshot) -> bool {
    let key = PodKey::new(budget.namespace.clone(), pod.name.as_str());
    !facts.healthy.contains(pod.uid.as_str()) && !has_replacement(&key, &pod.uid, snapshot)
}
