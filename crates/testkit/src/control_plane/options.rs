//! What a control plane is asked to be.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::kubernetes::Kubernetes;

/// Whose requests the API server writes to its audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditScope {
    /// Nobody's: for load tests in which the log itself would weigh.
    Off,
    /// ServiceAccounts', that is the operators': enough to count what they ask for.
    ServiceAccounts,
    /// Everybody's.
    Everything,
}

/// How a [`crate::ControlPlane`] is set up. [`Options::default`] suits tests, [`Options::scale`] benchmarks.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Which Kubernetes runs; `None`: the one that the environment asks for.
    pub kubernetes: Option<Kubernetes>,
    /// Where certificates, data and logs go. `None`: a temporary directory that goes with the control plane.
    pub dir: Option<PathBuf>,
    /// Whose requests are written to the audit log.
    pub audit: AuditScope,
    /// How long a node may be silent before the node-lifecycle controller marks it Unknown. Nodes that kwok looks
    /// after renew their lease four times within it.
    pub node_monitor_grace: Duration,
    /// How often kwok's node leases are due; `None`: `node_monitor_grace`. Whole seconds.
    pub node_lease: Option<Duration>,
    /// The controllers of kube-controller-manager, as in its `--controllers`.
    pub controllers: Vec<String>,
    /// Whether kube-scheduler runs. Pods that name their node do not need it.
    pub scheduler: bool,
    /// Requests that the API server handles at once, reading and writing.
    pub max_inflight: (u32, u32),
    /// etcd's size limit, in bytes.
    pub etcd_quota_bytes: u64,
    /// How many pods, nodes and leases kwok plays at once.
    pub kwok_parallelism: u32,
    /// Further flags of the API server.
    pub apiserver_flags: Vec<String>,
}

/// The controllers that a workload and its nodes need; none for clouds, certificates or volumes in use.
const CONTROLLERS: [&str; 20] = [
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
];

impl Default for Options {
    fn default() -> Self {
        Self {
            kubernetes: None,
            dir: None,
            audit: AuditScope::ServiceAccounts,
            node_monitor_grace: Duration::from_secs(12),
            node_lease: None,
            controllers: CONTROLLERS.map(String::from).to_vec(),
            scheduler: true,
            max_inflight: (800, 400),
            etcd_quota_bytes: 8 << 30,
            kwok_parallelism: 16,
            apiserver_flags: Vec::new(),
        }
    }
}

impl Options {
    /// Which Kubernetes runs.
    ///
    /// # Errors
    /// When the environment asks for one that is not known.
    pub fn kubernetes(&self) -> Result<Kubernetes> {
        self.kubernetes.map_or_else(Kubernetes::from_environment, Ok)
    }

    /// How long the lease of a node lasts.
    pub(crate) fn lease(&self) -> Duration {
        self.node_lease.unwrap_or(self.node_monitor_grace)
    }

    /// For tests in which no node falls silent: a machine that is busy for a while makes none look so, whose pods would be
    /// unready then.
    pub fn patient() -> Self {
        Self {
            node_monitor_grace: Duration::from_mins(1),
            ..Self::default()
        }
    }

    /// For thousands of nodes: only the controllers that put the cordon's taint, keep budgets and make
    /// ServiceAccounts; nodes are never found silent, so their leases need next to no renewal; pods name their node.
    pub fn scale() -> Self {
        let needed = [
            "disruption-controller",
            "namespace-controller",
            "node-lifecycle-controller",
            "replicaset-controller",
            "root-ca-certificate-publisher-controller",
            "serviceaccount-controller",
            "serviceaccount-token-controller",
        ];
        Self {
            node_monitor_grace: Duration::from_hours(24),
            node_lease: Some(Duration::from_hours(12)),
            controllers: needed.map(String::from).to_vec(),
            scheduler: false,
            max_inflight: (3000, 1500),
            kwok_parallelism: 64,
            ..Self::default()
        }
    }
}
