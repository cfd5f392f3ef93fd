//! The command line of each part.

use anyhow::Result;

use super::layout::Layout;
use super::options::{AuditScope, Options};
use crate::kwok::Kwok;
use crate::process::Process;
use crate::toolchain::Toolchain;

/// What the controller manager and the scheduler have in common: there is one of each, without a port of its own, and
/// its client's limits never hold it up.
const OF_A_CLIENT: [&str; 6] = [
    "--leader-elect=false",
    "--secure-port=0",
    "--profiling=false",
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
    "--v=1",
];

/// The parts of one control plane, none of them started.
pub(super) struct Parts {
    pub etcd: Process,
    pub apiserver: Process,
    pub controller_manager: Process,
    pub scheduler: Process,
    pub kwok: Process,
}

pub(super) fn parts(tools: &Toolchain, layout: &Layout, options: &Options) -> Result<Parts> {
    Ok(Parts {
        etcd: etcd(tools, layout, options),
        apiserver: apiserver(tools, layout, options)?,
        controller_manager: controller_manager(tools, layout, options),
        scheduler: scheduler(tools, layout),
        kwok: kwok(tools, layout, options)?,
    })
}

fn etcd(tools: &Toolchain, layout: &Layout, options: &Options) -> Process {
    let client = layout.etcd_url();
    let peer = format!("http://127.0.0.1:{}", layout.etcd_peer_port);
    Process::new("etcd", &tools.etcd, layout.log("etcd"))
        .args([
            "--name=testbed",
            "--unsafe-no-fsync",
            "--log-level=warn",
            "--auto-compaction-retention=0",
        ])
        .args([
            flag("data-dir", layout.dir.join("etcd").display()),
            flag("quota-backend-bytes", options.etcd_quota_bytes),
        ])
        .args([
            flag("listen-client-urls", &client),
            flag("advertise-client-urls", &client),
        ])
        .args([
            flag("listen-peer-urls", &peer),
            flag("initial-advertise-peer-urls", &peer),
            format!("--initial-cluster=testbed={peer}"),
        ])
}

fn apiserver(tools: &Toolchain, layout: &Layout, options: &Options) -> Result<Process> {
    let pki = |name: &str| layout.dir.join("pki").join(name).display().to_string();
    let (reads, writes) = options.max_inflight;
    let mut process = Process::new("kube-apiserver", &tools.kube_apiserver, layout.log("kube-apiserver"))
        .args([
            flag("etcd-servers", layout.etcd_url()),
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=127.0.0.1".into(),
        ])
        .args([
            flag("secure-port", layout.apiserver_port),
            flag("cert-dir", layout.dir.join("pki").display()),
        ])
        // The address is a loopback one, which an Endpoints object may not name.
        .args([
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--allow-privileged=true",
        ])
        .args([
            flag("tls-cert-file", pki("apiserver.crt")),
            flag("tls-private-key-file", pki("apiserver.key")),
        ])
        .args([
            flag("client-ca-file", pki("ca.crt")),
            "--authorization-mode=Node,RBAC".into(),
        ])
        .args([
            flag("service-account-key-file", pki("service-account.pub")),
            flag("service-account-signing-key-file", pki("service-account.key")),
        ])
        .args([
            "--service-account-issuer=https://kubernetes.default.svc",
            "--profiling=false",
            "--v=1",
        ])
        .args([
            flag("max-requests-inflight", reads),
            flag("max-mutating-requests-inflight", writes),
        ])
        .args(&options.apiserver_flags);
    if let Some(policy) = audit_policy(options.audit) {
        let file = layout.dir.join("audit-policy.yaml");
        std::fs::write(&file, policy)?;
        // Blocking: an event is in the file when its request has ended.
        process = process
            .args([
                flag("audit-policy-file", file.display()),
                flag("audit-log-path", layout.audit_log().display()),
            ])
            .args([
                "--audit-log-mode=blocking",
                "--audit-log-maxsize=100000",
                "--audit-log-format=json",
            ]);
    }
    Ok(process)
}

fn audit_policy(scope: AuditScope) -> Option<String> {
    let rules = match scope {
        AuditScope::Off => return None,
        AuditScope::ServiceAccounts => "- { level: Metadata, userGroups: ['system:serviceaccounts'] }",
        AuditScope::Everything => "- level: Metadata",
    };
    Some(format!(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nomitManagedFields: true\nrules:\n{rules}\n"
    ))
}

fn controller_manager(tools: &Toolchain, layout: &Layout, options: &Options) -> Process {
    let grace = options.node_monitor_grace;
    let pki = layout.dir.join("pki");
    Process::new(
        "kube-controller-manager",
        &tools.kube_controller_manager,
        layout.log("kube-controller-manager"),
    )
    .args([
        flag("kubeconfig", layout.kubeconfig("kube-controller-manager").display()),
        flag("controllers", options.controllers.join(",")),
    ])
    .args(OF_A_CLIENT)
    .args([
        flag(
            "service-account-private-key-file",
            pki.join("service-account.key").display(),
        ),
        flag("root-ca-file", pki.join("ca.crt").display()),
    ])
    .args([
        format!("--node-monitor-grace-period={}ms", grace.as_millis()),
        format!("--node-startup-grace-period={}ms", grace.as_millis()),
    ])
    .args([
        "--node-monitor-period=1s",
        "--node-eviction-rate=100",
        "--unhealthy-zone-threshold=1",
        "--terminated-pod-gc-threshold=0",
    ])
    .args([
        "--concurrent-deployment-syncs=10",
        "--concurrent-replicaset-syncs=20",
        "--concurrent-namespace-syncs=20",
        "--namespace-sync-period=10s",
    ])
}

fn scheduler(tools: &Toolchain, layout: &Layout) -> Process {
    Process::new("kube-scheduler", &tools.kube_scheduler, layout.log("kube-scheduler"))
        .args([flag("kubeconfig", layout.kubeconfig("kube-scheduler").display())])
        .args(OF_A_CLIENT)
}

fn kwok(tools: &Toolchain, layout: &Layout, options: &Options) -> Result<Process> {
    let lease = options
        .node_lease
        .unwrap_or(options.node_monitor_grace)
        .as_secs()
        .max(4);
    let kwok = Kwok {
        kubelet: "kwok",
        lease_s: lease,
        parallelism: options.kwok_parallelism,
        pod_cidr: "10.128.0.0/9",
        node_ip: "10.0.0.1",
    };
    let process = kwok.process(
        &tools.kwok,
        &layout.kubeconfig("kwok"),
        &layout.dir,
        &layout.log("kwok"),
    )?;
    Ok(process.env("HOME", &layout.dir))
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}
