//! Metrics. What is labelled by namespace goes with its CephCluster.

use nodeward_api::ceph_state::PublishedDisruptions;
use nodeward_runtime::{ActionResult, Metrics, Stop};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::plan::{ClusterVerdict, PlannedWrite, Verdicts};

/// Gauges by namespace and, in this order, further labels.
type Gauges<const LABELS: usize> = Family<[(&'static str, String); LABELS], Gauge>;

/// The metrics of ceph-pdb.
pub(super) struct BudgetMetrics {
    placement_groups: Gauges<2>,
    osds: Gauges<3>,
    state: Gauges<2>,
    conditions: Gauges<2>,
    closed_since: Gauges<1>,
    exempt: Gauges<2>,
    noout: Gauges<2>,
    fresh_since: Gauges<1>,
    last_answer: Gauges<1>,
    actions: Family<[(&'static str, &'static str); 2], Counter>,
}

impl BudgetMetrics {
    pub(super) fn register(metrics: &Metrics) -> Self {
        Self {
            placement_groups: metrics.register("placement_groups", "Placement groups, by state"),
            osds: metrics.register(
                "osds",
                "OSDs, by failure domain and by whether they are up, down or draining",
            ),
            state: metrics.register("state", "1 for the reason why OSDs may be evicted, or may not"),
            conditions: metrics.register("conditions", "1 for each condition that somebody should look at"),
            closed_since: metrics.register(
                "closed_since_timestamp_seconds",
                "When the budgets of the OSDs were closed; absent while they are open",
            ),
            exempt: metrics.register(
                "exempt_domain",
                "1 for the failure domain whose OSDs may be evicted while the budgets are closed",
            ),
            noout: metrics.register(
                "noout_since_timestamp_seconds",
                "When a noout flag of ours was recorded, by CRUSH bucket; absent without one",
            ),
            fresh_since: metrics.register(
                "statistics_fresh_since_timestamp_seconds",
                "Since when the statistics of placement groups are current; absent while they are not",
            ),
            last_answer: metrics.register(
                "last_answer_timestamp_seconds",
                "When Ceph was asked for what it said last; absent until it has answered",
            ),
            actions: metrics.register("actions", "Attempts at writes, by kind and outcome"),
        }
    }

    pub(super) fn show(&mut self, verdicts: &Verdicts) {
        self.clear();
        for verdict in verdicts.values() {
            self.show_cluster(verdict);
        }
    }

    fn show_cluster(&self, verdict: &ClusterVerdict) {
        let state = &verdict.state;
        let cluster = || ("namespace", verdict.owner.namespace.to_string());
        let of = |key, value: &str| [cluster(), (key, value.to_owned())];
        for (name, count) in &verdict.placement_groups {
            self.placement_groups.get_or_create(&of("state", name)).set(*count);
        }
        for (domain, counts) in &verdict.osds {
            for (state, count) in [("up", counts.up), ("down", counts.down), ("draining", counts.draining)] {
                let labels = [cluster(), ("domain", domain.clone()), ("state", state.to_owned())];
                self.osds.get_or_create(&labels).set(count);
            }
        }
        self.state.get_or_create(&of("reason", state.reason.as_str())).set(1);
        for condition in &state.conditions {
            let labels = of("reason", condition.kind.as_str());
            self.conditions.get_or_create(&labels).set(1);
        }
        if state.disruptions == PublishedDisruptions::Closed {
            self.closed_since
                .get_or_create(&[cluster()])
                .set(state.since.as_second());
        }
        if let Some(domain) = &state.exempt_domain {
            self.exempt.get_or_create(&of("domain", domain)).set(1);
        }
        for (bucket, since) in &state.noout {
            self.noout.get_or_create(&of("bucket", bucket)).set(since.as_second());
        }
        if let Some(since) = state.statistics_fresh_since {
            self.fresh_since.get_or_create(&[cluster()]).set(since.as_second());
        }
        if let Some(asked_at) = verdict.asked_at {
            self.last_answer.get_or_create(&[cluster()]).set(asked_at.as_second());
        }
    }

    pub(super) fn executed(&self, planned: &PlannedWrite, result: &ActionResult) {
        let outcome = match result {
            ActionResult::Acted(()) => "acted",
            ActionResult::AlreadyDone => "already_done",
            ActionResult::Outdated(_) => "outdated",
            ActionResult::Failed(_) => "failed",
            ActionResult::Stopped(Stop::DryRun) => "dry_run",
            ActionResult::Stopped(_) => "stopped",
        };
        let labels = [("action", planned.write.label()), ("outcome", outcome)];
        self.actions.get_or_create(&labels).inc();
    }

    /// Takes back what is exported of clusters. Counters stay: they only rise.
    pub(super) fn clear(&mut self) {
        self.placement_groups.clear();
        self.osds.clear();
        self.state.clear();
        self.conditions.clear();
        self.closed_since.clear();
        self.exempt.clear();
        self.noout.clear();
        self.fresh_since.clear();
        self.last_answer.clear();
    }
}

#[cfg(test)]
mod tests {
    use nodeward_runtime::{ActionResult, Component, Metrics};

    use super::BudgetMetrics;
    use crate::plan::tests::world::World;

    #[test]
    fn metrics_follow_the_verdicts() {
        let registry = Metrics::new(Component::new("ceph-pdb", "1.2.3"));
        let mut metrics = BudgetMetrics::register(&registry);
        let mut world = World::settled();
        world.drain(2);
        world.run();
        metrics.show(&world.plan().verdicts);
        let text = registry.encode().unwrap();
        for line in [
            r#"placement_groups{namespace="ns",state="active+undersized+degraded"} 16"#,
            r#"osds{namespace="ns",domain="b",state="down"} 1"#,
            r#"state{namespace="ns",reason="DomainDown"} 1"#,
            r#"exempt_domain{namespace="ns",domain="b"} 1"#,
            r#"noout_since_timestamp_seconds{namespace="ns",bucket="host-2"} 1767225601"#,
            r#"closed_since_timestamp_seconds{namespace="ns"} 1767225601"#,
        ] {
            assert!(
                text.contains(&format!("nodeward_ceph_pdb_{line}\n")),
                "{line} in {text}"
            );
        }
        world.start(2);
        world.clean();
        let opening = world.plan();
        metrics.executed(&opening.actions[0], &ActionResult::Acted(()));
        world.run();
        metrics.show(&world.plan().verdicts);
        let text = registry.encode().unwrap();
        assert!(
            !text.contains("closed_since_timestamp_seconds{") && !text.contains("exempt_domain{"),
            "{text}"
        );
        assert!(
            text.contains(r#"actions_total{action="patch_budget",outcome="acted"} 1"#),
            "{text}"
        );
        metrics.clear();
        assert!(!registry.encode().unwrap().contains(r#"namespace="ns""#));
    }
}
