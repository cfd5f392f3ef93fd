//! What a plan has found out about a drain: the one source of its status, its Events and its metrics.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::node_drain::{BlockedBy, DrainPlan, LISTED_AT_MOST, NodeDrain, Phase, PlannedPod, PodCounts};
use nodeward_api::reason::LockReason;
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_core::ledger::{Claim, Obstacle, Units};

use crate::snapshot::{Memory, PodFacts, Snapshot};

use super::departures::NotEvictable;
use super::need::{Class, NodeNeed};

/// How a drain stands.
#[derive(Debug, Clone, PartialEq)]
pub struct DrainVerdict {
    /// The drain; `None` for what is left of one.
    pub drain: Option<Arc<NodeDrain>>,
    /// Its node.
    pub node: NodeName,
    /// UID of its node, where it is known.
    pub node_uid: Option<NodeUid>,
    /// Where it stands.
    pub phase: Phase,
    /// Its claim, as it is after this pass.
    pub claim: Option<Claim>,
    /// What it waits for.
    pub blocked_by: Vec<BlockedBy>,
    /// What becomes of each pod.
    pub plan: Option<DrainPlan>,
    /// How many pods have gone.
    pub counts: PodCounts,
    /// Until when the phase lasts at most.
    pub deadline: Option<Timestamp>,
    /// Whether all its pods should have been back by now: the node's lease is given back.
    pub gives_lease_up: bool,
    /// Where it stands, for a person.
    pub message: String,
    /// Whether somebody else has the node's lease.
    pub lease_lost: bool,
}

impl DrainVerdict {
    /// Says where it stands.
    pub(super) fn says(&mut self, text: &str) {
        text.clone_into(&mut self.message);
    }
}

/// Something that people are told once it has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// The node.
    pub node: NodeName,
    /// Its UID.
    pub node_uid: NodeUid,
    /// What happened.
    pub reason: LockReason,
    /// Whether it is a warning.
    pub is_warning: bool,
    /// The same for a person.
    pub note: String,
}

/// The pods of a draining node, by what becomes of them.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// They leave under the claim, and have not been asked yet.
    pub held: Vec<Arc<PodFacts>>,
    /// They leave as their budgets allow, and have not been asked yet.
    pub movable: Vec<Arc<PodFacts>>,
    /// They are waited for.
    pub completing: Vec<Arc<PodFacts>>,
    /// They stay.
    pub retained: Vec<Arc<PodFacts>>,
    /// They are on their way out.
    pub leaving: usize,
    /// Of these, the ones that are replaced elsewhere.
    pub departing: Vec<Arc<PodFacts>>,
    /// No drain concerns them.
    pub ignored: usize,
    /// Units that the drain needs.
    pub needs: Vec<Units>,
    /// What needs a person.
    pub problems: Vec<BlockedBy>,
    /// The plan, for people.
    pub plan: DrainPlan,
}

impl Look {
    /// Sorts the pods of a node.
    pub fn of(need: &NodeNeed, snapshot: &Snapshot, memory: &Memory, now: Timestamp) -> Self {
        let mut look = Self {
            needs: need.needs.clone(),
            problems: need.problems.clone(),
            ..Self::default()
        };
        for (pod, class) in &need.pods {
            let why = need.why.get(&pod.uid);
            look.sort(pod, *class, why, snapshot, memory, now);
        }
        look.plan.problems.clone_from(&look.problems);
        look.plan.movable = count(look.movable.len());
        look.plan.ignored = count(look.ignored);
        let lists = [&mut look.plan.held, &mut look.plan.waits_for, &mut look.plan.retained];
        let mut omitted = 0;
        for list in lists {
            omitted += list.len().saturating_sub(LISTED_AT_MOST);
            list.truncate(LISTED_AT_MOST);
        }
        omitted += look.plan.problems.len().saturating_sub(LISTED_AT_MOST);
        look.plan.problems.truncate(LISTED_AT_MOST);
        look.plan.omitted = count(omitted);
        look
    }

    fn sort(
        &mut self,
        pod: &Arc<PodFacts>,
        class: Class,
        why: Option<&String>,
        snapshot: &Snapshot,
        memory: &Memory,
        now: Timestamp,
    ) {
        let goes = pod.deletion.is_some() || memory.is_asked_to_go(pod.uid.as_str(), now);
        let planned = |reason| PlannedPod {
            pod: pod.key.to_string(),
            pdbs: snapshot.budgets_of(pod).iter().map(ToString::to_string).collect(),
            reason,
            message: why.cloned(),
        };
        match class {
            Class::Ignored(_) | Class::Finished => self.ignored += 1,
            Class::Retained if pod.deletion.is_none() => {
                self.plan.retained.push(planned(LockReason::OptedOut));
                self.retained.push(Arc::clone(pod));
            }
            Class::Movable if goes => {
                self.leaving += 1;
                self.departing.push(Arc::clone(pod));
            }
            _ if goes => self.leaving += 1,
            Class::Retained => {}
            Class::WaitsCompleted => {
                self.plan.waits_for.push(planned(LockReason::WaitCompleted));
                self.completing.push(Arc::clone(pod));
            }
            Class::Movable => self.movable.push(Arc::clone(pod)),
            Class::Held(reason) => {
                self.plan.held.push(planned(reason));
                self.held.push(Arc::clone(pod));
            }
        }
    }

    /// Whether a pod has to leave, or is about to.
    pub fn has_pods_to_leave(&self) -> bool {
        self.leaving + self.held.len() + self.movable.len() + self.completing.len() > 0
    }

    /// The counts for people. What has gone is known from `before`: the pods that there were at most.
    pub fn counts(&self, before: Option<PodCounts>) -> PodCounts {
        let waiting = self.held.len() + self.movable.len() + self.completing.len();
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

/// An obstacle, as the status shows it.
pub fn blocked_by(obstacle: &Obstacle) -> BlockedBy {
    BlockedBy {
        reason: obstacle.reason,
        pdb: obstacle.pdb.as_ref().map(ToString::to_string),
        pod: obstacle.pod.as_ref().map(ToString::to_string),
        node: obstacle.holder.as_ref().map(ToString::to_string),
        message: obstacle.to_string(),
    }
}

/// Why a pod is not evicted yet, as the status shows it.
pub fn not_evictable(pod: &PodFacts, why: &NotEvictable) -> BlockedBy {
    BlockedBy {
        reason: why.reason,
        pdb: why.pdb.as_ref().map(ToString::to_string),
        pod: Some(pod.key.to_string()),
        node: why.holder.as_ref().map(ToString::to_string),
        message: format!("pod {} {}", pod.key, why.reason.explanation()),
    }
}

/// Something that is about the node itself.
pub fn about_node(reason: LockReason, message: String) -> BlockedBy {
    BlockedBy {
        reason,
        pdb: None,
        pod: None,
        node: None,
        message,
    }
}

fn count(things: usize) -> i32 {
    i32::try_from(things).unwrap_or(i32::MAX)
}
