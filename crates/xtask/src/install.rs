//! The chart as a user installs it for one operator, whose binary then runs here, under the ServiceAccount that the chart
//! made. The API server calls its webhook on this machine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::{Operator, OperatorSpec};
use nodeward_testkit::progress::Progress;
use nodeward_testkit::{Cluster, ports};
use serde_json::{Value, json};

/// How long an operator may take to be ready.
const READY_WITHIN: Duration = Duration::from_mins(1);

/// How long an operator may take to stop.
const STOPS_WITHIN: Duration = Duration::from_mins(1);

/// Where drain-lock answers reviews.
const WEBHOOK_PATH: &str = "/evictions";

/// An operator and its release of the chart.
pub struct Installation {
    pub release: Release,
    pub operator: &'static str,
    pub binary: PathBuf,
    pub config: Value,
}

/// The block of the chart's values that an operator has.
pub fn block(operator: &str) -> &'static str {
    match operator {
        "drain-lock" => "drainLock",
        "health-check" => "healthCheck",
        "ceph-pdb" => "cephPdb",
        _ => "drainKeeper",
    }
}

impl Installation {
    /// The ServiceAccount that the chart makes, and every other object of the operator's.
    pub fn service_account(&self) -> String {
        format!("{}-{}", self.release.name(), self.operator)
    }

    /// Installs the chart, and does everything else but the binary's start.
    pub async fn prepare(&self, cluster: &Cluster) -> Result<Operator> {
        self.install_for(cluster).await?.prepare(cluster).await
    }

    /// Installs the chart for one replica, which the API server calls if anyone; gives that, to be started.
    pub async fn install_for(&self, cluster: &Cluster) -> Result<OperatorSpec> {
        let (spec, values) = self.replica()?;
        self.release.clone().values(values).install_more(cluster).await?;
        Ok(spec)
    }

    /// A replica, which the API server calls if anyone, and the values of the chart for it.
    fn replica(&self) -> Result<(OperatorSpec, Value)> {
        let name = self.service_account();
        let mut spec = self.spec();
        let mut own = json!({});
        if self.operator == "drain-lock" {
            let bind = format!("127.0.0.1:{}", ports::free()?);
            own = json!({ "webhook": { "url": format!("https://{bind}{WEBHOOK_PATH}") } });
            spec = spec
                .arg(&format!("--webhook-bind={bind}"))
                .arg(&format!("--webhook-configuration={name}"));
        }
        Ok((spec, self.values(own)))
    }

    /// A further replica, to be started: the API server calls the other one.
    pub fn standby(&self) -> OperatorSpec {
        let spec = self.spec();
        if self.operator == "drain-lock" {
            return spec.arg("--webhook-bind=127.0.0.1:0");
        }
        spec
    }

    /// Values of the chart: the operator's block has these, too.
    fn values(&self, mut own: Value) -> Value {
        own["enabled"] = json!(true);
        let mut config = self.config.clone();
        // The chart grants what these take, and writes them into the configuration itself.
        if let Some(namespaces) = config.as_object_mut().and_then(|fields| fields.remove("namespaces")) {
            own["namespaces"] = namespaces;
        }
        own["config"] = config;
        own["deployment"] = json!({ "enabled": false });
        json!({ block(self.operator): own })
    }

    /// The operator, to be started.
    pub fn spec(&self) -> OperatorSpec {
        let name = self.service_account();
        let spec = OperatorSpec::new(self.operator, self.release.namespace(), &name)
            .binary(&self.binary)
            // JSON is YAML.
            .config(&self.config.to_string())
            .arg("--log-format=text");
        if self.operator != "health-check" {
            return spec;
        }
        // Nobody calls it: the chart registers none for an operator that runs here.
        spec.arg("--webhook-bind=127.0.0.1:0")
            .arg(&format!("--webhook-configuration={name}"))
    }
}

/// Installs the chart once for all of these, which are of one release, and starts them; waits until they are ready.
pub async fn start_all(all: &[Installation], cluster: &Cluster) -> Result<Vec<Operator>> {
    let first = all.first().context("no operator to install")?;
    let progress = Progress::begin("the chart");
    progress.step("helm install");
    let (mut specs, mut values) = (Vec::new(), serde_json::Map::new());
    for installation in all {
        let (spec, of_operator) = installation.replica()?;
        specs.push(spec);
        values.extend(of_operator.as_object().cloned().unwrap_or_default());
    }
    first.release.clone().values(values.into()).install(cluster).await?;
    let mut operators = Vec::new();
    for (installation, spec) in all.iter().zip(specs) {
        progress.step(installation.operator);
        let operator = spec.start(cluster).await?;
        operator.ready(READY_WITHIN).await?;
        operators.push(operator);
    }
    let names: Vec<&str> = all.iter().map(|installation| installation.operator).collect();
    progress.done(&format!("installed by helm, running: {}", names.join(", ")));
    Ok(operators)
}

/// Stops it; an error unless it ends well.
pub async fn stop(operator: &Operator) -> Result<()> {
    let name = operator.process().name();
    let status = operator
        .stop(STOPS_WITHIN)
        .await
        .with_context(|| format!("stop {name}"))?;
    ensure!(status.success(), "{name} ended with {status}");
    Ok(())
}
