//! The Node condition `nodeward.dev/DrainBlocked`: `True` while pods keep the drain from ending, `False` with the gate's reason
//! on a cordoned node that is not acted on, absent otherwise. Which changes are to be written, and when; pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use nodeward_api::condition;
use nodeward_api::reason::{BlockerReason, GateReason};
use nodeward_core::deadline::{RequeueAt, saturating_add};
use nodeward_core::id::{NodeName, NodeUid, PodUid};
use nodeward_core::node::{ConditionView, NodeView};
use nodeward_core::verdict::{BlockedMessage, Blocker, Next, NodeVerdict};

use crate::execute::write_condition::{ConditionReason, DrainBlocked};
use crate::plan::Plan;
use crate::snapshot::Snapshot;

/// How long pods must have blocked the drain before it is said: most obstacles of an ordinary drain are gone by then.
const SETTLE: SignedDuration = SignedDuration::from_secs(5);

/// How long a gate must have been closed before it is said, so that a short cordon leaves no trace.
const GATE_SETTLES: SignedDuration = SignedDuration::from_secs(15);

/// How long a message stands at least, unless its reason changes.
const MESSAGE_STANDS: SignedDuration = SignedDuration::from_secs(15);

/// How many blockers a message names.
const NAMED: usize = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub node: NodeName,
    pub uid: NodeUid,
    /// The condition; `None` removes it.
    pub condition: Option<DrainBlocked>,
    /// Blockers that were not named before.
    pub news: Vec<Blocker>,
    /// The drain has failed, and had not when this was last written.
    pub has_failed: bool,
}

/// Conditions of all nodes.
#[derive(Debug, Default)]
pub struct Conditions {
    nodes: BTreeMap<NodeUid, ReportedState>,
}

/// What has been told of one node.
#[derive(Debug, Default)]
struct ReportedState {
    blocked_since: Option<Timestamp>,
    /// The gate that was found closed, and since when.
    gate: Option<(GateReason, Timestamp)>,
    /// What was last asked for.
    asked: Option<Requested>,
    /// Not before then is the same asked for again.
    not_before: Option<Timestamp>,
    writing: bool,
    named: BTreeSet<(PodUid, BlockerReason)>,
    failed: bool,
}

/// What is asked of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Requested {
    /// The condition, with this reason.
    For(ConditionReason),
    Removal,
}

impl Conditions {
    /// What is to be written now, and when to look again.
    pub fn changes(&mut self, snapshot: &Snapshot, plan: &Plan, now: Timestamp) -> (Vec<Change>, Option<Timestamp>) {
        let verdicts: BTreeMap<&NodeName, &NodeVerdict> =
            plan.verdicts.iter().map(|verdict| (&verdict.node, verdict)).collect();
        let present: BTreeSet<&NodeUid> = snapshot.nodes.iter().map(|node| &node.uid).collect();
        self.nodes.retain(|uid, _| present.contains(uid));
        let mut requeue_at = RequeueAt::after(now);
        let changes = snapshot
            .nodes
            .iter()
            .filter_map(|node| {
                let state = self.nodes.entry(node.uid.clone()).or_default();
                state.change(node, verdicts.get(&node.name).copied(), now, &mut requeue_at)
            })
            .collect();
        (changes, requeue_at.at())
    }

    /// A write is under way.
    pub fn started(&mut self, node: &NodeUid) {
        if let Some(state) = self.nodes.get_mut(node) {
            state.writing = true;
        }
    }

    /// A write has ended: a failed one is tried again after a while.
    pub fn written(&mut self, node: &NodeUid, succeeded: bool, now: Timestamp) {
        if let Some(state) = self.nodes.get_mut(node) {
            state.writing = false;
            if !succeeded {
                state.not_before = Some(saturating_add(now, SETTLE));
            }
        }
    }
}

impl ReportedState {
    fn change(
        &mut self,
        node: &NodeView,
        verdict: Option<&NodeVerdict>,
        now: Timestamp,
        requeue_at: &mut RequeueAt,
    ) -> Option<Change> {
        let standing = node.condition(condition::DRAIN_BLOCKED);
        // While a drain is in doubt, or its pods are still being listed, nothing is known, and what stands stays.
        let is_unknown = |verdict: &NodeVerdict| match verdict.gate {
            GateReason::ClockStarting => true,
            GateReason::Open | GateReason::UnderRemediation => false,
            _ => verdict.since.is_some() && standing.is_some_and(|standing| &*standing.status == "True"),
        };
        if verdict.is_some_and(is_unknown) {
            return None;
        }
        // What stands on a node out of scope is another drain-keeper's, unless it was in scope before.
        if self.asked.is_none() && verdict.is_some_and(|verdict| verdict.gate == GateReason::NotSelected) {
            return None;
        }
        let blocked = verdict.filter(|verdict| is_blocked(verdict));
        let Some(verdict) = blocked else {
            self.blocked_since = None;
            self.named.clear();
            self.failed = false;
            if let Some(verdict) = verdict.filter(|verdict| is_told(verdict.gate)) {
                return self.tell_gate(node, verdict, standing, now, requeue_at);
            }
            self.gate = None;
            if standing.is_none() || self.writing || self.is_too_early(Requested::Removal, now, now, requeue_at) {
                return None;
            }
            return Some(self.take(node, None, Vec::new(), false, now));
        };
        self.gate = None;
        let since = *self.blocked_since.get_or_insert_with(|| first_seen(standing, now));
        let wanted = DrainBlocked {
            reason: ConditionReason::Blocked(chief_reason(verdict)),
            message: message(verdict),
            since,
        };
        let is_told = standing.is_some_and(|standing| {
            &*standing.status == "True"
                && &*standing.reason == wanted.reason.as_str()
                && *standing.message == *wanted.message
        });
        if is_told || self.writing {
            return None;
        }
        if self.is_too_early(
            Requested::For(wanted.reason),
            saturating_add(since, SETTLE),
            now,
            requeue_at,
        ) {
            return None;
        }
        let news: Vec<Blocker> = verdict
            .blockers
            .iter()
            .filter(|blocker| is_obstacle(blocker) && self.named.insert((blocker.uid.clone(), blocker.reason)))
            .cloned()
            .collect();
        let has_failed = verdict.drain_failed && !std::mem::replace(&mut self.failed, verdict.drain_failed);
        Some(self.take(node, Some(wanted), news, has_failed, now))
    }

    /// Says which gate is closed. Its detail may name moments that change with each renewal of a lease, so that what stands is
    /// written anew for another gate only.
    fn tell_gate(
        &mut self,
        node: &NodeView,
        verdict: &NodeVerdict,
        standing: Option<&ConditionView>,
        now: Timestamp,
        requeue_at: &mut RequeueAt,
    ) -> Option<Change> {
        let reason = ConditionReason::Gate(verdict.gate);
        let since = match self.gate {
            Some((gate, since)) if gate == verdict.gate => since,
            _ => now,
        };
        self.gate = Some((verdict.gate, since));
        let is_told = standing
            .is_some_and(|standing| &*standing.status == reason.status() && &*standing.reason == reason.as_str());
        // What pods keep the drain from ending stands no longer than it is true.
        let is_blocked = standing.is_some_and(|standing| &*standing.status == "True");
        let earliest = if is_blocked {
            now
        } else {
            saturating_add(since, GATE_SETTLES)
        };
        if is_told || self.writing || self.is_too_early(Requested::For(reason), earliest, now, requeue_at) {
            return None;
        }
        let condition = DrainBlocked {
            reason,
            message: gate_message(verdict),
            since,
        };
        Some(self.take(node, Some(condition), Vec::new(), false, now))
    }

    /// Whether it is too early to ask: before `earliest`, and soon after the same was asked for. So a message stands for a
    /// while, a write that fails is not repeated at once, and one that succeeded is waited for until the watch shows it.
    fn is_too_early(&self, asked: Requested, earliest: Timestamp, now: Timestamp, requeue_at: &mut RequeueAt) -> bool {
        let not_before = self.not_before.filter(|_| self.asked == Some(asked));
        let earliest = not_before.map_or(earliest, |not_before| earliest.max(not_before));
        requeue_at.note(earliest);
        now < earliest
    }

    fn take(
        &mut self,
        node: &NodeView,
        condition: Option<DrainBlocked>,
        news: Vec<Blocker>,
        has_failed: bool,
        now: Timestamp,
    ) -> Change {
        self.asked = Some(
            condition
                .as_ref()
                .map_or(Requested::Removal, |condition| Requested::For(condition.reason)),
        );
        self.not_before = Some(saturating_add(now, MESSAGE_STANDS));
        Change {
            node: node.name.clone(),
            uid: node.uid.clone(),
            condition,
            news,
            has_failed,
        }
    }
}

fn first_seen(standing: Option<&ConditionView>, now: Timestamp) -> Timestamp {
    standing
        .filter(|standing| &*standing.status == "True")
        .and_then(|standing| standing.last_transition)
        .unwrap_or(now)
}

/// Whether people are told that this gate keeps drain-keeper off a cordoned node.
fn is_told(gate: GateReason) -> bool {
    match gate {
        // A node out of scope may be another drain-keeper's; of its turn the NodeDrain tells.
        GateReason::NotSelected
        | GateReason::WaitsForTurn
        | GateReason::NotCordoned
        | GateReason::CordonTaintMissing
        | GateReason::ClockStarting
        | GateReason::Open => false,
        GateReason::ControlPlane
        | GateReason::NotUpgrading
        | GateReason::UpgradeUnknown
        | GateReason::NotDraining
        | GateReason::DrainUnknown
        | GateReason::TurnUnknown
        | GateReason::UnderRemediation
        | GateReason::RemediationUnknown
        | GateReason::PodsSyncing => true,
    }
}

fn gate_message(verdict: &NodeVerdict) -> String {
    let (gate, detail) = (verdict.gate, verdict.gate_detail.as_str());
    let detail = if detail.is_empty() {
        String::new()
    } else {
        format!(" ({detail})")
    };
    format!(
        "drain-keeper does not act: the node {}{detail}; to do: {}",
        gate.explanation(),
        gate.remedy()
    )
}

/// Whether something other than the drainer's own pace keeps the drain from ending.
pub fn is_blocked(verdict: &NodeVerdict) -> bool {
    verdict.drain_failed || verdict.blockers.iter().any(is_obstacle)
}

fn is_obstacle(blocker: &Blocker) -> bool {
    let goes_by_itself = matches!(
        blocker.reason,
        BlockerReason::AwaitingEviction | BlockerReason::Terminating
    );
    !goes_by_itself || matches!(blocker.next, Next::HeldBack { .. })
}

/// The reason to name first: of a pod that somebody has to look at, else of one that is dealt with in time.
fn chief_reason(verdict: &NodeVerdict) -> BlockerReason {
    let weight = |blocker: &&Blocker| match (is_obstacle(blocker), blocker.next) {
        (true, Next::Nothing) => 0,
        (true, Next::HeldBack { .. }) => 1,
        (true, _) => 2,
        (false, _) => 3,
    };
    verdict
        .blockers
        .iter()
        .min_by_key(weight)
        .map_or(BlockerReason::AwaitingEviction, |blocker| blocker.reason)
}

fn message(verdict: &NodeVerdict) -> String {
    let mut blockers: Vec<&Blocker> = verdict.blockers.iter().collect();
    blockers.sort_by_key(|blocker| !is_obstacle(blocker));
    let message = BlockedMessage {
        drain_failed: verdict.drain_failed,
        pods: blockers.len(),
        named: blockers.iter().take(NAMED).map(ToString::to_string).collect(),
    };
    message.to_string()
}

#[cfg(test)]
mod tests;
