//! Metrics: our own, and the one by which users of managed-upgrade-operator are alerted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use nodeward_api::reason::{BlockerReason, GateReason};
use nodeward_core::id::NodeName;
use nodeward_core::verdict::NodeVerdict;
use nodeward_runtime::{ActionResult, Metrics};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;

use crate::execute::{Forced, PodResult, outcome_label};
use crate::plan::{Plan, PodAction};

/// Seconds that a drain takes, from a good one to one that nobody looked after.
const DRAIN_SECONDS: [f64; 12] = [
    10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2700.0, 5400.0, 10_800.0, 21_600.0, 86_400.0,
];

/// Seconds by which an act comes after its deadline.
const LATENESS_SECONDS: [f64; 11] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0, 300.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeLabel {
    node_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    strategy: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LatenessLabel {
    held_back: &'static str,
}

/// The metrics of drain-keeper.
pub struct DrainMetrics {
    drain_timeout: Family<NodeLabel, Gauge>,
    draining: Gauge,
    blockers: Family<ReasonLabel, Gauge>,
    actions: Family<ActionLabels, Counter>,
    overrides: Counter,
    lateness: Family<LatenessLabel, Histogram, fn() -> Histogram>,
    duration: Histogram,
    next_deadline: Arc<Mutex<Option<Timestamp>>>,
    timed_out: BTreeSet<NodeName>,
    under_way: BTreeMap<NodeName, Timestamp>,
}

impl DrainMetrics {
    /// Registers them.
    pub fn register(metrics: &Metrics) -> Self {
        let this = Self {
            drain_timeout: Family::default(),
            draining: Gauge::default(),
            blockers: Family::default(),
            actions: Family::default(),
            overrides: Counter::default(),
            lateness: Family::new_with_constructor(|| Histogram::new(LATENESS_SECONDS)),
            duration: Histogram::new(DRAIN_SECONDS),
            next_deadline: Arc::default(),
            timed_out: BTreeSet::new(),
            under_way: BTreeMap::new(),
        };
        metrics.foreign(|registry| {
            registry.register(
                "upgradeoperator_node_drain_timeout",
                "1 when everything that may be done to drain the node has been, and pods still block it; 0 while there is \
                 something to wait for; absent without blockers",
                this.drain_timeout.clone(),
            );
        });
        metrics.own(|registry| {
            registry.register("draining_nodes", "Nodes that are being drained", this.draining.clone());
            registry.register(
                "blockers",
                "Pods that drains wait for, by reason",
                this.blockers.clone(),
            );
            registry.register(
                "actions",
                "Attempts at pods, by strategy and outcome",
                this.actions.clone(),
            );
            registry.register(
                "budget_overrides",
                "Pods deleted although a budget refused",
                this.overrides.clone(),
            );
            registry.register(
                "action_lateness_seconds",
                "Time from a strategy's deadline to its first request; held_back: a limit, a hold or a budget's turn \
                 delayed it by intent",
                this.lateness.clone(),
            );
            registry.register(
                "drain_duration_seconds",
                "Time from the start of a drain to the moment when no pod blocks it",
                this.duration.clone(),
            );
            registry.register_collector(Box::new(NextDeadline(Arc::clone(&this.next_deadline))));
        });
        this
    }

    /// Shows what the plan says.
    pub fn show(&mut self, plan: &Plan, now: Timestamp) {
        let draining: Vec<&NodeVerdict> = plan.verdicts.iter().filter(|v| v.gate == GateReason::Open).collect();
        self.draining.set(i64::try_from(draining.len()).unwrap_or(i64::MAX));
        let mut by_reason: BTreeMap<BlockerReason, i64> = BTreeMap::new();
        for blocker in draining.iter().flat_map(|verdict| &verdict.blockers) {
            *by_reason.entry(blocker.reason).or_default() += 1;
        }
        for reason in BlockerReason::ALL {
            let count = by_reason.get(reason).copied().unwrap_or(0);
            self.blockers
                .get_or_create(&ReasonLabel {
                    reason: reason.as_str(),
                })
                .set(count);
        }
        self.show_timeouts(&draining);
        self.measure_durations(&draining, plan, now);
        let next = draining
            .iter()
            .flat_map(|v| &v.blockers)
            .filter(|b| b.next.is_pending())
            .filter_map(|b| b.next.due());
        *self.next_deadline.lock().unwrap_or_else(PoisonError::into_inner) = next.min();
    }

    fn show_timeouts(&mut self, draining: &[&NodeVerdict]) {
        let mut shown = BTreeSet::new();
        for verdict in draining.iter().filter(|verdict| !verdict.blockers.is_empty()) {
            let label = NodeLabel {
                node_name: verdict.node.to_string(),
            };
            self.drain_timeout
                .get_or_create(&label)
                .set(i64::from(verdict.drain_failed));
            shown.insert(verdict.node.clone());
        }
        for gone in self.timed_out.difference(&shown) {
            self.drain_timeout.remove(&NodeLabel {
                node_name: gone.to_string(),
            });
        }
        self.timed_out = shown;
    }

    /// A drain is over when its node is left without blockers, or is a blocked node no longer.
    fn measure_durations(&mut self, draining: &[&NodeVerdict], plan: &Plan, now: Timestamp) {
        let blocked: BTreeMap<NodeName, Timestamp> = draining
            .iter()
            .filter(|verdict| !verdict.blockers.is_empty())
            .filter_map(|verdict| Some((verdict.node.clone(), verdict.since?)))
            .collect();
        let unknown: BTreeSet<&NodeName> = plan
            .verdicts
            .iter()
            .filter(|v| {
                matches!(
                    v.gate,
                    GateReason::PodsSyncing | GateReason::ClockStarting | GateReason::UnderRemediation
                )
            })
            .map(|verdict| &verdict.node)
            .collect();
        let duration = &self.duration;
        self.under_way.retain(|node, since| {
            if blocked.contains_key(node) || unknown.contains(node) {
                return true;
            }
            duration.observe(now.duration_since(*since).as_secs_f64());
            false
        });
        self.under_way.extend(blocked);
    }

    /// Counts an attempt at a pod. `started` tells when the first one began.
    pub fn forced(&self, action: &PodAction, result: &PodResult, started: Option<Timestamp>) {
        let labels = ActionLabels {
            strategy: action.strategy.name.as_str(),
            outcome: outcome_label(result),
        };
        self.actions.get_or_create(&labels).inc();
        if matches!(result, ActionResult::Acted(Forced::BudgetOverridden(_))) {
            self.overrides.inc();
        }
        if let Some(started) = started
            && !matches!(result, ActionResult::Stopped(_))
        {
            let held_back = if action.was_held_back { "true" } else { "false" };
            let late = started.duration_since(action.due).as_secs_f64();
            self.lateness.get_or_create(&LatenessLabel { held_back }).observe(late);
        }
    }

    /// Takes back what describes the cluster; what this process has done stays counted.
    pub fn clear(&mut self) {
        self.drain_timeout.clear();
        self.blockers.clear();
        self.draining.set(0);
        self.timed_out.clear();
        self.under_way.clear();
        *self.next_deadline.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Seconds to the next deadline, as of the scrape.
#[derive(Debug)]
struct NextDeadline(Arc<Mutex<Option<Timestamp>>>);

impl Collector for NextDeadline {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(deadline) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) else {
            return Ok(());
        };
        let gauge = ConstGauge::new(deadline.duration_since(Timestamp::now()).as_secs_f64().max(0.0));
        let metric = encoder.encode_descriptor(
            "next_deadline_seconds",
            "Time until the next strategy falls due; absent if none will",
            None,
            gauge.metric_type(),
        )?;
        gauge.encode(metric)
    }
}
