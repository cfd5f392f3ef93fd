//! When a drain began, whatever happens to the cordon.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use nodeward_api::drain_clock::ClockSource;
use nodeward_testkit::fleet;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload;
use serde_json::json;

use crate::environment::{Environment, an_hour_ago, managed};

/// A node in drain for an hour, on which a pod stays that no strategy touches.
async fn draining(env: &Environment<'_>, node: &str) -> Result<(String, Timestamp)> {
    let node = env.add_node(node).await?;
    let pod = managed(&node).label("nodeward.dev/drain", "wait-completed");
    env.add_pods([(node.as_str(), pod)]).await?;
    // The API keeps whole seconds.
    let since = Timestamp::from_second(an_hour_ago().as_second())?;
    fleet::cordon_since(&env.client, &node, since).await?;
    Ok((node, since))
}

#[tokio::test(flavor = "multi_thread")]
async fn short_uncordon_continues_drain_unless_rebooted() -> Result<()> {
    let env = Environment::new().await?;
    let keeper = env.start(json!({ "flapTolerance": "10m" })).await?;
    let (flapping, since) = draining(&env, "flapping").await?;
    let (rebooted, _) = draining(&env, "rebooted").await?;
    for node in [&flapping, &rebooted] {
        let clock = env
            .clock_that(node, "runs", |clock| clock.start == since || *node == rebooted)
            .await?;
        ensure!(clock.from == ClockSource::Taint, "{clock}");
        blocked_by_a_pod(&keeper, node).await?;
        fleet::uncordon(&env.client, node).await?;
        env.clock_that(node, "remembers the uncordon", |clock| clock.uncordoned_at.is_some())
            .await?;
    }
    fleet::reboot(&env.client, &rebooted).await?;
    for node in [&flapping, &rebooted] {
        fleet::cordon(&env.client, node).await?;
    }
    let clock = env
        .clock_that(&flapping, "runs again", |clock| clock.uncordoned_at.is_none())
        .await?;
    ensure!(
        clock.start == since,
        "the drain did not begin anew: {clock}, not {since}"
    );
    let clock = env
        .clock_that(&rebooted, "is that of a new drain", |clock| {
            clock.uncordoned_at.is_none()
        })
        .await?;
    ensure!(since + SignedDuration::from_mins(50) < clock.start, "{clock}");
    env.end([keeper]).await
}

/// Waits until drain-keeper has seen the pod that blocks the node: a drain without blockers has done its work.
async fn blocked_by_a_pod(keeper: &crate::environment::Keeper, node: &str) -> Result<()> {
    wait::until(format!("{node} to be seen blocked"), secs(60), || async {
        let metrics = keeper.metrics().await?;
        metrics
            .value("upgradeoperator_node_drain_timeout", &[("node_name", node)])
            .context("no series")
            .map(drop)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn long_uncordon_ends_the_drain_without_traces() -> Result<()> {
    let env = Environment::new().await?;
    let keeper = env.start(json!({ "flapTolerance": "1s" })).await?;
    let (node, since) = draining(&env, "a").await?;
    env.clock_that(&node, "runs", |clock| clock.start == since).await?;
    blocked_by_a_pod(&keeper, &node).await?;
    fleet::uncordon(&env.client, &node).await?;
    wait::until("the clock to go", secs(60), || async {
        ensure!(env.clock(&node).await?.is_none(), "still there");
        Ok(())
    })
    .await?;
    fleet::cordon(&env.client, &node).await?;
    let clock = env
        .clock_that(&node, "is that of a new drain", |clock| clock.uncordoned_at.is_none())
        .await?;
    ensure!(since + SignedDuration::from_mins(50) < clock.start, "{clock}");
    env.end([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn untimed_cordon_counts_from_first_sight() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let [pod] = env.add_pods([("web", managed(&node))]).await?;
    let keeper = env.start(json!({})).await?;
    let before = Timestamp::now();
    fleet::cordon_without_time(&env.client, &node).await?;
    let clock = env.clock_that(&node, "runs", |_| true).await?;
    ensure!(
        clock.from == ClockSource::FirstSeen && before <= clock.start,
        "{clock}, cordoned at {before}"
    );
    workload::gone(&env.client, &pod, secs(60)).await?;
    let evictions = env.requests()?.only(|request| request.resource == "pods/eviction");
    let first = evictions.0.first().context("no eviction")?;
    ensure!(
        clock.start + SignedDuration::from_secs(2) <= first.received,
        "{clock}: {first:?}"
    );
    env.end([keeper]).await
}
