//! Metrics. What is labelled by namespace goes with its CephCluster.

use nodeward_runtime::metrics::Series;
use nodeward_runtime::{ActionResult, Metrics, Stop};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::plan::{ClusterVerdict, PlannedWrite, Verdicts};

/// The metrics of ceph-pdb. All but the last are by namespace and, in this order, further labels.
pub(super) struct BudgetMetrics {
    placement_groups: Series<2>,
    osds: Series<3>,
    state: Series<2>,
    conditions: Series<2>,
    closed_since: Series<1>,
    exempt: Series<2>,
    noout: Series<2>,
    fresh_since: Series<1>,
    last_answer: Series<1>,
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

    /// Shows these clusters, and no others.
    pub(super) fn show(&mut self, verdicts: &Verdicts) {
        let all = || verdicts.values();
        self.placement_groups.show(all().flat_map(|verdict| {
            let states = verdict.placement_groups.iter();
            states.map(|(state, count)| (by(verdict, "state", state), *count))
        }));
        self.osds.show(all().flat_map(|verdict| {
            verdict.osds.iter().flat_map(|(domain, counts)| {
                let states = [("up", counts.up), ("down", counts.down), ("draining", counts.draining)];
                states.map(|(state, count)| {
                    let [cluster, domain] = by(verdict, "domain", domain);
                    ([cluster, domain, ("state", state.to_owned())], count)
                })
            })
        }));
        self.state
            .show(all().map(|verdict| (by(verdict, "reason", verdict.state.reason.as_str()), 1)));
        self.conditions.show(all().flat_map(|verdict| {
            let conditions = verdict.state.conditions.iter();
            conditions.map(|condition| (by(verdict, "reason", condition.kind.as_str()), 1))
        }));
        let closed = all().filter(|verdict| verdict.state.disruptions.is_closed());
        self.closed_since
            .show(closed.map(|verdict| (cluster(verdict), verdict.state.since.as_second())));
        self.exempt.show(all().filter_map(|verdict| {
            let domain = verdict.state.exempt_domain.as_ref()?;
            Some((by(verdict, "domain", domain), 1))
        }));
        self.noout.show(all().flat_map(|verdict| {
            let flags = verdict.state.noout.iter();
            flags.map(|(bucket, since)| (by(verdict, "bucket", bucket), since.as_second()))
        }));
        self.fresh_since.show(all().filter_map(|verdict| {
            let since = verdict.state.statistics_fresh_since?;
            Some((cluster(verdict), since.as_second()))
        }));
        self.last_answer
            .show(all().filter_map(|verdict| Some((cluster(verdict), verdict.asked_at?.as_second()))));
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
}

type Label = (&'static str, String);

fn cluster(verdict: &ClusterVerdict) -> [Label; 1] {
    [("namespace", verdict.owner.namespace.to_string())]
}

fn by(verdict: &ClusterVerdict, key: &'static str, value: &str) -> [Label; 2] {
    let [cluster] = cluster(verdict);
    [cluster, (key, value.to_owned())]
}

#[cfg(test)]
mod tests {
    use nodeward_runtime::{ActionResult, Component, Metrics};

    use super::{BudgetMetrics, Verdicts};
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
        metrics.show(&Verdicts::default());
        assert!(!registry.encode().unwrap().contains(r#"namespace="ns""#));
    }
}
