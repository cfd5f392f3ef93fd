//! One drain with all that drain-keeper does to pods, run through the three perturbations: ended between any two of its
//! writes, with a view that stands still, and without seeing every change, it must come to the same end.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use nodeward_testkit::perturb::{Perturbed, Scenario, Site};
use nodeward_testkit::wait::secs;
use nodeward_testkit::workload::{self, Budget, End};
use nodeward_testkit::{bulk, fleet, wait};
use serde_json::json;

use crate::place::{PLACE, Place, an_hour_ago, managed};

/// What was made at a site.
struct World {
    node: String,
    /// Pods that must go.
    leaving: Vec<Pod>,
    /// Pods that must stay as they are.
    staying: Vec<Pod>,
}

fn pods(site: &Site) -> Api<Pod> {
    Api::namespaced(site.client.clone(), &site.name)
}

async fn set_up(site: Site) -> Result<World> {
    site.plane.namespace(&site.name).await?;
    let (node, other) = (format!("{}-a", site.name), format!("{}-b", site.name));
    let spec = |name: &str| fleet::NodeSpec::worker(name).label(PLACE, &site.name);
    fleet::create(&site.client, [spec(&node), spec(&other)]).await?;
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
            .map(|(name, pod)| pod.pod(&site.name, name))
            .collect::<Result<Vec<_>>>()?;
        bulk::create(&site.client, built).await?;
        let mut made = Vec::new();
        for (name, _) in wanted {
            let is_ready = || async {
                let pod = pods(&site).get(name).await?;
                ensure!(workload::is_ready(&pod), "phase {}", workload::phase(&pod));
                Ok(pod)
            };
            made.push(wait::until(format!("pod {name} to be Ready"), secs(60), is_ready).await?);
        }
        anyhow::Ok(made)
    };
    let (leaving, staying) = (make(&leaving).await?, make(&staying).await?);
    for app in ["covered", "covered-kept", "covered-hangs", "never"] {
        let mut budget = Budget::min_available(&site.name, app, 1).of(app);
        if app == "never" {
            budget = budget.label("nodeward.dev/force-drain", "never");
        }
        bulk::create(&site.client, [budget.build()?]).await?;
        workload::counted_budget(&site.client, &site.name, app, 1, secs(60)).await?;
    }
    Ok(World { node, leaving, staying })
}

async fn stays_as_it_was(site: Site, world: Arc<World>) -> Result<()> {
    for pod in &world.staying {
        crate::place::is_untouched(&pods(&site), pod).await?;
    }
    Ok(())
}

async fn is_drained(site: Site, world: Arc<World>) -> Result<()> {
    for pod in &world.leaving {
        let name = pod.name_any();
        ensure!(pods(&site).get_opt(&name).await?.is_none(), "{name} is still there");
    }
    Ok(())
}

async fn is_cleaned_up(site: Site, world: Arc<World>) -> Result<()> {
    is_drained(site.clone(), Arc::clone(&world)).await?;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(site.client.clone());
    let node = nodes.get(&world.node).await?;
    let clock = node.annotations().get(nodeward_api::annotation::DRAIN_CLOCK);
    ensure!(clock.is_none(), "the clock is still there: {clock:?}");
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let blocked = conditions
        .iter()
        .find(|condition| condition.type_ == nodeward_api::condition::DRAIN_BLOCKED);
    ensure!(blocked.is_none(), "the condition is still there: {blocked:?}");
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(site.client.clone(), &site.name);
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
        .event("pods are deleted, and hang", |site, _| async move {
            for name in ["kept", "hangs", "covered-kept", "covered-hangs"] {
                workload::delete(&site.client, &site.name, name).await?;
            }
            Ok(())
        })
        .event("the node is cordoned", |site, world| async move {
            fleet::cordon_since(&site.client, &world.node, an_hour_ago()).await
        })
        .effect("everything that may go is gone", is_drained)
        .effect("it is said who blocks the drain", |site, world| async move {
            let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(site.client.clone());
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
        .event("the node is uncordoned", |site, world| async move {
            fleet::uncordon(&site.client, &world.node).await
        })
        .end(is_cleaned_up)
        .throughout(stays_as_it_was)
        .within(secs(60))
        .clean_up(|site, world| async move {
            let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(site.client.clone());
            fleet::uncordon(&site.client, &world.node).await?;
            nodes.get(&world.node).await.map(drop).context("the node")
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_comes_to_the_same_end_whatever_happens_to_drain_keeper_in_between() -> Result<()> {
    let place = Arc::new(Place::new().await?);
    let launch = {
        let place = Arc::clone(&place);
        move |site: Site| {
            let place = Arc::clone(&place);
            async move {
                let config = place.config(&json!({
                    "nodeSelector": { PLACE: site.name },
                    "pdbForceDrainTimeout": "1s",
                    "flapTolerance": "1s",
                }));
                place
                    .keeper()
                    .config(&config)
                    .arg("--leader-elect=false")
                    .through(&site.proxy.url())
                    .start(site.plane)
                    .await
            }
        }
    };
    Perturbed::new(scenario(), launch)
        .at_once(8)
        .everything()
        .await?
        .same_end()?;
    let refused = place.requests()?.only(|request| request.code == 403);
    ensure!(refused.count() == 0, "{:?}", refused.0);
    Ok(())
}
