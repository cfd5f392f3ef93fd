//! A webhook of somebody else refuses what `kubectl drain` asks for: other drains go on all the same.

use anyhow::{Context, Result, ensure};
use nodeward_api::node_drain::BlockedBy;
use nodeward_api::reason::LockReason;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::webhook::DenyingWebhook;
use serde_json::json;

use super::{Figures, Stage, compare_configured};
use crate::environment::APPS;

/// The user of `kubectl`, who may do everything.
const USER: &str = "admin";

/// Two nodes have a pod each of a budget of one. The pod of the first stays, however often its drain asks for it. Its evictions
/// are noted once a minute: with a shorter `quietPeriod` both drains would count as over again and again.
#[tokio::test(flavor = "multi_thread")]
async fn pod_that_another_webhook_keeps_holds_up_no_other_drain() -> Result<()> {
    let config = json!({ "auto": { "quietPeriod": "2m" } });
    Box::pin(compare_configured(
        "kubectl drain, another webhook keeps a pod",
        &config,
        drain_beside_kept_pod,
    ))
    .await
}

async fn drain_beside_kept_pod(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let nodes = stage.add_nodes("a", 2, 4).await?;
    env.add_fixed("data", &[&nodes[0], &nodes[1]]).await?;
    let kept = format!("data-{}", nodes[0]);
    let _webhook = DenyingWebhook::of_pods_named(&env.plane, APPS, &kept, 429, "it stays").await?;
    let begun = stage.begin(USER)?;
    let kubectl = Kubectl::of(&env.plane)?;
    let first = kubectl.start(["drain", &nodes[0], "--ignore-daemonsets"])?;
    wait::until("the kept pod to be asked for", secs(60), || async {
        ensure!(first.text().contains("it stays"), "{}", first.text());
        Ok(())
    })
    .await?;
    let named = async {
        if stage.lock().is_none() {
            return Ok(());
        }
        let is_kept = |pod: &String| pod.starts_with(&format!("{APPS}/{kept}"));
        let is_named =
            |one: &BlockedBy| one.reason == LockReason::EvictionFailed && one.pod.as_ref().is_some_and(is_kept);
        env.status_that(&nodes[0], "to name the kept pod", secs(110), |status| {
            status.blocked_by.iter().any(is_named)
        })
        .await
        .map(drop)
    };
    let second = kubectl.start(["drain", &nodes[1], "--ignore-daemonsets"])?;
    let ended = wait::until("the other drain to end", secs(300), || async {
        let ended = second.ended().with_context(|| second.text())?;
        ensure!(ended, "{}", second.text());
        Ok(())
    });
    let (outcome, is_named) = tokio::join!(ended, named);
    is_named?;
    ensure!(first.ended().is_none(), "{}", first.text());
    begun.end(outcome).await
}
