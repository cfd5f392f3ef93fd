//! What this process has seen and tried. Losing it costs time, never safety: what safety rests on is in the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_runtime::{ActionResult, ApiError};

use crate::plan::{Members, Standing, UnhealthyPeriod};
use crate::snapshot::{CheckName, ConditionFacts, RemediationKind};

/// What plans find out, and the next one goes on from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// By node and type of condition, since when the node is seen to lack a condition that some NodeHealthCheck wants; by
    /// our clock as it was before any step.
    pub absent_since: BTreeMap<(NodeUid, Arc<str>), Timestamp>,
    /// By node and reason, since when its remediation is postponed because something cannot be told.
    pub unknown_since: BTreeMap<(NodeName, HealthReason), Timestamp>,
    /// What stops overdue timeouts, or did until lately, by NodeHealthCheck and node; `None`: this process has not looked yet, or
    /// the emergency stop has stopped it since.
    pub overdue_stops: Option<BTreeMap<(CheckName, NodeName), OverdueStop>>,
    /// The outages of nodes, by NodeHealthCheck.
    pub unhealthy_periods: BTreeMap<(CheckName, NodeName), UnhealthyPeriod>,
    /// Of when that was, as the watch of nodes was last heard of; `None`: this process has not looked yet.
    pub looked_at: Option<Timestamp>,
    /// When each member of etcd was last seen: those whose Node is gone count for a while.
    pub etcd_members: Members,
    /// Remediations by UID whose kind was not served while a status had them: they are not known to have been deleted.
    pub lost: BTreeSet<Arc<str>>,
}

/// What this process remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observations {
    /// What the last plan has found out.
    pub found: Findings,
    /// Starts that came to nothing, by NodeHealthCheck and node, which has one step at a time.
    pub refusals: BTreeMap<(CheckName, NodeName), Refusal>,
    /// What the API server has refused for want of a right, by NodeHealthCheck, kind and verb: its words, and until when they
    /// count if they are not repeated.
    pub forbidden: BTreeMap<(CheckName, RemediationKind, &'static str), (String, Timestamp)>,
    /// Remediations and nodes by UID, and the annotations that the API server refuses although their kind may be annotated: its
    /// words, and when those of remediations are tried again.
    pub unannotated: BTreeMap<(Arc<str>, &'static str), (String, Timestamp)>,
    /// Remediations by UID that the API server does not delete: its words, and until when they count if they are not repeated.
    pub undeleted: BTreeMap<Arc<str>, (String, Timestamp)>,
    /// NodeHealthChecks whose status could not be written when it was tried last, again and again: the words of the API server.
    pub unwritten: BTreeMap<CheckName, String>,
    /// Remediations by UID that a delete found to be gone: a list of their kind, which may be unreadable, need not tell it.
    pub gone: BTreeSet<Arc<str>>,
    /// NodeHealthChecks that were there since this process began: their kinds of remediations are known.
    pub checks: BTreeSet<CheckName>,
    /// Starts under way, by NodeHealthCheck and node, and whether the node is of the control plane: what they create the watches
    /// do not show yet, and a plan that leaves them out does not undo it.
    pub starting: BTreeMap<(CheckName, NodeName), bool>,
}

/// What keeps an overdue timeout from taking effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverdueStop {
    /// Since when nothing stops it any more; `None`: something does.
    pub ended: Option<Timestamp>,
    /// Whether the node is held. That lets its step end; one that has not ended when the node is released waits as after a stop.
    pub is_node_held: bool,
}

/// A remediation that was to start, and did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Which step it is.
    pub step: usize,
    /// What stopped it.
    pub standing: Standing,
    /// Not before then again.
    pub retry_at: Timestamp,
    /// How often in a row.
    pub in_a_row: u32,
}

/// The wait after a first refusal; it doubles with each.
const FIRST_RETRY: SignedDuration = SignedDuration::from_secs(5);

/// The longest wait after a refusal.
const LONGEST_RETRY: SignedDuration = SignedDuration::from_mins(5);

/// A refusal that is over for this long is forgotten, and a right that was missing so long ago may have been granted.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_mins(10);

impl Observations {
    /// A start came to nothing: its intent is withdrawn, and it is not tried again at once.
    pub fn start_refused(
        &mut self,
        (check, node, step): (&CheckName, &NodeName, usize),
        standing: Standing,
        now: Timestamp,
    ) {
        let key = (Arc::clone(check), node.clone());
        let before = self.refusals.get(&key).filter(|before| before.step == step);
        let in_a_row = before.map_or(0, |before| before.in_a_row) + 1;
        let factor = 1_i32 << in_a_row.saturating_sub(1).min(6);
        let wait = (FIRST_RETRY * factor).min(LONGEST_RETRY);
        let refusal = Refusal {
            step,
            standing,
            retry_at: saturating_add(now, wait),
            in_a_row,
        };
        self.refusals.insert(key, refusal);
    }

    /// Whether a start of a NodeHealthCheck is under way for a node.
    pub fn is_starting(&self, check: &CheckName, node: &NodeName) -> bool {
        !self.starting.is_empty() && self.starting.contains_key(&(Arc::clone(check), node.clone()))
    }

    /// A request for a right that is missing, or was.
    pub fn asked(&mut self, key: (CheckName, RemediationKind, &'static str), result: &ActionResult, now: Timestamp) {
        match result {
            ActionResult::Failed(ApiError::Forbidden { message }) => {
                // What comes before names an object.
                let why = message
                    .split_once("forbidden: ")
                    .map_or(message.as_str(), |(_, why)| why);
                self.forbidden
                    .insert(key, (why.to_owned(), saturating_add(now, FORGOTTEN_AFTER)));
            }
            ActionResult::Acted(()) => drop(self.forbidden.remove(&key)),
            _ => {}
        }
    }

    /// Forgets refusals that were long ago.
    pub fn forget_old(&mut self, now: Timestamp) {
        self.forbidden.retain(|_, (_, until)| now < *until);
        self.refusals
            .retain(|_, refusal| now < saturating_add(refusal.retry_at, FORGOTTEN_AFTER));
    }

    /// The refusal of a node's step, though it may be tried again by now.
    pub fn refusal(&self, check: &CheckName, node: &NodeName) -> Option<&Refusal> {
        self.refusals.get(&(Arc::clone(check), node.clone()))
    }
}

/// A moment by the wall clock, which may have been stepped since this process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// What the wall clock shows.
    pub now: Timestamp,
    /// By how much it has been stepped.
    pub stepped_by: SignedDuration,
}

impl Moment {
    /// By a clock that was not stepped.
    pub fn steady(self, at: Timestamp) -> Timestamp {
        saturating_add(at, -self.stepped_by)
    }
}

impl From<Timestamp> for Moment {
    fn from(now: Timestamp) -> Self {
        Self {
            now,
            stepped_by: SignedDuration::ZERO,
        }
    }
}

/// From when the duration of a condition counts, by our clock as it was before any step; `before` is the node's condition of that type as it was known.
/// What came about before our eyes counts from its arrival, however far the writer's clock is off; what was there before us
/// counts from its stamp, unless that lies in the future.
pub fn counts_since(
    before: Option<&ConditionFacts>,
    status: &str,
    stamp: Option<Timestamp>,
    is_first_list: bool,
    moment: Moment,
) -> Timestamp {
    match (before, is_first_list) {
        (Some(before), _) if *before.status == *status && before.last_transition == stamp => before.counts_since,
        (None, true) => moment.steady(stamp.map_or(moment.now, |stamp| stamp.min(moment.now))),
        _ => moment.steady(moment.now),
    }
}

#[cfg(test)]
mod tests;
