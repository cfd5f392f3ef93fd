//! Numbers that are only ever compared are named anew in each state: tickets by their order, grants, boots and successors of
//! a pod by what still tells them apart. States that differ in nothing else are one, and a run that comes round to where it
//! was is seen as the circle that it is.

use std::collections::BTreeSet;

use nodeward_core::ledger::{Fence, Ledger};

use crate::decide::fence_of;
use crate::world::{NODES, Plan, Pod, SLOTS, State, Step, Text, node_uid, parse_pod, pod_uid};

/// What is named anew.
#[derive(Debug, Clone)]
pub struct Names {
    ledger: Text,
    pods: [Pod; SLOTS],
    boots: [u8; NODES],
}

/// A write that was decided and not done rests on the names as they were, so it keeps them. Where the age of pods counts,
/// their names do, too.
pub fn name_anew(plan: &Plan, state: &mut State) {
    if plan.by_number.is_some() {
        return;
    }
    if state
        .paused
        .iter()
        .flatten()
        .any(|step| matches!(step, Step::Write { .. }))
    {
        return;
    }
    let boots = state.nodes.map(|node| node.boots);
    let names = plan.names.get_or((&state.ledger, state.pods, boots), || {
        find(&state.ledger, state.pods, boots)
    });
    for step in state.paused.iter_mut().flatten() {
        let Step::Evict {
            slot,
            generation,
            fence,
        } = step
        else {
            continue;
        };
        let node = node_uid(plan.slots[*slot].node.unwrap_or_default());
        // A grant that is over never is in force again.
        let present = fence_of(&state.ledger, &node) == Some(*fence);
        *fence = fence_of(&names.ledger, &node).filter(|_| present).unwrap_or(PAST);
        if let Pod::Up(now) = names.pods[*slot] {
            *generation = now;
        }
    }
    state.ledger = names.ledger;
    state.pods = names.pods;
    for (node, boots) in state.nodes.iter_mut().zip(names.boots) {
        node.boots = boots;
    }
}

const PAST: Fence = Fence { ticket: -1, grant: -1 };

fn find(ledger: &Ledger, pods: [Pod; SLOTS], boots: [u8; NODES]) -> Names {
    let mut ledger = ledger.clone();
    let mut known: [BTreeSet<u8>; SLOTS] = pods.map(|pod| match pod {
        Pod::Absent | Pod::Moved => BTreeSet::new(),
        Pod::Up(generation) | Pod::Down(generation) => BTreeSet::from([generation]),
    });
    for disruption in ledger.claims().iter().flat_map(|claim| &claim.holds) {
        for pod in &disruption.pods {
            let (slot, generation) = parse_pod(&pod.uid);
            known[slot].insert(generation);
        }
    }
    let new_name = |slot: usize, generation: u8| -> u8 {
        let place = known[slot].iter().position(|other| *other == generation);
        u8::try_from(place.unwrap()).unwrap()
    };
    let new_boots = std::array::from_fn(|number| {
        let claim = ledger
            .claim(&node_uid(number))
            .filter(|claim| !claim.boot_id.is_empty());
        u8::from(claim.is_some_and(|claim| claim.boot_id != boots[number].to_string()))
    });
    ledger.next_ticket = i64::try_from(ledger.claims.len()).unwrap() + 1;
    for (claim, ticket) in ledger.claims.iter_mut().zip(1..) {
        (claim.ticket, claim.grant) = (ticket, 0);
        if !claim.boot_id.is_empty() {
            "0".clone_into(&mut claim.boot_id);
        }
        for disruption in &mut claim.holds {
            disruption.healthy_at_grant = 0;
            for pod in &mut disruption.pods {
                let (slot, generation) = parse_pod(&pod.uid);
                pod.uid = pod_uid(slot, new_name(slot, generation));
            }
        }
    }
    let pods = std::array::from_fn(|slot| match pods[slot] {
        Pod::Absent => Pod::Absent,
        Pod::Moved => Pod::Moved,
        Pod::Up(generation) => Pod::Up(new_name(slot, generation)),
        Pod::Down(generation) => Pod::Down(new_name(slot, generation)),
    });
    Names {
        ledger: Text::from(ledger),
        pods,
        boots: new_boots,
    }
}
