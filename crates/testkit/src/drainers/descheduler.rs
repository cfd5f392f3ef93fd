//! The descheduler, a run at a time, as its CronJob does it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Drainer, install, kubeconfig, rendered};
use crate::ControlPlane;
use crate::process::Process;
use crate::toolchain::{self, Module};

const NAMESPACE: &str = "descheduler";

/// What its chart calls the ServiceAccount.
const ACCOUNT: &str = "descheduler";

const CHART: &str = "charts/descheduler";

/// A file with the policy that its chart has by default.
const POLICY_OF_CHART: &str = "chart.yaml";

pub(super) fn module() -> Module {
    let binaries = &[("sigs.k8s.io/descheduler/cmd/descheduler", "descheduler")];
    toolchain::module("descheduler", binaries, &[]).files(&[("sigs.k8s.io/descheduler", CHART)])
}

/// The descheduler, installed.
pub struct Descheduler {
    program: PathBuf,
    kubeconfig: PathBuf,
    dir: PathBuf,
}

impl Descheduler {
    /// The name by which the API server knows it.
    pub const USER: &str = "system:serviceaccount:descheduler:descheduler";

    /// Installs its chart, without the CronJob.
    ///
    /// # Errors
    /// When it cannot be built, or the API server refuses something.
    pub async fn install(plane: &ControlPlane) -> Result<Self> {
        let built = Drainer::Descheduler.built().await?;
        let objects = rendered(plane, &built.join(CHART), ACCOUNT, NAMESPACE).await?;
        let policy = objects.iter().find_map(|object| object["data"]["policy.yaml"].as_str());
        let policy = policy.context("its chart has no policy")?.to_owned();
        install(plane, NAMESPACE, objects).await?;
        let (dir, kubeconfig) = kubeconfig(plane, Drainer::Descheduler, NAMESPACE, ACCOUNT).await?;
        std::fs::write(dir.join(POLICY_OF_CHART), policy)?;
        Ok(Self {
            program: built.join("descheduler"),
            kubeconfig,
            dir,
        })
    }

    /// One run by this policy, and what all runs have logged.
    ///
    /// # Errors
    /// When it fails or does not end in time.
    pub async fn run(&self, policy: &Value, deadline: Duration) -> Result<String> {
        let file = self.dir.join("policy.yaml");
        std::fs::write(&file, serde_yaml::to_string(policy)?)?;
        let process = self.process(&file);
        process.start()?;
        let status = process.wait_for_exit(deadline).await?;
        ensure!(status.success(), "it ended with {status}:\n{}", process.log_tail(25));
        Ok(String::from_utf8_lossy(&std::fs::read(process.log())?).into_owned())
    }

    /// Runs by the chart's policy every two minutes, as the chart's schedule has it, until it is dropped.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn repeat(&self) -> Result<Process> {
        let process = self.process(&self.dir.join(POLICY_OF_CHART));
        let process = process.args(["--descheduling-interval=2m"]);
        process.start()?;
        Ok(process)
    }

    fn process(&self, policy: &Path) -> Process {
        Process::new("descheduler", &self.program, self.dir.join("log")).args([
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--policy-config-file={}", policy.display()),
            "--disable-metrics".to_owned(),
            "--secure-port=0".to_owned(),
            "--v=3".to_owned(),
        ])
    }
}

/// A policy with this strategy alone, whether or not the pods fit elsewhere.
pub fn policy(strategy: &str) -> Value {
    json!({
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerPolicy",
        "profiles": [{
            "name": "default",
            "pluginConfig": [
                { "name": strategy },
                { "name": "DefaultEvictor", "args": { "nodeFit": false } },
            ],
            "plugins": { "deschedule": { "enabled": [strategy] } },
        }],
    })
}
