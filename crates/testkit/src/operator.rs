//! Running an operator's binary as a process, under the ServiceAccount that the chart installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::binaries::Profile;
use crate::process::{Process, Usage};
use crate::{Cluster, binaries, documented, http, pki, ports, wait};

/// How long what was granted may take to be in force.
const GRANTED_WITHIN: Duration = Duration::from_mins(1);

/// What the chart tells glibc's allocator.
pub const ALLOCATOR: [(&str, &str); 2] = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "65536")];

/// How an operator is started.
#[derive(Clone, Debug)]
pub struct OperatorSpec {
    component: String,
    binary: Option<PathBuf>,
    namespace: String,
    service_account: String,
    identity: Option<String>,
    server: Option<String>,
    config: Option<String>,
    args: Vec<String>,
}

impl OperatorSpec {
    /// The binary of the package `component` ([`binaries::operator`]), as the ServiceAccount `NAMESPACE/SERVICE_ACCOUNT`, leases in
    /// `namespace`.
    pub fn new(component: &str, namespace: &str, service_account: &str) -> Self {
        Self {
            component: component.to_owned(),
            binary: None,
            namespace: namespace.to_owned(),
            service_account: service_account.to_owned(),
            identity: None,
            server: None,
            config: None,
            args: Vec::new(),
        }
    }

    /// Another binary than the package's own.
    #[must_use]
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = Some(binary.into());
        self
    }

    /// Its `--identity`; else the component's name and a number.
    #[must_use]
    pub fn identity(mut self, identity: &str) -> Self {
        self.identity = Some(identity.to_owned());
        self
    }

    /// Talks to the API server through this URL, that of a proxy with a certificate of the control plane's authority.
    #[must_use]
    pub fn through(mut self, url: &str) -> Self {
        self.server = Some(url.to_owned());
        self
    }

    /// Its configuration file's text; without one it gets no `--config`.
    #[must_use]
    pub fn config(mut self, yaml: &str) -> Self {
        self.config = Some(yaml.to_owned());
        self
    }

    /// A further argument.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// Starts it, and does not wait until it is ready.
    ///
    /// # Errors
    /// When its binary does not build, or its ServiceAccount is missing.
    pub async fn start(self, on: impl Into<Cluster>) -> Result<Operator> {
        let operator = self.prepare(on).await?;
        operator.process.start()?;
        Ok(operator)
    }

    /// Everything but the start itself: for what must be in place before.
    ///
    /// # Errors
    /// As [`OperatorSpec::start`].
    pub async fn prepare(self, on: impl Into<Cluster>) -> Result<Operator> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let on: Cluster = on.into();
        let name = format!("{}-{}", self.component, NUMBER.fetch_add(1, Ordering::Relaxed));
        let dir = on.dir().join("operators").join(&name);
        std::fs::create_dir_all(&dir)?;
        let component = self.component.clone();
        let binary = match self.binary {
            Some(binary) => binary,
            None => tokio::task::spawn_blocking(move || binaries::operator(&component, Profile::Dev)).await??,
        };
        let token = service_account_token(&on, &self.namespace, &self.service_account).await?;
        let kubeconfig = on.kubeconfig_of(&token, self.server.as_deref());
        let kubeconfig = pki::write(&dir, "kubeconfig", &kubeconfig)?;
        let config = dir.join("config.yaml");
        let port = ports::free()?;
        let process = Process::new(&name, binary, dir.join("log")).env("KUBECONFIG", &kubeconfig);
        let process = ALLOCATOR
            .iter()
            .fold(process, |process, (name, value)| process.env(name, value));
        let mut process = process.args([
            format!("--admin-bind=127.0.0.1:{port}"),
            format!("--namespace={}", self.namespace),
            format!("--identity={}", self.identity.as_ref().unwrap_or(&name)),
        ]);
        if let Some(text) = self.config {
            std::fs::write(&config, text)?;
            process = process.args(["--config".as_ref(), config.as_os_str()]);
        }
        Ok(Operator {
            component: self.component,
            process: process.args(&self.args),
            port,
            kubeconfig,
            config,
        })
    }
}

/// An operator's process. It is killed when dropped.
pub struct Operator {
    component: String,
    process: Process,
    port: u16,
    kubeconfig: PathBuf,
    config: PathBuf,
}

impl Operator {
    /// The process: kill, pause, resume, restart, signals, exit status, log.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Host and port of its admin server.
    pub fn admin_address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Waits until `/readyz` is 200.
    ///
    /// # Errors
    /// When it is not in time, or the process has ended: with the end of its log.
    pub async fn ready(&self, deadline: Duration) -> Result<()> {
        let what = format!("{} to be ready", self.process.name());
        let ready = wait::until(what, deadline, || async {
            if let Some(status) = self.process.exit_status() {
                return Ok(Err(anyhow::anyhow!("it has ended: {status}")));
            }
            let (status, text) = self.get("/readyz").await?;
            ensure!(status == 200, "{status} {text}");
            Ok(Ok(()))
        })
        .await;
        ready.and_then(|ended| ended).with_context(|| {
            let (name, log) = (self.process.name(), self.process.log().display());
            format!("{name} ({log}) ends with:\n{}", self.process.log_tail(25))
        })
    }

    /// GET of a path of its admin server: status and body.
    ///
    /// # Errors
    /// When it does not answer in 20 s.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        http::get(&format!("http://{}{path}", self.admin_address())).await
    }

    /// Its metrics now.
    ///
    /// # Errors
    /// When `/metrics` does not answer 200, or one of them is not on the component's page of metrics.
    pub async fn metrics(&self) -> Result<Metrics> {
        let (status, text) = self.get("/metrics").await?;
        ensure!(status == 200, "/metrics answers {status}: {text}");
        let metrics = Metrics::parse(&text);
        documented::check(&self.component, &metrics)?;
        Ok(metrics)
    }

    /// Replaces its configuration file at once, as an editor or a mounted ConfigMap does.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_config(&self, yaml: &str) -> Result<()> {
        let unfinished = self.config.with_extension("new");
        std::fs::write(&unfinished, yaml)?;
        Ok(std::fs::rename(unfinished, &self.config)?)
    }

    /// SIGTERM, and its exit status; SIGKILL after `grace`.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn stop(&self, grace: Duration) -> Result<ExitStatus> {
        self.process.stop(grace).await
    }

    /// Memory and CPU.
    ///
    /// # Errors
    /// When it does not run.
    pub fn usage(&self) -> Result<Usage> {
        self.process.usage()
    }

    /// All that it has written so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.process.log()).unwrap_or_default()).into_owned()
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

/// A token of the ServiceAccount, good for a day.
///
/// # Errors
/// When there is no such ServiceAccount.
pub async fn service_account_token(on: impl Into<Cluster>, namespace: &str, name: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(on.into().client().await?, namespace);
    let wanted = serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 86_400}}))?;
    let made: TokenRequest = accounts
        .create_token_request(name, &PostParams::default(), &wanted)
        .await
        .with_context(|| format!("a token of ServiceAccount {namespace}/{name}"))?;
    Ok(made.status.context("no token in the answer")?.token)
}

/// Waits until a ServiceAccount has these rights, each a verb, an API group, a resource and a namespace (empty: everywhere). The
/// API server goes by what was granted once its own watch has told it, and roles that are aggregated are filled in by and by.
///
/// # Errors
/// When it does not have them within a minute.
pub async fn granted(client: &Client, namespace: &str, account: &str, rights: &[[&str; 4]]) -> Result<()> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    for [verb, group, resource, within] in rights {
        let review = serde_json::from_value(json!({ "spec": {
            "user": format!("system:serviceaccount:{namespace}:{account}"),
            "resourceAttributes": { "verb": verb, "group": group, "resource": resource, "namespace": within },
        } }))?;
        wait::until(format!("{account} to have its rights"), GRANTED_WITHIN, || async {
            let status = reviews.create(&PostParams::default(), &review).await?.status;
            let is_allowed = status.is_some_and(|status| status.allowed);
            ensure!(is_allowed, "it may not {verb} {resource} {within}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Samples in the Prometheus or OpenMetrics text format.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    samples: Vec<Sample>,
}

/// One line: a series and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name, as written (`..._total` and `..._bucket` included).
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Metrics {
    /// Reads the text; lines that are not samples are left out.
    pub fn parse(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(sample);
        Self {
            samples: samples.collect(),
        }
    }

    /// The value of the one series of `name` that has (at least) these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.series(name, labels).next().map(|sample| sample.value)
    }

    /// The sum over all series of `name` that have these labels; 0 without any.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.series(name, labels).map(|sample| sample.value).sum()
    }

    /// All of them.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter()
    }

    /// All series of `name` that have these labels.
    pub fn series<'a>(&'a self, name: &'a str, labels: &'a [(&str, &str)]) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            let has = |(key, value): &(&str, &str)| sample.labels.get(*key).map(String::as_str) == Some(*value);
            sample.name == name && labels.iter().all(has)
        })
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (name, labels, rest) = match line.split_once('{') {
        None => {
            let (name, rest) = line.split_once(' ')?;
            (name, BTreeMap::new(), rest)
        }
        Some((name, rest)) => {
            let (labels, rest) = labels(rest)?;
            (name, labels, rest)
        }
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// `key="value",...}` and what follows it. A value may hold any character; `\`, `"` and a line feed are escaped.
fn labels(mut text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (key, rest) = text.split_once('=')?;
        // Quotes and escapes are those of JSON.
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        labels.insert(key.to_owned(), values.next()?.ok()?);
        text = &rest[values.byte_offset()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_is_found_by_partial_labels() {
        let text = "# TYPE a counter\na_total{node=\"n1\",why=\"a \\\"b\\\", {c}\"} 3\na_total{node=\"n2\"} 4.5 1700000000\nplain 1e3\n# EOF\n";
        let metrics = Metrics::parse(text);
        assert_eq!(
            metrics.value("a_total", &[("node", "n1"), ("why", "a \"b\", {c}")]),
            Some(3.0)
        );
        assert!((metrics.sum("a_total", &[]) - 7.5).abs() < f64::EPSILON);
        assert_eq!(metrics.value("plain", &[]), Some(1000.0));
        assert_eq!(metrics.value("a_total", &[("node", "n3")]), None);
    }
}
