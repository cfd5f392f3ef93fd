//! Where the demo plays: on a control plane of its own, or on a cluster that the user has.
//!
//! On a user's cluster, all names begin with one prefix that no earlier run had. Its nodes are simulated by a kwok of our
//! own that looks after no other node; they carry a label and a taint of this run, so that nobody else's pods come to them,
//! and the demo's pods run nowhere else. Nothing that exists is changed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::api::{Api, ListParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use nodeward_testkit::fleet::NodeSpec;
use nodeward_testkit::helm::Release;
use nodeward_testkit::process::{self, Process};
use nodeward_testkit::progress::Progress;
use nodeward_testkit::workload::PodTemplate;
use nodeward_testkit::{Cluster, ControlPlane, Options, bulk, kwok, names, toolchain, wait};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::install::Installation;

/// The label of all that a run makes, and the taint of its nodes; the value is the run's.
pub const RUN: &str = "demo.nodeward.dev/run";

/// How long the cluster's controllers may take to make a namespace usable.
const USABLE_WITHIN: Duration = Duration::from_mins(1);

/// Where the demo plays.
pub struct Environment {
    pub cluster: Cluster,
    client: Client,
    /// The value of [`RUN`], and the name of the chart's release on a user's cluster.
    pub run: String,
    /// What all names of this run begin with; empty on a control plane of our own.
    pub prefix: String,
    /// Of namespaces that were there before.
    pub others: Vec<String>,
    /// The control plane, where it is ours.
    pub plane: Option<ControlPlane>,
    kubelets: Option<Process>,
    // Last, so that it goes when the processes are gone.
    _dir: Option<TempDir>,
}

impl Environment {
    /// As asked for: a new control plane, or the cluster of the kubeconfig.
    pub async fn open(kubeconfig: Option<&Path>) -> Result<Self> {
        if let Some(kubeconfig) = kubeconfig {
            let env = Self::reach(kubeconfig, names::unique("nodeward-demo")).await?;
            let kubelets = kwok::kubelets(&env.cluster, &env.run)?;
            return Ok(Self {
                kubelets: Some(kubelets),
                ..env
            });
        }
        // Before, for its progress to be seen.
        tokio::task::spawn_blocking(toolchain::of_environment).await??;
        let progress = Progress::begin("control plane");
        progress.step("etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok");
        let plane = ControlPlane::start(Options::default()).await?;
        progress.done("runs on this machine");
        Ok(Self {
            cluster: Cluster::from(&plane),
            client: plane.client().await?,
            run: names::unique("nodeward-demo"),
            prefix: String::new(),
            others: Vec::new(),
            plane: Some(plane),
            kubelets: None,
            _dir: None,
        })
    }

    /// The cluster of the kubeconfig, as it is.
    pub async fn reach(kubeconfig: &Path, run: String) -> Result<Self> {
        let tools = tokio::task::spawn_blocking(toolchain::of_environment).await??;
        let dir = tempfile::Builder::new().prefix("nodeward-demo-").tempdir()?;
        process::remove_at_exit(dir.path())?;
        let cluster = Cluster::from_kubeconfig(kubeconfig, tools, dir.path())?;
        let progress = Progress::begin(format!("cluster {}", cluster.url()));
        let client = cluster.client().await?;
        let version = client.apiserver_version().await;
        let version = version.with_context(|| format!("ask {} for its version", cluster.url()))?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let others = namespaces.list_metadata(&ListParams::default()).await?;
        progress.done(&version.git_version);
        Ok(Self {
            cluster,
            client,
            prefix: format!("{run}-"),
            run,
            others: others.iter().map(ResourceExt::name_any).collect(),
            plane: None,
            kubelets: None,
            _dir: Some(dir),
        })
    }

    /// Runs of which something is here.
    pub async fn earlier_runs(&self) -> Result<BTreeSet<String>> {
        let with_label = ListParams::default().labels(RUN);
        let namespaces: Api<Namespace> = Api::all(self.client());
        let nodes: Api<Node> = Api::all(self.client());
        let mut runs = BTreeSet::new();
        for namespace in namespaces.list_metadata(&with_label).await? {
            runs.extend(namespace.labels().get(RUN).cloned());
        }
        for node in nodes.list_metadata(&with_label).await? {
            runs.extend(node.labels().get(RUN).cloned());
        }
        Ok(runs)
    }

    /// The same cluster, and another run.
    pub fn of_run(self, run: String) -> Self {
        Self {
            prefix: format!("{run}-"),
            run,
            ..self
        }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The release of the chart that the demo installs, as a user does.
    pub fn release(&self) -> Release {
        match self.plane {
            Some(_) => Release::new("nodeward", nodeward_api::DEFAULT_NAMESPACE),
            None => Release::new(&self.run, &self.named("system")),
        }
    }

    /// An operator of that release, to be started here.
    pub fn installation(&self, operator: &'static str, binary: PathBuf, config: Value) -> Installation {
        Installation {
            release: self.release(),
            operator,
            binary,
            config,
        }
    }

    /// The full name of a node or namespace.
    pub fn named(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whether a namespace, or what is named after its namespace, is the demo's.
    pub fn is_ours(&self, name: &str) -> bool {
        name.starts_with(&self.prefix)
    }

    /// The label selector of what the run made.
    pub fn ours(&self) -> String {
        format!("{RUN}={}", self.run)
    }

    /// The same for a watch.
    pub fn selecting_ours(&self) -> watcher::Config {
        watcher::Config::default().labels(&self.ours())
    }

    /// A node that only the demo's pods run on.
    pub fn node(&self, name: &str) -> NodeSpec {
        let node = if self.plane.is_some() {
            NodeSpec::worker(name)
        } else {
            // A role would put it into somebody's pool.
            NodeSpec::new(name).kubelet(&self.run)
        };
        node.label(RUN, &self.run).taint(RUN, &self.run, "NoSchedule")
    }

    /// Pods that only run on the demo's nodes.
    pub fn pods(&self) -> PodTemplate {
        let tolerations = json!([{ "key": RUN, "value": self.run, "effect": "NoSchedule" }]);
        PodTemplate::new()
            .spec("nodeSelector", json!({ RUN: self.run }))
            .spec("tolerations", tolerations)
    }

    /// Creates a namespace and waits until pods can be created in it.
    pub async fn create_namespace(&self, name: &str) -> Result<()> {
        let name = self.named(name);
        // Where a cluster enforces more by default, simulated pods would be refused: they have no security context.
        let labels = json!({ RUN: self.run, "pod-security.kubernetes.io/enforce": "baseline" });
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } }))?;
        bulk::create_one(self.client(), namespace).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), &name);
        wait::until(
            format!("the default ServiceAccount of {name}"),
            USABLE_WITHIN,
            || async { Ok(accounts.get("default").await.map(drop)?) },
        )
        .await
    }

    /// Nobody plays the demo's kubelets from now on.
    pub fn stop_kubelets(&self) {
        if let Some(kubelets) = &self.kubelets {
            kubelets.kill();
        }
    }
}
