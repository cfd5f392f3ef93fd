//! One drain with all that drain-keeper does to pods, run through the three fault injections: ended between any two of its
//! writes, with a view that stands still, and without seeing every change, it must come to the same end.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use nodeward_testkit::fault_injection::{self, Scenario, TestEnv};
use nodeward_testkit::wait::secs;
use nodeward_testkit::workload::{self, Budget, End};
use nodeward_testkit::{bulk, fleet, wait};
use serde_json::json;

use crate::environment::{ENVIRONMENT, Environment, an_hour_ago, managed};

/// What was made at an environment.
struct World {
    node: String,
    /// Pods that must go.
    leaving: Vec<Pod>,
    /// Pods that must stay as they are.
    staying: Vec<Pod>,
}

fn pods(env: &TestEnv) -> Api<Pod> {
    Api::namespaced(env.client.clone(), &env.name)
}

async fn set_up(env: TestEnv) -> Result<World> {
    env.plane.namespace(&env.name).await?;
    let (node, other) = (format!("{}-a", env.name), format!("{}-b", env.name));
    let spec = |name: &str| fleet::NodeSpec::worker(name).label(ENVIRONMENT, &env.name);
    fleet::create(&env.client, [spec(&node), spec(&other)]).await?;
    let leaving = [
        ("free", managed(&node)),
        ("kept", managed(&node).grace(1).finalizer("example.com/stuck")),
        ("hangs", managed(&node).grace(1).end(End::Stuck)),
        ("covered", managed(&node)),
        ("covered-kept", managed(&node).grace(1).finalizer("example.com/stuck")),
        ("covered-hangs", managed(&node).grace(1).end(End::Stuck)),
    ];
    let staying = [
        ("never", managed(&node)),
        (
            "opted-out",
            managed(&node).label("nodeward.dev/drain", "wait-completed"),
        ),
        ("elsewhere", managed(&other)),
    ];
    let make = async |wanted: &[(&str, workload::PodTemplate)]| {
        let built = wanted
            .iter()
            .map(|(name, pod)| pod.pod(&env.name, name))
            .collect::<Result<Vec<_>>>()?;
        bulk::create(&env.client, built).await?;
        let mut made = Vec::new();
        for (name, _) in wanted {
            let is_ready = || async {
                let pod = pods(&env).get(name).await?;
                ensure!(workload::is_ready(&pod), "phase {}", workload::phase(&pod));
                Ok(pod)
            };
            made.push(wait::until(format!("pod {name} to be Ready"), secs(60), is_ready).await?);
        }
        anyhow::Ok(made)
    };
    let (leaving, staying) = (make(&leaving).await?, make(&staying).await?);
    for app in ["covered", "covered-kept", "covered-hangs", "never"] {
        let mut budget = Budget::min_available(&env.name, app, 1).of(app);
        if app == "never" {
            budget = budget.label("nodeward.dev/force-drain", "never");
        }
        bulk::create(&env.client, [budget.build()?]).await?;
        workload::counted_budget(&env.client, &env.name, app, 1, secs(60)).await?;
    }
    Ok(World { node, leaving, staying })
}

async fn stays_as_it_was(env: TestEnv, world: Arc<World>) -> Result<()> {
    for pod in &world.staying {
        crate::environment::is_untouched(&pods(&env), pod).await?;
    }
    Ok(())
}

async fn is_drained(env: TestEnv, world: Arc<World>) -> Result<()> {
    for pod in &world.leaving {
        let name = pod.name_any();
        ensure!(pods(&env).get_opt(&name).await?.is_none(), "{name} is still there");
    }
    Ok(())
}

async fn is_cleaned_up(env: TestEnv, world: Arc<World>) -> Result<()> {
    is_drained(env.clone(), Arc::clone(&world)).await?;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(env.client.clone());
    let node = nodes.get(&world.node).await?;
    let clock = node.annotations().get(nodeward_api::annotation::DRAIN_CLOCK);
    ensure!(clock.is_none(), "the clock is still there: {clock:?}");
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let blocked = conditions
        .iter()
        .find(|condition| condition.type_ == nodeward_api::condition::DRAIN_BLOCKED);
    ensure!(blocked.is_none(), "the condition is still there: {blocked:?}");
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    for budget in budgets.list(&ListParams::default()).await? {
        let overridden = budget
            .annotations()
            .contains_key(nodeward_api::annotation::LAST_OVERRIDE);
        ensure!(
            overridden == (budget.name_any() == "covered"),
            "{}: overridden: {overridden}",
            budget.name_any()
        );
    }
    Ok(())
}

fn scenario() -> Scenario<World> {
    Scenario::new("a drain with a pod for each strategy", set_up)
        .event("pods are deleted, and hang", |env, _| async move {
            for name in ["kept", "hangs", "covered-kept", "covered-hangs"] {
                workload::delete(&env.client, &env.name, name).await?;
            }
            Ok(())
        })
        .event("the node is cordoned", |env, world| async move {
            fleet::cordon_since(&env.client, &world.node, an_hour_ago()).await
        })
        .effect("everything that may go is gone", is_drained)
        .effect("it is said who blocks the drain", |env, world| async move {
            let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(env.client.clone());
            let conditions = nodes
                .get(&world.node)
                .await?
                .status
                .and_then(|status| status.conditions);
            let blocked = conditions
                .into_iter()
                .flatten()
                .find(|condition| condition.type_ == nodeward_api::condition::DRAIN_BLOCKED)
                .context("no condition")?;
            let message = blocked.message.unwrap_or_default();
            ensure!(message.contains("never") && message.contains("opted-out"), "{message}");
            Ok(())
        })
        .event("the node is uncordoned", |env, world| async move {
            fleet::uncordon(&env.client, &world.node).await
        })
        .end(is_cleaned_up)
        .throughout(stays_as_it_was)
        .within(secs(60))
        .clean_up(|env, world| async move {
            let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(env.client.clone());
            fleet::uncordon(&env.client, &world.node).await?;
            nodes.get(&world.node).await.map(drop).context("the node")
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_ends_the_same_under_every_fault() -> Result<()> {
    let keepers = Arc::new(Environment::new().await?);
    let launch = {
        let keepers = Arc::clone(&keepers);
        move |env: TestEnv| {
            let keepers = Arc::clone(&keepers);
            async move {
                let config = keepers.config(&json!({
                    "nodeSelector": { ENVIRONMENT: env.name },
                    "pdbForceDrainTimeout": "1s",
                    "flapTolerance": "1s",
                }));
                keepers
                    .keeper()
                    .config(&config)
                    .arg("--leader-elect=false")
                    .through(&env.proxy.url())
                    .start(env.plane)
                    .await
            }
        }
    };
    fault_injection::run_with_faults(&scenario().at_once(8), launch)
        .await?
        .same_end()?;
    let refused = keepers.requests()?.only(|request| request.code == 403);
    ensure!(refused.count() == 0, "{:?}", refused.0);
    Ok(())
}
