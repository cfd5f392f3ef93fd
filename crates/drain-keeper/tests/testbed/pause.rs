//! The emergency stop.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use nodeward_testkit::pause::CutOff;
use nodeward_testkit::proxy::Proxy;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate};
use nodeward_testkit::{bulk, fleet, pause};
use rstest::rstest;
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

/// A pod without a budget and one whose budget leaves no room: both fall due as soon as their node is cordoned.
async fn blockers(env: &Environment<'_>, node: &str) -> Result<[Pod; 2]> {
    let pods = env
        .add_pods([("free", managed(node)), ("covered", managed(node))])
        .await?;
    env.add_budget(env.tight("covered", 1), 1).await?;
    Ok(pods)
}

/// A keeper behind a proxy that is about to fail.
async fn keeper_behind(env: &Environment<'_>, proxy: &Proxy) -> Result<Keeper> {
    let spec = env.spec(&json!({ "pdbForceDrainTimeout": "1s" }));
    env.run(spec.through(&proxy.url())).await
}

/// Waits until an act has ended so.
async fn act_ended(keeper: &Keeper, outcome: &str) -> Result<()> {
    wait::until(format!("an act that is {outcome}"), secs(60), || async {
        let actions = "nodeward_drain_keeper_actions_total";
        let ended = keeper.metrics().await?.sum(actions, &[("outcome", outcome)]);
        ensure!(ended > 0.5, "{ended}\n{}", keeper.process().log_tail(20));
        Ok(())
    })
    .await
}

/// Nothing is written to any pod or budget.
async fn all_untouched(env: &Environment<'_>, pods: &[Pod]) -> Result<()> {
    wait::throughout("the pods", secs(3), || async {
        for pod in pods {
            is_untouched(&env.pods(), pod).await?;
        }
        Ok(())
    })
    .await?;
    let writes = env.requests()?.writes();
    let forced = writes.only(|request| request.namespace == env.name);
    ensure!(forced.count() == 0, "{:?}", forced.0);
    Ok(())
}

async fn all_gone(env: &Environment<'_>, keeper: &Keeper, pods: &[Pod]) -> Result<()> {
    for pod in pods {
        let gone = workload::gone(&env.client, pod, secs(90)).await;
        gone.with_context(|| keeper.process().log_tail(40))?;
    }
    Ok(())
}

/// The watch of the ConfigMap is cut off, and does not look so for minutes.
#[rstest]
#[case::refused(CutOff::Refused)]
#[case::throttled(CutOff::Throttled)]
#[case::silent(CutOff::Silent)]
#[case::half_open(CutOff::HalfOpen)]
#[tokio::test(flavor = "multi_thread")]
async fn pause_that_no_watch_tells_of_is_in_force(#[case] cut_off: CutOff) -> Result<()> {
    let env = Environment::new().await?;
    let proxy = Proxy::start(env.plane).await?;
    let node = env.add_node("a").await?;
    let pods = blockers(&env, &node).await?;
    let keeper = keeper_behind(&env, &proxy).await?;
    cut_off.watch(&proxy);
    pause::write(&env.client, &env.system, json!({ "drain-keeper": "INC-1" })).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    act_ended(&keeper, "paused").await?;
    all_untouched(&env, &pods).await?;
    has_planned(&keeper).await?;

    pause::write(&env.client, &env.system, Value::Null).await?;
    // Still cut off: what a read has found a read ends.
    all_gone(&env, &keeper, &pods).await?;
    env.end([keeper]).await
}

/// Nobody has paused it, and it cannot know.
#[rstest]
#[case::refused(CutOff::Refused)]
#[case::throttled(CutOff::Throttled)]
#[case::silent(CutOff::Silent)]
#[tokio::test(flavor = "multi_thread")]
async fn keeper_that_cannot_read_the_pause_forces_nothing(#[case] cut_off: CutOff) -> Result<()> {
    let env = Environment::new().await?;
    let proxy = Proxy::start(env.plane).await?;
    let node = env.add_node("a").await?;
    let pods = blockers(&env, &node).await?;
    let keeper = keeper_behind(&env, &proxy).await?;
    cut_off.reads(&proxy);
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    act_ended(&keeper, "pause-unknown").await?;
    all_untouched(&env, &pods).await?;
    let unknown = keeper
        .metrics()
        .await?
        .value("nodeward_drain_keeper_pause_unknown", &[]);
    ensure!(unknown.is_some_and(|unknown| unknown > 0.5), "{unknown:?}");

    proxy.heal();
    all_gone(&env, &keeper, &pods).await?;
    env.end([keeper]).await
}

/// The connection of the read is dead, and the next one is sound.
#[tokio::test(flavor = "multi_thread")]
async fn read_over_a_dead_connection_is_repeated() -> Result<()> {
    let env = Environment::new().await?;
    let proxy = Proxy::start(env.plane).await?;
    let node = env.add_node("a").await?;
    let pods = blockers(&env, &node).await?;
    let keeper = keeper_behind(&env, &proxy).await?;
    CutOff::HalfOpen.reads(&proxy);
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    act_ended(&keeper, "pause-unknown").await?;
    all_gone(&env, &keeper, &pods).await?;
    env.end([keeper]).await
}
