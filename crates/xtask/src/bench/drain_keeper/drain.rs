//! What the machine-config-operator does to a node before and after its update: cordon and evict, uncordon.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, EvictParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use nodeward_api::drain_clock::DrainClock;
use nodeward_api::{annotation, condition};
use nodeward_testkit::{bulk, fleet, wait};
use serde_json::{Value, json};

use crate::bench::fleet::pods::{self, PartPod};
use crate::bench::fleet::size::{Size, node_name};

/// How long drain-keeper may take to say that pods block a node, and to be done with it.
const SAID_WITHIN: Duration = Duration::from_mins(1);

/// A moment as the API server stores it.
pub fn this_second() -> Result<Timestamp> {
    Ok(Timestamp::from_second(Timestamp::now().as_second())?)
}

/// Cordons nodes, all with the same `timeAdded`.
pub async fn cordon(client: &Client, nodes: &[usize], since: Timestamp) -> Result<()> {
    let rendered = "rendered-worker-4d8f1c8a0b2e5f6a9b7c3d2e1f0a9b8c";
    let patch = json!({
        "metadata": { "annotations": {
            "machineconfiguration.openshift.io/desiredConfig": rendered,
            "machineconfiguration.openshift.io/desiredDrain": format!("drain-{rendered}"),
            "machineconfiguration.openshift.io/state": "Working",
        } },
        "spec": {
            "unschedulable": true,
            "taints": [{ "key": fleet::CORDON_TAINT, "effect": "NoSchedule", "timeAdded": since }],
        },
    });
    patch_all(client, nodes, &patch).await
}

pub async fn uncordon(client: &Client, nodes: &[usize]) -> Result<()> {
    let patch = json!({ "spec": { "unschedulable": null, "taints": null } });
    patch_all(client, nodes, &patch).await
}

async fn patch_all(client: &Client, nodes: &[usize], patch: &Value) -> Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    let (api, params, patch) = (&api, &PatchParams::default(), &Patch::Merge(patch));
    let patch_one = |node: &usize| {
        let name = node_name(*node);
        async move {
            let patched = api.patch_metadata(&name, params, patch).await;
            patched.with_context(|| format!("patch node {name}"))
        }
    };
    bulk::each(nodes, patch_one).await.map(drop)
}

/// Evicts what lets itself be evicted.
pub async fn evict(client: &Client, size: Size, nodes: &[usize]) -> Result<()> {
    let evicted = nodes
        .iter()
        .flat_map(|node| pods::parts(*node, size))
        .filter(|pod| pod.part.is_evicted_by_the_drain());
    let evict_one = |pod: PartPod| async move {
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
        let params = EvictParams {
            delete_options: Some(DeleteParams::default()),
            post_options: PostParams::default(),
        };
        let evicted = api.evict(&pod.name, &params).await;
        evicted.with_context(|| format!("evict {}", pod.name))
    };
    bulk::each(evicted, evict_one).await.map(drop)
}

/// Those pods of these nodes that exist.
pub async fn pods_now(client: &Client, size: Size, nodes: &[usize]) -> Result<Vec<(PartPod, ObjectMeta)>> {
    let mut wanted: BTreeMap<(String, String), PartPod> = nodes
        .iter()
        .flat_map(|node| pods::parts(*node, size))
        .map(|pod| ((pod.namespace.clone(), pod.name.clone()), pod))
        .collect();
    let mut namespaces: Vec<String> = nodes.iter().map(|node| pods::namespace_of(*node)).collect();
    namespaces.dedup();
    let mut found = Vec::new();
    for namespace in namespaces {
        let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        for pod in api.list_metadata(&ListParams::default()).await? {
            found.extend(
                wanted
                    .remove(&(namespace.clone(), pod.name_any()))
                    .map(|part| (part, pod.metadata)),
            );
        }
    }
    Ok(found)
}

/// Waits for pods of these nodes: `is_awaited` says which must no longer be as they are.
pub async fn until_none(
    client: &Client,
    size: Size,
    nodes: &[usize],
    deadline: Duration,
    is_awaited: impl Fn(&PartPod, &ObjectMeta) -> bool,
) -> Result<Vec<(PartPod, ObjectMeta)>> {
    wait::until("pods of drained nodes", deadline, || async {
        let pods = pods_now(client, size, nodes).await?;
        let awaited = pods.iter().filter(|(part, pod)| is_awaited(part, pod));
        let names: Vec<&str> = awaited.map(|(part, _)| part.name.as_str()).collect();
        ensure!(names.is_empty(), "{} are waited for, {} for one", names.len(), names[0]);
        Ok(pods)
    })
    .await
}

/// When the clocks of these nodes' drains started; they have started at the same moment.
pub async fn clock_start(client: &Client, nodes: &[usize]) -> Result<Timestamp> {
    let starts = each_node(client, nodes, "drain-keeper to start the clock of", |node| {
        let clock = node.annotations().get(annotation::DRAIN_CLOCK);
        Ok(DrainClock::parse(clock.context("it has no clock yet")?)?.start)
    });
    let mut starts: BTreeSet<Timestamp> = starts.await?.into_iter().collect();
    ensure!(starts.len() == 1, "the clocks have started at {starts:?}");
    starts.pop_first().context("no node")
}

/// Waits until nothing of drain-keeper's is left on these nodes.
pub async fn all_forgotten(client: &Client, nodes: &[usize]) -> Result<()> {
    each_node(client, nodes, "drain-keeper to be done with", |node| {
        let has_clock = node.annotations().contains_key(annotation::DRAIN_CLOCK);
        ensure!(!has_clock, "{:?}", node.annotations());
        ensure!(!is_blocked(node), "it is still said to be blocked");
        Ok(())
    })
    .await
    .map(drop)
}

/// Waits until drain-keeper has said of each of these nodes that pods block it.
pub async fn all_blocked(client: &Client, nodes: &[usize]) -> Result<()> {
    each_node(client, nodes, "pods to block", |node| {
        ensure!(is_blocked(node), "none is said to");
        Ok(())
    })
    .await
    .map(drop)
}

/// Waits until each node has what is asked for, and returns that.
async fn each_node<T>(
    client: &Client,
    nodes: &[usize],
    what: &str,
    read: impl Fn(&Node) -> Result<T>,
) -> Result<Vec<T>> {
    let api: Api<Node> = Api::all(client.clone());
    let mut found = Vec::with_capacity(nodes.len());
    for node in nodes {
        let name = node_name(*node);
        let read_one = || async { read(&api.get(&name).await?) };
        found.push(wait::until(format!("{what} {name}"), SAID_WITHIN, read_one).await?);
    }
    Ok(found)
}

fn is_blocked(node: &Node) -> bool {
    fleet::condition(node, condition::DRAIN_BLOCKED).is_some_and(|blocked| blocked.status == "True")
}
