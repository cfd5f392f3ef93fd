//! The pods of a draining node, sorted by what becomes of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::{BlockedBy, DrainPlan, LISTED_AT_MOST, PlannedPod, PodCounts};
use nodeward_api::reason::LockReason;
use nodeward_core::consent::Consents;
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::{BudgetKey, PodUid};
use nodeward_core::ledger::Disruptions;

use crate::snapshot::{Memory, PodFacts, Snapshot};

use super::need::{Class, ClassifiedPod, NodeNeed, kept};
use super::obstacles::{Obstacles, is_refused};

/// How long after its grace a pod may be there before anybody is told: a kubelet needs a moment to confirm its end.
const CONFIRMED_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// The same of one with finalizers: the Job controller waits for seconds after a failure before it looks again.
const FINALIZED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// The pods of a draining node, by what becomes of them.
#[derive(Debug, Clone, Default)]
pub struct PodClasses {
    /// They leave under the claim, and have not been asked yet.
    pub held: Vec<Arc<PodFacts>>,
    /// Of these, the ones that find no room elsewhere.
    pub without_room: Vec<Arc<PodFacts>>,
    /// They leave as their budgets allow, and have not been asked yet.
    pub movable: Vec<Arc<PodFacts>>,
    /// They leave once whoever runs them moves them.
    pub left_to_owners: Vec<Arc<PodFacts>>,
    /// They would have to leave, and nobody has consented to what that destroys.
    pub kept: Vec<Arc<PodFacts>>,
    /// What somebody has consented to.
    pub consents: Consents,
    /// They are waited for.
    pub completing: Vec<Arc<PodFacts>>,
    /// They stay.
    pub retained: Vec<Arc<PodFacts>>,
    /// They are on their way out.
    pub leaving: usize,
    /// Of these, the ones that should be gone by now.
    pub overdue: Vec<Arc<PodFacts>>,
    /// When the next one should be.
    pub next_overdue: Option<Timestamp>,
    /// Of those on their way out, the ones that are replaced elsewhere.
    pub departing: Vec<Arc<PodFacts>>,
    /// No drain concerns them.
    pub ignored: usize,
    pub needs: Vec<Disruptions>,
    /// Budgets whose movable pods leave before the claim is asked for.
    pub movable_first: BTreeSet<BudgetKey>,
    /// What no other drain's end lifts.
    pub obstacles: Obstacles,
    /// What needs a person.
    pub problems: Vec<BlockedBy>,
    /// Budgets of which more pods stay down than they can ever spare, only for the cordons of other drains.
    pub crowded_out: BTreeSet<BudgetKey>,
    /// Whether all pods that have yet to leave are ones that may never go.
    pub is_stopped: bool,
    /// The plan, for people.
    pub plan: DrainPlan,
}

impl PodClasses {
    /// Sorts the pods of a node.
    pub fn of(need: NodeNeed, snapshot: &Snapshot, memory: &Memory, now: Timestamp) -> Self {
        let mut classes = Self {
            consents: need.consents,
            crowded_out: need.crowded_out,
            obstacles: need.obstacles,
            ..Self::default()
        };
        for ClassifiedPod { pod, class, why } in need.pods {
            let is_leaving = pod.deletion.is_some() || memory.is_asked_to_go(pod.uid.as_str(), now);
            if !matches!(class, Class::Ignored(_)) {
                classes.note_end(&pod, now);
            }
            classes.sort(&pod, class, is_leaving, |reason| PlannedPod {
                pod: pod.key.to_string(),
                pdbs: snapshot.budgets_of(&pod).iter().map(ToString::to_string).collect(),
                reason,
                message: why,
            });
        }
        let plan = &mut classes.plan;
        plan.problems.clone_from(&need.problems);
        plan.movable = count(classes.movable.len());
        plan.ignored = count(classes.ignored);
        let mut omitted = truncate(&mut plan.problems);
        for pods in [
            &mut plan.held,
            &mut plan.waits_for,
            &mut plan.retained,
            &mut plan.left_out,
        ] {
            omitted += truncate(pods);
        }
        plan.omitted = count(omitted);
        classes.is_stopped = classes.may_never_go(snapshot);
        Self {
            needs: need.needs,
            movable_first: need.movable_first,
            problems: need.problems,
            ..classes
        }
    }

    /// Notes whether a pod that is being deleted should be gone by now, or when it should be.
    fn note_end(&mut self, pod: &Arc<PodFacts>, now: Timestamp) {
        let Some(deletion) = &pod.deletion else { return };
        let within = if deletion.finalizers.is_empty() {
            CONFIRMED_WITHIN
        } else {
            FINALIZED_WITHIN
        };
        let overdue_at = saturating_add(deletion.deadline, within);
        if overdue_at <= now {
            self.overdue.push(Arc::clone(pod));
        } else {
            self.next_overdue = self.next_overdue.into_iter().chain([overdue_at]).min();
        }
    }

    fn sort(
        &mut self,
        pod: &Arc<PodFacts>,
        class: Class,
        is_leaving: bool,
        planned: impl FnOnce(LockReason) -> PlannedPod,
    ) {
        let is_kept = kept(pod, self.consents).next().is_some();
        match class {
            Class::Ignored(_) | Class::Finished => self.ignored += 1,
            Class::Retained(reason) if pod.deletion.is_none() => {
                let (list, why) = match self.obstacles.left_out(pod) {
                    Some(obstacle) => (&mut self.plan.left_out, obstacle),
                    None => (&mut self.plan.retained, reason),
                };
                list.push(planned(why));
                self.retained.push(Arc::clone(pod));
            }
            Class::Movable if is_leaving => {
                self.leaving += 1;
                self.departing.push(Arc::clone(pod));
            }
            _ if is_leaving => self.leaving += 1,
            Class::Retained(_) => {}
            Class::WaitsCompleted => {
                self.plan.waits_for.push(planned(LockReason::WaitCompleted));
                self.completing.push(Arc::clone(pod));
            }
            Class::Movable | Class::LeftToOwner if is_kept => self.kept.push(Arc::clone(pod)),
            Class::LeftToOwner => {
                self.plan.left_out.push(planned(LockReason::BudgetNeverAllows));
                self.left_to_owners.push(Arc::clone(pod));
            }
            Class::Movable => {
                let obstacle = self.obstacles.left_out(pod);
                self.plan.left_out.extend(obstacle.map(planned));
                self.movable.push(Arc::clone(pod));
            }
            Class::Held(reason) => {
                let (list, why) = match self.obstacles.left_out(pod) {
                    Some(obstacle) => (&mut self.plan.left_out, obstacle),
                    None => (&mut self.plan.held, reason),
                };
                list.push(planned(why));
                if reason == LockReason::NoRoom && !is_kept {
                    self.without_room.push(Arc::clone(pod));
                }
                let held = if is_kept { &mut self.kept } else { &mut self.held };
                held.push(Arc::clone(pod));
            }
        }
    }

    /// Whether what is left on the node goes only once a person has seen to it, or a pod ends that asked to be waited for.
    fn may_never_go(&self, snapshot: &Snapshot) -> bool {
        let has_obstacle = |pod: &Arc<PodFacts>| self.obstacles.keep(pod) || is_refused(pod, snapshot);
        let mut to_leave = self.held.iter().chain(&self.movable);
        self.leaving == self.overdue.len() && self.has_pods_to_leave() && to_leave.all(has_obstacle)
    }

    /// The pods that stay for which nothing is claimed, and which the node may go down over.
    pub fn unclaimed(&self) -> BTreeSet<PodUid> {
        let is_claimed = |pod: &PodFacts| {
            let mut claimed = self.needs.iter().flat_map(|needed| &needed.pods);
            claimed.any(|claimed| claimed.uid == pod.uid.as_str())
        };
        let unclaimed = self.retained.iter();
        let unclaimed = unclaimed.filter(|pod| !is_claimed(pod) && !self.awaits_budget(pod));
        unclaimed.map(|pod| pod.uid.clone()).collect()
    }

    /// The first pod that stays, and whose budget lacks its disruption for a while.
    pub fn awaiting_budget(&self) -> Option<&PodFacts> {
        self.retained
            .iter()
            .map(|pod| &**pod)
            .find(|pod| self.awaits_budget(pod))
    }

    /// Whether somebody may yet let the budget spare the pod: what it can never spare is waited for in vain.
    fn awaits_budget(&self, pod: &PodFacts) -> bool {
        let obstacle = self.obstacles.left_out(pod);
        obstacle.is_some_and(|obstacle| !obstacle.is_misconfiguration())
    }

    /// The pods that find room elsewhere, and leave or are about to.
    pub fn to_find_room(&self) -> impl Iterator<Item = &Arc<PodFacts>> {
        self.movable.iter().chain(&self.departing)
    }

    /// Whether a pod has to leave, or is about to.
    pub fn has_pods_to_leave(&self) -> bool {
        self.leaving + self.waiting() > 0
    }

    /// How many have not been asked to leave yet.
    pub fn waiting(&self) -> usize {
        self.held.len() + self.movable.len() + self.left_to_owners.len() + self.kept.len() + self.completing.len()
    }

    /// The counts for people. What has gone is known from `before`: the pods that there were at most.
    pub fn counts(&self, before: Option<PodCounts>) -> PodCounts {
        let waiting = self.waiting();
        let here = count(waiting + self.leaving + self.retained.len());
        let total = before.map_or(here, |before| before.total.max(here));
        PodCounts {
            total,
            gone: total - here,
            evicting: count(self.leaving),
            retained: count(self.retained.len()),
            waiting: count(waiting),
        }
    }
}

/// Shortens a list of a status; answers how many entries were left out.
fn truncate<T>(list: &mut Vec<T>) -> usize {
    let omitted = list.len().saturating_sub(LISTED_AT_MOST);
    list.truncate(LISTED_AT_MOST);
    omitted
}

fn count(things: usize) -> i32 {
    i32::try_from(things).unwrap_or(i32::MAX)
}
