//! Nodes as clusters have them, a few kilobytes each, and their leases.

use jiff::Timestamp;
use nodeward_testkit::fleet;
use serde_json::{Value, json};

use super::size::{self, node_name};

/// Marks the nodes that stay cordoned throughout.
pub const POOL_LABEL: &str = "bench.nodeward.dev/pool";

/// How many images a kubelet reports: its `--node-status-max-images` is 50, and most nodes have fewer.
const IMAGES: usize = 20;

/// A Ready node.
pub fn node(node: usize) -> Value {
    let name = node_name(node);
    let zone = format!("region-1{}", ["a", "b", "c"][node % 3]);
    let mut labels = json!({
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/instance-type": "m6i.4xlarge",
        "beta.kubernetes.io/os": "linux",
        "failure-domain.beta.kubernetes.io/region": "region-1",
        "failure-domain.beta.kubernetes.io/zone": zone,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "node-role.kubernetes.io/worker": "",
        "node.kubernetes.io/instance-type": "m6i.4xlarge",
        "node.openshift.io/os_id": "rhel",
        "topology.ebs.csi.aws.com/zone": zone,
        "topology.kubernetes.io/region": "region-1",
        "topology.kubernetes.io/zone": zone,
    });
    if size::played().contains(&node) {
        labels[fleet::KUBELET_LABEL] = json!("kwok");
    }
    if size::resting().contains(&node) {
        labels[POOL_LABEL] = json!("resting");
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "labels": labels, "annotations": annotations(node) },
        "spec": { "providerID": format!("aws:///{zone}/i-{node:017x}"), "podCIDR": format!("10.{}.{}.0/24", 128 + node / 256, node % 256) },
        "status": {
            "addresses": [
                { "type": "InternalIP", "address": format!("10.0.{}.{}", node / 250, node % 250 + 1) },
                { "type": "Hostname", "address": name },
                { "type": "InternalDNS", "address": name },
            ],
            "allocatable": { "cpu": "15500m", "ephemeral-storage": "114345831029", "hugepages-1Gi": "0", "hugepages-2Mi": "0", "memory": "63645892Ki", "pods": "250" },
            "capacity": { "cpu": "16", "ephemeral-storage": "125293548Ki", "hugepages-1Gi": "0", "hugepages-2Mi": "0", "memory": "64796868Ki", "pods": "250" },
            "conditions": conditions(Timestamp::now()),
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
            "images": images(node),
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": format!("00000000-0000-4000-8000-{node:012x}"),
                "containerRuntimeVersion": "cri-o://1.33.1-2.rhaos4.20.git1a2b3c4.el9",
                "kernelVersion": "5.14.0-570.28.1.el9_6.x86_64",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.35.4",
                "machineID": format!("{node:032x}"),
                "operatingSystem": "linux",
                "osImage": "Red Hat Enterprise Linux CoreOS 9.6.20251103-0 (Plow)",
                "systemUUID": format!("ec2{node:05x}-0000-4000-8000-000000000000"),
            },
        },
    })
}

fn annotations(node: usize) -> Value {
    let rendered = "rendered-worker-3c7e0b7f9a1d4e5f8a6b2c1d0e9f8a7b";
    json!({
        "csi.volume.kubernetes.io/nodeid": format!("{{\"ebs.csi.aws.com\":\"i-{node:017x}\"}}"),
        "k8s.ovn.org/host-cidrs": format!("[\"10.0.{}.{}/16\"]", node / 250, node % 250 + 1),
        "k8s.ovn.org/l3-gateway-config": format!("{{\"default\":{{\"mode\":\"shared\",\"bridge-id\":\"br-ex\",\"interface-id\":\"br-ex_{}\",\"mac-address\":\"0e:00:00:00:{:02x}:{:02x}\",\"next-hops\":[\"10.0.0.1\"],\"node-port-enable\":\"true\",\"vlan-id\":\"0\"}}}}", node_name(node), node / 256, node % 256),
        "k8s.ovn.org/node-id": node.to_string(),
        "k8s.ovn.org/node-subnets": format!("{{\"default\":[\"10.{}.{}.0/24\"]}}", 128 + node / 256, node % 256),
        "machine.openshift.io/machine": format!("openshift-machine-api/bench-worker-{node:05}"),
        "machineconfiguration.openshift.io/controlPlaneTopology": "HighlyAvailable",
        "machineconfiguration.openshift.io/currentConfig": rendered,
        "machineconfiguration.openshift.io/desiredConfig": rendered,
        "machineconfiguration.openshift.io/desiredDrain": format!("uncordon-{rendered}"),
        "machineconfiguration.openshift.io/lastAppliedDrain": format!("uncordon-{rendered}"),
        "machineconfiguration.openshift.io/state": "Done",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    })
}

/// What a kubelet reports of a healthy node.
pub fn conditions(heartbeat: Timestamp) -> Value {
    let at = heartbeat.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": at, "lastTransitionTime": "2026-01-01T00:00:00Z" });
    json!([
        condition(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available"
        ),
        condition(
            "DiskPressure",
            "False",
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure"
        ),
        condition(
            "PIDPressure",
            "False",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available"
        ),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ])
}

fn images(node: usize) -> Value {
    let images = (0..IMAGES).map(|image| {
        // Nodes have most images in common, and some of their own.
        let seed = if image % 4 == 0 { node * IMAGES + image } else { image };
        json!({
            "names": [
                format!("quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:{:064x}", seed * 7919 + 1),
                format!("registry.example.com/team-{}/service-{image}:v1.{}", image % 5, seed % 97),
            ],
            "sizeBytes": 100_000_000 + seed * 4096,
        })
    });
    Value::Array(images.collect())
}

/// The lease by which a kubelet shows that it lives. kwok makes those of the nodes that it plays.
pub fn lease(node: usize) -> Value {
    let name = node_name(node);
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": name, "namespace": "kube-node-lease" },
        "spec": { "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micros(Timestamp::now()) },
    })
}

/// As the API has it in leases.
pub fn micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
