//! Metrics: our own, and the one by which users of managed-upgrade-operator are alerted.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nodeward_api::reason::{BlockerReason, GateReason, SurgeOutcome};
use nodeward_core::id::NodeName;
use nodeward_core::verdict::NodeVerdict;
use nodeward_runtime::metrics::{Moment, Series};
use nodeward_runtime::{ActionResult, Metrics};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::execute::{Forced, PodResult, outcome_label};
use crate::plan::{Plan, PodAction};

/// Seconds that a drain takes, from a good one to one that nobody looked after.
const DRAIN_SECONDS: [f64; 12] = [
    10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2700.0, 5400.0, 10_800.0, 21_600.0, 86_400.0,
];

/// Seconds by which an act comes after its deadline.
const LATENESS_SECONDS: [f64; 11] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0, 300.0];

type Label = (&'static str, &'static str);

pub struct DrainMetrics {
    drain_timeout: Series<1>,
    draining: Gauge,
    nodes: Family<[Label; 1], Gauge>,
    blockers: Family<[Label; 1], Gauge>,
    actions: Family<[Label; 2], Counter>,
    overrides: Counter,
    surges: Family<[Label; 1], Counter>,
    lateness: Family<[Label; 1], Histogram, fn() -> Histogram>,
    duration: Histogram,
    next_deadline: Moment,
    under_way: BTreeMap<NodeName, Timestamp>,
}

impl DrainMetrics {
    pub fn register(metrics: &Metrics) -> Self {
        Self {
            drain_timeout: metrics.register_foreign(
                "upgradeoperator_node_drain_timeout",
                "1 when everything that may be done to drain the node has been, and pods still block it; 0 while there is \
                 something to wait for; absent without blockers",
                Series::default(),
            ),
            draining: metrics.register("draining_nodes", "Nodes that are being drained"),
            nodes: metrics.register(
                "nodes",
                "Cordoned nodes by the gate that keeps drain-keeper from acting on them; Open: none does",
            ),
            blockers: metrics.register("blockers", "Pods that drains wait for, by reason"),
            actions: metrics.register("actions", "Attempts at pods, by strategy and outcome"),
            overrides: metrics.register("budget_overrides", "Pods deleted although a budget refused"),
            surges: metrics.register("surges", "Rollouts by which pods were to move, by outcome"),
            lateness: metrics.register_as(
                "action_lateness_seconds",
                "Time from a strategy's deadline to its first request; held_back: a limit, a hold or a budget's turn \
                 delayed it by intent",
                Family::new_with_constructor(|| Histogram::new(LATENESS_SECONDS)),
            ),
            duration: metrics.register_as(
                "drain_duration_seconds",
                "Time from the start of a drain to the moment when no pod blocks it",
                Histogram::new(DRAIN_SECONDS),
            ),
            next_deadline: metrics.seconds_until(
                "next_deadline_seconds",
                "Time until the next strategy falls due; absent if none will",
            ),
            under_way: BTreeMap::new(),
        }
    }

    /// Shows what the plan says.
    pub fn show(&mut self, plan: &Plan, now: Timestamp) {
        let draining: Vec<&NodeVerdict> = plan.verdicts.iter().filter(|v| v.gate == GateReason::Open).collect();
        self.draining.set(i64::try_from(draining.len()).unwrap_or(i64::MAX));
        for gate in GateReason::ALL {
            let count = plan.verdicts.iter().filter(|verdict| verdict.gate == *gate).count();
            let nodes = self.nodes.get_or_create(&[("gate", gate.as_str())]);
            nodes.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let mut by_reason: BTreeMap<BlockerReason, i64> = BTreeMap::new();
        for blocker in draining.iter().flat_map(|verdict| &verdict.blockers) {
            *by_reason.entry(blocker.reason).or_default() += 1;
        }
        for reason in BlockerReason::ALL {
            let count = by_reason.get(reason).copied().unwrap_or(0);
            self.blockers.get_or_create(&[("reason", reason.as_str())]).set(count);
        }
        let blocked = draining.iter().filter(|verdict| !verdict.blockers.is_empty());
        let timeouts = blocked
            .filter(|v| !plan.being_deleted.contains(&v.node))
            .map(|v| ([("node_name", v.node.to_string())], i64::from(v.drain_failed)));
        self.drain_timeout.show(timeouts);
        self.measure_durations(&draining, plan, now);
        let next = draining
            .iter()
            .flat_map(|v| &v.blockers)
            .filter(|b| b.next.is_pending())
            .filter_map(|b| b.next.due());
        self.next_deadline.set(next.min());
    }

    /// A drain is over when its node is left without blockers, or is a blocked node no longer.
    fn measure_durations(&mut self, draining: &[&NodeVerdict], plan: &Plan, now: Timestamp) {
        let blocked: BTreeMap<NodeName, Timestamp> = draining
            .iter()
            .filter(|verdict| !verdict.blockers.is_empty())
            .filter_map(|verdict| Some((verdict.node.clone(), verdict.since?)))
            .collect();
        // In doubt, waiting for its turn, or not known yet: none is an end.
        let goes_on = |verdict: &&NodeVerdict| match verdict.gate {
            GateReason::ClockStarting | GateReason::WaitsForTurn | GateReason::TurnUnknown => true,
            gate => gate != GateReason::Open && verdict.since.is_some(),
        };
        let unfinished: BTreeSet<&NodeName> = plan
            .verdicts
            .iter()
            .filter(goes_on)
            .map(|verdict| &verdict.node)
            .collect();
        let duration = &self.duration;
        self.under_way.retain(|node, since| {
            if blocked.contains_key(node) || unfinished.contains(node) {
                return true;
            }
            duration.observe(now.duration_since(*since).as_secs_f64());
            false
        });
        self.under_way.extend(blocked);
    }

    /// Counts a surge that has ended.
    pub fn surge_ended(&self, outcome: SurgeOutcome) {
        self.surges.get_or_create(&[("outcome", outcome.as_str())]).inc();
    }

    /// Counts an attempt at a pod. `started` tells when the first one began.
    pub fn forced(&self, action: &PodAction, result: &PodResult, started: Option<Timestamp>) {
        let (strategy, outcome) = (action.strategy.name.as_str(), outcome_label(result));
        let actions = self
            .actions
            .get_or_create(&[("strategy", strategy), ("outcome", outcome)]);
        actions.inc();
        if matches!(result, ActionResult::Acted(Forced::BudgetOverridden(_))) {
            self.overrides.inc();
        }
        if let Some(started) = started
            && !matches!(result, ActionResult::Stopped(_))
        {
            let held_back = if action.was_held_back { "true" } else { "false" };
            let late = started.duration_since(action.due).as_secs_f64();
            self.lateness.get_or_create(&[("held_back", held_back)]).observe(late);
        }
    }

    /// Takes back what describes the cluster; what this process has done stays counted.
    pub fn clear(&mut self) {
        self.drain_timeout.show([]);
        self.blockers.clear();
        self.nodes.clear();
        self.draining.set(0);
        self.under_way.clear();
        self.next_deadline.set(None);
    }
}

#[cfg(test)]
mod tests {
    use nodeward_runtime::Component;
    use serde_json::json;

    use super::*;
    use crate::plan::tests::world::{World, minute, pod, with};

    fn series(world: &World, minutes: i64) -> Vec<String> {
        let metrics = Metrics::new(Component::new("drain-keeper", "1.2.3"));
        DrainMetrics::register(&metrics).show(&world.at(minutes), minute(minutes));
        let text = metrics.encode().unwrap();
        let ours = text
            .lines()
            .filter(|line| line.starts_with("upgradeoperator_node_drain_timeout{"));
        ours.map(str::to_owned).collect()
    }

    #[test]
    fn node_being_deleted_has_no_series() {
        let opted_out = json!({ "metadata": { "labels": { "nodeward.dev/drain": "wait-completed" } } });
        let world = World::draining().pod(with(pod("p"), opted_out));
        let failed = "upgradeoperator_node_drain_timeout{node_name=\"n1\"} 1";
        assert_eq!(series(&world, 60), [failed]);
        let deleted = world.node_with(json!({ "metadata": { "deletionTimestamp": minute(50).to_string() } }));
        assert!(deleted.at(60).has_failed(), "its blockers are still told");
        assert!(series(&deleted, 60).is_empty());
    }
}
