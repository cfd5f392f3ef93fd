//! What a leader decides for one node from what it reads: one write of the ledger, or, when that is as it should be, one
//! step in the cluster.

use nodeward_api::reason::LockReason;
use nodeward_core::ledger::{Claim, ClaimState, Facts, Fence, HeldPod, Ledger, Need, TimedOut};

use crate::rules::Rule;
use crate::watch;
use crate::world::{Cordon, NOW, Plan, Pod, State, Step, Text, node_uid, parse_pod, pod_uid};

pub fn decide(plan: &Plan, state: &State, node: usize, stale: bool) -> Option<Step> {
    let State {
        ledger,
        nodes,
        pods,
        allowed,
        exempt,
        ..
    } = state;
    let question = (node, stale, ledger, nodes, pods, allowed, exempt);
    plan.decisions.get_or(question, || find(plan, state, node, stale))
}

fn find(plan: &Plan, state: &State, node: usize, stale: bool) -> Option<Step> {
    let mut ledger = Ledger::clone(&state.ledger);
    let turn = Turn {
        plan,
        state,
        node,
        facts: state.facts(plan, stale),
    };
    turn.take(&mut ledger);
    ledger.count_needs(&turn.facts);
    if ledger == *state.ledger {
        return step(plan, state, node);
    }
    Some(Step::Write {
        breach: watch::breach_of_decision(state, node, &ledger, &turn.facts),
        read: state.ledger.clone(),
        write: Text::from(ledger),
    })
}

struct Turn<'a> {
    plan: &'a Plan,
    state: &'a State,
    node: usize,
    facts: Facts,
}

impl Turn<'_> {
    fn take(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let node = &self.state.nodes[self.node];
        self.observe(ledger);
        if node.vanished {
            return self.suspect(ledger);
        }
        ledger.resume(&uid, NOW);
        let is_down = |pod: &HeldPod| self.is_down(pod);
        if !node.wanted {
            if node.cordon == Cordon::None {
                let first = ledger.claims().first().map(|claim| claim.node_uid.clone());
                let whose = first.filter(|_| !self.plan.keeps(Rule::OwnerReleases)).unwrap_or(uid);
                ledger.release(&whose, &is_down, NOW);
            }
            return;
        }
        let is_coming_back = ledger.claim(&uid).is_some_and(|claim| claim.state.is_recovering());
        if node.cordon == Cordon::None || is_coming_back {
            return;
        }
        self.enqueue(ledger);
        if self.must_give_up(ledger) && ledger.time_out(&uid, &is_down, NOW) != TimedOut::Unchanged {
            return;
        }
        // A node that may go down at any moment is planned for no more.
        if !ledger.claim(&uid).is_some_and(|claim| claim.state.may_go_down()) {
            self.plan(ledger);
        }
        match ledger.claim(&uid).map(|claim| claim.state) {
            Some(ClaimState::Queued | ClaimState::Asking | ClaimState::DrainedAsking) => self.ask(ledger),
            Some(ClaimState::Granted | ClaimState::DrainedGranted) => self.make_sure(ledger),
            Some(ClaimState::Confirmed | ClaimState::Drained) => self.note_drained(ledger),
            Some(
                ClaimState::Recovering
                | ClaimState::DrainedRecovering
                | ClaimState::Suspect
                | ClaimState::DrainedSuspect
                | ClaimState::Unknown,
            )
            | None => {}
        }
    }

    fn observe(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let Some(claim) = ledger.claim(&uid) else { return };
        let back: Vec<String> = held(claim)
            .filter(|pod| self.is_back(claim, pod))
            .map(|pod| pod.uid.clone())
            .collect();
        ledger.return_pods(&uid, &back);
    }

    fn is_back(&self, claim: &Claim, pod: &HeldPod) -> bool {
        let (slot, generation) = parse_pod(&pod.uid);
        let node = &self.state.nodes[self.node];
        let Pod::Up(now) = self.state.pods[slot] else {
            return false;
        };
        if !pod.retained {
            return now > generation;
        }
        if !self.plan.keeps(Rule::BackOnlyAfterTheReboot) {
            return claim.state.may_go_down();
        }
        let has_rebooted = claim.boot_id != node.boots.to_string();
        let is_called_off = claim.state.is_recovering() && node.cordon == Cordon::None && !node.told;
        has_rebooted || is_called_off
    }

    fn is_down(&self, pod: &HeldPod) -> bool {
        let (slot, generation) = parse_pod(&pod.uid);
        self.plan.keeps(Rule::KeepDisruptionsOfDownPods) && self.state.pods[slot] != Pod::Up(generation)
    }

    fn suspect(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        if self.plan.keeps(Rule::NeverFreeByTime) {
            ledger.suspect(&uid, NOW);
        } else {
            ledger.release_by_override(&uid);
        }
    }

    fn enqueue(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let foreign = self.state.nodes[self.node].cordon == Cordon::Foreign;
        ledger.enqueue(&uid, &uid, foreign, NOW);
        let claims = ledger.claims().iter().filter(|claim| claim.node_uid == uid).count();
        if !self.plan.keeps(Rule::OneClaimANode) && claims < 2 {
            let twin = ledger.claim(&uid).unwrap().clone();
            ledger.claims.push(Claim {
                ticket: ledger.next_ticket,
                ..twin
            });
            ledger.next_ticket += 1;
        }
    }

    fn must_give_up(&self, ledger: &Ledger) -> bool {
        let uid = node_uid(self.node);
        let claim = ledger.claim(&uid).unwrap();
        let is_overdue = claim.state.has_grant() && self.state.nodes[self.node].overdue;
        let gives_way = self.plan.keeps(Rule::GiveWayInACircle) && ledger.gives_way(&self.facts) == Some(&uid);
        is_overdue || gives_way
    }

    fn plan(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let needs = self.state.needs(self.plan, self.node);
        let claim = ledger.claim(&uid).unwrap();
        let is_new = |pod: &HeldPod| held(claim).all(|other| other.uid != pod.uid);
        let grows = claim.state.has_grant() && needs.iter().flat_map(|u| &u.pods).any(is_new);
        if grows && !self.plan.keeps(Rule::NeverGrow) {
            let claim = claim_mut(ledger, &uid);
            let missing = needs
                .into_iter()
                .filter(|u| u.pods.iter().all(|pod| !claim.has_disruption(&pod.uid)));
            let missing: Vec<Need> = missing.map(Need::from).collect();
            claim.needs.extend(missing);
            claim.state = ClaimState::Asking;
            return;
        }
        ledger.set_needs(&uid, needs, &|pod| self.is_down(pod), NOW);
    }

    fn ask(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        if self.is_refused_by_a_missing_rule(ledger) {
            return;
        }
        if !self.plan.keeps(Rule::AllOrNothing) || !self.plan.keeps(Rule::WholeGrants) {
            return self.take_one_by_one(ledger);
        }
        if !self.plan.keeps(Rule::Reserve) {
            let mut alone = ledger.clone();
            for other in alone.claims.iter_mut().filter(|claim| claim.node_uid != uid) {
                other.needs.clear();
            }
            if alone.try_grant(&uid, &self.boot(), &self.facts, NOW).is_ok() {
                *claim_mut(ledger, &uid) = alone.claim(&uid).unwrap().clone();
            }
            return;
        }
        let granted = ledger.try_grant(&uid, &self.boot(), &self.facts, NOW).is_ok();
        if granted && !self.plan.keeps(Rule::ConfirmAfterGrant) {
            claim_mut(ledger, &uid).state = ClaimState::Confirmed;
        }
    }

    fn boot(&self) -> String {
        self.state.nodes[self.node].boots.to_string()
    }

    /// Without the order of the queue, or with reservations for what cannot come, an older claim that shares a budget is
    /// waited for.
    fn is_refused_by_a_missing_rule(&self, ledger: &Ledger) -> bool {
        let waits: &[LockReason] = if !self.plan.keeps(Rule::HoldersGoAhead) {
            &[LockReason::WaitsForDisruptions, LockReason::Reserved]
        } else if !self.plan.keeps(Rule::ReserveNothingInACircle) {
            &[LockReason::WaitsForDisruptions, LockReason::CircularWait]
        } else {
            return false;
        };
        let claim = ledger.claim(&node_uid(self.node)).unwrap();
        let wants = |claim: &Claim| -> Vec<String> { claim.needs.iter().map(|need| need.pdb.name.clone()).collect() };
        ledger
            .claims()
            .iter()
            .filter(|other| other.ticket < claim.ticket && other.state.is_asking())
            .filter(|other| wants(other).iter().any(|name| wants(claim).contains(name)))
            .any(|other| {
                let obstacles = ledger.obstacles(&other.node_uid, &self.facts);
                !obstacles.is_empty() && obstacles.iter().all(|o| waits.contains(&o.reason))
            })
    }

    fn take_one_by_one(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let whole = ledger.claim(&uid).unwrap().needs.clone();
        let mut missing = Vec::new();
        for need in whole {
            claim_mut(ledger, &uid).needs = vec![need.clone()];
            if ledger.try_grant(&uid, &self.boot(), &self.facts, NOW).is_ok() {
                claim_mut(ledger, &uid).state = ClaimState::Asking;
            } else {
                missing.push(need);
            }
        }
        let claim = claim_mut(ledger, &uid);
        claim.needs = missing;
        let has_some = !claim.holds.is_empty() && !self.plan.keeps(Rule::WholeGrants);
        if claim.needs.is_empty() || has_some {
            claim.state = ClaimState::Granted;
        }
    }

    /// Always by what is read now: no cache that is older than the grant.
    fn make_sure(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let is_written = self
            .state
            .ledger
            .claim(&uid)
            .is_some_and(|claim| matches!(claim.state, ClaimState::Granted | ClaimState::DrainedGranted));
        if is_written {
            let grant = ledger.claim(&uid).unwrap().grant;
            let facts = self.state.facts(self.plan, false);
            let _ = ledger.confirm(&uid, grant, &facts, &|pod| self.is_down(pod), NOW);
        }
    }

    fn note_drained(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let is_foreign = self.state.nodes[self.node].cordon == Cordon::Foreign;
        let claim = ledger.claim(&uid).unwrap();
        if !is_foreign
            && next_to_evict(self.plan, self.state, self.node).is_none()
            && self.plan.keeps(Rule::NoteBeforeTheNodeIsTold)
        {
            let fence = Fence::of(claim);
            ledger.drained(&uid, fence, &self.boot());
        }
    }
}

fn step(plan: &Plan, state: &State, number: usize) -> Option<Step> {
    let uid = node_uid(number);
    let node = &state.nodes[number];
    let claim = state.ledger.claim(&uid);
    if !node.wanted || node.vanished {
        return None;
    }
    let holds_nothing = claim.is_none_or(|claim| claim.holds.is_empty());
    if node.cordon == Cordon::None {
        return holds_nothing.then_some(Step::Cordon { node: number });
    }
    let claim = claim?;
    let may_uncordon = node.cordon == Cordon::Ours || !plan.keeps(Rule::UncordonOnlyOurs);
    let is_recovering = claim.state.is_recovering();
    let gave_up = (claim.state.is_asking() || is_recovering) && !claim.holds.is_empty();
    if may_uncordon && (is_recovering || (node.cordon == Cordon::Foreign && gave_up)) {
        return Some(Step::Uncordon {
            node: number,
            done: false,
        });
    }
    if !claim.state.is_confirmed() || node.cordon == Cordon::Foreign {
        return None;
    }
    if let Some((slot, generation)) = next_to_evict(plan, state, number) {
        let is_allowed = state.is_exempt(plan, slot) || state.allowed[plan.slots[slot].pdb] >= 1;
        return is_allowed.then_some(Step::Evict {
            slot,
            generation,
            fence: Fence::of(claim),
        });
    }
    let has_rebooted = claim.boot_id != node.boots.to_string();
    if has_rebooted {
        return (!node.down).then_some(Step::Uncordon {
            node: number,
            done: true,
        });
    }
    let may_tell = claim.state.may_go_down() || !plan.keeps(Rule::NoteBeforeTheNodeIsTold);
    (may_tell && !node.told && !node.down).then_some(Step::Tell { node: number })
}

/// A pod that has yet to leave: under the claim, or under no budget.
fn next_to_evict(plan: &Plan, state: &State, node: usize) -> Option<(usize, u8)> {
    let claim = state.ledger.claim(&node_uid(node))?;
    plan.slots_of(node).find_map(|slot| {
        let Pod::Up(generation) = state.pods[slot] else {
            return None;
        };
        let leaves = held(claim).any(|pod| !pod.retained && pod.uid == pod_uid(slot, generation));
        (leaves || state.is_exempt(plan, slot)).then_some((slot, generation))
    })
}

pub fn held(claim: &Claim) -> impl Iterator<Item = &HeldPod> {
    claim.holds.iter().flat_map(|disruptions| &disruptions.pods)
}

fn claim_mut<'a>(ledger: &'a mut Ledger, uid: &str) -> &'a mut Claim {
    ledger.claims.iter_mut().find(|claim| claim.node_uid == uid).unwrap()
}

/// The UID of what runs in a slot now.
pub fn running(state: &State, slot: usize) -> Option<String> {
    match state.pods[slot] {
        Pod::Up(generation) => Some(pod_uid(slot, generation)),
        Pod::Absent | Pod::Down(_) => None,
    }
}

/// The present grant of a node, or its last.
pub fn fence_of(ledger: &Ledger, uid: &str) -> Option<Fence> {
    ledger.claim(uid).map(Fence::of)
}
