//! Programs of others that empty nodes, as they are published: Karpenter, Cluster API and the descheduler.
//!
//! Each is built from its pinned Go module, as the control plane is, and runs as a process beside it: as its own
//! ServiceAccount, with the rights and the CRDs that its own chart or manifests give. Only its Deployment is left out.

mod cluster_api;
mod descheduler;
mod karpenter;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

pub use self::cluster_api::{ClusterApi, node_of};
pub use self::descheduler::{Descheduler, policy};
pub use self::karpenter::{Karpenter, NodePool, interrupt};
use crate::helm::Release;
use crate::kubectl::Kubectl;
use crate::operator::service_account_token;
use crate::process::Process;
use crate::toolchain::{self, Module};
use crate::wait::{self, secs};
use crate::{ControlPlane, pki, unless_refused};

/// Names a file that takes what tests count of these programs, one JSON object a line.
pub const FIGURES: &str = "NODEWARD_DRAINER_FIGURES";

/// One of these programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drainer {
    Karpenter,
    ClusterApi,
    Descheduler,
}

impl Drainer {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Karpenter, Self::ClusterApi, Self::Descheduler];

    /// As on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Karpenter => "karpenter",
            Self::ClusterApi => "cluster-api",
            Self::Descheduler => "descheduler",
        }
    }

    fn module(self) -> Module {
        match self {
            Self::Karpenter => karpenter::module(),
            Self::ClusterApi => cluster_api::module(),
            Self::Descheduler => descheduler::module(),
        }
    }

    /// The Go module that it is part of.
    const fn go_module(self) -> &'static str {
        match self {
            Self::Karpenter => "sigs.k8s.io/karpenter",
            Self::ClusterApi => "sigs.k8s.io/cluster-api",
            Self::Descheduler => "sigs.k8s.io/descheduler",
        }
    }

    /// The release that is pinned, as in `v1.14.1`.
    ///
    /// # Errors
    /// When its `go.mod` requires none.
    pub fn release(self) -> Result<String> {
        self.module().pinned(self.go_module())
    }

    /// Builds it unless that was done before; gives the directory of what is built.
    ///
    /// # Errors
    /// When its module cannot be had or does not compile.
    pub fn ensure_built(self) -> Result<PathBuf> {
        toolchain::ensure_module_built(&self.module()).with_context(|| format!("{self} cannot be built"))
    }

    /// Installs it and lets it run, by its chart's defaults.
    ///
    /// # Errors
    /// When it cannot be built, or does not start.
    pub async fn start(self, plane: &ControlPlane) -> Result<Running> {
        Ok(match self {
            Self::Karpenter => Running::Karpenter(Karpenter::start(plane).await?),
            Self::ClusterApi => Running::ClusterApi(ClusterApi::start(plane).await?),
            Self::Descheduler => Running::Descheduler(Descheduler::install(plane).await?.repeat()?),
        })
    }

    async fn built(self) -> Result<PathBuf> {
        tokio::task::spawn_blocking(move || self.ensure_built()).await?
    }
}

/// Why one cannot be had, in one line: what was done, and the last that the compiler or the program said.
pub fn in_one_line(error: &Error) -> String {
    let said = format!("{error:#}");
    let mut lines = said.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    lines
        .next_back()
        .map_or_else(|| first.to_owned(), |last| format!("{first} {last}"))
}

/// One of them, running. It ends when dropped.
pub enum Running {
    Karpenter(Karpenter),
    ClusterApi(ClusterApi),
    Descheduler(Process),
}

impl Running {
    /// Its process: id, log.
    pub const fn process(&self) -> &Process {
        match self {
            Self::Karpenter(karpenter) => karpenter.process(),
            Self::ClusterApi(cluster_api) => cluster_api.process(),
            Self::Descheduler(process) => process,
        }
    }
}

impl fmt::Display for Drainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Drainer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|drainer| drainer.name() == text) {
            Some(drainer) => Ok(drainer),
            None => bail!(
                "the testbed has no drainer {text:?}; it has {}",
                Self::ALL.map(Self::name).join(", ")
            ),
        }
    }
}

/// Kinds that would run the program in a pod, or call it there.
const OF_THE_POD: [&str; 9] = [
    "Deployment",
    "CronJob",
    "Service",
    "PodDisruptionBudget",
    "ConfigMap",
    "Certificate",
    "Issuer",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// Creates what the program's chart or manifests install besides its pod, and waits until its kinds are served.
async fn install(plane: &ControlPlane, namespace: &str, objects: Vec<Value>) -> Result<()> {
    unless_refused(plane.namespace(namespace).await, &[409])?;
    let mut kept = String::new();
    let mut kinds = Vec::new();
    for mut object in objects {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        if OF_THE_POD.contains(&kind.as_str()) || object.is_null() {
            continue;
        }
        if kind == "CustomResourceDefinition" {
            // Nobody answers at the URL of its conversion; one version is used.
            if let Some(spec) = object["spec"].as_object_mut() {
                spec.remove("conversion");
            }
            kinds.push(format!(
                "crd/{}",
                object["metadata"]["name"].as_str().unwrap_or_default()
            ));
        }
        kept.push_str("---\n");
        kept.push_str(&serde_yaml::to_string(&object)?);
    }
    let kubectl = Kubectl::of(plane)?;
    let file = plane.dir().join(format!("{namespace}.yaml"));
    std::fs::write(&file, kept)?;
    let file = file.display().to_string();
    kubectl.run(["apply", "--server-side", "-f", &file], secs(60)).await?;
    if !kinds.is_empty() {
        let established = ["wait", "--for=condition=Established", "--timeout=60s"].map(str::to_owned);
        kubectl.run(established.into_iter().chain(kinds), secs(70)).await?;
    }
    Ok(())
}

/// What a chart installs. Its namespace is made.
async fn rendered(plane: &ControlPlane, chart: &Path, name: &str, namespace: &str) -> Result<Vec<Value>> {
    Release::new(name, namespace).chart(chart).template(plane).await
}

/// All objects of the YAML files of a directory.
fn read_objects(dir: &Path) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        objects.extend(objects_of(&std::fs::read_to_string(entry?.path())?)?);
    }
    Ok(objects)
}

/// All objects of a YAML text.
fn objects_of(text: &str) -> Result<Vec<Value>> {
    let documents = serde_yaml::Deserializer::from_str(text).map(Value::deserialize);
    let objects = documents.collect::<Result<Vec<_>, _>>()?;
    Ok(objects.into_iter().filter(|object| !object.is_null()).collect())
}

/// A directory for the program's files, and in it the kubeconfig of its ServiceAccount.
async fn kubeconfig(
    plane: &ControlPlane,
    drainer: Drainer,
    namespace: &str,
    account: &str,
) -> Result<(PathBuf, PathBuf)> {
    let dir = plane.dir().join("drainers").join(drainer.name());
    std::fs::create_dir_all(&dir)?;
    let token = service_account_token(plane, namespace, account).await?;
    let kubeconfig = crate::Cluster::from(plane).kubeconfig_of(&token, None);
    let kubeconfig = pki::write(&dir, "kubeconfig", &kubeconfig)?;
    Ok((dir, kubeconfig))
}

/// Starts it, and waits until its log says so.
async fn start(process: &Process, started: &str) -> Result<()> {
    process.start()?;
    let name = process.name();
    let begun = wait::until(format!("{name} to start"), secs(120), || async {
        if let Some(status) = process.exit_status() {
            return Ok(Err(anyhow::anyhow!("it has ended: {status}")));
        }
        let log = std::fs::read(process.log()).unwrap_or_default();
        ensure!(
            String::from_utf8_lossy(&log).contains(started),
            "its log does not say {started:?}"
        );
        Ok(Ok(()))
    })
    .await;
    begun
        .and_then(|ended| ended)
        .with_context(|| format!("{name}'s log ends with:\n{}", process.log_tail(25)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drainer_is_known_by_its_name() {
        for drainer in Drainer::ALL {
            assert_eq!(drainer.to_string().parse::<Drainer>().unwrap(), drainer);
        }
        let refusal = "kured".parse::<Drainer>().unwrap_err().to_string();
        assert_eq!(
            refusal,
            "the testbed has no drainer \"kured\"; it has karpenter, cluster-api, descheduler"
        );
    }

    #[test]
    fn failed_build_is_told_in_one_line() {
        let error = anyhow::anyhow!("exit status: 1:\ngo: downloading x\nserver response: not available.\n");
        let error = error.context("karpenter cannot be built");
        assert_eq!(
            in_one_line(&error),
            "karpenter cannot be built: exit status: 1: server response: not available."
        );
        assert_eq!(in_one_line(&anyhow::anyhow!("no go")), "no go");
    }

    #[test]
    fn documentation_names_the_releases() {
        let page = crate::binaries::workspace().join("docs/compatibility.md");
        let page = std::fs::read_to_string(page).unwrap();
        for drainer in Drainer::ALL {
            let release = drainer.release().unwrap();
            assert!(page.contains(&release), "{drainer} {release}");
        }
    }
}
