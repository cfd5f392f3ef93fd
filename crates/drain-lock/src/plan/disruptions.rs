//! Which disruptions of which budgets a drain needs. Pure.

use std::collections::{BTreeMap, BTreeSet};

use nodeward_api::BudgetRef;
use nodeward_api::reason::LockReason;
use nodeward_core::id::BudgetKey;
use nodeward_core::ledger::{BudgetFacts, Claim, ClaimState, Disruptions, HeldPod, Unusable};

use crate::snapshot::{PodFacts, Snapshot};

use super::need::{Class, ClassifiedPod};
use super::obstacles::Obstacles;

/// The pods of each budget that stay down with their node. First come those that find no room: they are back wherever somebody
/// makes some, the others with the node alone. An unready pod counts as if it were ready, but for one that must leave and that its
/// budget lets go while it is not (`AlwaysAllow`): that takes nothing from anybody.
pub(super) fn pods_that_stay_down<'a>(
    pods: &[ClassifiedPod],
    snapshot: &'a Snapshot,
) -> BTreeMap<&'a BudgetKey, Vec<HeldPod>> {
    let mut stay_down: BTreeMap<&BudgetKey, Vec<HeldPod>> = BTreeMap::new();
    let finds_no_room = |one: &&ClassifiedPod| one.class == Class::Held(LockReason::NoRoom);
    let (without_room, others): (Vec<_>, Vec<_>) = pods.iter().partition(finds_no_room);
    for ClassifiedPod { pod, class, .. } in without_room.into_iter().chain(others) {
        let retained = match class {
            Class::Held(_) => false,
            Class::Retained(_) => true,
            Class::Ignored(_) | Class::Finished | Class::WaitsCompleted | Class::Movable | Class::LeftToOwner => {
                continue;
            }
        };
        for key in snapshot.budgets_of(pod) {
            if retained || !lets_unready_go(key, pod, snapshot) {
                let pod = HeldPod::new(&pod.key, &pod.uid, retained);
                stay_down.entry(key).or_default().push(pod);
            }
        }
    }
    stay_down
}

/// What a drain needs of budgets.
#[derive(Debug, Clone, Default)]
pub(super) struct Needed {
    pub disruptions: Vec<Disruptions>,
    /// Budgets whose movable pods have to leave before the claim is asked for.
    pub movable_first: BTreeSet<BudgetKey>,
    /// Budgets that can never spare as many disruptions as it takes.
    pub excesses: Vec<Excess>,
    /// Budgets of which more pods stay down than they can ever spare, only for the cordons of other drains.
    pub crowded_out: BTreeSet<BudgetKey>,
    pub obstacles: Obstacles,
}

/// More disruptions of a budget than it can ever spare.
#[derive(Debug, Clone)]
pub struct Excess {
    pub budget: BudgetKey,
    /// What the pods take that stay down with the node.
    pub needed: i32,
    /// What there ever is.
    pub most: i32,
    /// Whether it is the last pod to leave, a movable one, that takes one more.
    pub is_for_last: bool,
    /// Whether it is none once every pod that finds no room has some.
    pub is_of_room: bool,
}

/// How a drain asks, as far as its need depends on that.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub claim: Option<&'a Claim>,
    /// Whether pods that have an obstacle are left out.
    pub leaves_out: bool,
    /// Whether pods find no room for the cordons of other drains. It takes a while to tell.
    pub is_crowded_out: &'a dyn Fn() -> bool,
    /// Whether its drainer asks for no movable pod now: it goes last, or the drainer asks for others first.
    pub goes_nowhere: bool,
}

impl Asking<'_> {
    /// Whether pods leave by what the claim holds.
    pub(super) fn evicts(&self) -> bool {
        let has_begun = |claim: &Claim| claim.state == ClaimState::Confirmed && !claim.may_go_down;
        self.claim.is_some_and(has_begun)
    }
}

/// What a drain needs: of each budget one disruption for each pod that stays down, and one for its movable pods.
///
/// Where a budget never has that many, pods that stay down go after the movable ones. Those that stay on the node do not: with the
/// last pod that leaves it may go down, and they with it.
pub(super) fn needed(pods: &[ClassifiedPod], asking: Asking<'_>, snapshot: &Snapshot) -> Needed {
    let claim = asking.claim;
    let mut needs = pods_that_stay_down(pods, snapshot);
    let mut excesses = excesses(pods, &needs, claim, snapshot);
    let is_crowded_out = excesses.iter().any(|excess| excess.is_of_room) && (asking.is_crowded_out)();
    let crowded_out = excesses.extract_if(.., |excess| excess.is_of_room && is_crowded_out);
    let crowded_out: BTreeSet<BudgetKey> = crowded_out.map(|excess| excess.budget).collect();
    let mut obstacles = Obstacles::default();
    for one in pods.iter().filter(|one| one.class == Class::LeftToOwner) {
        let pod = HeldPod::new(&one.pod.key, &one.pod.uid, false);
        obstacles.note(&pod, LockReason::BudgetNeverAllows, true);
    }
    for (key, pods) in &needs {
        let Some(budget) = snapshot.facts.get(*key) else {
            continue;
        };
        obstacles.is_behind |= !budget.current;
        let mut of_room = excesses.iter().filter(|excess| excess.is_of_room);
        // Room that nobody makes before a pod waits for it comes with the first ones: an autoscaler adds a node for them.
        let makes_room = of_room.any(|excess| excess.budget == **key);
        obstacles.note_staying(pods, budget, makes_room, asking, snapshot);
    }
    needs.retain(|_, pods| {
        pods.retain(|pod| !obstacles.left_out.contains(pod.uid.as_str()));
        !pods.is_empty()
    });
    let mut movable: BTreeSet<&BudgetKey> = movable(pods, claim, snapshot).collect();
    movable.retain(|key| !obstacles.note_movable(key, pods, asking, snapshot));
    for key in &movable {
        needs.entry(*key).or_default();
    }
    let mut movable_first = BTreeSet::new();
    let mut disruptions = Vec::new();
    for (key, mut pods) in needs {
        let facts = snapshot.facts.get(key);
        let mut with_movable = movable.contains(key);
        if with_movable && !go_after_movable(&mut pods, key, asking, facts) {
            // Either the last pod waits for the claim, and the claim has nothing for it, or pods that are down have all of it.
            let is_for_last = asking.goes_nowhere || pods.is_empty();
            if is_for_last {
                obstacles.is_waited_for = true;
                excesses.extend(facts.map(|facts| Excess {
                    is_for_last: true,
                    ..Excess::of(facts, &pods, claim)
                }));
            }
            if is_for_last && asking.leaves_out {
                let (retained, leaving): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| pod.retained);
                for pod in &retained {
                    obstacles.note(pod, LockReason::NeedExceedsBudget, true);
                }
                pods = leaving;
                with_movable = facts.is_none_or(|facts| cost(facts, &pods, claim) < facts.ceiling());
            } else {
                movable_first.insert(key.clone());
                with_movable = false;
            }
        }
        disruptions.push(Disruptions {
            pdb: budget_ref(key, snapshot),
            healthy_at_grant: 0,
            movable: with_movable,
            pods,
        });
    }
    Needed {
        disruptions,
        movable_first,
        excesses,
        crowded_out,
        obstacles,
    }
}

impl Excess {
    fn of(budget: &BudgetFacts, pods: &[HeldPod], claim: Option<&Claim>) -> Self {
        Self {
            budget: budget.key.clone(),
            needed: cost(budget, pods, claim),
            most: budget.ceiling(),
            is_for_last: false,
            is_of_room: false,
        }
    }
}

/// How many disruptions of the budget these pods take, with those that are down under the claim already.
pub(super) fn cost(budget: &BudgetFacts, pods: &[HeldPod], claim: Option<&Claim>) -> i32 {
    budget.cost(pods.iter().chain(down(budget, pods, claim)))
}

/// What the claim holds of the budget beside these pods, which are here.
fn down<'a>(
    budget: &'a BudgetFacts,
    here: &'a [HeldPod],
    claim: Option<&'a Claim>,
) -> impl Iterator<Item = &'a HeldPod> {
    let holds = claim.into_iter().flat_map(|claim| &claim.holds);
    let held = holds.filter(|held| BudgetKey::from(&held.pdb) == budget.key);
    held.flat_map(|held| &held.pods)
        .filter(|down| !here.iter().any(|pod| pod.uid == down.uid))
}

/// The budgets of which more pods stay down than they can ever spare.
fn excesses(
    pods: &[ClassifiedPod],
    stay_down: &BTreeMap<&BudgetKey, Vec<HeldPod>>,
    claim: Option<&Claim>,
    snapshot: &Snapshot,
) -> Vec<Excess> {
    let finds_no_room = |pod: &HeldPod| {
        let mut pods = pods.iter().filter(|classified| classified.pod.uid.as_str() == pod.uid);
        pods.any(|classified| classified.class == Class::Held(LockReason::NoRoom))
    };
    let budgets = stay_down
        .iter()
        .filter_map(|(key, pods)| Some((snapshot.facts.get(*key)?, pods)));
    let counted = budgets.filter(|(budget, _)| budget.current && budget.unusable.is_none());
    let excesses = counted.map(|(budget, pods)| {
        let with_room = pods.iter().filter(|pod| !finds_no_room(pod));
        Excess {
            is_of_room: budget.cost(with_room.chain(down(budget, pods, claim))) <= budget.ceiling(),
            ..Excess::of(budget, pods, claim)
        }
    });
    excesses.filter(|excess| excess.needed > excess.most).collect()
}

/// The budgets that movable pods take a disruption of, but for those which the claim has one for by name.
fn movable<'a>(
    pods: &'a [ClassifiedPod],
    claim: Option<&'a Claim>,
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = &'a BudgetKey> {
    let pods = pods.iter().filter(|classified| classified.class == Class::Movable);
    pods.filter_map(move |ClassifiedPod { pod, .. }| match claim {
        Some(claim) if claim.has_disruption(pod.uid.as_str()) => None,
        // Until it has gone, what it took is not handed on.
        Some(claim) if pod.deletion.is_some() => {
            let mut budgets = snapshot.budgets_of(pod).iter();
            budgets.find(|key| claim.has_movable_disruption(key))
        }
        _ => moves_by(pod, snapshot),
    })
}

/// The very budget of this name that there is.
pub(super) fn budget_ref(key: &BudgetKey, snapshot: &Snapshot) -> BudgetRef {
    let facts = snapshot.facts.get(key);
    BudgetRef {
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        uid: facts.map(|budget| budget.uid.to_string()).unwrap_or_default(),
    }
}

/// The budget that a movable pod takes a disruption of. One that never gives it, or that the eviction API does not ask, is none:
/// no claim helps such a pod.
pub(super) fn moves_by<'a>(pod: &PodFacts, snapshot: &'a Snapshot) -> Option<&'a BudgetKey> {
    let [key] = snapshot.budgets_of(pod) else { return None };
    let unusable = snapshot.facts.get(key).and_then(|budget| budget.unusable);
    let gives = !unusable.is_some_and(Unusable::is_for_good);
    // An unready pod goes beside its budget while that has its other pods.
    let goes_unready = !pod.ready
        && snapshot
            .budgets
            .get(key)
            .is_some_and(|budget| budget.view.lets_unready_go());
    (gives && !pod.skips_budgets() && !goes_unready).then_some(key)
}

fn lets_unready_go(budget: &BudgetKey, pod: &PodFacts, snapshot: &Snapshot) -> bool {
    let budget = snapshot.budgets.get(budget);
    !pod.ready && budget.is_some_and(|budget| budget.view.always_lets_unready_go())
}

/// Leaves out pods that go after the movable ones of their budget. Answers whether that leaves a disruption for these.
///
/// Once it is granted one, a claim keeps it for as long as they need it, whatever the budget has by then, unless its drainer asks
/// for those other pods first all the same: these have it then.
fn go_after_movable(
    pods: &mut Vec<HeldPod>,
    key: &BudgetKey,
    asking: Asking<'_>,
    budget: Option<&BudgetFacts>,
) -> bool {
    let claim = asking.claim;
    let has = |pod: &HeldPod| claim.is_some_and(|claim| claim.has_disruption(&pod.uid));
    let goes_after = |pod: &HeldPod| !pod.retained && !has(pod);
    let has_movable = claim.is_some_and(|claim| claim.state.has_grant() && claim.has_movable_disruption(key));
    if has_movable && !(asking.goes_nowhere && pods.iter().any(goes_after)) {
        pods.retain(has);
        return true;
    }
    let Some(budget) = budget else { return true };
    let cost = |pods: &[HeldPod]| cost(budget, pods, claim);
    if cost(pods) > budget.ceiling() {
        // No order helps.
        return true;
    }
    let leaves_one = |pods: &[HeldPod]| cost(pods) < budget.ceiling();
    while !has_movable && !leaves_one(pods) {
        let Some(last) = pods.iter().rposition(goes_after) else {
            break;
        };
        pods.remove(last);
    }
    leaves_one(pods) || cost(pods) == 0
}
