//! A real Prometheus, with what the chart tells it, beside an exporter that sets the same metric as nodekeeper goes on doing.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nodeward_testkit::helm::Release;
use nodeward_testkit::process::Process;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, debian, fleet, ports};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::environment::{Environment, managed};

const METRIC: &str = "upgradeoperator_node_drain_timeout";
const ALERT: &str = "NodewardDrainStuck";
const JOB: &str = "nodeward-drain-keeper";

/// The expression that the page on the migration gives for an alert of one's own.
fn expression_of_the_page() -> Result<&'static str> {
    let page = include_str!("../../../../docs/drain-keeper/migrate-from-nodekeeper.md");
    let (_, block) = page.split_once("```promql\n").context("no expression on the page")?;
    Ok(block.split_once("```").context("it has no end")?.0.trim())
}

/// An exporter that says the same at each scrape. Ends when this is dropped.
struct Exporter {
    address: String,
    task: AbortHandle,
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Exporter {
    async fn start(text: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
            text.len()
        );
        let serve = async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                // A scrape fits into one read; one that fails is made again a second later.
                let _ = connection.read(&mut [0; 4096]).await;
                let _ = connection.write_all(answer.as_bytes()).await;
            }
        };
        let task = tokio::spawn(serve).abort_handle();
        Ok(Self { address, task })
    }
}

/// Prometheus.
struct Prometheus {
    process: Process,
    address: String,
}

impl Prometheus {
    /// It scrapes once a second, and its alerts fire at once; all else is the chart's.
    async fn start(dir: &Path, plane: &ControlPlane, keeper: &str, nodekeeper: &str) -> Result<Self> {
        let monitoring = json!({ "serviceMonitor": { "enabled": true }, "prometheusRule": { "enabled": true } });
        let objects = Release::new("nodeward", "nodeward-system")
            .values(json!({ "drainKeeper": { "enabled": true }, "monitoring": monitoring }))
            .template(plane)
            .await?;
        let of_kind = |kind: &str| {
            let found = objects.iter().find(|object| object["kind"] == kind);
            found.cloned().with_context(|| format!("the chart renders no {kind}"))
        };
        let mut rules = of_kind("PrometheusRule")?["spec"].clone();
        for rule in rules["groups"][0]["rules"].as_array_mut().into_iter().flatten() {
            rule["for"] = json!("0s");
        }
        fs::write(dir.join("rules.yaml"), rules.to_string())?;
        let endpoint = of_kind("ServiceMonitor")?["spec"]["endpoints"][0].clone();
        ensure!(
            endpoint["relabelings"].is_null(),
            "the job is not the Service's name: {endpoint}"
        );
        // As the Prometheus Operator makes it of a ServiceMonitor: the job is the Service's name.
        let job = |name: &str, path: &Value, address: &str, namespace: &str| {
            let labels = json!({ "namespace": namespace, "service": name, "pod": format!("{name}-0") });
            json!({
                "job_name": name, "metrics_path": path,
                "static_configs": [{ "targets": [address], "labels": labels }],
            })
        };
        let theirs = "openshift-managed-upgrade-operator";
        let config = json!({
            "global": { "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s" },
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                job(JOB, &endpoint["path"], keeper, "nodeward-system"),
                job("managed-upgrade-operator", &json!("/metrics"), nodekeeper, theirs),
            ],
        });
        let file = dir.join("prometheus.yaml");
        fs::write(&file, config.to_string())?;
        let unpacked = tokio::task::spawn_blocking(|| debian::ensure_unpacked("prometheus", &["prometheus"])).await??;
        let address = format!("127.0.0.1:{}", ports::free()?);
        let process = Process::new("prometheus", unpacked.join("usr/bin/prometheus"), dir.join("log")).args([
            format!("--config.file={}", file.display()),
            format!("--storage.tsdb.path={}", dir.join("data").display()),
            format!("--web.listen-address={address}"),
            "--log.level=warn".to_owned(),
        ]);
        process.start()?;
        Ok(Self { process, address })
    }

    /// What its API answers.
    async fn get(&self, path: &str) -> Result<Value> {
        let mut connection = TcpStream::connect(&self.address)
            .await
            .with_context(|| self.process.log_tail(20))?;
        let request = format!("GET /api/v1/{path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address);
        connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        timeout(Duration::from_secs(20), connection.read_to_string(&mut answer)).await??;
        let (_, body) = answer.split_once("\r\n\r\n").with_context(|| answer.clone())?;
        let answer: Value = serde_json::from_str(body).with_context(|| answer.clone())?;
        ensure!(answer["status"] == "success", "{path}: {answer}");
        Ok(answer["data"].clone())
    }

    /// The values of `label` in what an expression gives.
    async fn query(&self, expression: &str, label: &str) -> Result<BTreeSet<String>> {
        let mut query = "query?query=".to_owned();
        for byte in expression.bytes() {
            write!(query, "%{byte:02X}")?;
        }
        let data = self.get(&query).await?;
        Ok(texts(&data["result"], |series| &series["metric"][label]))
    }

    /// The nodes for which the alert fires.
    async fn alerted(&self) -> Result<BTreeSet<String>> {
        let mut data = self.get("alerts").await?;
        if let Some(alerts) = data["alerts"].as_array_mut() {
            alerts.retain(|alert| alert["labels"]["alertname"] == ALERT && alert["state"] == "firing");
        }
        Ok(texts(&data["alerts"], |alert| &alert["labels"]["node_name"]))
    }

    /// Waits until the alert fires for these nodes alone, and the page's expression gives the same.
    async fn alerts_for(&self, nodes: &[&str]) -> Result<()> {
        let (page, wanted) = (
            expression_of_the_page()?,
            nodes.iter().map(|&node| node.to_owned()).collect(),
        );
        wait::until(format!("{ALERT} for {nodes:?}"), secs(60), || async {
            for told in [self.alerted().await?, self.query(page, "node_name").await?] {
                ensure!(told == wanted, "{told:?}");
            }
            Ok(())
        })
        .await
    }
}

fn texts(list: &Value, text: impl Fn(&Value) -> &Value) -> BTreeSet<String> {
    let texts = list
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| text(one).as_str());
    texts.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_alerts_on_drain_keepers_series_alone() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_cordoned_node("a").await?;
    env.add_pods([("vault", managed(&node))]).await?;
    env.add_budget(env.tight("vault", 1).label("nodeward.dev/force-drain", "never"), 1)
        .await?;
    // nodekeeper says the same of that node, and of one that only reboots slowly.
    let rebooting = format!("{METRIC}{{node_name=\"rebooting\"}} 1\n");
    let nodekeeper = Exporter::start(format!("{METRIC}{{node_name=\"{node}\"}} 1\n{rebooting}")).await?;
    let config = json!({ "nodeDrain": { "timeOut": "1s", "expectedNodeDrainTime": "1s" } });
    let keeper = env.start(config).await?;
    let dir = tempfile::tempdir()?;
    let prometheus = Prometheus::start(dir.path(), env.plane, &keeper.admin_address(), &nodekeeper.address).await?;
    prometheus.alerts_for(&[&node]).await?;
    let both = BTreeSet::from([JOB.to_owned(), "managed-upgrade-operator".to_owned()]);
    wait::until("both to be scraped", secs(60), || async {
        let jobs = prometheus.query(METRIC, "job").await?;
        ensure!(jobs == both, "{jobs:?}");
        Ok(())
    })
    .await?;
    let of_node = format!("{METRIC}{{job=\"{JOB}\"}}");
    ensure!(prometheus.query(&of_node, "pod").await?.len() == 1, "one replica leads");

    // The series goes with the cordon, and with it the alert; nodekeeper's stays.
    fleet::uncordon(&env.client, &node).await?;
    prometheus.alerts_for(&[]).await?;
    ensure!(prometheus.query(METRIC, "node_name").await?.contains("rebooting"));
    drop(prometheus);
    env.end([keeper]).await
}
