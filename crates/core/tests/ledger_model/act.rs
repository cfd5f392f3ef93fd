//! Everything that can happen next.
//!
//! Of the two leaders one acts as soon as it has decided; the other may stop in between for any time, while everything
//! else goes on. Which is which changes with every step. That both stop at once is left out: what each would do later rests
//! on what it read, not on the other's plans.

use nodeward_core::ledger::{Claim, ClaimState, Ledger};
use stateright::{Model, Property};

use crate::decide::{decide, held, running};
use crate::memo;
use crate::names::name_anew;
use crate::rules::Rule;
use crate::watch;
use crate::world::{BUDGETS, Cordon, Fault, NO_BUDGET, NODES, Node, Plan, Pod, State, Step, node_uid, pod_uid};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A leader reads, decides and acts at once.
    Prompt {
        node: usize,
    },
    /// A leader reads, and decides what to do for a node.
    Decide {
        node: usize,
        stale: bool,
    },
    /// A leader does what it decided, be it long ago.
    Act {
        leader: usize,
        again: bool,
    },
    Crash {
        leader: usize,
    },
    /// The disruption controller catches up.
    Sync {
        pdb: usize,
    },
    NodeDown {
        node: usize,
    },
    NodeUp {
        node: usize,
    },
    PodsReady {
        node: usize,
    },
    OtherReady {
        slot: usize,
    },
    /// Ceph's operator sees a pod down: it leaves the pod's node out of its budget, and closes that.
    CephCloses {
        node: usize,
    },
    /// Ceph's operator sees all pods up again.
    CephOpens,
    /// Another drainer evicts from the node that it cordoned.
    RequesterEvicts {
        slot: usize,
    },
    /// Another drainer is done with its node.
    RequesterDone {
        node: usize,
    },
    OtherEviction {
        slot: usize,
    },
    Overdue {
        node: usize,
    },
    LatePod {
        slot: usize,
    },
    Vanish {
        node: usize,
    },
    Return {
        node: usize,
    },
    /// Its kubelet reports for the first time since its reboot.
    Report {
        node: usize,
    },
    /// It is not Ready for a while.
    NotReady {
        node: usize,
    },
    CallOff {
        node: usize,
    },
    Breaks {
        slot: usize,
    },
    /// Whoever was told that a node may go down has not acted on it in time, and its kubelet has been heard of since.
    TooLate {
        node: usize,
    },
    /// Another drainer has evicted what it evicts: its node goes down at any moment.
    RequesterReboots {
        node: usize,
    },
    /// A person lifts the cordon of a drainer that is silent.
    Uncordoned {
        node: usize,
    },
    Shrinks {
        pdb: usize,
    },
    DrainedAgain {
        node: usize,
    },
}

impl Action {
    /// Whether it takes one of the faults that a run may have.
    pub fn is_fault(self) -> bool {
        match self {
            Self::Decide { stale, .. } => stale,
            Self::Act { again, .. } => again,
            Self::Crash { .. }
            | Self::OtherEviction { .. }
            | Self::Overdue { .. }
            | Self::LatePod { .. }
            | Self::Vanish { .. }
            | Self::NotReady { .. }
            | Self::CallOff { .. }
            | Self::Breaks { .. }
            | Self::Shrinks { .. }
            | Self::DrainedAgain { .. } => true,
            Self::Prompt { .. }
            | Self::Sync { .. }
            | Self::NodeDown { .. }
            | Self::NodeUp { .. }
            | Self::PodsReady { .. }
            | Self::OtherReady { .. }
            | Self::CephCloses { .. }
            | Self::CephOpens
            | Self::RequesterEvicts { .. }
            | Self::RequesterDone { .. }
            | Self::Return { .. }
            | Self::Report { .. }
            | Self::TooLate { .. }
            | Self::RequesterReboots { .. }
            | Self::Uncordoned { .. } => false,
        }
    }
}

impl Model for Plan {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.breach.is_some() {
            return;
        }
        let may = |fault: Fault| state.faults > 0 && self.faults.contains(&fault);
        actions.extend((0..NODES).map(|node| Action::Prompt { node }));
        let paused = state.paused.iter().flatten().count();
        if paused < self.paused_at_once {
            for node in 0..NODES {
                actions.push(Action::Decide { node, stale: false });
                if may(Fault::StaleRead) {
                    actions.push(Action::Decide { node, stale: true });
                }
            }
        }
        for leader in (0..2).filter(|leader| state.paused[*leader].is_some()) {
            actions.push(Action::Act { leader, again: false });
            if may(Fault::Duplicate) {
                actions.push(Action::Act { leader, again: true });
            }
            if may(Fault::Crash) {
                actions.push(Action::Crash { leader });
            }
        }
        if self.ceph.is_some() {
            actions.extend((0..NODES).map(|node| Action::CephCloses { node }));
            actions.push(Action::CephOpens);
        }
        if self.status_lags {
            actions.extend((0..BUDGETS).map(|pdb| Action::Sync { pdb }));
        }
        for node in 0..NODES {
            actions.extend([
                Action::NodeDown { node },
                Action::NodeUp { node },
                Action::PodsReady { node },
                Action::RequesterDone { node },
                Action::Return { node },
            ]);
            if self.quick_reboots {
                actions.push(Action::Report { node });
            }
            if self.requesters_reboot {
                actions.extend([Action::RequesterReboots { node }, Action::Uncordoned { node }]);
            }
            if self.faults.contains(&Fault::CallOff) {
                actions.push(Action::TooLate { node });
            }
            if may(Fault::CallOff) {
                actions.push(Action::CallOff { node });
            }
            if may(Fault::NotReady) {
                actions.push(Action::NotReady { node });
            }
            if may(Fault::Overdue) {
                actions.push(Action::Overdue { node });
            }
            if may(Fault::DrainedAgain) {
                actions.push(Action::DrainedAgain { node });
            }
            if may(Fault::Vanish) {
                actions.push(Action::Vanish { node });
            }
        }
        if may(Fault::Shrinks) {
            actions.extend((0..BUDGETS).map(|pdb| Action::Shrinks { pdb }));
        }
        for slot in 0..self.slots.len() {
            actions.extend([Action::OtherReady { slot }, Action::RequesterEvicts { slot }]);
            if may(Fault::OtherEviction) {
                actions.push(Action::OtherEviction { slot });
            }
            if may(Fault::Breaks) {
                actions.push(Action::Breaks { slot });
            }
            if may(Fault::LatePod) {
                actions.push(Action::LatePod { slot });
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        happen(self, &mut state, action)?;
        if action.is_fault() {
            state.faults -= 1;
        }
        forget_what_cannot_be(self, last, &mut state);
        state.breach = state.breach.or_else(|| watch::breach_of_state(self, &state));
        name_anew(self, &mut state);
        if self.paused_at_once > 1 {
            state.paused.sort_by_key(|step| memo::hash(step));
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        watch::properties()
    }
}

/// A request that will be refused for ever is as good as none: the ledger never is again as it was read, nor a node, nor
/// a pod that went. One that rests on a grant which is over is kept, for it is the fence that must refuse it.
fn forget_what_cannot_be(plan: &Plan, last: &State, state: &mut State) {
    let State {
        ledger,
        nodes,
        pods,
        paused,
        ..
    } = state;
    for step in paused {
        let is_hopeless = match step {
            None => false,
            Some(Step::Write { read, .. }) => ledger != read && plan.keeps(Rule::CompareAndSwap),
            Some(Step::Evict { slot, generation, .. }) => pods[*slot] != Pod::Up(*generation),
            Some(Step::Cordon { node } | Step::Uncordon { node, .. } | Step::Tell { node }) => {
                nodes[*node].as_stored() != last.nodes[*node].as_stored()
            }
        };
        if is_hopeless {
            *step = None;
        }
    }
    for (number, node) in nodes.iter_mut().enumerate() {
        let is_granted = |claim: &Claim| claim.state.has_grant() || claim.state == ClaimState::Suspect;
        node.overdue &= ledger.claim(&node_uid(number)).is_some_and(is_granted);
    }
    if !plan.status_lags {
        for pdb in 0..BUDGETS {
            state.allowed[pdb] = state.allowed_by_pods(plan, pdb);
        }
    }
}

fn happen(plan: &Plan, state: &mut State, action: Action) -> Option<()> {
    match action {
        Action::Decide { node, stale } => {
            let step = decide(plan, state, node, stale)?;
            if stale && decide(plan, state, node, false).as_ref() == Some(&step) {
                return None;
            }
            let idle = state.paused.iter().position(Option::is_none)?;
            state.paused[idle] = Some(step);
        }
        Action::Prompt { node } => {
            let step = decide(plan, state, node, false)?;
            act(plan, state, step);
        }
        Action::Act { leader, again } => {
            let step = state.paused[leader].clone()?;
            if !again {
                state.paused[leader] = None;
            }
            act(plan, state, step);
        }
        Action::Crash { leader } => state.paused[leader] = None,
        Action::Sync { pdb } => state.allowed[pdb] = state.allowed_by_pods(plan, pdb),
        Action::NodeDown { node } => {
            if !state.nodes[node].told || state.nodes[node].down {
                return None;
            }
            node_down(plan, state, node);
        }
        Action::NodeUp { node } => {
            if !state.nodes[node].down {
                return None;
            }
            state.nodes[node].down = false;
            if state.nodes[node].not_ready {
                state.nodes[node].not_ready = false;
                for slot in plan.slots_of(node).filter(|slot| plan.slots[*slot].retained) {
                    if let Pod::Down(generation) = state.pods[slot] {
                        state.pods[slot] = Pod::Up(generation);
                    }
                }
            } else {
                state.nodes[node].boots += 1;
            }
        }
        Action::Report { node } => state.nodes[node].unreported = false,
        Action::NotReady { node } => {
            let is_held = |slot: usize| running(state, slot).is_some_and(|uid| state.ledger.is_held(&uid));
            let retained: Vec<usize> = plan.slots_of(node).filter(|slot| plan.slots[*slot].retained).collect();
            let Node { down, told, .. } = state.nodes[node];
            if down || told || !retained.iter().all(|slot| is_held(*slot)) {
                return None;
            }
            for slot in retained {
                if let Pod::Up(generation) = state.pods[slot] {
                    state.pods[slot] = Pod::Down(generation);
                }
            }
            state.nodes[node].down = true;
            state.nodes[node].not_ready = true;
        }
        Action::CallOff { node } => {
            state.ledger.claim(&node_uid(node))?;
            let node = &mut state.nodes[node];
            if !node.wanted || node.again {
                return None;
            }
            node.wanted = false;
        }
        Action::TooLate { node } => {
            let node = &mut state.nodes[node];
            if node.wanted || !node.told {
                return None;
            }
            node.told = false;
        }
        Action::RequesterReboots { node } => {
            let is_empty = !state.has_to_leave(plan, node);
            let Node {
                cordon,
                vanished,
                told,
                rebooted,
                ..
            } = state.nodes[node];
            let may = plan.requesters_reboot && cordon == Cordon::Foreign && is_empty && !vanished;
            if !may || told || rebooted {
                return None;
            }
            state.breach = watch::breach_of_word(plan, state, node);
            state.nodes[node].told = true;
        }
        Action::Uncordoned { node } => {
            let claim = state.ledger.claim(&node_uid(node));
            let is_let_go =
                claim.is_none_or(|claim| claim.state == ClaimState::Suspect || claim.state == ClaimState::Returning);
            let node = &mut state.nodes[node];
            let may = plan.requesters_reboot && node.vanished && node.cordon == Cordon::Foreign;
            if !may || !is_let_go || node.down {
                return None;
            }
            node.cordon = Cordon::None;
            (node.wanted, node.told, node.vanished, node.rebooted) = (false, false, false, false);
        }
        Action::PodsReady { node } => {
            if state.nodes[node].down || state.nodes[node].unreported {
                return None;
            }
            let cordoned = state.nodes[node].cordon != Cordon::None;
            for slot in plan.slots_of(node) {
                if let Pod::Down(generation) = state.pods[slot]
                    && !plan.slots[slot].movable
                {
                    if plan.slots[slot].retained {
                        state.pods[slot] = Pod::Up(generation);
                    } else if !cordoned {
                        state.pods[slot] = Pod::Up(state.next_generation(plan, generation));
                    }
                }
            }
        }
        Action::Breaks { slot } => match (plan.slots[slot].node, state.pods[slot]) {
            (None, Pod::Up(generation)) => state.pods[slot] = Pod::Down(generation),
            _ => return None,
        },
        Action::OtherReady { slot } => match (plan.slots[slot].node, state.pods[slot]) {
            _ if state.is_broken(plan, slot) => return None,
            (_, Pod::Down(_)) if plan.slots[slot].movable => state.pods[slot] = Pod::Moved,
            (None, Pod::Down(generation)) => state.pods[slot] = Pod::Up(generation + 1),
            _ => return None,
        },
        Action::Shrinks { pdb } => {
            let is_used = plan.slots_of_budget(pdb).next().is_some();
            if state.caps[pdb] < 2 || !is_used {
                return None;
            }
            state.caps[pdb] -= 1;
        }
        Action::DrainedAgain { node } => {
            let claim = state.ledger.claim(&node_uid(node))?;
            let is_over = !state.nodes[node].wanted && claim.state == ClaimState::Returning && !claim.holds.is_empty();
            let node = &mut state.nodes[node];
            if !is_over || node.cordon != Cordon::None || node.down || node.told {
                return None;
            }
            (node.cordon, node.wanted, node.again) = (Cordon::Foreign, true, true);
        }
        Action::CephCloses { node } => {
            let pdb = plan.ceph?;
            let is_down = |slot: usize| plan.slots[slot].pdb == pdb && matches!(state.pods[slot], Pod::Down(_));
            if state.exempt.is_some() || !plan.slots_of(node).any(is_down) {
                return None;
            }
            state.exempt = Some(node);
        }
        Action::CephOpens => {
            let pdb = plan.ceph?;
            if !plan.slots_of_budget(pdb).all(|slot| state.is_up(slot)) {
                return None;
            }
            state.exempt = None;
        }
        Action::RequesterEvicts { slot } => {
            let node = plan.slots[slot].node?;
            let uid = running(state, slot)?;
            let is_admitted = admits_requester(plan, state, node, slot, &uid);
            // It leaves what stays; one that evicts that as well evicts a pod like any other.
            let is_held = |slot: usize| !plan.slots[slot].movable && state.is_up(slot);
            let comes_later = plan.slots[slot].movable && plan.held_first[node] && plan.slots_of(node).any(is_held);
            let skips = comes_later || plan.requesters_reboot && plan.slots[slot].retained;
            let may =
                state.nodes[node].cordon == Cordon::Foreign && !state.nodes[node].vanished && is_admitted && !skips;
            if !may {
                return None;
            }
            evict(plan, state, slot)?;
        }
        Action::RequesterDone { node } => {
            let is_empty = plan.slots_of(node).all(|slot| !state.is_up(slot));
            let node = &mut state.nodes[node];
            if node.cordon != Cordon::Foreign || node.vanished {
                return None;
            }
            if plan.requesters_reboot {
                if !node.rebooted || node.down {
                    return None;
                }
                node.rebooted = false;
            } else if is_empty {
                node.boots += 1;
            } else {
                return None;
            }
            node.cordon = Cordon::None;
            node.wanted = false;
        }
        Action::OtherEviction { slot } => {
            if plan.slots[slot].node.is_some() || !state.is_up(slot) {
                return None;
            }
            state.admission(plan, None, plan.slots[slot].pdb).ok()?;
            evict(plan, state, slot)?;
        }
        Action::Overdue { node } => {
            let claim = state.ledger.claim(&node_uid(node))?;
            if !claim.state.has_grant() {
                return None;
            }
            state.nodes[node].overdue = true;
        }
        Action::LatePod { slot } => {
            let node = plan.slots[slot].node?;
            let claim = state.ledger.claim(&node_uid(node))?;
            let is_about_to_end = state.paused.iter().flatten().any(|step| match step {
                Step::Write { write, .. } => write.claim(&node_uid(node)).is_none_or(|claim| claim.may_go_down),
                _ => false,
            });
            let comes = state.pods[slot] == Pod::Absent
                && !is_about_to_end
                && state.nodes[node].wanted
                && !state.nodes[node].told
                && !claim.may_go_down
                && !claim.holds.is_empty();
            if !comes {
                return None;
            }
            state.pods[slot] = Pod::Up(0);
        }
        Action::Vanish { node } => {
            let claim = state.ledger.claim(&node_uid(node))?;
            if claim.holds.is_empty() || state.nodes[node].vanished {
                return None;
            }
            state.nodes[node].vanished = true;
        }
        Action::Return { node } => {
            let claim = state.ledger.claim(&node_uid(node));
            // One that only waits for its own pods needs nobody to go on with it.
            let is_noticed = claim.is_none_or(|claim| {
                claim.state == ClaimState::Suspect || claim.state == ClaimState::Returning || claim.holds.is_empty()
            });
            if !state.nodes[node].vanished || !is_noticed {
                return None;
            }
            state.nodes[node].vanished = false;
        }
    }
    Some(())
}

fn act(plan: &Plan, state: &mut State, step: Step) {
    match step {
        Step::Write { read, write, breach } => {
            if state.ledger != read && plan.keeps(Rule::CompareAndSwap) {
                return;
            }
            state.breach = breach.or_else(|| watch::breach_of_write(plan, state, &write));
            state.ledger = write;
        }
        Step::Evict {
            slot,
            generation,
            fence,
        } => {
            if state.pods[slot] != Pod::Up(generation) {
                return;
            }
            let node = plan.slots[slot].node.unwrap_or_default();
            if plan.slots[slot].movable {
                if state.admission(plan, Some(node), plan.slots[slot].pdb).is_ok() {
                    evict(plan, state, slot);
                }
                return;
            }
            // What no budget has needs no grant.
            let in_force = state.is_exempt(plan, slot)
                || state
                    .ledger
                    .may_evict(&node_uid(node), fence, &pod_uid(slot, generation));
            if !in_force && plan.keeps(Rule::FenceEvictions) {
                return;
            }
            if evict(plan, state, slot).is_some() && !in_force {
                state.breach = Some("I4: an eviction of ours under a grant that is not in force");
            }
        }
        Step::Cordon { node } => {
            let node = &mut state.nodes[node];
            if node.cordon == Cordon::None {
                node.cordon = Cordon::Ours;
            }
        }
        Step::Uncordon { node, done } => {
            let node = &mut state.nodes[node];
            if node.cordon == Cordon::Foreign {
                state.breach = Some("I10: a cordon that is not ours was lifted");
            }
            node.cordon = Cordon::None;
            if done {
                node.wanted = false;
            }
        }
        Step::Tell { node } => {
            state.breach = watch::breach_of_word(plan, state, node);
            state.nodes[node].told = true;
        }
    }
}

/// What the webhook says to another drainer's eviction from the node that it cordoned.
fn admits_requester(plan: &Plan, state: &State, node: usize, slot: usize, uid: &str) -> bool {
    let (ledger, node_uid) = (&state.ledger, node_uid(node));
    if !plan.groups_of(node).is_empty() && !ledger.admits_in_node_group(&node_uid) && plan.keeps(Rule::PlaceInGroups) {
        return false;
    }
    if plan.slots[slot].movable {
        let is_draining = |claim: &Claim| claim.state != ClaimState::Returning;
        return ledger.claim(&node_uid).is_some_and(is_draining)
            && state.admission(plan, Some(node), plan.slots[slot].pdb).is_ok();
    }
    if !state.is_exempt(plan, slot) {
        return ledger.admits_requester(&node_uid, uid);
    }
    // Pods that leave under the claim alone keep the drainer there as well.
    let is_guarded = |slot: usize| !plan.slots[slot].retained && state.is_up(slot) && !state.is_exempt(plan, slot);
    let is_beside_held = plan.slots_of(node).any(is_guarded);
    !state.retains(plan, node)
        || is_beside_held
        || ledger.admits_around_retained(&node_uid)
        || !plan.keeps(Rule::HoldEvictionsAroundRetained)
}

/// What the eviction API does: the budget's status decides, and counts at once.
fn evict(plan: &Plan, state: &mut State, slot: usize) -> Option<()> {
    let Pod::Up(generation) = state.pods[slot] else {
        return None;
    };
    if !state.is_exempt(plan, slot) {
        let allowed = &mut state.allowed[plan.slots[slot].pdb];
        if *allowed < 1 {
            return None;
        }
        *allowed -= 1;
    }
    state.pods[slot] = Pod::Down(generation);
    Some(())
}

fn node_down(plan: &Plan, state: &mut State, node: usize) {
    let ledger: &Ledger = &state.ledger;
    let has_disruption = |uid: &str| {
        ledger
            .claim(&node_uid(node))
            .is_some_and(|claim| held(claim).any(|pod| pod.uid == uid))
    };
    let mut breach = None;
    for slot in plan.slots_of(node) {
        // What came to a node since its cordon was lifted nobody has promised anything.
        let counts = plan.slots[slot].retained || state.nodes[node].cordon != Cordon::None;
        if let Pod::Up(generation) = state.pods[slot]
            && counts
        {
            if plan.slots[slot].pdb != NO_BUDGET && !has_disruption(&pod_uid(slot, generation)) {
                breach = Some("I4: a node rebooted over a pod without a disruption");
            }
            state.pods[slot] = Pod::Down(generation);
        }
    }
    state.breach = breach;
    let node = &mut state.nodes[node];
    node.told = false;
    node.rebooted = plan.requesters_reboot && node.cordon == Cordon::Foreign;
    if plan.quick_reboots {
        node.boots += 1;
        node.unreported = true;
    } else {
        node.down = true;
    }
}
