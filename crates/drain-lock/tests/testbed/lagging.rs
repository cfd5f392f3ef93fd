//! One watch stands still while the others go on: what it does not show is read before anything rests on its absence.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use nodeward_api::node_drain::Phase;
use nodeward_api::{DisruptionHold, annotation, label};
use nodeward_testkit::fleet;
use nodeward_testkit::proxy::{Fault, Outcome, Proxy, Rule, Verb};
use nodeward_testkit::wait::{self, secs};
use serde_json::{Value, json};

use crate::environment::{APPS, Environment, Lock, grant, spec};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// From now on these resources cannot be watched: what is known of them stands still.
fn hang(proxy: &Proxy, resources: &'static [&'static str]) {
    let rule = Rule::new(Fault::Status(500, "InternalError"))
        .verbs([Verb::Watch])
        .when(|request| resources.contains(&request.resource.as_str()));
    proxy.inject(rule);
    proxy.drop_watches();
}

/// Waits until the object was read by itself.
async fn read(proxy: &Proxy, resource: &str, name: &str) -> Result<()> {
    wait::until(format!("{resource}/{name} to be read"), secs(60), || async {
        let reads = proxy.count(|record| {
            let request = &record.request;
            request.verb == Verb::Get && request.resource == resource && request.name == name
        });
        ensure!(reads > 0, "never");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn lagging_leader_leaves_unseen_drains_alone() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let proxy = Proxy::start(&env.plane).await?;
    let first = env.run(spec(&json!({})).identity("first")).await?;
    env.leads("first").await?;
    let second = env
        .run(spec(&json!({})).identity("second").through(&proxy.url()))
        .await?;
    hang(&proxy, &["nodedrains"]);
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    first.process().kill();
    read(&proxy, "nodedrains", "n1").await?;
    wait::throughout("the drain stands", secs(5), || async {
        ensure!(
            fleet::cordon_taint(&env.nodes().get("n1").await?).is_some(),
            "uncordoned"
        );
        let claim = env.claim("n1").await?.context("no claim")?;
        ensure!(!claim.holds.is_empty(), "its disruption is freed: {claim:?}");
        Ok(())
    })
    .await?;
    proxy.heal();
    env.uncordon("n1").await?;
    env.released("n1", secs(90)).await?;
    env.end([second]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn unseen_cordon_does_not_cancel_the_drain() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let proxy = Proxy::start(&env.plane).await?;
    let lock = env.run(spec(&json!({})).through(&proxy.url())).await?;
    hang(&proxy, &["nodes"]);
    fleet::cordon(&env.client, "n1").await?;
    let drain = env.drain("n1", json!({ "evict": "Requester" })).await?;
    read(&proxy, "nodes", "n1").await?;
    wait::throughout("it stands", secs(5), || async {
        let present = env.drains().get("n1").await?;
        ensure!(
            present.uid() == drain.uid() && present.metadata.deletion_timestamp.is_none(),
            "called off"
        );
        Ok(())
    })
    .await?;
    proxy.heal();
    env.phase("n1", Phase::Draining, secs(60)).await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}

/// An environment whose drains may delete pods.
async fn with_the_right_to_delete(apps: &[&str]) -> Result<(Environment, Proxy, Lock)> {
    let env = Environment::new(&NODES).await?;
    grant(&env.plane, json!({ "allowDelete": true })).await?;
    for app in apps {
        env.add_pinned(app, &NODES).await?;
    }
    let proxy = Proxy::start(&env.plane).await?;
    let lock = env.run(spec(&json!({})).through(&proxy.url())).await?;
    Ok((env, proxy, lock))
}

async fn deleted(lock: &Lock) -> Result<f64> {
    let metrics = lock.metrics().await?;
    Ok(metrics.sum("nodeward_drain_lock_evictions_total", &[("outcome", "deleted")]))
}

/// Of which application pods are on the node.
async fn apps_on(env: &Environment, node: &str) -> Result<BTreeSet<String>> {
    let pods = env.pods_on(node).await?;
    let staying = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(staying.filter_map(|pod| pod.labels().get("app").cloned()).collect())
}

async fn patch_budget(env: &Environment, name: &str, metadata: Value) -> Result<()> {
    let budgets: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> = Api::namespaced(env.client.clone(), APPS);
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    budgets.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn fresh_owner_refusal_stops_the_delete_fallback() -> Result<()> {
    let (env, proxy, lock) = with_the_right_to_delete(&["annotated", "held", "labelled", "silent"]).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    hang(&proxy, &["poddisruptionbudgets", "disruptionholds"]);
    patch_budget(
        &env,
        "annotated",
        json!({ "annotations": { annotation::HOLD: "rebalancing" } }),
    )
    .await?;
    patch_budget(
        &env,
        "labelled",
        json!({ "labels": { label::FORCE_DRAIN: label::FORCE_DRAIN_NEVER } }),
    )
    .await?;
    let hold: DisruptionHold = serde_json::from_value(json!({
        "metadata": { "name": "h", "namespace": APPS }, "spec": { "pdbRef": "held", "reason": "rebalancing" },
    }))?;
    let holds: Api<DisruptionHold> = Api::namespaced(env.client.clone(), APPS);
    holds.create(&PostParams::default(), &hold).await?;
    env.drain("n2", json!({ "fallback": "Delete", "deadlines": { "queue": "2s" } }))
        .await?;
    let kept = BTreeSet::from(["annotated", "held", "labelled"].map(str::to_owned));
    wait::until("the pod that nobody keeps to be deleted", secs(60), || async {
        let left = apps_on(&env, "n2").await?;
        ensure!(left == kept, "{left:?}");
        Ok(())
    })
    .await?;
    wait::throughout("the others stay", secs(5), || async {
        let left = apps_on(&env, "n2").await?;
        ensure!(left == kept, "{left:?}");
        Ok(())
    })
    .await?;
    ensure!((deleted(&lock).await? - 1.0).abs() < 0.5, "more than one was deleted");
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn unseen_change_of_mind_stops_the_delete_fallback() -> Result<()> {
    let (env, proxy, lock) = with_the_right_to_delete(&["a"]).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.drain("n2", json!({ "fallback": "Delete", "deadlines": { "queue": "20s" } }))
        .await?;
    env.queued("n2").await?;
    hang(&proxy, &["nodedrains"]);
    env.patch_drain("n2", json!({ "spec": { "fallback": "Wait" } })).await?;
    // The budget refuses its pod; before the pod would be deleted, the drain is read.
    let refused =
        || proxy.count(|record| record.request.resource == "pods/eviction" && record.outcome == Outcome::Answered(429));
    wait::until("the fallback to begin", secs(90), || async {
        ensure!(refused() > 0, "no eviction was refused");
        Ok(())
    })
    .await?;
    wait::throughout("its pod stays", secs(8), || async {
        ensure!(apps_on(&env, "n2").await?.len() == 1, "it is gone");
        Ok(())
    })
    .await?;
    ensure!(deleted(&lock).await? < 0.5, "it was deleted");
    proxy.heal();
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn server_failure_is_not_a_budget_refusal() -> Result<()> {
    let (env, proxy, lock) = with_the_right_to_delete(&["a"]).await?;
    proxy.inject(Rule::new(Fault::Status(500, "InternalError")).resource("pods/eviction"));
    env.drain("n1", json!({ "fallback": "Delete", "deadlines": { "drain": "1s" } }))
        .await?;
    env.phase("n1", Phase::Draining, secs(60)).await?;
    wait::throughout("its pod stays", secs(8), || async {
        ensure!(apps_on(&env, "n1").await?.len() == 1, "it is gone");
        Ok(())
    })
    .await?;
    proxy.heal();
    env.phase("n1", Phase::Drained, secs(90)).await?;
    ensure!(deleted(&lock).await? < 0.5, "it was deleted");
    env.end([lock]).await
}
