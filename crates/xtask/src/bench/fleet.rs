//! A cluster of thousands of nodes at rest: every pod runs and is Ready, every budget is counted. It is written straight
//! into etcd: creating the objects through the API server takes minutes.

pub mod heartbeats;
pub mod nodes;
pub mod pods;
pub mod size;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nodeward_testkit::fleet::KUBELET_LABEL;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::store::{self, Stored};
use nodeward_testkit::{ControlPlane, Options};
use serde_json::{Map, Value, json};

use self::size::{Size, node_name, thousands};

/// Pods get no ServiceAccount and nodes no taint for being new, so the controllers for those can stay off.
const ADMISSION_OFF: &str = "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,LimitRanger,ResourceQuota,PodSecurity,RuntimeClass";

/// When all of it was made.
const MADE: &str = "2026-01-01T00:00:00Z";

/// A control plane that takes less than this share of a core, and for so long, is at rest: after it was filled its parts
/// read what it was filled with, on the same cores.
const REST: f64 = 0.25;
const REST_FOR: Duration = Duration::from_secs(5);
const REST_WITHIN: Duration = Duration::from_mins(5);

/// Starts a control plane for so many objects, fills it, and waits until it is at rest. Budgets are counted, nodes are never
/// found silent, nothing else runs.
pub async fn start(size: Size) -> Result<ControlPlane> {
    let plane = start_empty().await?;
    fill(&plane, size).await?;
    rest(&plane).await?;
    Ok(plane)
}

/// The same with nodes alone, whose kubelets nobody plays.
pub async fn start_nodes(nodes: usize) -> Result<ControlPlane> {
    let plane = start_empty().await?;
    let all = (0..nodes).flat_map(|node| {
        let mut object = nodes::node(node);
        if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
            labels.remove(KUBELET_LABEL);
        }
        let lease = in_namespace("leases", "kube-node-lease", nodes::lease(node));
        [
            Stored::cluster("minions", &node_name(node), stored(object, None)),
            lease,
        ]
    });
    write(&plane, &format!("{} nodes", thousands(nodes)), all).await?;
    rest(&plane).await?;
    Ok(plane)
}

/// Writes objects into etcd.
async fn write(plane: &ControlPlane, title: &str, objects: impl Iterator<Item = Stored>) -> Result<()> {
    let progress = Progress::begin(title);
    let tell = |count| progress.step(&format!("{} objects", thousands(count)));
    let written = store::put(plane, objects, tell).await?;
    progress.done(&format!("{} objects are in etcd", thousands(written)));
    Ok(())
}

async fn start_empty() -> Result<ControlPlane> {
    let progress = Progress::begin("control plane");
    let plane = ControlPlane::start(Options {
        // Roles of remediators are aggregated.
        controllers: [
            "clusterrole-aggregation-controller",
            "serviceaccount-controller",
            "disruption-controller",
        ]
        .map(str::to_owned)
        .to_vec(),
        apiserver_flags: vec![ADMISSION_OFF.to_owned()],
        ..Options::scale()
    })
    .await?;
    progress.done("runs on this machine");
    Ok(plane)
}

async fn fill(plane: &ControlPlane, size: Size) -> Result<()> {
    let namespaces = pods::namespaces(size).map(|name| {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name },
            "spec": { "finalizers": ["kubernetes"] }, "status": { "phase": "Active" },
        });
        Stored::cluster("namespaces", &name, stored(namespace, None))
    });
    let all_nodes =
        (0..size.nodes).map(|node| Stored::cluster("minions", &node_name(node), stored(nodes::node(node), None)));
    // kwok makes the leases of the nodes that it plays.
    let leases =
        (size::played().end..size.nodes).map(|node| in_namespace("leases", "kube-node-lease", nodes::lease(node)));
    let budgets = pods::budgets(size)
        .map(|(namespace, budget)| in_namespace("poddisruptionbudgets", &namespace, counted(budget, size)));
    let all_pods = pods::pods(size).map(|(namespace, pod)| in_namespace("pods", &namespace, running(pod)));
    let all = namespaces.chain(all_nodes).chain(leases).chain(budgets).chain(all_pods);
    write(plane, &format!("{} nodes/pods", size.title()), all).await
}

fn in_namespace(resource: &str, namespace: &str, object: Value) -> Stored {
    let name = name_of(&object).to_owned();
    Stored::namespaced(resource, namespace, &name, stored(object, Some(namespace)))
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// What the API server sets when an object is created.
fn stored(mut object: Value, namespace: Option<&str>) -> Value {
    let (kind, name) = (
        object["kind"].as_str().unwrap_or_default().to_lowercase(),
        name_of(&object).to_owned(),
    );
    let fields = fields_of(&object);
    let metadata = &mut object["metadata"];
    metadata["uid"] = json!(format!("{kind}-{}-{name}", namespace.unwrap_or_default()));
    metadata["creationTimestamp"] = json!(MADE);
    metadata["generation"] = json!(1);
    metadata["managedFields"] = json!([{
        "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": MADE, "fieldsType": "FieldsV1", "fieldsV1": fields,
    }]);
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    object
}

/// The fields as `managedFields` has them.
fn fields_of(value: &Value) -> Value {
    let fields = value.as_object().into_iter().flatten();
    let fields = fields.map(|(key, value)| (format!("f:{key}"), fields_of(value)));
    Value::Object(fields.collect::<Map<_, _>>())
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
    let pods = pods::of_workload(size, name_of(&budget)).map_or(least, |count| count as u64);
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

/// Waits until the control plane has taken in what it was filled with.
async fn rest(plane: &ControlPlane) -> Result<()> {
    let progress = Progress::begin("the control plane takes it in");
    let (began, mut before) = (Instant::now(), plane.cpu());
    loop {
        tokio::time::sleep(REST_FOR).await;
        let now = plane.cpu();
        let share = now.saturating_sub(before).as_secs_f64() / REST_FOR.as_secs_f64();
        before = now;
        if share < REST {
            let memory = plane.apiserver().usage()?.rss_mib;
            progress.done(&format!("at rest; kube-apiserver has {memory:.0} MiB"));
            return Ok(());
        }
        let taken = format!("{:.0} % of a core", 100.0 * share);
        progress.step(&taken);
        ensure!(began.elapsed() < REST_WITHIN, "the control plane still takes {taken}");
    }
}
