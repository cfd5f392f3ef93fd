//! Nodes as clusters have them, a few kilobytes each, and their leases.

use jiff::Timestamp;
use nodeward_testkit::fleet;
use serde_json::{Value, json};

use super::size::{self, node_name};

/// Marks the nodes that stay cordoned throughout.
pub const POOL_LABEL: &str = "bench.nodeward.dev/pool";

/// How many images a kubelet reports: its `--node-status-max-images` is 50, and most nodes have fewer.
const IMAGES: usize = 20;

/// A Ready node, but for what is its own.
const NODE: &str = include_str!("../../../objects/node.json");

/// What a kubelet reports of a healthy node, but for the time.
const CONDITIONS: &str = include_str!("../../../objects/conditions.json");

/// A Ready node.
pub fn node(node: usize) -> Value {
    let zone = format!("region-1{}", ["a", "b", "c"][node % 3]);
    let text = NODE
        .replace("{name}", &node_name(node))
        .replace("{zone}", &zone)
        .replace("{number}", &format!("{node:05}"))
        .replace("{id}", &format!("{node:012x}"))
        .replace("{address}", &format!("10.0.{}.{}", node / 250, node % 250 + 1))
        .replace("{subnet}", &format!("10.{}.{}.0/24", 128 + node / 256, node % 256))
        .replace("{mac}", &format!("0e:00:00:00:{:02x}:{:02x}", node / 256, node % 256));
    let mut object: Value = serde_json::from_str(&text).unwrap_or_default();
    object["status"]["conditions"] = conditions(Timestamp::now());
    object["status"]["images"] = images(node);
    if size::played().contains(&node) {
        object["metadata"]["labels"][fleet::KUBELET_LABEL] = json!("kwok");
    }
    if size::resting().contains(&node) {
        object["metadata"]["labels"][POOL_LABEL] = json!("resting");
    }
    object
}

/// What a kubelet reports of a healthy node.
pub fn conditions(heartbeat: Timestamp) -> Value {
    let at = heartbeat.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    serde_json::from_str(&CONDITIONS.replace("{at}", &at)).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_templates_are_filled() {
        let node = node(100);
        assert_eq!(node["metadata"]["labels"][POOL_LABEL], "resting");
        assert_eq!(
            node["metadata"]["labels"]["kubernetes.io/hostname"],
            node_name(100).as_str()
        );
        let gateway = node["metadata"]["annotations"]["k8s.ovn.org/l3-gateway-config"]
            .as_str()
            .unwrap();
        let gateway: Value = serde_json::from_str(gateway).unwrap();
        assert_eq!(gateway["default"]["mac-address"], "0e:00:00:00:00:64");
        let conditions = node["status"]["conditions"].as_array().unwrap();
        assert!(
            conditions[3]["lastHeartbeatTime"]
                .as_str()
                .unwrap()
                .parse::<Timestamp>()
                .is_ok()
        );
        let text = node.to_string();
        for placeholder in ["{name}", "{zone}", "{number}", "{id}", "{address}", "{subnet}", "{mac}"] {
            assert!(!text.contains(placeholder), "{placeholder} is left");
        }
    }
}
