//! What must never be.

use std::collections::BTreeSet;

use nodeward_core::ledger::{Claim, ClaimState, Disruptions, Facts, HeldPod, Ledger, Need, Obstacle};
use stateright::Property;

use crate::decide::held;
use crate::world::{
    BUDGETS, Cordon, DONE, Plan, Pod, State, budget_key, node_uid, parse_budget, parse_node, parse_pod, pod_uid,
};

/// That nothing of what must never be has come about.
pub const NO_BREACH: &str = "no rule is broken";

pub fn properties() -> Vec<Property<Plan>> {
    vec![
        Property::always(NO_BREACH, |_, state: &State| state.breach.is_none()),
        // Checks that find nothing because nothing happens would find nothing either.
        Property::sometimes(DONE, |plan: &Plan, state: &State| state.is_done(plan)),
    ]
}

/// What is wrong with a state, however it came about.
pub fn breach_of_state(plan: &Plan, state: &State) -> Option<&'static str> {
    let claims = state.ledger.claims();
    let nodes: BTreeSet<&str> = claims.iter().map(|claim| claim.node_uid.as_str()).collect();
    if nodes.len() != claims.len() {
        return Some("I5: a node has two claims");
    }
    if claims.windows(2).any(|pair| pair[0].ticket >= pair[1].ticket) {
        return Some("I5: tickets are out of order");
    }
    if claims.iter().any(|claim| has_grant(claim) && !has_all(claim)) {
        return Some("I2: a grant of less than all");
    }
    if claims
        .iter()
        .any(|claim| waits(claim) && (holds_a_running_pod(state, claim) || claim.holds.iter().any(|held| held.movable)))
    {
        return Some("I3: a claim waits while it holds disruptions of running pods");
    }
    if (0..BUDGETS).any(|pdb| {
        let is_down = |slot, pod| matches!(pod, Pod::Down(_)) && !state.is_broken(plan, slot);
        state.disruptions(plan, pdb, is_down) > plan.budgets[pdb]
    }) {
        return Some("I1: more pods of a budget are down than it allows");
    }
    if claims.iter().any(|claim| waits_under_its_grant(plan, state, claim)) {
        return Some("I15: a claim with a grant waits for what another claim has");
    }
    let is_away = |node: &usize| {
        let node = &state.nodes[*node];
        node.cordon == Cordon::Ours || node.told || node.down
    };
    let mut groups = plan.groups.iter();
    if groups.any(|group| group.members.iter().filter(|node| is_away(node)).count() > group.max_unavailable) {
        return Some("I1: more nodes of a group are away than it allows");
    }
    None
}

/// Whether a movable pod waits for what another claim has or is to have, though its node's claim was granted all that its drain
/// needs, and the budget is what it was. One of several waits for the one that went before it.
fn waits_under_its_grant(plan: &Plan, state: &State, claim: &Claim) -> bool {
    let node = parse_node(&claim.node_uid);
    if claim.state != ClaimState::Confirmed || !plan.movable_of(node).any(|slot| state.is_up(slot)) {
        return false;
    }
    let question = (node, &state.ledger, state.pods, state.allowed, state.caps);
    plan.waits.get_or(question, || {
        let (needs, movable_first) = state.needs(plan, node);
        if movable_first || claim.lacks(&needs, |_| true) {
            return false;
        }
        let facts = state.facts(plan, false);
        plan.movable_of(node).filter(|slot| state.is_up(*slot)).any(|slot| {
            let pdb = plan.slots[slot].pdb;
            let is_same = state.ledger.free(&facts[&budget_key(pdb)]) >= 0;
            let by_another = |obstacle: Obstacle| obstacle.holder.is_some_and(|holder| holder.as_str() != claim.node);
            is_same && state.admission(plan, Some(node), pdb).is_err_and(by_another)
        })
    })
}

/// What is wrong with a node being told to go, or with its drainer being done with it.
pub fn breach_of_word(plan: &Plan, state: &State, node: usize) -> Option<&'static str> {
    let claim = state.ledger.claim(&node_uid(node));
    let has_disruption = |uid: &str| claim.is_some_and(|claim| claim.has_disruption(uid));
    let lacks = |slot: usize| match state.pods[slot] {
        Pod::Up(generation) => plan.slots[slot].retained && !has_disruption(&pod_uid(slot, generation)),
        Pod::Down(_) | Pod::Absent | Pod::Moved => false,
    };
    plan.slots_of(node)
        .any(lacks)
        .then_some("I14: a node is to go down over a pod that lacks its disruption")
}

fn has_grant(claim: &Claim) -> bool {
    claim.state.has_grant()
}

fn has_all(claim: &Claim) -> bool {
    claim.needs.is_empty()
}

fn waits(claim: &Claim) -> bool {
    claim.state == ClaimState::Waiting || claim.state == ClaimState::Returning
}

/// A pod that has not gone down since its disruption was granted. One that stays may go down at any moment once its node was
/// told.
fn holds_a_running_pod(state: &State, claim: &Claim) -> bool {
    held(claim).any(|pod| {
        let (slot, generation) = parse_pod(&pod.uid);
        !pod.retained && state.pods[slot] == Pod::Up(generation)
    })
}

/// What is wrong with a write by what was read for it.
///
/// An eviction that was let through while the write was on its way goes unseen. That pod counts as what it is, an unhealthy
/// one of its budget, so nobody else is granted its disruption; a cache that lags in front of the eviction would let it through
/// in any case.
pub fn breach_of_decision(
    plan: &Plan,
    state: &State,
    node: usize,
    write: &Ledger,
    facts: &Facts,
) -> Option<&'static str> {
    let before: &Ledger = &state.ledger;
    // Where numbers tell who is back, they tell not which.
    let is_by_number = |slot: usize| plan.by_number == Some(plan.slots[slot].pdb);
    let is_down = |slot: usize| matches!(state.pods[slot], Pod::Down(_)) && !state.is_broken(plan, slot);
    let is_freed = |uid: &String| is_down(parse_pod(uid).0) && !is_by_number(parse_pod(uid).0);
    let down = (0..plan.slots.len()).filter(|slot| is_by_number(*slot) && is_down(*slot));
    let is_missing = |pod: &&HeldPod| {
        let (slot, generation) = parse_pod(&pod.uid);
        is_by_number(slot) && state.pods[slot] != Pod::Up(generation)
    };
    let missing = write.claims().iter().flat_map(held).filter(is_missing);
    if freed(before, write).iter().any(is_freed) || missing.count() < down.count() {
        return Some("I6: the disruption of a pod that is down was freed");
    }
    let own = node_uid(node);
    // Who reserves is noted at each write, whoever writes: it is a function of all claims.
    let is_same = |was: &Claim, is: &Claim| {
        let reserves = is.reserves;
        Claim {
            reserves,
            ..was.clone()
        } == *is
    };
    let is_changed = |claim: &&Claim| {
        let is = write.claim(&claim.node_uid);
        claim.node_uid != own && !is.is_some_and(|is| is_same(claim, is))
    };
    if before.claims().iter().any(|claim| is_changed(&claim)) {
        return Some("I7: a claim was changed by another than its owner");
    }
    if overtakes(before, write, &own, facts) {
        return Some("I9: a claim that waits for disruptions is overtaken on its budgets");
    }
    None
}

/// The pods whose disruptions a write takes from their claims.
fn freed(before: &Ledger, write: &Ledger) -> Vec<String> {
    let is_gone = |claim: &Claim, uid: &str| {
        let after = write.claim(&claim.node_uid);
        after.is_none_or(|after| held(after).all(|other| other.uid != uid))
    };
    let mut freed = Vec::new();
    for claim in before.claims() {
        freed.extend(
            held(claim)
                .filter(|pod| is_gone(claim, &pod.uid))
                .map(|pod| pod.uid.clone()),
        );
    }
    freed
}

/// What is wrong with a write of the ledger at the moment at which it is done.
pub fn breach_of_write(plan: &Plan, state: &State, write: &Ledger) -> Option<&'static str> {
    let before: &Ledger = &state.ledger;
    let stays = |uid: &String| {
        let slot = parse_pod(uid).0;
        // Of one that is not Ready for a while nobody knew when the write was decided.
        let is_unready = plan.slots[slot].node.is_some_and(|node| state.nodes[node].not_ready);
        plan.slots[slot].retained && !state.is_up(slot) && !is_unready
    };
    if freed(before, write).iter().any(stays) {
        return Some("I6: the disruption of a pod that stayed on a node which went down was freed");
    }
    for claim in write
        .claims()
        .iter()
        .filter(|claim| claim.state == ClaimState::Confirmed)
    {
        let was = before
            .claim(&claim.node_uid)
            .is_some_and(|was| was.state == ClaimState::Confirmed);
        if !was && overruns(plan, state, write, claim) {
            return Some("I1: more is granted than the budget has");
        }
    }
    None
}

/// Whether what is down or may go down exceeds one of the claim's budgets.
fn overruns(plan: &Plan, state: &State, ledger: &Ledger, claim: &Claim) -> bool {
    claim.holds.iter().any(|disruptions| {
        let pdb = parse_budget(&disruptions.pdb.name);
        let may_go = |slot: usize, pod: Pod| match pod {
            Pod::Up(generation) => ledger.is_held(&format!("{slot}.{generation}")),
            Pod::Down(_) => !state.is_broken(plan, slot),
            Pod::Absent | Pod::Moved => false,
        };
        // A movable pod on its way has the disruption of its node's claim.
        let is_down = |slot: usize| plan.slots[slot].pdb == pdb && matches!(state.pods[slot], Pod::Down(_));
        let has_unused = |claim: &&Claim| {
            let is_on_its_way = plan.movable_of(parse_node(&claim.node_uid)).any(is_down);
            claim.has_movable_disruption(&budget_key(pdb)) && !is_on_its_way
        };
        let movable = count(ledger.claims().iter().filter(has_unused).count());
        state.disruptions(plan, pdb, may_go) + movable > plan.budgets[pdb]
    })
}

/// Whether a grant takes a disruption of a budget that a claim before it needs, and which nothing keeps from that claim but the
/// disruptions of claims that drain. Of those that wait for such disruptions the first alone is waited for.
fn overtakes(before: &Ledger, write: &Ledger, node_uid: &str, facts: &Facts) -> bool {
    let Some(is) = write.claim(node_uid) else { return false };
    let was = before.claim(node_uid);
    let asks = |claim: &&Claim| claim.state == ClaimState::Waiting && !claim.needs.is_empty();
    let any_holds_and_asks = before.claims().iter().filter(asks).any(|claim| !claim.holds.is_empty());
    let had_some = was.is_some_and(|was| has_grant(was) || !was.holds.is_empty());
    if had_some || !has_grant(is) || any_holds_and_asks {
        return false;
    }
    // A pod that is not healthy needs no disruption that anybody else could have.
    let wants = |claim: &Claim| -> BTreeSet<usize> {
        let needs = claim.needs.iter().filter(|need: &&Need| need.healthy > 0);
        needs.map(|need| parse_budget(&need.pdb.name)).collect()
    };
    let taken = |pdb: usize| -> i32 {
        let healthy = &facts[&budget_key(pdb)].healthy;
        let of_budget = is.holds.iter().filter(|held| parse_budget(&held.pdb.name) == pdb);
        let number = |held: &Disruptions| {
            let pods = held.pods.iter().filter(|pod| healthy.contains(pod.uid.as_str()));
            count(pods.count()) + i32::from(held.movable)
        };
        of_budget.map(number).sum()
    };
    for older in before
        .claims()
        .iter()
        .filter(asks)
        .filter(|older| older.ticket < is.ticket)
    {
        let mut waits = false;
        let is_given = |pdb: &usize| {
            let budget = &facts[&budget_key(*pdb)];
            let of_budget = |need: &&Need| parse_budget(&need.pdb.name) == *pdb;
            let exceeds = |need: &Need| need.disruptions > budget.ceiling();
            if budget.unusable.is_some() || older.needs.iter().filter(of_budget).any(exceeds) {
                return false;
            }
            let of_budget_movable = |claim: &Claim| claim.has_movable_disruption(&budget_key(*pdb));
            let mut granted: Vec<&str> = Vec::new();
            for claim in before.claims() {
                let of_budget = claim.holds.iter().filter(|u| parse_budget(&u.pdb.name) == *pdb);
                let held: Vec<&str> = of_budget.flat_map(|u| &u.pods).map(|pod| pod.uid.as_str()).collect();
                if !held.is_empty() && !has_grant(claim) {
                    return false;
                }
                waits |= of_budget_movable(claim);
                granted.extend(held);
            }
            waits |= !granted.is_empty();
            let unheld = budget.expected_pods - count(budget.healthy.len());
            let held_down = granted.iter().filter(|uid| !budget.healthy.contains(**uid)).count();
            let is_told = budget.disruptions_allowed == (count(budget.healthy.len()) - budget.desired_healthy).max(0);
            is_told && unheld <= count(held_down)
        };
        let wanted = wants(older);
        if !wanted.iter().all(is_given) {
            continue;
        }
        let leaves_too_few = |need: &Need| {
            let pdb = parse_budget(&need.pdb.name);
            let left = before.free(&facts[&budget_key(pdb)]) - taken(pdb);
            need.healthy > 0 && taken(pdb) > 0 && left < need.healthy
        };
        if older.needs.iter().any(leaves_too_few) {
            return true;
        }
        if waits {
            return false;
        }
    }
    false
}

fn count(things: usize) -> i32 {
    i32::try_from(things).unwrap()
}
