//! The API server goes away and comes back.

use anyhow::{Result, ensure};
use nodeward_runtime::{LeaderState, Watches};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, Options};
use serde_json::json;

use crate::access::{put, remove};
use crate::cache::{shows, values};
use crate::leader::{TIMES, leads, stand};

/// On a control plane of its own: the others' must not go away.
#[tokio::test(flavor = "multi_thread")]
async fn caches_and_leadership_survive_server_outage() -> Result<()> {
    let plane = ControlPlane::start(Options {
        scheduler: false,
        ..Options::default()
    })
    .await?;
    let client = plane.client().await?;
    plane.namespace("outage").await?;
    put(&client, "outage", "a", json!({"value": "1"})).await?;
    put(&client, "outage", "b", json!({"value": "2"})).await?;
    let cache = values(&Watches::detached(), client.clone(), "outage");
    cache.wait_synced().await;
    let candidate = stand(client.clone(), "outage", "only", TIMES);
    leads(&candidate.leadership).await?;

    plane.apiserver().kill();
    wait::until("the leader to step down", secs(60), || async {
        ensure!(candidate.leadership.state() == LeaderState::Following, "it leads");
        Ok(())
    })
    .await?;
    shows(&cache, &[("a", "1"), ("b", "2")]).await?;
    assert!(cache.is_synced(), "what was known stays known");

    // A cache that is opened meanwhile waits.
    let late = values(&Watches::detached(), client.clone(), "outage");
    plane.apiserver().start()?;
    plane.ready().await?;
    put(&client, "outage", "a", json!({"value": "10"})).await?;
    remove(&client, "outage", "b").await?;
    put(&client, "outage", "c", json!({"value": "30"})).await?;
    shows(&cache, &[("a", "10"), ("c", "30")]).await?;
    shows(&late, &[("a", "10"), ("c", "30")]).await?;
    leads(&candidate.leadership).await?;
    assert!(cache.health().failures > 0 && cache.health().last_error.is_some());
    Ok(())
}
