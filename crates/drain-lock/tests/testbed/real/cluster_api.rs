//! Cluster API's Machine controller drains in the order of its MachineDrainRules, and deletes the node.

use anyhow::{Context, Result, bail, ensure};
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::drainers::{ClusterApi, node_of};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use nodeward_testkit::{Options, bulk};
use serde_json::{Value, json};

use super::{Figures, Stage, compare, compare_configured, show_log};
use crate::environment::{APPS, Environment};

pub const POOL: &str = "workers";
pub const SELECTOR: &str = "pool=workers";

pub fn small(tier: &str) -> PodTemplate {
    let containers =
        json!([{ "name": "main", "image": "registry.example/app:1", "resources": { "requests": { "cpu": "100m" } } }]);
    PodTemplate::new().spec("containers", containers).label("tier", tier)
}

/// Pods with this label leave in this order.
pub fn rule(tier: &str, order: u32) -> Value {
    json!({
        "drain": { "behavior": "Drain", "order": order },
        "pods": [{ "selector": { "matchLabels": { "tier": tier } } }],
    })
}

/// The pods of one tier may move; those of the other are, like its database, one a node. drain-lock's leaders are killed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_api_rolls_machines_in_the_order_of_its_rules() -> Result<()> {
    Box::pin(compare("Cluster API rolls three Machines, rules in two orders", roll)).await
}

async fn roll(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let cluster = ClusterApi::start(&env.plane).await?;
    cluster.drain_rule("data-first", rule("data", 0)).await?;
    cluster.drain_rule("web-later", rule("web", 10)).await?;
    let deletion = json!({ "nodeDrainTimeoutSeconds": 0 });
    cluster.add_machines(POOL, 3, deletion).await?;
    let old = cluster.machines(SELECTOR).await?;
    let old: Vec<String> = old.iter().filter_map(node_of).map(str::to_owned).collect();
    let apart = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
        "labelSelector": { "matchLabels": { "app": "data" } }, "topologyKey": "kubernetes.io/hostname",
    }] } });
    let three = ["", "", ""];
    env.add_deployment("web", three.len(), small("web")).await?;
    env.add_deployment("data", three.len(), small("data").spec("affinity", apart))
        .await?;
    let begun = stage.begin(ClusterApi::USER)?;
    cluster.roll(POOL).await?;
    let replaced = wait::until("all Machines to be replaced", secs(420), || async {
        let machines = cluster.machines(SELECTOR).await?;
        let nodes: Vec<&str> = machines.iter().filter_map(node_of).collect();
        let is_new = |node: &&str| !old.iter().any(|old| old == node);
        let drains: Vec<&str> = machines
            .iter()
            .flat_map(|machine| machine.data["status"]["conditions"].as_array().into_iter().flatten())
            .filter(|condition| condition["type"] == "Deleting" && condition["status"] == "True")
            .filter_map(|condition| condition["message"].as_str())
            .collect();
        ensure!(nodes.len() == 3 && nodes.iter().all(is_new), "{nodes:?}; {drains:?}");
        for app in ["web", "data"] {
            stage.all_ready(app, 3).await?;
        }
        Ok(())
    });
    let outcome = tokio::select! {
        outcome = replaced => outcome,
        stopped = kill_leaders(stage) => stopped,
    };
    show_log("Cluster API", cluster.process(), &outcome);
    stage.released(secs(60)).await?;
    begun.end(outcome).await
}

/// Kills drain-lock's leader again and again; its successor has to wait until the lease is over. Ends only with an error.
async fn kill_leaders(stage: &Stage) -> Result<()> {
    loop {
        tokio::time::sleep(secs(40)).await;
        if let Some(lock) = stage.lock() {
            lock.process().restart()?;
        }
    }
}

/// Cluster API gives a drain up after `nodeDrainTimeoutSeconds`, and deletes the node with the pod that its budget does not let go.
#[tokio::test(flavor = "multi_thread")]
async fn drain_that_cluster_api_gives_up_keeps_no_disruption() -> Result<()> {
    Box::pin(compare("Cluster API, nodeDrainTimeout past a budget", give_up)).await
}

async fn give_up(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let cluster = ClusterApi::start(&env.plane).await?;
    let deletion = json!({ "nodeDrainTimeoutSeconds": 20 });
    cluster.add_machines(POOL, 2, deletion).await?;
    env.add_deployment("web", 2, small("web")).await?;
    bulk::create(&env.client, [small("closed").deployment(APPS, "closed", 1)?]).await?;
    workload::ready_pods(&env.client, APPS, "closed", 1, secs(60)).await?;
    let closed = Budget::max_unavailable(APPS, "closed", 0).of("closed").build()?;
    bulk::create(&env.client, [closed]).await?;
    env.counts_healthy("closed", 1).await?;
    let machines = cluster.machines(SELECTOR).await?;
    let pods = env
        .pods()
        .list(&ListParams::default().labels("app=closed"))
        .await?
        .items;
    let node = pods.iter().find_map(|pod| pod.spec.as_ref()?.node_name.clone());
    let node = node.context("no pod")?;
    let machine = machines.iter().find(|machine| node_of(machine) == Some(&node));

    let begun = stage.begin(ClusterApi::USER)?;
    cluster
        .delete_machine(&machine.context("no Machine")?.name_any())
        .await?;
    let outcome = wait::until("the node to be replaced", secs(240), || async {
        ensure!(env.nodes().get_opt(&node).await?.is_none(), "{node} is there");
        stage.all_ready("closed", 1).await?;
        stage.all_ready("web", 2).await
    })
    .await;
    show_log("Cluster API", cluster.process(), &outcome);
    stage.released(secs(60)).await?;
    begun.end(outcome).await
}

/// Cluster API asks in the order of names, twenty a second for ten seconds at a time. The first sixty may not go while their
/// budget is spent; behind them are fifty that may.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_api_reaches_movable_pods_behind_held_ones() -> Result<()> {
    Box::pin(compare(
        "Cluster API drains 110 pods, 60 held before 50 movable",
        drain_many,
    ))
    .await
}

async fn drain_many(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let cluster = ClusterApi::start(&env.plane).await?;
    cluster
        .add_machines(POOL, 2, json!({ "nodeDrainTimeoutSeconds": 0 }))
        .await?;
    let machines = cluster.machines(SELECTOR).await?;
    let nodes: Vec<&str> = machines.iter().filter_map(node_of).collect();
    ensure!(nodes.len() == 2, "{nodes:?}");
    // The pods begin on the first node; the second is for those that may move.
    nodeward_testkit::fleet::cordon(&env.client, nodes[1]).await?;
    let held = small("held").node_selector("kubernetes.io/hostname", nodes[0]);
    let tiny =
        json!([{ "name": "main", "image": "registry.example/app:1", "resources": { "requests": { "cpu": "10m" } } }]);
    env.add_deployment("a-held", 60, held.spec("containers", tiny.clone()))
        .await?;
    env.add_deployment("z-free", 50, small("free").spec("containers", tiny))
        .await?;
    env.uncordon(nodes[1]).await?;
    let begun = stage.begin(ClusterApi::USER)?;
    cluster.delete_machine(&machines[0].name_any()).await?;
    let outcome = wait::until("each movable pod to have been asked for", secs(180), || async {
        let asked = env.plane.audit().since(begun.since())?.writes();
        let asked = asked.only(|request| request.resource == "pods/eviction" && request.name.starts_with("z-free"));
        let names: std::collections::BTreeSet<_> = asked.0.iter().map(|request| request.name.clone()).collect();
        ensure!(names.len() >= 50, "{} of 50", names.len());
        Ok(())
    })
    .await;
    begun.end(outcome).await
}

/// A Machine whose infrastructure never goes keeps its node, cordoned and empty. The drain of that node ends all the same, and the
/// next node is drained.
#[tokio::test(flavor = "multi_thread")]
async fn provider_that_never_answers_keeps_no_disruption() -> Result<()> {
    let config = json!({ "auto": { "quietPeriod": "30s" } });
    Box::pin(compare_configured(
        "Cluster API, a provider that never answers",
        &config,
        drain_for_silent_provider,
    ))
    .await
}

async fn drain_for_silent_provider(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let cluster = ClusterApi::start(&env.plane).await?;
    let deletion = json!({ "nodeDrainTimeoutSeconds": 0 });
    cluster.add_machines(POOL, 3, deletion).await?;
    let machines = cluster.machines(SELECTOR).await?;
    // All pods begin on the two nodes that go.
    let leaving = &machines[..2];
    let nodes: Vec<&str> = leaving.iter().filter_map(node_of).collect();
    ensure!(nodes.len() == 2, "{nodes:?}");
    let stays = node_of(&machines[2]).context("no node")?;
    nodeward_testkit::fleet::cordon(&env.client, stays).await?;
    env.add_app("web", 3, small("web")).await?;
    env.uncordon(stays).await?;
    cluster.silence_provider().await?;

    let begun = stage.begin(ClusterApi::USER)?;
    let outcome = async {
        for (machine, node) in leaving.iter().zip(&nodes) {
            cluster.delete_machine(&machine.name_any()).await?;
            wait::until(format!("{node} to be empty"), secs(240), || async {
                ensure!(env.pods_on(node).await?.is_empty(), "pods are left");
                stage.all_ready("web", 3).await
            })
            .await?;
            stage.released(secs(120)).await?;
        }
        let left = cluster.machines(SELECTOR).await?;
        let is_there = |machine: &&DynamicObject| left.iter().any(|left| left.name_any() == machine.name_any());
        ensure!(leaving.iter().all(|machine| is_there(&machine)), "a Machine went");
        for node in &nodes {
            let node = env.nodes().get(node).await?;
            ensure!(node.spec.is_some_and(|spec| spec.unschedulable == Some(true)));
        }
        Ok(())
    }
    .await;
    show_log("Cluster API", cluster.process(), &outcome);
    begun.end(outcome).await
}

/// The rule of a pod keeps a drain of our own waiting, and then leaves the pod on its node.
#[tokio::test(flavor = "multi_thread")]
async fn drain_of_our_own_goes_by_machine_drain_rules() -> Result<()> {
    let env = Environment::with_options(&[], Options::patient()).await?;
    let cluster = ClusterApi::start(&env.plane).await?;
    cluster
        .add_machines(POOL, 2, json!({ "nodeDrainTimeoutSeconds": 0 }))
        .await?;
    let machines = cluster.machines(SELECTOR).await?;
    let nodes: Vec<&str> = machines.iter().filter_map(node_of).collect();
    let &[node, other] = nodes.as_slice() else {
        bail!("{nodes:?}");
    };
    let rule = |behavior: &str| {
        json!({
            "drain": { "behavior": behavior },
            "machines": [{ "selector": { "matchLabels": { "pool": POOL } } }],
            "pods": [{
                "selector": { "matchLabels": { "tier": "job" } },
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": APPS } },
            }],
        })
    };
    cluster.drain_rule("jobs", rule("WaitCompleted")).await?;
    // Both pods begin on the node that is drained.
    nodeward_testkit::fleet::cordon(&env.client, other).await?;
    env.add_deployment("job", 1, small("job")).await?;
    env.add_deployment("web", 1, small("web")).await?;
    env.uncordon(other).await?;
    let lock = env.start(json!({})).await?;
    env.drain(node, json!({})).await?;
    env.status_that(node, "to wait for the pod of the rule", secs(60), |status| {
        let mut blocked = status.blocked_by.iter();
        blocked.any(|blocked| blocked.reason == LockReason::WaitCompleted)
    })
    .await?;
    cluster.drain_rule("jobs", rule("Skip")).await?;
    env.phase(node, Phase::Drained, secs(120)).await?;
    let left = env.pods_on(node).await?;
    let tiers: Vec<_> = left.iter().filter_map(|pod| pod.labels().get("tier")).collect();
    ensure!(tiers == ["job"], "{tiers:?}");
    env.end([lock]).await
}
