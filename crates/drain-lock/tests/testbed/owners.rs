//! Pods that their budgets never let go, and that whoever runs them moves once an eviction is asked for.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use nodeward_api::node_drain::{BlockedBy, Phase};
use nodeward_api::reason::LockReason;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::webhook::DenyingWebhook;
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use nodeward_testkit::{AuditScope, Options, bulk, fleet};
use serde_json::json;

use crate::environment::{APPS, Environment};
use crate::reviewed::Reviewed;

/// The operator of the pod denies the eviction and deletes the pod by itself, as that of a database moves its members.
#[tokio::test(flavor = "multi_thread")]
async fn owner_that_is_asked_moves_its_pod() -> Result<()> {
    let options = Options {
        audit: AuditScope::Everything,
        ..Options::patient()
    };
    let reviewed = Reviewed::of(Environment::with_options(&["n1", "n2"], options).await?, json!({})).await?;
    let env = &reviewed.env;
    // Both pods begin on the node that is drained.
    fleet::cordon(&env.client, "n2").await?;
    bulk::create(&env.client, [PodTemplate::new().deployment(APPS, "db", 1)?]).await?;
    workload::ready_pods(&env.client, APPS, "db", 1, secs(60)).await?;
    let never = Budget::max_unavailable(APPS, "db", 0).of("db").build()?;
    bulk::create(&env.client, [never]).await?;
    env.add_deployment("web", 1, PodTemplate::new()).await?;
    env.uncordon("n2").await?;
    let db = env
        .pods()
        .list(&ListParams::default().labels("app=db"))
        .await?
        .items
        .remove(0);
    let _operator =
        DenyingWebhook::of_pods_named(&env.plane, APPS, &db.name_any(), 500, "its operator moves it").await?;
    let lock = reviewed.start(json!({})).await?;
    let since = env.plane.audit().mark()?;
    let is_asked = || async {
        let asked = env.plane.audit().since(since)?.writes();
        let asked = asked.only(|request| request.resource == "pods/eviction" && request.name == db.name_any());
        anyhow::Ok(asked.count())
    };

    // Nothing is done before the drain says that owners are to be asked.
    env.drain("n1", json!({})).await?;
    let has = |reason: LockReason| move |one: &BlockedBy| one.reason == reason;
    env.status_that("n1", "to wait for a person", secs(60), |status| {
        status.phase == Some(Phase::Scheduled) && status.blocked_by.iter().any(has(LockReason::BudgetNeverAllows))
    })
    .await?;
    ensure!(is_asked().await? == 0, "it was asked for");

    env.patch_drain("n1", json!({ "spec": { "askOwners": true } })).await?;
    wait::until("the eviction to be asked for", secs(60), || async {
        ensure!(is_asked().await? > 0);
        Ok(())
    })
    .await?;
    let status = env
        .status_that("n1", "to wait for the owner", secs(60), |status| {
            status.blocked_by.iter().any(has(LockReason::AwaitingPods))
        })
        .await?;
    ensure!(status.phase == Some(Phase::Draining), "{status:?}");
    ensure!(
        !status.blocked_by.iter().any(has(LockReason::BudgetNeverAllows)),
        "{status:?}"
    );
    wait::until("the other pod to have left", secs(60), || async {
        ensure!(env.pods_on("n1").await?.len() == 1);
        Ok(())
    })
    .await?;

    env.pods().delete(&db.name_any(), &DeleteParams::default()).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    workload::ready_pods(&env.client, APPS, "db", 1, secs(60)).await?;
    ensure!(is_asked().await? == 1, "it was asked for {} times", is_asked().await?);
    ensure!(
        bypassed(&env.client).await? == 0,
        "the owner's deletion is told as one around its budget"
    );
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    reviewed.end([lock]).await
}

async fn bypassed(client: &Client) -> Result<usize> {
    let events: Api<Event> = Api::all(client.clone());
    let of_reason = ListParams::default().fields(&format!("reason={}", LockReason::BudgetBypassed.as_str()));
    let events = events.list(&of_reason).await.context("list events")?;
    Ok(events.items.len())
}
