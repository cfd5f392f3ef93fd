//! The graph of all states. Without faults it must have no cycle, and where it ends every drain must be done: then every
//! run that has had its faults ends well, whatever the order of its steps.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use nodeward_api::reason::LockReason;
use nodeward_core::ledger::{Claim, Obstacle};
use stateright::Model;

use crate::world::{Cordon, Plan, Pod, State, parse_budget};

pub struct Graph {
    /// Steps without faults.
    steps: Vec<Vec<u32>>,
    ends: Vec<State>,
}

impl Graph {
    pub fn of(plan: &Plan) -> Self {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let mut known: HashMap<u64, u32> = HashMap::new();
        let mut open: Vec<(u32, State)> = Vec::new();
        let mut graph = Self {
            steps: Vec::new(),
            ends: Vec::new(),
        };
        for state in plan.init_states() {
            known.insert(hasher.hash_one(&state), 0);
            open.push((0, state));
            graph.steps.push(Vec::new());
        }
        let mut actions = Vec::new();
        while let Some((number, state)) = open.pop() {
            actions.clear();
            plan.actions(&state, &mut actions);
            for action in &actions {
                let Some(next) = plan.next_state(&state, *action) else {
                    continue;
                };
                let to = *known.entry(hasher.hash_one(&next)).or_insert_with(|| {
                    let to = u32::try_from(graph.steps.len()).unwrap();
                    graph.steps.push(Vec::new());
                    open.push((to, next));
                    to
                });
                if !action.is_fault() {
                    graph.steps[number as usize].push(to);
                }
            }
            if graph.steps[number as usize].is_empty() {
                graph.ends.push(state);
            }
        }
        graph
    }

    pub fn states(&self) -> usize {
        self.steps.len()
    }

    pub fn steps(&self) -> usize {
        self.steps.iter().map(Vec::len).sum()
    }

    pub fn ends(&self) -> usize {
        self.ends.len()
    }

    pub fn check(&self, plan: &Plan) -> Result<(), String> {
        if let Some(end) = self.ends.iter().find(|end| !ends_well(plan, end)) {
            return Err(format!("I8: no step is left, and not every drain is done: {end:#?}"));
        }
        if self.has_cycle() {
            return Err("I8: steps go round in a circle".to_owned());
        }
        Ok(())
    }

    /// Whether states are left when those that nothing leads to are taken away again and again.
    fn has_cycle(&self) -> bool {
        let mut leading_here = vec![0_u32; self.steps.len()];
        for to in self.steps.iter().flatten() {
            leading_here[*to as usize] += 1;
        }
        let mut free: Vec<usize> = (0..self.steps.len()).filter(|n| leading_here[*n] == 0).collect();
        let mut taken = 0;
        while let Some(number) = free.pop() {
            taken += 1;
            for to in &self.steps[number] {
                let count = &mut leading_here[*to as usize];
                *count -= 1;
                if *count == 0 {
                    free.push(*to as usize);
                }
            }
        }
        taken < self.steps.len()
    }
}

/// All drains are done; or what is left are nodes that somebody else cordoned, and claims that wait for what is down on
/// them, round in a circle that only whoever cordoned can open. They keep nothing from anybody else.
fn ends_well(plan: &Plan, state: &State) -> bool {
    if state.is_done(plan) {
        return true;
    }
    let facts = state.facts(plan, false);
    let waits = |claim: &Claim| {
        let obstacles = state.ledger.obstacles(&claim.node_uid, &facts);
        let is_down = |obstacle: &Obstacle| {
            let pdb = obstacle.pdb.as_ref().map(|key| parse_budget(&key.name));
            pdb.is_some_and(|pdb| state.down_in(plan, pdb) > 0)
        };
        let is_such = |obstacle: &Obstacle| {
            matches!(
                obstacle.reason,
                LockReason::CircularWait | LockReason::WaitsForDisruptions | LockReason::BudgetUnhealthy
            )
        };
        !obstacles.is_empty() && obstacles.iter().all(|obstacle| is_such(obstacle) && is_down(obstacle))
    };
    let is_under_a_foreign_cordon = |slot: usize| {
        let node = plan.slots[slot].node;
        node.is_some_and(|node| state.nodes[node].cordon == Cordon::Foreign)
    };
    let mut down = (0..plan.slots.len()).filter(|slot| matches!(state.pods[*slot], Pod::Down(_)));
    let claims = state.ledger.claims();
    claims.iter().filter(|claim| claim.foreign_cordon).count() >= 2
        && claims.iter().all(waits)
        && down.all(is_under_a_foreign_cordon)
        && state.paused.iter().all(Option::is_none)
}
