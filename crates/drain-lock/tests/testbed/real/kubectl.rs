//! `kubectl drain`: of a selector, which cordons all of its nodes before it evicts from the first, and of many nodes at once.

use anyhow::{Context, Result, ensure};
use kube::api::ListParams;
use nodeward_api::reason::LockReason;
use nodeward_testkit::kubectl::{Kubectl, Said};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::PodTemplate;
use serde_json::json;

use super::{Figures, Stage, compare};
use crate::environment::Environment;

/// The user of `kubectl`, who may do everything.
const USER: &str = "admin";

/// Every node is full and none is outside the selector: no pod finds room until one of them is uncordoned.
#[tokio::test(flavor = "multi_thread")]
async fn drain_of_selector_over_full_nodes_names_node_to_uncordon() -> Result<()> {
    Box::pin(compare("kubectl drain -l, six full nodes", drain_selector)).await
}

async fn drain_selector(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let nodes = stage.add_nodes("a", 6, 2).await?;
    env.add_deployment("web", nodes.len(), of_two_cpus()).await?;
    let begun = stage.begin(USER)?;
    let said = Kubectl::of(&env.plane)?.start(["drain", "-l", "pool=a", "--ignore-daemonsets"])?;
    wait::until("the first pod to be evicted", secs(60), || async {
        let left = placed(env).await?;
        ensure!(left < nodes.len(), "{left} pods have a node");
        Ok(())
    })
    .await?;
    if stage.lock().is_none() {
        // Nobody says which node to uncordon.
        let outcome = wait::until("kubectl to end", secs(60), || async {
            said.ended().context("it goes on").map(drop)
        })
        .await;
        return begun.end(outcome).await;
    }
    // A person does what the drain says, until it has ended.
    let mut uncordoned = Vec::new();
    let outcome = wait::until("kubectl to end", secs(240), || async {
        if let Some(ended) = said.ended() {
            return Ok(ended);
        }
        anyhow::bail!("it goes on");
    });
    let advice = async {
        while said.ended().is_none() {
            let node = named(env).await?;
            env.uncordon(&node).await?;
            uncordoned.push(node);
        }
        std::future::pending::<Result<()>>().await
    };
    let outcome = tokio::select! {
        outcome = outcome => outcome.and_then(|ended| { ensure!(ended, "{}", said.text()); Ok(()) }),
        advice = advice => advice,
    };
    println!("uncordoned, as was said: {uncordoned:?}");
    outcome?;
    ensure!(
        !uncordoned.is_empty(),
        "nobody was told which node to uncordon: {}",
        said.text()
    );
    begun.end(Ok(())).await
}

/// Each node has one pod of the same budget, and there is room for all of them elsewhere: whichever asks next has the disruption.
#[tokio::test(flavor = "multi_thread")]
async fn drains_of_movable_pods_of_one_budget_end_together() -> Result<()> {
    Box::pin(compare("kubectl drain of ten nodes, one budget", drain_ten)).await
}

async fn drain_ten(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let nodes = stage.add_nodes("a", 10, 2).await?;
    env.add_deployment("web", nodes.len(), of_two_cpus()).await?;
    stage.add_nodes("b", 10, 2).await?;
    let begun = stage.begin(USER)?;
    let kubectl = Kubectl::of(&env.plane)?;
    let drains: Result<Vec<Said>> = nodes
        .iter()
        .map(|node| kubectl.start(["drain", node, "--ignore-daemonsets"]))
        .collect();
    let drains = drains?;
    let outcome = wait::until("all drains to end", secs(240), || async {
        for (node, said) in nodes.iter().zip(&drains) {
            let ended = said.ended().with_context(|| format!("{node}: {}", said.text()))?;
            ensure!(ended, "{node}: {}", said.text());
        }
        stage.all_ready("web", nodes.len()).await
    })
    .await;
    begun.end(outcome).await
}

/// A pod that fills a node of two CPUs.
fn of_two_cpus() -> PodTemplate {
    let container =
        json!({ "name": "main", "image": "registry.example/app:1", "resources": { "requests": { "cpu": "2" } } });
    PodTemplate::new().spec("containers", json!([container]))
}

/// How many pods of the applications have a node.
async fn placed(env: &Environment) -> Result<usize> {
    let pods = env.pods().list(&ListParams::default()).await?.items;
    let has_node =
        |pod: &&k8s_openapi::api::core::v1::Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    Ok(pods.iter().filter(has_node).count())
}

/// The node that a drain says should be uncordoned.
async fn named(env: &Environment) -> Result<String> {
    wait::until("a drain to name the node to uncordon", secs(60), || async {
        let drains = env.drains().list(&ListParams::default()).await?.items;
        let blocked: Vec<_> = drains
            .iter()
            .filter_map(|drain| drain.status.as_ref())
            .flat_map(|status| &status.blocked_by)
            .collect();
        let waits = blocked.iter().find(|one| one.message.contains("kubectl uncordon"));
        let waits = waits.with_context(|| serde_json::to_string(&blocked).unwrap_or_default())?;
        let node = waits.node.clone().context("no node is named")?;
        ensure!(
            waits.message.ends_with(&format!("kubectl uncordon {node}")),
            "{}",
            waits.message
        );
        // The node is at work for as long as may be expected: no person is called.
        ensure!(waits.reason == LockReason::AwaitsUncordon, "{waits:?}");
        let cordoned = env.nodes().get(&node).await?;
        let is_cordoned = cordoned.spec.is_some_and(|spec| spec.unschedulable == Some(true));
        ensure!(is_cordoned, "{node} was uncordoned");
        Ok(node)
    })
    .await
}
