//! Installing the chart of this checkout as a user does.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;

use crate::Cluster;

/// One release of a chart.
#[derive(Clone, Debug)]
pub struct Release {
    name: String,
    namespace: String,
    chart: PathBuf,
    values: Value,
}

impl Release {
    /// A release of `charts/nodeward` with the chart's own values.
    pub fn new(name: &str, namespace: &str) -> Self {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/nodeward");
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            chart,
            values: Value::Object(serde_json::Map::new()),
        }
    }

    /// Another chart directory.
    #[must_use]
    pub fn chart(mut self, chart: impl Into<PathBuf>) -> Self {
        self.chart = chart.into();
        self
    }

    /// Values that override the chart's.
    #[must_use]
    pub fn values(self, values: Value) -> Self {
        Self { values, ..self }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Installs it, or upgrades it to these values; makes its namespace.
    ///
    /// # Errors
    /// With helm's own words.
    pub async fn install(&self, on: impl Into<Cluster>) -> Result<()> {
        let args = ["upgrade", "--install", "--create-namespace", "--timeout=60s"];
        self.run(on, &args).await.map(drop)
    }

    /// Installs it, or upgrades it to these values and those that it was given before: what is enabled stays so.
    ///
    /// # Errors
    /// With helm's own words.
    pub async fn install_more(&self, on: impl Into<Cluster>) -> Result<()> {
        let args = [
            "upgrade",
            "--install",
            "--reset-then-reuse-values",
            "--create-namespace",
            "--timeout=60s",
        ];
        self.run(on, &args).await.map(drop)
    }

    /// Uninstalls it.
    ///
    /// # Errors
    /// With helm's own words.
    pub async fn uninstall(&self, on: impl Into<Cluster>) -> Result<()> {
        let args = [
            "uninstall",
            "--wait",
            "--timeout=60s",
            "--namespace",
            &self.namespace,
            &self.name,
        ];
        run(on.into(), &args, None).await.map(drop)
    }

    /// Rolls it back to a revision of it.
    ///
    /// # Errors
    /// With helm's own words.
    pub async fn rollback(&self, on: impl Into<Cluster>, revision: u32) -> Result<()> {
        let revision = revision.to_string();
        let args = [
            "rollback",
            "--timeout=60s",
            "--namespace",
            &self.namespace,
            &self.name,
            &revision,
        ];
        run(on.into(), &args, None).await.map(drop)
    }

    /// The objects that it would install.
    ///
    /// # Errors
    /// With helm's own words: the values do not fit the chart's schema, for one.
    pub async fn template(&self, on: impl Into<Cluster>) -> Result<Vec<Value>> {
        let rendered = self.run(on, &["template"]).await?;
        let objects = serde_yaml::Deserializer::from_str(&rendered)
            .map(Value::deserialize)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(objects.into_iter().filter(|object| !object.is_null()).collect())
    }

    /// What helm would say after the installation.
    ///
    /// # Errors
    /// With helm's own words.
    pub async fn notes(&self, on: impl Into<Cluster>) -> Result<String> {
        let said = self.run(on, &["install", "--dry-run=client"]).await?;
        let (_, notes) = said.split_once("\nNOTES:\n").context("the chart says nothing")?;
        Ok(notes.to_owned())
    }

    /// A command of helm's on the chart, with the release's values.
    async fn run(&self, on: impl Into<Cluster>, args: &[&str]) -> Result<String> {
        let values = tempfile::Builder::new().prefix("values-").suffix(".yaml").tempfile()?;
        serde_yaml::to_writer(values.as_file(), &self.values)?;
        let chart = self.chart.display().to_string();
        let all = [args, &["--namespace", &self.namespace, &self.name, &chart]].concat();
        run(on.into(), &all, Some(values.path())).await
    }
}

async fn run(on: Cluster, args: &[&str], values: Option<&Path>) -> Result<String> {
    let home = on.dir().join("helm");
    let mut command = Command::new(&on.tools().helm);
    command.args(args).env("KUBECONFIG", on.kubeconfig()).kill_on_drop(true);
    // Nothing of the user's own helm.
    command
        .env("HELM_CACHE_HOME", home.join("cache"))
        .env("HELM_CONFIG_HOME", home.join("config"))
        .env("HELM_DATA_HOME", home.join("data"));
    if let Some(values) = values {
        command.arg("--values").arg(values);
    }
    let output = command.output().await.context("run helm")?;
    ensure!(
        output.status.success(),
        "helm {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
