//! Karpenter replaces and removes nodes: what leaves with a node needs no claim, and each pod goes as its budget allows.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use nodeward_api::reason::LockReason;
use nodeward_testkit::drainers::{Karpenter, NodePool, interrupt};
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use nodeward_testkit::{bulk, fleet};
use serde_json::{Value, json};

use super::{Figures, Stage, compare, show_log};
use crate::environment::{APPS, Environment};

const POOL: &str = "default";
const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

/// Three fit a node of the pool, which has 4 CPUs and keeps a little for itself.
fn a_third() -> PodTemplate {
    of_pool("1200m")
}

/// A pod for the pool's nodes that asks for so much CPU.
fn of_pool(cpu: &str) -> PodTemplate {
    let resources = json!({ "requests": { "cpu": cpu } });
    let containers = json!([{ "name": "main", "image": "registry.example/app:1", "resources": resources }]);
    PodTemplate::new()
        .spec("containers", containers)
        .node_selector("pool", POOL)
}

fn pool() -> NodePool {
    NodePool::new(POOL, 4)
}

async fn scale(env: &Environment, app: &str, replicas: usize) -> Result<()> {
    let scale = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    let deployments: kube::Api<k8s_openapi::api::apps::v1::Deployment> =
        kube::Api::namespaced(env.client.clone(), APPS);
    deployments.patch(app, &PatchParams::default(), &scale).await?;
    workload::ready_pods(&env.client, APPS, app, replicas, secs(180)).await?;
    env.counts_healthy(app, replicas).await
}

/// The nodes that Karpenter has made, of whichever NodePool.
async fn nodes_of_pool(env: &Environment) -> Result<Vec<Node>> {
    let selected = ListParams::default().labels(&format!("pool={POOL}"));
    Ok(env.nodes().list(&selected).await?.items)
}

/// Waits until the pool's nodes are so, and all pods of the application are Ready and none is on its way out.
async fn settled(
    stage: &Stage,
    pods: usize,
    what: &str,
    deadline: Duration,
    is_so: impl Fn(&[Node]) -> bool,
) -> Result<()> {
    wait::until(what, deadline, || async {
        let nodes = nodes_of_pool(&stage.env).await?;
        let names: Vec<String> = nodes.iter().map(ResourceExt::name_any).collect();
        let leaving = nodes.iter().any(|node| node.metadata.deletion_timestamp.is_some());
        ensure!(is_so(&nodes) && !leaving, "nodes {names:?}, one is leaving: {leaving}");
        stage.all_ready("web", pods).await
    })
    .await
}

/// On full nodes the pods of a node that goes are Pending until Karpenter has made another one.
#[tokio::test(flavor = "multi_thread")]
async fn karpenter_interrupts_drifts_and_consolidates_full_and_half_empty_nodes() -> Result<()> {
    Box::pin(compare("Karpenter interruption, drift, consolidation", replace_nodes)).await
}

async fn replace_nodes(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let karpenter = Karpenter::start(&env.plane).await?;
    pool().put(&env.client).await?;
    env.add_deployment("web", 6, a_third()).await?;
    let full = nodes_of_pool(env).await?;
    ensure!(full.len() == 2, "{} nodes", full.len());
    let begun = stage.begin(Karpenter::USER)?;
    let outcome = async {
        // An interruption of a full node.
        let interrupted = full[0].name_any();
        interrupt(&env.client, &interrupted).await?;
        settled(stage, 6, "the interrupted node to be replaced", secs(150), |nodes| {
            nodes.len() == 2 && nodes.iter().all(|node| node.name_any() != interrupted)
        })
        .await?;
        // Another label on the pool: every node drifts, all of them at once.
        let drifted = pool().label("generation", "2");
        drifted.put(&env.client).await?;
        let is_new = |node: &Node| node.labels().get("generation").map(String::as_str) == Some("2");
        settled(stage, 6, "drifted nodes to be replaced", secs(240), |nodes| {
            nodes.len() == 2 && nodes.iter().all(is_new)
        })
        .await?;
        // Half of the pods go; what is left fits one node.
        scale(env, "web", 3).await?;
        drifted
            .consolidates("WhenEmptyOrUnderutilized", "0s")
            .put(&env.client)
            .await?;
        settled(stage, 3, "nodes to be consolidated", secs(240), |nodes| {
            nodes.len() == 1
        })
        .await
    };
    let outcome = outcome.await;
    show_log("Karpenter", karpenter.process(), &outcome);
    stage.released(secs(60)).await?;
    begun.end(outcome).await
}

/// A cordon does not keep Karpenter from deleting a node that a drain has emptied; the node's `karpenter.sh/do-not-disrupt`
/// does, for as long as the drain is open.
#[tokio::test(flavor = "multi_thread")]
async fn node_that_is_drained_is_not_deleted_as_empty() -> Result<()> {
    Box::pin(compare("Karpenter WhenEmpty beside a drain", drain_beside_when_empty)).await
}

async fn drain_beside_when_empty(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let _karpenter = Karpenter::start(&env.plane).await?;
    pool().put(&env.client).await?;
    env.add_deployment("web", 6, a_third()).await?;
    scale(env, "web", 4).await?;
    let first = nodes_of_pool(env).await?[0].name_any();
    pool().consolidates("WhenEmpty", "5s").put(&env.client).await?;
    let begun = stage.begin(Karpenter::USER)?;
    let outcome = if stage.lock().is_some() {
        env.drain(&first, json!({})).await.map(drop)
    } else {
        let kubectl = Kubectl::of(&env.plane)?;
        kubectl
            .run(["drain", &first, "--ignore-daemonsets"], secs(180))
            .await
            .map(drop)
    };
    let outcome = match outcome {
        Ok(()) => goes_or_is_kept(env, &first).await,
        Err(error) => Err(error),
    };
    if let Ok(is_kept) = outcome {
        ensure!(is_kept == stage.lock().is_some(), "{first} is kept: {is_kept}");
        if is_kept {
            let stays = async || env.nodes().get(&first).await.map(drop).map_err(Into::into);
            wait::throughout("the drained node stays", secs(20), stays).await?;
            env.uncordon(&first).await?;
        }
    }
    stage.released(secs(60)).await?;
    workload::ready_pods(&env.client, APPS, "web", 4, secs(120)).await?;
    begun.end(outcome.map(drop)).await
}

/// Waits until the drained node is gone, or its annotation says that it is to be kept; tells which.
async fn goes_or_is_kept(env: &Environment, name: &str) -> Result<bool> {
    wait::until(format!("{name} to go, or to be kept"), secs(180), || async {
        let Some(node) = env.nodes().get_opt(name).await? else {
            return Ok(false);
        };
        let kept = node.annotations().get(DO_NOT_DISRUPT).map(String::as_str) == Some("true");
        let left = env.pods_on(name).await?.len();
        ensure!(kept && left == 0, "kept: {kept}, {left} pods are left");
        Ok(true)
    })
    .await
}

/// Both nodes are full and share a budget of one: a person drains one of them while Karpenter takes the other away.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_node_beside_a_drain_on_a_full_cluster() -> Result<()> {
    Box::pin(compare("Karpenter interruption beside a drain", interrupt_beside_drain)).await
}

async fn interrupt_beside_drain(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let karpenter = Karpenter::start(&env.plane).await?;
    pool().put(&env.client).await?;
    env.add_deployment("web", 6, a_third()).await?;
    let full = nodes_of_pool(env).await?;
    ensure!(full.len() == 2, "{} nodes", full.len());
    let (drained, interrupted) = (full[0].name_any(), full[1].name_any());
    let begun = stage.begin(Karpenter::USER)?;
    let outcome = async {
        let kubectl = Kubectl::of(&env.plane)?;
        let drain = if stage.lock().is_some() {
            // Nobody knows that a node comes once a pod waits for one: who does cordons the node.
            env.drain(&drained, json!({})).await?;
            env.status_that(&drained, "to say what begins it", secs(60), |status| {
                let mut blocked = status.blocked_by.iter();
                blocked.any(|one| {
                    one.reason == LockReason::NeedExceedsBudget
                        && one.message.contains(&format!("kubectl cordon {drained}"))
                })
            })
            .await?;
            fleet::cordon(&env.client, &drained).await?;
            None
        } else {
            Some(kubectl.start(["drain", &drained, "--ignore-daemonsets"])?)
        };
        interrupt(&env.client, &interrupted).await?;
        wait::until("both nodes to be empty, and one to be gone", secs(300), || async {
            let left = env.pods_on(&drained).await?.len();
            let gone = env.nodes().get_opt(&interrupted).await?.is_none();
            ensure!(
                gone && left == 0,
                "{interrupted} is gone: {gone}; {left} pods are left on {drained}"
            );
            stage.all_ready("web", 6).await
        })
        .await?;
        if let Some(drain) = drain {
            ensure!(
                drain.process().wait_for_exit(secs(60)).await?.success(),
                "{}",
                drain.text()
            );
        }
        env.uncordon(&drained).await
    };
    let outcome = outcome.await;
    show_log("Karpenter", karpenter.process(), &outcome);
    stage.released(secs(60)).await?;
    begun.end(outcome).await
}

/// The nodes of a pool are replaced by hand: all are cordoned, and drained one after another. No pod finds room before Karpenter has
/// made a node for one that waits, and drained nodes stay cordoned.
#[tokio::test(flavor = "multi_thread")]
async fn full_nodes_are_drained_one_after_another() -> Result<()> {
    Box::pin(compare("kubectl drain of full nodes beside Karpenter", replace_by_hand)).await
}

async fn replace_by_hand(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let karpenter = Karpenter::start(&env.plane).await?;
    pool().put(&env.client).await?;
    env.add_deployment("web", 6, a_third()).await?;
    let full: Vec<String> = nodes_of_pool(env).await?.iter().map(ResourceExt::name_any).collect();
    ensure!(full.len() == 2, "{} nodes", full.len());
    let begun = stage.begin("admin")?;
    let outcome = async {
        let kubectl = Kubectl::of(&env.plane)?;
        for node in &full {
            fleet::cordon(&env.client, node).await?;
        }
        for node in &full {
            // A drain that waits in vain for room goes on without its pods after five minutes.
            let args = ["drain", node, "--ignore-daemonsets", "--timeout=240s"];
            kubectl.run(args, secs(250)).await?;
        }
        workload::ready_pods(&env.client, APPS, "web", 6, secs(180)).await?;
        for node in &full {
            env.uncordon(node).await?;
        }
        anyhow::Ok(())
    };
    let outcome = outcome.await;
    show_log("Karpenter", karpenter.process(), &outcome);
    stage.released(secs(60)).await?;
    begun.end(outcome).await
}

/// Ten claims expire within moments of each other, as no budget of a NodePool holds that up, and each node has three minutes: a
/// StatefulSet of three, of which one may be away, and pods that fill a node each.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_expire_at_once_with_a_grace_period_all_go() -> Result<()> {
    Box::pin(compare("Karpenter expires ten nodes, terminationGracePeriod", expire)).await
}

async fn expire(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let karpenter = Karpenter::start(&env.plane).await?;
    let with_time = |pool: NodePool| pool.claims("terminationGracePeriod", json!("3m"));
    let short_lived = with_time(pool()).claims("expireAfter", json!("2m"));
    short_lived.put(&env.client).await?;
    let apart: Value = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
        "labelSelector": { "matchLabels": { "app": "web" } }, "topologyKey": "kubernetes.io/hostname",
    }] } });
    let web = env.add_app("web", 3, a_third().spec("affinity", apart));
    let alone = env.add_deployment("alone", 7, of_pool("3"));
    Box::pin(futures::future::try_join(web, alone)).await?;
    let nodes = nodes_of_pool(env).await?;
    let is_leaving = |node: &Node| node.metadata.deletion_timestamp.is_some();
    ensure!(nodes.len() == 10 && !nodes.iter().any(is_leaving), "{nodes:?}");
    let old: Vec<String> = nodes.iter().map(ResourceExt::name_any).collect();
    // The nodes that come in their place do not expire. They are another pool's: a change of `expireAfter` would be a drift.
    let lasting = with_time(NodePool::new("lasting", 4)).label("pool", POOL);
    lasting.weight(10).put(&env.client).await?;
    let begun = stage.begin(Karpenter::USER)?;
    let outcome = async {
        settled(stage, 3, "all nodes to be replaced", secs(420), |nodes| {
            nodes.len() == 10 && nodes.iter().all(|node| !old.contains(&node.name_any()))
        })
        .await?;
        stage.all_ready("alone", 7).await
    };
    let outcome = outcome.await;
    show_log("Karpenter", karpenter.process(), &outcome);
    stage.released(secs(60)).await?;
    begun.end(outcome).await
}

/// A budget lets nothing go. Karpenter deletes its pod so long before the node's time is over as the pod has grace: it is told.
#[tokio::test(flavor = "multi_thread")]
async fn deletion_past_budget_by_karpenter_is_told() -> Result<()> {
    Box::pin(compare("Karpenter, terminationGracePeriod past a budget", bypass)).await
}

async fn bypass(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let _karpenter = Karpenter::start(&env.plane).await?;
    pool()
        .claims("terminationGracePeriod", json!("20s"))
        .put(&env.client)
        .await?;
    bulk::create(&env.client, [a_third().grace(5).deployment(APPS, "web", 1)?]).await?;
    workload::ready_pods(&env.client, APPS, "web", 1, secs(180)).await?;
    let closed = Budget::max_unavailable(APPS, "web", 0).of("web").build()?;
    bulk::create(&env.client, [closed]).await?;
    env.counts_healthy("web", 1).await?;
    let old = nodes_of_pool(env).await?[0].name_any();
    let begun = stage.begin(Karpenter::USER)?;
    interrupt(&env.client, &old).await?;
    let outcome = settled(stage, 1, "the node to be replaced", secs(180), |nodes| {
        nodes.len() == 1 && nodes[0].name_any() != old
    })
    .await;
    if stage.lock().is_some() {
        let told = env.event("web", LockReason::BudgetBypassed, secs(60)).await?;
        ensure!(told.contains("was deleted, not evicted"), "{told}");
    }
    stage.released(secs(60)).await?;
    let figures = begun.end(outcome).await?;
    ensure!(figures.deleted == 1, "{figures}");
    Ok(figures)
}

/// Karpenter leaves a protected pod on an interrupted node until its time is over, and drain-lock neither asks it to go before
/// nor refuses it then.
#[tokio::test(flavor = "multi_thread")]
async fn karpenter_evicts_protected_pod_after_its_duration() -> Result<()> {
    Box::pin(compare("Karpenter, do-not-disrupt for a minute", outlast)).await
}

async fn outlast(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let karpenter = Karpenter::start(&env.plane).await?;
    pool().put(&env.client).await?;
    env.add_deployment("web", 1, a_third().annotation(DO_NOT_DISRUPT, "60s"))
        .await?;
    let old = nodes_of_pool(env).await?;
    ensure!(old.len() == 1, "{} nodes", old.len());
    let old = old[0].name_any();
    let protected = env.pods_on(&old).await?;
    let start = protected
        .iter()
        .filter_map(|pod| pod.status.as_ref()?.start_time.as_ref());
    let end = start.map(|start| start.0 + jiff::SignedDuration::from_secs(60)).max();
    let begun = stage.begin(Karpenter::USER)?;
    interrupt(&env.client, &old).await?;
    let outcome = settled(stage, 1, "the node to be replaced", secs(240), |nodes| {
        nodes.len() == 1 && nodes[0].name_any() != old
    })
    .await;
    show_log("Karpenter", karpenter.process(), &outcome);
    let evictions = env.plane.audit().since(begun.since())?.writes();
    let evictions = evictions.only(|request| request.resource == "pods/eviction");
    let first = evictions.0.iter().map(|request| request.received).min();
    ensure!(end <= first, "protected until {end:?}, evicted {first:?}");
    stage.released(secs(60)).await?;
    begun.end(outcome).await
}
