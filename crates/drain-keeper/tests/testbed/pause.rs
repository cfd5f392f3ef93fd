//! The emergency stop.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate};
use nodeward_testkit::{bulk, fleet, pause};
use serde_json::{Value, json};

use crate::environment::{Environment, Keeper, an_hour_ago, is_untouched, managed};

/// Waits until the keeper's own Pod says whether it is paused.
async fn condition_is(env: &Environment<'_>, keeper: &str, status: &str) -> Result<()> {
    let own: Api<Pod> = Api::namespaced(env.client.clone(), &env.system);
    wait::until(format!("the condition to be {status}"), secs(60), || async {
        let conditions = own.get(keeper).await?.status.and_then(|status| status.conditions);
        let paused = conditions
            .iter()
            .flatten()
            .find(|condition| condition.type_ == "nodeward.dev/Paused");
        let paused = paused.context("no condition")?;
        ensure!(paused.status == status, "{paused:?}");
        Ok(())
    })
    .await
}

/// Waits until the keeper has planned what is due on the node.
async fn has_planned(keeper: &Keeper) -> Result<()> {
    wait::until("a plan", secs(60), || async {
        let metrics = keeper.metrics().await?;
        let value = |name: &str| metrics.value(name, &[]).unwrap_or_default();
        ensure!(value("nodeward_drain_keeper_paused") > 0.5, "it is not paused");
        ensure!(value("nodeward_drain_keeper_draining_nodes") > 0.5, "nothing drains");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_keeper_forces_nothing_across_restarts() -> Result<()> {
    let env = Environment::new().await?;
    let node = env.add_node("a").await?;
    let [pod] = env.add_pods([("web", managed(&node))]).await?;
    // Nothing is due yet when it is paused, and everything once it has restarted.
    let keeper = env
        .start(json!({ "nodeDrain": { "timeOut": "2h", "expectedNodeDrainTime": "1s" } }))
        .await?;
    let name = keeper.process().name().to_owned();
    bulk::create(&env.client, [PodTemplate::new().pod(&env.system, &name)?]).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    env.clock_that(&node, "runs", |_| true).await?;
    pause::write(&env.client, &env.system, json!({ "all": "INC-1", "drainkeeper": "" })).await?;
    condition_is(&env, &name, "True").await?;
    has_planned(&keeper).await?;

    keeper.process().kill();
    let restarted = env.start(json!({})).await?;
    has_planned(&restarted).await?;
    wait::throughout("the pod", secs(3), || async { is_untouched(&env.pods(), &pod).await }).await?;
    // Each replica writes its own Pod's condition, whether there is such a Pod or not.
    let written = env.pods_written()?;
    ensure!(!written.contains("web"), "{written:?}");

    pause::write(&env.client, &env.system, Value::Null).await?;
    workload::gone(&env.client, &pod, secs(60)).await?;
    // The pause began before it led: what the leader of then emitted may have gone with it.
    let events: Api<Event> = Api::namespaced(env.client.clone(), &env.system);
    let name = restarted.process().name();
    wait::until("the new leader's Events", secs(60), || async {
        let events = events.list(&ListParams::default()).await?;
        let own = events
            .iter()
            .filter(|event| event.reporting_instance.as_deref() == Some(name));
        let reasons: Vec<&str> = own.filter_map(|event| event.reason.as_deref()).collect();
        for reason in ["Paused", "Resumed", "UnknownComponent"] {
            ensure!(reasons.contains(&reason), "{reasons:?}");
        }
        Ok(())
    })
    .await?;
    env.end([restarted]).await
}
