//! The descheduler moves pods from a node that is only cordoned: nobody drains that.

use anyhow::{Result, ensure};
use kube::api::ListParams;
use nodeward_testkit::drainers::{Descheduler, policy};
use nodeward_testkit::fleet;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::PodTemplate;

use super::{Figures, Stage, compare};
use crate::environment::APPS;

/// Each has a budget of one.
const APPLICATIONS: [&str; 2] = ["a", "b"];

#[tokio::test(flavor = "multi_thread")]
async fn descheduler_drains_no_cordoned_node() -> Result<()> {
    Box::pin(compare("descheduler, cordoned node", deschedule)).await
}

async fn deschedule(stage: &Stage) -> Result<Figures> {
    let env = &stage.env;
    let nodes = stage.add_nodes("pool", 2, 8).await?;
    for app in APPLICATIONS {
        env.add_deployment(app, 3, PodTemplate::new()).await?;
    }
    let descheduler = Descheduler::install(&env.plane).await?;
    fleet::cordon(&env.client, &nodes[0]).await?;
    let on_cordoned = env.pods_on(&nodes[0]).await?.len();
    ensure!(on_cordoned > 0, "the cordoned node is empty");
    let begun = stage.begin(Descheduler::USER)?;
    let by_taint = policy("RemovePodsViolatingNodeTaints");
    // Each run is one of its CronJob's: it evicts what budgets let go.
    let outcome = wait::until("the cordoned node to be empty", secs(120), || async {
        descheduler.run(&by_taint, secs(60)).await?;
        let left = env.pods_on(&nodes[0]).await?.len();
        ensure!(left == 0, "{left} pods are left");
        Ok(())
    })
    .await;
    let figures = begun.end(outcome).await?;
    if let Some(lock) = stage.lock() {
        let metrics = lock.metrics().await?;
        let reviews = metrics.sum(
            "nodeward_drain_lock_drainer_reviews_total",
            &[("outcome", "no-drainer")],
        );
        ensure!(reviews > 0.5, "nobody asked who evicts");
        let drains = env.drains().list(&ListParams::default()).await?.items;
        ensure!(drains.is_empty(), "a drain was filed: {drains:?}");
    }
    ensure!(
        figures.evicted >= on_cordoned,
        "it evicted {} pods in {APPS}",
        figures.evicted
    );
    Ok(figures)
}
