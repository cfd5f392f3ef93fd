//! Flags: none stays behind, and none of others is touched.

use anyhow::{Result, ensure};
use nodeward_testkit::wait;
use serde_json::json;

use crate::environment::{DEADLINE, Environment, SEVERAL_PERIODS};

#[tokio::test(flavor = "multi_thread")]
async fn noout_expires_and_foreign_flags_stay() -> Result<()> {
    let env = Environment::new().await?;
    let (drained, other) = (env.rook.node_of(0), env.rook.node_of(1));
    env.ceph()
        .command(json!({"prefix": "osd set-group", "flags": "noout", "who": [other]}))
        .await?;
    // So long that its flag is seen before it expires.
    let operator = env.start(json!({"osdMaintenanceTimeout": "45s"})).await?;
    env.open().await?;
    env.drain(0).await?;
    env.noout_is([&drained, &other]).await?;
    env.noout_is([&other]).await?;
    wait::throughout("no second noout", SEVERAL_PERIODS, || async {
        let noout = env.noout().await?;
        ensure!(noout.len() == 1, "{noout:?}");
        env.is_closed_but_for("rack-0").await
    })
    .await?;
    env.condition("NooutExpired").await?;
    env.bring_back(0).await?;
    env.open().await?;

    // An administrator's flag on the drained host itself.
    env.drain(1).await?;
    let closed = || env.is_closed_but_for("rack-1");
    wait::until("closed", DEADLINE, closed).await?;
    wait::throughout("the administrator's noout", SEVERAL_PERIODS, || env.has_noout([&other])).await?;
    ensure!(!env.records().await?.contains_key(&other), "{:?}", env.records().await?);
    env.bring_back(1).await?;
    env.open().await?;
    env.noout_is([&other]).await?;
    env.end([operator]).await
}

/// The user has lost the right, and is given it again while the flag is missing.
#[tokio::test(flavor = "multi_thread")]
async fn refused_noout_is_reported_until_it_is_set() -> Result<()> {
    let env = Environment::new().await?;
    let set_caps = async |mon: &str| {
        let caps = ["mon", mon, "mgr", "allow r"];
        let command = json!({"prefix": "auth caps", "entity": "client.nodeward", "caps": caps});
        env.ceph().command(command).await
    };
    set_caps("allow r").await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    env.drain(0).await?;
    env.condition("NooutRefused").await?;
    let state = env.state().await?.to_string();
    ensure!(
        state.contains("osd set-group") && state.contains("with flags=noout"),
        "{state}"
    );
    env.is_closed_but_for("rack-0").await?;
    env.has_noout([]).await?;

    set_caps(nodeward_testkit::rook::MON_CAPS).await?;
    env.noout_is([&env.rook.node_of(0)]).await?;
    wait::until("no condition", DEADLINE, || async {
        let state = env.state().await?;
        ensure!(!state.to_string().contains("NooutRefused"), "{state}");
        Ok(())
    })
    .await?;
    env.bring_back(0).await?;
    env.open().await?;
    env.noout_is([]).await?;
    env.end([operator]).await
}
