//! What the chart installs for monitoring, on the metrics of operators at work: the alerts' rules, and the dashboards' queries.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nodeward_testkit::helm::Release;
use nodeward_testkit::prometheus::{self, Job, Prometheus, Query};
use nodeward_testkit::{Cluster, ControlPlane};
use serde_json::{Value, json};

use super::cluster::SYSTEM;
use crate::install;

/// How often operators are scraped, and rules evaluated.
const INTERVAL: Duration = Duration::from_secs(5);

pub struct Monitoring {
    prometheus: Prometheus,
    queries: Vec<Query>,
    /// Those that have given series, by their place.
    answered: BTreeSet<usize>,
}

impl Monitoring {
    /// Prometheus is this program.
    pub async fn start(program: &Path, plane: &ControlPlane, jobs: &[Job]) -> Result<Self> {
        let mut values =
            json!({ "monitoring": { "prometheusRule": { "enabled": true }, "dashboards": { "enabled": true } } });
        for job in jobs {
            values[install::block(job.component)] = json!({ "enabled": true });
        }
        let release = Release::new("nodeward", SYSTEM).values(values);
        let objects = release.template(&Cluster::from(plane)).await?;
        let mut queries = Vec::new();
        for job in jobs {
            let name = format!("nodeward-{}", job.component);
            let of_component = |object: &&Value| object["metadata"]["name"] == format!("{name}-dashboard").as_str();
            let config_map = objects.iter().find(of_component).context("no dashboard")?;
            let dashboard = config_map["data"][format!("{name}.json")]
                .as_str()
                .context("no dashboard")?;
            queries.extend(prometheus::queries(job.component, &serde_json::from_str(dashboard)?)?);
        }
        let rules = objects.iter().filter(|object| object["kind"] == "PrometheusRule");
        let groups: Vec<&Value> = rules
            .flat_map(|rule| rule["spec"]["groups"].as_array().into_iter().flatten())
            .collect();
        let dir = plane.dir().join("prometheus");
        Ok(Self {
            prometheus: Prometheus::start(program, &dir, INTERVAL, jobs, &json!(groups)).await?,
            queries,
            answered: BTreeSet::new(),
        })
    }

    /// Evaluates every query; its series have the labels that the legend shows.
    pub async fn hold(&mut self) -> Result<()> {
        for (place, query) in self.queries.iter().enumerate() {
            let series = self.prometheus.query(&query.expression).await?;
            for labels in &series {
                let missing: Vec<&String> = query
                    .legend
                    .iter()
                    .filter(|label| !labels.contains_key(*label))
                    .collect();
                ensure!(
                    missing.is_empty(),
                    "{}: a series without {missing:?}: {labels:?}",
                    query.title
                );
            }
            if !series.is_empty() {
                self.answered.insert(place);
            }
        }
        let failed = self.prometheus.failed_rules().await?;
        ensure!(failed.is_empty(), "{failed:?}");
        Ok(())
    }

    /// The queries that have never given a series.
    pub fn unanswered(&self) -> Vec<&Query> {
        let queries = self.queries.iter().enumerate();
        let unanswered = queries.filter(|(place, _)| !self.answered.contains(place));
        unanswered.map(|(_, query)| query).collect()
    }

    pub fn text(&self) -> String {
        format!(
            "{} of {} queries of the dashboards found series",
            self.answered.len(),
            self.queries.len()
        )
    }
}
