//! Drains by programs that know nothing of drain-lock: they evict by themselves, under a claim.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::EvictParams;
use nodeward_api::node_drain::{NodeDrainStatus, Phase};
use nodeward_testkit::fleet;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::Environment;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

async fn granted(env: &Environment, deadline: Duration) -> Result<NodeDrainStatus> {
    env.status_that("n1", "to be granted", deadline, |status| status.granted_at.is_some())
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_drainer_evicts_under_its_claim() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    fleet::cordon(&env.client, "n1").await?;
    env.drain("n1", json!({ "evict": "Requester" })).await?;
    let granted = granted(&env, secs(60)).await?;
    ensure!(granted.held_disruptions == Some(1), "{granted:?}");
    ensure!(granted.phase == Some(Phase::Draining), "{granted:?}");
    wait::throughout("nothing is evicted for it", secs(3), || async {
        ensure!(env.pods_on("n1").await?.len() == 1, "evicted");
        Ok(())
    })
    .await?;
    let pod = env.pods_on("n1").await?.remove(0);
    env.pods().evict(&pod.name_any(), &EvictParams::default()).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_drainer_ends_or_becomes_suspect() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    env.add_pinned("b", &NODES).await?;
    let lock = env
        .start(json!({ "auto": { "quietPeriod": "20s" }, "deadlines": { "recover": "20s" } }))
        .await?;
    fleet::cordon(&env.client, "n1").await?;
    let filed = json!({ "evict": "Requester", "requesters": [{ "name": "eviction:somebody" }] });
    env.drain("n1", filed.clone()).await?;
    granted(&env, secs(90)).await?;
    env.released("n1", secs(90)).await?;
    env.drain("n1", filed).await?;
    granted(&env, secs(90)).await?;
    let pod = env.pods_on("n1").await?.remove(0);
    env.pods().evict(&pod.name_any(), &EvictParams::default()).await?;
    env.phase("n1", Phase::Suspect, secs(90)).await?;
    ensure!(
        env.claim("n1").await?.is_some_and(|claim| !claim.holds.is_empty()),
        "freed by time"
    );
    env.uncordon("n1").await?;
    env.released("n1", secs(90)).await?;
    env.end([lock]).await
}
