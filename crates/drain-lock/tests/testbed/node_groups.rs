//! Node groups: nodes take turns whatever their budgets allow.

use anyhow::{Context, Result, ensure};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_api::taint;
use nodeward_testkit::bulk;
use nodeward_testkit::fleet;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate};
use serde_json::{Value, json};

use crate::environment::{APPS, Environment};
use crate::reviewed::Reviewed;

const NODES: [&str; 2] = ["n1", "n2"];

/// One node of all at a time.
fn one_at_a_time() -> Value {
    json!({ "nodeGroups": [{ "name": "workers", "selector": {}, "maxUnavailable": 1 }] })
}

async fn is_queued_by_taint(env: &Environment, node: &str) -> Result<bool> {
    let node = env.nodes().get(node).await?;
    let queued = fleet::taints(&node).iter().find(|taint| taint.key == taint::QUEUED);
    if let Some(taint) = queued {
        ensure!(taint.effect == "PreferNoSchedule", "{taint:?}");
    }
    Ok(queued.is_some())
}

async fn is_cordoned(env: &Environment, node: &str) -> Result<bool> {
    let node = env.nodes().get(node).await?;
    Ok(node.spec.is_some_and(|spec| spec.unschedulable == Some(true)))
}

#[tokio::test(flavor = "multi_thread")]
async fn second_node_is_cordoned_once_first_is_back() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    let lock = env.start(one_at_a_time()).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.drain("n2", json!({})).await?;
    env.status_that("n2", "to wait for its group", secs(60), |status| {
        status
            .blocked_by
            .iter()
            .any(|blocked| blocked.reason == LockReason::WaitsForNodeGroup && blocked.node.as_deref() == Some("n1"))
    })
    .await?;
    ensure!(!is_cordoned(&env, "n2").await?, "n2 was cordoned ahead of its turn");
    // The status does not wait for the node's write.
    wait::until("replacements to be kept off", secs(60), || async {
        ensure!(is_queued_by_taint(&env, "n2").await?, "no taint");
        Ok(())
    })
    .await?;
    // The drain is over, and the node is not Ready yet: it is still away.
    fleet::set_ready(&env.client, "n1", false).await?;
    env.delete_drain("n1").await?;
    wait::throughout("n2 waits for n1 to be Ready", secs(4), || async {
        ensure!(!is_cordoned(&env, "n2").await?, "n2 was cordoned while n1 was away");
        Ok(())
    })
    .await?;
    fleet::set_ready(&env.client, "n1", true).await?;
    env.released("n1", secs(60)).await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    ensure!(!is_queued_by_taint(&env, "n2").await?, "the taint is left");
    env.end([lock]).await
}

/// No budget has a say, so without the group both would be emptied at once.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_drains_take_turns_without_budgets() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, one_at_a_time()).await?;
    let env = &reviewed.env;
    for node in NODES {
        let pod = PodTemplate::new().on(node).tolerates_all();
        bulk::create(&env.client, [pod.pod(APPS, &format!("on-{node}"))?]).await?;
    }
    for node in NODES {
        wait::until(format!("the pod of {node} to run"), secs(60), || async {
            let pods = env.pods_on(node).await?;
            ensure!(pods.iter().any(workload::is_ready), "{pods:?}");
            Ok(())
        })
        .await?;
    }
    let kubectl = Kubectl::of(&env.plane)?;
    let first = kubectl.start(["drain", "n1", "--force", "--ignore-daemonsets"])?;
    let ended = wait::until("the first drain to end", secs(120), || async {
        first.ended().with_context(|| first.text())
    })
    .await?;
    ensure!(ended, "{}", first.text());
    let second = kubectl.start(["drain", "n2", "--force", "--ignore-daemonsets"])?;
    wait::until("the second drain to be told who it waits for", secs(60), || async {
        ensure!(second.text().contains("node group"), "{}", second.text());
        Ok(())
    })
    .await?;
    ensure!(!env.pods_on("n2").await?.is_empty(), "the second node was emptied");
    env.uncordon("n1").await?;
    let ended = wait::until("the second drain to end", secs(120), || async {
        second.ended().with_context(|| second.text())
    })
    .await?;
    ensure!(ended, "{}", second.text());
    env.uncordon("n2").await?;
    for node in NODES {
        env.released(node, secs(60)).await?;
    }
    reviewed.end([lock]).await
}
