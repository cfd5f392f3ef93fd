//! What the act drains: three nodes, and two StatefulSets of three members that can run on no others, one on each. Of
//! each, one member may be down.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use nodeward_testkit::workload::{Budget, End, Start};
use nodeward_testkit::{bulk, fleet, wait, workload};
use serde_json::{Value, json};

use crate::demo::place::{Place, RUN};

const NODES: [&str; NODE_COUNT] = ["db-1", "db-2", "db-3"];

/// How many nodes are drained at once.
pub const NODE_COUNT: usize = 3;

/// When each drain begins, after the first: somebody types three commands in three terminals. They end by luck if one node
/// gets both budgets each time they are free; with these times and those of [`SETS`], `kubectl drain` asking every 5 s, db-2
/// asks when kafka alone is back, and db-3 when mongo is, too.
pub const BEGIN: [Duration; NODE_COUNT] = [Duration::ZERO, Duration::from_millis(1500), Duration::from_millis(3600)];

/// The StatefulSets, with how long a member takes to get Ready. Their budgets have the same names.
pub const SETS: [(&str, Duration); 2] = [
    ("kafka", Duration::from_millis(800)),
    ("mongo", Duration::from_millis(2900)),
];

/// How many members each has: one a node.
const MEMBERS: usize = NODE_COUNT;

const NAMESPACE: &str = "data";

/// The taint that keeps other acts' pods off.
const ACT: &str = "demo.nodeward.dev/act";

/// How long a node is away while it reboots.
pub const AWAY: Duration = Duration::from_millis(1500);

/// Pods that are gone at once come back under their names before Kubernetes' own controller of budgets has seen them go: it
/// then takes the new ones for evicted, for two minutes.
const TERMINATES: End = End::Takes(Duration::from_secs(1));

const READY_WITHIN: Duration = Duration::from_mins(1);

pub fn nodes(place: &Place) -> Vec<String> {
    NODES.map(|name| place.named(name)).to_vec()
}

pub fn namespace(place: &Place) -> String {
    place.named(NAMESPACE)
}

/// Puts it all onto the cluster, and waits until every member is Ready.
pub async fn create(place: &Place) -> Result<()> {
    let client = place.client();
    let nodes = nodes(place);
    let taint = |name| place.node(name).taint(ACT, "", "NoSchedule");
    fleet::create(&client, nodes.iter().map(|name| taint(name))).await?;
    place.create_namespace(NAMESPACE).await?;
    for (set, time_to_ready) in SETS {
        let pods = place
            .pods(None)
            .start(Start::Ready(time_to_ready))
            .end(TERMINATES)
            .spec("tolerations", tolerations(place))
            .spec("affinity", affinity(set, &nodes));
        let namespace = namespace(place);
        let replicas = u32::try_from(MEMBERS)?;
        bulk::create(&client, [pods.stateful_set(&namespace, set, replicas)?]).await?;
        bulk::create(&client, [Budget::max_unavailable(&namespace, set, 1).of(set).build()?]).await?;
    }
    all_ready(place).await.map(drop)
}

fn tolerations(place: &Place) -> Value {
    json!([
        { "key": RUN, "value": place.run(), "effect": "NoSchedule" },
        { "key": ACT, "operator": "Exists", "effect": "NoSchedule" },
    ])
}

/// On these nodes only, no two members on one.
fn affinity(set: &str, nodes: &[String]) -> Value {
    let hostname = "kubernetes.io/hostname";
    json!({
        "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": hostname, "operator": "In", "values": nodes }] },
        ] } },
        "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
            { "topologyKey": hostname, "labelSelector": { "matchLabels": { "app": set } } },
        ] },
    })
}

/// The node of each member, by namespace and name.
pub type Homes = BTreeMap<String, Home>;

/// Where a member runs while nothing is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    pub set: String,
    pub node: String,
}

/// Waits until all members are Ready and their budgets know it; gives where each runs.
pub async fn all_ready(place: &Place) -> Result<Homes> {
    let (client, namespace) = (place.client(), namespace(place));
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), &namespace);
    let mut homes = Homes::new();
    for (set, _) in SETS {
        for pod in workload::ready_pods(&client, &namespace, set, MEMBERS, READY_WITHIN).await? {
            homes.insert(pod.name_any(), home(&pod, set)?);
        }
        wait::until(format!("budget {set} to have room"), READY_WITHIN, || async {
            let status = budgets.get(set).await?.status.context("not counted")?;
            ensure!(status.disruptions_allowed == 1, "{status:?}");
            Ok(())
        })
        .await?;
    }
    Ok(homes)
}

fn home(pod: &Pod, set: &str) -> Result<Home> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    Ok(Home {
        set: set.to_owned(),
        node: node.context("a Ready pod without a node")?,
    })
}

/// All members that there are, Ready or not.
pub async fn members(place: &Place) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(place.client(), &namespace(place));
    Ok(pods.list(&ListParams::default()).await?.items)
}
