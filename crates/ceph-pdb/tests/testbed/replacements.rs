//! What is replaced in the middle of a drain: the user's key, and the active manager.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use nodeward_testkit::rook::MON_CAPS;
use nodeward_testkit::wait;
use serde_json::json;

use crate::environment::{DEADLINE, Environment, SEVERAL_PERIODS};

/// The monitors forget the old key before Rook has written the new one.
#[tokio::test(flavor = "multi_thread")]
async fn rotated_key_is_taken_up_in_a_drain() -> Result<()> {
    let env = Environment::new().await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    env.drain(0).await?;
    let closed = || env.is_closed_but_for("rack-0");
    wait::until("closed", DEADLINE, closed).await?;
    env.noout_is([&env.rook.node_of(0)]).await?;

    let user = "client.nodeward";
    let forget = json!({"prefix": "auth del", "entity": user});
    env.ceph().command(forget).await?;
    // A connection that is up goes on with the old key.
    env.ceph().mon(0).kill();
    env.ceph().mon(0).start()?;
    env.condition("CephUnavailable").await?;
    wait::throughout("closed", SEVERAL_PERIODS, closed).await?;
    let key = env.ceph().add_user(user, &["mon", MON_CAPS, "mgr", "allow r"]).await?;
    let secrets: Api<Secret> = Api::namespaced(env.client.clone(), env.rook.namespace());
    let rotated = Patch::Merge(json!({"stringData": {"nodeward": key, "userKey": key}}));
    secrets
        .patch("rook-ceph-client-nodeward", &PatchParams::default(), &rotated)
        .await?;
    wait::until("Ceph to be asked again", DEADLINE, || async {
        let state = env.state().await?;
        ensure!(!state.to_string().contains("CephUnavailable"), "{state}");
        Ok(())
    })
    .await?;
    closed().await?;
    env.bring_back(0).await?;
    env.open().await?;
    env.noout_is([]).await?;
    env.end([operator]).await
}

/// The next manager knows nothing of the placement groups at first.
#[tokio::test(flavor = "multi_thread")]
async fn manager_that_fails_over_opens_nothing() -> Result<()> {
    let env = Environment::new().await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    let number = async || {
        let map = env.ceph().command(json!({"prefix": "mgr dump"})).await?;
        let is_available = map["available"] == true;
        anyhow::Ok(map["active_gid"].as_i64().filter(|_| is_available))
    };
    env.drain(0).await?;
    let closed = || env.is_closed_but_for("rack-0");
    wait::until("closed", DEADLINE, closed).await?;
    let before = number().await?;
    env.ceph().command(json!({"prefix": "mgr fail", "who": "x"})).await?;
    wait::until("the next manager", DEADLINE, || async {
        closed().await?;
        let now = number().await?;
        ensure!(now.is_some() && now != before, "{before:?}, {now:?}");
        Ok(())
    })
    .await?;
    wait::throughout("closed", SEVERAL_PERIODS, closed).await?;
    env.bring_back(0).await?;
    env.open().await?;
    env.noout_is([]).await?;
    env.end([operator]).await
}
