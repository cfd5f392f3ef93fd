//! Dry runs write nothing.

use anyhow::{Result, ensure};
use nodeward_api::reason::LockReason;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{ACCOUNT, Environment, SYSTEM, spec};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

#[tokio::test(flavor = "multi_thread")]
async fn process_dry_run_writes_only_its_lease() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let mark = env.plane.audit().mark()?;
    let lock = env.run(spec(&json!({})).arg("--dry-run")).await?;
    env.drain("n1", json!({})).await?;
    wait::until("it to say what it would do", secs(60), || async {
        ensure!(
            lock.log().contains("dry run: not done"),
            "{}",
            lock.process().log_tail(10)
        );
        Ok(())
    })
    .await?;
    let status = lock.stop(secs(30)).await?;
    ensure!(status.success(), "{status}");
    let all = env.plane.audit().since(mark)?;
    let writes = all
        .of_service_account(SYSTEM, ACCOUNT)
        .writes()
        .without_leases()
        .only(|request| !request.resource.starts_with("selfsubjectreviews"));
    ensure!(writes.count() == 0, "{:?}", writes.0);
    env.end([]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_drain_reports_and_does_nothing() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let lock = env.start(json!({})).await?;
    env.drain("n1", json!({ "dryRun": true })).await?;
    let status = env
        .status_that("n1", "to be planned", secs(60), |status| status.plan.is_some())
        .await?;
    let held = status.plan.map(|plan| plan.held).unwrap_or_default();
    ensure!(held.len() == 1 && held[0].pdbs == ["apps/a"], "{held:?}");
    ensure!(
        matches!(held[0].reason, LockReason::Pinned | LockReason::NoRoom),
        "{held:?}"
    );
    ensure!(env.claim("n1").await?.is_none(), "it has a claim");
    let node = env.nodes().get("n1").await?;
    ensure!(
        node.spec.and_then(|spec| spec.unschedulable).is_none(),
        "it was cordoned"
    );
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    env.end([lock]).await
}
