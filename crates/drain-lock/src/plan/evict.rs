//! Which pods are evicted in this pass, and under which grant.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodeward_api::reason::LockReason;
use nodeward_core::ledger::{Claim, Fence, Obstacle};
use nodeward_core::text::counted;

use crate::snapshot::PodFacts;

use super::eviction_budget::{Ledgers, NotEvictable};
use super::obstacles::never_allowing;
use super::pod_classes::PodClasses;
use super::verdict::DrainVerdict;
use super::{Action, ActiveDrain, Planner, PodEviction};

impl Planner<'_> {
    /// The pods of a granted claim leave, and with them whatever came later and finds room elsewhere. A need that has
    /// grown returns what can be returned, and queues the whole of it.
    pub(super) fn evict(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) {
        self.mark_draining(active);
        self.keep_lease(active.context, verdict);
        if self.requeue_grown_need(active, verdict) {
            return;
        }
        if !active.classes.obstacles.left_out.is_empty() {
            // What is held for pods that cannot go is of use to others.
            self.set_needs(active, active.classes.needs.clone());
        }
        let Some(claim) = self.write.next.claim(active.uid()).cloned() else {
            return;
        };
        let classes = active.classes;
        let has_disruption = |pod: &Arc<PodFacts>| claim.has_disruption(pod.uid.as_str());
        let to_leave = classes.held.iter().chain(&classes.movable);
        let with_disruption: Vec<_> = to_leave.clone().filter(|pod| has_disruption(pod)).cloned().collect();
        // A held pod without one goes after the movable ones of its budget, by what they had, or is under no budget.
        let goes_after = |pod: &Arc<PodFacts>| {
            let mut budgets = self.snapshot.budgets_of(pod).iter();
            budgets.any(|budget| claim.has_movable_disruption(budget))
        };
        let held = classes.held.iter().filter(|pod| !has_disruption(pod));
        let (after, held): (Vec<_>, Vec<_>) = held.partition(|pod| goes_after(pod));
        for pod in after {
            verdict.block_pod(pod, &NotEvictable::because(LockReason::AwaitingPods));
        }
        let movable = classes.movable.iter().filter(|pod| !has_disruption(pod));
        let without: Vec<_> = held.into_iter().chain(movable).cloned().collect();
        verdict.message = format!(
            "{} to leave, {} on the way out",
            counted(classes.waiting(), "pod"),
            classes.leaving
        );
        let refusing: Vec<Obstacle> = with_disruption
            .iter()
            .filter_map(|pod| self.eviction_budget.refusing(pod))
            .collect();
        verdict.block_by(&refusing, self.snapshot);
        if refusing.is_empty() && self.evictions_change_nothing(active, &claim) {
            for pod in &with_disruption {
                verdict.block_pod_that_stays(pod);
            }
        }
        if active.node.is_being_removed() {
            // It holds nothing: its pods wait like those of a drain that does not ask for its claim.
            self.name_waits(active, verdict);
        }
        if active.context.is_by_requester() || verdict.lease_lost || self.is_left_to_remediation(active, verdict) {
            return;
        }
        let due = self.due(active, with_disruption, verdict);
        self.evict_held(active, &claim, &due);
        self.evict_movable(active, &without, classes.leaving + due.len(), verdict);
    }

    /// Queues the whole need of a claim that lacks disruptions of it: a pod came late, asked to stay, or is another budget's by
    /// now. Returns whether it did.
    pub(super) fn requeue_grown_need(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) -> bool {
        let classes = active.classes;
        let pods = classes.held.iter().chain(&classes.retained);
        let here: BTreeSet<&str> = pods.map(|pod| pod.uid.as_str()).collect();
        let lacks = |claim: &Claim| claim.lacks(&classes.needs, |pod| here.contains(pod));
        if !self.write.next.claim(active.uid()).is_some_and(lacks) {
            return false;
        }
        self.set_needs(active, classes.needs.clone());
        verdict.set_message("needs more disruptions than it holds, and queues for all of them");
        true
    }

    /// Of the pods that have disruptions those that leave now: as many as there is room for of the ones that may be tried.
    fn due(
        &mut self,
        active: &ActiveDrain<'_>,
        pods: Vec<Arc<PodFacts>>,
        verdict: &mut DrainVerdict,
    ) -> Vec<Arc<PodFacts>> {
        let room = self.policy.evictions_per_node.saturating_sub(active.classes.leaving);
        let mut due = Vec::new();
        for pod in pods {
            if due.len() >= room {
                break;
            }
            if let Err(why) = self.eviction_budget.check_last_attempt(&pod) {
                self.requeue_at.note(why.until);
                verdict.block_pod(&pod, &why);
                continue;
            }
            // A grant was made of free disruptions, of which Ceph's OSDs share one.
            match self.eviction_budget.take_shared_disruption(&pod) {
                Ok(()) => due.push(pod),
                Err(why) => verdict.block_pod(&pod, &why),
            }
        }
        due
    }

    /// Evicts pods that have disruptions.
    fn evict_held(&mut self, active: &ActiveDrain<'_>, claim: &Claim, pods: &[Arc<PodFacts>]) {
        let Some(ledger) = &self.write.base else { return };
        // The grant that evictions rest on is the one that is in the ledger, not one that is about to be written.
        let written = self.before.claim(active.uid());
        let is_written =
            written.is_some_and(|written| Fence::of(written) == Fence::of(claim) && written.state == claim.state);
        if !is_written || pods.is_empty() {
            return;
        }
        self.plan.actions.push(Action::EvictHeld {
            node_uid: active.node.uid.clone(),
            fence: Fence::of(claim),
            ledger_uid: Arc::clone(&ledger.uid),
            pods: pods.iter().map(|pod| eviction(active, pod)).collect(),
        });
    }

    /// Evicts the movable pods of a drain whose claim is not granted.
    pub(super) fn evict_before_claim(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) {
        let classes = active.classes;
        if !active.context.is_by_requester() && !self.is_left_to_remediation(active, verdict) {
            self.evict_movable(active, &classes.movable, classes.leaving, verdict);
        }
    }

    /// Asks for the pods that their budgets never let go, once a minute: an operator that has a webhook for evictions moves its pods
    /// when it hears of one. Under another program's cordon, which may end at any moment, the pods would come back to the node: there
    /// the drain has to ask for it.
    pub(super) fn ask_owners(&mut self, active: &ActiveDrain<'_>, verdict: &mut DrainVerdict) {
        if active.context.is_by_requester() || self.remediation(&active.node.name).is_some() {
            return;
        }
        let claim = self.write.next.claim(active.uid()).cloned();
        let is_evicted = |pod: &PodFacts| {
            claim
                .as_ref()
                .is_some_and(|claim| claim.has_disruption(pod.uid.as_str()))
        };
        let PodClasses {
            held,
            movable,
            left_to_owners,
            ..
        } = active.classes;
        let is_ours = active.node.is_cordoned_by_us();
        let others = held.iter().chain(movable).filter(|_| is_ours);
        let left = left_to_owners.iter().map(|pod| (pod, true));
        let asked_for = left.chain(others.map(|pod| (pod, false)));
        for (pod, is_left) in asked_for.filter(|(pod, _)| !is_evicted(pod)) {
            let Some(budget) = never_allowing(pod, self.snapshot) else {
                continue;
            };
            if is_left {
                verdict.block_for_owner(pod, budget);
            }
            if self.memory.is_owner_to_be_asked(&pod.uid, self.now) {
                self.plan.actions.push(Action::AskOwner {
                    eviction: eviction(active, pod),
                    budget: budget.clone(),
                });
            }
        }
    }

    /// Evicts pods that have no disruption, as far as their budgets allow. So many are on their way out already.
    pub(super) fn evict_movable(
        &mut self,
        active: &ActiveDrain<'_>,
        pods: &[Arc<PodFacts>],
        leaving: usize,
        verdict: &mut DrainVerdict,
    ) {
        let mut room = self.policy.evictions_per_node.saturating_sub(leaving);
        for pod in pods {
            if room == 0 {
                return;
            }
            match self.take_free_disruption(active.uid(), pod) {
                Ok(()) => {
                    room -= 1;
                    let eviction = eviction(active, pod);
                    self.plan.actions.push(Action::Evict { eviction });
                }
                Err(why) => {
                    self.requeue_at.note(why.until);
                    verdict.block_pod(pod, &why);
                }
            }
        }
    }

    /// Takes a disruption for a pod that its node's claim has none for by name.
    fn take_free_disruption(&mut self, node_uid: &str, pod: &PodFacts) -> Result<(), NotEvictable> {
        let ledgers = Ledgers {
            written: &self.before,
            next: &self.write.next,
            reservations: &self.reservations,
        };
        self.eviction_budget.take_free_disruption(ledgers, node_uid, pod)
    }
}

fn eviction(active: &ActiveDrain<'_>, pod: &Arc<PodFacts>) -> PodEviction {
    PodEviction {
        pod: Arc::clone(pod),
        node: active.node.name.clone(),
    }
}
