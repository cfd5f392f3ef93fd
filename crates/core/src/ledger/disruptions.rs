//! Lists of disruptions: which pods, by which budget.

use nodeward_api::budget_ref::BudgetRef;

use super::{Disruptions, HeldPod, Need};
use crate::id::BudgetKey;

/// A number of things, as the API counts.
pub(super) fn count(things: usize) -> i32 {
    i32::try_from(things).unwrap_or(i32::MAX)
}

/// Whether both mean the budget of one name, be it the same object or one made again.
pub(super) fn same_key(a: &BudgetRef, b: &BudgetRef) -> bool {
    a.namespace == b.namespace && a.name == b.name
}

pub(super) fn is_of(budget: &BudgetRef, key: &BudgetKey) -> bool {
    *budget.name == *key.name && *budget.namespace == *key.namespace
}

pub(super) fn holds_pod(disruptions: &[Disruptions], pod_uid: &str) -> bool {
    disruptions.iter().any(|u| u.pods.iter().any(|pod| pod.uid == pod_uid))
}

/// Whether the list has this pod by the budget of this name.
pub(super) fn holds_pod_of(disruptions: &[Disruptions], budget: &BudgetRef, pod_uid: &str) -> bool {
    pods_of(disruptions, budget).any(|pod| pod.uid == pod_uid)
}

/// Whether the list has this pod by this very budget.
fn has(disruptions: &[Disruptions], budget: &BudgetRef, pod_uid: &str) -> bool {
    disruptions
        .iter()
        .any(|u| u.pdb == *budget && u.pods.iter().any(|pod| pod.uid == pod_uid))
}

/// One entry a budget, sorted by it; one a pod, sorted by UID. A list that says the same is the same.
pub(super) fn normal(disruptions: impl IntoIterator<Item = Disruptions>) -> Vec<Disruptions> {
    let mut normal: Vec<Disruptions> = Vec::new();
    for disruption in disruptions {
        add(&mut normal, &disruption);
    }
    normal.retain(|u| !u.is_empty());
    normal.sort_by(|a, b| order(&a.pdb).cmp(&order(&b.pdb)));
    normal
}

fn order(budget: &BudgetRef) -> (&str, &str, &str) {
    (&budget.namespace, &budget.name, &budget.uid)
}

/// Adds what is not in the list yet.
pub(super) fn add(disruptions: &mut Vec<Disruptions>, more: &Disruptions) {
    let present = disruptions.iter().position(|u| u.pdb == more.pdb).unwrap_or_else(|| {
        disruptions.push(Disruptions {
            pods: Vec::new(),
            ..more.clone()
        });
        disruptions.len() - 1
    });
    let entry = &mut disruptions[present];
    entry.healthy_at_grant = entry.healthy_at_grant.max(more.healthy_at_grant);
    entry.movable |= more.movable;
    for pod in &more.pods {
        if entry.pods.iter().all(|known| known.uid != pod.uid) {
            entry.pods.push(pod.clone());
        }
    }
    entry.pods.sort_by(|a, b| a.uid.cmp(&b.uid));
}

/// Of `needs`, what is not in `holds`.
pub(super) fn missing(needs: &[Disruptions], holds: &[Disruptions]) -> Vec<Disruptions> {
    let mut missing = needs.to_vec();
    for disruption in &mut missing {
        disruption.pods.retain(|pod| !has(holds, &disruption.pdb, &pod.uid));
        disruption.movable &= !has_movable(holds, &disruption.pdb);
    }
    missing.retain(|u| !u.is_empty());
    missing
}

/// Whether the list has a disruption of this very budget for movable pods.
pub(super) fn has_movable(disruptions: &[Disruptions], budget: &BudgetRef) -> bool {
    disruptions.iter().any(|u| u.pdb == *budget && u.movable)
}

/// Gives the pods that are still without a disruption the ones of movable pods that need none any more. Of each budget that is one,
/// so the claim holds no more than before.
pub(super) fn hand_on_movable(holds: &mut [Disruptions], needs: &[Disruptions]) {
    for needed in needs.iter().filter(|needed| !needed.movable) {
        let held = holds.iter_mut().find(|held| held.pdb == needed.pdb && held.movable);
        let Some(held) = held else { continue };
        let is_without = |pod: &&HeldPod| held.pods.iter().all(|known| known.uid != pod.uid);
        if let Some(pod) = needed.pods.iter().find(is_without).cloned() {
            held.movable = false;
            held.pods.push(pod);
            held.pods.sort_by(|a, b| a.uid.cmp(&b.uid));
        }
    }
}

/// Gives up the disruptions for movable pods of which `keeps` does not hold; answers how many.
pub(super) fn retain_movable(disruptions: &mut Vec<Disruptions>, keeps: impl Fn(&BudgetRef) -> bool) -> usize {
    let before = len(disruptions);
    for disruption in disruptions.iter_mut() {
        disruption.movable &= keeps(&disruption.pdb);
    }
    disruptions.retain(|u| !u.is_empty());
    before - len(disruptions)
}

/// Notes which pods are to stay by now, of those that were to leave.
pub(super) fn retain_pods(holds: &mut [Disruptions], needs: &[Disruptions]) {
    let stays = |uid: &str| {
        needs
            .iter()
            .flat_map(|u| &u.pods)
            .any(|pod| pod.uid == uid && pod.retained)
    };
    for held in holds.iter_mut().flat_map(|u| &mut u.pods) {
        held.retained |= stays(&held.uid);
    }
}

/// Keeps the disruptions of pods for which `keep` holds; answers how many went.
pub(super) fn retain(disruptions: &mut Vec<Disruptions>, keep: impl Fn(&BudgetRef, &HeldPod) -> bool) -> usize {
    let before = len(disruptions);
    for disruption in disruptions.iter_mut() {
        let Disruptions { pdb, pods, .. } = disruption;
        pods.retain(|pod| keep(pdb, pod));
    }
    disruptions.retain(|u| !u.is_empty());
    before - len(disruptions)
}

pub(super) fn len(disruptions: &[Disruptions]) -> usize {
    disruptions.iter().map(|u| u.pods.len() + usize::from(u.movable)).sum()
}

/// The pods of the list by the budget of this name.
pub(super) fn pods_of<'a>(disruptions: &'a [Disruptions], budget: &BudgetRef) -> impl Iterator<Item = &'a HeldPod> {
    let of_budget = disruptions.iter().filter(move |u| same_key(&u.pdb, budget));
    of_budget.flat_map(|u| &u.pods)
}

/// Whether one of the budgets of `needs` is among those of `holds`.
pub(super) fn meet(needs: &[Need], holds: &[Disruptions]) -> bool {
    needs.iter().any(|n| holds.iter().any(|h| same_key(&n.pdb, &h.pdb)))
}
