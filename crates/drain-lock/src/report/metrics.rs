//! Metrics.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_core::id::NodeName;
use nodeward_core::ledger::Facts;
use nodeward_runtime::metrics::{Moment, Series};
use nodeward_runtime::{ActionResult, Metrics};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::execute::{Eviction, TaskKey, TaskOutcome, result_label};
use crate::plan::Plan;
use crate::plan::verdict::DrainVerdict;

/// How far a drain was when it was looked at last.
#[derive(Debug, Clone, Copy)]
struct Seen {
    is_granted: bool,
    is_drained: bool,
}

/// Seconds that a drain waits or takes.
const SECONDS: [f64; 13] = [
    1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 21_600.0,
];

type Label = [(&'static str, &'static str); 1];

pub struct LockMetrics {
    drains: Family<Label, Gauge>,
    blocked: Family<Label, Gauge>,
    overdue: Series<1>,
    disruptions: Gauge,
    groups_allowed: Series<1>,
    groups_away: Series<2>,
    evictions: Family<Label, Counter>,
    ledger_writes: Family<Label, Counter>,
    ledger_bytes: Gauge,
    ledger_written_bytes: Counter,
    happened: Family<Label, Counter>,
    queue: Histogram,
    drain: Histogram,
    oldest: Moment,
    seen: BTreeMap<NodeName, Seen>,
}

impl LockMetrics {
    pub fn register(metrics: &Metrics) -> Self {
        Self {
            drains: metrics.register("drains", "Drains, by phase"),
            blocked: metrics.register(
                "blocked_drains",
                "Drains that wait for something, by reason; a drain counts once for each of its reasons",
            ),
            overdue: metrics.register(
                "overdue_drains",
                "1 for a node whose drain has passed the deadline of its phase",
            ),
            disruptions: metrics.register("held_disruptions", "Disruptions of budgets that drains hold"),
            groups_allowed: metrics.register(
                "node_group_max_unavailable",
                "How many nodes of a node group may be away at once",
            ),
            groups_away: metrics.register(
                "node_group_unavailable",
                "Nodes of a node group that are away, by cause: drained, or unhealthy without a drain",
            ),
            evictions: metrics.register("evictions", "Attempts to evict a pod, by outcome"),
            ledger_writes: metrics.register("ledger_writes", "Attempts to write the ledger, by outcome"),
            ledger_bytes: metrics.register("ledger_bytes", "Size of the ledger as it is stored"),
            ledger_written_bytes: metrics.register("ledger_written_bytes", "Bytes of ledgers written"),
            happened: metrics.register(
                "drain_events",
                "What happened to drains, by reason; AdminRelease is an override",
            ),
            queue: metrics.register_as(
                "queue_seconds",
                "Time from a drain's turn in the queue to its grant",
                Histogram::new(SECONDS),
            ),
            drain: metrics.register_as(
                "drain_seconds",
                "Time from a drain's grant to its node being drained",
                Histogram::new(SECONDS),
            ),
            oldest: metrics.seconds_since(
                "oldest_wait_seconds",
                "How long the oldest drain in the queue has waited in its present turn; absent if none waits",
            ),
            seen: BTreeMap::new(),
        }
    }

    /// Shows what the plan says.
    pub fn show(&mut self, plan: &Plan, facts: &Facts, ledger_bytes: usize, now: Timestamp) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let mut by_phase: BTreeMap<Phase, i64> = BTreeMap::new();
        let mut by_reason: BTreeMap<LockReason, i64> = BTreeMap::new();
        let mut disruptions = 0;
        let mut oldest: Option<Timestamp> = None;
        for verdict in &plan.drains {
            *by_phase.entry(verdict.phase).or_default() += 1;
            let reasons: BTreeSet<LockReason> = verdict.blocked_by.iter().map(|blocked| blocked.reason).collect();
            for reason in reasons {
                *by_reason.entry(reason).or_default() += 1;
            }
            if let Some(claim) = &verdict.claim {
                disruptions += i64::from(claim.disruptions(facts));
                if verdict.phase == Phase::Queued {
                    oldest = oldest.into_iter().chain([claim.queued_at]).min();
                }
            }
            self.measure(verdict, now);
        }
        for phase in Phase::ALL {
            let label = [("phase", phase.as_str())];
            let count = by_phase.get(phase).copied().unwrap_or_default();
            self.drains.get_or_create(&label).set(count);
        }
        for reason in LockReason::ALL {
            let label = [("reason", reason.as_str())];
            match by_reason.get(reason) {
                Some(count) => _ = self.blocked.get_or_create(&label).set(*count),
                None => _ = self.blocked.remove(&label),
            }
        }
        let is_overdue = |verdict: &&DrainVerdict| verdict.deadline.is_some_and(|deadline| deadline <= now);
        let overdue = plan.drains.iter().filter(is_overdue);
        self.overdue
            .show(overdue.map(|verdict| ([("node", verdict.node.to_string())], 1)));
        self.disruptions.set(disruptions);
        self.ledger_bytes.set(number(ledger_bytes));
        self.oldest.set(oldest);
        let groups = plan.node_groups.iter();
        self.groups_allowed.show(
            groups
                .clone()
                .map(|group| ([("group", group.name.clone())], number(group.allowed))),
        );
        self.groups_away.show(groups.flat_map(|group| {
            let of = |cause: &str, nodes: usize| {
                (
                    [("group", group.name.clone()), ("cause", cause.to_owned())],
                    number(nodes),
                )
            };
            [
                of("drain", group.draining.len()),
                of("unhealthy", group.unhealthy.len()),
            ]
        }));
        let present: BTreeSet<&NodeName> = plan.drains.iter().map(|verdict| &verdict.node).collect();
        self.seen.retain(|node, _| present.contains(node));
    }

    /// How long the phases take that this process sees the whole of.
    fn measure(&mut self, verdict: &DrainVerdict, now: Timestamp) {
        let claim = verdict.claim.as_ref().filter(|claim| claim.state.has_grant());
        let seen = Seen {
            is_granted: claim.is_some(),
            is_drained: verdict.phase == Phase::Drained,
        };
        let before = self.seen.insert(verdict.node.clone(), seen);
        let (Some(before), Some(claim)) = (before, claim) else {
            return;
        };
        if !before.is_granted {
            let waited = claim.since.duration_since(claim.queued_at);
            self.queue.observe(waited.as_secs_f64());
        } else if seen.is_drained && !before.is_drained {
            self.drain.observe(now.duration_since(claim.since).as_secs_f64());
        }
    }

    /// Counts an attempt at a pod.
    pub fn evicted(&self, eviction: &Eviction) {
        let outcome = match &eviction.done {
            ActionResult::Acted(()) => "evicted",
            other => result_label(other),
        };
        self.evictions.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts an action.
    pub fn acted(&self, key: &TaskKey, outcome: &TaskOutcome) {
        if *key == TaskKey::Ledger {
            let label = result_label(&outcome.done);
            self.ledger_writes.get_or_create(&[("outcome", label)]).inc();
            let bytes = u64::try_from(outcome.written_bytes).unwrap_or(u64::MAX);
            self.ledger_written_bytes.inc_by(bytes);
        }
    }

    /// Counts something that happened to a drain.
    pub fn announced(&self, reason: LockReason) {
        let reason = reason.as_str();
        self.happened.get_or_create(&[("reason", reason)]).inc();
    }

    /// Takes back what only the leader says.
    pub fn clear(&mut self) {
        self.drains.clear();
        self.blocked.clear();
        self.overdue.show([]);
        self.groups_allowed.show([]);
        self.groups_away.show([]);
        self.disruptions.set(0);
        self.ledger_bytes.set(0);
        self.oldest.set(None);
        self.seen.clear();
    }
}
