//! The emergency stop.

use anyhow::{Result, ensure};
use nodeward_api::node_drain::Phase;
use nodeward_testkit::pause::CutOff;
use nodeward_testkit::proxy::Proxy;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{fleet, pause};
use serde_json::{Value, json};

use crate::environment::{Environment, Lock, SYSTEM, spec};
use crate::reviewed::Reviewed;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Waits until this metric is 1.
async fn says(lock: &Lock, metric: &str) -> Result<()> {
    wait::until(format!("{metric} to be 1"), secs(60), || async {
        let value = lock.metrics().await?.value(metric, &[]);
        ensure!(value.is_some_and(|value| value > 0.5), "{value:?}");
        Ok(())
    })
    .await
}

/// Neither a claim nor a cordon comes of the drain of `n1`.
async fn nothing_is_done(env: &Environment) -> Result<()> {
    wait::throughout("nothing to be granted", secs(3), || async {
        ensure!(env.claim("n1").await?.is_none(), "n1 has a claim");
        let spec = env.nodes().get("n1").await?.spec.unwrap_or_default();
        ensure!(spec.unschedulable != Some(true), "n1 is cordoned");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_lock_grants_nothing_and_admits_all() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    env.add_pinned("a", &NODES).await?;
    pause::write(&env.client, SYSTEM, json!({ "drain-lock": "INC-1" })).await?;
    says(&lock, "nodeward_drain_lock_paused").await?;

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

#[tokio::test(flavor = "multi_thread")]
async fn lock_that_hears_of_no_pause_grants_nothing() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let proxy = Proxy::start(&env.plane).await?;
    let lock = env.run(spec(&json!({})).through(&proxy.url())).await?;

    CutOff::Refused.watch(&proxy);
    let unread = CutOff::Throttled.reads(&proxy);
    env.drain("n1", json!({})).await?;
    says(&lock, "nodeward_drain_lock_pause_unknown").await?;
    nothing_is_done(&env).await?;

    pause::write(&env.client, SYSTEM, json!({ "all": "INC-1" })).await?;
    proxy.remove(unread);
    says(&lock, "nodeward_drain_lock_paused").await?;
    nothing_is_done(&env).await?;

    pause::write(&env.client, SYSTEM, Value::Null).await?;
    env.phase("n1", Phase::Drained, secs(120)).await?;
    env.end([lock]).await
}
