//! kwok, which plays the kubelets of the nodes that carry [`KUBELET_LABEL`].

use std::path::Path;

use anyhow::Result;

use crate::cluster::Cluster;
use crate::fleet::KUBELET_LABEL;
use crate::process::Process;

/// What kwok is told.
pub(crate) struct Kwok<'a> {
    /// The value of [`KUBELET_LABEL`] of its nodes.
    pub kubelet: &'a str,
    /// How often node leases are due, in seconds.
    pub lease_s: u64,
    /// How many pods, nodes and leases it plays at once.
    pub parallelism: u32,
    /// From which pods get their addresses.
    pub pod_cidr: &'a str,
    /// The address of all nodes.
    pub node_ip: &'a str,
    /// The release of Kubernetes that nodes say they run.
    pub release: &'a str,
}

impl Kwok<'_> {
    /// Its process, not started; its configuration goes into `dir`.
    pub fn process(&self, program: &Path, kubeconfig: &Path, dir: &Path, log: &Path) -> Result<Process> {
        let Self {
            kubelet,
            lease_s,
            parallelism: n,
            pod_cidr,
            node_ip,
            release,
        } = self;
        let config = dir.join("kwok.yaml");
        let head = format!(
            "apiVersion: config.kwok.x-k8s.io/v1alpha1\nkind: KwokConfiguration\noptions:\n  cidr: {pod_cidr}\n  nodeIP: {node_ip}\n  manageNodesWithLabelSelector: {KUBELET_LABEL}={kubelet}\n  nodeLeaseDurationSeconds: {lease_s}\n  podPlayStageParallelism: {n}\n  nodePlayStageParallelism: {n}\n  nodeLeaseParallelism: {n}\n  podsOnNodeSyncParallelism: {n}\n",
        );
        std::fs::write(
            &config,
            [
                head.as_str(),
                &include_str!("../stages/node.yaml").replace("KUBERNETES_RELEASE", release),
                include_str!("../stages/pod.yaml"),
            ]
            .join("---\n"),
        )?;
        Ok(Process::new("kwok", program, log)
            .args([
                "--v=WARN".to_owned(),
                format!("--config={}", config.display()),
                format!("--kubeconfig={}", kubeconfig.display()),
            ])
            // Else it would look for a configuration of the user's.
            .env("KWOK_WORKDIR", dir.join("kwok")))
    }
}

/// Plays, on a cluster that runs without us, the kubelets of the nodes with [`KUBELET_LABEL`] = `kubelet`
/// ([`crate::fleet::NodeSpec::kubelet`]), and of no other; another kwok there does not mind. Until the process is dropped.
///
/// Addresses are of the ranges for documentation and benchmarks (RFC 5737, RFC 2544): none of them is in use there.
///
/// # Errors
/// When it cannot be started.
pub fn kubelets(cluster: &Cluster, kubelet: &str) -> Result<Process> {
    let kwok = Kwok {
        kubelet,
        // Renewed four times in it: in time for clusters that find a silent node sooner than after the usual 40 s.
        lease_s: 16,
        parallelism: 8,
        pod_cidr: "198.18.0.0/15",
        node_ip: "192.0.2.1",
        release: &cluster.tools().kubernetes,
    };
    let dir = cluster.dir();
    let process = kwok.process(&cluster.tools().kwok, cluster.kubeconfig(), dir, &dir.join("kwok.log"))?;
    process.start()?;
    Ok(process)
}
