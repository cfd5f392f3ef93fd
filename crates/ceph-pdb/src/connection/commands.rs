//! The commands for one cluster, counted.

use std::sync::Arc;
use std::time::Instant;

use rados::Answer;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::CephClient;
use super::metrics::CommandMetrics;
use crate::snapshot::{CephProblem, Namespace};

/// Asks a cluster. All clones ask the same one.
#[derive(Clone)]
pub(super) struct Commands {
    client: Arc<dyn CephClient>,
    namespace: Namespace,
    metrics: CommandMetrics,
}

impl Commands {
    pub(super) fn new(client: Arc<dyn CephClient>, namespace: Namespace, metrics: CommandMetrics) -> Self {
        Self {
            client,
            namespace,
            metrics,
        }
    }

    /// Asks the monitors. A refusal is an answer.
    pub(super) async fn mon(&self, command: Value) -> Result<Answer, CephProblem> {
        let (prefix, began) = (prefix(&command), Instant::now());
        let answer = self.client.mon_command(command).await;
        self.metrics.record(&self.namespace, prefix, began, &answer);
        answer
    }

    /// Asks the monitors, and reads what they print.
    pub(super) async fn mon_json<T: DeserializeOwned>(&self, prefix: &str) -> Result<T, CephProblem> {
        let command = serde_json::json!({"prefix": prefix, "format": "json"});
        Ok(self.mon(command).await?.json()?)
    }

    /// Asks the manager. A refusal is an answer.
    pub(super) async fn mgr(&self, command: Value) -> Result<Answer, CephProblem> {
        let (prefix, began) = (prefix(&command), Instant::now());
        let answer = self.client.mgr_command(command).await;
        self.metrics.record(&self.namespace, prefix, began, &answer);
        answer
    }
}

fn prefix(command: &Value) -> String {
    command["prefix"].as_str().unwrap_or_default().to_owned()
}
