//! Maintenance windows: own drains begin in one.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::wait::secs;
use serde_json::json;

use crate::environment::Environment;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

#[tokio::test(flavor = "multi_thread")]
async fn own_drain_waits_for_the_window() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let opens = Timestamp::now() + SignedDuration::from_hours(72);
    let window = json!({ "days": [opens.strftime("%A").to_string()], "from": "00:00", "to": "00:01" });
    let lock = env.start(json!({ "windows": [window] })).await?;
    env.drain("n1", json!({})).await?;
    let told = opens.strftime("which opens at %Y-%m-%dT00:00:00Z").to_string();
    let status = env
        .status_that("n1", "to wait for its window", secs(60), |status| {
            status.phase == Some(Phase::Scheduled)
        })
        .await?;
    let blocked = status.blocked_by.first().context("it waits for nothing")?;
    ensure!(
        blocked.reason == LockReason::WaitsForWindow && blocked.message.contains(&told),
        "{blocked:?}"
    );
    ensure!(status.message.is_some_and(|message| message.contains(&told)));
    ensure!(
        env.event("n1", LockReason::WaitsForWindow, secs(60))
            .await?
            .contains(&told)
    );
    ensure!(
        status.ticket.is_none() && env.claim("n1").await?.is_none(),
        "it was queued"
    );
    let node = env.nodes().get("n1").await?;
    ensure!(
        node.spec.and_then(|spec| spec.unschedulable).is_none(),
        "it was cordoned"
    );
    env.patch_drain("n1", json!({ "spec": { "ignoreWindows": true } }))
        .await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}
