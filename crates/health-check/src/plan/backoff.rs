//! A node that was remediated before waits longer before the next remediation.

use jiff::{SignedDuration, Timestamp};
use nodeward_api::annotation;
use nodeward_core::deadline::{is_due, saturating_add, whole_second};
use serde::{Deserialize, Serialize};

use super::Planner;
use super::action::{Action, NodeChange};
use super::case::Check;
use super::record::Record;
use crate::CLOCKS_APART;
use crate::snapshot::NodeFacts;
use nodeward_core::node_health_check::{Backoff, HealthyDelay};

/// How long the repeats after the first wait, with or without `backoff`, and how long a node is healthy until it has had none.
const REPEATS: Backoff = Backoff {
    initial: SignedDuration::from_mins(1),
    limit: SignedDuration::from_mins(10),
};

/// How often a node was remediated of late: the annotation `nodeward.dev/remediations`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemediationHistory {
    /// How often.
    pub count: u32,
    /// When the last one ended, one way or the other.
    pub last_end: Timestamp,
}

impl RemediationHistory {
    /// As the node tells; what cannot be read counts as none. So does an end that is still to come, and was written by a clock
    /// that is wrong: it would put off each remediation until then.
    pub fn of(node: &NodeFacts, now: Timestamp) -> Option<Self> {
        let history: Self = serde_json::from_str(node.view.annotations.get(annotation::REMEDIATIONS)?).ok()?;
        (history.last_end <= saturating_add(now, CLOCKS_APART)).then_some(history)
    }

    /// How long after the last end the next first step waits: the first repeat comes at once, and each further one later, or
    /// else a node that is healthy for a moment, and whoever deletes remediations, would make a loop of reboots.
    pub fn delay(self, backoff: Option<&Backoff>) -> SignedDuration {
        let repeats = REPEATS.delay(self.count.saturating_sub(1));
        let repeats = if self.count < 2 { SignedDuration::ZERO } else { repeats };
        backoff.map_or(repeats, |backoff| backoff.delay(self.count).max(repeats))
    }

    /// Once another one has ended. Starts are told to the second: what starts in that of the end is the next one.
    fn and_one(before: Option<Self>, begun: Timestamp, ended: Timestamp) -> Self {
        Self {
            count: before.map_or(0, |before| before.count).saturating_add(1),
            last_end: whole_second(ended).max(saturating_add(begun, SignedDuration::from_secs(1))),
        }
    }
}

/// Until when the node waits for its next first step.
pub fn waits_until(node: &NodeFacts, backoff: Option<&Backoff>, now: Timestamp) -> Option<Timestamp> {
    let history = RemediationHistory::of(node, now).filter(|history| history.count > 0)?;
    let until = saturating_add(history.last_end, history.delay(backoff));
    (now < until).then_some(until)
}

impl Planner<'_> {
    /// Counts what has ended, once; answers with the history once it is known to include that.
    pub(super) fn count_end(
        &mut self,
        check: &Check<'_>,
        node: &NodeFacts,
        begun: Timestamp,
        ended: Timestamp,
    ) -> Option<RemediationHistory> {
        let before = RemediationHistory::of(node, self.now);
        if let Some(counted) = before.filter(|before| begun < before.last_end) {
            return Some(counted);
        }
        let history = RemediationHistory::and_one(before, begun, ended);
        if check.only_reports() {
            return Some(history);
        }
        self.annotate_node(node, NodeChange::Remediations(serde_json::to_string(&history).ok()));
        None
    }

    /// The same of the remediations of an outage; answers whether they are known to be counted.
    pub(super) fn count_outage(
        &mut self,
        check: &Check<'_>,
        node: &NodeFacts,
        records: &[Record<'_>],
        ended: Timestamp,
    ) -> bool {
        // By a clock that was stepped back it may have yet to begin.
        let begun = records.iter().map(|record| record.started).min();
        let begun = begun.filter(|begun| *begun <= self.now);
        begun.is_none_or(|begun| self.count_end(check, node, begun, ended.min(self.now)).is_some())
    }

    /// A healthy node without a remediation: what was noted on it for remediations goes when its time has come.
    pub(super) fn tidy_healthy_node(&mut self, node: &NodeFacts, check: &Check<'_>) {
        if node.view.annotations.is_empty() || check.only_reports() {
            return;
        }
        let is_confirmed = node
            .view
            .annotations
            .contains_key(annotation::MANUALLY_CONFIRMED_HEALTHY);
        if is_confirmed && check.spec.healthy_delay != HealthyDelay::None && !self.is_remediated(node) {
            self.annotate_node(node, NodeChange::ConfirmationHeeded);
        }
        // While another NodeHealthCheck has a remediation it counts that.
        if !node.view.annotations.contains_key(annotation::REMEDIATIONS) || self.is_remediated(node) {
            return;
        }
        match self.forgets_at(node) {
            Some(at) if is_due(at, self.now) => self.annotate_node(node, NodeChange::Remediations(None)),
            at => self.requeue_at.note(at),
        }
    }

    /// When the history of a node is forgotten if it stays healthy: no repeat would wait for longer. `None`: a NodeHealthCheck
    /// that selects the node finds something wrong with it, and goes by the history.
    fn forgets_at(&mut self, node: &NodeFacts) -> Option<Timestamp> {
        let history = RemediationHistory::of(node, self.now);
        let mut healthy_since = history.map_or(Timestamp::MIN, |history| history.last_end);
        let mut longest = REPEATS.limit;
        let snapshot = self.snapshot;
        for spec in snapshot.checks.values().map(|check| &check.spec) {
            let selector = spec.selector.as_ref();
            if selector.is_some_and(|selector| !selector.matches(&node.view.labels)) {
                continue;
            }
            if !self.judge(node, spec).is_fine() {
                return None;
            }
            let since = self.healthy_at_most_since(node, spec);
            healthy_since = since.map_or(healthy_since, |since| healthy_since.max(since.min(self.now)));
            longest = spec.backoff.map_or(longest, |backoff| longest.max(backoff.limit));
        }
        Some(history.map_or(self.now, |_| saturating_add(healthy_since, longest)))
    }

    fn is_remediated(&self, node: &NodeFacts) -> bool {
        let name = &node.view.name;
        let mut checks = self.snapshot.checks.values();
        checks.any(|check| {
            // Of a kind that may not be listed the status tells.
            let mut entries = check.status.unhealthy_nodes.iter();
            entries.any(|entry| entry.name == name.as_str() && entry.all_remediations().next().is_some())
                || self.snapshot.memory.is_starting(&check.name, name)
                || !self.index.owned_on(&check.uid, name).is_empty()
        })
    }

    fn annotate_node(&mut self, node: &NodeFacts, change: NodeChange) {
        self.act(Action::AnnotateNode {
            node: node.view.name.clone(),
            node_uid: node.view.uid.clone(),
            before: node.view.annotations.get(change.annotation()).cloned(),
            change,
        });
    }
}
