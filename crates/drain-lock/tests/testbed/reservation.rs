//! Pods that stay on their node, reserved in the status of their budgets, where no webhook answers.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use nodeward_api::label;
use nodeward_api::node_drain::Phase;
use nodeward_testkit::reboot;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{APPS, pinned};
use crate::reviewed::Reviewed;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

#[tokio::test(flavor = "multi_thread")]
async fn reservation_alone_refuses_others_without_webhook() -> Result<()> {
    let values = json!({ "webhook": { "enabled": false }, "reserveThroughBudgetStatus": true });
    let reviewed = Reviewed::new(&NODES, values).await?;
    let env = &reviewed.env;
    let lock = env
        .run(reviewed.spec(&json!({ "reserveThroughBudgetStatus": true }))?)
        .await?;
    let stays = pinned("a", &NODES).label(label::DRAIN, "skip").tolerates_all();
    env.add_app("a", &NODES, stays).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    let held = reviewed.pods_on("n1").await?.remove(0);
    let other = reviewed.pods_on("n2").await?.remove(0);
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), APPS);
    let reserved = async || {
        let status = budgets.get("a").await?.status.context("no status")?;
        let is_reserved = status.disrupted_pods.unwrap_or_default().contains_key(&held);
        anyhow::Ok((is_reserved, status.disruptions_allowed))
    };
    wait::until("the pod to be reserved", secs(60), || async {
        let status = reserved().await?;
        ensure!(status == (true, 0), "{status:?}");
        Ok(())
    })
    .await?;
    wait::throughout("the budget refuses", secs(2), || async {
        let refused = reviewed.evict(&other).await?;
        ensure!(refused.status == 429, "{refused:?}");
        Ok(())
    })
    .await?;
    // Its node was told that it may go down, and what stays on it is down until it has.
    reboot::reboot(&env.client, "n1", secs(1)).await?;
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    wait::until("the budget to count it again", secs(60), || async {
        let status = reserved().await?;
        ensure!(status == (false, 1), "{status:?}");
        Ok(())
    })
    .await?;
    let admitted = reviewed.evict(&other).await?;
    ensure!(admitted.is_admitted(), "{admitted:?}");
    reviewed.end([lock]).await
}
