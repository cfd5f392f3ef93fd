//! What the act drains: three nodes, and two StatefulSets of three members that can run on no others, one on each. Of
//! each, one member may be down.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use nodeward_testkit::workload::{Budget, Start};
use nodeward_testkit::{bulk, fleet, workload};
use serde_json::{Value, json};

use super::waits::Member;
use crate::demo::environment::{Environment, RUN};
use crate::workloads::{TERMINATES, disruptions_allowed, is_up, pinned};

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

const READY_WITHIN: Duration = Duration::from_mins(1);

pub fn nodes(env: &Environment) -> Vec<String> {
    NODES.map(|name| env.named(name)).to_vec()
}

pub fn namespace(env: &Environment) -> String {
    env.named(NAMESPACE)
}

/// Puts it all onto the cluster, and waits until every member is Ready.
pub async fn create(env: &Environment) -> Result<()> {
    let client = env.client();
    let nodes = nodes(env);
    let taint = |name| env.node(name).taint(ACT, "", "NoSchedule");
    fleet::create(&client, nodes.iter().map(|name| taint(name))).await?;
    env.create_namespace(NAMESPACE).await?;
    for (set, time_to_ready) in SETS {
        let pods = env
            .pods(None)
            .start(Start::Ready(time_to_ready))
            .end(TERMINATES)
            .spec("tolerations", tolerations(env));
        let pods = pinned(pods, set, &nodes);
        let namespace = namespace(env);
        let replicas = u32::try_from(MEMBERS)?;
        bulk::create(&client, [pods.stateful_set(&namespace, set, replicas)?]).await?;
        bulk::create(&client, [Budget::max_unavailable(&namespace, set, 1).of(set).build()?]).await?;
    }
    all_ready(env).await.map(drop)
}

/// Of the nodes of all acts.
pub fn tolerations(env: &Environment) -> Value {
    json!([
        { "key": RUN, "value": &env.run, "effect": "NoSchedule" },
        { "key": ACT, "operator": "Exists", "effect": "NoSchedule" },
    ])
}

/// Waits until all members are Ready and their budgets know it; gives where each runs.
pub async fn all_ready(env: &Environment) -> Result<Vec<Member>> {
    let (client, namespace) = (env.client(), namespace(env));
    let mut members = Vec::new();
    for (set, _) in SETS {
        for pod in workload::ready_pods(&client, &namespace, set, MEMBERS, READY_WITHIN).await? {
            let home = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            members.push(Member {
                name: pod.name_any(),
                set: set.to_owned(),
                home: home.context("a Ready pod without a node")?,
                is_up: true,
            });
        }
        disruptions_allowed(client.clone(), &namespace, set, 1, READY_WITHIN).await?;
    }
    Ok(members)
}

/// Looks which members are up now; one that does not exist is down.
pub async fn look_at(env: &Environment, members: &mut [Member]) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(env.client(), &namespace(env));
    let pods = pods.list(&ListParams::default()).await?;
    let up: BTreeSet<String> = pods
        .iter()
        .filter(|pod| is_up(pod))
        .map(ResourceExt::name_any)
        .collect();
    for member in members {
        member.is_up = up.contains(&member.name);
    }
    Ok(())
}
