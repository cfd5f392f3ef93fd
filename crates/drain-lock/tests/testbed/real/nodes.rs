//! Nodes with a real kubelet, containerd and runc, which are drained and rebooted. Skipped with a line where they cannot run.

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kube::ResourceExt;
use nodeward_api::label;
use nodeward_api::node_drain::Phase;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::real_nodes::{self, RealNode};
use nodeward_testkit::reboot;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate, container};
use serde_json::json;

use super::{Figures, Stage, compare};
use crate::environment::{APPS, pinned};

/// The user of `kubectl`, who may do everything.
const USER: &str = "admin";

/// Each is drained, rebooted and uncordoned by somebody who knows nothing of the others.
#[tokio::test(flavor = "multi_thread")]
async fn three_real_nodes_are_rebooted_at_once() -> Result<()> {
    if real_nodes::are_missing()? {
        return Ok(());
    }
    Box::pin(compare("kubectl drain and reboot, three real nodes", reboot_all)).await
}

async fn reboot_all(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let nodes = real_nodes::start(&env.plane, 3).await?;
    let names: Vec<&str> = nodes.iter().map(RealNode::name).collect();
    for node in &nodes {
        let file = serde_json::to_vec(&PodTemplate::new().pod(APPS, "static")?)?;
        std::fs::write(node.manifests().join("static.json"), file)?;
    }
    for app in ["a", "b"] {
        env.add_app(app, names.len(), pinned(app, &names).grace(5)).await?;
    }
    let begun = stage.begin(USER)?;
    // Without drain-lock each holds what another waits for.
    let patience = if stage.lock().is_some() { secs(400) } else { secs(60) };
    let rebooted = try_join_all(nodes.into_iter().map(|mut node| async move {
        let name = node.name().to_owned();
        let said = Kubectl::of(&env.plane)?.start(["drain", &name, "--ignore-daemonsets"])?;
        wait::until(format!("the drain of {name}"), patience, || async {
            ensure!(said.ended() == Some(true), "{}", said.text());
            Ok(())
        })
        .await?;
        node.reboot(secs(1)).await?;
        env.uncordon(&name).await?;
        anyhow::Ok(node)
    }));
    // They are needed until all pods are back.
    let outcome = match rebooted.await {
        Ok(_nodes) => all_back(stage).await,
        Err(not_ended) => Err(not_ended),
    };
    begun.end(outcome).await
}

async fn all_back(stage: &Stage) -> Result<()> {
    for app in ["a", "b"] {
        workload::ready_pods(&stage.env.client, APPS, app, 3, secs(120)).await?;
    }
    stage.released(secs(120)).await
}

/// Its kubelet says that the node is Ready before it says that the pod's containers have ended.
#[tokio::test(flavor = "multi_thread")]
async fn pod_on_real_node_has_its_disruption_until_it_runs_again() -> Result<()> {
    if real_nodes::are_missing()? {
        return Ok(());
    }
    let stage = Stage::with(&json!({})).await?;
    let env = &stage.env;
    let mut node = real_nodes::start(&env.plane, 1).await?.pop().context("a node")?;
    let name = node.name().to_owned();
    fleet::create(&env.client, ["n1", "n2"].map(NodeSpec::worker)).await?;
    let nodes = [name.as_str(), "n1", "n2"];
    let stays = pinned("stays", &nodes).label(label::DRAIN, "skip").tolerates_all();
    env.add_app("stays", nodes.len(), stays).await?;
    let pods = env.pods_on(&name).await?;
    let before = pods.first().context("no pod on the real node")?;
    let begun = stage.begin(USER)?;

    env.drain(&name, json!({})).await?;
    env.phase(&name, Phase::Drained, secs(60)).await?;
    env.drain("n1", json!({})).await?;
    node.reboot(secs(1)).await?;
    env.delete_drain(&name).await?;
    env.phase("n1", Phase::Drained, secs(120)).await?;
    let after = env.pods().get(&before.name_any()).await?;
    ensure!(after.uid() == before.uid(), "it is another pod");
    ensure!(
        container(&after)?.container_id != container(before)?.container_id && workload::is_ready(&after),
        "the disruption was returned before it ran again: {:?}",
        after.status
    );
    reboot::reboot(&env.client, "n1", secs(1)).await?;
    env.delete_drain("n1").await?;
    stage.released(secs(120)).await?;
    let figures = begun.end(Ok(())).await?;
    if let Some(broken) = figures.broken {
        return Err(broken);
    }
    drop(node);
    stage.end().await
}
