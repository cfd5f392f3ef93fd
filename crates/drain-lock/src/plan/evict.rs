//! Which pods are evicted in this pass, and under which grant.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodeward_api::node_drain::Evictor;
use nodeward_core::ledger::{Claim, Fence};

use crate::snapshot::{NodeFacts, PodFacts};

use super::departures::NotEvictable;
use super::node_markers::Progress;
use super::verdict::{self, DrainVerdict, Look};
use super::{Action, File, Force, Planner, PodEviction};

impl Planner<'_> {
    /// The pods of a granted claim leave, and with them whatever came later and finds room elsewhere. A need that has
    /// grown returns what can be returned, and queues the whole of it.
    pub(super) fn evict(
        &mut self,
        file: &File,
        node: &Arc<NodeFacts>,
        look: &Look,
        forced: bool,
        verdict: &mut DrainVerdict,
    ) {
        let uid = node.uid.as_str();
        self.write_node_markers(node, Self::own_cordon(file), false, Some(Progress::InProgress));
        self.keep_lease(file, verdict);
        let Some(claim) = self.write.next.claim(uid).cloned() else {
            return;
        };
        let (with_unit, without): (Vec<_>, Vec<_>) = look
            .held
            .iter()
            .chain(&look.movable)
            .cloned()
            .partition(|pod| claim.has_unit(pod.uid.as_str()));
        if !forced && self.asks_again(file, node, look, verdict) {
            return;
        }
        verdict.message = format!(
            "{} pods leave, {} are on their way out",
            with_unit.len() + without.len() + look.completing.len(),
            look.leaving
        );
        if file.case.evictor() == Evictor::Requester || verdict.lease_lost {
            return;
        }
        let force = self.force(file, &claim);
        let room = self.policy.evictions_per_node.saturating_sub(look.leaving);
        let due = self.due(&claim, with_unit, room, force, verdict);
        self.evict_held(file, node, &claim, &due, force);
        let mut others = without;
        if forced {
            others.extend(look.completing.iter().cloned());
        }
        self.let_leave(file, node, &others, look.leaving + due.len(), force, verdict);
    }

    /// Queues the whole need of a claim that lacks units of it: a pod came late, asked to stay, or is another budget's by
    /// now. Returns whether it did.
    pub(super) fn asks_again(
        &mut self,
        file: &File,
        node: &NodeFacts,
        look: &Look,
        verdict: &mut DrainVerdict,
    ) -> bool {
        let uid = node.uid.as_str();
        let here: BTreeSet<&str> = look
            .held
            .iter()
            .chain(&look.retained)
            .map(|pod| pod.uid.as_str())
            .collect();
        let lacks = |claim: &Claim| claim.lacks(&look.needs, |pod| here.contains(pod));
        if !self.write.next.claim(uid).is_some_and(lacks) {
            return false;
        }
        let (down, needs) = (&file.down, look.needs.clone());
        self.write
            .next
            .set_needs(uid, needs, &|pod| down.is_down(pod), self.now);
        verdict.says("needs more units than it holds, and queues for all of them");
        true
    }

    /// Whether a pod with a unit may be evicted. A grant was made of free units; a fallback makes none, and what budgets
    /// granted to others, and what their owners keep, is not its to take. Where it deletes, only owners are asked.
    fn spends_no_others_unit(&mut self, claim: &Claim, pod: &PodFacts, force: Force) -> Result<(), NotEvictable> {
        if !claim.by_fallback || (force == Force::Delete && !self.is_spared(pod)) {
            return Ok(());
        }
        self.departures.leave_by_fallback(&self.write.next, pod)
    }

    /// Of the pods that have units those that leave now: as many as there is room for of the ones that may be tried.
    fn due(
        &mut self,
        claim: &Claim,
        pods: Vec<Arc<PodFacts>>,
        room: usize,
        force: Force,
        verdict: &mut DrainVerdict,
    ) -> Vec<Arc<PodFacts>> {
        let mut due = Vec::new();
        for pod in pods {
            if due.len() >= room {
                break;
            }
            if let Err(why) = self.departures.wait_for_last_attempt(&pod) {
                why.until.into_iter().for_each(|until| self.requeue_at.note(until));
                continue;
            }
            match self.spends_no_others_unit(claim, &pod, force) {
                Ok(()) => due.push(pod),
                Err(why) => verdict.blocked_by.push(verdict::not_evictable(&pod, &why)),
            }
        }
        due
    }

    /// Evicts pods that have units.
    fn evict_held(&mut self, file: &File, node: &Arc<NodeFacts>, claim: &Claim, pods: &[Arc<PodFacts>], force: Force) {
        let Some(ledger) = self.write.base.clone() else {
            return;
        };
        // The grant that evictions rest on is the one that is in the ledger, not one that is about to be written.
        let is_written = self
            .before
            .claim(node.uid.as_str())
            .is_some_and(|written| Fence::of(written) == Fence::of(claim) && written.state == claim.state);
        if !is_written || pods.is_empty() {
            return;
        }
        let pods = pods.iter().map(|pod| self.eviction(file, node, pod, force));
        let pods = pods.collect();
        self.plan.actions.push(Action::EvictHeld {
            node_uid: node.uid.clone(),
            fence: Fence::of(claim),
            ledger_uid: Arc::clone(&ledger.uid),
            pods,
        });
    }

    /// Evicts pods that have no unit, as far as their budgets have room.
    pub(super) fn let_leave(
        &mut self,
        file: &File,
        node: &Arc<NodeFacts>,
        pods: &[Arc<PodFacts>],
        leaving: usize,
        force: Force,
        verdict: &mut DrainVerdict,
    ) {
        let mut room = self.policy.evictions_per_node.saturating_sub(leaving);
        for pod in pods {
            if room == 0 {
                return;
            }
            let allowed = match force {
                Force::Never => self.departures.leave(&self.before, &self.write.next, pod),
                Force::Delete => self.departures.wait_for_last_attempt(pod),
            };
            match allowed {
                Ok(()) => {
                    room -= 1;
                    let eviction = self.eviction(file, node, pod, force);
                    self.plan.actions.push(Action::Evict { eviction });
                }
                Err(why) => {
                    why.until.into_iter().for_each(|until| self.requeue_at.note(until));
                    verdict.blocked_by.push(verdict::not_evictable(pod, &why));
                }
            }
        }
    }

    fn eviction(&self, file: &File, node: &NodeFacts, pod: &Arc<PodFacts>, force: Force) -> PodEviction {
        PodEviction {
            pod: Arc::clone(pod),
            node: node.name.clone(),
            node_uid: node.uid.clone(),
            drain_uid: file.case.drain_uid().to_owned(),
            force: if self.is_spared(pod) { Force::Never } else { force },
        }
    }

    /// Whether the pod is never deleted around its budget, whatever the fallback says: its budget forbids that for good,
    /// or its owner holds units of it for now.
    fn is_spared(&self, pod: &PodFacts) -> bool {
        self.snapshot.budgets_of(pod).iter().any(|key| {
            let budget = self.snapshot.budgets.get(key);
            let facts = self.snapshot.facts.get(key);
            budget.is_some_and(|budget| budget.view.forbids_force().is_some())
                || facts.is_some_and(|facts| facts.owner_units.is_some())
        })
    }
}
