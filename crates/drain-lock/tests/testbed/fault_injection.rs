//! Two drains that need each other's disruptions, run through the three fault injections: ended between any two writes, with a view
//! that stands still, and without seeing every change, they must come to the same end.

use std::sync::Arc;

use anyhow::{Result, ensure};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use nodeward_api::NodeDrain;
use nodeward_api::node_drain::Phase;
use nodeward_testkit::fault_injection::{self, Scenario, TestEnv};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget};
use nodeward_testkit::{ControlPlane, bulk, fleet};
use serde_json::json;

use crate::environment::{create_drain, install, pinned, spec};

/// What was made at an environment.
struct World {
    nodes: [String; 2],
}

async fn set_up(env: TestEnv) -> Result<World> {
    env.plane.namespace(&env.name).await?;
    let nodes = ["a", "b"].map(|node| format!("{}-{node}", env.name));
    fleet::create(
        &env.client,
        nodes.iter().map(|node| fleet::NodeSpec::worker(node.as_str())),
    )
    .await?;
    let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
    for app in ["one", "two"] {
        bulk::create(&env.client, [pinned(app, &names).deployment(&env.name, app, 2)?]).await?;
        bulk::create(
            &env.client,
            [Budget::max_unavailable(&env.name, app, 1).of(app).build()?],
        )
        .await?;
        workload::ready_pods(&env.client, &env.name, app, 2, secs(60)).await?;
    }
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    // A budget may have counted its pods before they were Ready.
    wait::until("the budgets to count all pods as healthy", secs(60), || async {
        for budget in budgets.list(&ListParams::default()).await? {
            let healthy = budget.status.as_ref().map(|status| status.current_healthy);
            ensure!(healthy == Some(2), "{}: {healthy:?}", budget.name_any());
        }
        Ok(())
    })
    .await?;
    Ok(World { nodes })
}

async fn no_budget_is_violated(env: TestEnv, _: Arc<World>) -> Result<()> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    for budget in budgets.list(&ListParams::default()).await? {
        let Some(status) = budget.status.clone() else { continue };
        ensure!(
            status.current_healthy >= status.desired_healthy,
            "{}: {status:?}",
            budget.name_any()
        );
    }
    Ok(())
}

async fn has_phase(env: &TestEnv, node: &str, phase: Phase) -> Result<()> {
    let drains: Api<NodeDrain> = Api::all(env.client.clone());
    let status = drains.get(node).await?.status.unwrap_or_default();
    ensure!(status.phase == Some(phase), "{}", serde_json::to_string(&status)?);
    Ok(())
}

async fn all_is_over(env: TestEnv, world: Arc<World>) -> Result<()> {
    let drains: Api<NodeDrain> = Api::all(env.client.clone());
    for node in &world.nodes {
        ensure!(drains.get_opt(node).await?.is_none(), "the drain of {node} is left");
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(env.client.clone());
        let node = nodes.get(node).await?;
        ensure!(
            node.spec.as_ref().and_then(|spec| spec.unschedulable).is_none(),
            "{} is cordoned",
            node.name_any()
        );
        ensure!(
            !node.annotations().contains_key(nodeward_api::annotation::CORDONED_BY),
            "the annotation is left"
        );
    }
    for app in ["one", "two"] {
        workload::ready_pods(&env.client, &env.name, app, 2, secs(1)).await?;
    }
    let ledgers: Api<nodeward_api::DrainLedger> = Api::all(env.client.clone());
    let claims = ledgers.get(nodeward_api::drain_ledger::NAME).await?.spec.claims;
    let left = claims.iter().any(|claim| world.nodes.contains(&claim.node));
    ensure!(!left, "{claims:?}");
    Ok(())
}

fn scenario() -> Scenario<World> {
    Scenario::new("two drains that need the same disruptions", set_up)
        .event("the first is asked for", |env, world| async move {
            create_drain(&env.client, &world.nodes[0], json!({})).await.map(drop)
        })
        .effect("the first is drained", |env, world| async move {
            has_phase(&env, &world.nodes[0], Phase::Drained).await
        })
        .event("the second is asked for", |env, world| async move {
            create_drain(&env.client, &world.nodes[1], json!({})).await.map(drop)
        })
        .event("the first is uncordoned", |env, world| async move {
            fleet::uncordon(&env.client, &world.nodes[0]).await
        })
        .effect("the second is drained", |env, world| async move {
            has_phase(&env, &world.nodes[1], Phase::Drained).await
        })
        .event("the second is called off", |env, world| async move {
            let drains: Api<NodeDrain> = Api::all(env.client.clone());
            let params = kube::api::DeleteParams::default();
            drains.delete(&world.nodes[1], &params).await?;
            Ok(())
        })
        .event("its node is uncordoned by hand", |env, world| async move {
            fleet::uncordon(&env.client, &world.nodes[1]).await
        })
        .end(all_is_over)
        .throughout(no_budget_is_violated)
        .within(secs(90))
}

#[tokio::test(flavor = "multi_thread")]
async fn drains_end_the_same_under_every_fault() -> Result<()> {
    let plane = ControlPlane::shared().await;
    install(plane, &plane.client().await?).await?;
    let launch = |env: TestEnv| async move {
        spec(&json!({}))
            .arg("--leader-elect=false")
            .through(&env.proxy.url())
            .start(env.plane)
            .await
    };
    // There is one ledger in a cluster.
    fault_injection::run_with_faults(&scenario().at_once(1).at_most(10), launch)
        .await?
        .same_end()?;
    Ok(())
}
