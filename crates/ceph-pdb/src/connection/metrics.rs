//! What commands cost.

use std::time::Instant;

use nodeward_runtime::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use rados::Answer;

use crate::snapshot::{CephProblem, Namespace};

/// Seconds that a command takes, from a usual one to one that hangs.
const COMMAND_SECONDS: [f64; 10] = [0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0];

type Label = (&'static str, String);

/// The metrics of all connections.
#[derive(Clone)]
pub(super) struct CommandMetrics {
    commands: Family<[Label; 3], Counter>,
    duration: Family<[Label; 1], Histogram, fn() -> Histogram>,
}

impl CommandMetrics {
    pub(super) fn register(metrics: &Metrics) -> Self {
        Self {
            commands: metrics.register("ceph_commands", "Commands for Ceph, by namespace, command and outcome"),
            duration: metrics.register_as(
                "ceph_command_duration_seconds",
                "Time that a command for Ceph takes, by namespace",
                Family::new_with_constructor(|| Histogram::new(COMMAND_SECONDS)),
            ),
        }
    }

    pub(super) fn record(
        &self,
        namespace: &Namespace,
        command: String,
        began: Instant,
        answer: &Result<Answer, CephProblem>,
    ) {
        let outcome = match answer {
            Ok(answer) if answer.code >= 0 => "done",
            Ok(_) => "refused",
            Err(_) => "failed",
        };
        let of_cluster = [("namespace", namespace.to_string())];
        self.duration
            .get_or_create(&of_cluster)
            .observe(began.elapsed().as_secs_f64());
        let [namespace] = of_cluster;
        let labels = [namespace, ("command", command), ("outcome", outcome.to_owned())];
        self.commands.get_or_create(&labels).inc();
    }
}
