//! A real Prometheus, of Debian's package, that scrapes operators as the chart's ServiceMonitor says and evaluates the chart's
//! rules; and what the chart's dashboards ask of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use url::Url;

use crate::process::Process;
use crate::{debian, http, ports, wait};

/// How long it may take to start.
const READY_WITHIN: Duration = Duration::from_mins(1);

/// What is scraped.
pub struct Job {
    /// `drain-lock` and the like.
    pub component: &'static str,
    /// Host and port of each replica's admin server.
    pub replicas: Vec<String>,
}

/// A query of a dashboard.
pub struct Query {
    /// The panel's title.
    pub title: String,
    /// Without the dashboard's variables.
    pub expression: String,
    /// The labels that the legend shows; of the two that a namespace may have, the one that a ServiceMonitor leaves.
    pub legend: BTreeSet<String>,
}

/// The queries of a component's dashboard, its JSON.
///
/// # Errors
/// When it is not one, or has a variable that this does not know.
pub fn queries(component: &str, dashboard: &Value) -> Result<Vec<Query>> {
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().context("no panels")? {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().map(str::to_owned).with_context(|| format!("{panel}"));
            let expression = text(&target["expr"])?
                .replace("$__rate_interval", "5m")
                .replace("$__range", "1h")
                .replace("$job", &job(component))
                .replace("$namespace_label", "exported_namespace");
            ensure!(!expression.contains('$'), "an unknown variable: {expression}");
            let legend = text(&target["legendFormat"])?;
            // A legend shows a label that is not there as an empty text. Of these two, one is there.
            let legend = legend.replace("{{exported_namespace}}{{namespace}}", "{{exported_namespace}}");
            let labels = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
            found.push(Query {
                title: text(&panel["title"])?,
                expression,
                legend: labels.map(str::to_owned).collect(),
            });
        }
    }
    Ok(found)
}

/// The name of a component's job, as a ServiceMonitor makes it.
pub fn job(component: &str) -> String {
    format!("nodeward-{component}")
}

/// The program below `usr/bin` of Debian's package: `prometheus` or `promtool`.
///
/// # Errors
/// The package cannot be had.
pub fn program(name: &str) -> Result<PathBuf> {
    Ok(debian::ensure_unpacked("prometheus", &["prometheus"])?
        .join("usr/bin")
        .join(name))
}

/// The labels of a series.
pub type Labels = BTreeMap<String, String>;

/// A running Prometheus. It is killed when dropped.
pub struct Prometheus {
    process: Process,
    url: Url,
}

impl Prometheus {
    /// Scrapes these jobs every `interval`, and evaluates these groups of rules as often. Its files go into `dir`.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start(program: &Path, dir: &Path, interval: Duration, jobs: &[Job], groups: &Value) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let scrapes: Vec<Value> = jobs.iter().map(scrape).collect();
        let interval = format!("{}s", interval.as_secs());
        let config = json!({
            "global": { "scrape_interval": interval, "evaluation_interval": interval },
            "rule_files": ["rules.yaml"],
            "scrape_configs": scrapes,
        });
        // JSON is YAML.
        std::fs::write(dir.join("prometheus.yaml"), config.to_string())?;
        std::fs::write(dir.join("rules.yaml"), json!({ "groups": groups }).to_string())?;
        let address = format!("127.0.0.1:{}", ports::free()?);
        let process = Process::new("prometheus", program, dir.join("prometheus.log")).args([
            format!("--config.file={}", dir.join("prometheus.yaml").display()),
            format!("--storage.tsdb.path={}", dir.join("data").display()),
            format!("--web.listen-address={address}"),
        ]);
        process.start()?;
        let prometheus = Self {
            process,
            url: Url::parse(&format!("http://{address}/"))?,
        };
        let ready = wait::until("Prometheus to be ready", READY_WITHIN, || async {
            let (status, text) = http::get(prometheus.url.join("-/ready")?.as_str()).await?;
            ensure!(status == 200, "{status} {text}");
            Ok(())
        });
        ready.await.with_context(|| prometheus.process.log_tail(25))?;
        Ok(prometheus)
    }

    /// The series that an expression gives now.
    ///
    /// # Errors
    /// When it is refused, or cannot be evaluated on the series that there are.
    pub async fn query(&self, expression: &str) -> Result<Vec<Labels>> {
        let data = self.ask("api/v1/query", &[("query", expression)]).await;
        let data = data.with_context(|| expression.to_owned())?;
        let series = data["result"].as_array().into_iter().flatten();
        series
            .map(|series| Ok(serde_json::from_value(series["metric"].clone())?))
            .collect()
    }

    /// Rules that could not be evaluated on the series that there are, each with why.
    ///
    /// # Errors
    /// When it does not answer, or has not evaluated any rule.
    pub async fn failed_rules(&self) -> Result<Vec<String>> {
        let data = self.ask("api/v1/rules", &[]).await?;
        let groups = data["groups"].as_array().into_iter().flatten();
        let rules: Vec<&Value> = groups
            .flat_map(|group| group["rules"].as_array().into_iter().flatten())
            .collect();
        ensure!(
            rules.iter().any(|rule| rule["health"] == "ok"),
            "no rule was evaluated: {data}"
        );
        let failed = rules.into_iter().filter(|rule| rule["health"] == "err");
        Ok(failed
            .map(|rule| format!("{}: {}", rule["name"], rule["lastError"]))
            .collect())
    }

    async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let mut url = self.url.join(path)?;
        url.query_pairs_mut().extend_pairs(parameters);
        let (status, text) = http::get(url.as_str()).await?;
        ensure!(status == 200, "{status} {text}");
        let mut answer: Value = serde_json::from_str(&text)?;
        Ok(answer["data"].take())
    }
}

/// The chart's ServiceMonitor sets these labels, and Prometheus renames what collides with them.
fn scrape(job: &Job) -> Value {
    let replicas = job.replicas.iter().enumerate();
    let targets = replicas.map(|(number, address)| {
        let name = self::job(job.component);
        let labels = json!({ "namespace": "nodeward-system", "service": name, "pod": format!("{name}-{number}") });
        json!({ "targets": [address], "labels": labels })
    });
    json!({ "job_name": self::job(job.component), "static_configs": targets.collect::<Vec<_>>() })
}
