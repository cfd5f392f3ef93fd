//! A large cluster at rest: every pod runs and is Ready, every budget is counted.

use anyhow::Result;
use nodeward_testkit::ControlPlane;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::store::{self, Stored};
use serde_json::{Value, json};

use crate::bench::large::size::{Size, node_name, thousands};
use crate::bench::large::{nodes, pods};

/// When all of it was made.
const MADE: &str = "2026-01-01T00:00:00Z";

/// Fills the control plane.
pub async fn fill(plane: &ControlPlane, size: Size) -> Result<()> {
    let progress = Progress::begin(format!("{} nodes/pods", size.title()));
    let tell = |count| progress.step(&format!("{} objects", thousands(count)));
    let namespaces = pods::namespaces(size).map(|name| {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "spec": { "finalizers": ["kubernetes"] }, "status": { "phase": "Active" } });
        Stored::cluster("namespaces", &name, stored(namespace, None, &name))
    });
    let all_nodes = (0..size.nodes).map(|node| {
        let name = node_name(node);
        Stored::cluster("minions", &name, stored(nodes::node(node), None, &name))
    });
    let budgets = pods::budgets(size).map(|(namespace, budget)| {
        let name = name_of(&budget);
        let budget = stored(counted(budget, size), Some(&namespace), &name);
        Stored::namespaced("poddisruptionbudgets", &namespace, &name, budget)
    });
    let all_pods = pods::pods(size).map(|(namespace, pod)| {
        let name = name_of(&pod);
        let pod = stored(running(pod), Some(&namespace), &name);
        Stored::namespaced("pods", &namespace, &name, pod)
    });
    let written = store::put(plane, namespaces.chain(all_nodes).chain(budgets).chain(all_pods), tell).await?;
    progress.done(&format!("{} objects are in etcd", thousands(written)));
    Ok(())
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// What the API server sets when an object is created.
fn stored(mut object: Value, namespace: Option<&str>, name: &str) -> Value {
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    let metadata = &mut object["metadata"];
    metadata["name"] = json!(name);
    metadata["uid"] = json!(format!("{kind}-{}-{name}", namespace.unwrap_or_default()));
    metadata["creationTimestamp"] = json!(MADE);
    metadata["generation"] = json!(1);
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    object
}

fn running(mut pod: Value) -> Value {
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": MADE });
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    pod["status"] = json!({
        "phase": "Running",
        "conditions": conditions,
        "containerStatuses": [{
            "name": "main", "image": pod["spec"]["containers"][0]["image"], "imageID": "sha256:0", "ready": true,
            "started": true, "restartCount": 0, "state": { "running": { "startedAt": MADE } },
        }],
        "hostIP": "10.0.0.1", "podIP": "10.128.0.1", "startTime": MADE, "qosClass": "Burstable",
    });
    pod
}

/// As the disruption controller counts it, every pod being Ready.
fn counted(mut budget: Value, size: Size) -> Value {
    let least = budget["spec"]["minAvailable"].as_u64().unwrap_or_default();
    let name = name_of(&budget);
    let pods = if name.starts_with("app-") {
        pods::of_workload(size, &name) as u64
    } else {
        least
    };
    budget["status"] = json!({
        "observedGeneration": 1,
        "currentHealthy": pods,
        "desiredHealthy": least,
        "disruptionsAllowed": pods.saturating_sub(least),
        "expectedPods": pods,
        "conditions": [],
    });
    budget
}
