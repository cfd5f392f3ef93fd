//! Drainers that delete pods where an eviction would ask their budgets.

use anyhow::{Result, ensure};
use nodeward_api::reason::LockReason;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::wait::secs;
use serde_json::json;

use crate::drainers::all_end;
use crate::environment::Environment;

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
