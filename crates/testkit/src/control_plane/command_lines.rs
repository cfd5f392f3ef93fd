//! The command line of each part, a flag a line.

use anyhow::Result;

use super::layout::Layout;
use super::options::{AuditScope, Options};
use crate::kwok::Kwok;
use crate::process::Process;
use crate::toolchain::Toolchain;

/// What the controller manager and the scheduler have in common: there is one of each, without a port of its own, and
/// its client's limits never hold it up.
const OF_A_CLIENT: &str = "
    --leader-elect=false
    --secure-port=0
    --profiling=false
    --kube-api-qps=1000
    --kube-api-burst=2000
    --v=1
";

/// The parts of one control plane, none of them started.
pub(super) struct Parts {
    pub etcd: Process,
    pub apiserver: Process,
    pub controller_manager: Process,
    pub scheduler: Process,
    pub kwok: Process,
}

pub(super) fn parts(tools: &Toolchain, layout: &Layout, options: &Options) -> Result<Parts> {
    let scheduler = Process::new("kube-scheduler", &tools.kube_scheduler, layout.log("kube-scheduler"))
        .args([format!(
            "--kubeconfig={}",
            layout.kubeconfig("kube-scheduler").display()
        )])
        .args(flags(OF_A_CLIENT));
    Ok(Parts {
        etcd: etcd(tools, layout, options),
        apiserver: apiserver(tools, layout, options)?,
        controller_manager: controller_manager(tools, layout, options),
        scheduler,
        kwok: kwok(tools, layout, options)?,
    })
}

/// One on each line.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|flag| !flag.is_empty())
}

fn etcd(tools: &Toolchain, layout: &Layout, options: &Options) -> Process {
    let (dir, quota) = (layout.dir.display(), options.etcd_quota_bytes);
    let client = layout.etcd_url();
    let peer = format!("http://127.0.0.1:{}", layout.etcd_peer_port);
    let text = format!(
        "--name=testbed
        --unsafe-no-fsync
        --log-level=warn
        --auto-compaction-retention=0
        --data-dir={dir}/etcd
        --quota-backend-bytes={quota}
        --listen-client-urls={client}
        --advertise-client-urls={client}
        --listen-peer-urls={peer}
        --initial-advertise-peer-urls={peer}
        --initial-cluster=testbed={peer}"
    );
    Process::new("etcd", &tools.etcd, layout.log("etcd")).args(flags(&text))
}

fn apiserver(tools: &Toolchain, layout: &Layout, options: &Options) -> Result<Process> {
    let (dir, etcd, port) = (layout.dir.display(), layout.etcd_url(), layout.apiserver_port);
    let (reads, writes) = options.max_inflight;
    // No Endpoints object is kept: the address is a loopback one, which it may not name.
    let text = format!(
        "--etcd-servers={etcd}
        --bind-address=127.0.0.1
        --advertise-address=127.0.0.1
        --secure-port={port}
        --cert-dir={dir}/pki
        --endpoint-reconciler-type=none
        --service-cluster-ip-range=10.96.0.0/16
        --allow-privileged=true
        --tls-cert-file={dir}/pki/apiserver.crt
        --tls-private-key-file={dir}/pki/apiserver.key
        --client-ca-file={dir}/pki/ca.crt
        --authorization-mode=Node,RBAC
        --service-account-key-file={dir}/pki/service-account.pub
        --service-account-signing-key-file={dir}/pki/service-account.key
        --service-account-issuer=https://kubernetes.default.svc
        --profiling=false
        --v=1
        --max-requests-inflight={reads}
        --max-mutating-requests-inflight={writes}"
    );
    // It collects garbage less often: tests lack processor time, not memory.
    let process = Process::new("kube-apiserver", &tools.kube_apiserver, layout.log("kube-apiserver"))
        .env("GOGC", "400")
        .args(flags(&text))
        .args(&options.apiserver_flags);
    let Some(policy) = audit_policy(options.audit) else {
        return Ok(process);
    };
    std::fs::write(layout.dir.join("audit-policy.yaml"), policy)?;
    let log = layout.audit_log();
    // Blocking: an event is in the file when its request has ended.
    let text = format!(
        "--audit-policy-file={dir}/audit-policy.yaml
        --audit-log-path={}
        --audit-log-mode=blocking
        --audit-log-maxsize=100000
        --audit-log-format=json",
        log.display()
    );
    Ok(process.args(flags(&text)))
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
    const NAME: &str = "kube-controller-manager";
    let (dir, kubeconfig) = (layout.dir.display(), layout.kubeconfig(NAME));
    let (kubeconfig, grace) = (kubeconfig.display(), options.node_monitor_grace.as_millis());
    let controllers = options.controllers.join(",");
    let text = format!(
        "--kubeconfig={kubeconfig}
        --controllers={controllers}
        --service-account-private-key-file={dir}/pki/service-account.key
        --root-ca-file={dir}/pki/ca.crt
        --node-monitor-grace-period={grace}ms
        --node-startup-grace-period={grace}ms
        --node-monitor-period=1s
        --node-eviction-rate=100
        --unhealthy-zone-threshold=1
        --terminated-pod-gc-threshold=0
        --concurrent-deployment-syncs=10
        --concurrent-replicaset-syncs=20
        --concurrent-namespace-syncs=20
        --namespace-sync-period=10s"
    );
    Process::new(NAME, &tools.kube_controller_manager, layout.log(NAME))
        .args(flags(&text))
        .args(flags(OF_A_CLIENT))
}

fn kwok(tools: &Toolchain, layout: &Layout, options: &Options) -> Result<Process> {
    let kwok = Kwok {
        kubelet: "kwok",
        lease_s: options.lease().as_secs().max(4),
        parallelism: options.kwok_parallelism,
        pod_cidr: "10.128.0.0/9",
        node_ip: "10.0.0.1",
        release: &tools.kubernetes,
    };
    let (kubeconfig, log) = (layout.kubeconfig("kwok"), layout.log("kwok"));
    let process = kwok.process(&tools.kwok, &kubeconfig, &layout.dir, &log)?;
    Ok(process.env("HOME", &layout.dir))
}
