//! A dry run beside the real drain-keeper: it decides the same, and writes nothing but a lease of its own.

use anyhow::{Result, ensure};
use nodeward_testkit::ControlPlane;
use nodeward_testkit::fleet;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, End};
use serde_json::json;

use crate::environment::{ENVIRONMENT, Environment, an_hour_ago, managed};

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_decides_alike_and_writes_only_its_lease() -> Result<()> {
    let env = Environment::new().await?;
    let dry = Environment::with(ControlPlane::shared().await, json!({ "dryRun": true })).await?;
    let node = env.add_node("a").await?;
    let pods = env
        .add_pods([
            ("free", managed(&node)),
            ("covered", managed(&node)),
            ("kept", managed(&node).grace(1).finalizer("example.com/stuck")),
            ("hangs", managed(&node).grace(1).end(End::Stuck)),
        ])
        .await?;
    env.add_budget(env.tight("covered", 1), 1).await?;
    for name in ["kept", "hangs"] {
        workload::delete(&env.client, &env.name, name).await?;
    }
    let config = json!({
        "pdbForceDrainTimeout": "1s",
        "nodeSelector": { ENVIRONMENT: env.name },
    });
    let rehearsal = dry.run(dry.spec(&config).arg("--dry-run")).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    let rehearsed = ["Delete", "PdbDelete", "Finalizer", "StuckTerminating"];
    wait::until("every decision to be made", secs(60), || async {
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
        crate::environment::is_untouched(&env.pods(), pod).await?;
    }

    let real = env.run(env.spec(&config)).await?;
    for pod in &pods {
        workload::gone(&env.client, pod, secs(60)).await?;
    }
    // A pod may be gone before the answer to its delete has been counted.
    wait::until("the real one to have counted what was rehearsed", secs(60), || async {
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
            log.contains(&format!("{}/{name}", env.name)),
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
    env.end([real]).await
}
