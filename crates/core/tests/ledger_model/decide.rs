//! What a leader decides for one node from what it reads: one write of the ledger, or, when that is as it should be, one
//! step in the cluster.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use nodeward_api::reason::LockReason;
use nodeward_core::id::NodeName;
use nodeward_core::ledger::{
    Claim, ClaimState, Disruptions, Facts, Fence, GroupObstacle, HeldPod, HeldPodState, Ledger, Need, NodeGroupVerdict,
    TimedOut,
};

use crate::observed::{self, LATER};
use crate::rules::Rule;
use crate::watch;
use crate::world::{
    Cordon, Group, NOW, Plan, Pod, State, Step, Text, budget_key, budget_ref, node_uid, parse_node, parse_pod, pod_uid,
};

pub fn decide(plan: &Plan, state: &State, node: usize, stale: bool) -> Option<Step> {
    let State {
        ledger,
        nodes,
        pods,
        allowed,
        exempt,
        caps,
        ..
    } = state;
    let question = (node, stale, ledger, nodes, pods, allowed, (exempt, caps));
    plan.decisions.get_or(question, || find(plan, state, node, stale))
}

fn find(plan: &Plan, state: &State, node: usize, stale: bool) -> Option<Step> {
    let mut ledger = Ledger::clone(&state.ledger);
    let turn = Turn {
        plan,
        state,
        node,
        facts: state.facts(plan, stale),
        breach: Cell::default(),
    };
    turn.take(&mut ledger);
    ledger.count_needs(&turn.facts);
    if ledger == *state.ledger {
        return step(plan, state, node);
    }
    let breach = turn.breach.get();
    Some(Step::Write {
        breach: breach.or_else(|| watch::breach_of_decision(plan, state, node, &ledger, &turn.facts)),
        read: state.ledger.clone(),
        write: Text::from(ledger),
    })
}

struct Turn<'a> {
    plan: &'a Plan,
    state: &'a State,
    node: usize,
    facts: Facts,
    /// What is wrong about what was done, if anything is.
    breach: Cell<Option<&'static str>>,
}

impl Turn<'_> {
    /// Does something twice, as after a lost answer: the second time changes nothing.
    fn twice<T>(&self, ledger: &mut Ledger, act: impl Fn(&mut Ledger) -> T) -> T {
        let answer = act(ledger);
        let once = ledger.clone();
        act(ledger);
        if *ledger != once {
            self.breach.set(Some("I13: done twice it is not what it was"));
        }
        answer
    }

    fn take(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let node = &self.state.nodes[self.node];
        self.observe(ledger);
        if node.vanished {
            return self.miss_drainer(ledger);
        }
        self.twice(ledger, |ledger| ledger.resume(&uid, NOW));
        // As for the plan, a granted drain whose node is uncordoned is called off. Another leader may lift the cordon of a claim
        // that recovers while this one grants it.
        let is_granted = ledger.claim(&uid).is_some_and(|claim| claim.state.has_grant());
        if !node.wanted || (node.cordon == Cordon::None && is_granted) {
            return self.release(ledger);
        }
        let is_coming_back = ledger
            .claim(&uid)
            .is_some_and(|claim| claim.state == ClaimState::Returning);
        let has_groups = !self.plan.groups_of(self.node).is_empty();
        if node.cordon == Cordon::None && (is_coming_back || !has_groups) {
            return;
        }
        self.enqueue(ledger);
        if node.cordon == Cordon::Foreign && self.plan.keeps(Rule::TakeOver) {
            self.twice(ledger, |ledger| ledger.take_over(&uid, NOW));
        }
        if ledger
            .claim(&uid)
            .is_some_and(|claim| claim.state == ClaimState::Returning)
        {
            return;
        }
        if node.cordon != Cordon::Foreign && self.lacks_places(ledger) {
            return self.take_places(ledger);
        }
        if node.cordon == Cordon::None {
            return;
        }
        let time_out = |ledger: &mut Ledger| self.time_out(ledger);
        if self.must_give_up(ledger) && self.twice(ledger, time_out) != TimedOut::Unchanged {
            return;
        }
        // A node that may go down at any moment is planned for no more, unless its claim has to ask again, or it is drained again.
        let is_planned = |claim: &Claim| !claim.may_go_down || claim.state == ClaimState::Waiting || node.again;
        if ledger.claim(&uid).is_some_and(is_planned) {
            let needs = self.state.needs(self.plan, self.node).0;
            self.twice(ledger, |ledger| ledger.settle_movable(&uid, &needs));
            self.plan(ledger);
        }
        match ledger.claim(&uid).map(|claim| claim.state) {
            Some(ClaimState::Waiting) => self.ask(ledger),
            Some(ClaimState::Granted) => self.make_sure(ledger),
            Some(ClaimState::Confirmed) => self.note_drained(ledger),
            Some(ClaimState::Returning | ClaimState::Suspect) | None => {}
        }
    }

    fn observe(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let Some(claim) = ledger.claim(&uid) else { return };
        let back: Vec<String> = held(claim)
            .filter(|pod| self.is_back(claim, pod))
            .map(|pod| pod.uid.clone())
            .collect();
        let node = observed::node(self.plan, self.state, self.node, claim);
        let is_back = claim.has_node_back(&node, self.is_over())
            || (claim.state == ClaimState::Returning && !self.plan.keeps(Rule::KeepPlaceUntilBack));
        let containers: BTreeMap<String, String> = held(claim)
            .filter(|pod| pod.retained && !claim.has_rebooted(&node.boot_id))
            .map(|pod| (pod.uid.clone(), self.containers(claim, pod)))
            .collect();
        self.twice(ledger, |ledger| {
            ledger.return_pods(&uid, &back);
            ledger.return_node_groups(&uid, |_| !is_back);
            ledger.note_containers(&uid, &containers);
        });
    }

    fn containers(&self, claim: &Claim, pod: &HeldPod) -> String {
        let seen = observed::retained(self.plan, self.state, parse_pod(&pod.uid).0, claim);
        seen.containers.unwrap().to_string()
    }

    /// Whether nobody wants the drain any more.
    fn is_over(&self) -> bool {
        !self.state.nodes[self.node].wanted
    }

    fn is_back(&self, claim: &Claim, pod: &HeldPod) -> bool {
        let (slot, generation) = parse_pod(&pod.uid);
        if !pod.retained && self.plan.by_number == Some(self.plan.slots[slot].pdb) {
            return self.is_replaced(pod);
        }
        if !pod.retained {
            return matches!(self.state.pods[slot], Pod::Up(now) if now > generation);
        }
        let is_seen_up = self.state.looks_up(self.plan, slot);
        let has_rebooted = claim.boot_id != self.boot();
        if !self.plan.keeps(Rule::BackOnlyAfterTheReboot) {
            return claim.may_go_down && is_seen_up;
        }
        if !self.plan.keeps(Rule::CompareContainers) && has_rebooted {
            return !self.state.nodes[self.node].down && is_seen_up;
        }
        let state = self.state_of_retained(claim, pod);
        if !self.plan.keeps(Rule::ReturnRunningWhileRecovering) && claim.state == ClaimState::Returning {
            return false;
        }
        matches!(state, HeldPodState::Recovered | HeldPodState::CalledOff(_))
    }

    /// Whether a pod counts as replaced by the number of its budget's pods: of those that are gone, the ones of the oldest
    /// claims do first.
    fn is_replaced(&self, pod: &HeldPod) -> bool {
        let ledger = &self.state.ledger;
        let pdb = self.plan.slots[parse_pod(&pod.uid).0].pdb;
        let budget = &self.facts[&budget_key(pdb)];
        let of_budget = ledger.claims().iter().flat_map(|claim| &claim.holds);
        let of_budget: Vec<&Disruptions> = of_budget.filter(|held| held.pdb == budget_ref(pdb)).collect();
        let held = of_budget.iter().flat_map(|held| &held.pods);
        let gone: Vec<&HeldPod> = held.filter(|pod| !budget.healthy.contains(pod.uid.as_str())).collect();
        let first = ledger.budget_row(&budget_ref(pdb)).and_then(|row| row.first_grant);
        let replaced = match first {
            Some(first) if self.plan.keeps(Rule::CountFailedPods) => first.in_place_of(gone.len(), budget.pods),
            // As if every pod were to be healthy again that was at the grant.
            _ => {
                let before = of_budget
                    .iter()
                    .map(|held| held.healthy_at_grant)
                    .max()
                    .unwrap_or_default();
                let missing = usize::try_from(before).unwrap().saturating_sub(budget.healthy.len());
                gone.len().saturating_sub(missing)
            }
        };
        gone.iter().take(replaced).any(|gone| gone.uid == pod.uid)
    }

    fn state_of_retained(&self, claim: &Claim, pod: &HeldPod) -> HeldPodState {
        let Self { plan, state, .. } = self;
        let node = &state.nodes[self.node];
        let seen = observed::retained(plan, state, parse_pod(&pod.uid).0, claim);
        let seen_node = observed::node(plan, state, self.node, claim);
        // Time passes only over what is not to happen any more: a drainer that has pods to evict has to ask before.
        let is_done = node.cordon == Cordon::Foreign && !state.has_to_leave(plan, self.node);
        let may_go = node.told || is_done;
        let now = if may_go && plan.keeps(Rule::WaitAfterCallOff) {
            NOW
        } else {
            LATER
        };
        claim.state_of_present(pod, &seen, &seen_node, self.is_over(), now)
    }

    /// Whether the pod's disruption cannot be given back by a write.
    fn is_down(&self, pod: &HeldPod) -> bool {
        let (slot, generation) = parse_pod(&pod.uid);
        if !self.plan.keeps(Rule::KeepDisruptionsOfDownPods) {
            return false;
        }
        match self.state.ledger.claim(&node_uid(self.node)) {
            Some(claim) if pod.retained => self.state_of_retained(claim, pod) == HeldPodState::Down,
            _ => self.state.pods[slot] != Pod::Up(generation),
        }
    }

    /// Whoever drained is not heard of any more.
    fn miss_drainer(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let is_by_another = self.plan.requesters_reboot && self.state.nodes[self.node].cordon == Cordon::Foreign;
        let is_anything_down = ledger
            .claim(&uid)
            .is_some_and(|claim| held(claim).any(|pod| self.is_down(pod)));
        if is_by_another && !is_anything_down {
            self.release(ledger);
        } else if self.plan.keeps(Rule::NeverFreeByTime) {
            self.twice(ledger, |ledger| ledger.suspect(&uid, NOW));
        } else {
            ledger.release_by_override(&uid);
        }
    }

    fn release(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let first = ledger.claims().first().map(|claim| claim.node_uid.clone());
        let whose = first
            .filter(|_| !self.plan.keeps(Rule::OwnerReleases))
            .unwrap_or_else(|| uid.clone());
        self.twice(ledger, |ledger| {
            ledger.release(&whose, &|pod| self.is_down(pod), NOW);
            if !self.plan.keeps(Rule::DrainedStaysDrained)
                && let Some(claim) = ledger.claims.iter_mut().find(|claim| claim.node_uid == uid)
            {
                (claim.state, claim.may_go_down) = (ClaimState::Returning, false);
            }
        });
    }

    fn time_out(&self, ledger: &mut Ledger) -> TimedOut {
        let uid = node_uid(self.node);
        if !self.plan.keeps(Rule::RequesterMayReboot) {
            claim_mut(ledger, &uid).foreign_cordon = false;
        }
        ledger.time_out(&uid, &|pod| self.is_down(pod), NOW)
    }

    fn lacks_places(&self, ledger: &Ledger) -> bool {
        let groups = self.plan.groups_of(self.node);
        let claim = ledger.claim(&node_uid(self.node)).unwrap();
        let waits = claim.state == ClaimState::Waiting && !claim.may_go_down && claim.holds.is_empty();
        waits && !claim.has_places(&groups) && self.plan.keeps(Rule::PlaceInGroups)
    }

    /// Takes the node's places in its groups, and nothing else.
    fn take_places(&self, ledger: &mut Ledger) {
        let (uid, groups) = (node_uid(self.node), self.plan.groups_of(self.node));
        ledger.set_needs(&uid, Vec::new(), &|pod| self.is_down(pod), NOW);
        if self.has_room_in_groups(ledger, self.node) {
            self.twice(ledger, |ledger| ledger.take_node_groups(&uid, &groups));
        }
    }

    /// Whether each group has a place for the node, after the first drain that waits for other drains alone.
    fn has_room_in_groups(&self, ledger: &Ledger, asks: usize) -> bool {
        let mut kept: Option<usize> = None;
        for claim in ledger.claims() {
            let node = parse_node(&claim.node_uid);
            let groups = self.plan.groups.iter().filter(|group| group.members.contains(&node));
            let obstacles: Vec<GroupObstacle> = groups
                .filter(|group| !claim.node_groups.iter().any(|name| name == group.name))
                .filter_map(|group| {
                    let kept_for = kept.filter(|other| group.members.contains(other));
                    let kept_for = kept_for.map(|other| NodeName::from(node_uid(other).as_str()));
                    self.verdict(ledger, group)
                        .obstacle(&claim.node.as_str().into(), kept_for.as_ref())
                })
                .collect();
            if node == asks {
                return obstacles.is_empty();
            }
            let waits = claim.state == ClaimState::Waiting && !claim.may_go_down && claim.holds.is_empty();
            let is_for_drains = |obstacle: &GroupObstacle| obstacle.reason == LockReason::WaitsForNodeGroup;
            if waits && kept.is_none() && !obstacles.is_empty() && obstacles.iter().all(is_for_drains) {
                kept = Some(node);
            }
        }
        false
    }

    fn verdict(&self, ledger: &Ledger, group: &Group) -> NodeGroupVerdict {
        let is_draining =
            |claim: &&Claim| claim.has_place(group.name, || group.members.contains(&parse_node(&claim.node_uid)));
        let draining = ledger.claims().iter().filter(is_draining);
        let own = node_uid(self.node);
        let counts = |claim: &&Claim| claim.node_uid != own || self.plan.keeps(Rule::PlaceWithTheGrant);
        let draining = draining.filter(counts).map(|claim| claim.node.as_str().into());
        let draining: BTreeSet<NodeName> = draining.collect();
        let is_away = |node: &&usize| self.state.nodes[**node].down;
        let away = group.members.iter().filter(is_away);
        let away = away.map(|node| NodeName::from(node_uid(*node).as_str()));
        NodeGroupVerdict {
            name: group.name.to_owned(),
            allowed: group.max_unavailable,
            unhealthy: away.filter(|name| !draining.contains(name)).collect(),
            draining,
        }
    }

    fn enqueue(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let foreign = self.state.nodes[self.node].cordon == Cordon::Foreign;
        self.twice(ledger, |ledger| ledger.enqueue(&uid, &uid, foreign, NOW));
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
        let (mut needs, movable_first) = self.state.needs(self.plan, self.node);
        let claim = ledger.claim(&uid).unwrap();
        if !claim.state.has_grant() && !self.is_to_ask(claim, movable_first) {
            needs.clear();
        }
        let is_new = |pod: &HeldPod| held(claim).all(|other| other.uid != pod.uid);
        let grows = claim.state.has_grant() && needs.iter().flat_map(|u| &u.pods).any(is_new);
        if grows && !self.plan.keeps(Rule::NeverGrow) {
            let claim = claim_mut(ledger, &uid);
            let missing = needs
                .into_iter()
                .filter(|u| u.pods.iter().all(|pod| !claim.has_disruption(&pod.uid)));
            let missing: Vec<Need> = missing.map(Need::from).collect();
            claim.needs.extend(missing);
            claim.state = ClaimState::Waiting;
            return;
        }
        self.twice(ledger, |ledger| {
            ledger.set_needs(&uid, needs.clone(), &|pod| self.is_down(pod), NOW)
        });
    }

    /// Whether the claim is asked for: no movable pod is left, or none of those left could go now, or its drainer asks for others
    /// first. What was asked for stays asked for.
    fn is_to_ask(&self, claim: &Claim, movable_first: bool) -> bool {
        let Self { plan, state, node, .. } = *self;
        let mut movable = plan.movable_of(node).filter(|slot| state.is_up(*slot)).peekable();
        if movable.peek().is_none() || !plan.keeps(Rule::MovablePodsFirst) {
            return true;
        }
        let could_go = |slot: usize| {
            let pdb = plan.slots[slot].pdb;
            state.allowed[pdb] >= 1 && state.admission(plan, Some(node), pdb).is_ok()
        };
        !movable_first && (!claim.needs.is_empty() || plan.held_first[node] || !movable.any(could_go))
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
        let groups = self.plan.groups_of(self.node);
        if self.lacks_places(ledger)
            && self.plan.keeps(Rule::PlaceWithTheGrant)
            && !self.has_room_in_groups(ledger, self.node)
        {
            ledger.set_needs(&uid, Vec::new(), &|pod| self.is_down(pod), NOW);
            return;
        }
        let granted = self.twice(ledger, |ledger| {
            let granted = ledger.try_grant(&uid, &self.boot(), &self.facts, NOW).is_ok();
            if granted && self.plan.keeps(Rule::PlaceWithTheGrant) {
                ledger.take_node_groups(&uid, &groups);
            }
            granted
        });
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
            .filter(|other| other.ticket < claim.ticket && other.asks())
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
                claim_mut(ledger, &uid).state = ClaimState::Waiting;
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
            .is_some_and(|claim| matches!(claim.state, ClaimState::Granted));
        if is_written {
            let grant = ledger.claim(&uid).unwrap().grant;
            let groups = self.plan.groups_of(self.node);
            if !self.plan.keeps(Rule::PlaceWithTheGrant) && !ledger.claim(&uid).unwrap().has_places(&groups) {
                if self.has_room_in_groups(ledger, self.node) {
                    ledger.take_node_groups(&uid, &groups);
                }
                return;
            }
            let facts = self.state.facts(self.plan, false);
            let _ = self.twice(ledger, |ledger| {
                ledger.confirm(&uid, grant, &facts, &|pod| self.is_down(pod), NOW)
            });
        }
    }

    fn note_drained(&self, ledger: &mut Ledger) {
        let uid = node_uid(self.node);
        let is_foreign = self.state.nodes[self.node].cordon == Cordon::Foreign;
        let is_empty = if is_foreign {
            self.plan.requesters_reboot && !self.state.has_to_leave(self.plan, self.node)
        } else {
            next_to_evict(self.plan, self.state, self.node).is_none()
                && !self.plan.movable_of(self.node).any(|slot| self.state.is_up(slot))
        };
        if is_empty && self.plan.keeps(Rule::NoteBeforeTheNodeIsTold) {
            let fence = Fence::of(ledger.claim(&uid).unwrap());
            let facts = self.state.facts(self.plan, false);
            let _ = self.twice(ledger, |ledger| {
                ledger.confirm_drained(&uid, fence, &self.boot(), &facts, &|pod| self.is_down(pod), NOW)
            });
        }
    }
}

fn step(plan: &Plan, state: &State, number: usize) -> Option<Step> {
    let uid = node_uid(number);
    let node = &state.nodes[number];
    let claim = state.ledger.claim(&uid);
    if node.vanished {
        return None;
    }
    if !node.wanted {
        let is_ours = node.cordon == Cordon::Ours && !node.down;
        return is_ours.then_some(Step::Uncordon {
            node: number,
            done: true,
        });
    }
    let holds_nothing = claim.is_none_or(|claim| claim.holds.is_empty());
    let groups = plan.groups_of(number);
    let has_places = claim.is_some_and(|claim| claim.has_places(&groups) && claim.state != ClaimState::Returning);
    if node.cordon == Cordon::None {
        let may_cordon = holds_nothing && (groups.is_empty() || has_places || !plan.keeps(Rule::PlaceInGroups));
        return may_cordon.then_some(Step::Cordon { node: number });
    }
    let claim = claim?;
    let may_uncordon = node.cordon == Cordon::Ours || !plan.keeps(Rule::UncordonOnlyOurs);
    let is_recovering = claim.state == ClaimState::Returning;
    let gave_up = (claim.asks() || is_recovering) && !claim.holds.is_empty();
    if may_uncordon && (is_recovering || (node.cordon == Cordon::Foreign && gave_up)) {
        return Some(Step::Uncordon {
            node: number,
            done: false,
        });
    }
    if node.cordon == Cordon::Foreign || !matches!(claim.state, ClaimState::Waiting | ClaimState::Confirmed) {
        return None;
    }
    if let Some(step) = next_to_move(plan, state, number, claim) {
        return Some(step);
    }
    if claim.state != ClaimState::Confirmed
        || plan.movable_of(number).any(|slot| state.is_up(slot)) && { next_to_evict(plan, state, number).is_none() }
    {
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
    let may_tell = claim.may_go_down || !plan.keeps(Rule::NoteBeforeTheNodeIsTold);
    (may_tell && !node.told && !node.down).then_some(Step::Tell { node: number })
}

/// A movable pod that may go now.
fn next_to_move(plan: &Plan, state: &State, node: usize, claim: &Claim) -> Option<Step> {
    plan.movable_of(node).find_map(|slot| {
        let Pod::Up(generation) = state.pods[slot] else {
            return None;
        };
        let pdb = plan.slots[slot].pdb;
        let may_go = state.allowed[pdb] >= 1 && state.admission(plan, Some(node), pdb).is_ok();
        may_go.then_some(Step::Evict {
            slot,
            generation,
            fence: Fence::of(claim),
        })
    })
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
        Pod::Absent | Pod::Down(_) | Pod::Moved => None,
    }
}

/// The present grant of a node, or its last.
pub fn fence_of(ledger: &Ledger, uid: &str) -> Option<Fence> {
    ledger.claim(uid).map(Fence::of)
}
