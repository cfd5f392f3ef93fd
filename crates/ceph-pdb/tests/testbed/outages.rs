//! Parts of Ceph that do not answer.

use anyhow::{Result, ensure};
use nodeward_testkit::wait;
use serde_json::json;

use crate::environment::{Environment, SEVERAL_PERIODS};

/// The monitors repeat the last statistics that a manager gave them: all clean.
#[tokio::test(flavor = "multi_thread")]
async fn budgets_stay_closed_without_a_manager() -> Result<()> {
    let env = Environment::new().await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    env.ceph().mgr().kill();
    env.drain(0).await?;
    let closed = || env.is_closed_but_for("rack-0");
    wait::until("closed", SEVERAL_PERIODS, closed).await?;
    wait::throughout("closed with an OSD down", SEVERAL_PERIODS, closed).await?;
    env.bring_back(0).await?;
    wait::throughout("closed with all OSDs up", SEVERAL_PERIODS, closed).await?;
    env.ceph().mgr().start()?;
    env.open().await?;
    env.noout_is([]).await?;
    env.end([operator]).await
}

async fn budgets_are_kept_and_it_is_said(env: &Environment) -> Result<()> {
    let specs = || async {
        let budgets = env.budgets().await?;
        anyhow::Ok(
            budgets
                .into_iter()
                .map(|(name, budget)| (name, budget.spec))
                .collect::<Vec<_>>(),
        )
    };
    let before = specs().await?;
    env.condition("CephUnavailable").await?;
    wait::throughout("budgets as they were", SEVERAL_PERIODS, || async {
        let now = specs().await?;
        ensure!(now == before, "{now:?} instead of {before:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_stay_as_they_are_without_monitors() -> Result<()> {
    let env = Environment::new().await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    env.ceph().mon(0).pause()?;
    budgets_are_kept_and_it_is_said(&env).await?;
    env.ceph().mon(0).resume()?;
    env.open().await?;

    env.drain(0).await?;
    let closed = || env.is_closed_but_for("rack-0");
    wait::until("closed", SEVERAL_PERIODS, closed).await?;
    env.noout_is([&env.rook.node_of(0)]).await?;
    env.ceph().mon(0).kill();
    env.condition("CephUnavailable").await?;
    wait::throughout("closed", SEVERAL_PERIODS, closed).await?;
    env.ceph().mon(0).start()?;
    env.bring_back(0).await?;
    env.open().await?;
    env.noout_is([]).await?;
    env.end([operator]).await
}
