//! Drainers that delete pods where an eviction would ask their budgets.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::bulk;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::Budget;
use serde_json::json;

use crate::drainers::all_end;
use crate::environment::{APPS, Environment, pinned};
use crate::reviewed::Reviewed;

#[tokio::test(flavor = "multi_thread")]
async fn drain_that_deletes_around_budgets_is_told() -> Result<()> {
    let nodes = ["n1", "n2", "n3"];
    let env = Environment::new(&nodes).await?;
    env.add_pinned("a", &nodes).await?;
    let lock = env.start(json!({})).await?;
    let kubectl = Kubectl::of(&env.plane)?;
    // The budget bears one.
    let around = |node| kubectl.start(["drain", node, "--ignore-daemonsets", "--disable-eviction"]);
    let (first, second) = (around("n1")?, around("n2")?);
    let told = env.event("a", LockReason::BudgetBypassed, secs(60)).await?;
    ensure!(told.contains("was deleted, not evicted"), "{told}");
    env.event("n2", LockReason::BudgetBypassed, secs(60)).await?;
    let counted = lock.metrics().await?.sum(
        "nodeward_drain_lock_drain_events_total",
        &[("reason", "BudgetBypassed")],
    );
    ensure!(counted > 0.5, "not counted");
    all_end(&env, vec![("n1", first), ("n2", second)], secs(60)).await?;
    env.end([lock]).await
}

/// Somebody deletes the pod of a drain that waits. It comes back with its node alone, so the drain behind waits for that one, and
/// takes nothing of the budget to be broken by itself.
#[tokio::test(flavor = "multi_thread")]
async fn pod_of_a_waiting_drain_that_is_deleted_is_of_its_claim() -> Result<()> {
    let nodes = ["n1", "n2", "n3"];
    let (reviewed, lock) = Reviewed::with(&nodes, json!({ "deadlines": { "obstacle": "3s" } })).await?;
    let env = &reviewed.env;
    for (app, node) in [("a1", "n1"), ("a2", "n2"), ("a3", "n3")] {
        let template = pinned(app, &[node]).label("budget", "a");
        bulk::create(&env.client, [template.deployment(APPS, app, 1)?]).await?;
    }
    let budget = Budget::max_unavailable(APPS, "a", 1).selector(json!({ "matchLabels": { "budget": "a" } }));
    bulk::create(&env.client, [budget.build()?]).await?;
    env.counts_healthy("a", 3).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    let kubectl = Kubectl::of(&env.plane)?;
    let second = kubectl.start(["drain", "n2", "--ignore-daemonsets"])?;
    env.phase("n2", Phase::Queued, secs(60)).await?;
    let of_n2 = env.pods_on("n2").await?.remove(0);
    let pods = Api::<Pod>::namespaced(env.client.clone(), APPS);
    pods.delete(&of_n2.name_any(), &DeleteParams::default()).await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    let _third = kubectl.start(["drain", "n3", "--ignore-daemonsets"])?;
    wait::throughout("the drain behind waits for it", secs(10), || async {
        ensure!(
            env.pods_on("n3").await?.len() == 1,
            "its pod was evicted: {}",
            second.text()
        );
        let left_out = env.drains().get_opt("n3").await?.and_then(|drain| drain.status?.plan);
        ensure!(
            left_out.is_none_or(|plan| plan.left_out.is_empty()),
            "it goes on without its pod"
        );
        Ok(())
    })
    .await?;
    env.status_that("n3", "to wait for n2", secs(60), |status| {
        status
            .blocked_by
            .iter()
            .any(|one| one.reason == LockReason::WaitsForDisruptions && one.node.as_deref() == Some("n2"))
    })
    .await?;
    reviewed.end([lock]).await
}
