//! A dry run beside the real drain-keeper: it decides the same, and writes nothing but a lease of its own.

use anyhow::{Result, ensure};
use nodeward_testkit::ControlPlane;
use nodeward_testkit::fleet;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, End};
use serde_json::json;

use crate::place::{PLACE, Place, an_hour_ago, managed};

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_decides_as_the_real_one_does_and_writes_nothing_but_its_lease() -> Result<()> {
    let place = Place::new().await?;
    let dry = Place::with(ControlPlane::shared().await, json!({ "dryRun": true })).await?;
    let node = place.add_node("a").await?;
    let pods = place
        .add_pods([
            ("free", managed(&node)),
            ("covered", managed(&node)),
            ("kept", managed(&node).grace(1).finalizer("example.com/stuck")),
            ("hangs", managed(&node).grace(1).end(End::Stuck)),
        ])
        .await?;
    place.add_budget(place.tight("covered", 1), 1).await?;
    for name in ["kept", "hangs"] {
        workload::delete(&place.client, &place.name, name).await?;
    }
    let config = json!({
        "pdbForceDrainTimeout": "1s",
        "nodeSelector": { PLACE: place.name },
    });
    let rehearsal = dry.run(dry.spec(&config).arg("--dry-run")).await?;
    fleet::cordon_since(&place.client, &node, an_hour_ago()).await?;
    let rehearsed = ["Delete", "PdbDelete", "Finalizer", "StuckTerminating"];
    wait::until("every decision to be made", secs(30), || async {
        let metrics = rehearsal.metrics().await?;
        for strategy in rehearsed {
            let labels = [("strategy", strategy), ("outcome", "dry-run")];
            let count = metrics.sum("nodeward_drain_keeper_actions_total", &labels);
            ensure!(count > 0.5, "{strategy}: {count}");
        }
        Ok(())
    })
    .await?;
    for pod in &pods[..2] {
        crate::place::is_untouched(&place.pods(), pod).await?;
    }

    let real = place.run(place.spec(&config)).await?;
    for pod in &pods {
        workload::gone(&place.client, pod, secs(30)).await?;
    }
    // A pod may be gone before the answer to its delete has been counted.
    wait::until("the real one to have counted what was rehearsed", secs(30), || async {
        let metrics = real.metrics().await?;
        for strategy in rehearsed {
            let count = metrics.sum("nodeward_drain_keeper_actions_total", &[("strategy", strategy)]);
            ensure!(count > 0.5, "{strategy}: {count}");
        }
        Ok(())
    })
    .await?;
    let log = rehearsal.log();
    for name in ["free", "covered", "kept", "hangs"] {
        ensure!(
            log.contains(&format!("{}/{name}", place.name)),
            "{name} is not in the log of the dry run"
        );
    }
    let written = dry.requests()?.writes();
    ensure!(
        written.clone().without_leases().count() == 0,
        "{:?}",
        written.without_leases().0
    );
    ensure!(
        written.count() > 0 && dry.lease_holder("drain-keeper-dry-run").await?.is_some(),
        "it has no lease"
    );
    dry.end([rehearsal]).await?;
    place.end([real]).await
}
