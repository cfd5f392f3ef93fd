//! The commands for one cluster, and what they cost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use nodeward_runtime::Metrics;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use rados::Answer;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::client::CephClient;
use crate::snapshot::{CephProblem, Namespace};

/// Seconds that a command takes, from a usual one to one that hangs.
const COMMAND_SECONDS: [f64; 10] = [0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0];

type Label = (&'static str, String);

/// Asks a cluster. All clones ask the same one.
#[derive(Clone)]
pub(super) struct Commands {
    client: Arc<dyn CephClient>,
    metrics: Arc<ClusterMetrics>,
}

impl Commands {
    pub(super) fn new(client: Arc<dyn CephClient>, metrics: Arc<ClusterMetrics>) -> Self {
        Self { client, metrics }
    }

    /// Asks the monitors. A refusal is an answer.
    pub(super) async fn mon(&self, command: Value) -> Result<Answer, CephProblem> {
        let (prefix, began) = (prefix(&command), Instant::now());
        let answer = self.client.mon_command(command).await;
        self.metrics.record(prefix, began, &answer);
        answer
    }

    /// Asks the monitors, and reads what they print.
    pub(super) async fn mon_json<T: DeserializeOwned>(&self, prefix: &str) -> Result<T, CephProblem> {
        Ok(self.mon(json!({"prefix": prefix, "format": "json"})).await?.json()?)
    }

    /// Whether the monitors answer. It is no command, and not counted as one.
    pub(super) async fn mons_answer(&self) -> Result<(), CephProblem> {
        self.client.mons_answer().await
    }

    /// Asks the manager. A refusal is an answer.
    pub(super) async fn mgr(&self, command: Value) -> Result<Answer, CephProblem> {
        let (prefix, began) = (prefix(&command), Instant::now());
        let answer = self.client.mgr_command(command).await;
        self.metrics.record(prefix, began, &answer);
        answer
    }

    /// Asks the manager, and reads what it prints.
    pub(super) async fn mgr_json<T: DeserializeOwned>(&self, command: Value) -> Result<T, CephProblem> {
        Ok(self.mgr(command).await?.json()?)
    }
}

fn prefix(command: &Value) -> String {
    command["prefix"].as_str().unwrap_or_default().to_owned()
}

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
}

/// Those of one cluster: they are exported for as long as somebody asks it.
pub(super) struct ClusterMetrics {
    all: CommandMetrics,
    cluster: [Label; 1],
    counted: Mutex<BTreeSet<[Label; 3]>>,
}

impl ClusterMetrics {
    pub(super) fn new(all: &CommandMetrics, namespace: &Namespace) -> Self {
        Self {
            all: all.clone(),
            cluster: [("namespace", namespace.to_string())],
            counted: Mutex::default(),
        }
    }

    fn record(&self, command: String, began: Instant, answer: &Result<Answer, CephProblem>) {
        let outcome = match answer {
            Ok(answer) if answer.code >= 0 => "done",
            Ok(_) => "refused",
            Err(_) => "failed",
        };
        let duration = self.all.duration.get_or_create(&self.cluster);
        duration.observe(began.elapsed().as_secs_f64());
        let [namespace] = self.cluster.clone();
        let labels = [namespace, ("command", command), ("outcome", outcome.to_owned())];
        self.all.commands.get_or_create(&labels).inc();
        self.counted.lock().insert(labels);
    }
}

impl Drop for ClusterMetrics {
    fn drop(&mut self) {
        self.all.duration.remove(&self.cluster);
        for labels in &*self.counted.lock() {
            self.all.commands.remove(labels);
        }
    }
}
