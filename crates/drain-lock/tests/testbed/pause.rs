//! The emergency stop.

use anyhow::{Result, ensure};
use nodeward_api::node_drain::Phase;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{fleet, pause};
use serde_json::{Value, json};

use crate::environment::SYSTEM;
use crate::reviewed::Reviewed;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

#[tokio::test(flavor = "multi_thread")]
async fn paused_lock_grants_nothing_and_admits_all() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    env.add_pinned("a", &NODES).await?;
    pause::write(&env.client, SYSTEM, json!({ "drain-lock": "INC-1" })).await?;
    wait::until("the pause to be in force", secs(60), || async {
        let paused = lock.metrics().await?.value("nodeward_drain_lock_paused", &[]);
        ensure!(paused.is_some_and(|paused| paused > 0.5), "{paused:?}");
        Ok(())
    })
    .await?;

    env.drain("n1", json!({})).await?;
    fleet::cordon(&env.client, "n2").await?;
    let pod = reviewed.pods_on("n2").await?.remove(0);
    // Not paused, it would wait for a drain of its node.
    let evicted = reviewed.evict(&pod).await?;
    ensure!(evicted.is_admitted(), "{evicted:?}");
    let warning = evicted.headers.get("warning").map(|value| value.to_str()).transpose()?;
    ensure!(
        warning.is_some_and(|warning| warning.contains("drain-lock is paused")),
        "{evicted:?}"
    );
    wait::throughout("nothing to be asked for or granted", secs(3), || async {
        ensure!(
            env.drains().get_opt("n2").await?.is_none(),
            "a drain of n2 was requested"
        );
        ensure!(env.claim("n1").await?.is_none(), "n1 has a claim");
        let spec = env.nodes().get("n1").await?.spec.unwrap_or_default();
        ensure!(spec.unschedulable != Some(true), "n1 is cordoned");
        Ok(())
    })
    .await?;

    fleet::uncordon(&env.client, "n2").await?;
    pause::write(&env.client, SYSTEM, Value::Null).await?;
    env.status_that("n1", "to be drained", secs(120), |status| {
        status.phase == Some(Phase::Drained)
    })
    .await?;
    reviewed.end([lock]).await
}
