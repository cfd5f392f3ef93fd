//! drain-lock as a user installs it: by the chart, and then the operator's binary here, under the ServiceAccount that the
//! chart made. The API server calls its webhook on this machine.

use std::path::PathBuf;

use anyhow::Result;
use nodeward_testkit::Cluster;
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::{Operator, OperatorSpec};
use nodeward_testkit::ports;
use serde_json::{Value, json};

/// Where the binary answers reviews.
const WEBHOOK_PATH: &str = "/evictions";

/// What is installed.
pub struct Install {
    pub release: Release,
    pub service_account: String,
    pub config: Value,
}

impl Install {
    /// Installs the chart and starts the binary; does not wait until it is ready.
    pub async fn start(&self, cluster: &Cluster, binary: PathBuf) -> Result<Operator> {
        let operator = self.prepare(cluster, binary).await?;
        operator.process().start()?;
        Ok(operator)
    }

    /// Everything but the binary's start.
    pub async fn prepare(&self, cluster: &Cluster, binary: PathBuf) -> Result<Operator> {
        let port = ports::free()?;
        let bind = format!("127.0.0.1:{port}");
        self.release
            .clone()
            .values(json!({
                "drainKeeper": { "deployment": { "enabled": false } },
                "drainLock": {
                    "enabled": true,
                    "config": self.config,
                    "deployment": { "enabled": false },
                    "webhook": { "url": format!("https://{bind}{WEBHOOK_PATH}") },
                },
            }))
            .install(cluster)
            .await?;
        OperatorSpec::new("drain-lock", self.release.namespace(), &self.service_account)
            .binary(binary)
            // JSON is YAML.
            .config(&self.config.to_string())
            .arg("--log-format=text")
            .arg(&format!("--webhook-bind={bind}"))
            // The chart calls both by one name.
            .arg(&format!("--webhook-configuration={}", self.service_account))
            .prepare(cluster)
            .await
    }
}
