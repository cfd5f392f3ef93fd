//! Cluster API that manages the cluster from another one: its Machines and their rules are not seen here.

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use nodeward_api::drain_clock::DrainClock;
use nodeward_testkit::drainers::{ClusterApi, node_of};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, End, PodTemplate};
use nodeward_testkit::{ControlPlane, Options, bulk};
use serde_json::{Value, json};

use super::cluster_api::{POOL, SELECTOR, rule, small};
use super::{Figures, Stage, compare_configured, show_log};
use crate::environment::{APPS, Environment};

/// The pod that goes first takes longer than a quiet period, which is longer than Cluster API's pause of 20 s, and ends within its
/// grace. Cluster API asks for no other until then.
#[tokio::test(flavor = "multi_thread")]
async fn slow_pod_of_first_order_ends_no_drain_from_another_cluster() -> Result<()> {
    let config = json!({ "auto": { "quietPeriod": "30s" } });
    Box::pin(compare_configured(
        "Cluster API of another cluster, a slow pod first",
        &config,
        drain_in_two_orders,
    ))
    .await
}

async fn drain_in_two_orders(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let management = ControlPlane::start(Options::patient()).await?;
    let cluster = ClusterApi::manage(&management, &env.plane).await?;
    cluster.drain_rule("slow-first", rule("slow", 0)).await?;
    cluster.drain_rule("web-later", rule("web", 10)).await?;
    let deletion = json!({ "nodeDrainTimeoutSeconds": 0 });
    cluster.add_machines(POOL, 2, deletion).await?;
    let machine = cluster.machines(SELECTOR).await?.remove(0);
    let node = node_of(&machine).context("no node")?;
    // Half of the pods of each are on that node. Only `slow` has no budget, and takes its time.
    let slow = spread("slow", "slow").grace(120).end(End::Takes(secs(75)));
    bulk::create(&env.client, [slow.deployment(APPS, "slow", 2)?]).await?;
    workload::ready_pods(&env.client, APPS, "slow", 2, secs(120)).await?;
    env.add_deployment("data", 2, spread("data", "slow")).await?;
    env.add_deployment("web", 4, spread("web", "web")).await?;
    let pods = env.pods_on(node).await?;
    ensure!(pods.len() == 4, "{} pods", pods.len());
    let slow = pods.iter().find(|pod| pod.name_any().starts_with("slow-"));
    let slow = slow.context("no slow pod")?;

    let begun = stage.begin(ClusterApi::USER)?;
    cluster.delete_machine(&machine.name_any()).await?;
    let drain = match stage.lock() {
        Some(_) => Some(seen(env, node).await?),
        None => None,
    };
    workload::gone(&env.client, slow, secs(180)).await?;
    if let Some((drain, clock)) = drain {
        let (same_drain, same_clock) = seen(env, node).await?;
        ensure!(
            same_drain == drain && same_clock.start == clock.start,
            "{drain:?}, {clock} became {same_drain:?}, {same_clock}"
        );
    }
    let outcome = wait::until("the node to be replaced", secs(300), || async {
        ensure!(env.nodes().get_opt(node).await?.is_none(), "{node} is there");
        for (app, count) in [("slow", 2), ("data", 2), ("web", 4)] {
            stage.all_ready(app, count).await?;
        }
        Ok(())
    })
    .await;
    show_log("Cluster API", cluster.process(), &outcome);
    stage.released(secs(60)).await?;
    begun.end(outcome).await
}

/// UID of the NodeDrain and its ticket, and drain-keeper's clock, which runs.
async fn seen(env: &Environment, node: &str) -> Result<((Option<String>, i64), DrainClock)> {
    wait::until(format!("the drain of {node}"), secs(60), || async {
        let drain = env.drains().get(node).await?;
        let ticket = drain.status.and_then(|status| status.ticket).context("no ticket")?;
        let drained = env.nodes().get(node).await?;
        let clock = DrainClock::of(drained.annotations()).context("no clock")??;
        ensure!(clock.suspended_at.is_none(), "{clock}");
        Ok(((drain.metadata.uid, ticket), clock))
    })
    .await
}

/// Pods of an application that spread over nodes, and leave with their tier.
fn spread(app: &str, tier: &str) -> PodTemplate {
    let evenly: Value = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": { "matchLabels": { "app": app } },
    }]);
    small(tier).spec("topologySpreadConstraints", evenly)
}
